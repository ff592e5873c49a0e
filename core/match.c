/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-sided messages: SEND is matched with RECV in order; notifications go to the endpoint's
 * queue.
 *
 * Two streams share one protocol. A short message carries its payload (EAGER); the receiver
 * counts those it has taken and every header tells the count, so most need no answer of their
 * own. A longer one (LARGE) carries remotes of its payload: the receiver reads it into place and
 * answers with RESULT. A message that does not fit its RECV moves nothing, and RESULT tells the
 * sender. "Taken" means: in the buffer of a RECV, or in the notification queue. So a SEND that is
 * done has been received, and the bytes a receiver must keep for a peer are bounded by its window.
 *
 * The endpoint lock is held in every function here.
 */
#include "match.h"
#include "conn.h"
#include "counts.h"
#include "endpoint.h"
#include "mem.h"
#include "msg.h"
#include "notify.h"
#include "op.h"
#include "stage.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void weft__match_init(struct weft__conn *conn)
{
    for (int i = 0; i < WEFT__STREAMS; i++) {
        struct weft__stream *s = &conn->stream[i];
        s->recs_tail = &s->recs;
        s->arrivals_tail = &s->arrivals;
    }
}

/* --- sending --------------------------------------------------------------------------------- */

static enum weft__stream_id stream_of(const struct weft__op *op)
{
    return op->kind == WEFT__OP_SEND ? WEFT__STREAM_SEND : WEFT__STREAM_NOTIFY;
}

static uint64_t message_len(const struct weft__op *op)
{
    return WEFT_LIKELY(op->kind == WEFT__OP_SEND) ? op->total : op->notify_len;
}

static const struct weft__piece *message_pieces(const struct weft__op *op, size_t *n)
{
    if (WEFT_LIKELY(op->kind == WEFT__OP_SEND && !op->bounce)) {
        *n = op->npieces;
        return op->pieces;
    }
    *n = 1;
    return &op->message;
}

static void rec_push(struct weft__stream *s, struct weft__rec *rec)
{
    *s->recs_tail = rec;
    s->recs_tail = &rec->next;
    s->nrecs++;
}

static struct weft__rec *rec_add(struct weft__stream *s, struct weft__op *op)
{
    struct weft__rec *rec = weft__pool_get(&op->ep->recs, sizeof *rec);
    if (!rec)
        return NULL;
    *rec = (struct weft__rec){.op = op,
                              .index = s->next_index++,
                              .bytes = WEFT_UNLIKELY(op->large) ? 0 : (uint32_t)message_len(op),
                              .large = op->large};
    rec_push(s, rec);
    op->rec = rec;
    op->pending++;
    return rec;
}

static void count_injected(struct weft__conn *conn, bool refused)
{
    if (WEFT_UNLIKELY(refused || conn->state == WEFT_CONN_DOWN))
        conn->stats.ops_failed++;
    else
        conn->stats.ops_done++;
}

/* Unlink the rec at *at and let go of its op. */
void weft__match_end(struct weft__conn *conn, struct weft__stream *s, struct weft__rec **at)
{
    struct weft__rec *rec = *at;
    struct weft__op *op = rec->op;
    *at = rec->next;
    if (!rec->next)
        s->recs_tail = at;
    s->nrecs--;
    conn->eager_out -= rec->bytes;
    if (rec->injected)
        count_injected(conn, rec->refused);
    weft__pool_put(&conn->ep->recs, rec);
    if (!op)
        return;
    op->rec = NULL;
    op->taken = !op->status;
    if (op->kind == WEFT__OP_SEND && op->taken)
        op->bytes = op->total;
    weft__op_shut_regs(op);
    weft__op_unpend(op);
}

static int post_large(struct weft__conn *conn, struct weft__op *op, struct weft__msg_head *head)
{
    struct weft_remote remotes[WEFT__MAX_REMOTES];
    size_t n, count = 0;
    const struct weft__piece *pieces = message_pieces(op, &n);
    for (size_t i = 0; i < n; i++)
        if (pieces[i].len)
            weft__reg_describe(op->regs[count], pieces[i].addr, pieces[i].len, &remotes[count]),
                count++;
    head->type = WEFT__MSG_LARGE;
    return weft__msg_post(conn, head, remotes, count * sizeof *remotes);
}

static int post_eager(struct weft__conn *conn, struct weft__op *op, struct weft__msg_head *head)
{
    size_t n;
    const struct weft__piece *pieces = message_pieces(op, &n);
    head->type = WEFT__MSG_EAGER;
    conn->eager_out += head->len;
    return weft__msg_post_op(conn, head, op, pieces, n);
}

