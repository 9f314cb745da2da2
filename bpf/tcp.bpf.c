// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The TCP instrument: one record per skb of every TCP socket below a cgroup, at the two sampling
 * points of SIFTR - inbound before TCP processes the segment, outbound after TCP built it - and
 * one per retransmission, change of the congestion state and close.
 *
 * Facts that do not change go once into the flow ring, which is apart from the packet ring so that
 * a flood of packets cannot overwrite them. A hook decides, copies once, counts.
 */
#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "parse.h"
#include "ring.h"

#define PASS 1
#define TCP_INFINITE_SSTHRESH 0x7fffffff
#define FLAG_SYN 0x02
#define FLAG_ACK 0x10
#define CGROUP_DEPTH_MAX 32

/* Set by the loader before the verifier looks, so that what is not asked for costs nothing. */
const volatile struct tcp_options options SEC(".rodata.options");
#define packet_layout options.packet_layout
#define flow_layout options.flow_layout

/* Switched while attached. */
volatile __u32 enabled SEC(".data.control") = 1;
__u32 last_flow;

/* max_entries and value_size of the rings are the loader's: one lane a CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, LANE_HEADER_BYTES + LANE_SLACK_BYTES);
} packet_ring SEC(".maps"), flow_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane_readers);
} packet_readers SEC(".maps"), flow_readers SEC(".maps");

/* Element cpu * HOOK_COUNT + hook. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, HOOK_COUNT);
	__type(key, __u32);
	__type(value, struct hook_counters);
} hook_accounts SEC(".maps");

#define FLOW_IGNORED (~0U)
/* What is known of a flow beyond its addresses. */
#define OWNER_KNOWN 1u
#define OPTIONS_KNOWN 2u
#define ALL_KNOWN (OWNER_KNOWN | OPTIONS_KNOWN)

/* What we keep at a socket. Both directions may run at once on two CPUs: atomics only. */
struct flow_state {
	__u64 packets_seen;
	__u64 packets_filtered;
	__u64 packets_thinned;
	__u64 packets_dropped;
	__u64 events_seen;
	__u64 events_dropped;
	__u32 flow;          /* 0: being made; FLOW_IGNORED: the filters do not want it */
	__u32 marks;
	__u32 last_cwnd_segments;
	__u32 last_ssthresh_segments;
	__u64 congestion_ops;  /* that of the facts written last */
	__u32 syn_seq;         /* of a handshake: tells a SYN that comes again from another connection's */
	__u32 has_ended;       /* its account was written */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow_state);
} flows SEC(".maps");

/* Aligned so that an address on the stack can be compared in two words. */
struct connection_key {
	__u8 local_address[16];
	__u8 remote_address[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 netns_inode;
} __attribute__((aligned(8)));

/* Passive opens before they have a socket of their own. A SYN flood evicts the oldest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct connection_key);
	__type(value, struct flow_state);
} handshakes SEC(".maps");

static __always_inline struct hook_counters *account_of(__u32 cpu, __u32 hook)
{
	__u32 key = cpu * HOOK_COUNT + hook;

	return bpf_map_lookup_elem(&hook_accounts, &key);
}

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

/* ---- flow facts ------------------------------------------------------------------------- */

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
	return port_matches && host_matches;
}

static __noinline int is_in_wanted_cgroup(struct sock *sk)
{
	struct cgroup *cgroup = sk->sk_cgrp_data.cgroup;

	if (!options.cgroup_id)
		return 1;
	for (int depth = 0; depth < CGROUP_DEPTH_MAX && cgroup; depth++) {
		if (cgroup->kn->id == options.cgroup_id)
			return 1;
		/* self is the first member of struct cgroup. */
		cgroup = bpf_core_cast(cgroup->self.parent, struct cgroup);
	}
	return 0;
}

static __always_inline void connection_of(struct sock *sk, struct connection_key *connection)
{
	__u32 *local = (__u32 *)connection->local_address;
	__u32 *remote = (__u32 *)connection->remote_address;

	if (sk->__sk_common.skc_family == AF_INET) {
		map_ipv4(connection->local_address, sk->__sk_common.skc_rcv_saddr);
		map_ipv4(connection->remote_address, sk->__sk_common.skc_daddr);
	} else {
		for (int i = 0; i < 4; i++) {
			local[i] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			remote[i] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[i];
		}
	}
	connection->local_port = sk->__sk_common.skc_num;
	connection->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	connection->netns_inode = sk->__sk_common.skc_net.net->ns.inum;
}

