/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The packets that the path instrument follows: a table that is indexed by a hash of the address of the
 * sk_buff and tagged with the address. A packet has an element of the table, its place, from its first stage
 * to its end. No single event ends all paths, and the kernel reuses an address at once. So is_same() checks
 * whether an sk_buff is still the packet; if not, the packet has ended.
 */
#ifndef PARSHALL_PATH_PACKET_H
#define PARSHALL_PATH_PACKET_H

#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "maps.h"
#include "parse.h"
#include "path_command.h"
#include "ring.h"

RING_ARRAY path_ring SEC(".maps");
MAPPABLE_ARRAY(struct lane_readers) path_readers SEC(".maps");
/* Element cpu. */
MAPPABLE_ARRAY(struct path_account) path_accounts SEC(".maps");
/* Element cpu * (PATH_CODE_COUNT + groups_max) + group; the first PATH_CODE_COUNT groups are the code paths. */
MAPPABLE_ARRAY(struct path_histogram) path_histograms SEC(".maps");
/* Element (cpu * PATH_WAIT_CODES + code) * PATH_BUCKETS + bucket of the whole. */
MAPPABLE_ARRAY(struct path_wait) path_waits SEC(".maps");
/* By drop reason. Reasons of subsystems are numbers from 1 << 16 on, too large for an array. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, PATH_REASONS_MAX);
	__type(key, __u32);
	__type(value, struct path_drops);
} path_drops SEC(".maps");

#define BIT(stage) (1u << (stage))
#define LEAVING (BIT(STAGE_START_XMIT) | BIT(STAGE_XMIT))
#define DELIVERING (BIT(STAGE_LOCAL_IN) | BIT(STAGE_SOCKET_IN) | BIT(STAGE_TCP_RECEIVE) | \
		    BIT(STAGE_DATA_READY) | BIT(STAGE_COPY))
#define ARRIVING (BIT(STAGE_GRO) | BIT(STAGE_NETIF_RX) | BIT(STAGE_RECEIVE))
/* More bits of path_packet.seen, besides the stages that the packet has passed: */
#define REMEMBERED BIT(26) /* as a GSO packet */
#define CAME_IN BIT(27) /* received from an interface, but no stage of ARRIVING is attached */
#define STACKED BIT(28) /* given to an interface that stands on another one */
#define REFUSED BIT(29) /* by a full accept queue */
#define JOINED BIT(30) /* to another packet, or others to it */
#define SEGMENTED BIT(31) /* by software GSO */
_Static_assert(BIT(STAGE_PAD) <= REMEMBERED, "stages: their bits end below the marks");

enum { FILTERED = 1, THINNED = 2 };

#define TAG_FREE 0ULL
#define TAG_TAKEN 1ULL /* the element is being written or read; no sk_buff has this address */

/* The part of a packet that all stages use, in two cache lines. */
struct path_packet {
	__u64 tag;
	__u64 time_ns;
	__u32 seen;
	__u16 first_cpu;
	__u8 first_stage;
	__u8 last_stage;
	__u32 head;         /* low bits of the address of its data; 0: IPv6 may join it, and then it has other data */
	__u32 stolen_from_ns; /* low bits of stolen_ns of its first CPU, at its first stage */
	__u16 interface_out;
	__u8 is_ignored;    /* FILTERED or THINNED */
	__u8 stacked_bytes; /* low bits of its length when it was STACKED */
	__u32 reason;
	__u32 offset_ns[EVEN(STAGE_PAD)];
};

/* User space sets max_entries to 1 << table_bits, see place_of(). */
ARRAY(struct path_packet) path_packets SEC(".maps");
ARRAY(struct path_identity) path_identities SEC(".maps");

