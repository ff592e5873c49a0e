/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data operations over the links of a conn.
 *
 * Ops with pieces left wait in conn->todo or, if they are longer than a part, in conn->longs; links that have room pull from
 * their heads in turn, so a faster link carries more. What a nic has cannot be taken back: so of long ops a link has no
 * more than WEFT_AHEAD at a time, each gets a part in turn, and one that is canceled ends when those parts have. A transfer
 * that several links share is cut into smaller parts; the transport knows best how to interleave those of one link with
 * small operations.
 *
 * When a link dies, what it had not completed may still be landing: its cmds go to another link
 * only after the peer has said that its end is closed too (LINK_LOST, LINK_GONE). Writes and
 * reads can then be repeated; an addition cannot, so it ends with an error that says so.
 *
 * The endpoint lock is held in every function here.
 */
#include "stripe.h"
#include "conn.h"
#include "endpoint.h"
#include "lane.h"
#include "mem.h"
#include "msg.h"
#include "op.h"
#include "stage.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN_BYTES                                                                                 \
    16384 /* of a run: with that, what a command costs core is little beside its bytes */

struct weft__wr *weft__wr_new(struct weft__endpoint *ep)
{
    return weft__pool_get(&ep->wrs, sizeof(struct weft__wr));
}

void weft__wr_free(struct weft__endpoint *ep, struct weft__wr *wr)
{
    weft__pool_put(&ep->wrs, wr);
}

/* For a part of a long op, or for another cmd. What is long waits for bytes of this very link to end: there are some. */
static bool has_room(const struct weft__link *link, bool of_long)
{
    return WEFT_LIKELY(link->up) && WEFT_LIKELY(link->owned < link->lane->data_depth) &&
           (!of_long || link->bytes < link->conn->ep->ahead);
}

/* Of a conn that is not up yet any may be. */
static bool is_long(const struct weft__conn *conn, const struct weft__op *op)
{
    return op->kind != WEFT__OP_ADD && op->total > conn->part;
}

/* Of the links with room the one with the fewest bytes under way, and among those with as few in turn: a slower one gets less, also
 * where the few parts of a staged transfer would otherwise all come to lie behind it. */
static struct weft__link *least(struct weft__conn *conn, bool of_long)
{
    struct weft__link *best = NULL;
    for (int i = 0, at = conn->next_link; i < conn->nlinks; i++, at++) {
        if (at == conn->nlinks)
            at = 0;
        struct weft__link *link = conn->links[at];
        if (has_room(link, of_long) && (!best || link->bytes < best->bytes))
            best = link;
    }
    if (best)
        conn->next_link = best->index + 1 < conn->nlinks ? best->index + 1 : 0;
    return best;
}

static inline struct weft__link *pick(struct weft__conn *conn, bool of_long)
{
    if (conn->nlinks == 1)
        return has_room(conn->links[0], of_long) ? conn->links[0] : NULL;
    return least(conn, of_long);
}

/* The link for the next part of an op. Additions go by the first one that is up, and so meet at one nic
 * of the target: there are nics whose additions are atomic only among themselves. */
static struct weft__link *pick_for(struct weft__conn *conn, const struct weft__op *op)
{
    if (op->kind != WEFT__OP_ADD)
        return pick(conn, op->where == WEFT__AT_LONGS);
    for (int i = 0; i < conn->nlinks; i++)
        if (conn->links[i]->up)
            return has_room(conn->links[i], false) ? conn->links[i] : NULL;
    return NULL;
}

static uint64_t key_for(const struct weft__link *link, const struct weft__piece *piece)
{
    return link->peer_slot < 0 ? piece->rkey : piece->rkeys[link->peer_slot];
}

static void *mem_for(const struct weft__link *link, const struct weft__piece *piece)
{
    return piece->reg ? piece->reg->on[link->lane->index].handle.mem : NULL;
}

/* Point a wr at a link: what depends on the nic is filled in here, also when it is sent again. */
static inline void assign(struct weft__wr *wr, const struct weft__piece *piece,
                          struct weft__link *link)
{
    wr->link = link;
    wr->work.kind = WEFT__WORK_POST;
    wr->cmd.remote_key = key_for(link, piece);
    wr->cmd.one.mem = mem_for(link, piece);
    wr->posted = 0;
    wr->left = wr->ncmds;
    link->owned += wr->ncmds;
    link->bytes += wr->bytes;
    link->conn->stats.cmds_posted += wr->ncmds;
    weft__lane_push(link->lane, &wr->work);
}

void weft__stripe_cmd(const struct weft__wr *wr, uint32_t nth, struct weft_cmd *cmd)
{
    const struct weft__piece *piece = &wr->op->pieces[wr->piece + nth];
    cmd->remote_addr = piece->raddr;
    cmd->remote_key = key_for(wr->link, piece);
    cmd->len = piece->len;
    cmd->ctx += nth;
    cmd->one = (struct weft_iov_local){piece->addr, piece->len, mem_for(wr->link, piece)};
}

