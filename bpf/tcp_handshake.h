/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Segments of passive opens that have no socket yet: the kernel gives their listener in its place. */
#ifndef PARSHALL_TCP_HANDSHAKE_H
#define PARSHALL_TCP_HANDSHAKE_H

#include "tcp_flow.h"
#include "tcp_listener.h"
#include "tcp_state.h"

/*
 * Whether a segment at a listener is the first that can be seen of a connection: the SYN, or the SYN-ACK if only
 * outbound packets are seen. Otherwise a SYN-ACK of an unknown handshake is a repetition: the handshake made room for
 * others, or is older than the log.
 */
static __always_inline int begins_handshake(__u32 flags, __u32 direction)
{
	if (options.outbound_only)
		return direction == DIRECTION_OUT && flags & FLAG_SYN;
	return direction == DIRECTION_IN &&
	       (flags & (FLAG_SYN | FLAG_ACK | FLAG_RST | FLAG_FIN)) == FLAG_SYN;
}

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
	struct flow_state *flow;
	struct tcp_state_record *record;
	struct ipv6hdr *ip6 = at.next;
	struct iphdr *ip = at.next;
	struct tcphdr *tcp;
	__u8 *source, *destination;
	__u32 flags, syn_seq, begins, gets_cookie = 0;
	struct ring_slot slot;
	__u64 flow_seq, time_ns;

	if (!account)
		return PASS;
	tcp = parse_tcp(skb, &at);
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

	if (!is_wanted(connection) || !is_of_wanted_process(listener, mptcp_connection_of(skb))) {
		count(&account->seen);
		count(&account->filtered);
		return PASS;
	}
	flow = bpf_map_lookup_elem(&handshakes, connection);
	flags = tcp_header_flags(tcp);
	begins = begins_handshake(flags, direction);
	if (direction == DIRECTION_IN)
		gets_cookie = note_listener(skb, flow && flow->gets_cookie ? WITH_COOKIE | flow->syn_seq : 0);
	if (!flow && !begins) {
		/* It belongs to a connection that ended, or never existed. */
		count(&account->unowned);
		return PASS;
	}
	count(&account->seen);
	syn_seq = direction == DIRECTION_IN ? bpf_ntohl(tcp->seq) : bpf_ntohl(tcp->ack_seq) - 1;
	if (flow && begins && syn_seq != flow->syn_seq) {
		/* The earlier handshake failed; this is another connection between the same ends. */
		end_handshake(connection, flow);
		flow = 0;
	}
	if (!flow) {
		flow = begin_handshake(free_place(), connection, syn_seq);
		if (!flow) {
			count(&account->failed);
			return PASS;
		}
		facts.flow = flow->flow;
		write_flow(listener, &facts);
	}
	if (begins)
		flow->gets_cookie = gets_cookie;
	flow_seq = __sync_fetch_and_add(&flow->packets_seen, 1) + 1;
	time_ns = bpf_ktime_get_ns();
	flow->last_packet_ns = time_ns;

	if (thins()) {
		/* There is no window that could change yet, but the first packet of a flow always counts as a change. */
		if (!(options.on_change && flow_seq == 1) &&
		    (!takes_by_number() || !is_nth(flow->flow, flow_seq)))
			goto end;
		count(&account->due);
		count(&flow->packets_due);
	}
	record = reserve_state(cpu, hook, SHARED_LANE, &slot);
	if (!record) {
		count(&account->dropped);
		count(&flow->packets_dropped);
		goto end;
	}
	record->time_ns = time_ns;
	record->flow_seq = flow_seq;
	record->flow = flow->flow;
	fill_no_state(record);
	fill_packet(record, skb, direction);
	commit_state(record, SHARED_LANE, &slot);
end:
	/* The peer did not request this connection, or no longer wants it, as TCP interprets it. */
	if (direction == DIRECTION_IN && flags & FLAG_RST &&
	    syn_seq - (flow->syn_seq + 1) <= INITIAL_WINDOW_MAX_BYTES) {
		flow->closing = CLOSING_RST_RECEIVED;
		flow->ending = ENDING_RESET_RECEIVED;
		end_handshake(connection, flow);
	}
	return PASS;
}

#endif
