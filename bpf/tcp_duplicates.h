/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Duplicates that the peer reports (DSACK, RFC 2883): they show which retransmissions were spurious. Only
 * connections that have retransmitted are looked at, so that others pay for one comparison.
 */
#ifndef PARSHALL_TCP_DUPLICATES_H
#define PARSHALL_TCP_DUPLICATES_H

#include "tcp_event.h"

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define SACK_ONE_BLOCK_BYTES 10
#define SACK_TWO_BLOCKS_BYTES 18
#define OPTIONS_MAX 32

struct option_head {
	__u8 kind;
	__u8 length_bytes;
};

/* Reads the edges of the first two blocks of the SACK option between two offsets; returns how many there are. */
static __always_inline int sack_blocks(struct __sk_buff *skb, __u32 at, __u32 end, __be32 edges[4])
{
	struct option_head option = {};

	for (int i = 0; i < OPTIONS_MAX && at + SACK_ONE_BLOCK_BYTES <= end; i++) {
		if (bpf_skb_load_bytes(skb, at, &option, sizeof(option)) || option.kind == OPTION_END)
			return 0;
		if (option.kind == OPTION_NOP) {
			at++;
			continue;
		}
		if (option.length_bytes < sizeof(option))
			return 0;
		if (option.kind != OPTION_SACK) {
			at += option.length_bytes;
			continue;
		}
		if (option.length_bytes >= SACK_TWO_BLOCKS_BYTES)
			return bpf_skb_load_bytes(skb, at + sizeof(option), edges, 16) ? 0 : 2;
		return bpf_skb_load_bytes(skb, at + sizeof(option), edges, 8) ? 0 : 1;
	}
	return 0;
}

static __always_inline int is_before(__u32 left, __u32 right)
{
	return (__s32)(left - right) < 0;
}

/* Writes an event when a segment's first SACK block is a DSACK, by the kernel's rule (tcp_check_dsack). */
static __noinline int note_duplicates(struct __sk_buff *skb, struct flow_state *flow)
{
	struct cursor at = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	void *start = at.next;
	struct tcphdr *tcp = parse_tcp(skb, &at);
	__be32 edges[4] = {};
	__u32 options_at, ack, left, right;
	struct event event;
	struct tcp_sock *tp;
	int blocks;

	if (!tcp || tcp->doff * 4 < sizeof(*tcp) + SACK_ONE_BLOCK_BYTES || !tcp->ack)
		return 0;
	ack = bpf_ntohl(tcp->ack_seq);
	options_at = (void *)(tcp + 1) - start;
	blocks = sack_blocks(skb, options_at, options_at + tcp->doff * 4 - sizeof(*tcp), edges);
	if (!blocks)
		return 0;
	left = bpf_ntohl(edges[0]);
	right = bpf_ntohl(edges[1]);
	if (!is_before(left, ack) &&
	    (blocks < 2 || is_before(bpf_ntohl(edges[3]), right) || is_before(left, bpf_ntohl(edges[2]))))
		return 0;
	tp = skb->sk ? tcp_sock_of(skb->sk) : 0;
	if (!tp || !begin_event(&event, flow, HOOK_TCP_RETRANSMIT, INBOUND_LANE))
		return 0;
	fill_event(&event, tp, EVENT_DSACK);
	event.record->direction = DIRECTION_IN;
	event.record->pkt_seq = left;
	event.record->pkt_ack = ack;
	event.record->payload_bytes = right - left;
	commit_state(event.record, INBOUND_LANE, &event.slot);
	return 0;
}

#endif