static bool exhausted(const struct weft__op *op)
{
    return op->next_piece == op->npieces;
}

/* Between pieces: those of no bytes. */
static void skip_empty(struct weft__op *op)
{
    while (!exhausted(op) && op->next_offset == op->pieces[op->next_piece].len)
        op->next_piece++;
}

static const uint8_t cmd_op[] = {[WEFT__OP_WRITE] = WEFT_OP_WRITE,
                                 [WEFT__OP_READ] = WEFT_OP_READ,
                                 [WEFT__OP_ADD] = WEFT_OP_ADD64,
                                 [WEFT__OP_FETCH] = WEFT_OP_READ};

/* Short pieces that follow go along, as many as the link has room for. */
static WEFT__APART void extend(struct weft__wr *wr, struct weft__op *op,
                               const struct weft__link *link)
{
    uint32_t most = link->lane->data_depth - link->owned;
    /* a longer piece does not go as one cmd */
    uint64_t whole = link->conn->part < RUN_BYTES ? link->conn->part : RUN_BYTES;
    if (most > WEFT__RUN)
        most = WEFT__RUN;
    while (wr->ncmds < most && !exhausted(op)) {
        uint64_t len = op->pieces[op->next_piece].len;
        if (len == 0 || len > whole || wr->bytes + len > RUN_BYTES)
            break;
        wr->ncmds++;
        wr->bytes += len;
        op->next_piece++;
    }
    skip_empty(op);
}

/* The next part of an op by a link. */
static void send_part(struct weft__op *op, struct weft__wr *wr, struct weft__link *link)
{
    const struct weft__piece *piece = &op->pieces[op->next_piece];
    uint64_t offset = op->next_offset, n = piece->len - offset;
    if (n > link->conn->part)
        n = link->conn->part;
    wr->kind = WEFT__WR_DATA;
    wr->op = op;
    wr->piece = op->next_piece;
    wr->ncmds = 1;
    wr->bytes = n;
    /* all fields, one by one: an initialiser costs as much as the rest of this function */
    struct weft_cmd *cmd = &wr->cmd;
    cmd->op = cmd_op[op->kind];
    cmd->flags = op->more ? WEFT_CMD_MORE : 0;
    cmd->niov = 0;
    cmd->imm = 0;
    cmd->remote_addr = piece->raddr + offset;
    cmd->value = op->value;
    cmd->len = n;
    cmd->ctx = (uintptr_t)wr;
    /* as a number: an ADD has no memory, and NULL + 0 is undefined */
    cmd->one.addr = (void *)((uintptr_t)piece->addr + offset);
    cmd->one.len = n;
    op->pending++;
    op->next_offset = offset + n;
    if (WEFT_LIKELY(op->next_offset == piece->len)) {
        op->next_offset = 0;
        op->next_piece++;
        if (WEFT_UNLIKELY(!exhausted(op)))
            extend(wr, op, link);
    }
    assign(wr, piece, link);
}

static uint64_t len_of(const struct weft__wr *wr, uint32_t nth)
{
    return nth ? wr->op->pieces[wr->piece + nth].len : wr->cmd.len;
}

/* ADD on a nic without ADD64: a message, executed by the peer's progress. */
static int add_by_message(struct weft__op *op)
{
    uint8_t body[32];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u64(&w, op->handle);
    weft__put_u64(&w, op->pieces[0].raddr);
    weft__put_u64(&w, op->pieces[0].rkey);
    weft__put_u64(&w, op->value);
    struct weft__msg_head head = {.type = WEFT__MSG_ADD};
    weft__opq_remove(&op->conn->todo, op); /* the list of adds goes through qnext, too */
    op->next_piece = op->npieces;
    op->pending++;
    op->qnext = op->conn->adds;
    op->conn->adds = op;
    op->conn->nadds++;
    return weft__msg_post(op->conn, &head, body, sizeof body);
}

static void resend(struct weft__conn *conn)
{
    while (conn->resend) {
        struct weft__link *link = pick(conn, false);
        if (!link)
            return;
        struct weft__wr *wr = conn->resend;
        conn->resend = (struct weft__wr *)wr->work.next;
        wr->cmd.flags = 0;
        conn->stats.cmds_resent += wr->ncmds;
        assign(wr, &wr->op->pieces[wr->piece], link);
    }
}

/* Peers may reach one word over different nics and transports, and the processor adds there, too. */
static bool adds_itself(const struct weft__endpoint *ep, const struct weft_nic *nic)
{
    return nic->attr.ops & WEFT_OP_BIT(WEFT_OP_ADD64) && (nic->attr.add_global || ep->nic_adds);
}

