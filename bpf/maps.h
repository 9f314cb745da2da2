/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Arrays of the programs. Where an array has several elements, the loader sets max_entries. */
#ifndef PARSHALL_MAPS_H
#define PARSHALL_MAPS_H

#include <bpf/bpf_helpers.h>
#include "abi.h"

#define ARRAY_OF_KIND(kind, element)    \
	struct {                        \
		__uint(type, kind);     \
		__uint(max_entries, 1); \
		__type(key, __u32);     \
		__type(value, element); \
	}
#define ARRAY(element) ARRAY_OF_KIND(BPF_MAP_TYPE_ARRAY, element)
#define PERCPU_ARRAY(element) ARRAY_OF_KIND(BPF_MAP_TYPE_PERCPU_ARRAY, element)

/* An array that user space maps. */
#define MAPPABLE_ARRAY(element)                    \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, element);            \
	}

/* The lanes of a ring; the loader sets value_size, too. */
#define RING_ARRAY                                                        \
	struct {                                                          \
		__uint(type, BPF_MAP_TYPE_ARRAY);                         \
		__uint(map_flags, BPF_F_MMAPABLE);                        \
		__uint(max_entries, 1);                                   \
		__uint(key_size, sizeof(__u32));                          \
		__uint(value_size, LANE_HEADER_BYTES + LANE_SLACK_BYTES); \
	}

#endif
