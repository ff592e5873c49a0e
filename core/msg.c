/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conn's message stream: numbered messages over any of its links, handed on in order.
 *
 * Links may deliver out of order and may die; a message whose link died is sent again over
 * another one, and the receiver drops what it has seen. At most WEFT__WINDOW numbers lie between
 * the oldest message that has not ended and the newest that was handed to a link, so the receiver
 * keeps a bounded number of early ones.
 *
 * The endpoint lock is held in every function here.
 */
#include "msg.h"
#include "conn.h"
#include "counts.h"
#include "endpoint.h"
#include "lane.h"
#include "match.h"
#include "op.h"
#include "progress.h"
#include "stage.h"
#include "stripe.h"
#include "util.h"

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Answers that a peer may let pile up. An honest one has far fewer: it takes answers when it takes
 * what lets it ask again. */
#define ANSWERS_MAX (16 * WEFT__WINDOW)

/* The head of a message, little-endian. In the path of every message, so written and read as a whole
 * and not field by field. */
struct wire {
    uint8_t type, flags, stream, zero;
    uint32_t index;
    uint64_t seq;
    uint32_t taken[2];
    uint64_t len, rest;
};
_Static_assert(sizeof(struct wire) == WEFT__MSG_HEAD, "no padding");

/* Sent only since the peer has sent something. */
static bool is_answer(uint8_t type)
{
    return type == WEFT__MSG_TAKEN || type == WEFT__MSG_RESULT || type == WEFT__MSG_ADDED ||
           type == WEFT__MSG_LINK_GONE || type == WEFT__MSG_STAGE_AREA ||
           type == WEFT__MSG_STAGE_COPIED || type == WEFT__MSG_IPC_MAP ||
           type == WEFT__MSG_IPC_END;
}

/* The first message of a stream in the queue that has a cap and no header yet. */
static const struct weft__msg_head *next_capped(const struct weft__conn *conn, uint8_t stream)
{
    for (const struct weft__msg *msg = conn->outq; msg; msg = msg->next)
        if (msg->info.capped && !msg->encoded && msg->info.stream == stream)
            return &msg->info;
    return NULL;
}

/* Once: what is sent again keeps its counts. The peer hands messages on in order of seq, so counts
 * newer than those of a later message that it has already would seem to go back. */
static void encode(struct weft__msg *msg)
{
    struct weft__msg_head *h = &msg->info;
    if (msg->encoded)
        return;
    msg->encoded = true;
    weft__counts_put(msg->conn, h->taken);
    struct wire wire = {.type = h->type,
                        .flags = h->flags,
                        .stream = h->stream,
                        .index = htole32(h->index),
                        .seq = htole64(h->seq),
                        .taken = {htole32(h->taken[0]), htole32(h->taken[1])},
                        .len = htole64(h->len)};
    memcpy(msg->head, &wire, sizeof wire);
    if (WEFT_UNLIKELY(h->capped))
        weft__counts_uncap(msg->conn, h->stream, next_capped(msg->conn, h->stream));
}

static int decode(struct weft__reader *r, struct weft__msg_head *h)
{
    struct wire wire;
    if (r->end - r->at < (ptrdiff_t)sizeof wire)
        return WEFT_EPROTO;
    memcpy(&wire, r->at, sizeof wire);
    r->at += sizeof wire;
    h->type = wire.type;
    h->flags = wire.flags;
    h->stream = wire.stream;
    h->index = le32toh(wire.index);
    h->seq = le64toh(wire.seq);
    h->taken[0] = le32toh(wire.taken[0]);
    h->taken[1] = le32toh(wire.taken[1]);
    h->len = le64toh(wire.len);
    if (WEFT_UNLIKELY(wire.zero || wire.rest || h->type < 1 || h->type >= WEFT__MSG_TYPES ||
                      h->flags & ~WEFT__MSG_URGENT || h->stream >= WEFT__STREAMS))
        return WEFT_EPROTO;
    return 0;
}

/* --- sending --------------------------------------------------------------------------------- */

static void push(struct weft__conn *conn, struct weft__msg *msg)
{
    msg->next = NULL;
    *conn->outq_tail = msg;
    conn->outq_tail = &msg->next;
}

static inline WEFT__INLINE struct weft__msg *msg_new(struct weft__conn *conn,
                                                     const struct weft__msg_head *head,
                                                     size_t body_len)
{
    struct weft__msg *msg = body_len > WEFT__MSG_SHORT
                                ? malloc(sizeof *msg + body_len)
                                : weft__pool_get(&conn->ep->msgs, sizeof *msg + WEFT__MSG_SHORT);
    if (!msg) {
        weft__conn_down(conn, -ENOMEM, "no memory for a message of %zu bytes", body_len);
        return NULL;
    }
    msg->conn = conn;
    msg->op = NULL;
    msg->encoded = false;
    msg->info = *head;
    msg->info.seq = conn->next_seq++;
    msg->body_len = (uint32_t)body_len;
    return msg;
}

