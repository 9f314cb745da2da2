/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* How a connection ends. */
#ifndef PARSHALL_TCP_ENDING_H
#define PARSHALL_TCP_ENDING_H

#include <linux/errno.h>
#include "tcp_flow.h"

/* Bits of sk_flags and sk_shutdown. The kernel sets the first when it has taken the peer's FIN. */
#define SOCK_DONE_BIT 2u
#define RCV_SHUTDOWN 1

/* The FINs that the kernel has sent and taken up to now. It numbers a FIN as a byte: all that it sent is all that there is. */
static __always_inline __u8 fins_of(const struct tcp_sock *tp, int state)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	int has_closed = state == TCP_FIN_WAIT1 || state == TCP_CLOSING || state == TCP_LAST_ACK;
	__u8 fins = sk->__sk_common.skc_flags & SOCK_DONE_BIT ? CLOSING_FIN_RECEIVED : 0;

	if (state == TCP_FIN_WAIT2 || (has_closed && tp->snd_nxt == tp->write_seq))
		fins |= CLOSING_FIN_SENT;
	return fins;
}

/* Why a connection becomes CLOSED, by what the kernel has set before. */
static __always_inline enum tcp_ending ending_of(const struct tcp_sock *tp, int state, __u8 closing)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	int error = sk->sk_err;

	if (closing & CLOSING_RST_RECEIVED)
		return ENDING_RESET_RECEIVED;
	if ((closing & CLOSING_FINS) == CLOSING_FINS && tp->snd_una == tp->write_seq)
		return ENDING_FIN;
	if (error == ECONNABORTED)
		return ENDING_ABORTED;
	/* A timeout has the error of the last ICMP message, if there was one; no timer is set while the handler of one runs. */
	if (error == ETIMEDOUT || (error && error == sk->sk_err_soft && !tp->inet_conn.icsk_pending))
		return ENDING_TIMEOUT;
	if (state == TCP_SYN_SENT || state == TCP_SYN_RECV)
		return error ? ENDING_UNREACHABLE : ENDING_ABORTED;
	if (state == TCP_FIN_WAIT2 && tp->linger2 >= 0)
		return ENDING_FIN_SENT;
	return ENDING_ABORTED;
}

/* Notes how a connection ends, before it becomes CLOSED. */
static __always_inline void note_ending(struct flow_state *flow, const struct tcp_sock *tp, int state)
{
	if (flow->ending)
		return;
	flow->closing |= fins_of(tp, state);
	flow->ending = ending_of(tp, state, flow->closing);
}

/*
 * What a close can say. The kernel treats data that comes after close(2) as if the peer had sent a reset, and only then
 * answers with one: until then, the two look the same.
 */
static __always_inline enum tcp_ending ending_at_close(const struct flow_state *flow, const struct sock *sk, int state)
{
	int takes_no_data = (state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2) && sk->sk_shutdown & RCV_SHUTDOWN;

	return flow->ending == ENDING_RESET_RECEIVED && takes_no_data ? ENDING_UNKNOWN : flow->ending;
}

/* What the account of a flow that may be alive says. */
static __always_inline enum tcp_ending ending_up_to_now(struct flow_state *flow, const struct tcp_sock *tp)
{
	int state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;

	/* A listener has the storage of its former connection. */
	if (flow->ending || state == TCP_CLOSE || state == TCP_LISTEN)
		return flow->ending;
	flow->closing |= fins_of(tp, state);
	return ENDING_OPEN;
}

static __always_inline int note_reset_received(const struct sock *sk)
{
	struct flow_state *flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);

	if (flow)
		flow->closing |= CLOSING_RST_RECEIVED;
	return 0;
}

static __always_inline int note_reset_sent(const struct sock *sk)
{
	struct flow_state *flow = sk ? bpf_sk_storage_get(&flows, (void *)sk, 0, 0) : 0;

	if (!flow)
		return 0;
	flow->closing |= CLOSING_RST_SENT;
	/* A reset is never answered with a reset, so data came. A socket that gives up after its FIN sends no reset. */
	if (flow->ending == ENDING_RESET_RECEIVED || flow->ending == ENDING_FIN_SENT) {
		flow->closing &= ~CLOSING_RST_RECEIVED;
		flow->ending = ENDING_ABORTED;
	}
	if (flow->has_ended)
		write_flow_end(flow, FLOW_END_DESTROYED, flow->ending);
	return 0;
}

/* Two programs for each event, as for closes: the kernel does not run one that it interrupts. */
SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(tcp_reset_received, const struct sock *sk)
{
	return note_reset_received(sk);
}

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(tcp_reset_received_2, const struct sock *sk)
{
	return note_reset_received(sk);
}

SEC("tp_btf/tcp_send_reset")
int BPF_PROG(tcp_reset_sent, const struct sock *sk)
{
	return note_reset_sent(sk);
}

SEC("tp_btf/tcp_send_reset")
int BPF_PROG(tcp_reset_sent_2, const struct sock *sk)
{
	return note_reset_sent(sk);
}

#endif
