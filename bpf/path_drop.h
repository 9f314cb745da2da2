/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Drops: whether an sk_buff that the kernel frees is the packet at its address, whether the packet was delivered before,
 * and how often each reason was given.
 */
#ifndef PARSHALL_PATH_DROP_H
#define PARSHALL_PATH_DROP_H

#include "path_end.h"

#define UNSPECIFIED options.delivered_reasons[2]

/* Whether the reason is one with which the kernel frees the queue of a closed socket. */
static __always_inline int is_of_closed_queue(unsigned int reason)
{
	return reason == options.delivered_reasons[0] || reason == options.delivered_reasons[1];
}

/* Copies for packet sockets share the data of the packet. What such a socket sends is its own, too, and no copy. */
static __always_inline int is_copy(const struct sk_buff *skb, unsigned int reason)
{
	return (is_of_closed_queue(reason) || reason == UNSPECIFIED) && socket_family(skb) == AF_PACKET;
}

/* A datagram in the queue of a UDP socket has numbers of UDP's in the place of its device. */
static __noinline int was_queued_by_udp(const struct sk_buff *skb)
{
	__u64 device;

	return !bpf_core_read(&device, sizeof(device), &skb->dev) && device && device >> 56 != 0xff;
}

/*
 * Whether the kernel frees what it has delivered as it frees a drop: what is left in the queue of a socket that is closed,
 * without a reason by UDP; and without a reason, what a TCP connection in TIME_WAIT has handled. The first is known by its
 * socket also in network namespaces in which `local_in` is not attached.
 */
static __always_inline int is_delivered(const struct path_packet *packet, const struct sk_buff *skb, unsigned int reason)
{
	__u16 family;

	if (packet->seen & DELIVERING)
		return is_of_closed_queue(reason) || reason == UNSPECIFIED;
	if (!(packet->seen & ARRIVING))
		return 0;
	if (reason == UNSPECIFIED)
		return was_queued_by_udp(skb);
	if (!is_of_closed_queue(reason))
		return 0;
	family = socket_family(skb);
	return family == AF_INET || family == AF_INET6;
}

static __noinline int is_tcp(const struct sk_buff *skb)
{
	unsigned char *header = skb->head;
	__u8 first, protocol = 0;

	header += skb->network_header;
	if (bpf_probe_read_kernel(&first, 1, header))
		return 0;
	bpf_probe_read_kernel(&protocol, 1, header + (first >> 4 == 4 ? 9 : 6));
	return protocol == IPPROTO_TCP;
}

/*
 * Whether a segment that is freed without a reason may have been handled by a connection in TIME_WAIT, in a network namespace
 * in which `local_in` is not attached.
 */
static __always_inline int may_be_delivered(const struct path_packet *packet, const struct sk_buff *skb, unsigned int reason)
{
	return reason == UNSPECIFIED && !options.netns_inode && packet->seen & ARRIVING &&
	       !(packet->seen & (BIT(STAGE_PRE_ROUTING) | LEAVING)) && is_tcp(skb);
}

/*
 * Whether an sk_buff that came in is at a device of another network namespace than that whose packets are followed. What
 * waits in the queue of a socket may have something else in the place of its device, which has not its number.
 */
static __noinline int is_of_another_netns(const struct path_packet *packet, const struct sk_buff *skb)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);
	__u32 netns;

	if (!packet || !options.netns_inode || !(packet->seen & ARRIVING) || !dev || BPF_CORE_READ(dev, ifindex) != skb->skb_iif)
		return 0;
	netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	return netns && netns != options.netns_inode;
}

/*
 * Whether an sk_buff has another IP header than the packet that came in at its address, as far as both are known. Compared
 * is what neither joining nor translation of addresses changes: the identification of IPv4, and one end of IPv6.
 */
static __noinline int has_another_header(const struct path_packet *packet, const struct sk_buff *skb, __u32 place)
{
	const struct path_identity *identity;
	__u32 ip[10];

	if (!packet || !options.reads_headers || packet->is_ignored || !(packet->seen & ARRIVING))
		return 0;
	identity = bpf_map_lookup_elem(&path_identities, &place);
	if (!identity || !identity->ip_version || skb->protocol != bpf_htons(identity->ethernet_protocol) ||
	    bpf_probe_read_kernel(ip, 20, skb->head + skb->network_header) ||
	    *(const __u8 *)ip >> 4 != identity->ip_version)
		return 0;
	if (identity->ip_version == 4)
		return number16((const __u8 *)ip + 4) != identity->ip_id;
	return !bpf_probe_read_kernel(ip, 40, skb->head + skb->network_header) &&
	       ip[5] != *(const __u32 *)(identity->source + 12) && ip[9] != *(const __u32 *)(identity->destination + 12);
}

static __noinline int count_drop(__u32 reason)
{
	struct path_drops *drops = drops_of(reason);
	struct path_account *account = account_of(bpf_get_smp_processor_id());

	if (drops)
		count(&drops->all);
	else if (account)
		count(&account->uncounted_drops);
	return 0;
}

#endif
