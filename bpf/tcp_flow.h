/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The flows of the TCP instrument: what the loader asks for, the maps, the number and the facts of
 * a connection from its first packet on, and its account. The hooks are in tcp.bpf.c.
 */
#ifndef PARSHALL_TCP_FLOW_H
#define PARSHALL_TCP_FLOW_H

#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "maps.h"
#include "parse.h"
#include "ring.h"

#define PASS 1
#define TCP_INFINITE_SSTHRESH 0x7fffffff
#define CGROUP_DEPTH_MAX 32
/* Before the windows are scaled. */
#define INITIAL_WINDOW_MAX_BYTES 65535u

/* The loader sets them before verification, so that the verifier removes unused code. */
const volatile struct tcp_options options SEC(".rodata.options");
#define flow_layout options.flow_layout

volatile struct tcp_control control SEC(".data.control") = { .enabled = 1, .packets_per_log = 1 };
__u32 last_flow;

RING_ARRAY packet_ring SEC(".maps"), flow_ring SEC(".maps");
MAPPABLE_ARRAY(struct lane_readers) packet_readers SEC(".maps"), flow_readers SEC(".maps");

/* Element cpu * TCP_HOOK_COUNT + hook. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TCP_HOOK_COUNT);
	__type(key, __u32);
	__type(value, struct hook_counters);
} hook_accounts SEC(".maps");

#define FLOW_IGNORED (~0U)
/* What is known of a flow beyond its addresses. */
#define OWNER_KNOWN 1u
#define OPTIONS_KNOWN 2u
#define ALL_KNOWN (OWNER_KNOWN | OPTIONS_KNOWN)

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow_state);
} flows SEC(".maps");

/*
 * Sockets of the processes that are asked for. The kernel copies the storage of a listener to its
 * connections as it clones them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} wanted_sockets SEC(".maps");

struct owner {
	__u32 pid;
	char command[16];
};

/* Who called listen(2), or held the listener when the log began. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct owner);
} listener_owners SEC(".maps");

/*
 * Who owns the socket of an MPTCP connection. Threads of the kernel open its further subflows and send on them, but they
 * work for that process.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct owner);
} mptcp_owners SEC(".maps");

#define HAS_MPTCP bpf_core_type_exists(struct mptcp_sock)
#define PF_KTHREAD 0x00200000

/* Aligned so that an address on the stack can be compared in two words. */
struct connection_key {
	__u8 local_address[16];
	__u8 remote_address[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 netns_inode;
} __attribute__((aligned(8)));

/* A power of two. */
#define HANDSHAKES_MAX 65536u
/* So few that the records of one sweep fill a small part of the flow ring. */
#define HANDSHAKES_ENDED_MAX 4096u

/* Passive opens before they have a socket of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HANDSHAKES_MAX);
	__type(key, struct connection_key);
	__type(value, struct flow_state);
} handshakes SEC(".maps");

/*
 * The same in the order in which they began, so that a flood of SYNs evicts the oldest. The program
 * does so itself, because an eviction by the kernel (LRU_HASH) would lose the account.
 */
struct handshake_place {
	struct connection_key connection;
	__u32 flow;   /* 0: not used yet */
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HANDSHAKES_MAX);
	__type(key, __u32);
	__type(value, struct handshake_place);
} handshake_order SEC(".maps");

__u64 handshakes_begun;

extern int LINUX_KERNEL_VERSION __kconfig;
extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;
extern void *bpf_cast_to_kern_ctx(void *context) __ksym __weak;
#define HAS_CASTS (LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 2, 0))

/* The kernel's structure of a connection's socket, by a cast, which costs nothing, in place of a call. */
static __always_inline struct tcp_sock *tcp_sock_of(struct bpf_sock *sk)
{
	if (HAS_CASTS)
		return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	return bpf_skc_to_tcp_sock(sk);
}

/*
 * The same socket by the packet's own pointer, which the verifier trusts: a load through it is one
 * instruction; through a cast, seven others first check that the address is the kernel's.
 */
