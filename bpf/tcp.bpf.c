// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The TCP instrument: one record per skb of every TCP socket below a cgroup, at the two sampling
 * points of SIFTR - inbound before TCP processes the segment, outbound after TCP built it - and
 * one per retransmission, change of the congestion state and close.
 *
 * Facts that do not change go once into the flow ring, which is apart from the packet ring so that
 * a flood of packets cannot overwrite them. A hook decides, copies once, counts.
 */
#include "tcp_flow.h"
#include "tcp_state.h"
#include "tcp_handshake.h"
#include "tcp_ending.h"
#include "tcp_event.h"
#include "tcp_duplicates.h"
#include "reader_time.h"

/* ---- packets ---------------------------------------------------------------------------- */

/* FLOW_BEGAN_BEFORE if a connection that is seen for the first time is older than the log, else 0. */
static __always_inline __u32 age_of(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.__sk_common.skc_state == TCP_SYN_SENT ? 0 : FLOW_BEGAN_BEFORE;
}

/* Finds or makes the storage of a connection's socket. */
static __noinline struct flow_state *first_sight(struct __sk_buff *skb, struct bpf_sock *sk,
						 struct tcp_sock *tp)
{
	struct flow_state *flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	/* Two CPUs may create at once; the second finds what the first created. */
	if (!flow)
		flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (flow && !flow->flow)
		begin_flow(flow, tp, mptcp_connection_of(skb), bpf_get_socket_cookie(skb), age_of(tp));
	return flow;
}

static __always_inline int observe(struct __sk_buff *skb, __u32 direction)
{
	const __u16 hook = direction == DIRECTION_IN ? HOOK_TCP_INGRESS : HOOK_TCP_EGRESS;
	const enum place place = direction == DIRECTION_IN ? INBOUND_LANE : SHARED_LANE;
	struct tcp_state_record *record;
	struct hook_counters *account;
	struct bpf_sock *sk, *full;
	const struct sock *kernel_sk;
	struct flow_state *flow;
	struct tcp_sock *tp;
	struct ring_slot slot;
	__u64 flow_seq, time_ns;
	__u32 cpu;

	if (!control.enabled)
		return PASS;
	cpu = bpf_get_smp_processor_id();
	account = account_of(cpu, hook);
	if (!account)
		return PASS;
	/*
	 * The storage of a known connection has all that is needed, and each further look-up is a call
	 * into the kernel. If the socket is a listener now, its storage is that of its former connection.
	 */
	sk = skb->sk;
	flow = sk && sk->state != TCP_LISTEN ? bpf_sk_storage_get(&flows, sk, 0, 0) : 0;
	if (!flow || !flow->flow) {
		full = sk ? bpf_sk_fullsock(sk) : 0;
		/* The kernel's own sockets, which send the resets of closed ports, are raw sockets. */
		tp = full && full->protocol == IPPROTO_TCP && full->type == SOCK_STREAM ?
			     bpf_skc_to_tcp_sock(full) :
			     0;
		if (!tp) {
			count_packet(&account->unowned, direction);
			return PASS;
		}
		if (full->state == TCP_LISTEN)
			return observe_handshake(skb, tp, direction);
		flow = first_sight(skb, full, tp);
		if (!flow) {
			count_packet(&account->seen, direction);
			count_packet(&account->failed, direction);
			return PASS;
		}
	}
	count_packet(&account->seen, direction);
	if (flow->flow == FLOW_IGNORED) {
		count_packet(&account->filtered, direction);
		return PASS;
	}
	flow_seq = __sync_fetch_and_add(&flow->packets_seen, 1) + 1;
	if (direction == DIRECTION_IN && flow->has_retransmitted)
		note_duplicates(skb, flow);
	/* Thinned out by number: decided before the cache lines of the socket are read. */
	if (!options.on_change && flow->marks == ALL_KNOWN && !is_nth(flow->flow, flow_seq))
		goto end;
	tp = tcp_sock_of(sk);
	kernel_sk = tp ? sock_of(skb, tp) : 0;
	if (!kernel_sk) {
		count_packet(&account->failed, direction);
		return PASS;
	}
	if (flow->marks != ALL_KNOWN || flow->congestion_ops != congestion_ops_of(tp))
		learn_more(skb, flow, tp, direction);
	if (thins()) {
		if (!is_due(flow, tp, flow_seq))
			goto end;
		count_packet(&account->due, direction);
		count(&flow->packets_due);
	}
	/* Read before the record is filled: reading the clock waits for every load before it. */
	time_ns = bpf_ktime_get_ns();
	record = reserve_state(cpu, hook, place, &slot);
	if (record) {
		record->time_ns = time_ns;
		record->flow_seq = flow_seq;
		record->flow = flow->flow;
		fill_state(record, tp, kernel_sk);
		fill_packet(record, skb, direction);
		/* Stored only with a record: a change whose record was dropped is still due. */
		flow->last_cwnd_segments = record->cwnd_segments;
		flow->last_ssthresh_segments = record->ssthresh_segments;
		commit_state(record, place, &slot);
	} else {
		count_packet(&account->dropped, direction);
		count(&flow->packets_dropped);
	}
end:
	/* The packet found the socket while another CPU closed it: the account must include it. */
	if (*(volatile __u32 *)&flow->has_ended)
		write_flow_end(flow, FLOW_END_DESTROYED, flow->ending);
	return PASS;
}

