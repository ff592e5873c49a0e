/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers of memory that a nic does not reach: through pinned memory, piece by piece, several at once.
 *
 * A transfer is cut into lots. Where the memory of this end is staged, a lot has a slot of an area of our own ("near");
 * where the peer's is, one of an area of the peer's ("far"), which this end alone gives out. A lot goes
 *
 *     WRITE   GPU -copy-> near -WRITE-> far, then the peer is asked (COPY) to copy it to its place
 *     READ    the peer is asked to copy to far -READ-> near -copy-> GPU
 *
 * and leaves out what is not staged: from memory of the host it is written to far at once, to a peer whose nic reaches
 * its GPU straight into place. Where this end can copy between both places by itself (ipc.c), a copy is all. WRITE and READ in this picture are operations as any other (lot->inner), so they are cut
 * over the links, and go on when one dies. Nothing here waits for order: each step begins when the one before has ended.
 *
 * The endpoint lock is held in every function here.
 */
#include "stage.h"
#include "conn.h"
#include "copier.h"
#include "endpoint.h"
#include "ipc.h"
#include "msg.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAPPED_MOST                                                                               \
    ((uint64_t)64                                                                                 \
     << 20) /* bytes of a copy to or from a mapping: who takes it back waits for so much */

struct weft__lot {
    struct weft_list in_conn; /* stage->lots */
    struct weft__conn *conn;
    struct weft__op *op;    /* pending on it. NULL: it did not wait */
    struct weft__op *inner; /* its WRITE or READ, while that is under way */
    struct weft__copy copy;
    struct weft_gpu_copy *list; /* n */
    uint64_t bytes;
    uint32_t id;
    int near, far; /* slots; -1: none */
    struct weft__import *import; /* copied straight from or to it, in this turn; else NULL */
    uint32_t turn;
    bool write, asked, canceled;
    size_t n;
    struct weft__piece parts[];
};

void weft__stage_init(struct weft__stage *stage)
{
    weft_list_init(&stage->lots);
}

bool weft__stage_far(const struct weft__conn *conn, const struct weft__piece *piece)
{
    bool own = conn->nlinks && conn->links[0]->peer_slot >= 0;
    return piece->far & (own ? WEFT__STAGED_OWN : WEFT__STAGED_CHOSEN);
}

static bool is_near(const struct weft__conn *conn, const struct weft__piece *piece)
{
    return piece->gpu && !(piece->reg && !(piece->reg->unreached & conn->lanes));
}

/* --- slots ------------------------------------------------------------------------------------ */

/* The lowest bit that is not set of so many, which is set then; or -1. */
static int slot_take(uint64_t *used, int n)
{
    int slot = *used == UINT64_MAX ? 64 : __builtin_ctzll(~*used);
    if (slot >= n)
        return -1;
    *used |= UINT64_C(1) << slot;
    return slot;
}

static void slot_give(uint64_t *used, int *slot)
{
    if (*slot >= 0)
        *used &= ~(UINT64_C(1) << *slot);
    *slot = -1;
}

static uint8_t *near_addr(const struct weft__lot *lot)
{
    return lot->conn->stage.near->addr + (uint64_t)lot->near * lot->conn->ep->copier.slot_bytes;
}

/* What our own slots are in, once it is needed; false: it is being made. */
static bool have_near(struct weft__conn *conn)
{
    struct weft__stage *s = &conn->stage;
    if (!s->near && !s->near_wanted) {
        s->near = weft__area_get(conn->ep);
        s->near_wanted = !s->near;
    }
    return s->near;
}

static bool have_far(struct weft__conn *conn)
{
    struct weft__stage *s = &conn->stage;
    if (s->far_state == WEFT__FAR_NONE) {
        struct weft__msg_head head = {.type = WEFT__MSG_STAGE_OPEN};
        s->far_state = WEFT__FAR_ASKED;
        weft__msg_post(conn, &head, NULL, 0);
    }
    return s->far_state == WEFT__FAR_THERE;
}

/* Another conn may need it more. */
static void rest(struct weft__conn *conn)
{
    struct weft__stage *s = &conn->stage;
    if (s->near && !s->near_used && !s->ops.head) {
        weft__area_put(conn->ep, s->near);
        s->near = NULL;
    }
}