static __always_inline const struct sock *sock_of(struct __sk_buff *skb, const struct tcp_sock *tp)
{
	if (HAS_CASTS)
		return ((const struct sk_buff *)bpf_cast_to_kern_ctx(skb))->sk;
	return &tp->inet_conn.icsk_inet.sk;
}

static __always_inline struct hook_counters *account_of(__u32 cpu, __u32 hook)
{
	__u32 key = cpu * TCP_HOOK_COUNT + hook;

	return bpf_map_lookup_elem(&hook_accounts, &key);
}

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

/* Adds to the account of a packet hook: the hook of inbound packets is never interrupted by itself. */
static __always_inline void count_packet(__u64 *counter, __u32 direction)
{
	if (direction == DIRECTION_IN && options.inbound_layout.writers_alone)
		++*(volatile __u64 *)counter;
	else
		count(counter);
}

/* Whether packets of a flow are logged by their number. */
static __always_inline int takes_by_number(void)
{
	return options.packets_per_log > 1 || options.adapts;
}

/* Whether some packets of a flow are thinned out. */
static __always_inline int thins(void)
{
	return takes_by_number() || options.on_change;
}

static __noinline int is_wanted(const struct connection_key *connection)
{
	const __u64 *remote = (const __u64 *)connection->remote_address;
	const __u64 *local = (const __u64 *)connection->local_address;
	int port_matches = options.port_count == 0, host_matches = options.host_count == 0;

	for (__u32 i = 0; i < FILTER_PORTS_MAX && i < options.port_count; i++)
		if (options.ports[i] == connection->local_port || options.ports[i] == connection->remote_port)
			port_matches = 1;
	for (__u32 i = 0; i < FILTER_HOSTS_MAX && i < options.host_count; i++)
		if ((options.hosts[i][0] == remote[0] && options.hosts[i][1] == remote[1]) ||
		    (options.hosts[i][0] == local[0] && options.hosts[i][1] == local[1]))
			host_matches = 1;
	return port_matches && host_matches &&
	       (!options.netns_inode || options.netns_inode == connection->netns_inode);
}

static __noinline int is_in_wanted_cgroup(struct sock *sk)
{
	struct cgroup *cgroup = sk->sk_cgrp_data.cgroup;

	if (!options.cgroup_id)
		return 1;
	/* Read by a helper, once a flow: kernels before 6.2 let no program turn a pointer into a type. */
	for (int depth = 0; depth < CGROUP_DEPTH_MAX && cgroup; depth++) {
		if (BPF_CORE_READ(cgroup, kn, id) == options.cgroup_id)
			return 1;
		/* self is the first member of struct cgroup. */
		cgroup = (struct cgroup *)BPF_CORE_READ(cgroup, self.parent);
	}
	return 0;
}

/* Namespaces of process IDs lie in each other, 32 at most. */
#define PID_LEVELS_MAX 33

/* The ID of a process in the reader's namespace, which is that of its container; 0: it has none there. */
static __noinline __u32 process_id(struct task_struct *task)
{
	struct pid_namespace *namespace;
	struct pid *pid;
	__u32 level;
	void *upid;

	if (!options.pid_namespace)
		return task->tgid;
	pid = BPF_CORE_READ(task, group_leader, thread_pid);
	level = BPF_CORE_READ(pid, level);
	for (__u32 i = 0; i < PID_LEVELS_MAX && i <= level; i++) {
		upid = (void *)pid + bpf_core_field_offset(struct pid, numbers) + i * bpf_core_type_size(struct upid);
		namespace = BPF_CORE_READ((struct upid *)upid, ns);
		if (BPF_CORE_READ(namespace, ns.inum) == options.pid_namespace)
			return BPF_CORE_READ((struct upid *)upid, nr);
	}
	return 0;
}

static __noinline int is_wanted_process(struct task_struct *task)
{
	__u32 id = process_id(task);

	for (__u32 i = 0; i < FILTER_PIDS_MAX && i < options.pid_count; i++)
		if (options.pids[i] == id)
			return 1;
	return 0;
}

