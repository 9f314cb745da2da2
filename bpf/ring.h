/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The writing end of the ring: reserve, fill, commit. No locks: writers of one CPU may interrupt
 * each other (softirq in process context, preemption) and take turns by one atomic add.
 * abi.h documents the layout and what a reader may rely on. All rings are written here.
 */
#ifndef PARSHALL_RING_H
#define PARSHALL_RING_H

#include "abi.h"

#define barrier() asm volatile("" ::: "memory")

#define NO_POSITION (~0ULL)

/*
 * Under slow-reader preference: may the lane be reserved up to end_bytes? A global function, as those below: the verifier
 * follows it once in each program, and not at each call and try.
 */
__noinline int lane_has_room(const struct lane_readers *readers, __u64 size_bytes, __u64 end_bytes)
{
	if (!readers)
		return 0;
	for (int reader = 0; reader < RING_READERS_MAX; reader++) {
		if (!(readers->active & (1ULL << reader)))
			continue;
		if (end_bytes - readers->position_bytes[reader] > size_bytes)
			return 0;
	}
	return 1;
}

/*
 * Atomic operations with a result wait until every earlier store has left the CPU, into a ring that
 * no cache holds: they make up much of what a record costs. Where the kernel runs the programs of a
 * ring one behind the other on a CPU, plain loads and stores in the same order suffice. Other machines
 * than x86 may reorder stores, so the loader never sets writers_alone there.
 */
static __always_inline __u64 lane_reserve_alone(struct lane_header *lane,
						const struct lane_readers *readers,
						const volatile struct ring_layout *layout,
						__u32 length_bytes)
{
	volatile struct lane_header *shared = lane;
	__u64 position = shared->reserved_bytes;

	/* If another writer is half-way nevertheless, drop the record and count it. */
	if (shared->committed_bytes != position ||
	    (layout->wait_for_readers &&
	     !lane_has_room(readers, layout->size_bytes, position + length_bytes))) {
		shared->dropped_records++;
		return NO_POSITION;
	}
	shared->reserved_bytes = position + length_bytes;
	return position;
}

/* A writer is interrupted at most a few times between its load and its compare-and-swap. */
#define RESERVE_TRIES 16
/* A reservation, to be committed. */
struct ring_slot {
	struct lane_header *lane;
	__u64 position;
};

static __always_inline __u64 try_reserve(struct lane_header *lane, const struct lane_readers *readers, __u64 size_bytes,
					 __u32 length_bytes, const int waits_for_readers)
{
	for (int try = 0; try < RESERVE_TRIES; try++) {
		/* In this order: if they are equal, no writer was half-way at this position. */
		__u64 committed = *(volatile __u64 *)&lane->committed_bytes;
		__u64 position = *(volatile __u64 *)&lane->reserved_bytes;
		__u64 quiet = *(volatile __u64 *)&lane->quiet_bytes;

		if (committed == position)
			quiet = position;
		if (position + length_bytes - quiet > size_bytes)
			break;
		if (waits_for_readers && !lane_has_room(readers, size_bytes, position + length_bytes))
			break;
		if (__sync_val_compare_and_swap(&lane->reserved_bytes, position,
						position + length_bytes) == position) {
			*(volatile __u64 *)&lane->quiet_bytes = quiet;
			return position;
		}
	}
	__sync_fetch_and_add(&lane->dropped_records, 1);
	return NO_POSITION;
}

__noinline __u64 lane_reserve(struct lane_header *lane, __u64 size_bytes, __u32 length_bytes)
{
	return lane ? try_reserve(lane, 0, size_bytes, length_bytes, 0) : NO_POSITION;
}

__noinline __u64 lane_reserve_for_readers(struct lane_header *lane, const struct lane_readers *readers, __u64 size_bytes,
					  __u32 length_bytes)
{
	return lane ? try_reserve(lane, readers, size_bytes, length_bytes, 1) : NO_POSITION;
}

/*
 * Reserves length_bytes (a multiple of RECORD_ALIGN_BYTES, at most the layout's slack) and fills the
 * header but for the stamp. Returns NULL when there is no room. The layout must be constant, so that
 * the verifier sees a masked offset; it bounds writes behind the offset by the lane's slack.
 */
static __always_inline struct record_header *
ring_reserve(void *lane_memory, const struct lane_readers *readers,
	     const volatile struct ring_layout *layout, __u32 length_bytes, __u16 kind, __u16 hook,
	     struct ring_slot *slot)
{
	struct lane_header *lane = lane_memory;
	struct record_header *record;
	__u64 position, next;

	if (layout->writers_alone)
		position = lane_reserve_alone(lane, readers, layout, length_bytes);
	else if (layout->wait_for_readers)
		position = lane_reserve_for_readers(lane, readers, layout->size_bytes, length_bytes);
	else
		position = lane_reserve(lane, layout->size_bytes, length_bytes);
	if (position == NO_POSITION)
		return 0;
	next = position + length_bytes;
	if ((position ^ next) >> layout->part_shift)
		lane->boundary[(next >> layout->part_shift) & (LANE_INDEX_SLOTS - 1)] = next;

	record = lane_memory + LANE_HEADER_BYTES + (position & (layout->size_bytes - 1));
	if (layout->writers_alone)
		record->lane_seq = (*(volatile __u64 *)&lane->records)++;
	else
		record->lane_seq = __sync_fetch_and_add(&lane->records, 1);
	record->length_bytes = length_bytes;
	record->kind = kind;
	record->hook = hook;
	slot->lane = lane;
	slot->position = position;
	return record;
}

/* Makes the record visible: nothing of it may be written afterwards. */
static __always_inline void ring_commit(struct record_header *record,
					const volatile struct ring_layout *layout,
					const struct ring_slot *slot)
{
	__u64 stamp = slot->position ^ layout->secret;
	__u32 length_bytes = record->length_bytes;

	barrier();
	if (layout->writers_alone) {
		*(volatile __u64 *)&record->stamp = stamp;
		*(volatile __u64 *)&slot->lane->committed_bytes = slot->position + length_bytes;
		return;
	}
#if defined(__TARGET_ARCH_x86)
	/* Stores are not reordered with earlier stores here. */
	*(volatile __u64 *)&record->stamp = stamp;
#else
	__sync_lock_test_and_set(&record->stamp, stamp);
#endif
	__sync_fetch_and_add(&slot->lane->committed_bytes, length_bytes);
}

#endif