/* --- the steps of a lot ------------------------------------------------------------------------ */

static void moved(struct weft__op *inner);
static void copied(struct weft__copy *copy, int status, const char *why);

static void lot_end(struct weft__lot *lot, int status, const char *why)
{
    struct weft__conn *conn = lot->conn;
    struct weft__op *op = lot->op;
    weft_list_remove(&lot->in_conn);
    slot_give(&conn->stage.near_used, &lot->near);
    slot_give(&conn->stage.far_used, &lot->far);
    if (lot->import)
        weft__ipc_leave(conn, lot->import, lot->turn);
    if (lot->import && op && !status)
        conn->stats.bytes_mapped += lot->bytes;
    if (op && status)
        weft__op_fail(op, status, why);
    else if (op)
        op->bytes += lot->bytes;
    free(lot);
    if (op)
        weft__op_unpend(op);
    weft__stage_fill(conn);
    rest(conn);
}

/* Between the slot and the places of its pieces. */
static void copy_begin(struct weft__lot *lot)
{
    uint8_t *at = near_addr(lot);
    lot->copy.reached = lot->conn->stage.near->reached;
    for (size_t i = 0; i < lot->n; at += lot->parts[i].len, i++) {
        struct weft_gpu_copy copy = {at, lot->parts[i].addr, lot->parts[i].len};
        if (!lot->write)
            copy = (struct weft_gpu_copy){lot->parts[i].addr, at, lot->parts[i].len};
        lot->list[i] = copy;
        lot->copy.reached &= lot->parts[i].reg && lot->parts[i].reg->reached;
    }
    lot->copy.ordinal = lot->parts[0].gpu - 1;
    lot->copy.list = lot->list;
    lot->copy.n = (int)lot->n;
    lot->copy.done = copied;
    weft__copy_push(lot->conn->ep, &lot->copy);
}

/* Point a piece at a slot of the peer. */
static void to_far(const struct weft__lot *lot, struct weft__piece *piece, uint64_t offset)
{
    const struct weft__stage *s = &lot->conn->stage;
    piece->raddr = s->far.addr + (uint64_t)lot->far * s->far_bytes + offset;
    piece->rkey = s->far.key;
    memcpy(piece->rkeys, s->far.keys, sizeof piece->rkeys);
}

/* The pieces of its WRITE or READ. Returns how many. */
static size_t inner_pieces(const struct weft__lot *lot, struct weft__piece *out)
{
    uint64_t offset = 0;
    if (lot->near >= 0 && lot->far >= 0) {
        *out = (struct weft__piece){
            .addr = near_addr(lot), .len = lot->bytes, .reg = lot->conn->stage.near->reg};
        to_far(lot, out, 0);
        return 1;
    }
    for (size_t i = 0; i < lot->n; offset += lot->parts[i].len, i++) {
        out[i] = lot->parts[i];
        if (lot->near >= 0) {
            out[i].addr = near_addr(lot) + offset;
            out[i].reg = lot->conn->stage.near->reg;
        }
        if (lot->far >= 0)
            to_far(lot, &out[i], offset);
    }
    return lot->n;
}

static void move(struct weft__lot *lot)
{
    struct weft__conn *conn = lot->conn;
    size_t n = lot->near >= 0 && lot->far >= 0 ? 1 : lot->n;
    struct weft__op *inner = weft__op_new(conn, lot->write ? WEFT__OP_WRITE : WEFT__OP_READ);
    struct weft__piece *pieces = !inner ? NULL : n > 1 ? malloc(n * sizeof *pieces) : &inner->one;
    if (!pieces) {
        if (inner) {
            inner->pieces = &inner->one;
            weft__op_free(inner);
        }
        lot_end(lot, -ENOMEM, "no memory for an operation");
        return;
    }
    inner->pieces = pieces;
    inner->npieces = inner_pieces(lot, pieces);
    inner->total = lot->bytes;
    inner->lot = lot;
    inner->on_end = moved;
    lot->inner = inner;
    weft__stripe_start(conn, inner);
}

