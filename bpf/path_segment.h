/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Packets that the kernel cuts and joins: software GSO cuts a large packet below its queue, and reassembly joins
 * fragments. Pieces have sk_buffs of their own that pass no earlier stage. A large packet is remembered by its flow when
 * it is given to the queue, and what leaves without a beginning takes the times of the one that it is a piece of.
 */
#ifndef PARSHALL_PATH_SEGMENT_H
#define PARSHALL_PATH_SEGMENT_H

#include "path_filter.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/* ---- pieces of large packets --------------------------------------------------------------------- */

/* Large packets that are remembered at once; a power of two. */
#define WHOLES_MAX 4096
/*
 * A large packet of TCP has its place by its flow and the block of sequence numbers in which it begins. A piece is at
 * most as far behind as the longest large packet was. Those of other protocols have one of some places of their flow.
 */
#define BLOCK_SHIFT 11
#define BLOCK_MASK (0xffffffffu >> BLOCK_SHIFT)
#define BLOCKS_MAX 260 /* BIG TCP: 512 KiB */
#define WAYS 8

/* Which packets may be pieces of the same one: those of one flow at one interface, TCP's by their sequence numbers too. */
struct path_flow {
	__u64 key; /* a hash of interface, protocol, addresses and ports; never 0 */
	__u32 tcp_seq;
	__u32 has_seq;
};

struct path_whole {
	__u64 key;         /* 0: being written */
	__u64 queued_ns;   /* 0: free */
	__u32 tcp_seq;
	__u32 length_bytes;
	__u32 pieces_left;
	__u32 place;
	struct path_packet packet;
	struct path_command command;
};

__u32 longest_whole_bytes;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WHOLES_MAX);
	__type(key, __u32);
	__type(value, struct path_whole);
} path_wholes SEC(".maps");

/* Wire packets that a packet stands for where the kernel has yet to cut it; 0: it is one. */
static __always_inline __u32 pieces_of(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	__u32 size_bytes, pieces;

	if (bpf_ksym_exists(bpf_rdonly_cast)) {
		shared = bpf_rdonly_cast(shared, bpf_core_type_id_kernel(struct skb_shared_info));
		size_bytes = shared->gso_size;
		pieces = shared->gso_segs;
	} else {
		size_bytes = BPF_CORE_READ(shared, gso_size);
		pieces = BPF_CORE_READ(shared, gso_segs);
	}
	/* What a guest or a tap sends need not say how many. */
	return !size_bytes ? 0 : pieces ?: skb->len / size_bytes + 1;
}

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

#define FLOW_HEAD_BYTES 48 /* IPv6, ports, a sequence number */

/* Fills in the flow of a packet that leaves. Returns whether it has one: pieces of others are not known as such. */
static __noinline int read_flow(const struct sk_buff *skb, struct path_flow *flow)
{
	__u64 head[FLOW_HEAD_BYTES / 8] = {};
	const __u8 *bytes = (const __u8 *)head, *network = skb->head + skb->network_header;
	__u32 device, protocol, transport_bytes = 40;

	if (!flow || bpf_probe_read_kernel(head, 40, network))
		return 0;
	/* The verifier takes no arithmetic on a pointer, but its copied low half is a number. */
	asm volatile("%[low] = %[pointer]" : [low] "=w"(device) : [pointer] "w"(skb->dev));
	flow->key = device;
	if (bytes[0] >> 4 == 4) {
		protocol = bytes[9];
		transport_bytes = (bytes[0] & 15) * 4;
		flow->key = mix(flow->key, *(__u32 *)(bytes + 12) | (__u64)*(__u32 *)(bytes + 16) << 32);
	} else {
		protocol = bytes[6];
		for (int i = 1; i < 5; i++)
			flow->key = mix(flow->key, head[i]);
	}
	if (bpf_probe_read_kernel(head, 8, network + transport_bytes))
		return 0;
	flow->key = mix(flow->key, protocol | (__u64)*(__u32 *)bytes << 32) | 1;
	flow->has_seq = protocol == IPPROTO_TCP;
	flow->tcp_seq = number32(bytes + 4);
	return 1;
}