/* Has the peer room for one more, with so much payload beside it? */
static bool has_room(const struct weft__conn *conn, const struct weft__stream *s, uint64_t len)
{
    return s->nrecs < WEFT__WINDOW && conn->eager_out + len <= conn->peer_window;
}

static bool may_go(const struct weft__conn *conn, const struct weft__stream *s,
                   const struct weft__op *op)
{
    return has_room(conn, s, WEFT_UNLIKELY(op->large) ? 0 : message_len(op));
}

/* The message of an op that is in no queue. */
static inline WEFT__INLINE void go(struct weft__conn *conn, struct weft__op *op)
{
    enum weft__stream_id stream = stream_of(op);
    struct weft__rec *rec = rec_add(&conn->stream[stream], op);
    if (WEFT_UNLIKELY(!rec)) {
        weft__op_fail(op, -ENOMEM, "no memory for a message");
        weft__op_settle(op);
        return;
    }
    struct weft__msg_head head = {.flags = op->urgent ? WEFT__MSG_URGENT : 0,
                                  .stream = (uint8_t)stream,
                                  .index = rec->index,
                                  .len = message_len(op)};
    conn->stats.msgs_sent++;
    conn->stats.bytes_sent += head.len;
    if (WEFT_UNLIKELY(op->large))
        post_large(conn, op, &head);
    else
        post_eager(conn, op, &head);
}

static WEFT__APART void fill(struct weft__conn *conn, struct weft__stream *s)
{
    struct weft__op *op;
    while (conn->state == WEFT_CONN_UP && (op = s->sendq.head) && may_go(conn, s, op)) {
        weft__opq_remove(&s->sendq, op);
        go(conn, op);
    }
}

void weft__match_fill(struct weft__conn *conn)
{
    for (int i = 0; i < WEFT__STREAMS; i++)
        if (conn->stream[i].sendq.head)
            fill(conn, &conn->stream[i]);
}

bool weft__match_inject(struct weft__conn *conn, const struct weft_local *local, size_t nlocal, uint32_t len)
{
    struct weft__stream *s = &conn->stream[WEFT__STREAM_SEND];
    if (WEFT_UNLIKELY(s->sendq.head || conn->state != WEFT_CONN_UP || !has_room(conn, s, len)))
        return false;
    struct weft__rec *rec = weft__pool_get(&conn->ep->recs, sizeof *rec);
    if (WEFT_UNLIKELY(!rec))
        return false;
    *rec = (struct weft__rec){.index = s->next_index++, .bytes = len, .injected = true};
    rec_push(s, rec);
    conn->eager_out += len;
    conn->stats.msgs_sent++;
    conn->stats.bytes_sent += len;
    struct weft__msg_head head = {
        .type = WEFT__MSG_EAGER, .stream = WEFT__STREAM_SEND, .index = rec->index, .len = len};
    struct weft__msg *msg = weft__msg_begin(conn, &head, len);
    if (WEFT_UNLIKELY(!msg))
        return true; /* the conn is down, and has counted it as failed */
    weft__local_gather(msg->body, local, nlocal);
    weft__msg_go(msg);
    return true;
}

void weft__match_send(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    struct weft__stream *s = &conn->stream[stream_of(op)];
    if (WEFT_LIKELY(!s->sendq.head && conn->state == WEFT_CONN_UP && may_go(conn, s, op)))
        go(conn, op);
    else
        weft__opq_push(&s->sendq, op, WEFT__AT_SENDQ);
}

/* The first messages may come before this side knows that the conn is up. */
void weft__match_up(struct weft__conn *conn)
{
    weft__counts_tell(conn);
    weft__match_fill(conn);
}

void weft__match_cancel(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    if (op->where == WEFT__AT_SENDQ) {
        weft__opq_remove(&conn->stream[stream_of(op)].sendq, op);
        return;
    }
    if (op->where == WEFT__AT_RECVQ) {
        weft__opq_remove(&conn->recvq, op);
        return;
    }
    if (op->rec) { /* on its way: the peer may take it, but we no longer wait for that */
        op->rec->op = NULL;
        op->rec = NULL;
        weft__op_shut_regs(op);
        op->pending--;
    }
}

