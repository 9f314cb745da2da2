/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The reader's side of a delivery: data becomes ready at a socket, the kernel wakes a task for it, the
 * task gets a CPU, and reads. Sockets merge packets, so below the receive queue only the socket
 * identifies data: each read is one record, with the first moment since the last read.
 */
#ifndef PARSHALL_PATH_READ_H
#define PARSHALL_PATH_READ_H

#include "path_delivery.h"

/* A socket whose data is ready and was not yet read, by its cookie: the kernel gives its address to the next one. */
struct path_socket {
	__u64 ready_ns;
	__u64 waking_ns;
	__u64 running_ns;
	__u32 pid;        /* the thread that was woken */
	__u32 process;    /* its process */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READERS_MAX);
	__type(key, __u64);
	__type(value, struct path_socket);
} path_sockets SEC(".maps");

/* Threads that were woken for a socket and did not run yet. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READERS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} path_woken SEC(".maps");

/* Element cpu * READ_TIME_COUNT + enum path_read_time. */
MAPPABLE_ARRAY(struct path_noise_histogram) path_reads SEC(".maps");

static __always_inline void add_read_time(__u32 kind, __u64 value)
{
	__u32 element = bpf_get_smp_processor_id() * READ_TIME_COUNT + kind;
	struct path_noise_histogram *histogram = bpf_map_lookup_elem(&path_reads, &element);

	if (!histogram)
		return;
	count(&histogram->events);
	__sync_fetch_and_add(&histogram->sum_ns, value);
	if (value > histogram->max_ns)
		histogram->max_ns = value;
	__sync_fetch_and_add(&histogram->counts[bucket_index_of(value < 0xffffffff ? value : 0xffffffff)], 1);
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(path_data_ready, struct sock *sk)
{
	struct path_socket fresh = {};
	struct path_identity *identity;
	struct path_cpu *now = this_cpu();
	struct path_packet *packet;
	__u64 skb, cookie, begun_ns = 0;
	__u32 place;

	skb = now ? ready_packet(now, sk, &begun_ns) : 0;
	if (!skb)
		return 0;
	/* Before the packet is looked up: see take_ready_time(). */
	fresh.ready_ns = bpf_ktime_get_ns();
	packet = find_packet((const void *)skb, &place);
	if (!packet || packet->is_ignored || packet->time_ns != begun_ns || packet->offset_ns[STAGE_DATA_READY])
		return 0;
	packet->offset_ns[STAGE_DATA_READY] = (__u32)fresh.ready_ns;
	if (options.group == GROUP_COMMAND || options.cgroup_id) {
		identity = bpf_map_lookup_elem(&path_identities, &place);
		if (!identity)
			return 0;
		if (options.group == GROUP_COMMAND)
			identity->socket_cookie = bpf_get_socket_cookie(sk);
		if (options.cgroup_id) {
			describe_socket(identity, sk);
			if (!identity->in_cgroup)
				return 0;
		}
	}
	if (!options.follows_readers)
		return 0;
	cookie = bpf_get_socket_cookie(sk);
	bpf_map_update_elem(&path_sockets, &cookie, &fresh, BPF_NOEXIST);
	now->ready_socket = cookie;
	return 0;
}

/*
 * The first task that is woken after the data of a socket became ready waited for it, or for a poll of it. Where no task
 * waited, it is a foreign one: only what the process of the read did counts.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(path_waking, struct task_struct *task)
{
	struct path_cpu *now = this_cpu();
	struct path_socket *socket;
	__u32 thread;
	__u64 key;

	if (!now || !now->ready_socket)
		return 0;
	key = now->ready_socket;
	now->ready_socket = 0;
	socket = bpf_map_lookup_elem(&path_sockets, &key);
	if (!socket || socket->waking_ns)
		return 0;
	thread = task->pid;
	socket->process = task->tgid;
	socket->waking_ns = bpf_ktime_get_ns();
	*(volatile __u32 *)&socket->pid = thread;
	bpf_map_update_elem(&path_woken, &thread, &key, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(path_switch, unsigned char preempt, struct task_struct *from, struct task_struct *to)
{
	struct path_socket *socket;
	__u32 thread = to->pid;
	__u64 *key;

	if (!thread)
		return 0;
	key = bpf_map_lookup_elem(&path_woken, &thread);
	if (!key)
		return 0;
	socket = bpf_map_lookup_elem(&path_sockets, key);
	/* If another thread has read meanwhile, the socket has newer data, for which this thread was not woken. */
	if (socket && socket->pid == thread && !socket->running_ns)
		socket->running_ns = bpf_ktime_get_ns();
	bpf_map_delete_elem(&path_woken, &thread);
	return 0;
}

static __always_inline void note_reader(__u64 cookie)
{
	struct path_command reader = {};

	bpf_get_current_comm(reader.name, sizeof(reader.name));
	bpf_map_update_elem(&path_reading, &cookie, &reader, BPF_ANY);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(path_read, struct sock *sk, int bytes, int flags)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct path_account *account = account_of(cpu);
	struct path_read_record *record;
	struct path_socket *socket, data;
	__u64 key = sk->__sk_common.skc_cookie.counter, time_ns, from_ns;
	struct lane_readers *readers;
	struct ring_slot slot;
	void *lane;

	if (bytes < 0 || flags & 2 /* MSG_PEEK */ || !account)
		return 0;
	if (!bytes && sk->sk_protocol == IPPROTO_TCP) {
		/* The end of the stream wakes the reader, but is no data. */
		bpf_map_delete_elem(&path_sockets, &key);
		return 0;
	}
	if (options.group == GROUP_COMMAND)
		note_reader(bpf_get_socket_cookie(sk));
	socket = bpf_map_lookup_elem(&path_sockets, &key);
	if (!socket)
		return 0;
	/* Copied before the clock is read: what other CPUs note after it is later than the read. */
	data = *socket;
	time_ns = bpf_ktime_get_ns();
	if (data.process != bpf_get_current_pid_tgid() >> 32)
		data.waking_ns = data.running_ns = 0;
	count(&account->reads);
	from_ns = data.ready_ns;
	if (data.waking_ns) {
		add_read_time(READ_TIME_WAKING, data.waking_ns - from_ns);
		from_ns = data.waking_ns;
		if (data.running_ns) {
			add_read_time(READ_TIME_RUNNING, data.running_ns - from_ns);
			from_ns = data.running_ns;
		}
	}
	add_read_time(READ_TIME_READ, time_ns - from_ns);
	add_read_time(READ_TIME_WHOLE, time_ns - data.ready_ns);
	if (!options.writes_records)
		goto end;
	readers = bpf_map_lookup_elem(&path_readers, &cpu);
	lane = bpf_map_lookup_elem(&path_ring, &cpu);
	record = !lane ? 0 : (void *)ring_reserve(lane, readers, &options.layout, sizeof(*record), RECORD_READ, 1, &slot);
	if (!record) {
		count(&account->reads_dropped);
		goto end;
	}
	record->time_ns = time_ns;
	record->ready_ns = data.ready_ns;
	record->waking_ns = data.waking_ns;
	record->running_ns = data.running_ns;
	record->socket_cookie = key;
	record->bytes = bytes;
	record->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(record->command, sizeof(record->command));
	ring_commit(&record->header, &options.layout, &slot);
end:
	bpf_map_delete_elem(&path_sockets, &key);
	return 0;
}

#endif