static __always_inline int is_mapped_ipv4(const __u8 address[16])
{
	const __u32 *words = (const __u32 *)address;

	return words[0] == 0 && words[1] == 0 && words[2] == bpf_htonl(0xffff);
}

static __always_inline struct record_header *reserve_in_flow_ring(__u32 length_bytes, __u16 kind,
								  __u64 *position)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hook_counters *account = account_of(cpu, HOOK_TCP_FLOW);
	void *lane = bpf_map_lookup_elem(&flow_ring, &cpu);
	struct lane_readers *readers = bpf_map_lookup_elem(&flow_readers, &cpu);
	struct record_header *record;

	if (!account || !lane)
		return 0;
	count(&account->seen);
	record = ring_reserve(lane, readers, &flow_layout, length_bytes, kind, HOOK_TCP_FLOW,
			      position);
	if (!record)
		count(&account->dropped);
	return record;
}

struct owner {
	__u32 pid;
	char command[16];
};

struct flow_facts {
	__u32 flow;
	__u32 flags;
	__u64 socket_cookie;
	struct owner owner;
	struct connection_key connection;
};

static __noinline void write_flow(struct tcp_sock *tp, const struct flow_facts *facts)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	const struct tcp_congestion_ops *congestion_control = tp->inet_conn.icsk_ca_ops;
	struct tcp_flow_record *record;
	__u64 position;
	__u32 flags = facts->flags;

	record = (void *)reserve_in_flow_ring(sizeof(*record), RECORD_TCP_FLOW, &position);
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
	if (tp->ecn_flags & TCP_ECN_OK)
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
	if (bpf_probe_read_kernel(record->congestion_control, 16, congestion_control->name))
		__builtin_memset(record->congestion_control, 0, 16);
	ring_commit(&record->header, &flow_layout, position);
}

static __noinline void write_flow_end(const struct flow_state *flow, __u32 flags)
{
	struct tcp_flow_end_record *record;
	__u64 position;

	if (flow->flow == 0 || flow->flow == FLOW_IGNORED)
		return;
	record = (void *)reserve_in_flow_ring(sizeof(*record), RECORD_TCP_FLOW_END, &position);
	if (!record)
		return;
	record->time_ns = bpf_ktime_get_ns();
	record->packets_seen = flow->packets_seen;
	record->packets_filtered = flow->packets_filtered;
	record->packets_thinned = flow->packets_thinned;
	record->packets_dropped = flow->packets_dropped;
	record->events_seen = flow->events_seen;
	record->events_dropped = flow->events_dropped;
	record->flow = flow->flow;
	record->flags = flags;
	ring_commit(&record->header, &flow_layout, position);
}

static __always_inline __u32 next_flow(void)
{
	return __sync_fetch_and_add(&last_flow, 1) + 1;
}

/* Congestion control may be chosen at any time. */
static __always_inline __u64 congestion_ops_of(struct tcp_sock *tp)
{
	return (__u64)tp->inet_conn.icsk_ca_ops;
}

/*
 * Gives a new storage its flow number, once: the first of two CPUs that meet here takes a number,
 * the other sees it. A connection whose handshake was seen at the listener takes over its number
 * and counts.
 */
static __noinline void begin_flow(struct flow_state *flow, struct tcp_sock *tp,
				  __u64 socket_cookie, __u32 flags)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct flow_facts facts = { .socket_cookie = socket_cookie, .flags = flags };
	struct flow_state *handshake;
	__u32 number;

	connection_of(sk, &facts.connection);
	handshake = bpf_map_lookup_elem(&handshakes, &facts.connection);
	if (!is_wanted(&facts.connection) || !is_in_wanted_cgroup(sk))
		number = FLOW_IGNORED;
	else if (handshake)
		number = handshake->flow;
	else
		number = next_flow();
	if (__sync_val_compare_and_swap(&flow->flow, 0, number) != 0)
		return;
	if (number == FLOW_IGNORED)
		return;
	if (handshake) {
		__sync_fetch_and_add(&flow->packets_seen, handshake->packets_seen);
		__sync_fetch_and_add(&flow->packets_thinned, handshake->packets_thinned);
		__sync_fetch_and_add(&flow->packets_dropped, handshake->packets_dropped);
		facts.flags = (facts.flags & ~FLOW_BEGAN_BEFORE) | FLOW_PASSIVE;
		bpf_map_delete_elem(&handshakes, &facts.connection);
	}
	facts.flow = number;
	flow->congestion_ops = congestion_ops_of(tp);
	write_flow(tp, &facts);
}

