// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The generator. User space runs this program again and again on live frames
 * (BPF_F_TEST_XDP_LIVE_FRAMES); every run takes the next packet of the plan, writes its
 * frame, cuts the frame to the packet's length and redirects it to the interface.
 *
 * Frames come back from the page pool as their receivers left them: a router has changed addresses, hop
 * limit and checksum, a VLAN tag was removed, a tunnel has overwritten the payload. So the program writes
 * every frame whole: an image of the workload's frames, or the trace's next frame, and then the fields
 * of the packet.
 *
 * The kernel passes frames on at the end of a batch. When packets are paced, a batch is two runs. The first run waits
 * until its packet is due. The second run sends its packet too if a batch of its own would send it later.
 */
#include "abi.h"
#include "copy.h"
#include "maps.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>

#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

/* Reads of the clock in one run: it holds softirqs off for some microseconds. */
#define CLOCK_READS_MAX 128
/* Packets between two reports of progress while every packet is late. */
#define REPORT_EVERY 32
/* A batch that took longer has been interrupted. */
#define BATCH_NS_MAX 2000
#define BATCHES_IN_MEAN 16
/* The kernel's helper writes longer frames, because it is faster for them. */
#define PLAIN_STORES_BYTES_MAX 256

const volatile struct generate_options options;
struct generate_state state;

MAPPABLE_ARRAY(struct planned_packet) plan SEC(".maps");
MAPPABLE_ARRAY(struct flow_header) flows SEC(".maps");

/* Header of the first flow and payload, as long as the longest frame. */
ARRAY(struct frame_image) image SEC(".maps");

/* The replayed trace, shared by all senders. */
MAPPABLE_ARRAY(struct trace_block) trace SEC(".maps");

/* The tx devmap: the kernel looks the interface up faster here than by its index. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tx_devices SEC(".maps");

/* Ones' complement sum of 8 bytes in network byte order, in 16-bit words. */
static __always_inline __u64 sum_words(__u64 host_order)
{
	return (host_order >> 48) + (host_order >> 32 & 0xffff) + (host_order >> 16 & 0xffff) +
	       (host_order & 0xffff);
}