SEC("cgroup_skb/ingress")
int tcp_ingress(struct __sk_buff *skb)
{
	return observe(skb, DIRECTION_IN);
}

SEC("cgroup_skb/egress")
int tcp_egress(struct __sk_buff *skb)
{
	return observe(skb, DIRECTION_OUT);
}

/* ---- events ----------------------------------------------------------------------------- */

/* Kernels that know the flag AE, 0x100, keep the flags in 16 bits; older kernels keep them in 8. */
static __always_inline __u16 flags_of(const struct tcp_skb_cb *cb)
{
	__u16 wide = 0;
	__u8 narrow = 0;

	if (bpf_core_field_size(cb->tcp_flags) == sizeof(wide)) {
		bpf_core_read(&wide, sizeof(wide), &cb->tcp_flags);
		return wide;
	}
	bpf_core_read(&narrow, sizeof(narrow), &cb->tcp_flags);
	return narrow;
}

/*
 * Counts the segments of a retransmission, whether or not it gets a record. The kernel holds the socket's
 * lock, so plain counts do. When a retransmission fails, the kernel may have counted it (a filter or a full
 * queue of this host dropped the packet) or not (no route, no memory, or the original still waits in this
 * host's queue).
 */
static __always_inline void count_retransmit(struct flow_state *flow, struct tcp_sock *tp, __u32 segments, int error)
{
	__u32 before = flow->total_retrans;

	flow->total_retrans = tp->total_retrans;
	if (!error) {
		flow->has_retransmitted = 1;
		flow->retransmits_seen += segments;
		/*
		 * The kernel counts before it sends: in a flow that began with this packet, `before` has the
		 * segments already.
		 */
		if (flow->total_retrans - before < segments)
			flow->total_retrans_before -= segments - (flow->total_retrans - before);
	} else if (flow->total_retrans != before) {
		flow->retransmits_failed += segments;
	} else {
		flow->retransmits_refused++;
	}
}

/* While nothing is observed, retransmissions count like those before the log. */
static __always_inline void skip_retransmit(struct flow_state *flow, struct tcp_sock *tp)
{
	__u32 before = flow->total_retrans;

	flow->total_retrans = tp->total_retrans;
	flow->total_retrans_before += flow->total_retrans - before;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(tcp_retransmit, const struct sock *sk, const struct sk_buff *skb)
{
	struct tcp_skb_cb *cb = (void *)skb->cb;
	struct tcp_state_record *record;
	struct flow_state *flow;
	struct event event;
	struct tcp_sock *tp;
	__u32 segments;
	int error;

	tp = bpf_skc_to_tcp_sock((void *)sk);
	if (!tp)
		return 0;
	flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);
	if (!control.enabled) {
		if (flow)
			skip_retransmit(flow, tp);
		return 0;
	}
	segments = BPF_CORE_READ(cb, tcp_gso_segs) ?: 1;
	error = REPORTS_FAILED_RETRANSMITS ? (int)ctx[2] : 0;
	if (flow && flow->flow)
		count_retransmit(flow, tp, segments, error);
	if (error || !begin_event(&event, flow, HOOK_TCP_RETRANSMIT, SHARED_LANE))
		return 0;
	fill_event(&event, tp, EVENT_RETRANSMIT);
	record = event.record;
	record->direction = DIRECTION_OUT;
	record->pkt_seq = BPF_CORE_READ(cb, seq);
	/* As in the header, which is not built yet. The ack_seq of the sk_buff is for received segments. */
	record->pkt_ack = tp->rcv_nxt;
	record->pkt_flags = flags_of(cb);
	/* SYN and FIN take a sequence number each and carry no payload. */
	record->payload_bytes = BPF_CORE_READ(cb, end_seq) - record->pkt_seq -
				(record->pkt_flags & 1) - ((record->pkt_flags >> 1) & 1);
	record->gso_segs = segments;
	commit_state(record, SHARED_LANE, &event.slot);
	return 0;
}

