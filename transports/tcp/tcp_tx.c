/* SPDX-License-Identifier: Apache-2.0 */
/* Sending for a link: answers, cmds and chunks in turn, each on the socket it belongs to. */
#include "tcp.h"

#include <errno.h>

/* A bulk socket is given so many chunks ahead: one in sendmsg, one to go on with. */
#define STAGED_CHUNKS 2
/* An operation of this length takes some milliseconds; its turns, if short operations come and go. */
#define HUGE_MIN (16u << 20)
#define SHORTER_TURN (64 * 1024)

/* --- queues ------------------------------------------------------------------------------------- */

void tcp_queue_push(struct tcp_queue *queue, struct tcp_op *op)
{
    op->next = NULL;
    if (!queue->head)
        queue->tail = &queue->head;
    *queue->tail = op;
    queue->tail = &op->next;
}

struct tcp_op *tcp_queue_pop(struct tcp_queue *queue)
{
    struct tcp_op *op = queue->head;
    queue->head = op->next;
    return op;
}

/* --- answers ----------------------------------------------------------------------------------- */

/* A frame without payload. A peer for which there is no room has more open than it may. */
static void put_answer(struct tcp_link *link, struct tcp_frame *frame)
{
    if (tcp_out_room(&link->socks[0], TCP_FRAME_MAX, TCP_BUF))
        tcp_out_head(&link->socks[0], frame);
    else
        tcp_link_fail(link, link->socks[0].out ? WEFT_EPROTO : -ENOMEM);
}

void tcp_answer_end(struct tcp_op *op)
{
    op->link->nanswers--;
    tcp_op_free(op);
}

/* Memory of the next n bytes of an answer, or NULL after an END, which ended the op. */
static struct tcp_mem *answer_mem(struct tcp_op *op)
{
    struct tcp_mem *mem;
    enum tcp_code code = tcp_mem_find(tcp_nic_of(op->link), op->remote_key, op->remote_addr,
                                      op->len, WEFT_ACCESS_READ, &mem);
    if (code == TCP_OK)
        return mem;
    struct tcp_frame frame = {.type = TCP_END, .id = op->call, .word = {op->staged, code}};
    op->len = op->staged;
    put_answer(op->link, &frame);
    return NULL;
}

/* False: no room. Else the op may have ended. */
static bool stage_answer(struct tcp_sock *sock, struct tcp_op *op, uint32_t n)
{
    struct tcp_frame frame = {.type = TCP_DATA, .len = n, .id = op->call, .word = {op->staged}};
    frame.lent = tcp_lends(sock->link, n);
    if ((frame.lent && sock->nflight == sock->window) || !tcp_out_fits(sock, n))
        return false;
    struct tcp_mem *mem = answer_mem(op);
    if (!mem)
        return true;
    op->mem = mem;
    if (frame.lent) {
        tcp_out_counted(sock, op, &frame);
        mem->busy++;
    } else {
        tcp_out_head(sock, &frame);
        tcp_out_payload(sock, op, n, mem);
    }
    return true;
}

static void start_answers(struct tcp_link *link)
{
    struct tcp_op *op;
    while ((op = link->answers.head)) {
        bool bulk = tcp_is_bulk(op);
        if (!bulk && !stage_answer(&link->socks[0], op, (uint32_t)op->len))
            return;
        if (link->state != TCP_LINK_UP)
            return;
        tcp_queue_pop(&link->answers);
        if (bulk)
            tcp_queue_push(&link->bulk, op);
        else if (op->pending == 0)
            tcp_answer_end(op);
    }
}

int tcp_tx_serve(struct tcp_link *link, const struct tcp_frame *frame)
{
    /* as many as the peer may wait for, and those that it has, but has not acknowledged: all frames in flight at most */
    if (link->nanswers >= link->depth + 2 * TCP_DEPTH || frame->word[2] > TCP_MAX_MSG)
        return WEFT_EPROTO;
    struct tcp_op *op = tcp_op_new(link);
    if (!op)
        return -ENOMEM;
    op->op = WEFT_OP_READ;
    op->is_answer = true;
    op->call = frame->id;
    op->remote_key = frame->word[0];
    op->remote_addr = frame->word[1];
    op->len = frame->word[2];
    op->one = (struct weft_iov_local){.addr = (void *)(uintptr_t)op->remote_addr, .len = op->len};
    op->iov = &op->one;
    link->nanswers++;
    if (!tcp_is_bulk(op))
        tcp_note_short(tcp_nic_of(link));
    tcp_queue_push(&link->answers, op);
    tcp_tx_ready(link);
    return 0;
}

void tcp_tx_answer(struct tcp_link *link, struct tcp_frame *frame)
{
    put_answer(link, frame);
    if (link->state == TCP_LINK_UP)
        tcp_tx_ready(link);
}

/* --- chunks ------------------------------------------------------------------------------------ */

/* Take the next op that may use this socket from the queue. */
static struct tcp_op *bulk_next(struct tcp_link *link, const struct tcp_sock *sock)
{
    for (struct tcp_op **at = &link->bulk.head; *at; at = &(*at)->next) {
        struct tcp_op *op = *at;
        if (op->sock != 0 && op->sock != sock->index)
            continue;
        *at = op->next;
        if (!op->next)
            link->bulk.tail = at;
        return op;
    }
    return NULL;
}