/* Ask the peer to copy between its slot and the places of the pieces. */
static void ask(struct weft__lot *lot)
{
    uint8_t body[8 + 24 * WEFT__LOT_PIECES];
    struct weft__writer w = {body, body + sizeof body, false};
    struct weft__msg_head head = {.type = WEFT__MSG_STAGE_COPY};
    weft__put_u32(&w, lot->id);
    weft__put_u8(&w, lot->write);
    weft__put_u8(&w, (uint8_t)lot->far);
    weft__put_u16(&w, (uint16_t)lot->n);
    for (size_t i = 0; i < lot->n; i++) {
        weft__put_u64(&w, lot->parts[i].raddr);
        weft__put_u64(&w, lot->parts[i].rkey);
        weft__put_u64(&w, lot->parts[i].len);
    }
    lot->asked = true;
    weft__msg_post(lot->conn, &head, body, (size_t)(w.at - body));
}

/* What every step does first. */
static bool over(struct weft__lot *lot, int status, const char *why)
{
    const struct weft__conn *conn = lot->conn;
    if (!status && conn->state == WEFT_CONN_DOWN) {
        status = conn->status;
        why = conn->why;
    }
    if (!status && (!lot->op || lot->canceled))
        status = WEFT_ECANCELED;
    if (status)
        lot_end(lot, status, why);
    return status;
}

static void copied(struct weft__copy *copy, int status, const char *why)
{
    struct weft__lot *lot = (struct weft__lot *)(void *)((char *)copy -
                                                         offsetof(struct weft__lot, copy));
    if ((!lot->write || lot->import) && !status)
        lot_end(lot, 0, NULL);
    else if (!over(lot, status, why))
        move(lot);
}

static void moved(struct weft__op *inner)
{
    struct weft__lot *lot = inner->lot;
    struct weft__conn *conn = lot->conn;
    lot->inner = NULL;
    bool last = lot->write ? lot->far < 0 : lot->near < 0;
    if (last && !inner->status) {
        lot_end(lot, 0, NULL);
    } else if (!over(lot, inner->status, inner->text)) {
        if (!lot->write) {
            slot_give(&conn->stage.far_used, &lot->far);
            copy_begin(lot);
        } else {
            slot_give(&conn->stage.near_used, &lot->near);
            ask(lot);
        }
        weft__stage_fill(conn);
    }
}

int weft__stage_copied_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    uint32_t id = weft__get_u32(&r);
    int32_t status = (int32_t)weft__get_u32(&r);
    if (r.bad || r.at != r.end || status > 0)
        return WEFT_EPROTO;
    for (struct weft_list *at = conn->stage.lots.next; at != &conn->stage.lots; at = at->next) {
        struct weft__lot *lot = WEFT_LIST_OF(at, struct weft__lot, in_conn);
        if (lot->id != id || !lot->asked)
            continue;
        lot->asked = false;
        char text[96];
        snprintf(text, sizeof text, "the peer could not copy it: %s", weft_strerror(status));
        if (lot->write && !status)
            lot_end(lot, 0, NULL);
        else if (!over(lot, status, text))
            move(lot);
        return 0;
    }
    return WEFT_EPROTO;
}

static void begin(struct weft__lot *lot)
{
    if (lot->import)
        weft__copy_push(lot->conn->ep, &lot->copy);
    else if (lot->write && lot->near >= 0)
        copy_begin(lot);
    else if (!lot->write && lot->far >= 0)
        ask(lot);
    else
        move(lot);
}

/* --- from an op to lots ------------------------------------------------------------------------- */

static bool exhausted(struct weft__op *op)
{
    while (op->next_piece < op->npieces && op->next_offset == op->pieces[op->next_piece].len) {
        op->next_piece++;
        op->next_offset = 0;
    }
    return op->next_piece == op->npieces;
}

/* How a piece goes. */
struct path {
    bool near, far; /* what is staged, unless it is */
    enum weft__ipc_way way;
    struct weft__mapped mapped;
    uint16_t gpu;
};