/* What a CPU is doing. */
struct path_cpu {
	__u64 delivering;   /* the sk_buff that was last given to a socket; until its data is ready */
	__u64 delivering_begun_ns; /* when that packet began: the next one in the same sk_buff began later */
	__u64 delivering_to; /* its socket; 0: unknown, but the fields below have the addressee */
	__u64 receiving; /* the sk_buff that an established connection was last seen to process; until its data is ready */
	__u64 receiving_begun_ns;
	__u64 receiving_to;
	const struct net *delivering_net;
	__u32 delivering_from_address; /* low bits, network byte order */
	__u16 delivering_from_port;    /* network byte order */
	__u16 delivering_port;         /* host byte order */
	__u32 delivering_protocol;
	/* Cookie of the socket whose data was last ready, until a task is woken for it or another packet comes. */
	__u64 ready_socket;
	__u64 irq_from_ns;
	__u64 stolen_ns;
	__u64 softirq_from_ns[16];
	__u64 net_rx_raised_ns;
	__u64 noise_from_ns[16];  /* start of the last event, for the gaps */
	__u32 poll;
	__u32 poll_index;
	__u32 heads_in_use; /* by programs that interrupted each other */
	__u32 passed;       /* packets since the last one that thinning kept, including that one */
} __attribute__((aligned(64)));

/* A mappable array begins at a page, so that CPUs share no cache line. */
MAPPABLE_ARRAY(struct path_cpu) path_cpus SEC(".maps");

/* Forgets what a CPU was doing when the programs were detached, before they are attached again. */
static long forget_cpu(__u64 step, void *context)
{
	__u32 cpu = (__u32)step;
	struct path_cpu *then = bpf_map_lookup_elem(&path_cpus, &cpu);
	struct path_cpu fresh = {};

	if (!then)
		return 1;
	/* Polls keep their numbers. */
	fresh.stolen_ns = then->stolen_ns;
	fresh.poll = then->poll;
	fresh.passed = then->passed;
	*then = fresh;
	return 0;
}

/* Unused. It brings the type into the object, so that user space can compare its own layout. */
struct lane_header *lane_header_of_user_space;

__u64 attached_ns; /* when the programs were attached last */
/*
 * What the programs do, which does not depend on the order in which they are attached and detached: a drop must not end a packet
 * whose sk_buff another one has got at a stage that is detached already.
 */
enum {
	CLOSED, /* nothing: not all of them are attached */
	ENDING, /* packets go on to their ends, and none begins; what would begin ends the packet that had its sk_buff */
	OPEN,
};
__u32 window;

#define CPUS_MAX 8192u

/* Run before the programs are attached. */
SEC("syscall")
int path_open_window(void *context)
{
	bpf_loop(CPUS_MAX, forget_cpu, 0, 0);
	attached_ns = bpf_ktime_get_ns();
	return 0;
}

/* Run when all programs are attached. Returns the low bits of its time: who runs it may wait before and after it. */
SEC("syscall")
int path_begin_window(void *context)
{
	window = OPEN;
	return (__u32)bpf_ktime_get_ns();
}

/* Run when no more packets are to begin. Likewise. */
SEC("syscall")
int path_end_window(void *context)
{
	window = ENDING;
	return (__u32)bpf_ktime_get_ns();
}

/* Run before the first one is detached. */
SEC("syscall")
int path_close_window(void *context)
{
	window = CLOSED;
	return 0;
}

/* Numbers of the groups that have histograms of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct path_key);
	__type(value, __u32);
} path_groups SEC(".maps");

__u32 last_group;

static __always_inline struct path_account *account_of(__u32 cpu)
{
	return bpf_map_lookup_elem(&path_accounts, &cpu);
}

static __always_inline struct path_cpu *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&path_cpus, &cpu);
}

/* Programs of a CPU may interrupt each other. */
#define count(where) __sync_fetch_and_add(where, 1)

/*
 * An atomic operation waits for all stores before it, which costs more than everything else here. Where
 * bottom halves are disabled (when packets arrive, and when a driver gets them), no other program that counts
 * can interrupt, so plain counts suffice: `is_alone`.
 */
static __always_inline void count_in_softirq(__u64 *where, int is_alone)
{
	if (is_alone)
		*(volatile __u64 *)where += 1;
	else
		count(where);
}

/*
 * The place of an sk_buff. The verifier permits no shift of a pointer, but the copied low half of a pointer
 * is a number. Addresses are multiples of 64, and the golden ratio spreads them over the high bits.
 */
static __always_inline __u32 place_of(const void *skb)
{
	__u32 low = (__u32)(__u64)skb;

	return ((low >> 6) * 0x9e3779b1u) >> (32 - options.table_bits);
}

