/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a nic does not reach goes through pinned memory of the host, at one end or at both: stage.c cuts a WRITE or
 * READ into lots, lot.c moves them, stage_serve.c copies for peers, stage_scatter.c what short messages have brought.
 */
#ifndef WEFT_CORE_STAGE_H
#define WEFT_CORE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "mem.h"
#include "op.h"
#include "weft/list.h"

struct weft__area;
struct weft__conn;
struct weft__endpoint;
struct weft__reg;

/* Pieces of a lot, which its message names: 24 bytes each. */
#define WEFT__LOT_PIECES 128
#define WEFT__MAPPED_MOST ((uint64_t)64 << 20) /* bytes of a copy to or from a mapping: who takes it back waits for so much */
/* The messages of an operation of so many bytes need not hurry: a transfer of the host's memory, as long, does not either. */
#define WEFT__STAGE_LONG (64 * 1024)
/* A piece of WEFT_STAGE_CHUNK is so many slots of an area, side by side; a shorter one is fewer. */
#define WEFT__STAGE_SLOTS 4
/* So many that long operations leave to short ones, which would wait for the end of a piece else. */
#define WEFT__STAGE_SPARE 2
/* An area has no less than two of the longest pieces, and those that are spared. */
#define WEFT__STAGE_LEAST (2 * WEFT__STAGE_SLOTS + WEFT__STAGE_SPARE)
/* How a COPY goes, as bits. */
#define WEFT__COPY_WRITE 1u   /* from the slot */
#define WEFT__COPY_PATIENT 2u /* its answer need not hurry */

/* The peer's area, which this end uses as it likes. */
enum weft__far_state { WEFT__FAR_NONE, WEFT__FAR_ASKED, WEFT__FAR_THERE };

/* What a conn has of it. Endpoint lock. */
struct weft__stage {
    struct weft__opq ops;   /* with pieces left to cut */
    struct weft__opq brief; /* the same, of less than WEFT__STAGE_LONG: they overtake */
    struct weft_list lots; /* under way */
    uint32_t nlots;
    uint32_t next_lot;
    struct weft__area *near; /* while there is something under way, or to cut */
    bool near_wanted;
    uint64_t near_used; /* slots, as bits */
    enum weft__far_state far_state;
    struct weft__remote far;
    uint64_t far_bytes, far_used; /* of a slot; slots, as bits */
    int far_slots;
    /* for the peer: */
    struct weft__area *landing;
    bool landing_wanted;
    uint64_t landing_used; /* slots that are being copied from or to, as bits */
    uint32_t serving;      /* copies, of lots and of additions; and what ipc.c does for the conn */
    uint32_t adding;       /* additions */
    bool told;             /* one has failed: once is enough for the log */
};

/* All with the endpoint lock held. */
void weft__stage_init(struct weft__stage *stage);
/* A WRITE, a READ or a FETCH that has memory of a GPU at one end (op->staged): as its nics can. */
void weft__stage_start(struct weft__conn *conn, struct weft__op *op);
/* A list in one registration at each end (op has its first piece), if it can be copied as it is: `fill` writes it, at most
 * WEFT__LOT_PIECES and WEFT__MAPPED_MOST, and returns how many copies there are, or 0. True: it is under way. False: no byte was moved (the peer may have been asked for its key). */
struct weft__mapped;
typedef size_t weft__stage_list_fn(const struct weft__op *op, const struct weft__mapped *mapped,
                                   const void *arg, struct weft_gpu_copy *list, uint64_t *bytes);
bool weft__stage_list(struct weft__op *op, weft__stage_list_fn *fill, const void *arg);
void weft__stage_fill(struct weft__conn *conn);
/* Something outside of ops refers to the conn, or does so no more: it may know more about what waits. */
void weft__stage_hold(struct weft__conn *conn);
void weft__stage_release(struct weft__conn *conn);
/* Those of all conns may know more. */
void weft__stage_fill_all(struct weft__endpoint *ep);
/* No more of it is cut into lots. */
void weft__stage_leave(struct weft__op *op);
/* The op is canceled: it does not wait for what does not touch its memory. */
void weft__stage_cancel(struct weft__op *op);
void weft__stage_down(struct weft__conn *conn);
/* An area was made (weft__area_get), or could not be. */
void weft__stage_area(struct weft__endpoint *ep, int status, const char *why);
/* Does the peer of this conn have to copy what is named by this piece? */
bool weft__stage_far(const struct weft__conn *conn, const struct weft__piece *piece);

/* Messages. 0, or a code that takes the conn down. */
int weft__stage_area_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);

/* --- lot.c --- */

int weft__stage_copied_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);

/* --- stage_scatter.c --- */

/* A processor does not put bytes there by itself: those of a short message into the pieces of its RECV. */
int weft__stage_scatter(struct weft__op *op, const uint8_t *data, uint64_t len);

/* --- stage_serve.c --- */

int weft__stage_open_arrived(struct weft__conn *conn, size_t len);
int weft__stage_copy_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);
/* An area for a conn's peer, or why there is none. */
void weft__serve_area(struct weft__conn *conn, struct weft__area *area, int status);
/* The conn is down: its area, once nothing is copied. */
void weft__serve_down(struct weft__conn *conn);
/* An addition to a word that no processor reaches, one at a time; weft__add_answer tells its end. */
int weft__serve_add(struct weft__conn *conn, uint64_t id, struct weft__reg *reg, uint64_t addr,
                    uint64_t value);

#endif
