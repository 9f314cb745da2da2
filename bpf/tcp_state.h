/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The state record: reserved in the packet ring, filled from a tcp_sock and a packet; and the
 * thinning that decides whether one is due.
 */
#ifndef PARSHALL_TCP_STATE_H
#define PARSHALL_TCP_STATE_H

#include "tcp_flow.h"

#define DUPTHRESH_MAX 254
/* net.ipv4.tcp_recovery: RACK ignores the duplicate threshold. */
#define RACK_NO_DUPTHRESH 4

/* Where a state record goes. */
enum place {
	INBOUND_LANE,
	SHARED_LANE,
	FLOW_LANE, /* packets cannot overwrite its records: the last state of a connection */
};

static __always_inline const volatile struct ring_layout *layout_at(const enum place place)
{
	switch (place) {
	case INBOUND_LANE:
		return &options.inbound_layout;
	case SHARED_LANE:
		return &options.packet_layout;
	default:
		return &flow_layout;
	}
}

static __always_inline struct tcp_state_record *
reserve_state(__u32 cpu, __u16 hook, const enum place place, struct ring_slot *slot)
{
	__u32 key = cpu * TCP_LANES_PER_CPU +
		    (place == INBOUND_LANE ? TCP_LANE_INBOUND : TCP_LANE_SHARED);
	void *lane = place == FLOW_LANE ? bpf_map_lookup_elem(&flow_ring, &cpu)
					: bpf_map_lookup_elem(&packet_ring, &key);
	struct lane_readers *readers = place == FLOW_LANE ?
					       bpf_map_lookup_elem(&flow_readers, &cpu) :
					       bpf_map_lookup_elem(&packet_readers, &key);

	if (!lane)
		return 0;
	return (void *)ring_reserve(lane, readers, layout_at(place),
				    sizeof(struct tcp_state_record), RECORD_TCP_STATE, hook, slot);
}

static __always_inline void commit_state(struct tcp_state_record *record, const enum place place,
					 const struct ring_slot *slot)
{
	ring_commit(&record->header, layout_at(place), slot);
}

/* sk is tp's own socket, by a pointer that may be cheaper to read through. */
static __always_inline void fill_state(struct tcp_state_record *record, const struct tcp_sock *tp,
				       const struct sock *sk)
{
	record->pacing_rate_Bps = sk->sk_pacing_rate;
	record->cwnd_segments = tp->snd_cwnd;
	record->ssthresh_segments = tp->snd_ssthresh;
	record->mss_bytes = tp->mss_cache;
	record->srtt_us_x8 = tp->srtt_us;
	record->mdev_us_x4 = tp->mdev_us;
	record->min_rtt_us = tp->rtt_min.s[0].v;
	record->rto_jiffies = tp->inet_conn.icsk_rto;
	record->snd_una = tp->snd_una;
	record->snd_nxt = tp->snd_nxt;
	record->snd_wnd_bytes = tp->snd_wnd;
	record->rcv_nxt = tp->rcv_nxt;
	record->rcv_wnd_bytes = tp->rcv_wnd;
	record->packets_out = tp->packets_out;
	record->retrans_out = tp->retrans_out;
	record->lost_out = tp->lost_out;
	record->sacked_out = tp->sacked_out;
	record->total_retrans = tp->total_retrans;
	record->rate_delivered = tp->rate_delivered;
	record->rate_interval_us = tp->rate_interval_us;
	record->delivered = tp->delivered;
	record->delivered_ce = tp->delivered_ce;
	record->sndbuf_bytes = sk->sk_sndbuf;
	record->sndbuf_used_bytes = sk->sk_wmem_queued;
	record->rcvbuf_bytes = sk->sk_rcvbuf;
	record->rcvbuf_used_bytes = sk->sk_backlog.rmem_alloc.counter;
	record->state = sk->__sk_common.skc_state;
	record->ca_state = BPF_CORE_READ_BITFIELD(tp, inet_conn.icsk_ca_state);
	record->window_scales = BPF_CORE_READ_BITFIELD(tp, rx_opt.snd_wscale) |
				BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale) << 4;
	record->app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	/* Else they hold bytes of an earlier lap, and the reader sees a change at every record. */
	record->loss_state = 0;
	record->dupthresh_segments = 0;
}