static struct path path_of(struct weft__conn *conn, const struct weft__op *op)
{
    const struct weft__piece *piece = &op->pieces[op->next_piece];
    uint32_t access = op->kind == WEFT__OP_WRITE ? WEFT_WRITE : WEFT_READ;
    struct path path = {.near = is_near(conn, piece), .far = weft__stage_far(conn, piece)};
    path.way = weft__ipc_way(conn, piece, access, &path.mapped);
    path.gpu = path.near ? piece->gpu : 0;
    return path;
}

static bool same_path(const struct path *a, const struct path *b)
{
    return a->near == b->near && a->far == b->far && a->way == b->way && a->gpu == b->gpu &&
           a->mapped.import == b->mapped.import && a->mapped.ordinal == b->mapped.ordinal &&
           a->mapped.reached == b->mapped.reached;
}

static uint64_t room_of(const struct weft__conn *conn, const struct path *path)
{
    uint64_t room = UINT64_MAX;
    if (path->way == WEFT__IPC_THERE)
        return MAPPED_MOST;
    if (path->near)
        room = conn->ep->copier.slot_bytes;
    if (path->far && conn->stage.far_bytes < room)
        room = conn->stage.far_bytes;
    return room;
}

/* The next part of an op into the lot. */
static void take(struct weft__lot *lot, struct weft__op *op, const struct path *path,
                 uint64_t room)
{
    const struct weft__piece *piece = &op->pieces[op->next_piece];
    uint64_t left = piece->len - op->next_offset, n = left < room ? left : room;
    struct weft__piece *part = &lot->parts[lot->n];
    *part = *piece;
    part->addr += op->next_offset;
    part->raddr += op->next_offset;
    part->len = n;
    if (path->way == WEFT__IPC_THERE) {
        uint8_t *there = path->mapped.addr + op->next_offset;
        lot->list[lot->n] = lot->write ? (struct weft_gpu_copy){there, part->addr, n}
                                       : (struct weft_gpu_copy){part->addr, there, n};
    }
    lot->n++;
    lot->bytes += n;
    op->next_offset += n;
}

/* The pieces of a lot go the same way, by the same GPU, and fit a slot if they need one. */
static struct weft__lot *cut(struct weft__conn *conn, struct weft__op *op, const struct path *path)
{
    size_t most = op->npieces - op->next_piece;
    uint64_t room = room_of(conn, path);
    most = most < WEFT__LOT_PIECES ? most : WEFT__LOT_PIECES;
    struct weft__lot *lot = malloc(sizeof *lot + most * (sizeof *lot->parts + sizeof *lot->list));
    if (!lot)
        return NULL;
    *lot = (struct weft__lot){
        .conn = conn, .op = op, .near = -1, .far = -1, .id = conn->stage.next_lot++};
    lot->list = (struct weft_gpu_copy *)(void *)&lot->parts[most];
    lot->write = op->kind == WEFT__OP_WRITE;
    while (lot->n < most && room > 0 && !exhausted(op)) {
        struct path next = path_of(conn, op);
        if (!same_path(&next, path))
            break;
        uint64_t before = lot->bytes;
        take(lot, op, &next, room);
        room -= lot->bytes - before;
    }
    return lot;
}

static void add_lot(struct weft__op *op, struct weft__lot *lot)
{
    op->pending++;
    weft_list_push(&lot->conn->stage.lots, &lot->in_conn);
    begin(lot);
}

static void no_memory(struct weft__op *op)
{
    weft__op_fail(op, -ENOMEM, "no memory to copy memory of a GPU");
}

/* A lot that is one copy. */
static bool next_mapped(struct weft__conn *conn, struct weft__op *op, const struct path *path)
{
    uint32_t turn;
    if (!weft__ipc_enter(conn, path->mapped.import, &turn))
        return false;
    struct weft__lot *lot = cut(conn, op, path);
    if (!lot) {
        weft__ipc_leave(conn, path->mapped.import, turn);
        no_memory(op);
        return true;
    }
    lot->import = path->mapped.import;
    lot->turn = turn;
    lot->copy.ordinal = path->mapped.ordinal;
    lot->copy.list = lot->list;
    lot->copy.n = (int)lot->n;
    lot->copy.reached = path->mapped.reached;
    lot->copy.done = copied;
    add_lot(op, lot);
    return true;
}