/*
 * Writes the facts again when more of them became known or congestion control was changed: the
 * options are known when the handshake is done, the owner when a process works on the socket. The
 * lock of a socket is owned exactly while a process works on it, and then the process that runs
 * here is that one: softirq work on a socket never runs while its lock is owned.
 */
static __noinline void learn_more(struct __sk_buff *skb, struct flow_state *flow,
				  struct tcp_sock *tp, __u32 direction)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct flow_facts facts = { .flow = flow->flow };
	__u32 marks = flow->marks, known = marks;

	if (sk->__sk_common.skc_state != TCP_SYN_SENT)
		known |= OPTIONS_KNOWN;
	if (direction == DIRECTION_OUT && sk->sk_lock.owned && !(marks & OWNER_KNOWN)) {
		known |= OWNER_KNOWN;
		facts.owner.pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(facts.owner.command, sizeof(facts.owner.command));
	}
	if (known == marks && flow->congestion_ops == congestion_ops_of(tp))
		return;
	flow->marks = known;
	flow->congestion_ops = congestion_ops_of(tp);
	facts.socket_cookie = bpf_get_socket_cookie(skb);
	connection_of(sk, &facts.connection);
	write_flow(tp, &facts);
}

/* ---- state records ---------------------------------------------------------------------- */

static __always_inline struct tcp_state_record *
reserve_state(__u32 cpu, __u16 hook, __u64 *position)
{
	void *lane = bpf_map_lookup_elem(&packet_ring, &cpu);
	struct lane_readers *readers = bpf_map_lookup_elem(&packet_readers, &cpu);

	if (!lane)
		return 0;
	return (void *)ring_reserve(lane, readers, &packet_layout,
				    sizeof(struct tcp_state_record), RECORD_TCP_STATE, hook,
				    position);
}

static __always_inline void fill_state(struct tcp_state_record *record, struct tcp_sock *tp)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;

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
}

/* A passive open has no tcp_sock yet. */
static __always_inline void fill_no_state(struct tcp_state_record *record)
{
	__u32 cwnd = offsetof(struct tcp_state_record, cwnd_segments);
	__u32 packet = offsetof(struct tcp_state_record, pkt_seq);

	record->pacing_rate_Bps = 0;
	__builtin_memset((__u8 *)record + cwnd, 0, packet - cwnd);
	/* The kernel's own words for "none yet", which readers know from other records. */
	record->min_rtt_us = ~0U;
	record->ssthresh_segments = TCP_INFINITE_SSTHRESH;
	record->state = TCP_NEW_SYN_RECV;
	record->ca_state = 0;
	record->window_scales = 0;
	record->app_limited = 0;
}

