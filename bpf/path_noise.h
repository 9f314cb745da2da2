/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What takes a CPU from the packets: interrupts and softirqs, with the time that each takes and the
 * gaps between their starts; how long packets wait for their softirq; packets of a NAPI poll.
 */
#ifndef PARSHALL_PATH_NOISE_H
#define PARSHALL_PATH_NOISE_H

#include "path_end.h"

#define SOFTIRQS 10
#define NET_RX_VECTOR 3

/* Element cpu * NOISE_COUNT + enum path_noise. */
MAPPABLE_ARRAY(struct path_noise_histogram) path_noises SEC(".maps");

static __always_inline void note_noise(struct path_cpu *now, __u32 kind, __u64 from_ns, __u64 value)
{
	__u32 element = bpf_get_smp_processor_id() * NOISE_COUNT + kind;
	struct path_noise_histogram *histogram = bpf_map_lookup_elem(&path_noises, &element);
	__u64 gap_ns;

	if (!histogram || kind >= NOISE_COUNT)
		return;
	histogram->events++;
	histogram->sum_ns += value;
	if (value > histogram->max_ns)
		histogram->max_ns = value;
	histogram->counts[bucket_index_of(value)]++;
	if (now->noise_from_ns[kind & 15]) {
		gap_ns = from_ns - now->noise_from_ns[kind & 15];
		histogram->sum_gap_ns += gap_ns;
		histogram->sum_gap_squared_us += gap_ns / 1000 * (gap_ns / 1000);
	}
	now->noise_from_ns[kind & 15] = from_ns;
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(path_softirq_raise, unsigned int vector)
{
	struct path_cpu *now = this_cpu();

	if (now && vector == NET_RX_VECTOR && !now->net_rx_raised_ns)
		now->net_rx_raised_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(path_softirq_entry, unsigned int vector)
{
	struct path_cpu *now = this_cpu();
	__u64 time_ns = bpf_ktime_get_ns();

	if (!now || vector >= SOFTIRQS)
		return 0;
	now->softirq_from_ns[vector & 15] = time_ns;
	if (vector == NET_RX_VECTOR && now->net_rx_raised_ns) {
		note_noise(now, NOISE_NET_RX_DELAY, now->net_rx_raised_ns, time_ns - now->net_rx_raised_ns);
		now->net_rx_raised_ns = 0;
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(path_softirq_exit, unsigned int vector)
{
	struct path_cpu *now = this_cpu();

	if (!now || vector >= SOFTIRQS || !now->softirq_from_ns[vector & 15])
		return 0;
	note_noise(now, NOISE_SOFTIRQ + vector, now->softirq_from_ns[vector & 15],
		   bpf_ktime_get_ns() - now->softirq_from_ns[vector & 15]);
	now->softirq_from_ns[vector & 15] = 0;
	return 0;
}

static __always_inline int begin_interrupt(void)
{
	struct path_cpu *now = this_cpu();

	if (now)
		now->irq_from_ns = bpf_ktime_get_ns();
	return 0;
}

/* Hardware interrupts do not nest on the machines that we support. */
static __always_inline int end_interrupt(__u32 kind)
{
	struct path_cpu *now = this_cpu();
	__u64 past_ns;

	if (!now || !now->irq_from_ns)
		return 0;
	past_ns = bpf_ktime_get_ns() - now->irq_from_ns;
	now->stolen_ns += past_ns;
	note_noise(now, kind, now->irq_from_ns, past_ns);
	now->irq_from_ns = 0;
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(path_irq_entry) { return begin_interrupt(); }

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(path_irq_exit) { return end_interrupt(NOISE_IRQ); }

SEC("tp_btf/local_timer_entry")
int BPF_PROG(path_timer_entry) { return begin_interrupt(); }

SEC("tp_btf/local_timer_exit")
int BPF_PROG(path_timer_exit) { return end_interrupt(NOISE_TIMER); }

/* At the end of a poll. */
SEC("tp_btf/napi_poll")
int BPF_PROG(path_poll, void *napi, int packets, int budget)
{
	struct path_cpu *now = this_cpu();

	if (!now)
		return 0;
	now->poll++;
	now->poll_index = 0;
	note_noise(now, NOISE_POLL_PACKETS, bpf_ktime_get_ns(), packets > 0 ? packets : 0);
	return 0;
}

#endif