int weft__match_result(struct weft__conn *conn, const struct weft__msg_head *head,
                       const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    int32_t status = (int32_t)weft__get_u32(&r);
    if (r.bad || r.at != r.end || status > 0)
        return WEFT_EPROTO;
    struct weft__stream *s = &conn->stream[head->stream];
    for (struct weft__rec **at = &s->recs; *at; at = &(*at)->next) {
        if ((*at)->index != head->index)
            continue;
        if (status && (*at)->op) {
            char text[sizeof(*at)->op->text];
            snprintf(text, sizeof text, "the peer did not take the message: %s",
                     weft_strerror(status));
            weft__op_fail((*at)->op, status, text);
        }
        (*at)->refused = status != 0;
        if ((*at)->large)
            weft__match_end(conn, s, at);
        weft__match_fill(conn);
        return 0;
    }
    return WEFT_EPROTO;
}

/* --- answers ------------------------------------------------------------------------------------ */

static void answer(struct weft__conn *conn, struct weft__msg_head *head, int status)
{
    uint8_t body[4];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u32(&w, (uint32_t)status);
    head->type = WEFT__MSG_RESULT;
    weft__msg_post(conn, head, body, sizeof body);
}

void weft__match_answer(struct weft__conn *conn, enum weft__stream_id stream, uint32_t index,
                        int status)
{
    struct weft__msg_head head = {.stream = (uint8_t)stream, .index = index};
    answer(conn, &head, status);
}

/* The same for a short message that was too long. The counts tell that it is taken, so they must not
 * get there first: the peer would take it for well received, and this for nonsense. */
static void answer_too_long(struct weft__conn *conn, uint32_t index)
{
    struct weft__stream *s = &conn->stream[WEFT__STREAM_SEND];
    struct weft__msg_head head = {
        .stream = WEFT__STREAM_SEND, .index = index, .capped = true, .cap = s->taken};
    if (!s->capped)
        s->cap = s->taken;
    s->capped = true;
    answer(conn, &head, WEFT_ETRUNC);
}

/* --- receiving ------------------------------------------------------------------------------- */

void weft__arrival_free(struct weft__arrival *arrival)
{
    free(arrival->data);
    free(arrival->remotes);
    free(arrival);
}

static void too_long(struct weft__op *op, uint64_t len)
{
    char text[sizeof op->text];
    snprintf(text, sizeof text, "a message of %llu bytes came for a buffer of %llu",
             (unsigned long long)len, (unsigned long long)op->total);
    weft__op_fail(op, WEFT_ETRUNC, text);
}

static void scatter(struct weft__op *op, const uint8_t *data, uint64_t len)
{
    for (size_t i = 0; i < op->npieces && len; i++) {
        uint64_t n = op->pieces[i].len < len ? op->pieces[i].len : len;
        if (WEFT_LIKELY(n))
            memcpy(op->pieces[i].addr, data, n);
        data += n;
        len -= n;
    }
}

void weft__match_count(struct weft__conn *conn, uint64_t len)
{
    conn->stats.msgs_received++;
    conn->stats.bytes_received += len;
}

/* A short message meets its RECV. */
static inline WEFT__INLINE void deliver(struct weft__op *op, uint32_t index, const uint8_t *data,
                                        uint64_t len, bool urgent)
{
    struct weft__conn *conn = op->conn;
    bool fits = len <= op->total;
    op->pending++; /* one hold: an answer may take the conn down */
    if (WEFT_UNLIKELY(!fits))
        answer_too_long(conn, index);
    else if (WEFT_LIKELY(!op->staged))
        scatter(op, data, len);
    else if (weft__stage_scatter(op, data, len))
        weft__op_fail(op, -ENOMEM, "no memory to copy a message");
    weft__counts_take(conn, &conn->stream[WEFT__STREAM_SEND], len, urgent || !fits);
    weft__match_count(conn, len);
    if (WEFT_UNLIKELY(!fits))
        too_long(op, len);
    op->bytes = len;
    weft__op_unpend(op);
}

/* Pair local pieces with remotes, cutting where either ends. Returns how many pairs; fills out
 * unless it is NULL. */
static size_t pair(const struct weft__piece *local, size_t nlocal,
                   const struct weft__remote *remote, size_t nremote, struct weft__piece *out)
{
    size_t n = 0, l = 0, r = 0;
    uint64_t loff = 0, roff = 0;
    while (l < nlocal && r < nremote) {
        uint64_t left = local[l].len - loff, right = remote[r].len - roff;
        uint64_t len = left < right ? left : right;
        if (len && out) {
            out[n] = (struct weft__piece){.addr = local[l].addr + loff,
                                          .len = len,
                                          .raddr = remote[r].addr + roff,
                                          .rkey = remote[r].key,
                                          .reg = local[l].reg,
                                          .gpu = local[l].gpu,
                                          .far = remote[r].access & WEFT__REMOTE_FLAGS};
            memcpy(out[n].rkeys, remote[r].keys, sizeof out[n].rkeys);
        }
        n += len != 0;
        loff += len;
        roff += len;
        if (loff == local[l].len)
            l++, loff = 0;
        if (r < nremote && roff == remote[r].len)
            r++, roff = 0;
    }
    return n;
}

