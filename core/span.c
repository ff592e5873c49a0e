/* SPDX-License-Identifier: Apache-2.0 */
#include "span.h"

/* *range, with the allocation behind it. 1; 0: there is none that belongs to it; or a code. */
static int add_next(const struct weft_gpu_ops *ops, struct weft_gpu_range *range)
{
    uintptr_t end = (uintptr_t)range->base + range->len;
    struct weft_gpu_range next;
    int rc = ops->query((const void *)end, &next);
    uintptr_t upto = rc == 1 ? (uintptr_t)next.base + next.len : 0;
    if (rc < 0)
        return rc;
    if (rc == 0 || next.ordinal != range->ordinal || upto <= end)
        return 0;
    range->len += upto - end;
    range->reached &= next.reached;
    return 1;
}

int weft__gpu_span(const struct weft_gpu_ops *ops, const void *addr, uint64_t len,
                   struct weft_gpu_range *range)
{
    int rc = ops->query(addr, range);
    uintptr_t at = (uintptr_t)addr;
    while (rc == 1 && range->len - (at - (uintptr_t)range->base) < len)
        rc = add_next(ops, range);
    return rc;
}
