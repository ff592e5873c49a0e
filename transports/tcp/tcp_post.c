/* SPDX-License-Identifier: Apache-2.0 */
/* The initiator: cmds become ops, ops become frames, and what the peer says of them. */
#include "tcp.h"

#include <errno.h>

/* What only quiet cmds wait for is looked at when there are so many frames of them, or after so many polls that found messages. */
#define HEAR_MOST 16
#define HEAR_POLLS 64

/* --- from cmds to frames ----------------------------------------------------------------------- */

bool tcp_is_bulk(const struct tcp_op *op)
{
    return op->len > TCP_BULK_MIN && op->op != WEFT_OP_SEND &&
           (op->is_answer || op->op != WEFT_OP_READ);
}

/* Head of the frame with the next n bytes of a WRITE. */
struct tcp_frame tcp_write_frame(const struct tcp_op *op, uint32_t n)
{
    struct tcp_frame frame = {.type = TCP_WRITE,
                              .len = n,
                              .word = {op->remote_key, op->remote_addr, op->len, op->staged}};
    bool last = op->staged + n == op->len;
    frame.lent = tcp_lends(op->link, n);
    if (n < op->len)
        frame.type = TCP_PART;
    if (op->op == WEFT_OP_WRITE_IMM && last) {
        frame.type = n < op->len ? TCP_PART_IMM : TCP_WRITE_IMM;
        frame.id = op->imm;
    }
    return frame;
}

/* SEND, WRITE and WRITE_IMM in one frame on socket 0. */
static bool start_counted(struct tcp_sock *sock, struct tcp_op *op)
{
    if (sock->nflight == sock->window || !tcp_out_fits(sock, op->len))
        return false;
    struct tcp_frame frame = {.type = TCP_SEND, .len = (uint32_t)op->len, .id = op->patient};
    if (op->op != WEFT_OP_SEND)
        frame = tcp_write_frame(op, (uint32_t)op->len);
    tcp_out_counted(sock, op, &frame);
    return true;
}

/* READ and ADD64. */
static bool start_call(struct tcp_sock *sock, struct tcp_op *op)
{
    struct tcp_link *link = op->link;
    if (link->nfree_calls == 0 || !tcp_out_room(sock, TCP_FRAME_MAX, TCP_OUT_CMDS))
        return false;
    op->call = link->free_calls[--link->nfree_calls];
    link->calls[op->call] = op;
    struct tcp_frame frame = {
        .type = op->op == WEFT_OP_READ ? TCP_READ : TCP_ADD,
        .id = op->call,
        .word = {op->remote_key, op->remote_addr, op->op == WEFT_OP_READ ? op->len : op->value}};
    tcp_out_head(sock, &frame);
    return true;
}

/* False: not now. */
static bool start(struct tcp_link *link, struct tcp_op *op)
{
    switch (op->op) {
    case WEFT_OP_FENCE:
        return link->started == 0;
    case WEFT_OP_READ:
    case WEFT_OP_ADD64:
        return start_call(&link->socks[0], op);
    default:
        return tcp_is_bulk(op) || start_counted(&link->socks[0], op);
    }
}

static void started(struct tcp_link *link, struct tcp_op *op)
{
    link->started++;
    if (op->len > TCP_BULK_MIN)
        link->nlong++;
    else if (!op->patient)
        tcp_note_short(tcp_nic_of(link));
    if (op->op == WEFT_OP_FENCE)
        tcp_op_done(op, 0);
    else if (tcp_is_bulk(op))
        tcp_queue_push(&link->bulk, op);
}

void tcp_post_start(struct tcp_link *link)
{
    struct tcp_op *op;
    while ((op = link->todo.head) && start(link, op)) {
        tcp_queue_pop(&link->todo);
        started(link, op);
    }
}

/* --- post -------------------------------------------------------------------------------------- */

static struct tcp_op *op_of_cmd(struct tcp_link *link, const struct weft_cmd *cmd)
{
    struct tcp_op *op = tcp_op_new(link);
    if (!op)
        return NULL;
    op->op = cmd->op;
    op->patient = cmd->flags & WEFT_CMD_PATIENT;
    op->quiet = cmd->flags & WEFT_CMD_QUIET;
    op->imm = cmd->imm;
    op->remote_addr = cmd->remote_addr;
    op->remote_key = cmd->remote_key;
    op->value = cmd->value;
    op->len = cmd->op == WEFT_OP_FENCE ? 0 : cmd->len;
    op->end = op->len;
    op->ctx = cmd->ctx;
    op->niov = cmd->niov;
    if (cmd->niov == 0)
        op->one = cmd->one;
    op->iov = cmd->niov ? cmd->iov : &op->one;
    return op;
}

