/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Time charged to the reader's thread that is not its own: softirqs that run while it is on the CPU
 * and handle the observed traffic.
 */
#ifndef PARSHALL_READER_TIME_H
#define PARSHALL_READER_TIME_H

#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"

/* Softirqs of one thread do not nest and are on one CPU at a time, so plain stores suffice. */
volatile struct reader_time reader_time SEC(".data.reader");

static __always_inline int is_reader(void)
{
	return (__u32)bpf_get_current_pid_tgid() == reader_time.thread;
}

/*
 * Run by the reader itself, whose number in its own PID namespace may differ. Returns
 * whether the kernel charges threads with softirqs: not if it accounts the time of interrupts apart.
 */
SEC("syscall")
int reader_is_here(void *context)
{
	reader_time.softirq_from_ns = 0;
	reader_time.thread = bpf_get_current_pid_tgid();
	return !bpf_core_field_exists(struct rq, prev_irq_time);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(reader_softirq, unsigned int vector)
{
	if (is_reader())
		reader_time.softirq_from_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(reader_softirq_end, unsigned int vector)
{
	if (!is_reader() || !reader_time.softirq_from_ns)
		return 0;
	reader_time.softirq_ns += bpf_ktime_get_ns() - reader_time.softirq_from_ns;
	reader_time.softirq_from_ns = 0;
	return 0;
}

#endif
