/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Segments that a full accept queue refuses. The kernel has no hook where it finds the queue full. The packet
 * hook of sockets runs just before, on the same CPU, so the functions here repeat the kernel's own
 * conditions.
 */
#ifndef PARSHALL_ACCEPT_QUEUE_H
#define PARSHALL_ACCEPT_QUEUE_H

#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "abi.h"
#include "parse.h"

/* The widest window of a handshake: it is not scaled yet. */
#define HANDSHAKE_WINDOW_MAX_BYTES 65535u

/* Whether the queue of requests may be full: kernels differ by one, and this has the lower limit. */
static __always_inline int may_lack_request(const struct tcp_sock *tp)
{
	return (__u32)tp->inet_conn.icsk_accept_queue.qlen.counter >= tp->inet_conn.icsk_inet.sk.sk_max_ack_backlog;
}

/* The fields of a segment that decide whether it completes a handshake. */
struct segment {
	__u32 seq;
	__u32 end_seq;
	__u32 ack;
	__u32 flags;
};

static __always_inline void segment_of(struct __sk_buff *skb, const struct tcphdr *tcp, struct segment *segment)
{
	__u64 header_bytes = (void *)tcp - (void *)(long)skb->data;

	/* The difference of two pointers is a number only in 64 bits; keep it there. */
	asm volatile("" : "+r"(header_bytes));
	segment->flags = tcp_header_flags(tcp);
	segment->seq = bpf_ntohl(tcp->seq);
	segment->ack = bpf_ntohl(tcp->ack_seq);
	segment->end_seq = segment->seq + skb->len - header_bytes - tcp->doff * 4 + (segment->flags & FLAG_FIN);
}

/* Whether the kernel would make a socket of a request for this segment, by its own rules (tcp_check_req). */
static __always_inline int completes(const struct tcp_request_sock *request, const struct segment *segment,
				     const struct tcp_sock *tp)
{
	__u32 window = request->req.req.__req_common.skc_rcv_wnd;
	__u32 begin = request->rcv_nxt;
	int is_in_window;

	if (window > HANDSHAKE_WINDOW_MAX_BYTES)
		window = HANDSHAKE_WINDOW_MAX_BYTES;
	is_in_window = segment->seq == begin ||
		       ((__s32)(segment->end_seq - begin) > 0 && (__s32)(segment->seq - (begin + window)) < 0);
	if (segment->ack != request->snt_isn + 1 || !is_in_window)
		return 0;
	/* TCP_DEFER_ACCEPT: ACKs without data are dropped. */
	return segment->end_seq != request->rcv_isn + 1 ||
	       BPF_CORE_READ_BITFIELD(&request->req.req, num_timeout) >= tp->inet_conn.icsk_accept_queue.rskq_defer_accept;
}

enum refusal { NOT_REFUSED, SYN_REFUSED, ACK_REFUSED };

/* In `cookie` of refusal_of: marks the sequence number of a SYN that was answered with a SYN cookie. */
#define WITH_COOKIE (1ULL << 32)

/* The listener to which a packet goes; NULL if its socket is not a listener. */
static __always_inline struct tcp_sock *listener_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full = sk ? bpf_sk_fullsock(sk) : 0;

	return full && full->state == TCP_LISTEN ? bpf_skc_to_tcp_sock(full) : 0;
}

/*
 * How a full accept queue refuses an inbound segment, if it does: refusals that the kernel counts as
 * ListenOverflows. `cookie`: WITH_COOKIE and the sequence number of the SYN; 0 if no cookie of the handshake
 * is known. A global function: the verifier follows it once, and not on each path to it.
 */
__noinline int refusal_of(struct __sk_buff *skb, __u64 cookie)
{
	const __u32 decisive = FLAG_SYN | FLAG_ACK | FLAG_RST | FLAG_FIN;
	struct cursor at = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct tcp_sock *tp = listener_of(skb);
	struct tcphdr *tcp = parse_tcp(skb, &at);
	struct tcp_request_sock *request;
	struct bpf_sock_tuple ends = {};
	enum refusal refusal = NOT_REFUSED;
	struct segment segment;
	struct bpf_sock *found;
	__u32 length_bytes;
	int has_request;

	if (!tp || !tcp)
		return NOT_REFUSED;
	segment_of(skb, tcp, &segment);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(long)skb->data;

		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return NOT_REFUSED;
		ends.ipv4.saddr = ip->saddr;
		ends.ipv4.daddr = ip->daddr;
		ends.ipv4.sport = tcp->source;
		ends.ipv4.dport = tcp->dest;
		length_bytes = sizeof(ends.ipv4);
	} else {
		struct ipv6hdr *ip = (void *)(long)skb->data;

		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return NOT_REFUSED;
		__builtin_memcpy(ends.ipv6.saddr, &ip->saddr, 16);
		__builtin_memcpy(ends.ipv6.daddr, &ip->daddr, 16);
		ends.ipv6.sport = tcp->source;
		ends.ipv6.dport = tcp->dest;
		length_bytes = sizeof(ends.ipv6);
	}
	found = bpf_skc_lookup_tcp(skb, &ends, length_bytes, BPF_F_CURRENT_NETNS, 0);
	has_request = found && found->state == TCP_NEW_SYN_RECV;
	request = has_request ? bpf_skc_to_tcp_request_sock(found) : 0;
	if ((segment.flags & decisive) == FLAG_SYN) {
		/*
		 * If there is a request, the kernel sends its SYN-ACK again. Without SYN cookies, a full
		 * queue of requests drops the SYN first.
		 */
		if (!has_request && (tp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net->ipv4.sysctl_tcp_syncookies ||
				     !may_lack_request(tp)))
			refusal = SYN_REFUSED;
	} else if ((segment.flags & (FLAG_SYN | FLAG_ACK | FLAG_RST)) == FLAG_ACK) {
		if (request ? completes(request, &segment, tp) :
			      /* A cookie holds for the first byte only. */
			      !has_request && cookie && segment.seq == (__u32)cookie + 1)
			refusal = ACK_REFUSED;
	}
	if (found)
		bpf_sk_release(found);
	return refusal;
}

#endif