/* The connection of MPTCP whose subflow a packet belongs to, or whose listener it has come to; 0: there is none. */
static __always_inline struct mptcp_sock *mptcp_connection_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	return HAS_MPTCP && sk ? bpf_skc_to_mptcp_sock(sk) : 0;
}

/*
 * Whether a connection's socket, or the listener that stands for it, belongs to a process that is asked for. The kernel
 * makes the subflows of MPTCP by itself: they belong to whom their connection's socket belongs.
 */
static __always_inline int is_of_wanted_process(struct tcp_sock *tp, struct mptcp_sock *connection)
{
	return !options.pid_count || bpf_sk_storage_get(&wanted_sockets, tp, 0, 0) ||
	       (connection && bpf_sk_storage_get(&wanted_sockets, connection, 0, 0));
}

/* The token of the MPTCP connection that a socket is a subflow of; 0: there is none, or the peer has refused MPTCP. */
static __noinline __u32 mptcp_token_of(struct tcp_sock *tp)
{
	struct mptcp_subflow_context *subflow;
	struct mptcp_sock *connection;

	if (!HAS_MPTCP || !tp->is_mptcp)
		return 0;
	subflow = BPF_CORE_READ(tp, inet_conn.icsk_ulp_data);
	if (!subflow || !(BPF_CORE_READ_BITFIELD_PROBED(subflow, mp_capable) ||
			  BPF_CORE_READ_BITFIELD_PROBED(subflow, mp_join)))
		return 0;
	connection = (void *)BPF_CORE_READ(subflow, conn);
	return BPF_CORE_READ(connection, token);
}

/* The ends of a connection, but for the local port, which the kernel keeps in two places. */
static __always_inline void ends_of(const struct sock_common *common, struct connection_key *connection)
{
	__u32 *local = (__u32 *)connection->local_address;
	__u32 *remote = (__u32 *)connection->remote_address;

	if (common->skc_family == AF_INET) {
		map_ipv4(connection->local_address, common->skc_rcv_saddr);
		map_ipv4(connection->remote_address, common->skc_daddr);
	} else {
		for (int i = 0; i < 4; i++) {
			local[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			remote[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
		}
	}
	connection->remote_port = bpf_ntohs(common->skc_dport);
	connection->netns_inode = common->skc_net.net->ns.inum;
}

/*
 * The kernel clears skc_num of a closing socket before it sends the reset; inet_sport, which goes into headers, stays.
 */
static __always_inline void connection_of(struct tcp_sock *tp, struct connection_key *connection)
{
	ends_of(&tp->inet_conn.icsk_inet.sk.__sk_common, connection);
	connection->local_port = bpf_ntohs(tp->inet_conn.icsk_inet.inet_sport);
}

static __always_inline int is_mapped_ipv4(const __u8 address[16])
{
	const __u32 *words = (const __u32 *)address;

	return words[0] == 0 && words[1] == 0 && words[2] == bpf_htonl(0xffff);
}

static __always_inline struct record_header *reserve_in_flow_ring(__u32 length_bytes, __u16 kind,
								  struct ring_slot *slot)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hook_counters *account = account_of(cpu, HOOK_TCP_FLOW);
	void *lane = bpf_map_lookup_elem(&flow_ring, &cpu);
	struct lane_readers *readers = bpf_map_lookup_elem(&flow_readers, &cpu);
	struct record_header *record;

	if (!account)
		return 0;
	count(&account->seen);
	/* A CPU that came online after the ring was created has no lane. */
	record = lane ? ring_reserve(lane, readers, &flow_layout, length_bytes, kind, HOOK_TCP_FLOW,
				     slot) :
			0;
	if (!record)
		count(&account->dropped);
	return record;
}

struct flow_facts {
	__u32 flow;
	__u32 flags;
	__u64 socket_cookie;
	struct owner owner;
	struct connection_key connection;
};

/* Read from the task: before 6.10 cgroup hooks could not call the helpers that return it. */
static __always_inline void owner_of(struct task_struct *task, struct owner *owner)
{
	owner->pid = process_id(task);
	__builtin_memcpy(owner->command, task->comm, sizeof(owner->command));
}

static __noinline void write_flow(struct tcp_sock *tp, const struct flow_facts *facts)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	const struct tcp_congestion_ops *congestion_control = tp->inet_conn.icsk_ca_ops;
	struct tcp_flow_record *record;
	struct ring_slot slot;
	__u32 flags = facts->flags;

	record = (void *)reserve_in_flow_ring(sizeof(*record), RECORD_TCP_FLOW, &slot);
	if (!record)
		return;
	if (!is_mapped_ipv4(facts->connection.remote_address))
		flags |= FLOW_IS_IPV6;
	if (BPF_CORE_READ_BITFIELD(tp, rx_opt.sack_ok))
		flags |= FLOW_SACK;
	if (BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok))
		flags |= FLOW_TIMESTAMPS;
	if (BPF_CORE_READ_BITFIELD(tp, rx_opt.wscale_ok))
		flags |= FLOW_WINDOW_SCALING;
	if (tp->ecn_flags & (TCP_ECN_RFC3168 | TCP_ECN_ACCURATE))
		flags |= FLOW_ECN;
	record->time_ns = bpf_ktime_get_ns();
	record->socket_cookie = facts->socket_cookie;
	record->cgroup_id = sk->sk_cgrp_data.cgroup->kn->id;
	record->netns_cookie = sk->__sk_common.skc_net.net->net_cookie;
	record->netns_inode = facts->connection.netns_inode;
	record->flow = facts->flow;
	record->flags = flags;
	record->pid = facts->owner.pid;
	record->uid = sk->sk_uid.val;
	record->mss_clamp_bytes = tp->rx_opt.mss_clamp;
	record->advmss_bytes = tp->advmss;
	record->local_port = facts->connection.local_port;
	record->remote_port = facts->connection.remote_port;
	__builtin_memcpy(record->local_address, facts->connection.local_address, 16);
	__builtin_memcpy(record->remote_address, facts->connection.remote_address, 16);
	__builtin_memcpy(record->command, facts->owner.command, 16);
	record->mptcp_token = mptcp_token_of(tp);
	record->pad = 0;
	if (bpf_probe_read_kernel(record->congestion_control, 16, congestion_control->name))
		__builtin_memset(record->congestion_control, 0, 16);
	ring_commit(&record->header, &flow_layout, &slot);
}

