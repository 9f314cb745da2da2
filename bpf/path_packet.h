/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The packets that the path instrument follows: a table that is indexed by a hash of the address of the
 * sk_buff and tagged with the address. A packet has an element of the table, its place, from its first stage
 * to its end. No single event ends all paths, and the kernel reuses an address at once. So is_same() checks
 * whether an sk_buff is still the packet; if not, the packet has ended.
 */
#ifndef PARSHALL_PATH_PACKET_H
#define PARSHALL_PATH_PACKET_H

#include "kernel_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "maps.h"
#include "parse.h"
#include "path_command.h"
#include "ring.h"

RING_ARRAY path_ring SEC(".maps");
MAPPABLE_ARRAY(struct lane_readers) path_readers SEC(".maps");
/* Element cpu. */
MAPPABLE_ARRAY(struct path_account) path_accounts SEC(".maps");
/* Element cpu * (PATH_CODE_COUNT + groups_max) + group; the first PATH_CODE_COUNT groups are the code paths. */
MAPPABLE_ARRAY(struct path_histogram) path_histograms SEC(".maps");
/* Element (cpu * PATH_WAIT_CODES + code) * PATH_BUCKETS + bucket of the whole. */
MAPPABLE_ARRAY(struct path_wait) path_waits SEC(".maps");
/* By drop reason. Reasons of subsystems are numbers from 1 << 16 on, too large for an array. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, PATH_REASONS_MAX);
	__type(key, __u32);
	__type(value, struct path_drops);
} path_drops SEC(".maps");

#define BIT(stage) (1u << (stage))
#define LEAVING (BIT(STAGE_START_XMIT) | BIT(STAGE_XMIT))
#define DELIVERING (BIT(STAGE_LOCAL_IN) | BIT(STAGE_SOCKET_IN) | BIT(STAGE_TCP_RECEIVE) | \
		    BIT(STAGE_DATA_READY) | BIT(STAGE_COPY))
#define ARRIVING (BIT(STAGE_GRO) | BIT(STAGE_NETIF_RX) | BIT(STAGE_RECEIVE))
/* More bits of path_packet.seen, besides the stages that the packet has passed: */
#define REMEMBERED BIT(26) /* as a GSO packet */
#define CAME_IN BIT(27) /* received from an interface, but no stage of ARRIVING is attached */
#define STACKED BIT(28) /* given to an interface that stands on another one */
#define REFUSED BIT(29) /* by a full accept queue */
#define JOINED BIT(30) /* to another packet, or others to it */
#define SEGMENTED BIT(31) /* by software GSO */
_Static_assert(BIT(STAGE_PAD) <= REMEMBERED, "stages: their bits end below the marks");

enum { FILTERED = 1, THINNED = 2 };

#define TAG_FREE 0ULL
#define TAG_TAKEN 1ULL /* the element is being written or read; no sk_buff has this address */

/* The part of a packet that all stages use, in two cache lines. */
struct path_packet {
	__u64 tag;
	__u64 time_ns;
	__u32 seen;
	__u16 first_cpu;
	__u8 first_stage;
	__u8 last_stage;
	__u32 head;         /* low bits of the address of its data; 0: IPv6 may join it, and then it has other data */
	__u32 stolen_from_ns; /* low bits of stolen_ns of its first CPU, at its first stage */
	__u16 interface_out;
	__u8 is_ignored;    /* FILTERED or THINNED */
	__u8 stacked_bytes; /* low bits of its length when it was STACKED */
	__u32 reason;
	__u32 offset_ns[EVEN(STAGE_PAD)]; /* of STAGE_DATA_READY until the end: low bits of that time; 0: it was not */
};

/* User space sets max_entries to 1 << table_bits, see place_of(). */
ARRAY(struct path_packet) path_packets SEC(".maps");
ARRAY(struct path_identity) path_identities SEC(".maps");

/* What a CPU is doing. */
struct path_cpu {
	__u64 delivering;   /* the sk_buff that was last given to a socket; until its data is ready */
	__u64 delivering_begun_ns; /* when that packet began: the next one in the same sk_buff began later */
	__u64 delivering_to; /* its socket; 0: unknown, but the fields below have the addressee */
	__u64 receiving; /* the sk_buff that an established connection was last seen to process; until its data is ready */
	__u64 receiving_begun_ns;
	__u64 receiving_to;
	const struct net *delivering_net;
	__u32 delivering_from_address; /* low bits, network byte order */
	__u16 delivering_from_port;    /* network byte order */
	__u16 delivering_port;         /* host byte order */
	__u32 delivering_protocol;
	/* Cookie of the socket whose data was last ready, until a task is woken for it or another packet comes. */
	__u64 ready_socket;
	__u64 irq_from_ns;
	__u64 stolen_ns;
	__u64 softirq_from_ns[16];
	__u64 net_rx_raised_ns;
	__u64 noise_from_ns[16];  /* start of the last event, for the gaps */
	__u32 poll;
	__u32 poll_index;
	__u32 noted;        /* how many packets were noted for generic XDP */
	__u32 heads_in_use; /* by programs that interrupted each other */
	__u32 passed;       /* packets of the group of which thinning keeps one */
	__u32 kept;         /* the place of that one in its group */
	__u32 is_dropping;  /* path_drop runs, and may be interrupted */
} __attribute__((aligned(64)));