/* The next lot of the first op. False: it has to wait. */
static bool next(struct weft__conn *conn, struct weft__op *op)
{
    struct weft__stage *s = &conn->stage;
    struct path path = path_of(conn, op);
    bool near = path.near, far = path.far;
    if (path.way == WEFT__IPC_THERE)
        return next_mapped(conn, op, &path);
    if (path.way == WEFT__IPC_WAIT || (far && !have_far(conn)) || conn->state != WEFT_CONN_UP ||
        (near && !have_near(conn)))
        return false;
    int far_slot = far ? slot_take(&s->far_used, s->far_slots) : -1;
    int near_slot = near ? slot_take(&s->near_used, conn->ep->copier.nslots) : -1;
    bool room = !(far && far_slot < 0) && !(near && near_slot < 0);
    struct weft__lot *lot = room ? cut(conn, op, &path) : NULL;
    if (!lot) {
        slot_give(&s->far_used, &far_slot);
        slot_give(&s->near_used, &near_slot);
        if (room)
            no_memory(op);
        return room;
    }
    lot->near = near_slot;
    lot->far = far_slot;
    add_lot(op, lot);
    return true;
}

static bool any_staged(const struct weft__conn *conn, const struct weft__op *op)
{
    for (size_t i = 0; i < op->npieces; i++)
        if (is_near(conn, &op->pieces[i]) || weft__stage_far(conn, &op->pieces[i]))
            return true;
    return false;
}

void weft__stage_fill(struct weft__conn *conn)
{
    struct weft__stage *s = &conn->stage;
    struct weft__op *op;
    while (conn->state == WEFT_CONN_UP && (op = s->ops.head)) {
        if (!op->status && !op->cutting && !any_staged(conn, op)) { /* all that nics reach */
            weft__opq_remove(&s->ops, op);
            weft__stripe_start(conn, op);
            continue;
        }
        op->cutting = true;
        op->pending++; /* one hold: a lot may end at once, and the op with it */
        bool goes_on = op->status || exhausted(op) || next(conn, op);
        if ((op->status || exhausted(op)) && op->where == WEFT__AT_STAGED)
            weft__opq_remove(&s->ops, op);
        weft__op_unpend(op);
        if (!goes_on)
            return;
    }
    rest(conn);
}

void weft__stage_fill_all(struct weft__endpoint *ep)
{
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next)
        if (conn->stage.ops.head)
            weft__stage_fill(conn);
}

void weft__stage_start(struct weft__conn *conn, struct weft__op *op)
{
    weft__opq_push(&conn->stage.ops, op, WEFT__AT_STAGED);
    weft__stage_fill(conn);
}

/* --- areas -------------------------------------------------------------------------------------- */

/* Ops that cannot go on without. */
static void fail_staged(struct weft__conn *conn, int status, const char *why)
{
    struct weft__op *op;
    while ((op = conn->stage.ops.head)) {
        weft__op_fail(op, status, why);
        weft__opq_remove(&conn->stage.ops, op);
        weft__op_settle(op);
    }
}

static void give_near(struct weft__conn *conn, int status, const char *why)
{
    struct weft__stage *s = &conn->stage;
    s->near_wanted = false;
    if (status)
        fail_staged(conn, status, why);
    else
        weft__stage_fill(conn);
    rest(conn);
}

void weft__stage_area(struct weft__endpoint *ep, int status, const char *why)
{
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next) {
        if (conn->stage.near_wanted) {
            give_near(conn, status, why);
            return;
        }
        if (conn->stage.landing_wanted) {
            weft__serve_area(conn, status ? NULL : weft__area_get(ep), status);
            return;
        }
    }
}