/* First link with room: messages keep to one link while it has room, which keeps them in order. */
static struct weft__link *pick(struct weft__conn *conn)
{
    for (int i = 0; i < conn->nlinks; i++) {
        struct weft__link *link = conn->links[i];
        if (WEFT_LIKELY(link->up && link->owned < link->lane->depth))
            return link;
    }
    return NULL;
}

/* May a message of this number go over a link now? */
static bool may_go(const struct weft__conn *conn, uint64_t seq)
{
    return conn->state == WEFT_CONN_UP && seq - conn->out_base < WEFT__WINDOW;
}

/* The payload is memory of its op. */
static WEFT__APART void build_in_place(struct weft__msg *msg)
{
    struct weft_cmd *cmd = &msg->wr.cmd;
    uint16_t n = 0;
    msg->iov[n++] = (struct weft_iov_local){msg->head, sizeof msg->head, NULL};
    for (size_t i = 0; i < msg->npieces; i++) {
        if (!msg->pieces[i].len)
            continue;
        msg->iov[n++] = (struct weft_iov_local){msg->pieces[i].addr, msg->pieces[i].len, NULL};
        cmd->len += msg->pieces[i].len;
    }
    cmd->niov = n;
    cmd->iov = msg->iov;
}

static void build(struct weft__msg *msg)
{
    struct weft__wr *wr = &msg->wr;
    uint64_t len = sizeof msg->head + msg->body_len;
    encode(msg);
    wr->cmd = (struct weft_cmd){
        .op = WEFT_OP_SEND, .len = len, .ctx = (uintptr_t)wr, .one = {msg->head, len, NULL}};
    if (msg->info.patient)
        wr->cmd.flags = WEFT_CMD_PATIENT;
    if (WEFT_UNLIKELY(msg->op != NULL))
        build_in_place(msg);
    else
        wr->cmd.flags |= WEFT_CMD_QUIET;
}

/* To a link that has room. */
static inline void assign(struct weft__msg *msg, struct weft__link *link)
{
    struct weft__wr *wr = &msg->wr;
    wr->kind = WEFT__WR_MSG;
    weft__wr_single(wr);
    wr->op = NULL;
    wr->link = link;
    wr->work.kind = WEFT__WORK_POST;
    build(msg);
    link->owned++;
    msg->conn->stats.cmds_posted++;
    weft__lane_push(link->lane, &wr->work);
}

/* Mostly nothing waits, and there is room. */
static inline WEFT__INLINE void hand_on(struct weft__msg *msg)
{
    struct weft__conn *conn = msg->conn;
    struct weft__link *link = !conn->outq && may_go(conn, msg->info.seq) ? pick(conn) : NULL;
    if (WEFT_LIKELY(link != NULL)) {
        assign(msg, link);
    } else {
        push(conn, msg);
        weft__msg_fill(conn);
    }
}

struct weft__msg *weft__msg_begin(struct weft__conn *conn, const struct weft__msg_head *head, size_t len)
{
    return msg_new(conn, head, len);
}

void weft__msg_go(struct weft__msg *msg)
{
    hand_on(msg);
}

int weft__msg_post(struct weft__conn *conn, const struct weft__msg_head *head, const void *body,
                   size_t len)
{
    struct weft__msg *msg = msg_new(conn, head, len);
    if (!msg)
        return -ENOMEM;
    conn->answers += is_answer(head->type);
    if (len)
        memcpy(msg->body, body, len);
    hand_on(msg);
    return 0;
}

int weft__msg_post_op(struct weft__conn *conn, const struct weft__msg_head *head,
                      struct weft__op *op, const struct weft__piece *pieces, size_t npieces)
{
    bool in_place = WEFT_UNLIKELY(head->len > WEFT__MSG_SHORT) && npieces <= WEFT__MSG_IOV;
    struct weft__msg *msg = msg_new(conn, head, in_place ? 0 : head->len);
    if (!msg)
        return -ENOMEM;
    if (in_place) {
        msg->op = op;
        msg->pieces = pieces;
        msg->npieces = npieces;
        op->pending++;
    } else {
        uint8_t *at = msg->body;
        for (size_t i = 0; i < npieces; at += pieces[i].len, i++)
            if (WEFT_LIKELY(pieces[i].len))
                memcpy(at, pieces[i].addr, pieces[i].len);
    }
    hand_on(msg);
    return 0;
}

