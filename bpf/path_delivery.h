/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Packets that the stack gives to a socket, until their data is ready: which packet a CPU is delivering, and which
 * sockets it may be for.
 */
#ifndef PARSHALL_PATH_DELIVERY_H
#define PARSHALL_PATH_DELIVERY_H

#include "accept_queue.h"
#include "path_filter.h"

#define CGROUP_DEPTH_MAX 32

/* Whose packet it is; sockets that are not full ones have no control group. */
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
 * The packet has found its socket, if that is known; when its data is ready, it is still the last one of this CPU. A
 * socket has a cookie from the first question for it on, so the programs ask before the identity is filled in.
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
 * An established connection processes the packet. A CPU that works on the backlog of a socket may be interrupted by the
 * arrival of another packet for the same socket, which goes to the end of that backlog: it is delivered later, and the
 * data that becomes ready is not its own.
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

/* Whether a socket is one that the packet's headers name; what it does not say itself, as UDP without connect(2), fits. */
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
		/* The packet that interrupted this one keeps its place. */
		if (now->delivering == skb)
			now->delivering = 0;
		return skb;
	}
	/* Other sockets of this CPU may become ready, too: local ones, those of netlink. */
	if (!now->delivering || (now->delivering_to ? now->delivering_to != (__u64)sk : !is_addressee(now, sk)))
		return 0;
	skb = now->delivering;
	*begun_ns = now->delivering_begun_ns;
	now->delivering = 0;
	return skb;
}

/*
 * Whether a full accept queue refuses a packet, which the kernel then frees like one that it has used. An ACK that returns a
 * SYN cookie looks like any other.
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

/* Which sockets a packet may be for, as far as its headers say so. */
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
		/* Behind extension headers only the other stages know the socket. */
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