static __always_inline void fill_packet(struct tcp_state_record *record, struct __sk_buff *skb,
					__u8 direction)
{
	struct cursor at = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	void *start = at.next;
	struct tcphdr *tcp = parse_tcp(&at, skb->protocol);
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

/* Thinning: is this packet of the flow one that the log wants? */
static __always_inline int is_due(const struct flow_state *flow, struct tcp_sock *tp, __u64 flow_seq)
{
	if (options.on_change && (flow->last_cwnd_segments != tp->snd_cwnd ||
				  flow->last_ssthresh_segments != tp->snd_ssthresh))
		return 1;
	return options.packets_per_log > 1 ? flow_seq % options.packets_per_log == 0 : !options.on_change;
}

/* ---- packets ---------------------------------------------------------------------------- */

/*
 * A segment of a passive open: the listener stands for a connection that has no socket yet, so
 * the flow is found by its addresses.
 */
static __noinline int observe_handshake(struct __sk_buff *skb, struct tcp_sock *listener,
					__u32 direction)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u16 hook = direction == DIRECTION_IN ? HOOK_TCP_INGRESS : HOOK_TCP_EGRESS;
	struct cursor at = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct hook_counters *account = account_of(cpu, hook);
	struct flow_facts facts = { .flags = FLOW_PASSIVE };
	struct connection_key *connection = &facts.connection;
	struct flow_state *flow, fresh = {};
	struct tcp_state_record *record;
	struct ipv6hdr *ip6 = at.next;
	struct iphdr *ip = at.next;
	struct tcphdr *tcp;
	__u8 *source, *destination;
	__u32 flags, syn_seq;
	__u64 position;

	if (!account)
		return PASS;
	tcp = parse_tcp(&at, skb->protocol);
	if (!tcp) {
		count(&account->unowned);
		return PASS;
	}
	source = direction == DIRECTION_IN ? connection->remote_address : connection->local_address;
	destination = direction == DIRECTION_IN ? connection->local_address
						: connection->remote_address;
	if (skb->protocol == bpf_htons(0x0800)) {
		if ((void *)(ip + 1) > at.end)
			return PASS;
		map_ipv4(source, ip->saddr);
		map_ipv4(destination, ip->daddr);
	} else {
		if ((void *)(ip6 + 1) > at.end)
			return PASS;
		__builtin_memcpy(source, &ip6->saddr, 16);
		__builtin_memcpy(destination, &ip6->daddr, 16);
	}
	connection->local_port = bpf_ntohs(direction == DIRECTION_IN ? tcp->dest : tcp->source);
	connection->remote_port = bpf_ntohs(direction == DIRECTION_IN ? tcp->source : tcp->dest);
	connection->netns_inode = listener->inet_conn.icsk_inet.sk.__sk_common.skc_net.net->ns.inum;

	if (!is_wanted(connection)) {
		count(&account->seen);
		count(&account->filtered);
		return PASS;
	}
	flow = bpf_map_lookup_elem(&handshakes, connection);
	flags = tcp_header_flags(tcp);
	if (!flow && !(flags & FLAG_SYN)) {
		/* It belongs to a connection that is gone, or was never there. */
		count(&account->unowned);
		return PASS;
	}
	count(&account->seen);
	syn_seq = direction == DIRECTION_IN ? bpf_ntohl(tcp->seq) : bpf_ntohl(tcp->ack_seq) - 1;
	if (flow && direction == DIRECTION_IN && (flags & (FLAG_SYN | FLAG_ACK)) == FLAG_SYN &&
	    syn_seq != flow->syn_seq) {
		/* The handshake before came to nothing; this is another connection between the same ends. */
		write_flow_end(flow, FLOW_END_DESTROYED);
		flow = 0;
	}
	if (!flow) {
		fresh.flow = next_flow();
		fresh.syn_seq = syn_seq;
		if (bpf_map_update_elem(&handshakes, connection, &fresh, BPF_ANY) ||
		    !(flow = bpf_map_lookup_elem(&handshakes, connection))) {
			count(&account->failed);
			return PASS;
		}
		facts.flow = fresh.flow;
		write_flow(listener, &facts);
	}
	__u64 flow_seq = __sync_fetch_and_add(&flow->packets_seen, 1) + 1;

	/* There is no window that could change yet: --on-change alone logs nothing here. */
	if (options.packets_per_log > 1 ? flow_seq % options.packets_per_log != 0 : options.on_change) {
		count(&account->thinned);
		count(&flow->packets_thinned);
		return PASS;
	}
	record = reserve_state(cpu, hook, &position);
	if (!record) {
		count(&account->dropped);
		count(&flow->packets_dropped);
		return PASS;
	}
	record->time_ns = bpf_ktime_get_ns();
	record->flow_seq = flow_seq;
	record->flow = flow->flow;
	fill_no_state(record);
	fill_packet(record, skb, direction);
	ring_commit(&record->header, &packet_layout, position);
	return PASS;
}

/* Whether a connection that is met for the first time is older than the log. */
static __always_inline __u32 age_of(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.__sk_common.skc_state == TCP_SYN_SENT ? 0 : FLOW_BEGAN_BEFORE;
}

/* Finds or makes the storage of a connection's socket. */
static __noinline struct flow_state *first_sight(struct __sk_buff *skb, struct bpf_sock *sk,
						 struct tcp_sock *tp)
{
	struct flow_state *flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	/* Two CPUs may create at once; the one that came second finds what the first made. */
	if (!flow)
		flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (flow && !flow->flow)
		begin_flow(flow, tp, bpf_get_socket_cookie(skb), age_of(tp));
	return flow;
}

