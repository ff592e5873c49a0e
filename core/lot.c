/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a lot. */
#include "lot.h"
#include "conn.h"
#include "endpoint.h"
#include "ipc.h"
#include "msg.h"
#include "stage.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t *near_addr(const struct weft__lot *lot)
{
    return lot->conn->stage.near->addr +
           (uint64_t)lot->near.first * lot->conn->ep->copier.slot_bytes;
}

static void moved(struct weft__op *inner);

void weft__lot_end(struct weft__lot *lot, int status, const char *why)
{
    struct weft__conn *conn = lot->conn;
    struct weft__op *op = lot->op;
    weft_list_remove(&lot->in_conn);
    conn->stage.nlots--;
    weft__slots_give(&conn->stage.near_used, &lot->near, 0);
    weft__slots_give(&conn->stage.far_used, &lot->far, 0);
    if (lot->import)
        weft__ipc_leave(conn, lot->import, lot->turn);
    if (lot->import && op && !status)
        conn->stats.bytes_mapped += lot->bytes;
    if (op && status)
        weft__op_fail(op, status, why);
    else if (op)
        op->bytes += lot->bytes;
    if (lot->import)
        weft__pool_put_most(&conn->ep->lots, lot, WEFT__LOTS_KEPT);
    else
        free(lot);
    if (op)
        weft__op_unpend(op);
    weft__stage_fill(conn);
    weft__stage_rest(conn);
}

/* Between its slots and the places of its pieces. */
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
    lot->copy.host = weft__copy_host(!lot->write);
    lot->copy.patient = lot->op->total >= WEFT__STAGE_LONG;
    lot->copy.done = weft__lot_copied;
    weft__copy_push(lot->conn->ep, &lot->copy);
}

/* Point a piece at its slots of the peer. */
static void to_far(const struct weft__lot *lot, struct weft__piece *piece, uint64_t offset)
{
    const struct weft__stage *s = &lot->conn->stage;
    piece->raddr = s->far.addr + (uint64_t)lot->far.first * s->far_bytes + offset;
    piece->rkey = s->far.key;
    memcpy(piece->rkeys, s->far.keys, sizeof piece->rkeys);
}

/* The pieces of its WRITE or READ. Returns how many. */
static size_t inner_pieces(const struct weft__lot *lot, struct weft__piece *out)
{
    uint64_t offset = 0;
    if (lot->near.n && lot->far.n) {
        *out = (struct weft__piece){
            .addr = near_addr(lot), .len = lot->bytes, .reg = lot->conn->stage.near->reg};
        to_far(lot, out, 0);
        return 1;
    }
    for (size_t i = 0; i < lot->n; offset += lot->parts[i].len, i++) {
        out[i] = lot->parts[i];
        if (lot->near.n) {
            out[i].addr = near_addr(lot) + offset;
            out[i].reg = lot->conn->stage.near->reg;
        }
        if (lot->far.n)
            to_far(lot, &out[i], offset);
    }
    return lot->n;
}

static void move(struct weft__lot *lot)
{
    struct weft__conn *conn = lot->conn;
    size_t n = lot->near.n && lot->far.n ? 1 : lot->n;
    struct weft__op *inner = weft__op_new(conn, lot->write ? WEFT__OP_WRITE : WEFT__OP_READ);
    struct weft__piece *pieces = !inner ? NULL : n > 1 ? malloc(n * sizeof *pieces) : &inner->one;
    if (!pieces) {
        if (inner) {
            inner->pieces = &inner->one;
            weft__op_free(inner);
        }
        weft__lot_end(lot, -ENOMEM, "no memory for an operation");
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

/* Ask the peer to copy between its slots and the places of the pieces. */
static void ask(struct weft__lot *lot)
{
    uint8_t body[8 + 24 * WEFT__LOT_PIECES];
    struct weft__writer w = {body, body + sizeof body, false};
    struct weft__msg_head head = {.type = WEFT__MSG_STAGE_COPY,
                                  .patient = lot->op->total >= WEFT__STAGE_LONG};
    weft__put_u32(&w, lot->id);
    weft__put_u8(&w,
                 (lot->write ? WEFT__COPY_WRITE : 0) | (head.patient ? WEFT__COPY_PATIENT : 0));
    weft__put_u8(&w, (uint8_t)lot->far.first);
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
        status = weft__conn_end(conn);
        why = conn->why;
    }
    if (!status && (!lot->op || lot->canceled))
        status = WEFT_ECANCELED;
    if (status)
        weft__lot_end(lot, status, why);
    return status;
}

void weft__lot_copied(struct weft__copy *copy, int status, const char *why)
{
    struct weft__lot *lot = (struct weft__lot *)(void *)((char *)copy -
                                                         offsetof(struct weft__lot, copy));
    if ((!lot->write || lot->import) && !status)
        weft__lot_end(lot, 0, NULL);
    else if (!over(lot, status, why))
        move(lot);
}

static void moved(struct weft__op *inner)
{
    struct weft__lot *lot = inner->lot;
    struct weft__conn *conn = lot->conn;
    lot->inner = NULL;
    bool last = lot->write ? !lot->far.n : !lot->near.n;
    if (last && !inner->status) {
        weft__lot_end(lot, 0, NULL);
    } else if (!over(lot, inner->status, inner->text)) {
        if (!lot->write) {
            weft__slots_give(&conn->stage.far_used, &lot->far, 0);
            copy_begin(lot);
        } else {
            weft__slots_give(&conn->stage.near_used, &lot->near, 0);
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
            weft__lot_end(lot, 0, NULL);
        else if (!over(lot, status, text))
            move(lot);
        return 0;
    }
    return WEFT_EPROTO;
}

void weft__lot_begin(struct weft__lot *lot)
{
    if (lot->import)
        weft__copy_push(lot->conn->ep, &lot->copy);
    else if (lot->write && lot->near.n)
        copy_begin(lot);
    else if (!lot->write && lot->far.n)
        ask(lot);
    else
        move(lot);
}
