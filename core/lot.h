/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of a transfer that a nic does not reach at one end, or at both.
 *
 * Where the memory of this end is staged, a lot has slots, side by side, of an area of our own ("near"); where the peer's is, some
 * of an area of the peer's ("far"), which this end alone gives out. A lot goes
 *
 *     WRITE   GPU -copy-> near -WRITE-> far, then the peer is asked (COPY) to copy it to its place
 *     READ    the peer is asked to copy to far -READ-> near -copy-> GPU
 *
 * and leaves out what is not staged: from memory of the host it is written to far at once, to a peer whose nic reaches
 * its GPU straight into place. Where this end can copy between both places by itself (ipc.c), a copy is all. WRITE and READ
 * in this picture are operations as any other (lot->inner), so they are cut over the links, and go on when one
 * dies. Nothing here waits for order: each step begins when the one before has ended.
 *
 * The endpoint lock is held in every function here.
 */
#ifndef WEFT_CORE_LOT_H
#define WEFT_CORE_LOT_H

#include <stdbool.h>
#include <stdint.h>

#include "copier.h"
#include "op.h"
#include "stage.h"
#include "weft/list.h"

/* Of an area, side by side; none. */
struct weft__slots {
    int first, n;
};

struct weft__lot {
    struct weft_list in_conn; /* stage->lots */
    struct weft__conn *conn;
    struct weft__op *op;    /* pending on it. NULL: it did not wait */
    struct weft__op *inner; /* its WRITE or READ, while that is under way */
    struct weft__copy copy;
    struct weft_gpu_copy *list; /* n */
    uint64_t bytes;
    uint32_t id;
    struct weft__slots near, far;
    struct weft__import *import; /* copied straight from or to it, in this turn; else NULL */
    uint32_t turn;
    bool write, asked, canceled;
    size_t n;
    struct weft__piece parts[]; /* n; none where it is mapped */
};

#define WEFT__LOTS_KEPT 64 /* mapped ones */

/* Its pieces, its slots and, if it is mapped, its copy are there. It is in stage->lots, and pending on its op. */
void weft__lot_begin(struct weft__lot *lot);
/* The end of its copy. */
void weft__lot_copied(struct weft__copy *copy, int status, const char *why);
/* Frees it; the op may end. */
void weft__lot_end(struct weft__lot *lot, int status, const char *why);
/* Slots as bits of a word. */
static inline uint64_t weft__slots_bits(int first, int n)
{
    return (n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1) << first;
}

/* The largest power of two that is no more. */
static inline int weft__slots_power(int n)
{
    return n < 1 ? 0 : 1 << (31 - __builtin_clz((unsigned)n));
}

/*
 * Of those from `from` up to `upto`, n that are free; none: there are no such. n is a power of two from 1 on, and they begin at a multiple of it,
 * so that what has ended makes room for as long a piece. The longest are taken from below, others from above.
 */
static inline struct weft__slots weft__slots_take(uint64_t *used, int from, int upto, int n)
{
    bool below = n == WEFT__STAGE_SLOTS;
    int first = (from + n - 1) / n * n, last = upto / n * n - n;
    for (int i = 0; first + i * n <= last; i++) {
        int at = below ? first + i * n : last - i * n;
        uint64_t bits = weft__slots_bits(at, n);
        if (*used & bits)
            continue;
        *used |= bits;
        return (struct weft__slots){at, n};
    }
    return (struct weft__slots){0, 0};
}

/* But for the first `keep`. */
static inline void weft__slots_give(uint64_t *used, struct weft__slots *slots, int keep)
{
    if (slots->n > keep)
        *used &= ~weft__slots_bits(slots->first + keep, slots->n - keep);
    slots->n = slots->n < keep ? slots->n : keep;
}

/* stage.c: another conn may need our slots more. */
void weft__stage_rest(struct weft__conn *conn);

#endif
