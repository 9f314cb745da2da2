/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Whether a packet is wanted: an interpreter of classic BPF, which runs what libpcap compiled of an
 * expression on the first bytes of a packet, and the parsing of these bytes into an identity. Both
 * work on a copy, because programs of tracepoints have no direct access to packets.
 */
#ifndef PARSHALL_PATH_FILTER_H
#define PARSHALL_PATH_FILTER_H

#include "path_end.h"

/* From the network header on: IPv6, some extension headers, and TCP. */
#define HEAD_BYTES 128
/* What is read from an offset below HEAD_BYTES lies in here; what is behind valid_bytes is of an older packet. */
#define HEAD_SLACK_BYTES 24

const volatile struct classic_instruction path_filter[PATH_FILTER_MAX] SEC(".rodata.filter");

/* The head of a packet, and the registers of the interpreter. */
struct packet_head {
	__u8 bytes[HEAD_BYTES + HEAD_SLACK_BYTES];
	__u32 valid_bytes;
	__u32 wire_bytes;
	__u32 ethernet_protocol; /* of what stands behind tags in the frame */
	__u32 pad;
	__u32 a, x;
	__u32 scratch[16];
	__u32 at;
	__u32 verdict;
};

/* Element cpu * PATH_HEADS_PER_CPU + number. */
ARRAY(struct packet_head) packet_heads SEC(".maps");

static __always_inline __u16 number16(const __u8 *at) { return at[0] << 8 | at[1]; }
static __always_inline __u32 number32(const __u8 *at) { return (__u32)number16(at) << 16 | number16(at + 2); }

/* The bytes at an offset; the mask stays where it is, so that the verifier sees it. */
static __always_inline const __u8 *bytes_at(const struct packet_head *head, __u32 offset)
{
	offset &= HEAD_BYTES - 1;
	asm volatile("" : "+r"(offset));
	return head->bytes + (offset & (HEAD_BYTES - 1));
}

/* A number of the packet in network byte order; *fails when it lies behind the copied bytes. */
static __always_inline __u32 load(const struct packet_head *head, __u32 at, __u32 bytes, int *fails)
{
	const __u8 *from = bytes_at(head, at);

	if (at >= HEAD_BYTES || at + bytes > head->valid_bytes) {
		*fails = 1;
		return 0;
	}
	return bytes == 1 ? from[0] : bytes == 2 ? number16(from) : number32(from);
}

/* One instruction; returns 1 when the program has ended. See bpf(4) for the codes. */
static long interpret(__u64 step, struct packet_head **context)
{
	struct packet_head *head = *context;
	const volatile struct classic_instruction *instruction;
	__u32 at = head->at, k, value = 0, code;
	int fails = 0;

	if (at >= PATH_FILTER_MAX || at >= options.filter_length)
		return 1;
	instruction = &path_filter[at];
	code = instruction->code;
	k = instruction->k;
	head->at = at + 1;
	switch (code & 7) {
	case 0: /* LD */
	case 1: /* LDX */
		switch (code & 0xe0) {
		case 0x00: value = k; break;                           /* IMM */
		case 0x20: case 0x40: {                                /* ABS, IND */
			__u32 bytes = code & 0x10 ? 1 : code & 0x08 ? 2 : 4;

			value = load(head, (code & 0xe0) == 0x40 ? head->x + k : k, bytes, &fails);
			break;
		}
		case 0x60: value = head->scratch[k & 15]; break;       /* MEM */
		case 0x80: value = head->wire_bytes; break;            /* LEN */
		case 0xa0: value = (load(head, k, 1, &fails) & 0xf) * 4; break; /* MSH */
		}
		if (fails) {
			head->verdict = 0;
			return 1;
		}
		if (code & 1)
			head->x = value;
		else
			head->a = value;
		return 0;
	case 2: head->scratch[k & 15] = head->a; return 0;
	case 3: head->scratch[k & 15] = head->x; return 0;
	case 4: /* ALU */
		value = code & 8 ? head->x : k;
		switch (code & 0xf0) {
		case 0x00: head->a += value; break;
		case 0x10: head->a -= value; break;
		case 0x20: head->a *= value; break;
		case 0x30: case 0x90:
			if (!value) {
				head->verdict = 0;
				return 1;
			}
			head->a = (code & 0xf0) == 0x30 ? head->a / value : head->a % value;
			break;
		case 0x40: head->a |= value; break;
		case 0x50: head->a &= value; break;
		case 0x60: head->a = value < 32 ? head->a << value : 0; break;
		case 0x70: head->a = value < 32 ? head->a >> value : 0; break;
		case 0x80: head->a = -head->a; break;
		case 0xa0: head->a ^= value; break;
		}
		return 0;
	case 5: { /* JMP */
		int is_true;

		value = code & 8 ? head->x : k;
		switch (code & 0xf0) {
		case 0x00:
			head->at += k;
			return 0;
		case 0x10: is_true = head->a == value; break;
		case 0x20: is_true = head->a > value; break;
		case 0x30: is_true = head->a >= value; break;
		default: is_true = !!(head->a & value);
		}
		head->at += is_true ? instruction->jt : instruction->jf;
		return 0;
	}
	case 6: /* RET */
		head->verdict = (code & 0x18) == 0x10 ? head->a : k;
		return 1;
	default: /* MISC */
		if (code & 0x80)
			head->a = head->x;
		else
			head->x = head->a;
		return 0;
	}
}