void weft__msg_fill(struct weft__conn *conn)
{
    while (conn->outq && may_go(conn, conn->outq->info.seq)) {
        struct weft__msg *msg = conn->outq;
        struct weft__link *link = pick(conn);
        if (!link)
            return;
        conn->outq = msg->next;
        if (!conn->outq)
            conn->outq_tail = &conn->outq;
        assign(msg, link);
    }
}

static void mark_done(struct weft__conn *conn, uint64_t seq)
{
    conn->out_done[seq % WEFT__WINDOW / 64] |= (uint64_t)1 << seq % 64;
    while (conn->out_done[conn->out_base % WEFT__WINDOW / 64] >> conn->out_base % 64 & 1) {
        conn->out_done[conn->out_base % WEFT__WINDOW / 64] &= ~((uint64_t)1
                                                                << conn->out_base % 64);
        conn->out_base++;
    }
}

static void msg_free(struct weft__msg *msg)
{
    struct weft__op *op = msg->op;
    msg->conn->answers -= is_answer(msg->info.type);
    if (msg->body_len > WEFT__MSG_SHORT)
        free(msg);
    else
        weft__pool_put(&msg->conn->ep->msgs, msg);
    if (op)
        weft__op_unpend(op);
}

static struct weft__msg *msg_of(struct weft__wr *wr)
{
    return (struct weft__msg *)((char *)wr - offsetof(struct weft__msg, wr));
}

void weft__msg_done(struct weft__wr *wr, const struct weft_comp *comp)
{
    struct weft__msg *msg = msg_of(wr);
    struct weft__conn *conn = msg->conn;
    mark_done(conn, msg->info.seq);
    if (comp->status < 0)
        weft__conn_down(conn, comp->status, "a message could not be sent: %s",
                        weft_strerror(comp->status));
    msg_free(msg);
    weft__conn_fill(conn);
    if (conn->ep->waiters || conn->ep->leader)
        weft__changed(conn->ep); /* who closes the conn waits for this */
}

void weft__msg_orphan(struct weft__wr *wr)
{
    struct weft__msg *msg = msg_of(wr);
    struct weft__conn *conn = msg->conn;
    if (conn->state == WEFT_CONN_DOWN) {
        msg_free(msg);
        return;
    }
    /* in order of number, so that the window is never stuck behind a newer one */
    struct weft__msg **at = &conn->outq;
    while (*at && (*at)->info.seq < msg->info.seq)
        at = &(*at)->next;
    msg->next = *at;
    *at = msg;
    if (!msg->next)
        conn->outq_tail = &msg->next;
    conn->stats.cmds_resent++;
    weft__msg_fill(conn);
}

bool weft__msg_waits(const struct weft__conn *conn)
{
    /* what is sent again is older, and stands before it */
    const struct weft__msg *last = conn->outq
                                       ? (const struct weft__msg *)((const char *)conn->outq_tail -
                                                                    offsetof(struct weft__msg,
                                                                             next))
                                       : NULL;
    return last && !last->encoded;
}

bool weft__msg_flushed(void *arg)
{
    struct weft__conn *conn = arg;
    return conn->state != WEFT_CONN_UP || conn->out_base == conn->next_seq;
}

/* --- receiving ------------------------------------------------------------------------------- */

/* Any but a short one of the user's. */
static WEFT__APART int handle(struct weft__conn *conn, const struct weft__msg_head *h, const uint8_t *body, size_t len)
{
    int rc = weft__counts_taken(conn, h->taken);
    if (rc || conn->state == WEFT_CONN_DOWN)
        return rc;
    switch ((enum weft__msg_type)h->type) {
    case WEFT__MSG_EAGER:
        break;
    case WEFT__MSG_LARGE:
        return weft__match_arrived(conn, h, body, len);
    case WEFT__MSG_TAKEN:
        return len ? WEFT_EPROTO : 0;
    case WEFT__MSG_RESULT:
        return weft__match_result(conn, h, body, len);
    case WEFT__MSG_ADD:
        return weft__add_arrived(conn, body, len);
    case WEFT__MSG_ADDED:
        return weft__added_arrived(conn, body, len);
    case WEFT__MSG_LINK_LOST:
        return weft__link_lost_arrived(conn, h->index);
    case WEFT__MSG_LINK_GONE:
        return weft__link_gone_arrived(conn, h->index);
    case WEFT__MSG_STAGE_OPEN:
        return weft__stage_open_arrived(conn, len);
    case WEFT__MSG_STAGE_AREA:
        return weft__stage_area_arrived(conn, body, len);
    case WEFT__MSG_STAGE_COPY:
        return weft__stage_copy_arrived(conn, body, len);
    case WEFT__MSG_STAGE_COPIED:
        return weft__stage_copied_arrived(conn, body, len);
    case WEFT__MSG_IPC_ASK:
        return weft__ipc_ask_arrived(conn, body, len);
    case WEFT__MSG_IPC_MAP:
        return weft__ipc_map_arrived(conn, body, len);
    case WEFT__MSG_IPC_END:
        return weft__ipc_end_arrived(conn, body, len);
    case WEFT__MSG_TYPES:
        break;
    }
    return WEFT_EPROTO;
}