static __always_inline int observe(struct __sk_buff *skb, __u32 direction)
{
	const __u16 hook = direction == DIRECTION_IN ? HOOK_TCP_INGRESS : HOOK_TCP_EGRESS;
	struct tcp_state_record *record;
	struct hook_counters *account;
	struct flow_state *flow;
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	__u64 position, flow_seq;
	__u32 cpu;

	if (!enabled)
		return PASS;
	cpu = bpf_get_smp_processor_id();
	account = account_of(cpu, hook);
	if (!account)
		return PASS;
	sk = skb->sk;
	if (sk)
		sk = bpf_sk_fullsock(sk);
	tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	if (!tp) {
		count(&account->unowned);
		return PASS;
	}
	if (sk->state == TCP_LISTEN)
		return observe_handshake(skb, tp, direction);

	count(&account->seen);
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!flow || !flow->flow) {
		flow = first_sight(skb, sk, tp);
		if (!flow) {
			count(&account->failed);
			return PASS;
		}
	}
	if (flow->flow == FLOW_IGNORED) {
		count(&account->filtered);
		return PASS;
	}
	flow_seq = __sync_fetch_and_add(&flow->packets_seen, 1) + 1;
	if (flow->marks != ALL_KNOWN || flow->congestion_ops != congestion_ops_of(tp))
		learn_more(skb, flow, tp, direction);
	if ((options.packets_per_log > 1 || options.on_change) && !is_due(flow, tp, flow_seq)) {
		count(&account->thinned);
		count(&flow->packets_thinned);
	} else if ((record = reserve_state(cpu, hook, &position))) {
		record->time_ns = bpf_ktime_get_ns();
		record->flow_seq = flow_seq;
		record->flow = flow->flow;
		fill_state(record, tp);
		fill_packet(record, skb, direction);
		/* What was logged, not what was looked at: a change that found no room is still due. */
		flow->last_cwnd_segments = record->cwnd_segments;
		flow->last_ssthresh_segments = record->ssthresh_segments;
		ring_commit(&record->header, &packet_layout, position);
	} else {
		count(&account->dropped);
		count(&flow->packets_dropped);
	}
	/* A packet that found the socket while another CPU closed it: the account must have it, too. */
	if (*(volatile __u32 *)&flow->has_ended)
		write_flow_end(flow, FLOW_END_DESTROYED);
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

/* The flow of a socket for an event, or NULL when it is none of ours. */
static __always_inline struct flow_state *flow_of_event(const struct sock *sk,
							struct hook_counters *account)
{
	struct flow_state *flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);

	if (!flow || !flow->flow) {
		count(&account->unowned);
		return 0;
	}
	count(&account->seen);
	if (flow->flow == FLOW_IGNORED) {
		count(&account->filtered);
		return 0;
	}
	count(&flow->events_seen);
	return flow;
}

static __always_inline void fill_event(struct tcp_state_record *record, struct flow_state *flow,
				       __u8 event)
{
	record->time_ns = bpf_ktime_get_ns();
	record->flow_seq = flow->packets_seen;
	record->flow = flow->flow;
	record->event = event;
	record->direction = DIRECTION_NONE;
	record->pkt_seq = record->pkt_ack = record->payload_bytes = 0;
	record->pkt_flags = 0;
	record->gso_segs = 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(tcp_retransmit, const struct sock *sk, const struct sk_buff *skb)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hook_counters *account = account_of(cpu, HOOK_TCP_RETRANSMIT);
	struct tcp_state_record *record;
	struct flow_state *flow;
	struct tcp_sock *tp;
	__u64 position;

	if (!enabled || !account)
		return 0;
	tp = bpf_skc_to_tcp_sock((void *)sk);
	if (!tp || !(flow = flow_of_event(sk, account)))
		return 0;
	record = reserve_state(cpu, HOOK_TCP_RETRANSMIT, &position);
	if (!record) {
		count(&account->dropped);
		count(&flow->events_dropped);
		return 0;
	}
	fill_state(record, tp);
	fill_event(record, flow, EVENT_RETRANSMIT);
	struct tcp_skb_cb *cb = (void *)skb->cb;

	record->direction = DIRECTION_OUT;
	record->pkt_seq = BPF_CORE_READ(cb, seq);
	record->pkt_ack = BPF_CORE_READ(cb, ack_seq);
	record->pkt_flags = BPF_CORE_READ(cb, tcp_flags);
	/* SYN and FIN take a sequence number each and carry no payload. */
	record->payload_bytes = BPF_CORE_READ(cb, end_seq) - record->pkt_seq -
				(record->pkt_flags & 1) - ((record->pkt_flags >> 1) & 1);
	record->gso_segs = BPF_CORE_READ(cb, tcp_gso_segs) ?: 1;
	ring_commit(&record->header, &packet_layout, position);
	return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(tcp_congestion_state, struct sock *sk, __u8 ca_state)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hook_counters *account = account_of(cpu, HOOK_TCP_CONGESTION_STATE);
	struct tcp_state_record *record;
	struct flow_state *flow;
	struct tcp_sock *tp;
	__u64 position;

	if (!enabled || !account)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || BPF_CORE_READ_BITFIELD(tp, inet_conn.icsk_ca_state) == ca_state)
		return 0;
	flow = flow_of_event(sk, account);
	if (!flow)
		return 0;
	record = reserve_state(cpu, HOOK_TCP_CONGESTION_STATE, &position);
	if (!record) {
		count(&account->dropped);
		count(&flow->events_dropped);
		return 0;
	}
	fill_state(record, tp);
	fill_event(record, flow, EVENT_CONGESTION_STATE);
	/* The tracepoint stands before the change. */
	record->ca_state = ca_state;
	ring_commit(&record->header, &packet_layout, position);
	return 0;
}

