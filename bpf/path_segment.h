/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Packets that the kernel segments or joins. Software GSO segments a large packet, the GSO packet, below its
 * queue; reassembly joins fragments. Segments have sk_buffs of their own, which pass no earlier stage. So a
 * GSO packet is remembered by its flow when it is given to the queue, and a packet that is first seen at the
 * driver takes the times of its GSO packet.
 */
#ifndef PARSHALL_PATH_SEGMENT_H
#define PARSHALL_PATH_SEGMENT_H

#include "path_filter.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/* ---- segments of GSO packets ---------------------------------------------------------------------- */

/* GSO packets that are remembered at once; a power of two. */
#define GSO_PACKETS_MAX 4096
/*
 * The element of a GSO packet of TCP follows from its flow and the block of sequence numbers in which it
 * begins. Its segments begin less than one GSO packet later, so a search goes back by the length of the
 * longest. GSO packets of another protocol have one of WAYS elements of their flow, as in a set-associative
 * cache.
 */
#define BLOCK_SHIFT 11
#define BLOCK_MASK (0xffffffffu >> BLOCK_SHIFT)
#define BLOCKS_MAX 260 /* BIG TCP: 512 KiB */
#define WAYS 8

/* What segments have in common with their GSO packet: interface, flow, and with TCP a range of sequence numbers. */
struct path_flow {
	__u64 key; /* a hash of interface, protocol, addresses and ports; never 0 */
	__u32 tcp_seq;
	__u32 has_seq;
};

struct path_gso {
	__u64 key;         /* 0: being written */
	__u64 queued_ns;   /* 0: free */
	__u32 tcp_seq;
	__u32 length_bytes;
	__u32 segments_left;
	__u32 place;
	__u32 had_socket; /* when it was queued */
	__u32 unused;
	struct path_packet packet;
	struct path_command command;
};

__u32 longest_gso_bytes;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GSO_PACKETS_MAX);
	__type(key, __u32);
	__type(value, struct path_gso);
} path_gso_table SEC(".maps");

/* Segments of a packet that the kernel has yet to segment; 0: it is no GSO packet. */
static __always_inline __u32 segments_of(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	__u32 size_bytes, segments;

	if (bpf_ksym_exists(bpf_rdonly_cast)) {
		shared = bpf_rdonly_cast(shared, bpf_core_type_id_kernel(struct skb_shared_info));
		size_bytes = shared->gso_size;
		segments = shared->gso_segs;
	} else {
		size_bytes = BPF_CORE_READ(shared, gso_size);
		segments = BPF_CORE_READ(shared, gso_segs);
	}
	/* A packet of a guest or a tap device may lack the number of segments. */
	return !size_bytes ? 0 : segments ?: skb->len / size_bytes + 1;
}

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

#define FLOW_HEAD_BYTES 48 /* IPv6, ports, a sequence number */

/* Fills in the flow of a packet that leaves. Returns 0 when its headers cannot be read. */
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

static __always_inline struct path_gso *gso_at(const struct path_flow *flow, __u32 block)
{
	__u32 element = mix(flow->key, block) & (GSO_PACKETS_MAX - 1);

	return bpf_map_lookup_elem(&path_gso_table, &element);
}

/* Whether a GSO packet belongs to a flow, has segments left, and was remembered since the programs were attached. */
static __always_inline int is_of_flow(const struct path_gso *gso, const struct path_flow *flow)
{
	return *(const volatile __u64 *)&gso->key == flow->key && gso->segments_left &&
	       gso->queued_ns > attached_ns;
}

struct gso_search {
	struct path_flow flow;
	__u32 block;
	__u32 is_found;
};

static __always_inline __u32 block_of(const struct path_flow *flow)
{
	return flow->tcp_seq >> BLOCK_SHIFT;
}