/* The READ that fetches a large message into local pieces. -ENOMEM: nothing was started. */
int weft__match_fetch(struct weft__arrival *arrival, const struct weft__piece *local,
                      size_t nlocal, struct weft__op *parent, void (*on_end)(struct weft__op *op))
{
    struct weft__conn *conn = arrival->conn;
    struct weft__remote remotes[WEFT__MAX_REMOTES];
    for (size_t i = 0; i < arrival->nremotes; i++)
        weft__remote_decode(&arrival->remotes[i], &remotes[i]); /* checked on arrival */
    size_t n = pair(local, nlocal, remotes, arrival->nremotes, NULL);
    struct weft__op *op = weft__op_new(conn, WEFT__OP_FETCH);
    struct weft__piece *pieces = calloc(n ? n : 1, sizeof *pieces);
    if (!op || !pieces) {
        free(pieces);
        if (op)
            weft__op_free(op);
        return -ENOMEM;
    }
    pair(local, nlocal, remotes, arrival->nremotes, pieces);
    op->pieces = pieces;
    op->npieces = n;
    op->total = arrival->len;
    op->arrival = arrival;
    op->parent = parent;
    op->on_end = on_end;
    arrival->fetching = true;
    conn->stats.msgs_large++;
    for (size_t i = 0; i < n; i++)
        op->staged |= pieces[i].gpu || pieces[i].far;
    if (op->staged)
        weft__stage_start(conn, op);
    else
        weft__stripe_start(conn, op);
    return 0;
}

/* The sender revoked the key: it canceled the message. */
int weft__match_fetched(const struct weft__op *op)
{
    return op->status == WEFT_EKEY ? WEFT_ECANCELED : op->status;
}

static void recv_fetched(struct weft__op *op)
{
    struct weft__op *parent = op->parent;
    struct weft__arrival *arrival = op->arrival;
    struct weft__conn *conn = op->conn;
    int status = weft__match_fetched(op);
    if (conn->state != WEFT_CONN_DOWN)
        weft__match_answer(conn, WEFT__STREAM_SEND, arrival->index, status);
    weft__match_count(conn, arrival->len);
    if (status)
        weft__op_fail(parent, status,
                      status == WEFT_ECANCELED ? "the peer canceled the message" : op->text);
    parent->bytes = arrival->len;
    weft__arrival_free(arrival);
    weft__op_unpend(parent);
}

/* A long message meets its RECV. Takes the arrival. */
static void deliver_large(struct weft__op *op, struct weft__arrival *arrival)
{
    struct weft__conn *conn = op->conn;
    conn->stream[WEFT__STREAM_SEND].waiting--;
    op->pending++; /* until it is fetched, and while it is answered */
    if (arrival->len > op->total) {
        weft__match_answer(conn, WEFT__STREAM_SEND, arrival->index, WEFT_ETRUNC);
        too_long(op, arrival->len);
        op->bytes = arrival->len;
        weft__arrival_free(arrival);
        weft__op_unpend(op);
        return;
    }
    if (weft__match_fetch(arrival, op->pieces, op->npieces, op, recv_fetched)) {
        weft__match_answer(conn, WEFT__STREAM_SEND, arrival->index, -ENOMEM);
        weft__arrival_free(arrival);
        weft__op_fail(op, -ENOMEM, "no memory to fetch a message");
        weft__op_unpend(op);
    }
}

void weft__match_recv(struct weft__op *op)
{
    struct weft__stream *s = &op->conn->stream[WEFT__STREAM_SEND];
    struct weft__arrival *arrival = s->arrivals;
    if (!arrival) {
        weft__opq_push(&op->conn->recvq, op, WEFT__AT_RECVQ);
        return;
    }
    s->arrivals = arrival->next;
    if (!s->arrivals)
        s->arrivals_tail = &s->arrivals;
    if (arrival->large) {
        deliver_large(op, arrival);
    } else {
        /* told at once: no one may poll soon, and the sender has waited already */
        deliver(op, arrival->index, arrival->data, arrival->len, true);
        weft__arrival_free(arrival);
    }
}