/* A socket that connects again, after a refusal say, begins another flow. */
static __noinline void end_former_flow(const struct sock *sk)
{
	struct flow_state *flow = bpf_sk_storage_get(&flows, (void *)sk, 0, 0);

	if (!flow)
		return;
	write_flow_end(flow, FLOW_END_DESTROYED);
	bpf_sk_storage_delete(&flows, (void *)sk);
}

/*
 * The last state of a connection, as it was before it became CLOSED. It goes through the flow
 * ring, where packets cannot overwrite it.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_close, const struct sock *sk, int old_state, int new_state)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hook_counters *account = account_of(cpu, HOOK_TCP_CLOSE);
	void *lane = bpf_map_lookup_elem(&flow_ring, &cpu);
	struct lane_readers *readers = bpf_map_lookup_elem(&flow_readers, &cpu);
	struct tcp_state_record *record;
	struct flow_state *flow;
	struct tcp_sock *tp;
	__u64 position;

	if (!enabled || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (new_state == TCP_SYN_SENT)
		end_former_flow(sk);
	if (!account || !lane || new_state != TCP_CLOSE || old_state == TCP_LISTEN)
		return 0;
	tp = bpf_skc_to_tcp_sock((void *)sk);
	if (!tp || !(flow = flow_of_event(sk, account)))
		return 0;
	record = (void *)ring_reserve(lane, readers, &flow_layout, sizeof(*record),
				      RECORD_TCP_STATE, HOOK_TCP_CLOSE, &position);
	if (!record) {
		count(&account->dropped);
		count(&flow->events_dropped);
		return 0;
	}
	fill_state(record, tp);
	fill_event(record, flow, EVENT_CLOSE);
	record->state = old_state;
	ring_commit(&record->header, &flow_layout, position);
	return 0;
}

/* The flow's account leaves with the socket; what is seen afterwards writes it again. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(tcp_destroy, struct sock *sk)
{
	struct flow_state *flow;

	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!flow)
		return 0;
	__sync_lock_test_and_set(&flow->has_ended, 1);
	write_flow_end(flow, FLOW_END_DESTROYED);
	return 0;
}

/* ---- sweeps ----------------------------------------------------------------------------- */

/* When the log begins: the connections that processes hold, in every network namespace. */
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
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || sk->__sk_common.skc_state == TCP_LISTEN ||
	    sk->__sk_common.skc_state == TCP_CLOSE)
		return 0;
	flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!flow || flow->flow == FLOW_IGNORED)
		return 0;
	if (!flow->flow)
		begin_flow(flow, tp, bpf_get_socket_cookie(sk), age_of(tp));
	if (!flow->flow || flow->flow == FLOW_IGNORED || flow->marks & OWNER_KNOWN)
		return 0;
	struct flow_facts facts = { .socket_cookie = bpf_get_socket_cookie(sk), .flow = flow->flow };

	flow->marks |= OWNER_KNOWN;
	connection_of(sk, &facts.connection);
	facts.owner.pid = task->tgid;
	__builtin_memcpy(facts.owner.command, task->comm, sizeof(facts.owner.command));
	write_flow(tp, &facts);
	return 0;
}

/* When the log ends, after the hooks are off: the accounts of the flows that live on. */
SEC("iter/bpf_sk_storage_map")
int sum_up_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct flow_state *flow = ctx->value;

	if (ctx->sk && flow)
		write_flow_end(flow, 0);
	return 0;
}

/* Brings the records into the object's type information, which the layout test reads. */
union {
	struct record_header header;
	struct tcp_state_record state;
	struct tcp_flow_record flow;
	struct tcp_flow_end_record flow_end;
} *described_records;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
