/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of GPU memory that may lie in several allocations: a program that maps its memory by itself has them side by side. */
#ifndef WEFT_CORE_SPAN_H
#define WEFT_CORE_SPAN_H

#include "weft/gpu.h"

/* To *range: the allocation at addr, with those behind it up to addr + len that belong to the same device; `reached` is true of all
 * of them. Returns 1: they cover it; 0: they do not; or a code. */
int weft__gpu_span(const struct weft_gpu_ops *ops, const void *addr, uint64_t len,
                   struct weft_gpu_range *range);

#endif
