/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Copies a packet's first bytes without a helper. The helpers end in `rep movsb`, which takes longer to
 * start than to copy a short packet. Into a ring outside the caches, `rep movsb` has half the speed of
 * plain stores; docs/ring.md has the numbers.
 */
#ifndef PARSHALL_COPY_H
#define PARSHALL_COPY_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define COPY_BYTES_MAX 2048 /* bounds the loop; longer frames hardly ever lie in one piece */

/*
 * One instruction copies eight bytes. On the machines that we support, neither source nor destination needs
 * to be aligned. A packed type would make the compiler copy byte by byte.
 */
struct copy_piece {
	__u64 words[4];
};

/*
 * The verifier knows the extent of a packet only for the register that was compared with its end, and the
 * bounds of a number only for the register that was compared. A compiler may compare something equivalent
 * (the distance in place of the pointer) and compute the pointer again. A pinned value is computed at this
 * point, and the compiler must use it.
 */
#define pin(value) asm volatile("" : "+r"(value))

/* Whether a piece lies before the packet's end; `at` must be pinned. */
static __always_inline int has_piece(const void *at, const void *data_end)
{
	const void *behind = at + sizeof(struct copy_piece);

	pin(behind);
	return behind <= data_end;
}

/*
 * Copies the first bytes of a packet whose linear part is data to data_end. Returns 0 and copies nothing when
 * the bytes are too few, too many, or not all in the linear part. The last piece overlaps the one before it.
 */
static __always_inline int copy_linear(void *to, const void *data, const void *data_end,
				       __u32 bytes)
{
	const __u64 piece = sizeof(struct copy_piece);
	__u64 last = bytes - piece; /* wraps around for too few bytes */
	__u64 end = COPY_BYTES_MAX;
	const void *from;

	pin(last);
	if (last > COPY_BYTES_MAX - piece)
		return 0;
	from = data + last;
	pin(from);
	if (!has_piece(from, data_end))
		return 0;
	/*
	 * Kernels before 6.8 learn nothing from a comparison with a variable, and would see an endless
	 * loop: without the pin, compilers leave out the first of the two comparisons.
	 */
	pin(end);
	for (__u64 at = 0; at < end && at < last; at += piece) {
		const void *next = data + at;

		pin(next);
		if (!has_piece(next, data_end))
			return 0;
		*(struct copy_piece *)(to + at) = *(const struct copy_piece *)next;
	}
	*(struct copy_piece *)(to + last) = *(const struct copy_piece *)from;
	return 1;
}

/*
 * The opposite: writes the first bytes of a packet. The caller has checked that the packet has data_bytes, a
 * constant, so not every piece needs a comparison with the packet's end. Returns 0 and writes nothing when
 * the bytes are too few or too many.
 */
static __always_inline int fill_linear(void *data, const void *data_end, __u32 data_bytes,
				       const void *from, __u32 bytes)
{
	const __u64 piece = sizeof(struct copy_piece);
	__u64 last = bytes - piece, last_max = data_bytes - piece;
	void *to;

	pin(last);
	if (last > last_max)
		return 0;
	to = data + last;
	pin(to);
	if (!has_piece(to, data_end))
		return 0;
	pin(last_max); /* as above */
	for (__u64 at = 0; at <= last_max && at < last; at += piece)
		*(struct copy_piece *)(data + at) = *(const struct copy_piece *)(from + at);
	*(struct copy_piece *)to = *(const struct copy_piece *)(from + last);
	return 1;
}

#endif