/*
 * A SYN-ACK that is sent again. Most handshakes have no socket yet, so their flow is found by addresses and
 * ports. A connection that was opened by TCP Fast Open has a socket.
 */
SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(tcp_retransmit_synack, const struct sock *sk, const struct request_sock *request)
{
	const struct tcp_request_sock *handshake = (const void *)request;
	const struct sock_common *common = &request->__req_common;
	struct connection_key connection = {};
	struct tcp_state_record *record;
	struct flow_state *flow;
	struct event event;

	if (!control.enabled)
		return 0;
	if (sk->__sk_common.skc_state == TCP_LISTEN) {
		ends_of(common, &connection);
		connection.local_port = common->skc_num;
		flow = bpf_map_lookup_elem(&handshakes, &connection);
	} else {
		flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);
	}
	if (flow) {
		__sync_fetch_and_add(&flow->retransmits_seen, 1);
		__sync_fetch_and_add(&flow->total_retrans, 1);
	}
	if (!begin_event(&event, flow, HOOK_TCP_RETRANSMIT, SHARED_LANE))
		return 0;
	record = event.record;
	fill_no_state(record);
	describe_event(&event, EVENT_RETRANSMIT);
	record->direction = DIRECTION_OUT;
	record->pkt_seq = BPF_CORE_READ(handshake, snt_isn);
	record->pkt_ack = BPF_CORE_READ(handshake, rcv_isn) + 1;
	record->pkt_flags = FLAG_SYN | FLAG_ACK;
	record->gso_segs = 1;
	commit_state(record, SHARED_LANE, &event.slot);
	return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(tcp_congestion_state, struct sock *sk, __u8 ca_state)
{
	struct event event;
	struct tcp_sock *tp;

	if (!control.enabled)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || BPF_CORE_READ_BITFIELD(tp, inet_conn.icsk_ca_state) == ca_state ||
	    !begin_event_of(&event, sk, HOOK_TCP_CONGESTION_STATE, SHARED_LANE))
		return 0;
	fill_event(&event, tp, EVENT_CONGESTION_STATE);
	/* The tracepoint fires before the change. */
	event.record->ca_state = ca_state;
	commit_state(event.record, SHARED_LANE, &event.slot);
	return 0;
}

/* A socket that connects again, for example after a refusal, begins another flow. */
static __noinline void end_former_flow(const struct sock *sk)
{
	struct flow_state *flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);

	if (!flow)
		return;
	write_flow_end(flow, FLOW_END_DESTROYED, flow->ending);
	bpf_sk_storage_delete(&flows, (void *)sk);
}

/*
 * Makes a completed handshake a connection at once. Its next packet may come hours later: by then the
 * handshake would count as failed.
 */
