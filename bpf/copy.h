/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Copies a packet's first bytes without a helper. The helpers end in `rep movsb`, which takes longer
 * to begin than a short packet's copy takes, and into a ring that no cache holds goes on at half the
 * speed of plain stores; docs/ring.md has the numbers.
 */
#ifndef PARSHALL_COPY_H
#define PARSHALL_COPY_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define COPY_BYTES_MAX 2048 /* bounds the loop; longer frames hardly ever lie in one piece */

/*
 * Eight bytes an instruction. Neither end needs to be aligned, which the machines that we support do
 * not ask for; said of the type, the compiler would copy byte by byte.
 */
struct copy_piece {
	__u64 words[4];
};

/*
 * Copies bytes from the start of a packet whose linear part is data to data_end. Returns 0 when it did
 * not: too few, too many, or not all in the linear part. The last piece overlaps the one before it.
 */
static __always_inline int copy_linear(void *to, const void *data, const void *data_end,
				       __u32 bytes)
{
	const __u32 piece = sizeof(struct copy_piece);
	__u32 last = bytes - piece;

	/* The verifier must see this bound on the very number that is added. */
	asm volatile("" : "+r"(last));
	if (last > COPY_BYTES_MAX - piece || data + last + piece > data_end)
		return 0;
	for (__u32 at = 0; at < COPY_BYTES_MAX && at < last; at += piece) {
		if (data + at + piece > data_end)
			return 0;
		*(struct copy_piece *)(to + at) = *(const struct copy_piece *)(data + at);
	}
	*(struct copy_piece *)(to + last) = *(const struct copy_piece *)(data + last);
	return 1;
}

/*
 * The other way: writes the first bytes of a packet of which data_bytes, a constant, are known to be there, so
 * that not every piece asks for the packet's end. Returns 0 when it did not: too few or too many.
 */
static __always_inline int fill_linear(void *data, const void *data_end, __u32 data_bytes,
				       const void *from, __u32 bytes)
{
	const __u32 piece = sizeof(struct copy_piece);
	__u32 last = bytes - piece, last_max = data_bytes - piece;

	asm volatile("" : "+r"(last));
	if (last > last_max || data + last + piece > data_end)
		return 0;
	/* Kernels before 6.8 learn nothing of a number from a comparison with one that is no constant. */
	asm volatile("" : "+r"(last_max));
	for (__u32 at = 0; at <= last_max && at < last; at += piece)
		*(struct copy_piece *)(data + at) = *(const struct copy_piece *)(from + at);
	*(struct copy_piece *)(data + last) = *(const struct copy_piece *)(from + last);
	return 1;
}

#endif