static void arrived_send(struct weft__conn *conn, struct weft__arrival *arrival)
{
    struct weft__stream *s = &conn->stream[WEFT__STREAM_SEND];
    struct weft__op *op = conn->recvq.head;
    if (op) { /* only large ones come here with a RECV waiting */
        weft__opq_remove(&conn->recvq, op);
        deliver_large(op, arrival);
        return;
    }
    conn->stats.msgs_unexpected++;
    *s->arrivals_tail = arrival;
    s->arrivals_tail = &arrival->next;
}

/* --- arrivals of both streams ----------------------------------------------------------------- */

static int parse_remotes(struct weft__conn *conn, struct weft__arrival *arrival,
                         const uint8_t *body, size_t len)
{
    size_t n = len / sizeof(struct weft_remote);
    uint64_t total = 0;
    if (!n || n > WEFT__MAX_REMOTES || len % sizeof(struct weft_remote))
        return WEFT_EPROTO;
    arrival->remotes = malloc(len);
    if (!arrival->remotes)
        return -ENOMEM;
    memcpy(arrival->remotes, body, len);
    arrival->nremotes = n;
    for (size_t i = 0; i < n; i++) {
        struct weft__remote r;
        if (weft__remote_decode(&arrival->remotes[i], &r) || r.owner != conn->peer_owner ||
            r.len > UINT64_MAX - total)
            return WEFT_EPROTO;
        total += r.len;
    }
    return total == arrival->len && total ? 0 : WEFT_EPROTO;
}

static int keep_payload(struct weft__arrival *arrival, const uint8_t *body, size_t len)
{
    arrival->data = malloc(len ? len : 1);
    if (!arrival->data)
        return -ENOMEM;
    memcpy(arrival->data, body, len);
    return 0;
}

/* Everything a peer may send is counted and bounded here. */
static int admit(struct weft__conn *conn, struct weft__stream *s,
                 const struct weft__msg_head *head, size_t len)
{
    if (head->index != s->expect_index || s->waiting >= WEFT__WINDOW)
        return WEFT_EPROTO;
    if (WEFT_LIKELY(head->type == WEFT__MSG_EAGER)) {
        uint64_t held = conn->stream[0].held + conn->stream[1].held;
        if (head->len != len || held + len > conn->ep->window)
            return WEFT_EPROTO;
        s->held += len;
    }
    s->expect_index++;
    s->waiting++;
    return 0;
}

/* One that is long, or that nobody waits for. */
static WEFT__APART int keep_arrival(struct weft__conn *conn, const struct weft__msg_head *head, const uint8_t *body, size_t len)
{
    bool large = head->type == WEFT__MSG_LARGE, urgent = head->flags & WEFT__MSG_URGENT;
    struct weft__arrival *arrival = calloc(1, sizeof *arrival);
    if (!arrival)
        return -ENOMEM;
    *arrival = (struct weft__arrival){.conn = conn,
                                      .conn_handle = conn->handle,
                                      .index = head->index,
                                      .len = head->len,
                                      .large = large,
                                      .urgent = urgent,
                                      .stream = head->stream};
    int rc = large ? parse_remotes(conn, arrival, body, len) : keep_payload(arrival, body, len);
    if (rc) {
        weft__arrival_free(arrival);
        return rc;
    }
    if (head->stream == WEFT__STREAM_SEND)
        arrived_send(conn, arrival);
    else
        weft__notif_arrived(conn, arrival);
    return 0;
}

int weft__match_arrived(struct weft__conn *conn, const struct weft__msg_head *head,
                        const uint8_t *body, size_t len)
{
    int rc = admit(conn, &conn->stream[head->stream], head, len);
    if (rc)
        return rc;
    struct weft__op *op = conn->recvq.head;
    if (WEFT_UNLIKELY(!op || head->stream != WEFT__STREAM_SEND || head->type == WEFT__MSG_LARGE))
        return keep_arrival(conn, head, body, len);
    weft__opq_remove(&conn->recvq, op);
    deliver(op, head->index, body, len, head->flags & WEFT__MSG_URGENT);
    return 0;
}

/* --- end of a conn ----------------------------------------------------------------------------- */

void weft__match_down(struct weft__conn *conn)
{
    for (int i = 0; i < WEFT__STREAMS; i++) {
        struct weft__stream *s = &conn->stream[i];
        while (s->recs)
            weft__match_end(conn, s, &s->recs);
        while (s->arrivals) {
            struct weft__arrival *arrival = s->arrivals;
            s->arrivals = arrival->next;
            weft__arrival_free(arrival);
        }
        s->arrivals_tail = &s->arrivals;
        s->untaken = s->untaken_tail = NULL;
    }
    weft__counts_down(conn);
    weft__notif_down(conn);
}