/* i32 status, u32 bytes of a slot, u32 slots, a remote of all of them. */
int weft__stage_area_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__stage *s = &conn->stage;
    struct weft__reader r = {body, body + len, false};
    struct weft_remote remote;
    int32_t status = (int32_t)weft__get_u32(&r);
    uint32_t bytes = weft__get_u32(&r), slots = weft__get_u32(&r);
    weft__get(&r, remote.bytes, sizeof remote.bytes);
    if (r.bad || r.at != r.end || status > 0 || s->far_state != WEFT__FAR_ASKED)
        return WEFT_EPROTO;
    if (status) {
        char text[96];
        snprintf(text, sizeof text, "the peer cannot stage its memory: %s", weft_strerror(status));
        s->far_state = WEFT__FAR_NONE;
        fail_staged(conn, status, text);
        return 0;
    }
    if (weft__remote_decode(&remote, &s->far) || s->far.owner != conn->peer_owner || !bytes ||
        s->far.access != (WEFT_READ | WEFT_WRITE) || !slots || slots > 64 ||
        s->far.len != (uint64_t)bytes * slots)
        return WEFT_EPROTO;
    s->far_bytes = bytes;
    s->far_slots = (int)slots;
    s->far_state = WEFT__FAR_THERE;
    weft__stage_fill(conn);
    return 0;
}

/* --- ends ---------------------------------------------------------------------------------------- */

/* One of an op, or of all, that has this still to do; else NULL. */
static struct weft__lot *find(struct weft__conn *conn, const struct weft__op *op, bool asked)
{
    for (struct weft_list *at = conn->stage.lots.next; at != &conn->stage.lots; at = at->next) {
        struct weft__lot *lot = WEFT_LIST_OF(at, struct weft__lot, in_conn);
        if ((!op || lot->op == op) && (asked ? lot->asked : !lot->canceled))
            return lot;
    }
    return NULL;
}

void weft__stage_leave(struct weft__op *op)
{
    weft__opq_remove(&op->conn->stage.ops, op);
    rest(op->conn);
}

void weft__stage_cancel(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    struct weft__lot *lot;
    while ((lot = find(conn, op, false))) {
        lot->canceled = true;
        if (lot->inner) {
            weft__op_cancel(lot->inner);
        } else if (
            lot->asked) { /* touches no memory of ours; the slot is ours again when the peer answers */
            lot->op = NULL;
            op->pending--; /* who cancels holds it */
        }                  /* else: a copy, which ends soon */
    }
}

void weft__stage_down(struct weft__conn *conn)
{
    struct weft__lot *lot;
    while ((lot = find(conn, NULL, true))) {
        lot->asked = false;
        lot_end(lot, conn->status, conn->why);
    }
    conn->stage.near_wanted = false;
    weft__serve_down(conn);
    rest(conn);
}

/* --- short messages ------------------------------------------------------------------------------- */

/* Copies to GPUs, and the bytes that they are of. */
struct scatter {
    struct weft__copy copy;
    struct weft__op *op;
    uint8_t bytes[];
};

static void scattered(struct weft__copy *copy, int status, const char *why)
{
    struct scatter *scatter = (struct scatter *)copy; /* the first member */
    struct weft__op *op = scatter->op;
    if (status)
        weft__op_fail(op, status, why);
    free(scatter);
    weft__op_unpend(op);
}

static int scatter_one(struct weft__op *op, const struct weft__piece *piece, const uint8_t *data,
                       uint64_t len)
{
    struct scatter *scatter = malloc(sizeof *scatter + len);
    if (!scatter)
        return -ENOMEM;
    memcpy(scatter->bytes, data, len);
    scatter->op = op;
    scatter->copy = (struct weft__copy){.ordinal = piece->gpu - 1,
                                        .list = &scatter->copy.one,
                                        .n = 1,
                                        .one = {piece->addr, scatter->bytes, len},
                                        .done = scattered};
    op->pending++;
    weft__copy_push(op->ep, &scatter->copy);
    return 0;
}

int weft__stage_scatter(struct weft__op *op, const uint8_t *data, uint64_t len)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < op->npieces && len; i++) {
        const struct weft__piece *piece = &op->pieces[i];
        uint64_t n = piece->len < len ? piece->len : len;
        if (n && piece->gpu)
            rc = scatter_one(op, piece, data, n);
        else if (n)
            memcpy(piece->addr, data, n);
        data += n;
        len -= n;
    }
    return rc;
}
