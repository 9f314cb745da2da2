/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Events of a flow that are no packets: their counts and their records. */
#ifndef PARSHALL_TCP_EVENT_H
#define PARSHALL_TCP_EVENT_H

#include "tcp_flow.h"
#include "tcp_state.h"

/* An event being written. */
struct event {
	struct tcp_state_record *record;
	struct flow_state *flow;
	struct ring_slot slot;
};

/* Counts an event of a flow, if there is one, and reserves its record; 0 when there is none to fill. */
static __always_inline int begin_event(struct event *event, struct flow_state *flow, __u16 hook,
				       const enum place place)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hook_counters *account = account_of(cpu, hook);

	if (!account)
		return 0;
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
	event->flow = flow;
	event->record = reserve_state(cpu, hook, place, &event->slot);
	if (event->record)
		return 1;
	count(&account->dropped);
	count(&flow->events_dropped);
	return 0;
}

static __always_inline int begin_event_of(struct event *event, const struct sock *sk, __u16 hook,
					  const enum place place)
{
	return begin_event(event, bpf_sk_storage_get(&flows, (void *)sk, 0, 0), hook, place);
}

static __always_inline void describe_event(const struct event *event, __u8 kind)
{
	struct tcp_state_record *record = event->record;

	record->time_ns = bpf_ktime_get_ns();
	record->flow_seq = event->flow->packets_seen;
	record->flow = event->flow->flow;
	record->event = kind;
	record->direction = DIRECTION_NONE;
	record->pkt_seq = record->pkt_ack = record->payload_bytes = 0;
	record->pkt_flags = 0;
	record->gso_segs = 0;
}

static __always_inline void fill_event(const struct event *event, struct tcp_sock *tp, __u8 kind)
{
	fill_state(event->record, tp, &tp->inet_conn.icsk_inet.sk);
	fill_loss_state(event->record, tp);
	describe_event(event, kind);
}

#endif
