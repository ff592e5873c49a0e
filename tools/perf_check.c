/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a run: did every byte arrive? A slot was blank before, and all operations that use it bring the same bytes: one that was
 * lost is seen if no other had its slot, and else by its completion, which perf_run.c takes with the number of bytes.
 */
#include <inttypes.h>

#include "common.h"
#include "perf_fail.h"
#include "perf_run.h"

/* What the initiator knows to be delivered may still wait in this side's queues. */
#define ARRIVE_NS 5000000000u

/* Slots that were used. */
static uint32_t used(const struct perf_worker *w)
{
    return w->run.iters < w->run.layout.slots ? (uint32_t)w->run.iters : w->run.layout.slots;
}

/* Operations that used a slot. */
static uint64_t uses(const struct perf_worker *w, uint32_t slot)
{
    uint64_t rest = w->run.iters % w->run.layout.slots;
    return w->run.iters / w->run.layout.slots + (slot < rest ? 1 : 0);
}

static int check_results(const struct perf_worker *w)
{
    for (uint32_t i = 0; i < used(w); i++) {
        uint64_t before = perf_add_start(w->seed_mine, i) +
                          (uses(w, i) - 1) * perf_add_value(w->seed_mine, i);
        if (w->mine.slots[i].result != before) {
            message("wrong result of an addition to word %" PRIu32, i);
            return 0;
        }
    }
    return 1;
}

static int check_words(const struct perf_worker *w)
{
    for (uint32_t i = 0; i < used(w); i++) {
        uint64_t word, sum = perf_add_start(w->seed_theirs, i) +
                             uses(w, i) * perf_add_value(w->seed_theirs, i);
        if (perf_word_get(&w->in, &w->run.layout, i, &word))
            return -1;
        if (word != sum) {
            message("wrong sum in word %" PRIu32, i);
            return 0;
        }
    }
    return 1;
}

static int check_notifs(const struct perf_worker *w)
{
    for (uint32_t i = 0; i < used(w); i++) {
        const struct weft_notif *n = &w->notifs[i];
        if (n->len != w->run.layout.bytes ||
            !perf_bytes_check(n->data, n->len, w->seed_theirs, i)) {
            message("wrong data in notification %" PRIu32 " of those in flight", i);
            return 0;
        }
    }
    return 1;
}

static int check_arrivals(struct perf_worker *w)
{
    if (w->run.test != PERF_SEND && w->run.test != PERF_NOTIFY)
        return 1;
    if (w->arrived == w->run.iters && w->wrong_length == 0)
        return 1;
    message("%" PRIu64 " of %" PRIu64 " arrived, %" PRIu64 " of another length", w->arrived,
            w->run.iters, w->wrong_length);
    return 0;
}

static int check_theirs(struct perf_worker *w)
{
    int rc = check_arrivals(w);
    if (rc <= 0)
        return rc;
    switch (w->run.test) {
    case PERF_WRITE:
    case PERF_RW: /* what was there to be read is unchanged */
    case PERF_SEND:
        return perf_region_check(&w->in, &w->run.layout, w->seed_theirs, used(w));
    case PERF_NOTIFY:
        return check_notifs(w);
    case PERF_ADD:
        return check_words(w);
    default:
        return 1;
    }
}

static int check_mine(struct perf_worker *w)
{
    if (w->run.test == PERF_READ || w->run.test == PERF_RW)
        return perf_region_check(&w->out, &w->run.layout, w->seed_mine, used(w));
    return w->run.test == PERF_ADD ? check_results(w) : 1;
}

int perf_run_check(struct perf_worker *w)
{
    uint64_t deadline = now_ns() + ARRIVE_NS;
    bool expects = perf_passive(w) && (w->run.test == PERF_SEND || w->run.test == PERF_NOTIFY);
    while (expects && w->arrived < w->run.iters && now_ns() < deadline)
        if (perf_run_arrivals(w))
            return -1;
    if (!w->run.verify)
        return 1;
    int mine = perf_active(w) ? check_mine(w) : 1;
    int theirs = mine >= 0 && perf_passive(w) ? check_theirs(w) : 1;
    int behind = perf_behind_check(w);
    return mine < 0 || theirs < 0 || behind < 0 ? -1 : mine && theirs && behind;
}