/* Keep the payload of an inline cmd that could not be staged. */
static void op_keep_inline(struct tcp_op *op)
{
    struct iovec piece;
    for (uint64_t done = 0; done < op->len;) {
        int n = 0;
        uint64_t part = tcp_pieces(op, op->at, op->len - done, &piece, 1, &n);
        memcpy(op->copy + done, piece.iov_base, part);
        tcp_cursor_move(op, &op->at, part);
        done += part;
    }
    op->one = (struct weft_iov_local){.addr = op->copy, .len = op->len};
    op->iov = &op->one;
    op->at = (struct tcp_cursor){0, 0};
}

/* Most are short and find room: straight into the out buffer. False: not this one. */
static bool post_short(struct tcp_link *link, const struct weft_cmd *cmd)
{
    struct tcp_sock *sock = &link->socks[0];
    bool kind = cmd->op == WEFT_OP_WRITE || cmd->op == WEFT_OP_SEND;
    if (WEFT_UNLIKELY(!kind || cmd->len > TCP_COPY_MAX || link->todo.head ||
                      sock->nflight == sock->window || !tcp_out_fits(sock, cmd->len)))
        return false;
    struct tcp_op *op = tcp_op_take(link);
    if (WEFT_UNLIKELY(!op))
        return false;
    op->op = cmd->op;
    op->is_answer = false;
    op->quiet = cmd->flags & WEFT_CMD_QUIET;
    op->pending = 1;
    op->status = 0;
    op->len = op->staged = cmd->len;
    op->ctx = cmd->ctx;
    tcp_out_short(sock, op, cmd);
    if (!(cmd->flags & WEFT_CMD_PATIENT))
        tcp_note_short(tcp_nic_of(link));
    link->started++;
    return true;
}

/* False: no memory. */
static bool post_any(struct tcp_link *link, const struct weft_cmd *cmd)
{
    struct tcp_op *op = op_of_cmd(link, cmd);
    if (!op)
        return false;
    if (!link->todo.head && start(link, op)) {
        started(link, op);
        return true;
    }
    tcp_queue_push(&link->todo, op);
    if (cmd->flags & WEFT_CMD_INLINE)
        op_keep_inline(op);
    return true;
}

/* What was just posted, when nothing else is under way: no more than a turn, before it returns to its caller. */
static void send_first(struct tcp_link *link)
{
    struct tcp_sock *sock = &link->socks[0];
    int64_t budget = TCP_TURN;
    if (WEFT_UNLIKELY(tcp_tx_queued(link))) {
        tcp_tx_run(link, &budget);
        return;
    }
    tcp_out_flush(sock, TCP_TURN);
    if (link->state == TCP_LINK_UP && sock->sent != sock->staged && !sock->blocked)
        tcp_tx_ready(link);
}

/* What was just posted, in its turn; but short ones do not wait for long ones. */
static void send_behind(struct tcp_link *link, bool short_first)
{
    tcp_tx_ready(link);
    if (short_first)
        tcp_out_flush(&link->socks[0], TCP_TURN);
}

/* Ops under way, without those that the peer has just said to have executed (tcp_post_heard). */
static uint32_t under_way(const struct tcp_link *link)
{
    const struct tcp_nic *nic = tcp_nic_of(link);
    bool heard = nic->heard == link && nic->heard_sock == 0;
    uint32_t n = heard ? nic->heard_count - link->socks[0].acked : 0; /* a lie, perhaps */
    return WEFT_LIKELY(n <= link->started) ? link->started - n : 0;
}

int tcp_post(struct weft_link *base, const struct weft_cmd *cmds, int n)
{
    struct tcp_link *link = (struct tcp_link *)base;
    if (WEFT_UNLIKELY(link->state != TCP_LINK_UP))
        return weft_fail(link->state == TCP_LINK_DOWN ? WEFT_ELINK : -ENOTCONN,
                         "tcp: post on a link that is %s",
                         link->state == TCP_LINK_DOWN ? "dead" : "not connected");
    uint32_t others = under_way(link), shorts = others > link->nlong ? others - link->nlong : 0;
    int i = 0;
    for (; i < n && link->posted < link->depth; i++) {
        int rc = weft_cmd_check(&base->nic->attr, &cmds[i]);
        if (WEFT_UNLIKELY(rc < 0) && i == 0)
            return rc;
        if (WEFT_UNLIKELY(rc < 0) || !(post_short(link, &cmds[i]) || post_any(link, &cmds[i])))
            break;
        link->posted++;
        if (!(cmds[i].flags & WEFT_CMD_PATIENT))
            base->nic->bulk = cmds[i].len > TCP_BULK_MIN;
    }
    if (i == 0)
        return 0;
    bool more = cmds[i - 1].flags & WEFT_CMD_MORE;
    if (others == 0 && !more)
        send_first(link);
    else
        send_behind(link, shorts == 0 && !more);
    return i;
}