/* Whether the last ACK shows that the original arrived (Eifel, RFC 3522), by the kernel's rule (tcp_packet_delayed). */
static __always_inline int is_ack_of_original(const struct tcp_sock *tp)
{
	__u32 echoed = tp->rx_opt.rcv_tsecr, retransmitted = tp->retrans_stamp;

	return echoed && retransmitted && (__s32)(echoed - retransmitted) < 0 &&
	       BPF_CORE_READ_BITFIELD(tp, rx_opt.saw_tstamp);
}

/* What decides why a segment is sent again; only at events, as packets would have to fetch more of the socket. */
static __always_inline void fill_loss_state(struct tcp_state_record *record, const struct tcp_sock *tp)
{
	const struct net *net = tp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net;
	__u32 dupthresh = net->ipv4.sysctl_tcp_recovery & RACK_NO_DUPTHRESH ? DUPTHRESH_MAX : tp->reordering;

	record->loss_state = LOSS_STATE_KNOWN | (tp->inet_conn.icsk_pending & LOSS_STATE_TIMER) |
			     (tp->undo_marker ? LOSS_STATE_CAN_UNDO : 0) |
			     (tp->reord_seen ? LOSS_STATE_REORDERED : 0) |
			     (is_ack_of_original(tp) ? LOSS_STATE_ORIGINAL : 0);
	record->dupthresh_segments = dupthresh < DUPTHRESH_MAX ? dupthresh : DUPTHRESH_MAX;
}

/* A passive open has no tcp_sock yet. */
static __always_inline void fill_no_state(struct tcp_state_record *record)
{
	__u32 cwnd = offsetof(struct tcp_state_record, cwnd_segments);
	__u32 packet = offsetof(struct tcp_state_record, pkt_seq);

	record->pacing_rate_Bps = 0;
	__builtin_memset((__u8 *)record + cwnd, 0, packet - cwnd);
	/* The kernel's own values for "none yet", which readers know from other records. */
	record->min_rtt_us = ~0U;
	record->ssthresh_segments = TCP_INFINITE_SSTHRESH;
	record->state = TCP_NEW_SYN_RECV;
	record->ca_state = 0;
	record->window_scales = 0;
	record->app_limited = 0;
	record->loss_state = 0;
	record->dupthresh_segments = 0;
}

static __always_inline void fill_packet(struct tcp_state_record *record, struct __sk_buff *skb,
					__u8 direction)
{
	struct cursor at = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	void *start = at.next;
	struct tcphdr *tcp = parse_tcp(skb, &at);
	__u32 segments = skb->gso_segs;
	__u64 header_bytes;

	record->gso_segs = segments ? segments : 1;
	record->direction = direction;
	record->event = EVENT_PACKET;
	if (!tcp) {
		record->pkt_seq = record->pkt_ack = record->payload_bytes = 0;
		record->pkt_flags = 0;
		return;
	}
	record->pkt_seq = bpf_ntohl(tcp->seq);
	record->pkt_ack = bpf_ntohl(tcp->ack_seq);
	record->pkt_flags = tcp_header_flags(tcp);
	header_bytes = (void *)tcp - start;
	/* The difference of two pointers is a number only in 64 bits; keep it there. */
	asm volatile("" : "+r"(header_bytes));
	record->payload_bytes = skb->len - header_bytes - tcp->doff * 4;
}

/* Those of a handshake, and the first one of the connection. */
#define FIRST_PACKETS 4

/*
 * Whether every n-th packet of a flow counts this one; without thinning each counts. Where n changes, it is a power of
 * two, so that what a larger n takes a smaller one takes, too; and flows begin at different places, so that short ones
 * have as many as long ones. The first packets of a flow show where its sequence numbers begin. 2654435769 is the odd
 * number next to 2^32 divided by the golden ratio (Knuth, 6.4).
 */
static __always_inline int is_nth(__u32 flow, __u64 flow_seq)
{
	if (options.adapts)
		return flow_seq <= FIRST_PACKETS ||
		       !((flow_seq + flow * 2654435769u) & (control.packets_per_log - 1));
	return options.packets_per_log <= 1 || flow_seq % options.packets_per_log == 0;
}

/* Thinning: is this packet of the flow one that the log wants? */
static __always_inline int is_due(const struct flow_state *flow, struct tcp_sock *tp, __u64 flow_seq)
{
	if (options.on_change && (flow->last_cwnd_segments != tp->snd_cwnd ||
				  flow->last_ssthresh_segments != tp->snd_ssthresh))
		return 1;
	return takes_by_number() ? is_nth(flow->flow, flow_seq) : !options.on_change;
}

#endif