static __noinline void take_over_handshake(const struct sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock((void *)sk);
	struct connection_key connection = {};
	struct flow_state *flow;

	if (!tp)
		return;
	connection_of(tp, &connection);
	if (!bpf_map_lookup_elem(&handshakes, &connection))
		return;
	flow = bpf_sk_storage_get(&flows, (void *)sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (flow && !flow->flow)
		begin_flow(flow, tp, 0, bpf_get_socket_cookie((void *)sk), 0);
}

/* The last state of a connection, as it was before it became CLOSED. */
static __always_inline int observe_close(const struct sock *sk, int old_state, int new_state,
					 const int is_second)
{
	struct flow_state *flow;
	struct event event;
	struct tcp_sock *tp;

	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	/* Also while nothing is observed: later packets must not be reported as the former flow. */
	if (new_state == TCP_SYN_SENT)
		end_former_flow(sk);
	if (new_state == TCP_LISTEN && !is_second)
		note_listener_owner(bpf_get_current_task_btf(), (void *)sk, 1);
	/* Before Linux 6.15 a connection that is accepted came here as LISTEN to SYN_RECV with its listener's cookie. */
	if (old_state == TCP_LISTEN && new_state == TCP_CLOSE)
		note_listener_end(sk);
	if (control.enabled && old_state == TCP_SYN_RECV && new_state == TCP_ESTABLISHED)
		take_over_handshake(sk);
	if (new_state != TCP_CLOSE || old_state == TCP_LISTEN)
		return 0;
	flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);
	tp = bpf_skc_to_tcp_sock((void *)sk);
	if (flow && tp) {
		note_ending(flow, tp, old_state);
		note_bytes(flow, tp);
	}
	if (!control.enabled)
		return 0;
	/* With a flow, the program that runs first writes; without one, tcp_close counts. */
	if (flow ? __sync_lock_test_and_set(&flow->has_closed, 1) : is_second)
		return 0;
	/* Nothing is sent again after this, and tcp_disconnect() clears the kernel's count. */
	if (flow && tp)
		flow->total_retrans = tp->total_retrans;
	if (!tp || !begin_event_of(&event, sk, HOOK_TCP_CLOSE, FLOW_LANE))
		return 0;
	fill_event(&event, tp, EVENT_CLOSE);
	event.record->state = old_state;
	event.record->app_limited |= ending_at_close(event.flow, sk, old_state) << 4;
	commit_state(event.record, FLOW_LANE, &event.slot);
	return 0;
}

/*
 * Two programs for one event. A softirq that interrupts one of them may close another socket. For that
 * event the kernel does not run the interrupted program again, but it runs the other.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_close, const struct sock *sk, int old_state, int new_state)
{
	return observe_close(sk, old_state, new_state, 0);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_close_2, const struct sock *sk, int old_state, int new_state)
{
	return observe_close(sk, old_state, new_state, 1);
}

/* Writes the flow's account when the socket ends; each packet that is seen afterwards writes it again. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(tcp_destroy, struct sock *sk)
{
	struct flow_state *flow;

	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!flow)
		return 0;
	__sync_lock_test_and_set(&flow->has_ended, 1);
	write_flow_end(flow, FLOW_END_DESTROYED, flow->ending);
	return 0;
}

/* ---- processes -------------------------------------------------------------------------- */