/* --- what the peer says of our frames ---------------------------------------------------------- */

static void frame_executed(struct tcp_op *op)
{
    if (op->is_answer)
        op->mem->busy--;
    if (--op->pending > 0 || op->staged < op->len)
        return;
    if (op->is_answer)
        tcp_answer_end(op);
    else
        tcp_op_done(op, op->status);
}

static bool acked(struct tcp_link *link, uint32_t index, uint32_t count)
{
    if (index >= link->nsocks)
        return false;
    struct tcp_sock *sock = &link->socks[index];
    uint32_t n = count - sock->acked;
    if (n == 0)
        return true;
    if (n > sock->nflight)
        return false;
    for (; n > 0; n--) {
        struct tcp_flight *flight = &sock->flight[sock->flight_first];
        struct tcp_op *op = flight->op;
        if (flight->end > sock->sent)
            return false;
        sock->flight_first = (sock->flight_first + 1) % sock->window;
        sock->nflight--;
        sock->nawaited -= !op->quiet;
        sock->acked++;
        sock->executed_to = flight->end;
        frame_executed(op);
    }
    if (tcp_tx_queued(link))
        tcp_tx_ready(link);
    return true;
}

bool tcp_post_must_hear(const struct tcp_nic *nic)
{
    const struct tcp_link *link = nic->heard;
    if (!link)
        return false;
    if (nic->heard_sock >= link->nsocks || link->todo.head)
        return true;
    const struct tcp_sock *sock = &link->socks[nic->heard_sock];
    uint32_t most = sock->window / 4 < HEAR_MOST ? sock->window / 4 : HEAR_MOST;
    return sock->nawaited || nic->heard_count - sock->acked > most || nic->polls - nic->heard_poll > HEAR_POLLS;
}

bool tcp_post_hear(struct tcp_nic *nic)
{
    struct tcp_link *link = nic->heard;
    nic->heard = NULL;
    return !link || acked(link, nic->heard_sock, nic->heard_count);
}

bool tcp_post_acked(struct tcp_link *link, uint32_t index, uint32_t count)
{
    struct tcp_nic *nic = tcp_nic_of(link);
    if (nic->heard == link && !tcp_post_hear(nic)) {
        nic->heard = link; /* who asks again (short_write does) hears the same */
        return false;
    }
    return acked(link, index, count);
}

/* Is what was heard before sound, and part of this? */
static bool goes_on(const struct tcp_nic *nic, uint8_t index, uint32_t count)
{
    if (index != nic->heard_sock || index >= nic->heard->nsocks)
        return false;
    const struct tcp_sock *sock = &nic->heard->socks[index];
    return nic->heard_count - sock->acked <= sock->nflight && (int32_t)(count - nic->heard_count) >= 0;
}

bool tcp_post_heard(struct tcp_link *link, uint8_t index, uint32_t count)
{
    struct tcp_nic *nic = tcp_nic_of(link);
    struct tcp_link *before = nic->heard;
    bool more = before == link && goes_on(nic, index, count);
    if (before && !more && !tcp_post_hear(nic)) {
        if (before == link)
            return false;
        tcp_link_fail(before, WEFT_EPROTO);
    }
    if (!more)
        nic->heard_poll = nic->polls;
    nic->heard = link;
    nic->heard_sock = index;
    nic->heard_count = count;
    return true;
}

bool tcp_post_nacked(struct tcp_link *link, uint64_t index, uint32_t nth, int status)
{
    if (index >= link->nsocks)
        return false;
    struct tcp_sock *sock = &link->socks[index];
    uint32_t i = nth - sock->acked;
    if (i >= sock->nflight)
        return false;
    struct tcp_flight *flight = &sock->flight[(sock->flight_first + i) % sock->window];
    if (flight->op->op == WEFT_OP_SEND || flight->op->is_answer)
        return false;
    /* It comes as soon as the head is there; the op ends when all of the frame was sent. */
    if (flight->op->status == 0)
        flight->op->status = status;
    return true;
}

void tcp_call_done(struct tcp_op *op, int status)
{
    struct tcp_link *link = op->link;
    link->calls[op->call] = NULL;
    link->free_calls[link->nfree_calls++] = (uint16_t)op->call;
    tcp_op_done(op, status);
    if (tcp_tx_queued(link))
        tcp_tx_ready(link);
}
