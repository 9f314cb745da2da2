// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The capture instrument: copies a packet once into the ring for all subscribers that want it.
 *
 * A dispatcher, generated from the filters of all subscribers, is attached to the hook. It counts the
 * packet. If a filter matches, it stores subscribers and snapshot length in `verdict` and tail-calls a
 * program below, which reserves, copies, commits and counts, and passes the packet on.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "copy.h"
#include "maps.h"
#include "ring.h"

const volatile struct capture_options options SEC(".rodata.options");

#define layout options.layout
#define TCX_NEXT (-1)

_Static_assert((CAPTURE_SNAPLEN_MAX & (CAPTURE_SNAPLEN_MAX - 1)) == 0, "a mask bounds a length");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__uint(value_size, 8);
} ring SEC(".maps"); /* the loader substitutes the ring of all hooks */

MAPPABLE_ARRAY(struct lane_readers) ring_readers SEC(".maps"); /* as above */

/* Subscribers, as bits: [0] get every packet, [1] are woken at each packet. As above. */
MAPPABLE_ARRAY(__u64[2]) subscriber_sets SEC(".maps");

/* What wakes each subscriber. As above. */
struct bell {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, CAPTURE_SUBSCRIBERS_MAX);
	__type(key, __u32);
	__array(values, struct bell);
} bells SEC(".maps");

PERCPU_ARRAY(struct capture_verdict) verdict SEC(".maps");
PERCPU_ARRAY(struct capture_account) account SEC(".maps");

/* The tail call from the dispatcher to the program below. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} jumps SEC(".maps");

enum counts { MATCHED, DROPPED };

/*
 * Adds to the counts of every subscriber in a mask. A global function, as all loops over subscribers: the verifier follows
 * it once and not on each way to it.
 */
__noinline int count_for(enum counts kind, __u64 subscribers, __u64 records)
{
	__u32 only = 0;
	struct capture_account *counts = bpf_map_lookup_elem(&account, &only);

	if (!counts)
		return 0;
	for (int subscriber = 0; subscriber < CAPTURE_SUBSCRIBERS_MAX && subscribers; subscriber++) {
		if (subscribers & 1)
			(kind == DROPPED ? counts->dropped : counts->matched)[subscriber] += records;
		subscribers >>= 1;
	}
	return 0;
}

static __always_inline void count_matched(struct capture_account *counts, __u64 subscribers)
{
	if (counts->run_subscribers != subscribers) {
		count_for(MATCHED, counts->run_subscribers, counts->run_records);
		counts->run_subscribers = subscribers;
		counts->run_records = 0;
	}
	counts->run_records++;
}

/*
 * Reserves a place for a packet and fills in all but its bytes. *captured_bytes is how many of them
 * are to be copied behind the record: 1 to CAPTURE_SNAPLEN_MAX.
 */
static __always_inline struct capture_record *reserve(__u32 wire_bytes, __u32 *captured_bytes,
						      struct ring_slot *slot)
{
	/* First, because reading the clock waits for every load before it. */
	__u64 time_ns = bpf_ktime_get_ns();
	__u32 cpu = bpf_get_smp_processor_id(), only = 0, captured;
	struct capture_verdict *who = bpf_map_lookup_elem(&verdict, &only);
	struct capture_account *counts = bpf_map_lookup_elem(&account, &only);
	void *lane = bpf_map_lookup_elem(&ring, &cpu);
	struct lane_readers *readers = 0;
	struct capture_record *record;

