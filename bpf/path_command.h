/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The owner of a packet, by the name of a thread: the thread that sent the packet or, for one that came in, the
 * thread that last read from its socket. In an interrupt, the current thread has nothing to do with the packet.
 */
#ifndef PARSHALL_PATH_COMMAND_H
#define PARSHALL_PATH_COMMAND_H

#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "maps.h"

/* The loader sets them before verification, so that the verifier removes unused code. */
const volatile struct path_options options SEC(".rodata.options");

struct path_command {
	char name[16];
};

/* The sender of the packet at a place in the table of packets; empty: no thread sent it. */
ARRAY(struct path_command) path_commands SEC(".maps");

#define READERS_MAX 65536

/* The thread that last read from a socket, by the socket's cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READERS_MAX);
	__type(key, __u64);
	__type(value, struct path_command);
} path_reading SEC(".maps");

/* Element cpu: whether the CPU serves a softirq, which no helper reports. Known from its first softirq on. */
ARRAY(__u32) path_serving SEC(".maps");

static __always_inline int note_serving(__u32 is_serving)
{
	__u32 cpu = bpf_get_smp_processor_id(), *serving = bpf_map_lookup_elem(&path_serving, &cpu);

	if (serving)
		*serving = is_serving;
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(path_serving_entry) { return note_serving(1); }

SEC("tp_btf/softirq_exit")
int BPF_PROG(path_serving_exit) { return note_serving(0); }

static __always_inline int is_in_thread(void)
{
	__u32 cpu = bpf_get_smp_processor_id(), *serving = bpf_map_lookup_elem(&path_serving, &cpu);

	return serving && !*serving;
}

/* Notes the thread that sends the packet at a place, at its first stage. */
static __noinline int note_command(__u32 place, int is_sending)
{
	struct path_command *command = bpf_map_lookup_elem(&path_commands, &place);
	struct task_struct *task = (void *)bpf_get_current_task();

	if (!command)
		return 0;
	command->name[0] = 0;
	if (is_sending && is_in_thread())
		BPF_CORE_READ_INTO(&command->name, task, comm);
	return 0;
}

#endif
