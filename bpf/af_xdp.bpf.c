// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Redirects the packets of a receive queue to its AF_XDP socket, and counts them. A packet of a queue
 * without a socket passes to the stack.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"

#define QUEUES_MAX 1024

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Packets redirected to a socket, whether or not it had room. */
ARRAY(__u64) redirected SEC(".maps");

SEC("xdp")
int redirect(struct xdp_md *context)
{
	int action = bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
	__u32 zero = 0;
	__u64 *packets = bpf_map_lookup_elem(&redirected, &zero);

	if (packets && action == XDP_REDIRECT)
		__sync_fetch_and_add(packets, 1);
	return action;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