/* One chunk. False: no room. */
static bool stage_chunk(struct tcp_sock *sock, struct tcp_op *op)
{
    uint64_t left = op->len - op->staged;
    uint32_t chunk = tcp_nic_of(sock->link)->chunk;
    uint32_t n = left < chunk ? (uint32_t)left : chunk;
    if (op->is_answer)
        return stage_answer(sock, op, n);
    if (sock->nflight == sock->window || !tcp_out_fits(sock, n))
        return false;
    if (op->op == WEFT_OP_WRITE_IMM)
        op->sock = sock->index;
    struct tcp_frame frame = tcp_write_frame(op, n);
    tcp_out_counted(sock, op, &frame);
    return true;
}

/* The op is in no queue: put it back, or end it if nothing more is to be awaited. */
static void bulk_return(struct tcp_op *op)
{
    if (op->status < 0)
        op->staged = op->len; /* refused: the rest is not sent */
    if (op->staged < op->len)
        tcp_queue_push(&op->link->bulk, op);
    else if (op->pending == 0 && op->is_answer)
        tcp_answer_end(op);
    else if (op->pending == 0)
        tcp_op_done(op, op->status);
}

static void stage_bulk(struct tcp_link *link, struct tcp_sock *sock)
{
    uint64_t limit = (uint64_t)STAGED_CHUNKS * tcp_nic_of(link)->chunk;
    bool room = true;
    while (room && link->state == TCP_LINK_UP && sock->staged - sock->sent < limit) {
        struct tcp_op *op = bulk_next(link, sock);
        if (!op)
            return;
        room = op->status < 0 || stage_chunk(sock, op);
        if (link->state == TCP_LINK_UP)
            bulk_return(op);
    }
}

/* --- progress ---------------------------------------------------------------------------------- */

void tcp_tx_ready(struct tcp_link *link)
{
    tcp_nic_of(link)->stirred = true;
    tcp_tx_owes(link);
}

void tcp_tx_owes(struct tcp_link *link)
{
    struct tcp_nic *nic = tcp_nic_of(link);
    if (link->ready)
        return;
    link->ready = true;
    link->ready_next = NULL;
    *nic->ready_tail = link;
    nic->ready_tail = &link->ready_next;
}

/* What is executed and has found no frame to ride on since the last poll. */
static void stage_acks(struct tcp_link *link)
{
    if (link->socks[0].blocked)
        return;
    while (link->acks && link->state == TCP_LINK_UP) {
        struct tcp_frame frame = {.type = TCP_ACK};
        put_answer(link, &frame);
    }
}

bool tcp_tx_queued(const struct tcp_link *link)
{
    return WEFT_UNLIKELY(link->todo.head) || WEFT_UNLIKELY(link->bulk.head) ||
           WEFT_UNLIKELY(link->answers.head);
}

/* Nothing but acks, perhaps. */
static bool nothing_staged(const struct tcp_link *link)
{
    if (tcp_tx_queued(link))
        return false;
    for (uint32_t i = 0; i < link->nsocks; i++)
        if (link->socks[i].staged != link->socks[i].sent)
            return false;
    return true;
}

/* Short operations wait for a turn here, and for another one at the peer. Behind a really long
 * operation that is worth more system calls; behind others it would cost them a tenth of their speed. */
int64_t tcp_tx_turn(const struct tcp_link *link)
{
    const struct tcp_op *op = link->bulk.head;
    bool shorter = op && op->len >= HUGE_MIN && tcp_mixed(tcp_nic_of(link));
    return shorter ? SHORTER_TURN : TCP_TURN;
}

static uint64_t flush(struct tcp_sock *sock, uint64_t limit)
{
    bool any = sock->link->state == TCP_LINK_UP && sock->staged != sock->sent;
    return any ? tcp_out_flush(sock, limit) : 0;
}

/* What is on socket 0, if long payloads have others: never much, and first. */
static uint64_t flush_short(struct tcp_link *link)
{
    return link->nsocks > 1 ? flush(&link->socks[0], UINT64_MAX) : 0;
}

void tcp_tx_run(struct tcp_link *link, int64_t *budget)
{
    struct tcp_nic *nic = tcp_nic_of(link);
    uint64_t sent = 1;
    bool acks_due = link->acks &&
                    link->acks_poll != nic->polls; /* the others may yet find a frame */
    if (link->state == TCP_LINK_UP && !acks_due && nothing_staged(link)) {
        if (link->acks)
            tcp_tx_owes(link);
        return;
    }
    while (link->state == TCP_LINK_UP && sent > 0 && *budget > 0) {
        sent = 0;
        start_answers(link);
        tcp_post_start(link);
        if (acks_due)
            stage_acks(link);
        sent += flush_short(link);
        for (uint32_t i = link->nsocks; link->state == TCP_LINK_UP && i-- > 0;) {
            struct tcp_sock *sock = &link->socks[i];
            if (sock->blocked || (i == 0 && link->nsocks > 1))
                continue;
            if (link->bulk.head)
                stage_bulk(link, sock);
            if (*budget > (int64_t)sent)
                sent += flush(sock, tcp_mixed(nic) ? (uint64_t)*budget - sent : UINT64_MAX);
        }
        if (link->state == TCP_LINK_UP) /* a chunk that could not be sent left an END there */
            sent += flush_short(link);
        *budget -= (int64_t)sent;
        if (!tcp_tx_queued(link))
            break;
    }
    if (link->state == TCP_LINK_UP && *budget <= 0)
        tcp_tx_ready(link);
    else if (link->state == TCP_LINK_UP && link->acks && !link->socks[0].blocked)
        tcp_tx_owes(link);
}

void tcp_tx_farewell(struct tcp_link *link)
{
    stage_acks(link);
    if (link->state == TCP_LINK_UP)
        tcp_out_flush(&link->socks[0], UINT64_MAX);
}