void weft__stripe_leave(struct weft__op *op)
{
    if (op->where == WEFT__AT_TODO)
        weft__opq_remove(&op->conn->todo, op);
    else if (op->where == WEFT__AT_LONGS)
        weft__opq_remove(&op->conn->longs, op);
}

/* Of several long ops each gets a part in turn. */
static void to_the_end(struct weft__op *op)
{
    struct weft__opq *longs = &op->conn->longs;
    if (longs->tail == op)
        return;
    weft__opq_remove(longs, op);
    weft__opq_push(longs, op, WEFT__AT_LONGS);
}

/* The next part of an op that waits. False: there is no room for it, or the conn is down. */
static bool send_next(struct weft__conn *conn, struct weft__op *op)
{
    skip_empty(op);
    struct weft__link *link = exhausted(op) ? NULL : pick_for(conn, op);
    if (!link && !exhausted(op))
        return false;
    if (link && op->kind == WEFT__OP_ADD &&
        (!adds_itself(conn->ep, link->lane->nic) || weft__stage_far(conn, op->pieces)))
        /* the peer keeps answers for so many; added_arrived goes on. Or the conn is down, and the op with it */
        return conn->nadds < WEFT__WINDOW && add_by_message(op) == 0;
    if (link) {
        struct weft__wr *wr = weft__wr_new(op->ep);
        if (wr)
            send_part(op, wr, link);
        else
            weft__op_fail(op, -ENOMEM, "no memory for a command");
    }
    if (exhausted(op) || op->status) {
        weft__stripe_leave(op);
        weft__op_settle(op);
    } else if (op->where == WEFT__AT_LONGS) {
        to_the_end(op);
    }
    return true;
}

static bool send_from(struct weft__conn *conn, const struct weft__opq *queue)
{
    return conn->state == WEFT_CONN_UP && queue->head && send_next(conn, queue->head);
}

void weft__stripe_fill(struct weft__conn *conn)
{
    if (conn->state != WEFT_CONN_UP)
        return;
    resend(conn);
    bool on = true, long_on = true;
    while (on || long_on) {
        on = on && send_from(conn, &conn->todo);
        long_on = long_on && send_from(conn, &conn->longs);
    }
}

void weft__stripe_start(struct weft__conn *conn, struct weft__op *op)
{
    const bool longer = is_long(conn, op);
    struct weft__opq *queue = longer ? &conn->longs : &conn->todo;
    /* The common case, without a detour through the queue: one piece, and room for it. */
    if (WEFT_LIKELY(conn->state == WEFT_CONN_UP) && !queue->head && WEFT_LIKELY(!conn->resend) &&
        op->npieces == 1 && WEFT_LIKELY(op->kind != WEFT__OP_ADD && op->total)) {
        struct weft__link *link = pick(conn, longer);
        struct weft__wr *wr = link ? weft__wr_new(op->ep) : NULL;
        if (wr) {
            send_part(op, wr, link);
            if (WEFT_LIKELY(exhausted(op)))
                return;
        }
    }
    weft__opq_push(queue, op, longer ? WEFT__AT_LONGS : WEFT__AT_TODO);
    weft__stripe_fill(conn);
}

/* What failed, as a sentence: of a list the piece, too. */
static void describe(const struct weft__wr *wr, uint32_t nth, const char *why, char *text,
                     size_t size)
{
    char piece[32] = "";
    if (wr->op->npieces > 1)
        snprintf(piece, sizeof piece, ", piece %zu", wr->piece + nth);
    weft__text_add(text, size, 0, "%s of %llu bytes over %s%s: %s", weft_op_name(wr->cmd.op),
                   (unsigned long long)len_of(wr, nth), wr->op->conn->transport, piece, why);
}

void weft__stripe_failed(struct weft__wr *wr, uint32_t nth, int status, const char *why)
{
    struct weft__op *op = wr->op;
    char text[sizeof op->text];
    describe(wr, nth, why ? why : weft_strerror(status), text, sizeof text);
    weft__op_fail(op, status, text);
    weft__stripe_leave(op);
    wr->bytes -= len_of(wr, nth);
    wr->link->bytes -= len_of(wr, nth);
}

void weft__stripe_done(struct weft__wr *wr, const struct weft_comp *comp)
{
    struct weft__op *op = wr->op;
    struct weft__conn *conn = op->conn;
    op->bytes += wr->bytes;
    if (WEFT_LIKELY(op->kind == WEFT__OP_WRITE))
        conn->stats.bytes_written += wr->bytes;
    else if (op->kind == WEFT__OP_READ)
        conn->stats.bytes_read += wr->bytes;
    else if (op->kind == WEFT__OP_ADD && op->result && comp->status == 0)
        *op->result = comp->value;
    weft__wr_free(op->ep, wr);
    weft__op_unpend(op);
    weft__conn_fill(conn);
}