/* Notes the sockets of wanted processes. Attached only when a log is limited to processes. */
SEC("cgroup/sock_create")
int note_new_socket(struct bpf_sock *sk)
{
	if (is_wanted_process(bpf_get_current_task_btf()))
		bpf_sk_storage_get(&wanted_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	return PASS;
}

/* Before the log begins: notes the sockets that wanted processes hold, including listeners. */
SEC("iter/task_file")
int note_held_sockets(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket;

	if (!task || !file || !is_wanted_process(task))
		return 0;
	socket = bpf_sock_from_file(file);
	if (socket && socket->sk &&
	    (socket->sk->sk_protocol == IPPROTO_TCP || socket->sk->sk_protocol == IPPROTO_MPTCP))
		bpf_sk_storage_get(&wanted_sockets, socket->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	return 0;
}

/* ---- sweeps ----------------------------------------------------------------------------- */

/* Subflows of MPTCP have no file: at its next packet, a subflow finds its owner in this map. */
static __always_inline void note_mptcp_owner(struct task_struct *task, struct sock *sk)
{
	struct owner *owner = bpf_sk_storage_get(&mptcp_owners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (owner)
		owner_of(task, owner);
}

/* When the log begins: finds the connections that processes hold, in every network namespace. */
SEC("iter/task_file")
int find_flows(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct flow_state *flow;
	struct socket *socket;
	struct tcp_sock *tp;
	struct sock *sk;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket || !(sk = socket->sk))
		return 0;
	if (HAS_MPTCP && sk->sk_protocol == IPPROTO_MPTCP) {
		note_mptcp_owner(task, sk);
		/* The handshakes come to its first subflow. */
		if (sk->__sk_common.skc_state == TCP_LISTEN)
			tell_listener_owner(BPF_CORE_READ((struct mptcp_sock *)sk, first, __sk_common.skc_cookie.counter),
					    bpf_sk_storage_get(&mptcp_owners, sk, 0, 0));
		return 0;
	}
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || sk->__sk_common.skc_state == TCP_CLOSE)
		return 0;
	if (sk->__sk_common.skc_state == TCP_LISTEN) {
		note_listener_owner(task, sk, 0);
		tell_listener_owner(bpf_get_socket_cookie(sk), bpf_sk_storage_get(&listener_owners, sk, 0, 0));
		return 0;
	}
	flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!flow || flow->flow == FLOW_IGNORED)
		return 0;
	if (!flow->flow)
		begin_flow(flow, tp, 0, bpf_get_socket_cookie(sk), age_of(tp));
	if (!flow->flow || flow->flow == FLOW_IGNORED || flow->marks & OWNER_KNOWN)
		return 0;
	struct flow_facts facts = { .socket_cookie = bpf_get_socket_cookie(sk), .flow = flow->flow };

	__sync_fetch_and_or(&flow->marks, OWNER_KNOWN);
	connection_of(tp, &facts.connection);
	owner_of(task, &facts.owner);
	write_flow(tp, &facts);
	return 0;
}

/* Of the running sweep. Not on the stack, where the verifier would track its values. */
__u32 handshakes_ended;

static long end_silent_handshake(void *map, const struct connection_key *connection,
				 struct flow_state *handshake, void *context)
{
	__s64 silence_ns = bpf_ktime_get_ns() - handshake->last_packet_ns;

	if (silence_ns <= (__s64)options.handshake_silence_ns)
		return 0;
	end_handshake(connection, handshake);
	return ++handshakes_ended >= HANDSHAKES_ENDED_MAX;
}

/*
 * Ends the handshakes that failed silently; the reader runs it at intervals. Returns whether there may
 * be more.
 */
SEC("syscall")
int end_silent_handshakes(void *context)
{
	handshakes_ended = 0;
	bpf_for_each_map_elem(&handshakes, end_silent_handshake, 0, 0);
	return handshakes_ended >= HANDSHAKES_ENDED_MAX;
}

/* When the log ends, after the hooks are detached: writes the accounts of the flows that live on. */
static __always_inline void sum_up(struct flow_state *flow, struct sock *sk)
{
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;

	if (flow && tp && !__sync_lock_test_and_set(&flow->is_summed_up, 1)) {
		note_bytes(flow, tp);
		write_flow_end(flow, 0, ending_up_to_now(flow, tp));
	}
}

SEC("iter/bpf_sk_storage_map")
int sum_up_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	if (ctx->sk)
		sum_up(ctx->value, ctx->sk);
	return 0;
}

/* As sum_up_flows, for kernels without an iterator over socket storage: the sockets that processes hold. */
SEC("iter/task_file")
int sum_up_held_flows(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct socket *socket;

	if (!ctx->task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (socket && socket->sk)
		sum_up(bpf_sk_storage_get(&flows, socket->sk, 0, 0), socket->sk);
	return 0;
}

/* For the same kernels: all connections of a network namespace, including those whose process has ended. */
SEC("iter/tcp")
int sum_up_flows_of_namespace(struct bpf_iter__tcp *ctx)
{
	struct sock_common *any = ctx->sk_common;
	struct tcp_sock *tp = any ? bpf_skc_to_tcp_sock(any) : 0;

	if (tp)
		sum_up(bpf_sk_storage_get(&flows, tp, 0, 0), (void *)tp);
	return 0;
}

/* Brings the records into the object's type information, which the layout test reads. */
union {
	struct record_header header;
	struct tcp_state_record state;
	struct tcp_flow_record flow;
	struct tcp_flow_end_record flow_end;
	struct reader_time reader_time;
} *described_records;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
