/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The end of a packet: its times go into histograms and, if asked for, a record, and its place is free.
 */
#ifndef PARSHALL_PATH_END_H
#define PARSHALL_PATH_END_H

#include "path_packet.h"

/* ---- histograms ----------------------------------------------------------------------------- */

/* 1 if a number is above a limit, else 0: the sign of the difference. It is pinned, or the compiler would branch. */
static __always_inline __u32 is_above(__u32 number, __u32 limit)
{
	__u64 difference = (__u64)limit - number;

	asm volatile("" : "+r"(difference));
	return difference >> 63;
}

/*
 * 8 buckets to each power of two; below 8 the value itself. The verifier follows both sides of each branch, so this has
 * none.
 */
static __always_inline __u32 bucket_of(__u32 value)
{
	__u32 rest = value | 8, log2 = 0, step;

#pragma clang loop unroll(full)
	for (int bits = 16; bits; bits >>= 1) {
		step = is_above(rest, (1u << bits) - 1) * bits;
		rest >>= step;
		log2 += step;
	}
	/* For a value below 8, `value | 8` gave 8 + value. */
	return ((log2 - 2) << 3) + ((value >> (log2 - 3)) & 7) - 8 + 8 * is_above(value, 7);
}

/*
 * The bucket of a value as an index. The verifier does not find its bounds, so it needs the mask. The result is pinned,
 * because a compiler that knows its bounds leaves out the mask.
 */
static __always_inline __u32 bucket_index_of(__u32 value)
{
	__u32 bucket = bucket_of(value);

	asm volatile("" : "+r"(bucket));
	return bucket & (PATH_BUCKETS - 1);
}

static __noinline __u32 group_of(const struct path_identity *identity, __u32 place, __u32 code)
{
	struct path_key key = { .code = code };
	struct path_command *command;
	__u32 *known, group;

	if (!identity)
		return ~0u;
	switch (options.group) {
	case GROUP_INTERFACE:
		key.number = identity->interface;
		key.netns_inode = identity->netns_inode;
		break;
	case GROUP_CGROUP:
		key.number = identity->cgroup_id;
		break;
	case GROUP_COMMAND:
		command = bpf_map_lookup_elem(&path_commands, &place);
		if (command && !command->name[0])
			command = bpf_map_lookup_elem(&path_reading, &identity->socket_cookie);
		if (command)
			__builtin_memcpy(key.source, command->name, sizeof(command->name));
		break;
	default:
		__builtin_memcpy(key.source, identity->source, 16);
		__builtin_memcpy(key.destination, identity->destination, 16);
		key.source_port = identity->source_port;
		key.destination_port = identity->destination_port;
		key.protocol = identity->protocol;
		key.netns_inode = identity->netns_inode;
	}
	known = bpf_map_lookup_elem(&path_groups, &key);
	if (known)
		return *known;
	if (last_group >= options.groups_max)
		return ~0u;
	group = __sync_fetch_and_add(&last_group, 1);
	if (group >= options.groups_max)
		return ~0u;
	/* Two CPUs may add the key at once: the group number of the second stays unused. */
	if (bpf_map_update_elem(&path_groups, &key, &group, BPF_NOEXIST)) {
		known = bpf_map_lookup_elem(&path_groups, &key);
		return known ? *known : ~0u;
	}
	return group;
}

/*
 * A global function, as the next one: the verifier follows it once in each program, and not again for each stage of each
 * histogram, which was half of all that it followed.
 */
__noinline int add_time(struct path_histogram *histogram, __u32 stage, __u32 time_ns)
{
	if (!histogram || stage > STAGE_PAD)
		return 0;
	histogram->sum_ns[stage] += time_ns;
	if (time_ns > histogram->max_ns[stage])
		histogram->max_ns[stage] = time_ns;
	histogram->counts[stage][bucket_index_of(time_ns)]++;
	return 0;
}

/* A time, or 0 if it is negative: packets may pass stages again, as in a tunnel. Without a branch, for the verifier. */
static __always_inline __u32 above_zero(__s64 time_ns)
{
	return time_ns & ~(time_ns >> 63);
}

/* Read again at each stage: otherwise the verifier would remember each bit, and follow every combination of bits. */
static __always_inline int has_passed(const struct path_packet *packet, __u32 stage)
{
	return *(const volatile __u32 *)&packet->seen & BIT(stage);
}