static __noinline int accepts(struct packet_head *head)
{
	if (!head)
		return 0;
	head->at = head->a = head->x = head->verdict = 0;
	bpf_loop(PATH_FILTER_MAX, interpret, &head, 0); /* takes what is on the stack only */
	return head->verdict != 0;
}

#define TAG_BYTES 4
#define TAGS_MAX 2
#define IPV4_HEADER_BYTES 20

/* Whether a protocol of Ethernet is that of a VLAN tag: IEEE 802.1Q, 802.1ad. */
static __always_inline int is_tag(__u32 ethernet_protocol)
{
	return ethernet_protocol == 0x8100 || ethernet_protocol == 0x88a8;
}

/* Copies the first bytes from the network header on, into the head of a number of this CPU. */
static __noinline struct packet_head *read_head(const struct sk_buff *skb, __u32 number)
{
	__u32 element = bpf_get_smp_processor_id() * PATH_HEADS_PER_CPU + (number & (PATH_HEADS_PER_CPU - 1));
	__u32 linear_bytes, offset;
	struct packet_head *head = bpf_map_lookup_elem(&packet_heads, &element);
	unsigned char *start = BPF_CORE_READ(skb, data);
	unsigned char *network = BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	__u32 length_bytes = BPF_CORE_READ(skb, len);

	if (!head)
		return 0;
	linear_bytes = length_bytes - BPF_CORE_READ(skb, data_len);
	/*
	 * Where packets come in the data begins with the network header, whose place may not be noted yet; where they
	 * leave, it may begin with a link layer's. Tags that the device has left in the frame stand before it.
	 */
	offset = network > start && network < start + 256 ? network - start : 0;
	head->ethernet_protocol = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	for (int i = 0; i < TAGS_MAX && is_tag(head->ethernet_protocol); i++) {
		__be16 inner;

		if (i || !offset)
			offset += TAG_BYTES;
		if (bpf_probe_read_kernel(&inner, sizeof(inner), start + offset - sizeof(inner)))
			break;
		head->ethernet_protocol = bpf_ntohs(inner);
	}
	if (linear_bytes < offset)
		linear_bytes = offset;
	linear_bytes -= offset;
	head->wire_bytes = length_bytes - offset;
	head->valid_bytes = linear_bytes < HEAD_BYTES ? linear_bytes : HEAD_BYTES;
	linear_bytes = head->valid_bytes;
	if (linear_bytes > HEAD_BYTES)
		return 0;
	if (bpf_probe_read_kernel(head->bytes, linear_bytes, start + offset))
		head->valid_bytes = 0;
	return head;
}

/* Fills in what the transport header at an offset says; `bytes_left` is the length of it and its payload. */
static __always_inline void describe_transport(struct path_identity *identity, const struct packet_head *head,
					       __u32 offset, __u32 bytes_left)
{
	const __u8 *at;
	__u32 header_bytes = 8;

	if (offset >= HEAD_BYTES || offset + 8 > head->valid_bytes)
		return;
	at = bytes_at(head, offset);
	identity->source_port = number16(at);
	identity->destination_port = number16(at + 2);
	switch (identity->protocol) {
	case 6:
		if (offset + 20 > head->valid_bytes)
			return;
		identity->tcp_seq = number32(at + 4);
		identity->tcp_ack = number32(at + 8);
		identity->tcp_flags = number16(at + 12) & 0x0fff;
		header_bytes = (at[12] >> 4) * 4;
		break;
	case 17:
		break;
	case 1: case 58: /* ICMP: the identifier in place of the second port */
		identity->destination_port = number16(at + 4);
		break;
	default:
		identity->source_port = identity->destination_port = 0;
		return;
	}
	identity->payload_bytes = bytes_left > header_bytes ? bytes_left - header_bytes : 0;
}

static __noinline int describe_headers(struct path_identity *identity, struct packet_head *head)
{
	const __u8 *ip;
	__u32 offset;

	if (!identity || !head || head->valid_bytes < 20)
		return 0;
	ip = head->bytes;
	identity->length_bytes = head->wire_bytes;
	if (ip[0] >> 4 == 4 && identity->ethernet_protocol == 0x0800) {
		identity->ip_version = 4;
		identity->protocol = ip[9];
		identity->ip_id = number16(ip + 4);
		map_ipv4(identity->source, *(const __be32 *)(ip + 12));
		map_ipv4(identity->destination, *(const __be32 *)(ip + 16));
		offset = (ip[0] & 15) * 4;
		/* Of a later fragment the transport header is elsewhere. */
		if (!(number16(ip + 6) & 0x1fff))
			describe_transport(identity, head, offset, head->wire_bytes - offset);
	} else if (ip[0] >> 4 == 6 && identity->ethernet_protocol == 0x86dd && head->valid_bytes >= 40) {
		identity->ip_version = 6;
		identity->protocol = ip[6];
		__builtin_memcpy(identity->source, ip + 8, 16);
		__builtin_memcpy(identity->destination, ip + 24, 16);
		offset = 40;
		for (int i = 0; i < 4; i++) {
			const __u8 *extension;
			__u8 next = identity->protocol;

			if (next != 0 && next != 43 && next != 60 && next != 135)
				break;
			if (offset + 8 > head->valid_bytes)
				return 0;
			extension = bytes_at(head, offset);
			identity->protocol = extension[0];
			offset += (extension[1] + 1) * 8;
		}
		describe_transport(identity, head, offset, head->wire_bytes - offset);
	}
	return 0;
}

#endif
