/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs that a peer of this host maps into its own process, where it copies from and to it by itself: ipc.c at the end
 * that maps ("import"), ipc_serve.c at the end whose memory it is ("export").
 *
 *     ASK   key          -->
 *                       <--   a descriptor with the key for its number, where the handle needs one (weft_link_pass_fn)
 *                       <--   MAP   key, range, access, handle: or why not
 *     copies, each inside the link (weft_link_enter_fn), in the turn of the last END
 *                       <--   END   key, turn: it was deregistered
 *
 * Permission is the peer's to give and to take back: by the turn, without waiting for this end's word. What a driver maps
 * is the whole allocation, or all segments of a range; keys, bounds and access are looked at here, by the end that copies.
 */
#ifndef WEFT_CORE_IPC_H
#define WEFT_CORE_IPC_H

#include <stdbool.h>
#include <stdint.h>

#include "op.h"
#include "weft/list.h"

struct weft__conn;
struct weft__endpoint;
struct weft__import;
struct weft__link;
struct weft__reg;
struct weft__work;

#define WEFT__INSIDE_MOST 16 /* lots that copy at once from and to a peer's memory */

/* What a conn has of it. Endpoint lock. */
struct weft__ipc {
    struct weft__import **imports; /* by key, made when first needed */
    uint32_t turn;                 /* of the peer's memory: ENDs that have arrived */
    struct weft_list exports;
};

/* Where a piece's remote memory is in this process, and the GPU that copies. */
struct weft__mapped {
    struct weft__import *import;
    uint8_t *addr;
    int ordinal;
    bool reached;      /* by kernels of that GPU, and so is this end's memory */
    uint64_t from, to; /* what the key gives, at the peer */
};

/* To the place of another piece with the same key and the same memory of this end; false: it is not inside. */
static inline bool weft__mapped_move(struct weft__mapped *mapped, const struct weft__piece *before,
                                     const struct weft__piece *piece)
{
    if (piece->raddr < mapped->from || piece->raddr > mapped->to ||
        piece->len > mapped->to - piece->raddr)
        return false;
    /* as numbers: it may lie before the other one */
    mapped->addr = (uint8_t *)((uintptr_t)mapped->addr + (piece->raddr - before->raddr));
    return true;
}

enum weft__ipc_way {
    WEFT__IPC_NONE, /* not this way */
    WEFT__IPC_WAIT, /* weft__stage_fill is called when it is known */
    WEFT__IPC_THERE
};

/* All with the endpoint lock held. */
void weft__ipc_init(struct weft__ipc *ipc);
/* Can this end copy between a piece's two ends, if its peer gives so much access (WEFT_READ, WEFT_WRITE)? */
enum weft__ipc_way weft__ipc_way(struct weft__conn *conn, const struct weft__piece *piece,
                                 uint32_t access, struct weft__mapped *mapped);
/* Until leave, the peer waits with what it takes back. False: it is doing so, or enough is under way; weft__stage_fill
 * is called. */
bool weft__ipc_enter(struct weft__conn *conn, struct weft__import *import, uint32_t *turn);
void weft__ipc_leave(struct weft__conn *conn, struct weft__import *import, uint32_t turn);
/* The conn, or the link that imports belong to, is down: nobody is inside but who leaves. */
void weft__ipc_down(struct weft__conn *conn);
void weft__ipc_free(struct weft__conn *conn);
/* Messages. 0, or a code that takes the conn down. */
int weft__ipc_map_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);
int weft__ipc_end_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);

/* The registration ends: so does what the host's memory was pinned for; a reason more to wait (reg->undone). */
void weft__ipc_unpin(struct weft__reg *reg);

/* --- ipc_serve.c --- */

#define WEFT__IPC_PCI 16

int weft__ipc_ask_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);
/* The registration ends: peers that have mapped it are told, and reg->undone counts those that may be inside. */
void weft__ipc_revoke(struct weft__reg *reg);
/* Lane lock held. False: to be done again. */
bool weft__ipc_recall(struct weft__work *work);
/* A link has closed: nobody is inside. */
void weft__ipc_closed(struct weft__link *link);
/* Is this an export of an endpoint of this process, of which any may be the peer? Such memory is
 * there already, and is mapped only if it is made of segments, which not all GPUs of a process may reach. Any lock may be held. */
bool weft__ipc_is_own(uint64_t key, uint64_t addr, uint64_t len, uint32_t access);

#endif
