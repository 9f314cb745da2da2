/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The beginning of a packet: at the first stage that it passes, or at native XDP before it. A segment takes the
 * beginning of its GSO packet.
 */
#ifndef PARSHALL_PATH_BEGIN_H
#define PARSHALL_PATH_BEGIN_H

#include "path_delivery.h"
#include "path_segment.h"

static __always_inline __u32 netns_of(const struct sk_buff *skb)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);

	return dev ? BPF_CORE_READ(dev, nd_net.net, ns.inum) : 0;
}

/* Index of a packet's interface; 0 before routing has found one. */
static __always_inline __u32 interface_of(const struct sk_buff *skb)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);

	return dev ? BPF_CORE_READ(dev, ifindex) : 0;
}

static __always_inline int is_wanted_interface(__u32 interface)
{
	for (int i = 0; i < PATH_INTERFACES_MAX; i++) {
		if (i >= options.interface_count)
			return 0;
		if (options.interfaces[i] == interface)
			return 1;
	}
	return 0;
}

/* Whether the filter accepts a packet; fills in the packet's identity if the options ask for it. */
static __always_inline int is_wanted_head(struct sk_buff *skb, struct path_identity *identity, __u32 netns,
					  __u32 interface, __u32 number)
{
	struct packet_head *head = read_head(skb, number);
	struct sock *sk;

	if (!identity || (options.filter_length && !accepts(head)))
		return 0;
	if (!options.reads_headers)
		return 1;
	__builtin_memset(identity, 0, sizeof(*identity));
	sk = BPF_CORE_READ(skb, sk);
	if (sk)
		describe_socket(identity, sk);
	identity->netns_inode = netns;
	identity->interface = interface;
	identity->gso_segs = 1;
	if (head) {
		struct skb_shared_info *shared = (void *)(BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));

		identity->ethernet_protocol = head->ethernet_protocol;
		identity->gso_segs = BPF_CORE_READ(shared, gso_segs) ?: 1;
		identity->length_bytes = head->wire_bytes;
		describe_headers(identity, head);
	}
	return 1;
}

/* Whether a packet is of the selected namespace and interfaces, and the filter accepts it; fills in its identity. */
static __noinline int is_wanted(struct sk_buff *skb, struct path_identity *identity, __u32 netns, __u32 interface)
{
	struct path_cpu *now = this_cpu();
	__u32 in_use;
	int wanted;

	if (!skb || !now)
		return 0;
	if (options.netns_inode && netns != options.netns_inode)
		return 0;
	interface = interface ?: interface_of(skb);
	if (options.interface_count && !is_wanted_interface(interface))
		return 0;
	if (!options.filter_length && !options.reads_headers)
		return 1;
	/* A program that interrupts this one takes the next head, and gives it back before this one goes on. */
	in_use = now->heads_in_use;
	*(volatile __u32 *)&now->heads_in_use = in_use + 1;
	wanted = is_wanted_head(skb, identity, netns, interface, in_use);
	*(volatile __u32 *)&now->heads_in_use = in_use;
	return wanted;
}

/*
 * When native XDP had a packet, by the address of its first byte. The driver makes an sk_buff around that byte, on the
 * same CPU and in the same poll. Metadata in front of the packet could hold the time, but GRO merges no packets whose
 * metadata differ.
 */
struct path_arrival {
	__u64 time_ns; /* 0: none, or taken */
	__u32 address; /* low bits */
	__u32 interface;
};

#define ARRIVAL_BITS 8

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << ARRIVAL_BITS);
	__type(key, __u32);
	__type(value, struct path_arrival);
} path_arrivals SEC(".maps");

static __always_inline struct path_arrival *arrival_at(__u32 address)
{
	__u32 element = ((address >> 6) * 0x9e3779b1u) >> (32 - ARRIVAL_BITS);

	return bpf_map_lookup_elem(&path_arrivals, &element);
}

SEC("xdp.frags")
int path_xdp(struct xdp_md *ctx)
{
	struct path_arrival *arrival;
	__u32 address;

	/* The verifier takes no arithmetic on a pointer to a packet, but its copied low half is a number. */
	asm volatile("%[low] = %[pointer]" : [low] "=w"(address) : [pointer] "w"(ctx->data));
	arrival = arrival_at(address);
	if (arrival) {
		arrival->address = address;
		arrival->interface = ctx->ingress_ifindex;
		arrival->time_ns = bpf_ktime_get_ns();
	}
	return XDP_PASS;
}

/* Moves the beginning of a packet back to its arrival, if the driver has not copied it elsewhere since. */
static __always_inline void begin_at_arrival(struct path_packet *packet, struct sk_buff *skb, __u32 stage)
{
	__u32 address = (__u32)(__u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, mac_header);
	struct path_arrival *arrival = arrival_at(address);
	__u64 past_ns;

	if (!arrival || !arrival->time_ns || arrival->address != address ||
	    arrival->interface != BPF_CORE_READ(skb, dev, ifindex))
		return;
	past_ns = packet->time_ns - arrival->time_ns;
	packet->time_ns = arrival->time_ns;
	packet->first_stage = STAGE_XDP;
	packet->seen |= BIT(STAGE_XDP);
	packet->offset_ns[STAGE_XDP] = 0;
	if (stage < STAGE_PAD)
		packet->offset_ns[stage] = past_ns < 0xffffffff ? past_ns : 0xffffffff;
	arrival->time_ns = 0;
}

/*
 * Notes a stage, and the time of its first pass. An ignored packet gets its stages but no times: without stages, it would
 * begin anew at the next one. `tag` is what the packet's place has as long as it is this packet's: in a full table another
 * CPU, or a program that interrupts this one, may have begun another packet there since this one was found. Then nothing
 * is noted, and 0 returned: the caller must leave that packet alone.
 */
