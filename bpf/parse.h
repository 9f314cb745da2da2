/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Parsers of packet headers: one small function a header, all with the same contract. A cursor
 * starts at the network header; a parser returns where its header starts and moves the cursor
 * behind it, or returns NULL if the packet has no such header.
 */
#ifndef PARSHALL_PARSE_H
#define PARSHALL_PARSE_H

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>

struct cursor {
	void *next;
	void *end;
};

struct ip_addresses {
	__u8 source[16];       /* IPv4 as ::ffff:a.b.c.d */
	__u8 destination[16];
	__u8 is_ipv6;
};

static __always_inline struct iphdr *parse_ipv4(struct cursor *at)
{
	struct iphdr *ip = at->next;
	__u32 length_bytes;

	if ((void *)(ip + 1) > at->end || ip->version != 4)
		return 0;
	length_bytes = ip->ihl * 4;
	if (length_bytes < sizeof(*ip))
		return 0;
	at->next += length_bytes;
	return ip;
}

#define IPV6_EXTENSIONS_MAX 6
#define IPV6_HEADERS_MAX_BYTES (sizeof(struct ipv6hdr) + IPV6_EXTENSIONS_MAX * 256 * 8)

/* Skips extension headers; *protocol is what follows them. */
static __always_inline struct ipv6hdr *parse_ipv6(struct cursor *at, __u8 *protocol)
{
	struct ipv6hdr *ip = at->next;

	if ((void *)(ip + 1) > at->end || ip->version != 6)
		return 0;
	*protocol = ip->nexthdr;
	at->next = ip + 1;
	for (int i = 0; i < IPV6_EXTENSIONS_MAX; i++) {
		__u8 *extension = at->next;
		__u32 length_bytes;

		switch (*protocol) {
		case 0: case 43: case 60: case 135: /* hop-by-hop, routing, destination, mobility */
			if ((void *)(extension + 2) > at->end)
				return 0;
			length_bytes = (extension[1] + 1) * 8;
			break;
		case 44: /* fragment */
			if ((void *)(extension + 2) > at->end)
				return 0;
			length_bytes = 8;
			break;
		case 51: /* authentication header, counts in 4-byte words */
			if ((void *)(extension + 2) > at->end)
				return 0;
			length_bytes = (extension[1] + 2) * 4;
			break;
		default:
			return ip;
		}
		*protocol = extension[0];
		at->next += length_bytes;
	}
	return 0;
}

/*
 * Offset in bytes of the TCP header behind the extension headers of an IPv6 packet; negative if there is
 * none. Extension headers are rare, so this is a global function: the verifier follows it once, and not on
 * each path to it.
 */
__noinline int tcp_behind_extensions(struct __sk_buff *skb)
{
	struct cursor at = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	void *start = at.next;
	__u8 protocol;

	return parse_ipv6(&at, &protocol) && protocol == 6 ? at.next - start : -1;
}

/* Finds the TCP header of a packet that begins with IPv4 or IPv6; the fixed part of the header is readable. */
static __always_inline struct tcphdr *parse_tcp(struct __sk_buff *skb, struct cursor *at)
{
	struct tcphdr *tcp;

	if (skb->protocol == bpf_htons(0x0800)) {
		struct iphdr *ip = parse_ipv4(at);

		if (!ip || ip->protocol != 6)
			return 0;
	} else {
		struct ipv6hdr *ip = at->next;
		int offset_bytes = sizeof(*ip);

		if ((void *)(ip + 1) > at->end || ip->version != 6)
			return 0;
		if (ip->nexthdr != 6)
			offset_bytes = tcp_behind_extensions(skb);
		if (offset_bytes < 0 || offset_bytes > IPV6_HEADERS_MAX_BYTES)
			return 0;
		at->next += offset_bytes;
	}
	tcp = at->next;
	return (void *)(tcp + 1) > at->end ? 0 : tcp;
}

#define FLAG_FIN 0x01
#define FLAG_SYN 0x02
#define FLAG_RST 0x04
#define FLAG_ACK 0x10

/* AE CWR ECE URG ACK PSH RST SYN FIN and the reserved bits: the 12 bits behind the data offset. */
static __always_inline __u16 tcp_header_flags(const struct tcphdr *tcp)
{
	return bpf_ntohs(((const __be16 *)tcp)[6]) & 0x0fff;
}

static __always_inline void map_ipv4(__u8 mapped[16], __be32 address)
{
	__u32 *words = (__u32 *)mapped;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = address;
}

#endif
