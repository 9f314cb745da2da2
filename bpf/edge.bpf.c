// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * An edge: a hook at an interface that records the time of every stamped packet by its sequence number. One
 * program where packets leave (tcx), one where they arrive (XDP). Nothing reads while packets pass, so a
 * packet costs one reading of the clock and one store.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "maps.h"

#define TCX_NEXT (-1)
/* IPv4 without options, as the generator and the gateway write it. */
#define PROTOCOL_OFFSET 9
#define PORT_OFFSET (20 + 2)
#define PAYLOAD_OFFSET (20 + 8)
#define SEEN_BYTES (PAYLOAD_OFFSET + 8)
/* To measure the rate, the clock is read once in so many packets: to read it for each would slow the poll down. */
#define PACKETS_PER_TIME 64

const volatile struct edge_options options SEC(".rodata.options");

MAPPABLE_ARRAY(struct edge_time) times SEC(".maps");

PERCPU_ARRAY(struct edge_account) account SEC(".maps");

static __always_inline void take_time(struct edge_account *counts)
{
	counts->last_timed_ns = bpf_ktime_get_ns();
	if (counts->first_timed_ns)
		counts->timed += PACKETS_PER_TIME;
	else
		counts->first_timed_ns = counts->last_timed_ns;
}

/* `packet` points to SEEN_BYTES of IP; 0: the packet is shorter, or not linear. */
static __always_inline void count_and_record(const void *packet, __u32 bytes)
{
	__u64 now_ns = options.is_recording ? bpf_ktime_get_ns() : 0;
	__u32 only = 0, element;
	struct edge_account *counts = bpf_map_lookup_elem(&account, &only);
	struct edge_time *time;
	__be64 number;
	__be16 port;
	__u64 sequence;

	if (!counts)
		return;
	counts->packets++;
	counts->bytes += bytes;
	if (counts->packets % PACKETS_PER_TIME == 0)
		take_time(counts);
	if (!packet || !options.is_recording)
		return;
	__builtin_memcpy(&port, packet + PORT_OFFSET, sizeof(port));
	if (*(const __u8 *)(packet + PROTOCOL_OFFSET) != IPPROTO_UDP || bpf_ntohs(port) != options.port) {
		counts->other++;
		return;
	}
	__builtin_memcpy(&number, packet + PAYLOAD_OFFSET, sizeof(number));
	sequence = bpf_be64_to_cpu(number);
	if (sequence >= options.capacity) {
		counts->beyond++;
		return;
	}
	element = sequence;
	time = bpf_map_lookup_elem(&times, &element);
	if (!time)
		return;
	if (time->time_ns) {
		counts->duplicates++;
		return;
	}
	time->time_ns = now_ns;
	time->bytes = bytes;
	counts->recorded++;
}

SEC("tc")
int edge_tcx(struct __sk_buff *packet)
{
	const void *data = (void *)(long)packet->data, *end = (void *)(long)packet->data_end;

	data += options.link_bytes ? ETH_HLEN : 0;
	count_and_record(data + SEEN_BYTES <= end ? data : 0, packet->len);
	return TCX_NEXT;
}

SEC("xdp")
int edge_xdp(struct xdp_md *packet)
{
	const void *data = (void *)(long)packet->data, *end = (void *)(long)packet->data_end;
	__u32 bytes = end - data;

	data += options.link_bytes ? ETH_HLEN : 0;
	count_and_record(data + SEEN_BYTES <= end ? data : 0, bytes);
	return options.is_discarding ? XDP_DROP : XDP_PASS;
}

/* Brings these types into the object's type information, which the layout test reads. */
struct edge_time *described_time;
struct edge_account *described_account;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
