/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Generic XDP gives a packet that lacks room in front of its data, or shares it, another sk_buff, between `receive` and
 * the next stage. No event names both, and the address of the first one goes to the next packet. All of this is done by
 * one CPU, but NAPI lets some packets pass XDP before the first of them goes on. So what such an interface receives is
 * noted with its length and its first bytes, and has no address until an sk_buff with the same passes a stage there.
 */
#ifndef PARSHALL_PATH_REPLACED_H
#define PARSHALL_PATH_REPLACED_H

#include "path_begin.h"

#define XDP_HEADROOM_BYTES 256u
#define MINIMUM_BYTES 46u /* Ethernet pads shorter packets */
#define NOTED_BYTES 28u   /* of IPv4 with the ports, and what follows them */

/* A packet without an address. */
struct path_noted {
	__u64 tag; /* 0: none */
	__u64 first_bytes; /* a hash */
	__u32 place;
	__u32 bytes; /* from the network header on */
};

/* NAPI passes eight packets on together, unless net.core.gro_normal_batch was changed. */
#define NOTED_MAX 16

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NOTED_MAX);
	__type(key, __u32);
	__type(value, struct path_noted);
} path_noted SEC(".maps");

/* Whether a packet was noted since the programs were loaded. */
__u32 has_generic_xdp;

/* No sk_buff has this address. */
#define WITHOUT_ADDRESS 1ULL

/* A hash of the first bytes of a packet, without what a router changes; 0 if they cannot be read. */
static __noinline __u64 first_bytes_of(const struct sk_buff *skb, __u32 offset)
{
	const __u64 factor = 0x9e3779b97f4a7c15ULL;
	union {
		__u8 bytes[40];
		__u64 words[5];
	} first = {};
	__u64 hash = 0;

	if (!skb || bpf_probe_read_kernel(&first, NOTED_BYTES, skb->head + offset))
		return 0;
	if (first.bytes[0] >> 4 == 4) {
		__builtin_memset(first.bytes + 8, 0, 4); /* TTL, protocol, checksum */
	} else if (first.bytes[0] >> 4 == 6) {
		first.bytes[7] = 0; /* hop limit */
		bpf_probe_read_kernel(&first.words[4], 8, skb->head + offset + 40);
	}
#pragma clang loop unroll(full)
	for (int word = 0; word < 5; word++)
		hash = (hash ^ first.words[word]) * factor;
	return hash | 1;
}

/* Notes a packet that generic XDP may give another sk_buff. */
static __noinline int note_replaceable(const struct sk_buff *skb)
{
	struct path_cpu *now = this_cpu();
	struct path_packet *packet;
	struct path_noted *noted;
	__u32 place, element;
	__u64 tag, hash;

	if (!skb || !now || !skb->dev->xdp_prog || skb->len - skb->data_len < NOTED_BYTES ||
	    (skb->mac_header >= XDP_HEADROOM_BYTES && !skb->data_len && !BPF_CORE_READ_BITFIELD(skb, cloned)))
		return 0;
	packet = find_packet(skb, &place);
	hash = first_bytes_of(skb, skb->data - skb->head);
	element = now->noted % NOTED_MAX;
	noted = bpf_map_lookup_elem(&path_noted, &element);
	if (!packet || !noted || !hash)
		return 0;
	tag = tag_of(packet, skb);
	if (!tag || __sync_val_compare_and_swap(&packet->tag, tag, tag | WITHOUT_ADDRESS) != tag)
		return 0;
	if (noted->tag)
		end_packet(noted->place, noted->tag, END_AS(PATH_UNKNOWN), 0, 1);
	noted->tag = tag | WITHOUT_ADDRESS;
	noted->first_bytes = hash;
	noted->place = place;
	noted->bytes = skb->len;
	now->noted++;
	has_generic_xdp = 1;
	return 0;
}

/* Whether this may be generic XDP, which frees the sk_buff that it has copied: its data begins at the MAC header. */
static __always_inline int is_replaced(const struct sk_buff *skb)
{
	return skb->dev && skb->data - skb->head == skb->mac_header && BPF_CORE_READ(skb, dev, xdp_prog);
}

static __always_inline void move_packet(__u32 from, __u32 to)
{
	struct path_packet *packet = packet_at(to), *before = packet_at(from);
	struct path_identity *identity = bpf_map_lookup_elem(&path_identities, &to);
	struct path_identity *its_identity = bpf_map_lookup_elem(&path_identities, &from);
	struct path_command *command = bpf_map_lookup_elem(&path_commands, &to);
	struct path_command *its_command = bpf_map_lookup_elem(&path_commands, &from);

	if (!packet || !before)
		return;
	__builtin_memcpy(&packet->time_ns, &before->time_ns, sizeof(*packet) - sizeof(packet->tag));
	if (identity && its_identity)
		*identity = *its_identity;
	if (command && its_command)
		*command = *its_command;
}

/* Gives a packet without an address the sk_buff that has it now. */
static __noinline int give_address(const struct sk_buff *skb, __u32 from, __u64 tag)
{
	struct path_packet *packet, *before = packet_at(from);
	__u32 place;

	if (!skb || !before || *(volatile __u64 *)&before->tag != tag)
		return 0;
	packet = make_room(skb, &place);
	if (!packet || packet == before || __sync_val_compare_and_swap(&packet->tag, TAG_FREE, TAG_TAKEN) != TAG_FREE) {
		end_packet(from, tag, END_AS(PATH_UNKNOWN), 0, 0);
		return 0;
	}
	if (__sync_val_compare_and_swap(&before->tag, tag, TAG_TAKEN) != tag) {
		*(volatile __u64 *)&packet->tag = TAG_FREE;
		return 0;
	}
	move_packet(from, place);
	packet->head = head_of(skb);
	*(volatile __u64 *)&before->tag = TAG_FREE;
	*(volatile __u64 *)&packet->tag = (__u64)skb;
	return 0;
}

struct noted_search {
	__u64 first_bytes;
	__u64 tag; /* of the packet that was found; 0: none */
	__u32 bytes;
	__u32 oldest;
	__u32 place;
};

/* One step of the search in a loop of the kernel: the verifier follows it once, and a loop in here at each step. */
static long search_noted(__u64 step, void *context)
{
	struct noted_search *search = context;
	__u32 element = (search->oldest + (__u32)step) % NOTED_MAX;
	struct path_noted *noted = bpf_map_lookup_elem(&path_noted, &element);

	if (!noted || !noted->tag || noted->first_bytes != search->first_bytes ||
	    (noted->bytes != search->bytes && (noted->bytes > MINIMUM_BYTES || search->bytes > MINIMUM_BYTES)))
		return 0;
	search->tag = noted->tag;
	search->place = noted->place;
	noted->tag = 0;
	return 1;
}

/* Finds the packet of an sk_buff among those without an address. A copy for a packet socket is none. */
static __noinline int follow_replaced(const struct sk_buff *skb)
{
	struct noted_search search = {};
	struct path_cpu *now = this_cpu();

	if (!skb || !now || socket_family(skb) == AF_PACKET)
		return 0;
	search.bytes = skb->tail - skb->network_header + skb->data_len;
	search.first_bytes = first_bytes_of(skb, skb->network_header);
	search.oldest = now->noted;
	bpf_loop(NOTED_MAX, search_noted, &search, 0);
	if (search.tag)
		give_address(skb, search.place, search.tag);
	return 0;
}

#endif