/* Reads what the connection has moved. Nothing moves after its end, and tcp_disconnect() clears the kernel's counts. */
static __always_inline void note_bytes(struct flow_state *flow, const struct tcp_sock *tp)
{
	if (tp->bytes_acked > flow->bytes_acked)
		flow->bytes_acked = tp->bytes_acked;
	if (tp->bytes_received > flow->bytes_received)
		flow->bytes_received = tp->bytes_received;
}

#define REPORTS_FAILED_RETRANSMITS bpf_core_field_exists(struct trace_event_raw_tcp_retransmit_skb, err)

static __noinline void write_flow_end(const struct flow_state *flow, __u16 flags, __u8 ending)
{
	struct tcp_flow_end_record *record;
	struct ring_slot slot;

	if (flow->flow == 0 || flow->flow == FLOW_IGNORED)
		return;
	record = (void *)reserve_in_flow_ring(sizeof(*record), RECORD_TCP_FLOW_END, &slot);
	if (!record)
		return;
	record->time_ns = bpf_ktime_get_ns();
	record->packets_seen = flow->packets_seen;
	record->packets_filtered = 0;
	record->packets_thinned = thins() ? record->packets_seen - flow->packets_due : 0;
	record->packets_dropped = flow->packets_dropped;
	record->events_seen = flow->events_seen;
	record->events_dropped = flow->events_dropped;
	record->flow = flow->flow;
	record->flags = flags;
	record->ending = ending;
	record->closing = flow->closing;
	record->retransmits_total = flow->total_retrans - flow->total_retrans_before;
	record->retransmits_seen = flow->retransmits_seen;
	/* A kernel that does not report failed attempts counts them all the same. */
	record->retransmits_failed = REPORTS_FAILED_RETRANSMITS ?
					     flow->retransmits_failed :
					     record->retransmits_total - flow->retransmits_seen;
	record->retransmits_refused = flow->retransmits_refused;
	record->bytes_acked = flow->bytes_acked - flow->bytes_acked_before;
	record->bytes_received = flow->bytes_received - flow->bytes_received_before;
	ring_commit(&record->header, &flow_layout, &slot);
}