static __always_inline struct path_whole *whole_at(const struct path_flow *flow, __u32 block)
{
	__u32 element = mix(flow->key, block) & (WHOLES_MAX - 1);

	return bpf_map_lookup_elem(&path_wholes, &element);
}

/* What was remembered before the programs were attached is of another window. */
static __always_inline int is_of(const struct path_whole *whole, const struct path_flow *flow)
{
	return *(const volatile __u64 *)&whole->key == flow->key && whole->pieces_left &&
	       whole->queued_ns > attached_ns;
}

struct whole_search {
	struct path_flow flow;
	__u32 block;
	__u32 is_found;
};

static __always_inline __u32 block_of(const struct path_flow *flow)
{
	return flow->tcp_seq >> BLOCK_SHIFT;
}

static long search_block(__u64 back, struct whole_search *search)
{
	__u32 block = (block_of(&search->flow) - (__u32)back) & BLOCK_MASK;
	struct path_whole *whole = whole_at(&search->flow, block);

	if (!whole || !is_of(whole, &search->flow) || search->flow.tcp_seq - whole->tcp_seq >= whole->length_bytes)
		return 0;
	search->block = block;
	search->is_found = 1;
	return 1;
}

/* The large packet that one of a flow may be a piece of. */
static __noinline struct path_whole *find_whole(const struct path_flow *flow)
{
	struct path_whole *whole, *oldest = 0;

	if (!flow)
		return 0;
	if (flow->has_seq) {
		struct whole_search search = { .flow = *flow };
		__u32 blocks = (longest_whole_bytes >> BLOCK_SHIFT) + 2;

		bpf_loop(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX, search_block, &search, 0);
		return search.is_found ? whole_at(flow, search.block) : 0;
	}
	/* They leave in the order in which they were queued. */
	for (__u32 way = 0; way < WAYS; way++) {
		whole = whole_at(flow, way);
		if (whole && is_of(whole, flow) && (!oldest || whole->queued_ns < oldest->queued_ns))
			oldest = whole;
	}
	return oldest;
}

/* Where a large packet is remembered, or will be. */
static __noinline struct path_whole *place_for(const struct path_flow *flow, const struct path_packet *packet)
{
	struct path_whole *whole, *oldest = 0;

	if (!flow || !packet)
		return 0;
	if (flow->has_seq)
		return whole_at(flow, block_of(flow));
	for (__u32 way = 0; way < WAYS; way++) {
		whole = whole_at(flow, way);
		if (!whole)
			return 0;
		if (whole->packet.tag == packet->tag && whole->packet.time_ns == packet->time_ns)
			return whole;
		if (!oldest || whole->queued_ns < oldest->queued_ns)
			oldest = whole;
	}
	return oldest;
}

/* Remembers a large packet that the kernel may cut from here on, or what it has passed since it was remembered. */
static __noinline int remember_whole(const struct path_packet *packet, const struct sk_buff *skb, __u32 place)
{
	struct path_command *command;
	struct path_whole *whole;
	struct path_flow flow;
	__u32 pieces = pieces_of(skb);

	if (!packet || !pieces || !read_flow(skb, &flow))
		return 0;
	whole = place_for(&flow, packet);
	if (!whole)
		return 0;
	*(volatile __u64 *)&whole->key = 0;
	whole->queued_ns = bpf_ktime_get_ns();
	whole->tcp_seq = flow.tcp_seq;
	whole->length_bytes = skb->len;
	whole->pieces_left = pieces;
	whole->place = place;
	whole->packet = *packet;
	if (options.group == GROUP_COMMAND) {
		command = bpf_map_lookup_elem(&path_commands, &place);
		if (command)
			whole->command = *command;
	}
	if (skb->len > longest_whole_bytes)
		longest_whole_bytes = skb->len;
	*(volatile __u64 *)&whole->key = flow.key;
	return 0;
}