/*
 * Each CPU has its own histograms. If the end of one packet interrupts that of another, one count may be
 * lost: account.ended, which is atomic, has the exact numbers.
 */
__noinline int add_times(struct path_histogram *histogram, const struct path_packet *packet)
{
	__u32 before_ns = 0, now_ns = 0;

	if (!histogram || !packet)
		return 0;
	histogram->packets++;
	/* Unrolled, so that the verifier leaves out stages that are not attached. */
#pragma clang loop unroll(full)
	for (int stage = 0; stage < STAGE_PAD; stage++) {
		if (!(options.stages & BIT(stage)) || !has_passed(packet, stage))
			continue;
		now_ns = packet->offset_ns[stage];
		/* The first stage has no time. */
		if (now_ns)
			add_time(histogram, stage, above_zero((__s64)now_ns - before_ns));
		before_ns = now_ns;
	}
	add_time(histogram, STAGE_PAD, before_ns);
	return 0;
}

static __always_inline struct path_histogram *histogram_of(__u32 cpu, __u32 group)
{
	__u32 element = cpu * (PATH_CODE_COUNT + options.groups_max) + group;

	return bpf_map_lookup_elem(&path_histograms, &element);
}

/*
 * Notes where a packet spent its time, by the bucket of its whole time. Histograms of stages cannot say where
 * slow packets waited: the packets that are slow in a stage may be others than the packets that are slow as a
 * whole.
 */
static __noinline int add_wait(const struct path_packet *packet, __u32 code)
{
	__u32 whole_ns = 0, before_ns = 0, element;
	struct path_wait *wait;

	if (!packet || code >= PATH_WAIT_CODES)
		return 0;
#pragma clang loop unroll(full)
	for (int stage = 0; stage < STAGE_PAD; stage++)
		if (options.stages & BIT(stage) && has_passed(packet, stage))
			whole_ns = packet->offset_ns[stage];
	element = (bpf_get_smp_processor_id() * PATH_WAIT_CODES + code) * PATH_BUCKETS + bucket_index_of(whole_ns);
	wait = bpf_map_lookup_elem(&path_waits, &element);
	if (!wait)
		return 0;
	wait->packets++;
	wait->sum_ns[STAGE_PAD] += whole_ns;
#pragma clang loop unroll(full)
	for (int stage = 0; stage < STAGE_PAD; stage++) {
		if (!(options.stages & BIT(stage)) || !has_passed(packet, stage))
			continue;
		wait->sum_ns[stage] += above_zero((__s64)packet->offset_ns[stage] - before_ns);
		before_ns = packet->offset_ns[stage];
	}
	return 0;
}

/* ---- the end of a packet ---------------------------------------------------------------------- */

/* What became of a packet, by the stages that it passed; `otherwise` if they do not decide it. */
static __always_inline __u32 code_of(__u32 seen, __u32 otherwise)
{
	/* Including packets that are dropped at the read, which verifies UDP checksums. */
	if (seen & BIT(STAGE_DROP) && !(seen & BIT(STAGE_COPY)))
		return PATH_DROPPED;
	if (seen & SEGMENTED)
		return PATH_SEGMENTED;
	if (seen & LEAVING)
		return seen & (ARRIVING | CAME_IN) ? PATH_FORWARDED : PATH_SENT;
	/* IPv6 joins behind local_in. */
	if (seen & JOINED && !(seen & DELIVERING & ~BIT(STAGE_LOCAL_IN)))
		return otherwise == PATH_DISPLACED ? PATH_DISPLACED : PATH_MERGED;
	if (seen & DELIVERING)
		return PATH_DELIVERED;
	if (seen & BIT(STAGE_CONSUME))
		return PATH_CONSUMED;
	/* Only where drops are seen: otherwise the packet may have been dropped as well. */
	if ((seen & ~BIT(STAGE_XDP)) == BIT(STAGE_GRO) && otherwise == PATH_UNKNOWN && options.stages & BIT(STAGE_DROP))
		return PATH_MERGED;
	return otherwise;
}