static __always_inline __u32 next_flow(void)
{
	return __sync_fetch_and_add(&last_flow, 1) + 1;
}

/* Ends a handshake that failed: writes its account and removes it. */
static __noinline void end_handshake(const struct connection_key *connection,
				     const struct flow_state *handshake)
{
	write_flow_end(handshake, FLOW_END_DESTROYED, handshake->ending);
	bpf_map_delete_elem(&handshakes, connection);
}

/* Ends the handshake that has been there the longest, when there are too many; returns its place. */
static __noinline struct handshake_place *free_place(void)
{
	__u32 place = __sync_fetch_and_add(&handshakes_begun, 1) & (HANDSHAKES_MAX - 1);
	struct handshake_place *oldest = bpf_map_lookup_elem(&handshake_order, &place);
	struct flow_state *former;

	if (!oldest || !oldest->flow)
		return oldest;
	former = bpf_map_lookup_elem(&handshakes, &oldest->connection);
	if (former && former->flow == oldest->flow)
		end_handshake(&oldest->connection, former);
	return oldest;
}

/*
 * Gives a handshake its number, and replaces an older one between the same ends. It does not call free_place itself: with
 * what that calls, the stack would be too deep.
 */
static __noinline struct flow_state *begin_handshake(struct handshake_place *oldest, const struct connection_key *connection,
						     __u32 syn_seq)
{
	struct flow_state fresh = { .syn_seq = syn_seq };

	if (!oldest)
		return 0;
	fresh.flow = next_flow();
	fresh.last_packet_ns = bpf_ktime_get_ns();
	oldest->connection = *connection;
	oldest->flow = fresh.flow;
	if (bpf_map_update_elem(&handshakes, connection, &fresh, BPF_ANY))
		return 0;
	return bpf_map_lookup_elem(&handshakes, connection);
}

/* Congestion control may change at any time. */
static __always_inline __u64 congestion_ops_of(struct tcp_sock *tp)
{
	return (__u64)tp->inet_conn.icsk_ca_ops;
}

/* A number that was not needed is the next one's, so that numbers have no gaps. Another CPU may have taken a later one. */
static __always_inline void return_flow(__u32 number)
{
	__sync_val_compare_and_swap(&last_flow, number, number - 1);
}

/*
 * Gives a new storage its flow number, once: of two CPUs that meet here, such as of a packet and of the sweep at the
 * beginning of the log, the second sees the number of the first, or returns its own. A connection whose handshake was
 * seen at the listener takes over its number and counts: before its number is there, and so before counting goes on.
 * Each count is 0 until then, so of two CPUs that bring the same handshake only one changes it.
 */
