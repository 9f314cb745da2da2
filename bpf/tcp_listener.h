/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Listeners and their accept queues. No hook lies where the kernel finds a queue full, but the packet hook runs just before,
 * on the same CPU: what is counted there meets the kernel's own conditions. The listener is known by its cookie.
 */
#ifndef PARSHALL_TCP_LISTENER_H
#define PARSHALL_TCP_LISTENER_H

#include "tcp_flow.h"

#define LISTENERS_MAX 16384u
/* The widest window of a handshake: it is not scaled yet. */
#define HANDSHAKE_WINDOW_MAX_BYTES 65535u
/* How often a CPU that loses against others tries to note a longer queue. */
#define LONGEST_ATTEMPTS 8

/* Those to which a segment of a handshake came. The reader removes the ones that ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LISTENERS_MAX);
	__type(key, __u64);
	__type(value, struct tcp_listener);
} listeners SEC(".maps");

/* Segments that came to listeners for which the table had no room. */
__u64 segments_unlisted SEC(".data.unlisted");
__u32 last_listener;

static __noinline void note_listener_owner(struct task_struct *task, struct sock *sk, const int is_first)
{
	struct owner *owner = bpf_sk_storage_get(&listener_owners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	/* Of several processes that hold a listener, the walk meets the oldest one first. */
	if (owner && (is_first || !owner->command[0]))
		owner_of(task, owner);
}

static __noinline void note_listener_end(const struct sock *sk)
{
	__u64 cookie = bpf_get_socket_cookie((void *)sk);
	struct tcp_listener *listener = bpf_map_lookup_elem(&listeners, &cookie);

	if (listener)
		listener->has_ended = 1;
}

/* Who owns it may become known after its first packet: the walk over what processes hold goes on while packets come. */
static __noinline void learn_listener_owner(struct __sk_buff *skb, struct tcp_listener *listener, struct tcp_sock *tp)
{
	struct mptcp_sock *connection = mptcp_connection_of(skb);
	struct owner *owner = bpf_sk_storage_get(&listener_owners, tp, 0, 0);

	if (!owner && connection)
		owner = bpf_sk_storage_get(&mptcp_owners, connection, 0, 0);
	if (!owner)
		return;
	listener->pid = owner->pid;
	__builtin_memcpy(listener->command, owner->command, sizeof(listener->command));
}

static __noinline struct tcp_listener *list_listener(__u64 cookie, struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct tcp_listener fresh = { .socket_cookie = cookie };
	struct connection_key ends = {};

	ends_of(&sk->__sk_common, &ends);
	fresh.listener = __sync_fetch_and_add(&last_listener, 1) + 1;
	fresh.cgroup_id = sk->sk_cgrp_data.cgroup->kn->id;
	fresh.netns_cookie = sk->__sk_common.skc_net.net->net_cookie;
	fresh.netns_inode = ends.netns_inode;
	fresh.local_port = sk->__sk_common.skc_num;
	fresh.is_ipv6 = sk->__sk_common.skc_family == AF_INET6;
	__builtin_memcpy(fresh.local_address, ends.local_address, sizeof(fresh.local_address));
	/* If two CPUs list it at once, the second one finds what the first one listed. */
	bpf_map_update_elem(&listeners, &cookie, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&listeners, &cookie);
}

static __always_inline void note_queue_length(struct tcp_listener *listener, __u32 length)
{
	__u32 longest = listener->queue_longest, found;

	listener->queue_last = length;
	for (int i = 0; i < LONGEST_ATTEMPTS && length > longest; i++) {
		found = __sync_val_compare_and_swap(&listener->queue_longest, longest, length);
		if (found == longest)
			break;
		longest = found;
	}
}

/* Whether the queue of requests is full, where kernels differ by one. */
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

/* Which of the refusals the kernel counts as ListenOverflows a full accept queue gives to an inbound segment. */
static __noinline enum refusal refusal_of(struct __sk_buff *skb, struct tcp_sock *tp, struct tcphdr *tcp,
					  const struct flow_state *flow)
{
	const __u32 decisive = FLAG_SYN | FLAG_ACK | FLAG_RST | FLAG_FIN;
	struct tcp_request_sock *request;
	struct bpf_sock_tuple ends = {};
	enum refusal refusal = NOT_REFUSED;
	struct segment segment;
	struct bpf_sock *found;
	__u32 length_bytes;
	int has_request;

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
		 * To a request the SYN-ACK is sent again. Without SYN cookies, a full queue of requests drops the SYN first.
		 */
		if (!has_request && (tp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net->ipv4.sysctl_tcp_syncookies ||
				     !may_lack_request(tp)))
			refusal = SYN_REFUSED;
	} else if ((segment.flags & (FLAG_SYN | FLAG_ACK | FLAG_RST)) == FLAG_ACK) {
		if (request ? completes(request, &segment, tp) :
			      /* A cookie holds for the first byte only. */
			      !has_request && flow && flow->gets_cookie && segment.seq == flow->syn_seq + 1)
			refusal = ACK_REFUSED;
	}
	if (found)
		bpf_sk_release(found);
	return refusal;
}

/*
 * Notes an inbound segment at a listener, whose handshake is flow if it is known. Returns whether the kernel would answer a
 * SYN with a cookie.
 */
static __noinline __u32 note_listener(struct __sk_buff *skb, struct tcp_sock *tp, struct tcphdr *tcp,
				      const struct flow_state *flow)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u32 length = sk->sk_ack_backlog, backlog = sk->sk_max_ack_backlog;
	__u8 cookies = sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_syncookies;
	__u64 time_ns, cookie = bpf_get_socket_cookie(skb);
	struct tcp_listener *listener;
	enum refusal refusal;

	listener = bpf_map_lookup_elem(&listeners, &cookie);
	if (!listener)
		listener = list_listener(cookie, tp);
	if (!listener) {
		__sync_fetch_and_add(&segments_unlisted, 1);
		return 0;
	}
	if (!listener->command[0])
		learn_listener_owner(skb, listener, tp);
	listener->backlog = backlog;
	note_queue_length(listener, length);
	if (length <= backlog)
		return cookies > 1 || (cookies && may_lack_request(tp));
	refusal = refusal_of(skb, tp, tcp, flow);
	if (refusal == NOT_REFUSED)
		return 0;
	__sync_fetch_and_add(refusal == SYN_REFUSED ? &listener->syns_refused : &listener->acks_refused, 1);
	time_ns = bpf_ktime_get_ns();
	__sync_val_compare_and_swap(&listener->first_refused_ns, 0, time_ns);
	listener->last_refused_ns = time_ns;
	return 0;
}

#endif