static __noinline int write_record(struct path_packet *packet, __u32 place, __u32 code)
{
	struct path_identity *identity = bpf_map_lookup_elem(&path_identities, &place);
	__u32 cpu = bpf_get_smp_processor_id();
	struct path_account *account = account_of(cpu);
	const struct path_cpu *now = bpf_map_lookup_elem(&path_cpus, &cpu);
	struct lane_readers *readers = bpf_map_lookup_elem(&path_readers, &cpu);
	void *lane = bpf_map_lookup_elem(&path_ring, &cpu);
	struct path_record *record;
	struct ring_slot slot;

	if (!packet || !identity || !account || !now)
		return 0;
	/* A CPU that came after the start has no lane. */
	record = !lane ? 0 : (void *)ring_reserve(lane, readers, &options.layout, sizeof(*record), RECORD_PATH, 0, &slot);
	if (!record) {
		count(&account->dropped);
		return 0;
	}
	record->time_ns = packet->time_ns;
	__builtin_memcpy(record->offset_ns, packet->offset_ns, sizeof(record->offset_ns));
	record->seen = packet->seen & ~(REMEMBERED | CAME_IN | STACKED | REFUSED | JOINED | SEGMENTED);
	record->stolen_ns = packet->first_cpu == (__u16)cpu ? (__u32)now->stolen_ns - packet->stolen_from_ns : ~0u;
	record->interface_out = packet->interface_out;
	record->reason = packet->reason;
	record->first_cpu = packet->first_cpu;
	record->last_cpu = cpu;
	record->code = code;
	record->first_stage = packet->first_stage;
	record->last_stage = packet->last_stage;
	record->pad = 0;
	__builtin_memcpy(&record->identity, identity, sizeof(*identity));
	ring_commit(&record->header, &options.layout, &slot);
	return 0;
}

/*
 * The tag of the packet of an sk_buff, for end_packet; 0 if another packet has taken its place since it was found. The
 * copy of a tag is a number for the verifier, where the equal pointer is none.
 */
static __always_inline __u64 tag_of(const struct path_packet *packet, const void *skb)
{
	__u64 tag = *(const volatile __u64 *)&packet->tag, number;

	asm volatile("%[number] = %[tag]" : [number] "=r"(number) : [tag] "r"(tag));
	return tag == (__u64)skb ? number : 0;
}

/* Makes room for the drops of a reason that is new to this measurement. */
static __noinline int add_reason(__u32 reason)
{
	struct path_drops none = {};

	return bpf_map_update_elem(&path_drops, &reason, &none, BPF_NOEXIST);
}

static __always_inline struct path_drops *drops_of(__u32 reason)
{
	struct path_drops *drops = bpf_map_lookup_elem(&path_drops, &reason);

	if (!drops) {
		add_reason(reason);
		drops = bpf_map_lookup_elem(&path_drops, &reason);
	}
	return drops;
}

/* Notes the last stage of a packet that ends, with its time. */
static __always_inline void pass_last(struct path_packet *packet, const __u32 stage)
{
	__u64 past_ns = bpf_ktime_get_ns() - packet->time_ns;

	if (!packet->is_ignored)
		packet->offset_ns[stage] = past_ns < 0xffffffff ? past_ns : 0xffffffff;
	packet->seen |= BIT(stage);
	packet->last_stage = stage;
}

static __always_inline void note_drop(const struct path_packet *packet)
{
	__u32 stage = *(const volatile __u8 *)&packet->last_stage;
	struct path_drops *drops = drops_of(packet->reason);

	if (drops && stage < PATH_STAGE_COUNT)
		count(&drops->followed[stage]);
}

/*
 * Turns the low bits of the time at which the data of a packet was ready into a stage. The kernel may have freed the
 * packet's sk_buff by then, because its data went to another one, and this program may be interrupted: so another packet
 * may have got the place before the time is written. It began later. A time before the beginning is such a one, and so is
 * one more than 2.1 s behind it: of 32 bits, half are for each side.
 */
static __always_inline void take_ready_time(struct path_packet *packet)
{
	__u32 ready_ns = packet->offset_ns[STAGE_DATA_READY], past_ns = ready_ns - (__u32)packet->time_ns;

	/* A segment has the beginning of its GSO packet, and is not delivered. */
	if (!ready_ns || past_ns >> 31 || !(packet->seen & DELIVERING))
		return;
	packet->offset_ns[STAGE_DATA_READY] = past_ns;
	packet->seen |= BIT(STAGE_DATA_READY);
	if (packet->last_stage < STAGE_DATA_READY)
		packet->last_stage = STAGE_DATA_READY;
}