static void end_orphan(struct weft__wr *wr, int status, const char *text)
{
    struct weft__op *op = wr->op;
    weft__op_fail(op, status, text);
    weft__stripe_leave(op);
    weft__wr_free(op->ep, wr);
    weft__op_unpend(op);
}

void weft__stripe_orphan(struct weft__wr *wr)
{
    struct weft__conn *conn = wr->op->conn;
    if (conn->state == WEFT_CONN_DOWN) {
        end_orphan(wr, weft__conn_end(conn), conn->why);
    } else if (wr->op->kind == WEFT__OP_ADD) {
        end_orphan(wr, WEFT_ELINK, "the link died: whether the addition took place is not known");
    } else if (wr->op->status) {
        end_orphan(wr, wr->op->status, NULL);
    } else {
        struct weft__wr **list = &conn->orphans[wr->link->index];
        wr->work.next = (struct weft__work *)*list;
        *list = wr;
    }
}

void weft__stripe_release(struct weft__conn *conn, int i)
{
    while (conn->orphans[i]) {
        struct weft__wr *wr = conn->orphans[i];
        conn->orphans[i] = (struct weft__wr *)wr->work.next;
        wr->work.next = (struct weft__work *)conn->resend;
        conn->resend = wr;
    }
    weft__stripe_fill(conn);
}

/* End the wrs of a list that belong to op, or all if op is NULL. */
static void drop_list(struct weft__wr **list, const struct weft__op *op, int status,
                      const char *text)
{
    struct weft__wr *keep = NULL;
    while (*list) {
        struct weft__wr *wr = *list;
        *list = (struct weft__wr *)wr->work.next;
        if (!op || wr->op == op) {
            end_orphan(wr, status, text);
        } else {
            wr->work.next = (struct weft__work *)keep;
            keep = wr;
        }
    }
    *list = keep;
}

void weft__stripe_drop(struct weft__conn *conn, const struct weft__op *op, int status,
                       const char *text)
{
    drop_list(&conn->resend, op, status, text);
    for (int i = 0; i < conn->nlinks; i++)
        drop_list(&conn->orphans[i], op, status, text);
}

/* --- the peer's side of an addition by message ----------------------------------------------- */

static int do_add(struct weft__reg *reg, uint64_t addr, uint64_t value, uint64_t *old)
{
    uint64_t base = (uintptr_t)reg->addr;
    if (addr < base || addr - base > reg->len || reg->len - (addr - base) < 8 || addr % 8)
        return WEFT_EBOUNDS;
    if (!(reg->access & WEFT_ATOMIC))
        return WEFT_EACCESS;
    if (!reg->apart)
        *old = __atomic_fetch_add((uint64_t *)(uintptr_t)addr, value, __ATOMIC_SEQ_CST);
    return 0;
}

int weft__add_answer(struct weft__conn *conn, uint64_t id, int status, uint64_t old)
{
    uint8_t answer[20];
    struct weft__writer w = {answer, answer + sizeof answer, false};
    weft__put_u64(&w, id);
    weft__put_u32(&w, (uint32_t)status);
    weft__put_u64(&w, old);
    struct weft__msg_head head = {.type = WEFT__MSG_ADDED};
    return weft__msg_post(conn, &head, answer, sizeof answer);
}

int weft__add_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    uint64_t id = weft__get_u64(&r), addr = weft__get_u64(&r), key = weft__get_u64(&r);
    uint64_t value = weft__get_u64(&r), old = 0;
    if (r.bad || r.at != r.end)
        return WEFT_EPROTO;
    struct weft__reg *reg = weft__reg_find(conn->ep, key);
    int status = reg ? do_add(reg, addr, value, &old) : WEFT_EKEY;
    if (status == 0 && reg->apart)
        return weft__serve_add(conn, id, reg, addr, value);
    return weft__add_answer(conn, id, status, old);
}

static void fail_as_told(struct weft__op *op, int status)
{
    char text[96];
    snprintf(text, sizeof text, "the peer could not add: %s", weft_strerror(status));
    weft__op_fail(op, status, text);
}

int weft__added_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    uint64_t id = weft__get_u64(&r);
    int32_t status = (int32_t)weft__get_u32(&r);
    uint64_t old = weft__get_u64(&r);
    if (r.bad || r.at != r.end || status > 0)
        return WEFT_EPROTO;
    for (struct weft__op **at = &conn->adds; *at; at = &(*at)->qnext) {
        struct weft__op *op = *at;
        if (op->handle != id)
            continue;
        *at = op->qnext;
        conn->nadds--;
        if (status)
            fail_as_told(op, status);
        else if (op->result)
            *op->result = old;
        op->bytes = status ? 0 : 8;
        weft__op_unpend(op);
        weft__stripe_fill(conn);
        return 0;
    }
    return WEFT_EPROTO;
}
