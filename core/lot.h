/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of a transfer that a nic does not reach at one end, or at both.
 *
 * Where the memory of this end is staged, a lot has a slot of an area of our own ("near"); where the peer's is, one of an
 * area of the peer's ("far"), which this end alone gives out. A lot goes
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
#include "weft/list.h"

struct weft__lot {
    struct weft_list in_conn; /* stage->lots */
    struct weft__conn *conn;
    struct weft__op *op;    /* pending on it. NULL: it did not wait */
    struct weft__op *inner; /* its WRITE or READ, while that is under way */
    struct weft__copy copy;
    struct weft_gpu_copy *list; /* n */
    uint64_t bytes;
    uint32_t id;
    int near, far;               /* slots; -1: none */
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
/* The lowest bit that is not set of so many, which is set then; or -1. */
static inline int weft__slot_take(uint64_t *used, int n)
{
    int slot = *used == UINT64_MAX ? 64 : __builtin_ctzll(~*used);
    if (slot >= n)
        return -1;
    *used |= UINT64_C(1) << slot;
    return slot;
}

/* It is none then. */
static inline void weft__slot_give(uint64_t *used, int *slot)
{
    if (*slot >= 0)
        *used &= ~(UINT64_C(1) << *slot);
    *slot = -1;
}

/* stage.c: another conn may need our slots more. */
void weft__stage_rest(struct weft__conn *conn);

#endif