static __always_inline struct path_packet *packet_at(__u32 place)
{
	return bpf_map_lookup_elem(&path_packets, &place);
}

/* A packet has one of two neighbouring places, so that two live packets rarely displace each other. */
static __always_inline struct path_packet *find_packet(const void *skb, __u32 *place)
{
	struct path_packet *packet;

	*place = place_of(skb);
	if (window == CLOSED)
		return 0;
	packet = packet_at(*place);
	if (packet && *(volatile __u64 *)&packet->tag == (__u64)skb)
		return packet;
	*place ^= 1;
	packet = packet_at(*place);
	return packet && *(volatile __u64 *)&packet->tag == (__u64)skb ? packet : 0;
}

/* Low bits of the address of a packet's data. The verifier treats this pointer to bytes as a number. */
static __always_inline __u32 head_of(const struct sk_buff *skb)
{
	return (__u32)(__u64)skb->head;
}

/*
 * Whether the sk_buff at the address of a packet is still that packet. The kernel reuses addresses for
 * packets of other namespaces, of AF_UNIX and netlink, and for copies for packet sockets, which pass no first
 * stage. Three properties tell them apart. Only a packet of a network has a protocol. Only a received packet
 * has the number of an interface. And the address of the data stays the same, except when the stack gives a
 * received packet its own copy of shared data; stages on the way out note the new address.
 * docs/decisions/0020-packets-by-sk-buff.md says what can still be confused.
 */
static __always_inline int is_same(const struct path_packet *packet, const struct sk_buff *skb)
{
	int came_in = packet->seen & ARRIVING;

	if (!skb->protocol)
		return 0;
	if (came_in && packet->last_stage >= STAGE_RECEIVE && !skb->skb_iif)
		return 0;
	return head_of(skb) == packet->head || !packet->head || (came_in && !BPF_CORE_READ_BITFIELD(skb, cloned));
}

/* ---- histograms ----------------------------------------------------------------------------- */

/* 1 if a number is above a limit, else 0: the sign of the difference. It is pinned, or the compiler would branch. */
static __always_inline __u32 is_above(__u32 number, __u32 limit)
{
	__u64 difference = (__u64)limit - number;

	asm volatile("" : "+r"(difference));
	return difference >> 63;
}

/*
 * 8 buckets to each power of two; below 8 the value itself. The verifier follows both sides of each branch,
 * and inlined code again at each stage. So this has no branch and is a global function, or most of the load
 * time would go here.
 */
__noinline __u32 bucket_of(__u32 value)
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
 * The bucket of a value as an index. The verifier knows no bounds of a function's result, so it needs the
 * mask. The result is pinned, because a compiler that knows its bounds leaves out the mask.
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

static __always_inline void add_time(struct path_histogram *histogram, const __u32 stage, __u32 time_ns)
{
	histogram->sum_ns[stage] += time_ns;
	if (time_ns > histogram->max_ns[stage])
		histogram->max_ns[stage] = time_ns;
	histogram->counts[stage][bucket_index_of(time_ns)]++;
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
static __always_inline void add_times(struct path_histogram *histogram, const struct path_packet *packet)
{
	__u32 before_ns = 0, now_ns = 0;

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
 * Ends the packet at a place, which is free afterwards. Another CPU may end it at the same time, in make_room
 * of a full table: returns whether this call ended it. `is_alone`: bottom halves are disabled. A global
 * function with numbers as its only arguments: the verifier follows it once in each program, and not at each
 * call.
 */
__noinline int end_packet(__u32 place, __u64 tag, __u32 otherwise, __u32 is_alone)
{
	struct path_packet *packet = packet_at(place);
	__u32 cpu, code, group;
	struct path_histogram *histogram;
	struct path_account *account;

	if (!packet || tag <= TAG_TAKEN)
		return 0;
	if (__sync_val_compare_and_swap(&packet->tag, tag, TAG_TAKEN) != tag)
		return 0;
	if (packet->is_ignored)
		goto free;
	cpu = bpf_get_smp_processor_id();
	code = code_of(packet->seen, otherwise);
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
		end_packet(*place, *(volatile __u64 *)&packet->tag, PATH_UNKNOWN, 0);
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
		end_packet(*place, tag, PATH_DISPLACED, 0);
	return packet;
}

#endif