static __always_inline int pass(struct path_packet *packet, __u64 tag, const __u32 stage)
{
	int is_first = !(packet->seen & BIT(stage)), is_timed = is_first && !packet->is_ignored;
	__u64 past_ns = 0;

	if (is_timed)
		past_ns = bpf_ktime_get_ns() - *(volatile __u64 *)&packet->time_ns;
	/* What was read above may be the other packet's. */
	if (*(volatile __u64 *)&packet->tag != tag)
		return 0;
	if (is_timed)
		packet->offset_ns[stage] = past_ns < 0xffffffff ? past_ns : 0xffffffff;
	if (is_first)
		packet->seen |= BIT(stage);
	packet->last_stage = stage;
	return 1;
}

/* Gives a segment the times of its GSO packet. Returns 0 if another CPU has replaced the GSO packet meanwhile. */
static __noinline int inherit(struct path_packet *packet, __u32 place, __u32 stage, const struct path_gso *gso)
{
	struct path_command *command;
	__u64 queued_ns;
	__u32 seen;
	__u8 first_stage;

	if (!packet || !gso || stage >= STAGE_PAD)
		return 0;
	queued_ns = *(const volatile __u64 *)&gso->queued_ns;
	packet->time_ns = gso->packet.time_ns;
	seen = gso->packet.seen & ~REMEMBERED;
	first_stage = gso->packet.first_stage;
	packet->first_cpu = gso->packet.first_cpu;
	packet->stolen_from_ns = gso->packet.stolen_from_ns;
	packet->interface_out = 0;
	packet->reason = 0;
	__builtin_memcpy(packet->offset_ns, gso->packet.offset_ns, sizeof(packet->offset_ns));
	if (options.group == GROUP_COMMAND) {
		command = bpf_map_lookup_elem(&path_commands, &place);
		if (command)
			*command = gso->command;
	}
	if (!*(const volatile __u64 *)&gso->key || *(const volatile __u64 *)&gso->queued_ns != queued_ns)
		return 0;
	packet->seen = seen;
	packet->first_stage = first_stage;
	pass(packet, TAG_TAKEN, stage);
	return 1;
}

/*
 * Each CPU keeps its first packet, and one at a random place of each n after it: traffic that comes in a pattern, as sent
 * and delivered by turns on the loopback, would have every n-th packet of one kind only (so n-out-of-N of RFC 5475,
 * 5.2.1). A common count would be a cache line that all CPUs write.
 */
static __always_inline int is_thinned_out(void)
{
	struct path_cpu *now = this_cpu();
	__u32 passed, kept;

	if (!now)
		return 1;
	passed = now->passed;
	kept = now->kept;
	if (passed + 1 < options.every) {
		now->passed = passed + 1;
	} else {
		now->passed = 0;
		now->kept = bpf_get_prandom_u32() % options.every;
	}
	return passed != kept;
}

/*
 * Begins a packet at its first stage, or a segment at its own first stage. `netns` and `interface` are 0 where the
 * packet's device has them.
 */
static __noinline int begin_packet(struct sk_buff *skb, __u32 stage, __u32 netns, __u32 interface,
				   const struct path_gso *gso)
{
	__u32 place, cpu = bpf_get_smp_processor_id();
	struct path_packet *packet;
	struct path_account *account = account_of(cpu);
	struct path_identity *identity;
	struct path_cpu *now;
	__u32 ignored = gso ? gso->packet.is_ignored : 0;
	int is_alone = stage <= STAGE_RECEIVE || stage >= STAGE_QUEUE;

	if (!skb || !account)
		return 0;
	packet = make_room(skb, &place);
	if (!packet)
		return 0;
	count_in_softirq(&account->seen, is_alone);
	if (__sync_val_compare_and_swap(&packet->tag, TAG_FREE, TAG_TAKEN) != TAG_FREE) {
		count(&account->failed);
		return 0;
	}
	if (!ignored && (options.netns_inode || options.interface_count || options.filter_length || options.reads_headers)) {
		identity = bpf_map_lookup_elem(&path_identities, &place);
		if (!identity || !is_wanted(skb, identity, netns ?: netns_of(skb), interface))
			ignored = FILTERED;
	}
	if (options.every > 1 && !ignored && !gso && is_thinned_out())
		ignored = THINNED;
	if (ignored)
		count_in_softirq(ignored == FILTERED ? &account->filtered : &account->thinned, is_alone);
	packet->is_ignored = ignored;
	packet->head = head_of(skb);
	packet->seen = BIT(stage);
	packet->first_stage = packet->last_stage = stage;
	if (!ignored && !(gso && inherit(packet, place, stage, gso))) {
		packet->first_cpu = cpu;
		packet->interface_out = 0;
		packet->reason = 0;
		if (stage < STAGE_PAD)
			packet->offset_ns[stage] = 0;
		if (options.stages & BIT(STAGE_DATA_READY))
			packet->offset_ns[STAGE_DATA_READY] = 0;
		if (options.group == GROUP_COMMAND)
			note_command(place, stage >= STAGE_LOCAL_OUT);
		if (options.writes_records) {
			now = this_cpu();
			identity = bpf_map_lookup_elem(&path_identities, &place);
			if (now && identity) {
				packet->stolen_from_ns = now->stolen_ns;
				identity->poll = now->poll;
				identity->poll_index = stage <= STAGE_RECEIVE ? ++now->poll_index : 0;
			}
		}
		packet->time_ns = bpf_ktime_get_ns();
		if (options.stages & BIT(STAGE_XDP) && stage <= STAGE_RECEIVE)
			begin_at_arrival(packet, skb, stage);
	}
	*(volatile __u64 *)&packet->tag = (__u64)skb;
	return 0;
}

#endif