/* A mappable array begins at a page, so that CPUs share no cache line. */
MAPPABLE_ARRAY(struct path_cpu) path_cpus SEC(".maps");

/* Forgets what a CPU was doing when the programs were detached, before they are attached again. */
static long forget_cpu(__u64 step, void *context)
{
	__u32 cpu = (__u32)step;
	struct path_cpu *then = bpf_map_lookup_elem(&path_cpus, &cpu);
	struct path_cpu fresh = {};

	if (!then)
		return 1;
	/* Polls keep their numbers. */
	fresh.stolen_ns = then->stolen_ns;
	fresh.poll = then->poll;
	fresh.passed = then->passed;
	*then = fresh;
	return 0;
}

/* Unused. It brings the type into the object, so that user space can compare its own layout. */
struct lane_header *lane_header_of_user_space;

__u64 attached_ns; /* when the programs were attached last */
/*
 * What the programs do, which does not depend on the order in which they are attached and detached: a drop must not end a packet
 * whose sk_buff another one has got at a stage that is detached already.
 */
enum {
	CLOSED, /* nothing: not all of them are attached */
	ENDING, /* packets go on to their ends, and none begins; what would begin ends the packet that had its sk_buff */
	OPEN,
};
__u32 window;

#define CPUS_MAX 8192u

/* Run before the programs are attached. */
SEC("syscall")
int path_open_window(void *context)
{
	bpf_loop(CPUS_MAX, forget_cpu, 0, 0);
	attached_ns = bpf_ktime_get_ns();
	return 0;
}

/* Run when all programs are attached. Returns the low bits of its time: who runs it may wait before and after it. */
SEC("syscall")
int path_begin_window(void *context)
{
	window = OPEN;
	return (__u32)bpf_ktime_get_ns();
}

/* Run when no more packets are to begin. Likewise. */
SEC("syscall")
int path_end_window(void *context)
{
	window = ENDING;
	return (__u32)bpf_ktime_get_ns();
}

/* Run before the first one is detached. */
SEC("syscall")
int path_close_window(void *context)
{
	window = CLOSED;
	return 0;
}

/* Numbers of the groups that have histograms of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct path_key);
	__type(value, __u32);
} path_groups SEC(".maps");

__u32 last_group;

static __always_inline struct path_account *account_of(__u32 cpu)
{
	return bpf_map_lookup_elem(&path_accounts, &cpu);
}

static __always_inline struct path_cpu *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&path_cpus, &cpu);
}

/* Programs of a CPU may interrupt each other. */
#define count(where) __sync_fetch_and_add(where, 1)

/*
 * An atomic operation waits for all stores before it, which costs more than everything else here. Where
 * bottom halves are disabled (when packets arrive, and when a driver gets them), no other program that counts
 * can interrupt, so plain counts suffice: `is_alone`.
 */
static __always_inline void count_in_softirq(__u64 *where, int is_alone)
{
	if (is_alone)
		*(volatile __u64 *)where += 1;
	else
		count(where);
}

/*
 * The place of an sk_buff. The verifier permits no shift of a pointer, but the copied low half of a pointer
 * is a number. Addresses are multiples of 64, and the golden ratio spreads them over the high bits.
 */
static __always_inline __u32 place_of(const void *skb)
{
	__u32 low;

	asm volatile("%[low] = %[pointer]" : [low] "=w"(low) : [pointer] "w"((__u32)(__u64)skb));
	return ((low >> 6) * 0x9e3779b1u) >> (32 - options.table_bits);
}

static __always_inline struct path_packet *packet_at(__u32 place)
{
	return bpf_map_lookup_elem(&path_packets, &place);
}

/* A packet has one of two neighbouring places, so that two live packets rarely displace each other. */
static __always_inline struct path_packet *find_packet(const void *skb, __u32 *place)
{
	struct path_packet *packet;

	*place = place_of(skb);
	if (window == CLOSED)
		return 0;
	packet = packet_at(*place);
	if (packet && *(volatile __u64 *)&packet->tag == (__u64)skb)
		return packet;
	*place ^= 1;
	packet = packet_at(*place);
	return packet && *(volatile __u64 *)&packet->tag == (__u64)skb ? packet : 0;
}

/* Low bits of the address of a packet's data. The verifier treats this pointer to bytes as a number. */
static __always_inline __u32 head_of(const struct sk_buff *skb)
{
	return (__u32)(__u64)skb->head;
}

static __always_inline __u16 socket_family(const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	return sk ? sk->__sk_common.skc_family : 0;
}

/*
 * Whether the sk_buff at the address of a packet is still that packet. The kernel reuses addresses for
 * packets of other namespaces, of AF_UNIX and netlink, and for copies for packet sockets, which pass no first
 * stage. Three properties tell them apart. Only a packet of a network has a protocol. Only a received packet
 * has the number of an interface. And the address of the data stays the same, except when the stack gives a
 * received packet its own copy of shared data; stages on the way out note the new address.
 * docs/decisions/0020-packets-by-sk-buff.md says what can still be confused.
 */
static __always_inline int is_same(const struct path_packet *packet, const struct sk_buff *skb)
{
	int came_in = packet->seen & ARRIVING;

	if (!skb->protocol)
		return 0;
	if (came_in && packet->last_stage >= STAGE_RECEIVE && !skb->skb_iif)
		return 0;
	return head_of(skb) == packet->head || !packet->head || (came_in && !BPF_CORE_READ_BITFIELD(skb, cloned));
}

#endif