/* A large packet reached the driver as a whole: what leaves later is no piece of it. */
static __noinline int forget_whole(const struct path_packet *packet, const struct sk_buff *skb)
{
	struct path_whole *whole;
	struct path_flow flow;

	if (!packet || !read_flow(skb, &flow))
		return 0;
	whole = place_for(&flow, packet);
	if (whole && whole->packet.tag == packet->tag && whole->packet.time_ns == packet->time_ns)
		whole->queued_ns = whole->pieces_left = 0;
	return 0;
}

/*
 * The large packet that an sk_buff without a beginning is a piece of. At the first piece the large packet ends; where
 * `consume` is attached it has ended before.
 */
static __noinline struct path_whole *whole_of(const struct sk_buff *skb)
{
	struct path_packet *packet;
	struct path_whole *whole;
	struct path_flow flow;

	if (!longest_whole_bytes || !read_flow(skb, &flow))
		return 0;
	whole = find_whole(&flow);
	if (!whole)
		return 0;
	__sync_fetch_and_sub(&whole->pieces_left, 1);
	packet = packet_at(whole->place);
	if (packet && *(volatile __u64 *)&packet->tag == whole->packet.tag && packet->time_ns == whole->packet.time_ns) {
		packet->seen |= CUT;
		end_packet(whole->place, whole->packet.tag, PATH_UNKNOWN, 0);
	}
	return whole;
}

/* Whether what is freed without a reason was cut: it was given to a queue, and no driver had it. */
static __always_inline int was_cut(const struct path_packet *packet, const struct sk_buff *skb)
{
	int has_left = packet->seen & LEAVING && !(packet->seen & STACKED);

	return packet->seen & BIT(STAGE_QUEUE) && !(packet->seen & DELIVERING) && !has_left && pieces_of(skb);
}

/* ---- fragments ------------------------------------------------------------------------------------ */

/* Whether an sk_buff has a fragment of IPv6 whose header follows the fixed one. */
static __always_inline int is_ipv6_fragment(const struct sk_buff *skb)
{
	__u8 next;

	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       !bpf_probe_read_kernel(&next, 1, skb->head + skb->network_header + 6) && next == IPPROTO_FRAGMENT;
}

/* Whether an sk_buff has a fragment of a datagram. */
static __noinline int is_fragment(const struct sk_buff *skb)
{
	__u8 offset[2];

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return is_ipv6_fragment(skb);
	return !bpf_probe_read_kernel(offset, 2, skb->head + skb->network_header + 6) && number16(offset) & 0x3fff;
}

/*
 * IPv6 joins fragments behind `local_in`, and no event names the one that carries the datagram on. So the last fragment of
 * a datagram counts as that one. If fragments come in another order this is wrong for two of them, and right in number.
 */
static __always_inline int is_early_fragment(const struct sk_buff *skb)
{
	__u8 more;

	return !bpf_probe_read_kernel(&more, 1, skb->head + skb->network_header + 43) && more & 1;
}

/* Whether what is freed without a reason went into another packet: of GRO, or a datagram of which this is a fragment. */
static __always_inline int was_joined(const struct path_packet *packet, const struct sk_buff *skb)
{
	if (!(packet->seen & ARRIVING) || packet->seen & (DELIVERING | LEAVING))
		return 0;
	return (packet->seen & ~BIT(STAGE_XDP)) == BIT(STAGE_GRO) || is_fragment(skb);
}

struct list_walk {
	struct sk_buff *next;
};

static long end_joined(__u64 step, struct list_walk *walk)
{
	struct sk_buff *skb = walk->next;
	struct path_packet *packet;
	__u32 place;

	if (!skb)
		return 1;
	packet = find_packet(skb, &place);
	if (packet) {
		packet->seen |= JOINED;
		end_packet(place, *(volatile __u64 *)&packet->tag, PATH_UNKNOWN, 0);
	}
	walk->next = BPF_CORE_READ(skb, next);
	return 0;
}

#define JOINED_MAX 128

/* What was joined to a packet is freed with it, for its reason. */
static __noinline int end_all_joined(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	struct list_walk walk = { .next = BPF_CORE_READ(shared, frag_list) };

	if (walk.next)
		bpf_loop(JOINED_MAX, end_joined, &walk, 0);
	return 0;
}

#endif