	if (!who || !counts)
		return 0;
	if (layout.wait_for_readers)
		readers = bpf_map_lookup_elem(&ring_readers, &cpu);
	captured = wire_bytes < who->snaplen ? wire_bytes : who->snaplen;
	if (captured > CAPTURE_SNAPLEN_MAX)
		captured = CAPTURE_SNAPLEN_MAX;
	count_matched(counts, who->subscribers);
	/* A CPU that came online after the ring was created has no lane. */
	record = lane ? (void *)ring_reserve(lane, readers, &layout,
					     (sizeof(*record) + captured + RECORD_ALIGN_BYTES - 1) &
						     ~(RECORD_ALIGN_BYTES - 1),
					     RECORD_PACKET, options.hook, slot) :
			0;
	if (!record) {
		count_for(DROPPED, who->subscribers, 1);
		return 0;
	}
	record->time_ns = time_ns;
	record->subscribers = who->subscribers;
	record->wire_length_bytes = wire_bytes;
	record->captured_length_bytes = captured;
	record->gso_segs = 1;
	record->vlan_tci = 0;
	record->vlan_protocol = 0;
	record->interface = options.interface;
	record->direction = options.direction;
	*captured_bytes = captured;
	return record;
}

/* Wakes subscribers; one that is awake has left words in its bell, and then it costs no more than a word. */
__noinline int wake(__u64 subscribers)
{
	for (__u32 subscriber = 0; subscriber < CAPTURE_SUBSCRIBERS_MAX && subscribers; subscriber++) {
		__u32 key = subscriber;
		__u64 word = 0;
		void *bell;

		if (subscribers & 1) {
			bell = bpf_map_lookup_elem(&bells, &key);
			if (bell)
				bpf_ringbuf_output(bell, &word, sizeof(word), 0);
		}
		subscribers >>= 1;
	}
	return 0;
}

/* Makes a record visible. */
static __always_inline void commit(struct capture_record *record, struct ring_slot *slot)
{
	__u64 subscribers = record->subscribers;
	__u32 only = 0;
	__u64 *sets = bpf_map_lookup_elem(&subscriber_sets, &only);

	ring_commit(&record->header, &layout, slot);
	if (sets && sets[1] & subscribers)
		wake(sets[1] & subscribers);
}

/*
 * A length for a helper, already within its bounds. The verifier must see the bounds on the register that
 * the helper takes; before 6.11 it learns nothing from a comparison of another register.
 */
static __always_inline __u32 seen_length(__u32 bytes)
{
	pin(bytes);
	return ((bytes - 1) & (CAPTURE_SNAPLEN_MAX - 1)) + 1;
}

static __always_inline int verdict_of_xdp(void)
{
	return options.discard ? XDP_DROP : XDP_PASS;
}

SEC("xdp.frags")
int capture_xdp(struct xdp_md *packet)
{
	struct capture_record *record;
	struct ring_slot slot;
	__u32 bytes;

	record = reserve(bpf_xdp_get_buff_len(packet), &bytes, &slot);
	if (!record)
		return verdict_of_xdp();
	if (!copy_linear(record + 1, (void *)(long)packet->data, (void *)(long)packet->data_end,
			 bytes) &&
	    (!bytes || bpf_xdp_load_bytes(packet, 0, record + 1, seen_length(bytes))))
		record->captured_length_bytes = 0;
	commit(record, &slot);
	return verdict_of_xdp();
}

SEC("tc")
int capture_tcx(struct __sk_buff *packet)
{
	struct capture_record *record;
	struct ring_slot slot;
	__u32 bytes;

	record = reserve(packet->len, &bytes, &slot);
	if (!record)
		return TCX_NEXT;
	if (!copy_linear(record + 1, (void *)(long)packet->data, (void *)(long)packet->data_end,
			 bytes) &&
	    (!bytes || bpf_skb_load_bytes(packet, 0, record + 1, seen_length(bytes))))
		record->captured_length_bytes = 0;
	if (packet->gso_segs)
		record->gso_segs = packet->gso_segs;
	if (packet->vlan_present) {
		record->vlan_tci = packet->vlan_tci;
		record->vlan_protocol = bpf_ntohs(packet->vlan_proto);
	}
	commit(record, &slot);
	return TCX_NEXT;
}

/* Brings the record into the object's type information, which the layout test reads. */
struct capture_record *described_record;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
