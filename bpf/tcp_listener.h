/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Listeners and their accept queues. The listener is known by its cookie.
 */
#ifndef PARSHALL_TCP_LISTENER_H
#define PARSHALL_TCP_LISTENER_H

#include "accept_queue.h"
#include "tcp_flow.h"

#define LISTENERS_MAX 16384u
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

static __always_inline void name_listener(struct tcp_listener *listener, const struct owner *owner)
{
	listener->pid = owner->pid;
	__builtin_memcpy(listener->command, owner->command, sizeof(listener->command));
}

/* Packets may come before the walk does. A listener is listed before they look for its owner, so that one finds the other. */
static __noinline void tell_listener_owner(__u64 cookie, const struct owner *owner)
{
	struct tcp_listener *listener = bpf_map_lookup_elem(&listeners, &cookie);

	if (owner && listener && !listener->command[0])
		name_listener(listener, owner);
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
	if (owner)
		name_listener(listener, owner);
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

/*
 * Notes an inbound segment at a listener; `gets_cookie` is that of its handshake, 0 where none is known. Returns whether the
 * kernel would answer a SYN with a cookie. A global function, which the verifier follows once and not on each way to it.
 */
__noinline int note_listener(struct __sk_buff *skb, __u64 gets_cookie)
{
	struct tcp_sock *tp = listener_of(skb);
	__u64 time_ns, cookie = bpf_get_socket_cookie(skb);
	struct tcp_listener *listener;
	__u32 length, backlog;
	const struct sock *sk;
	__u8 cookies;
	int refusal;

	if (!tp)
		return 0;
	sk = &tp->inet_conn.icsk_inet.sk;
	length = sk->sk_ack_backlog;
	backlog = sk->sk_max_ack_backlog;
	cookies = sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_syncookies;
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
	refusal = refusal_of(skb, gets_cookie);
	if (refusal == NOT_REFUSED)
		return 0;
	__sync_fetch_and_add(refusal == SYN_REFUSED ? &listener->syns_refused : &listener->acks_refused, 1);
	time_ns = bpf_ktime_get_ns();
	__sync_val_compare_and_swap(&listener->first_refused_ns, 0, time_ns);
	listener->last_refused_ns = time_ns;
	return 0;
}

#endif