/* User's payload in a message. */
static uint64_t payload_of(const struct weft__msg_head *h, size_t len)
{
    return h->type == WEFT__MSG_EAGER ? len - WEFT__MSG_HEAD : 0;
}

/* Keep a message whose turn has not come. */
static int keep_early(struct weft__conn *conn, const struct weft__msg_head *h, const void *data,
                      size_t len)
{
    uint64_t seq = h->seq, payload = payload_of(h, len);
    if (seq - conn->expect_seq >= 2 * WEFT__WINDOW)
        return WEFT_EPROTO;
    if (!conn->early)
        conn->early = calloc(2 * WEFT__WINDOW, sizeof *conn->early);
    if (!conn->early)
        return -ENOMEM;
    struct weft__early *slot = &conn->early[seq % (2 * WEFT__WINDOW)];
    if (slot->data)
        return 0; /* seen: it was sent again */
    /* what is early is not taken, so all of it is within the window */
    if (payload > conn->ep->window - conn->early_bytes)
        return WEFT_EPROTO;
    slot->data = malloc(len);
    if (!slot->data)
        return -ENOMEM;
    memcpy(slot->data, data, len);
    slot->len = (uint32_t)len;
    slot->seq = seq;
    conn->early_bytes += payload;
    return 0;
}

static int in_turn(struct weft__conn *conn, const struct weft__msg_head *h,
                   const struct weft__reader *r)
{
    size_t len = (size_t)(r->end - r->at);
    conn->expect_seq++;
    if (WEFT_UNLIKELY(h->type != WEFT__MSG_EAGER))
        return handle(conn, h, r->at, len);
    int rc = weft__counts_heard(conn, h->taken);
    return rc || conn->state == WEFT_CONN_DOWN ? rc : weft__match_arrived(conn, h, r->at, len);
}

static WEFT__APART int release_early(struct weft__conn *conn)
{
    int rc = 0;
    while (rc == 0 && conn->state != WEFT_CONN_DOWN) {
        struct weft__early *slot = &conn->early[conn->expect_seq % (2 * WEFT__WINDOW)];
        if (!slot->data)
            break;
        uint8_t *data = slot->data;
        slot->data = NULL;
        struct weft__reader r = {data, data + slot->len, false};
        struct weft__msg_head h = {0};
        decode(&r, &h); /* was checked when it was kept */
        conn->early_bytes -= payload_of(&h, slot->len);
        rc = in_turn(conn, &h, &r);
        free(data);
    }
    return rc;
}

void weft__msg_arrived(struct weft__link *link, const void *data, uint64_t len)
{
    struct weft__conn *conn = link->conn;
    if (conn->state == WEFT_CONN_DOWN)
        return;
    struct weft__reader r = {data, (const uint8_t *)data + len, false};
    struct weft__msg_head h;
    int rc = decode(&r, &h);
    if (rc == 0 &&
        ((h.type != WEFT__MSG_EAGER && len > WEFT__MSG_MAX) || conn->answers > ANSWERS_MAX))
        rc = WEFT_EPROTO;
    if (WEFT_LIKELY(rc == 0 && h.seq == conn->expect_seq)) {
        rc = in_turn(conn, &h, &r);
        if (WEFT_UNLIKELY(conn->early != NULL) && rc == 0)
            rc = release_early(conn);
    } else if (rc == 0 && h.seq > conn->expect_seq) {
        rc = keep_early(conn, &h, data, len);
    } /* else: sent again, and seen */
    if (rc)
        weft__conn_down(conn, rc, "a message of the peer: %s", weft_strerror(rc));
}

void weft__msg_free_all(struct weft__conn *conn)
{
    while (conn->outq) {
        struct weft__msg *msg = conn->outq;
        conn->outq = msg->next;
        msg_free(msg);
    }
    conn->outq_tail = &conn->outq;
    for (size_t i = 0; conn->early && i < 2 * WEFT__WINDOW; i++)
        free(conn->early[i].data);
    free(conn->early);
    conn->early = NULL;
}
