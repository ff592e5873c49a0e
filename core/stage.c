/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers of memory that a nic does not reach: through pinned memory, piece by piece, several at once. A transfer is cut into
 * lots, which lot.c moves, as there are slots for them.
 *
 * The endpoint lock is held in every function here.
 */
#include "stage.h"
#include "conn.h"
#include "copier.h"
#include "endpoint.h"
#include "ipc.h"
#include "lot.h"
#include "msg.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool is_brief(const struct weft__op *op)
{
    return op->total < WEFT__STAGE_LONG;
}

static struct weft__opq *queue_of(struct weft__op *op)
{
    return is_brief(op) ? &op->conn->stage.brief : &op->conn->stage.ops;
}

static bool any_waits(const struct weft__stage *s)
{
    return s->ops.head || s->brief.head;
}

/* Another conn may need it more. */
void weft__stage_rest(struct weft__conn *conn)
{
    struct weft__stage *s = &conn->stage;
    if (s->near && !s->near_used && !any_waits(s)) {
        weft__area_put(conn->ep, s->near);
        s->near = NULL;
    }
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

/* Filled in member by member: to copy what was just written so would wait for that, once for each piece. */
static void path_of(struct weft__conn *conn, const struct weft__op *op, struct path *path)
{
    const struct weft__piece *piece = &op->pieces[op->next_piece];
    uint32_t access = op->kind == WEFT__OP_WRITE ? WEFT_WRITE : WEFT_READ;
    path->near = is_near(conn, piece);
    path->far = weft__stage_far(conn, piece);
    path->way = weft__ipc_way(conn, piece, access, &path->mapped);
    path->gpu = path->near ? piece->gpu : 0;
}

static bool same_path(const struct path *a, const struct path *b)
{
    if (a->near != b->near || a->far != b->far || a->way != b->way || a->gpu != b->gpu)
        return false;
    return a->way != WEFT__IPC_THERE ||
           (a->mapped.import == b->mapped.import && a->mapped.ordinal == b->mapped.ordinal &&
            a->mapped.reached == b->mapped.reached);
}

/* The next part of an op into the lot. */
static void take(struct weft__lot *lot, struct weft__op *op, const struct path *path,
                 uint64_t room)
{
    const struct weft__piece *piece = &op->pieces[op->next_piece];
    uint64_t left = piece->len - op->next_offset, n = left < room ? left : room;
    if (path->way == WEFT__IPC_THERE) {
        uint8_t *here = piece->addr + op->next_offset;
        uint8_t *there = path->mapped.addr + op->next_offset;
        lot->list[lot->n] = lot->write ? (struct weft_gpu_copy){there, here, n}
                                       : (struct weft_gpu_copy){here, there, n};
    } else {
        struct weft__piece *part = &lot->parts[lot->n];
        *part = *piece;
        part->addr += op->next_offset;
        part->raddr += op->next_offset;
        part->len = n;
    }
    lot->n++;
    lot->bytes += n;
    op->next_offset += n;
    op->cut += n;
}

/* Of so many pieces at most. */
static struct weft__lot *lot_new(struct weft__conn *conn, const struct path *path, size_t most)
{
    bool mapped = path->way == WEFT__IPC_THERE;
    struct weft__lot *lot;
    if (mapped)
        lot = weft__pool_get(&conn->ep->lots, sizeof *lot + WEFT__LOT_PIECES * sizeof *lot->list);
    else
        lot = malloc(sizeof *lot + most * (sizeof *lot->parts + sizeof *lot->list));
    if (!lot)
        return NULL;
    *lot = (struct weft__lot){.conn = conn};
    lot->list = (struct weft_gpu_copy *)(void *)&lot->parts[mapped ? 0 : most];
    return lot;
}

/* Most lists are of one registration at each end: does a piece go as the one before it? To *path its place. */
static bool follows(struct path *path, const struct weft__piece *before,
                    const struct weft__piece *piece)
{
    if (piece->rkey != before->rkey || piece->reg != before->reg || piece->gpu != before->gpu ||
        piece->far != before->far)
        return false;
    return path->way != WEFT__IPC_THERE || weft__mapped_move(&path->mapped, before, piece);
}

/* The pieces of a lot go the same way, by the same GPU, and are no more than `room` bytes. */
static struct weft__lot *cut(struct weft__conn *conn, struct weft__op *op, const struct path *path,
                             uint64_t room)
{
    size_t most = op->npieces - op->next_piece;
    most = most < WEFT__LOT_PIECES ? most : WEFT__LOT_PIECES;
    struct weft__lot *lot = lot_new(conn, path, most);
    if (!lot)
        return NULL;
    lot->op = op;
    lot->id = conn->stage.next_lot++;
    lot->write = op->kind == WEFT__OP_WRITE;
    struct path next = *path;
    for (const struct weft__piece *at = &op->pieces[op->next_piece], *before = at;
         lot->n < most && room > 0 && !exhausted(op); before = at) {
        at = &op->pieces[op->next_piece];
        if (at != before && !follows(&next, before, at)) {
            path_of(conn, op, &next);
            if (!same_path(&next, path))
                break;
        }
        uint64_t bytes = lot->bytes;
        take(lot, op, &next, room);
        room -= lot->bytes - bytes;
    }
    return lot;
}

static void add_lot(struct weft__op *op, struct weft__lot *lot)
{
    op->pending++;
    weft_list_push(&lot->conn->stage.lots, &lot->in_conn);
    lot->conn->stage.nlots++;
    weft__lot_begin(lot);
}

static void no_memory(struct weft__op *op)
{
    weft__op_fail(op, -ENOMEM, "no memory to copy memory of a GPU");
}

/* What a lot has that is one copy; it was entered in this turn. */
static void begin_mapped(struct weft__op *op, struct weft__lot *lot, const struct path *path,
                         uint32_t turn)
{
    const struct weft__mapped *mapped = &path->mapped;
    lot->import = mapped->import;
    lot->turn = turn;
    lot->copy.ordinal = mapped->ordinal;
    lot->copy.list = lot->list;
    lot->copy.n = (int)lot->n;
    lot->copy.reached = mapped->reached;
    lot->copy.host = path->near ? 0 : weft__copy_host(lot->write); /* what is mapped is a GPU's */
    lot->copy.done = weft__lot_copied;
    add_lot(op, lot);
}

static bool next_mapped(struct weft__conn *conn, struct weft__op *op, const struct path *path)
{
    uint32_t turn;
    if (!weft__ipc_enter(conn, path->mapped.import, &turn))
        return false;
    struct weft__lot *lot = cut(conn, op, path, WEFT__MAPPED_MOST);
    if (!lot) {
        weft__ipc_leave(conn, path->mapped.import, turn);
        no_memory(op);
        return true;
    }
    begin_mapped(op, lot, path, turn);
    return true;
}

bool weft__stage_list(struct weft__op *op, weft__stage_list_fn *fill, const void *arg)
{
    struct weft__conn *conn = op->conn;
    struct path path;
    uint32_t turn;
    if (any_waits(&conn->stage) || conn->state != WEFT_CONN_UP)
        return false;
    path_of(conn, op, &path);
    if (path.way != WEFT__IPC_THERE || !weft__ipc_enter(conn, path.mapped.import, &turn))
        return false;
    struct weft__lot *lot = lot_new(conn, &path, WEFT__LOT_PIECES);
    if (lot)
        lot->n = fill(op, &path.mapped, arg, lot->list, &lot->bytes);
    if (!lot || lot->n == 0) {
        if (lot)
            weft__pool_put_most(&conn->ep->lots, lot, WEFT__LOTS_KEPT);
        weft__ipc_leave(conn, path.mapped.import, turn);
        return false;
    }
    lot->op = op;
    lot->id = conn->stage.next_lot++;
    lot->write = op->kind == WEFT__OP_WRITE;
    op->total = op->cut = lot->bytes;
    op->next_piece = op->npieces;
    begin_mapped(op, lot, &path, turn);
    return true;
}

/* --- slots for a lot --------------------------------------------------------------------------- */

struct places {
    struct weft__slots near, far;
    uint64_t room; /* bytes that fit both */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Up to this one an op may have them. */
static int slots_upto(const struct weft__op *op, int all)
{
    return is_brief(op) || all <= 2 * WEFT__STAGE_SPARE ? all : all - WEFT__STAGE_SPARE;
}

/* From this one on: short ones leave half to a long one that waits. */
static int slots_from(const struct weft__op *op, int all)
{
    return is_brief(op) && op->conn->stage.ops.head
               ? all / 2 / WEFT__STAGE_SLOTS * WEFT__STAGE_SLOTS
               : 0;
}

/* Neither waits another op, nor is a lot of another under way. Of those that pend on this one one is who fills. */
static bool is_alone(const struct weft__op *op)
{
    return !op->qnext && op->conn->stage.nlots == op->pending - 1;
}

/* Bytes of the next piece of an op, in whole slots of the shorter ones: what is left, but of the only op half of it, so that its last pieces are short: their copy has
 * nothing to hide behind. */
static uint64_t wanted(const struct weft__op *op, const struct path *path)
{
    const struct weft__stage *s = &op->conn->stage;
    const struct weft__copier *c = &op->conn->ep->copier;
    uint64_t slot = least(path->near ? c->slot_bytes : UINT64_MAX,
                          path->far ? s->far_bytes : UINT64_MAX);
    uint64_t left = op->total - op->cut;
    uint64_t slots = is_alone(op) ? left / 2 / slot : (left + slot - 1) / slot;
    int n = (int)least(slots, WEFT__STAGE_SLOTS);
    if (path->near && n > slots_upto(op, c->nslots))
        n = slots_upto(op, c->nslots);
    if (path->far && n > slots_upto(op, s->far_slots))
        n = slots_upto(op, s->far_slots);
    return (uint64_t)weft__slots_power(n > 1 ? n : 1) * slot;
}

static int slots_of(uint64_t bytes, uint64_t slot_bytes)
{
    return (int)((bytes + slot_bytes - 1) / slot_bytes);
}

/* As many as are taken for so many bytes: a power of two. */
static int slots_around(uint64_t bytes, uint64_t slot_bytes)
{
    int n = slots_of(bytes, slot_bytes), power = weft__slots_power(n);
    return power < n ? 2 * power : power;
}

static void give_back(struct weft__conn *conn, struct places *at, uint64_t bytes)
{
    struct weft__stage *s = &conn->stage;
    if (at->near.n)
        weft__slots_give(&s->near_used, &at->near, slots_of(bytes, conn->ep->copier.slot_bytes));
    if (at->far.n)
        weft__slots_give(&s->far_used, &at->far, slots_of(bytes, s->far_bytes));
}

/* For the next piece. False: it has to wait for others to end, and is not cut shorter instead: it would stay so for all that
 * follow. */
static bool find_places(struct weft__conn *conn, const struct weft__op *op,
                        const struct path *path, struct places *at)
{
    struct weft__stage *s = &conn->stage;
    const struct weft__copier *c = &conn->ep->copier;
    *at = (struct places){.room = UINT64_MAX};
    if (!path->near && !path->far)
        return true;
    at->room = wanted(op, path);
    if (path->near)
        at->near = weft__slots_take(&s->near_used, slots_from(op, c->nslots),
                                    slots_upto(op, c->nslots),
                                    slots_around(at->room, c->slot_bytes));
    if (path->far && !(path->near && !at->near.n))
        at->far = weft__slots_take(&s->far_used, slots_from(op, s->far_slots),
                                   slots_upto(op, s->far_slots),
                                   slots_around(at->room, s->far_bytes));
    bool found = !(path->near && !at->near.n) && !(path->far && !at->far.n);
    if (!found)
        give_back(conn, at, 0);
    return found;
}

/* The next lot of the op. False: it has to wait. */
static bool next(struct weft__conn *conn, struct weft__op *op)
{
    struct path path;
    struct places at;
    path_of(conn, op, &path);
    bool near = path.near, far = path.far;
    if (path.way == WEFT__IPC_THERE)
        return next_mapped(conn, op, &path);
    if (path.way == WEFT__IPC_WAIT || (far && !have_far(conn)) || conn->state != WEFT_CONN_UP ||
        (near && !have_near(conn)))
        return false;
    if (!find_places(conn, op, &path, &at))
        return false;
    struct weft__lot *lot = cut(conn, op, &path, at.room);
    give_back(conn, &at, lot ? lot->bytes : 0);
    if (!lot) {
        no_memory(op);
        return true;
    }
    lot->near = at.near;
    lot->far = at.far;
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

/* From the first on, until one has to wait. */
static void fill_from(struct weft__conn *conn, struct weft__opq *queue)
{
    struct weft__op *op;
    while (conn->state == WEFT_CONN_UP && (op = queue->head)) {
        if (!op->status && !op->cutting && !any_staged(conn, op)) { /* all that nics reach */
            weft__opq_remove(queue, op);
            weft__stripe_start(conn, op);
            continue;
        }
        op->cutting = true;
        op->pending++; /* one hold: a lot may end at once, and the op with it */
        bool goes_on = op->status || exhausted(op) || next(conn, op);
        if ((op->status || exhausted(op)) && op->where == WEFT__AT_STAGED)
            weft__opq_remove(queue, op);
        weft__op_unpend(op);
        if (!goes_on)
            return;
    }
}

void weft__stage_fill(struct weft__conn *conn)
{
    if (any_waits(&conn->stage)) {
        fill_from(conn, &conn->stage.brief);
        fill_from(conn, &conn->stage.ops);
    }
    weft__stage_rest(conn);
}

void weft__stage_fill_all(struct weft__endpoint *ep)
{
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next)
        if (any_waits(&conn->stage))
            weft__stage_fill(conn);
}

void weft__stage_start(struct weft__conn *conn, struct weft__op *op)
{
    weft__opq_push(queue_of(op), op, WEFT__AT_STAGED);
    weft__stage_fill(conn);
}

/* --- areas -------------------------------------------------------------------------------------- */

/* Ops that cannot go on without. */
static void fail_staged(struct weft__conn *conn, int status, const char *why)
{
    struct weft__stage *s = &conn->stage;
    struct weft__op *op;
    while ((op = s->brief.head ? s->brief.head : s->ops.head)) {
        weft__op_fail(op, status, why);
        weft__opq_remove(queue_of(op), op);
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
    weft__stage_rest(conn);
}

void weft__stage_area(struct weft__endpoint *ep, int status, const char *why)
{
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next) {
        if (conn->stage.near_wanted) {
            give_near(conn, status, why);
            return;
        }
        if (conn->stage.landing_wanted) {
            if (status)
                weft_log(WEFT_LOG_WARN, "conn", "%s: cannot stage memory of GPUs for the peer: %s",
                         conn->peer_text, why);
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
        s->far.access != (WEFT_READ | WEFT_WRITE) || slots < WEFT__STAGE_LEAST ||
        slots > WEFT__MAX_SLOTS || s->far.len != (uint64_t)bytes * slots)
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
    weft__opq_remove(queue_of(op), op);
    weft__stage_rest(op->conn);
}

void weft__stage_cancel(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    struct weft__lot *lot;
    while ((lot = find(conn, op, false))) {
        lot->canceled = true;
        if (lot->inner) {
            weft__op_cancel(lot->inner);
        } else if (lot->asked && !lot->write) { /* to slots, which are ours again when the peer answers */
            lot->op = NULL;
            op->pending--; /* who cancels holds it */
        } /* else: a copy of ours, which ends soon, or one of the peer's to its memory: nothing may land there after the end */
    }
}

void weft__stage_down(struct weft__conn *conn)
{
    struct weft__lot *lot;
    while ((lot = find(conn, NULL, true))) {
        lot->asked = false;
        weft__lot_end(lot, weft__conn_end(conn), conn->why);
    }
    conn->stage.near_wanted = false;
    weft__serve_down(conn);
    weft__stage_rest(conn);
}
