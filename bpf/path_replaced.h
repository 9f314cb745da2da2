/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Generic XDP gives a packet that lacks room in front of its data, or shares it, another sk_buff, between `receive` and
 * the next stage. No event names both. But all of this is done by one CPU, which gets no other packet meanwhile. So the
 * packet that it receives where such a program is attached is noted, and the next sk_buff that passes a stage here and
 * has as many bytes from the network header on is that packet.
 */
#ifndef PARSHALL_PATH_REPLACED_H
#define PARSHALL_PATH_REPLACED_H

#include "path_begin.h"

#define XDP_HEADROOM_BYTES 256u
#define MINIMUM_BYTES 46u /* Ethernet pads shorter packets */

/* Whether a packet was noted since the programs were loaded. */
__u32 has_generic_xdp;

static __noinline int note_replaceable(const struct sk_buff *skb)
{
	struct path_packet *packet;
	struct path_cpu *now = this_cpu();
	__u32 place;

	if (!skb || !now)
		return 0;
	now->replaceable = 0;
	if (!skb->dev->xdp_prog || (skb->mac_header >= XDP_HEADROOM_BYTES && !skb->data_len &&
				    !BPF_CORE_READ_BITFIELD(skb, cloned)))
		return 0;
	packet = find_packet(skb, &place);
	if (!packet)
		return 0;
	now->replaceable = (__u64)skb;
	now->replaceable_place = place;
	now->replaceable_bytes = skb->len;
	has_generic_xdp = 1;
	return 0;
}

/* Whether this is the moment at which generic XDP lets go of an sk_buff: its data begins at the MAC header. */
static __always_inline int is_replaced(const struct sk_buff *skb)
{
	struct path_cpu *now = has_generic_xdp ? this_cpu() : 0;

	return now && now->replaceable == (__u64)skb && skb->data - skb->head == skb->mac_header;
}

static __always_inline void move_packet(__u32 from, __u32 to, const struct sk_buff *skb)
{
	struct path_packet *packet = packet_at(to), *before = packet_at(from);
	struct path_identity *identity = bpf_map_lookup_elem(&path_identities, &to);
	struct path_identity *its_identity = bpf_map_lookup_elem(&path_identities, &from);
	struct path_command *command = bpf_map_lookup_elem(&path_commands, &to);
	struct path_command *its_command = bpf_map_lookup_elem(&path_commands, &from);

	if (!packet || !before)
		return;
	__builtin_memcpy(&packet->time_ns, &before->time_ns, sizeof(*packet) - sizeof(packet->tag));
	packet->head = head_of(skb);
	if (identity && its_identity)
		*identity = *its_identity;
	if (command && its_command)
		*command = *its_command;
}

/* Gives the packet that was noted the sk_buff that has replaced its own, if this is the one, and no copy for a packet socket. */
static __noinline int follow_replaced(const struct sk_buff *skb)
{
	struct path_packet *packet, *before;
	struct path_account *account = account_of(bpf_get_smp_processor_id());
	struct path_cpu *now = this_cpu();
	__u64 tag;
	__u32 place;

	if (!skb || !now || !account || !now->replaceable || !skb->protocol || socket_family(skb) == AF_PACKET)
		return 0;
	tag = now->replaceable;
	if (tag == (__u64)skb) {
		now->replaceable = 0;
		return 0;
	}
	place = skb->tail - skb->network_header + skb->data_len;
	if (place != now->replaceable_bytes && (place > MINIMUM_BYTES || now->replaceable_bytes > MINIMUM_BYTES))
		return 0;
	now->replaceable = 0;
	before = packet_at(now->replaceable_place);
	packet = make_room(skb, &place);
	if (!before || !packet)
		return 0;
	if (__sync_val_compare_and_swap(&packet->tag, TAG_FREE, TAG_TAKEN) != TAG_FREE) {
		count(&account->failed);
		return 0;
	}
	if (before == packet || __sync_val_compare_and_swap(&before->tag, tag, TAG_TAKEN) != tag) {
		*(volatile __u64 *)&packet->tag = TAG_FREE;
		return 0;
	}
	move_packet(now->replaceable_place, place, skb);
	*(volatile __u64 *)&before->tag = TAG_FREE;
	*(volatile __u64 *)&packet->tag = (__u64)skb;
	return 0;
}

#endif
