/* SPDX-License-Identifier: Apache-2.0 */
/* The long operation behind which others are measured. */
#include "perf_behind.h"

#include <inttypes.h>

#include "common.h"
#include "perf_fail.h"
#include "perf_run.h"

/* Its contents differ from those of what is measured. */
static uint64_t seed_of(const struct perf_worker *w)
{
    return w->run.seed + 1;
}

/* Is this side's memory what the run changes? */
static bool changes(const struct perf_worker *w)
{
    return w->initiator == (w->run.test == PERF_READ);
}

int perf_behind_open(struct perf_worker *w, uint64_t bytes)
{
    struct perf_behind *b = &w->behind;
    if (bytes == 0)
        return 0;
    if (perf_layout_make(bytes, 1, 1, false, &b->layout))
        return perf_fail("%" PRIu64 " bytes are too much", bytes);
    return perf_region_open(&b->region, w->endpoint, perf_layout_size(&b->layout), &w->args->mem);
}

int perf_behind_prepare(struct perf_worker *w)
{
    struct perf_behind *b = &w->behind;
    b->done = b->started_ns = b->ended_ns = 0;
    b->under_way = false;
    if (!b->layout.bytes || !w->run.verify)
        return 0;
    return perf_region_fill(&b->region, &b->layout, seed_of(w),
                            changes(w) ? PERF_BLANK : PERF_DATA);
}

static int post(struct perf_worker *w)
{
    struct perf_behind *b = &w->behind;
    struct weft_local local = {
        .addr = b->region.addr, .len = b->layout.bytes, .mem = b->region.mem};
    struct weft_xfer xfer = {.struct_size = sizeof xfer,
                             .op = w->run.test == PERF_READ ? WEFT_XFER_READ : WEFT_XFER_WRITE,
                             .local = &local,
                             .nlocal = 1,
                             .remote = &b->remote,
                             .nremote = 1};
    uint64_t now = now_ns();
    int rc = weft_post(w->conns[0], &xfer, &b->op);
    if (rc < 0)
        return perf_fail("cannot post the operation of %" PRIu64 " bytes: %s", b->layout.bytes,
                         weft_last_error());
    b->started_ns = b->started_ns ? b->started_ns : now;
    b->under_way = true;
    return 0;
}

int perf_behind_turn(struct perf_worker *w, bool more)
{
    struct perf_behind *b = &w->behind;
    struct weft_op_status status = {0};
    int rc = b->under_way ? weft_op_poll(b->op, &status) : 1;
    if (rc < 0)
        return perf_fail("the operation of %" PRIu64 " bytes failed: %s", b->layout.bytes,
                         status.text[0] ? status.text : weft_strerror(rc));
    if (rc == 0)
        return 0;
    if (b->under_way) {
        b->under_way = false;
        b->done++;
        b->ended_ns = now_ns();
    }
    return more ? post(w) : 0;
}

int perf_behind_check(const struct perf_worker *w)
{
    const struct perf_behind *b = &w->behind;
    if (!b->layout.bytes || !changes(w))
        return 1;
    return perf_region_check(&b->region, &b->layout, seed_of(w), 1);
}
