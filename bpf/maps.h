/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The arrays that user space maps. */
#ifndef PARSHALL_MAPS_H
#define PARSHALL_MAPS_H

#include <bpf/bpf_helpers.h>
#include "abi.h"

/* The loader sets max_entries where there are several elements. */
#define MAPPABLE_ARRAY(element)                    \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, element);            \
	}

#endif