static __always_inline __u16 fold_checksum(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline void put16(void *at, __be16 value)
{
	__builtin_memcpy(at, &value, sizeof(value));
}

/* An exchange orders all earlier stores, on every architecture. */
static __always_inline void report_sent(__u64 sent)
{
	__sync_lock_test_and_set(&state.taken, sent);
}

/* Waits until the first packet of a batch is due. Returns its send time; 0: it is not due in this run. */
static __always_inline __u64 wait_until_due(__u64 due_ns)
{
	__u64 now_ns = bpf_ktime_get_ns(), before_ns = state.first_sent_ns;

	state.first_sent_ns = 0;
	if (now_ns >= due_ns) {
		/* The packet is late, so the batch before it was as short as a batch can be. */
		if (before_ns) {
			__u64 batch_ns = now_ns - before_ns;

			if (batch_ns > BATCH_NS_MAX)
				batch_ns = BATCH_NS_MAX;
			state.batch_ns = (state.batch_ns * (BATCHES_IN_MEAN - 1) + batch_ns) / BATCHES_IN_MEAN;
		}
		return state.first_sent_ns = now_ns;
	}
	if (state.taken != state.next)
		report_sent(state.next);
	for (int i = 0; i < CLOCK_READS_MAX; i++) {
		now_ns = bpf_ktime_get_ns();
		if (now_ns >= due_ns)
			return state.first_sent_ns = now_ns;
	}
	return 0;
}

/* Send time of a batch's second packet: that of the first, if the next batch would be farther from due_ns; 0: none. */
static __always_inline __u64 send_with_first(__u64 due_ns)
{
	__u64 first_ns = state.first_sent_ns;

	return first_ns && first_ns + state.batch_ns / 2 >= due_ns ? first_ns : 0;
}

/* Ends the run: a packet cannot be sent, and what was sent must stay the beginning of the plan. */
static __always_inline int fail(enum generate_failure failure)
{
	state.failure = failure;
	state.stop = 1;
	return XDP_DROP;
}

static __always_inline void write_stamp(void *payload, __u64 sequence, __u64 now_ns)
{
	__be64 stamp[2] = { bpf_cpu_to_be64(sequence), bpf_cpu_to_be64(now_ns) };

	__builtin_memcpy(payload, stamp, sizeof(stamp));
}

/* Writes the image's first frame_bytes bytes. Returns 0 when these are too many. */
static __always_inline int write_image(struct xdp_md *ctx, void *data, const void *end,
				       struct frame_image *whole, __u32 frame_bytes)
{
	if (frame_bytes <= PLAIN_STORES_BYTES_MAX)
		return fill_linear(data, end, options.written_bytes, whole->bytes, frame_bytes);
	/* The verifier must see the bounds on the very number that the helper takes. */
	pin(frame_bytes);
	if (frame_bytes <= PLAIN_STORES_BYTES_MAX || frame_bytes > FRAME_IMAGE_BYTES)
		return 0;
	return !bpf_xdp_store_bytes(ctx, 0, whole->bytes, frame_bytes);
}

/* Writes a packet as a frame of frame_bytes. Returns 0 when its flow does not exist, or the frame is too long. */
static __always_inline int write_packet(struct xdp_md *ctx, void *data, const void *end,
					const struct planned_packet *packet, __u32 frame_bytes,
					__u64 number, __u64 now_ns)
{
	__be16 transport_checksum = packet->transport_checksum;
	__u32 ip_bytes = packet->ip_bytes, first = 0;
	struct frame_image *whole = bpf_map_lookup_elem(&image, &first);

	if (!whole || !write_image(ctx, data, end, whole, frame_bytes))
		return 0;
	if (options.header_words) {
		__u32 flow = packet->flow;
		struct flow_header *header = bpf_map_lookup_elem(&flows, &flow);
		__u64 *words = data;

		if (!header)
			return 0;
#pragma unroll
		for (int word = 0; word < HEADER_WORDS_MAX; word++)
			if (word < options.header_words)
				words[word] = header->words[word];
	}
	if (options.is_ipv6) {
		put16(data + options.ip_offset + 4, bpf_htons(ip_bytes - 40));
	} else {
		put16(data + options.ip_offset + 2, bpf_htons(ip_bytes));
		put16(data + options.ip_offset + 10, packet->ip_checksum);
	}
	if (options.is_stamped) {
		write_stamp(data + options.payload_offset,
			    options.first_sequence + number * options.sequence_step, now_ns);
		transport_checksum = bpf_htons(
			fold_checksum(bpf_ntohs(transport_checksum) + sum_words(now_ns)));
		/* In UDP a checksum of 0 means that there is none. */
		if (options.transport == TRANSPORT_UDP && !transport_checksum)
			transport_checksum = 0xffff;
	}
	if (options.transport == TRANSPORT_UDP) {
		__u32 udp_bytes = ip_bytes - (options.transport_offset - options.ip_offset);

		put16(data + options.transport_offset + 4, bpf_htons(udp_bytes));
		put16(data + options.transport_offset + 6, transport_checksum);
	} else if (options.transport == TRANSPORT_TCP) {
		put16(data + options.transport_offset + 16, transport_checksum);
	}
	return 1;
}

/* Copies the trace's next frame, of frame_bytes. Returns 0 when there is none, or it is too long. */
static __always_inline int write_replayed(void *data, const void *end, __u32 frame_bytes)
{
	__u64 position = state.replayed;
	__u32 block = position / TRACE_BLOCK_BYTES;
	__u32 offset = position % TRACE_BLOCK_BYTES;
	struct trace_block *bytes = bpf_map_lookup_elem(&trace, &block);
	const __u64 *next;

	if (!bytes)
		return 0;
	pin(offset);
	offset &= TRACE_BLOCK_BYTES - 1;
	next = (void *)bytes + offset;
	if (!fill_linear(data, end, options.written_bytes, next + 1, frame_bytes))
		return 0;
	state.replayed = *next;
	return 1;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 number = state.next, start_ns = 0, now_ns = 0;
	__u32 frame_bytes, element = number & options.plan_mask;
	struct planned_packet *packet;
	__u32 run = 0;

	if (options.is_paced) {
		run = state.run;
		state.run = run + 1 < options.batch_runs ? run + 1 : 0;
	}
	if (number >= READ_ONCE(state.end) || READ_ONCE(state.stop)) {
		/* The end may have been set when the last packet had left. */
		if (state.taken != number)
			report_sent(number);
		return XDP_DROP;
	}
	if (options.is_paced) {
		start_ns = READ_ONCE(state.start_ns);
		/* All senders begin at one moment, when the kernel runs the program for each of them. */
		if (!start_ns) {
			state.waited++;
			return XDP_DROP;
		}
	}
	if (number >= READ_ONCE(state.drawn)) {
		state.starved++;
		return XDP_DROP;
	}
	barrier();
	packet = bpf_map_lookup_elem(&plan, &element);
	if (!packet || data + options.written_bytes > end)
		return fail(GENERATE_FAILURE_PLACE);

	if (options.is_paced) {
		__u64 due_ns = start_ns + packet->time_ns;

		now_ns = run ? send_with_first(due_ns) : wait_until_due(due_ns);
		if (!now_ns) {
			state.waited += !run;
			return XDP_DROP;
		}
		packet->time_ns = now_ns - start_ns;
	} else {
		if (options.is_stamped)
			now_ns = bpf_ktime_get_ns();
		if (!state.start_ns)
			state.start_ns = bpf_ktime_get_ns();
	}

	frame_bytes = options.ip_offset + packet->ip_bytes;
	if (frame_bytes < options.frame_bytes_min)
		frame_bytes = options.frame_bytes_min;
	if (!(options.is_replay ? write_replayed(data, end, frame_bytes) :
				  write_packet(ctx, data, end, packet, frame_bytes, number, now_ns)))
		return fail(GENERATE_FAILURE_CONTENT);
	/*
	 * No packet is as long as the buffer: the kernel takes the length of a frame anew only when
	 * the program has changed it, and else the one that a receiver's XDP program has left.
	 */
	if (bpf_xdp_adjust_tail(ctx, (int)frame_bytes - (int)options.buffer_bytes))
		return fail(GENERATE_FAILURE_CUT);
	if (bpf_redirect_map(&tx_devices, 0, XDP_ABORTED) != XDP_REDIRECT)
		return fail(GENERATE_FAILURE_INTERFACE);

	state.next = number + 1;
	if (number % REPORT_EVERY == REPORT_EVERY - 1 || number + 1 == state.end)
		report_sent(number + 1);
	return XDP_REDIRECT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