static __noinline void begin_flow(struct flow_state *flow, struct tcp_sock *tp,
				  struct mptcp_sock *mptcp, __u64 socket_cookie, __u32 flags)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct flow_facts facts = { .socket_cookie = socket_cookie, .flags = flags };
	struct flow_state *handshake;
	__u32 number, is_new;

	connection_of(tp, &facts.connection);
	handshake = bpf_map_lookup_elem(&handshakes, &facts.connection);
	/* A handshake that is followed was at the listener of a process that is asked for. */
	if (!is_wanted(&facts.connection) || !is_in_wanted_cgroup(sk) ||
	    (!handshake && !is_of_wanted_process(tp, mptcp)))
		number = FLOW_IGNORED;
	else if (handshake)
		number = handshake->flow;
	else
		number = 0;
	if (handshake && number != FLOW_IGNORED) {
		__sync_val_compare_and_swap(&flow->packets_seen, 0, handshake->packets_seen);
		__sync_val_compare_and_swap(&flow->packets_due, 0, handshake->packets_due);
		__sync_val_compare_and_swap(&flow->packets_dropped, 0, handshake->packets_dropped);
		__sync_val_compare_and_swap(&flow->events_seen, 0, handshake->events_seen);
		__sync_val_compare_and_swap(&flow->events_dropped, 0, handshake->events_dropped);
		/* The kernel gives the connection the count of its SYN-ACKs, also of those while nothing was observed. */
		__sync_val_compare_and_swap(&flow->retransmits_seen, 0, handshake->retransmits_seen);
		flow->total_retrans_before = tp->total_retrans - handshake->total_retrans;
	} else {
		flow->total_retrans_before = tp->total_retrans;
		/* Duplicates of what was sent again before the log may still be reported. */
		flow->has_retransmitted = tp->total_retrans != 0;
	}
	flow->total_retrans = tp->total_retrans;
	/* As late as can be: what comes between taking a number and storing it is when two CPUs meet. */
	if (*(volatile __u32 *)&flow->flow)
		return;
	is_new = !number;
	if (is_new)
		number = next_flow();
	if (__sync_val_compare_and_swap(&flow->flow, 0, number) != 0) {
		if (is_new)
			return_flow(number);
		return;
	}
	/* A connection whose handshake is followed has moved nothing before. A CPU that comes later does not find it. */
	if (!handshake) {
		flow->bytes_acked_before = tp->bytes_acked;
		flow->bytes_received_before = tp->bytes_received;
	}
	note_bytes(flow, tp);
	if (number == FLOW_IGNORED)
		return;
	if (handshake) {
		facts.flags = (facts.flags & ~FLOW_BEGAN_BEFORE) | FLOW_PASSIVE;
		bpf_map_delete_elem(&handshakes, &facts.connection);
	}
	facts.flow = number;
	flow->congestion_ops = congestion_ops_of(tp);
	write_flow(tp, &facts);
}

/*
 * The owner of a socket is known when a process works on it. The lock of a socket is owned exactly while a process works
 * on it, and then the process that runs here is that one: softirq work on a socket never runs while its lock is owned.
 * A subflow of MPTCP has the owner of its connection.
 */
static __noinline int find_owner(struct __sk_buff *skb, struct sock *sk, __u32 direction, struct owner *owner)
{
	int is_at_work = direction == DIRECTION_OUT && sk->sk_lock.owned;
	struct mptcp_sock *connection = mptcp_connection_of(skb);
	struct task_struct *task = bpf_get_current_task_btf();
	struct owner *known;

	if (!connection) {
		if (is_at_work)
			owner_of(task, owner);
		return is_at_work;
	}
	is_at_work = is_at_work && !(task->flags & PF_KTHREAD);
	known = bpf_sk_storage_get(&mptcp_owners, connection, 0, is_at_work ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	if (!known)
		return 0;
	if (is_at_work && !known->command[0])
		owner_of(task, known);
	*owner = *known;
	return known->command[0] != 0;
}

/*
 * Writes the facts again when more of them became known or congestion control was changed: the
 * options are known when the handshake is done, the owner by find_owner().
 */
static __noinline void learn_more(struct __sk_buff *skb, struct flow_state *flow,
				  struct tcp_sock *tp, __u32 direction)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct flow_facts facts = { .flow = flow->flow };
	__u32 marks = flow->marks, known = marks;

	if (sk->__sk_common.skc_state != TCP_SYN_SENT)
		known |= OPTIONS_KNOWN;
	if (!(marks & OWNER_KNOWN) && find_owner(skb, sk, direction, &facts.owner))
		known |= OWNER_KNOWN;
	if (known == marks && flow->congestion_ops == congestion_ops_of(tp))
		return;
	__sync_fetch_and_or(&flow->marks, known);
	flow->congestion_ops = congestion_ops_of(tp);
	facts.socket_cookie = bpf_get_socket_cookie(skb);
	connection_of(tp, &facts.connection);
	write_flow(tp, &facts);
}

#endif