/* How a packet ends, for end_packet: the code path if its stages do not decide it, its last stage, and for which reason. */
#define END(otherwise, stage, reason) ((__u64)(reason) << 32 | (stage) << 8 | (otherwise))
#define END_AS(otherwise) END(otherwise, STAGE_PAD, 0)

/*
 * Ends the packet at a place, which is free afterwards. Another CPU may end it at the same time, in make_room
 * of a full table, and begin another one there: so nothing of what `end` and `marks` say of the packet is noted before it
 * is known to be this one. Returns whether this call ended it. `is_alone`: bottom halves are disabled. A global function
 * with numbers as its only arguments: the verifier follows it once in each program, and not at each call.
 */
__noinline int end_packet(__u32 place, __u64 tag, __u64 end, __u32 marks, __u32 is_alone)
{
	struct path_packet *packet = packet_at(place);
	__u32 cpu, code, group, stage = end >> 8 & 0xff;
	struct path_histogram *histogram;
	struct path_account *account;

	if (!packet || tag <= TAG_TAKEN)
		return 0;
	if (__sync_val_compare_and_swap(&packet->tag, tag, TAG_TAKEN) != tag)
		return 0;
	if (packet->is_ignored)
		goto free;
	if (options.stages & BIT(STAGE_DATA_READY))
		take_ready_time(packet);
	packet->seen |= marks;
	if (end >> 32)
		packet->reason = end >> 32;
	if (stage == STAGE_DROP) {
		note_drop(packet);
		pass_last(packet, STAGE_DROP);
	} else if (stage == STAGE_CONSUME) {
		pass_last(packet, STAGE_CONSUME);
	}
	cpu = bpf_get_smp_processor_id();
	code = code_of(packet->seen, end & 0xff);
	account = account_of(cpu);
	if (!account || code >= PATH_CODE_COUNT)
		goto free;
	/* Checked at the end, because the socket of a received packet is known late. */
	if (options.cgroup_id) {
		const struct path_identity *identity = bpf_map_lookup_elem(&path_identities, &place);

		if (!identity || !identity->in_cgroup) {
			count(&account->filtered);
			goto free;
		}
	}
	count_in_softirq(&account->ended[code], is_alone);
	histogram = histogram_of(cpu, code);
	if (histogram) {
		add_times(histogram, packet);
		if (histogram->packets % PATH_WAIT_EVERY == 0)
			add_wait(packet, code);
	} else {
		count(&account->without_histogram);
	}
	if (options.group) {
		group = group_of(bpf_map_lookup_elem(&path_identities, &place), place, code);
		histogram = group < options.groups_max ? histogram_of(cpu, PATH_CODE_COUNT + group) : 0;
		if (histogram)
			add_times(histogram, packet);
		else
			count(&account->ungrouped);
	}
	if (options.writes_records)
		write_record(packet, place, code);
free:
	*(volatile __u64 *)&packet->tag = TAG_FREE;
	return 1;
}

/*
 * Whether the packet at a place can end now without loss: what became of it is known already. A fragment
 * still waits for the others behind local_in.
 */
static __always_inline int is_settled(const struct path_packet *packet)
{
	return packet->tag == TAG_FREE || packet->is_ignored || (packet->seen & DELIVERING && !(packet->seen & JOINED));
}

/*
 * Finds a place for a new packet, if one may begin. Ends the packet that has this place, or an earlier packet in the same
 * sk_buff; this one also if none may begin.
 */
static __noinline struct path_packet *make_room(const void *skb, __u32 *place)
{
	struct path_packet *packet, *other;
	__u64 tag;

	if (!place)
		return 0;
	packet = find_packet(skb, place);

	if (packet) {
		end_packet(*place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), 0, 0);
		return window == OPEN ? packet : 0;
	}
	if (window != OPEN)
		return 0;
	/* find_packet has looked at the second place last. */
	other = packet_at(*place);
	*place ^= 1;
	packet = packet_at(*place);
	if (!packet || !other)
		return 0;
	if (!is_settled(packet) && is_settled(other)) {
		*place ^= 1;
		packet = other;
	}
	tag = *(volatile __u64 *)&packet->tag;
	if (tag)
		end_packet(*place, tag, END_AS(PATH_DISPLACED), 0, 0);
	return packet;
}

#endif