static long search_block(__u64 back, struct gso_search *search)
{
	__u32 block = (block_of(&search->flow) - (__u32)back) & BLOCK_MASK;
	struct path_gso *gso = gso_at(&search->flow, block);

	if (!gso || !is_of_flow(gso, &search->flow) || search->flow.tcp_seq - gso->tcp_seq >= gso->length_bytes)
		return 0;
	search->block = block;
	search->is_found = 1;
	return 1;
}

/* The GSO packet of which a packet of this flow may be a segment. */
static __noinline struct path_gso *find_gso(const struct path_flow *flow)
{
	struct path_gso *gso, *oldest = 0;

	if (!flow)
		return 0;
	if (flow->has_seq) {
		struct gso_search search = { .flow = *flow };
		__u32 blocks = (longest_gso_bytes >> BLOCK_SHIFT) + 2;

		bpf_loop(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX, search_block, &search, 0);
		return search.is_found ? gso_at(flow, search.block) : 0;
	}
	/* GSO packets of a flow leave in the order in which they were queued. */
	for (__u32 way = 0; way < WAYS; way++) {
		gso = gso_at(flow, way);
		if (gso && is_of_flow(gso, flow) && (!oldest || gso->queued_ns < oldest->queued_ns))
			oldest = gso;
	}
	return oldest;
}

/* The element in which a GSO packet is remembered, or will be. */
static __noinline struct path_gso *element_for(const struct path_flow *flow, const struct path_packet *packet)
{
	struct path_gso *gso, *oldest = 0;

	if (!flow || !packet)
		return 0;
	if (flow->has_seq)
		return gso_at(flow, block_of(flow));
	for (__u32 way = 0; way < WAYS; way++) {
		gso = gso_at(flow, way);
		if (!gso)
			return 0;
		if (gso->packet.tag == packet->tag && gso->packet.time_ns == packet->time_ns)
			return gso;
		if (!oldest || gso->queued_ns < oldest->queued_ns)
			oldest = gso;
	}
	return oldest;
}

/* Remembers a GSO packet that the kernel may segment from here on. A later call adds the stages passed meanwhile. */
static __noinline int remember_gso(const struct path_packet *packet, const struct sk_buff *skb, __u32 place)
{
	struct path_command *command;
	struct path_gso *gso;
	struct path_flow flow;
	__u32 segments = segments_of(skb);

	if (!packet || !segments || !read_flow(skb, &flow))
		return 0;
	gso = element_for(&flow, packet);
	if (!gso)
		return 0;
	*(volatile __u64 *)&gso->key = 0;
	gso->queued_ns = bpf_ktime_get_ns();
	gso->tcp_seq = flow.tcp_seq;
	gso->length_bytes = skb->len;
	gso->segments_left = segments;
	gso->place = place;
	gso->had_socket = skb->sk != 0;
	gso->packet = *packet;
	if (options.group == GROUP_COMMAND) {
		command = bpf_map_lookup_elem(&path_commands, &place);
		if (command)
			gso->command = *command;
	}
	if (skb->len > longest_gso_bytes)
		longest_gso_bytes = skb->len;
	*(volatile __u64 *)&gso->key = flow.key;
	return 0;
}

/* The element of a GSO packet that is remembered. */
static __noinline struct path_gso *remembered_gso(const struct path_packet *packet, const struct sk_buff *skb)
{
	struct path_gso *gso;
	struct path_flow flow;

	if (!packet || !read_flow(skb, &flow))
		return 0;
	gso = element_for(&flow, packet);
	return gso && gso->packet.tag == packet->tag && gso->packet.time_ns == packet->time_ns ? gso : 0;
}

/* A GSO packet of a list of segments lends its own sk_buff to the first of them. */
static __always_inline void take_first_segment(const struct path_packet *packet, const struct sk_buff *skb)
{
	struct path_gso *gso = remembered_gso(packet, skb);

	if (gso && gso->segments_left)
		__sync_fetch_and_sub(&gso->segments_left, 1);
}

/* Forgets a GSO packet that reached the driver whole: packets that leave later are not its segments. */
static __always_inline void forget_gso(const struct path_packet *packet, const struct sk_buff *skb)
{
	struct path_gso *gso = remembered_gso(packet, skb);

	if (gso)
		gso->queued_ns = gso->segments_left = 0;
}

