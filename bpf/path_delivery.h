/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Packets on their way to a socket, until their data is ready: which packet a CPU is delivering, and to which
 * sockets it may go.
 */
#ifndef PARSHALL_PATH_DELIVERY_H
#define PARSHALL_PATH_DELIVERY_H

#include "accept_queue.h"
#include "path_filter.h"

#define CGROUP_DEPTH_MAX 32

/* Fills in socket and control group of a packet. Only full sockets have a control group. */
static __noinline int describe_socket(struct path_identity *identity, struct sock *sk)
{
	struct cgroup *cgroup;
	__u8 state;

	if (!identity || !sk)
		return 0;
	state = BPF_CORE_READ(sk, __sk_common.skc_state);
	if (state == TCP_NEW_SYN_RECV || state == TCP_TIME_WAIT)
		return 0;
	identity->socket_cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	cgroup = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	if (!cgroup)
		return 0;
	identity->cgroup_id = BPF_CORE_READ(cgroup, kn, id);
	if (!options.cgroup_id)
		return 0;
	for (int depth = 0; depth < CGROUP_DEPTH_MAX && cgroup; depth++) {
		if (BPF_CORE_READ(cgroup, kn, id) == options.cgroup_id) {
			identity->in_cgroup = 1;
			return 0;
		}
		cgroup = (struct cgroup *)BPF_CORE_READ(cgroup, self.parent);
	}
	return 0;
}

/*
 * Notes that this CPU delivers a packet, to `sk` if the socket is known. When the packet's data is ready, it
 * is still the last packet that this CPU delivered. A socket gets its cookie when a program first asks for
 * it, so the programs ask before the identity is filled in.
 */
static __always_inline void note_delivery(struct path_packet *packet, __u32 place, struct sk_buff *skb, struct sock *sk)
{
	struct path_identity *identity;
	struct path_cpu *now;

	if (!packet || packet->is_ignored) {
		now = options.stages & BIT(STAGE_DATA_READY) ? this_cpu() : 0;
		if (now)
			now->delivering = 0;
		return;
	}
	if (options.reads_headers && sk) {
		identity = bpf_map_lookup_elem(&path_identities, &place);
		if (identity)
			describe_socket(identity, sk);
	}
	if (!(options.stages & BIT(STAGE_DATA_READY)))
		return;
	now = this_cpu();
	if (now) {
		now->delivering = (__u64)skb;
		now->delivering_begun_ns = packet->time_ns;
		now->delivering_to = (__u64)sk;
		now->ready_socket = 0;
	}
}

/*
 * Notes that an established connection processes a packet. While a CPU works on the backlog of a socket,
 * another packet for this socket may interrupt it. That packet goes to the end of the backlog and is
 * delivered later, so the data that becomes ready next is not its own.
 */
static __always_inline void note_reception(const struct path_packet *packet, const struct sk_buff *skb, const struct sock *sk)
{
	struct path_cpu *now = options.stages & BIT(STAGE_DATA_READY) ? this_cpu() : 0;

	if (!now)
		return;
	now->receiving = packet && !packet->is_ignored ? (__u64)skb : 0;
	now->receiving_begun_ns = packet ? packet->time_ns : 0;
	now->receiving_to = (__u64)sk;
}

/*
 * Whether the headers of the delivered packet name a socket. A socket without a peer, as UDP without
 * connect(2), fits any.
 */
static __always_inline int is_addressee(const struct path_cpu *now, const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;

	return sk->sk_protocol == now->delivering_protocol && common->skc_num == now->delivering_port &&
	       common->skc_net.net == now->delivering_net &&
	       (!common->skc_dport || common->skc_dport == now->delivering_from_port) &&
	       (!common->skc_daddr || common->skc_family != AF_INET || common->skc_daddr == now->delivering_from_address);
}

/* The sk_buff whose data is ready at a socket, and when its packet began; 0 if that is not known. */
static __always_inline __u64 ready_packet(struct path_cpu *now, const struct sock *sk, __u64 *begun_ns)
{
	__u64 skb;

	if (sk->sk_protocol == IPPROTO_TCP && sk->__sk_common.skc_state == TCP_ESTABLISHED &&
	    options.stages & BIT(STAGE_TCP_RECEIVE)) {
		if (now->receiving_to != (__u64)sk)
			return 0;
		skb = now->receiving;
		*begun_ns = now->receiving_begun_ns;
		now->receiving = 0;
		/* Otherwise `delivering` is a packet that interrupted this one: it stays noted. */
		if (now->delivering == skb)
			now->delivering = 0;
		return skb;
	}
	/* The data may be ready at another socket, for example one of AF_UNIX or netlink. */
	if (!now->delivering || (now->delivering_to ? now->delivering_to != (__u64)sk : !is_addressee(now, sk)))
		return 0;
	skb = now->delivering;
	*begun_ns = now->delivering_begun_ns;
	now->delivering = 0;
	return skb;
}

/*
 * Whether a full accept queue refuses a packet: the kernel frees it as if it had used it. Refused ACKs that
 * return a SYN cookie are missed, because they look like any other ACK.
 */
static __always_inline int is_refused(struct __sk_buff *ctx)
{
	const struct tcp_sock *listener = listener_of(ctx);
	const struct sock *sk;

	if (!listener)
		return 0;
	sk = &listener->inet_conn.icsk_inet.sk;
	return sk->sk_ack_backlog > sk->sk_max_ack_backlog && refusal_of(ctx, 0) != NOT_REFUSED;
}

/* Notes what the headers of a packet say of its socket, for is_addressee. */
static __noinline int note_addressee(const struct sk_buff *skb, const struct net *net)
{
	__u8 head[24], *start;
	struct path_cpu *now = this_cpu();
	__u32 transport_offset;

	if (!now || !skb)
		return 0;
	now->delivering_net = net;
	now->delivering_protocol = 0;
	start = skb->head;
	start += skb->network_header;
	if (bpf_probe_read_kernel(head, sizeof(head), start))
		return 0;
	if (head[0] >> 4 == 4) {
		now->delivering_protocol = head[9];
		__builtin_memcpy(&now->delivering_from_address, head + 12, 4);
		transport_offset = (head[0] & 15) * 4;
	} else {
		/* With extension headers, only later stages know the socket. */
		now->delivering_protocol = head[6];
		__builtin_memcpy(&now->delivering_from_address, head + 20, 4);
		transport_offset = 40;
	}
	if (bpf_probe_read_kernel(head, 4, start + transport_offset))
		return 0;
	__builtin_memcpy(&now->delivering_from_port, head, 2);
	now->delivering_port = number16(head + 2);
	return 0;
}

#endif