/*
 * Whether a GSO packet that a queue drops was segmented before: the kernel gives its socket to its segments. They are
 * dropped, too, and stand for it. A forwarded packet has no socket, so it stands for its segments, which are forgotten.
 */
static __always_inline int was_segmented_for_a_queue(const struct path_packet *packet, const struct sk_buff *skb)
{
	struct path_gso *gso;

	if (!(packet->seen & BIT(STAGE_QUEUE)) || !segments_of(skb))
		return 0;
	gso = remembered_gso(packet, skb);
	if (!gso)
		return 0;
	if (gso->had_socket && !skb->sk)
		return 1;
	gso->queued_ns = gso->segments_left = 0;
	return 0;
}

/*
 * The GSO packet of which an sk_buff, first seen at the driver, is a segment. The GSO packet ends at its
 * first segment; if `consume` is attached, it has ended there already.
 */
static __noinline struct path_gso *gso_of(const struct sk_buff *skb)
{
	struct path_packet *packet;
	struct path_gso *gso;
	struct path_flow flow;

	if (!longest_gso_bytes || !read_flow(skb, &flow))
		return 0;
	gso = find_gso(&flow);
	if (!gso)
		return 0;
	__sync_fetch_and_sub(&gso->segments_left, 1);
	packet = packet_at(gso->place);
	if (packet && *(volatile __u64 *)&packet->tag == gso->packet.tag && packet->time_ns == gso->packet.time_ns) {
		end_packet(gso->place, gso->packet.tag, END_AS(PATH_UNKNOWN), SEGMENTED, 0);
	}
	return gso;
}

/* Whether a packet that is freed without a reason was segmented: it reached a queue, but no driver. */
static __always_inline int was_segmented(const struct path_packet *packet, const struct sk_buff *skb)
{
	int has_left = packet->seen & LEAVING && !(packet->seen & STACKED);

	return packet->seen & BIT(STAGE_QUEUE) && !(packet->seen & DELIVERING) && !has_left && segments_of(skb);
}

/* ---- fragments ------------------------------------------------------------------------------------ */

/* Whether an sk_buff is a fragment of IPv6: its fragment header directly follows the fixed header. */
static __always_inline int is_ipv6_fragment(const struct sk_buff *skb)
{
	__u8 next;

	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       !bpf_probe_read_kernel(&next, 1, skb->head + skb->network_header + 6) && next == IPPROTO_FRAGMENT;
}

/* Whether an sk_buff is a fragment of a datagram. */
static __noinline int is_fragment(const struct sk_buff *skb)
{
	__u8 offset[2];

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return is_ipv6_fragment(skb);
	return !bpf_probe_read_kernel(offset, 2, skb->head + skb->network_header + 6) && number16(offset) & 0x3fff;
}

/*
 * Whether a fragment is not the last one of its datagram. IPv6 joins fragments behind `local_in`, and no
 * event names the fragment whose sk_buff carries the datagram. So the last fragment counts as the carrier. If
 * fragments come out of order, two of them are mistaken for each other; the counts are still right.
 */
static __always_inline int is_early_fragment(const struct sk_buff *skb)
{
	__u8 more;

	return !bpf_probe_read_kernel(&more, 1, skb->head + skb->network_header + 43) && more & 1;
}

/* Whether a packet that is freed without a reason was joined to another one, by GRO or by reassembly. */
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
	if (packet)
		end_packet(place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), JOINED, 0);
	walk->next = BPF_CORE_READ(skb, next);
	return 0;
}

#define JOINED_MAX 128

/* Ends the fragments that were joined to a packet: they are freed together with it, for the same reason. */
static __noinline int end_all_joined(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	struct list_walk walk = { .next = BPF_CORE_READ(shared, frag_list) };

	if (walk.next)
		bpf_loop(JOINED_MAX, end_joined, &walk, 0);
	return 0;
}

#endif
