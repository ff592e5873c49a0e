/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: bytes become frames; payload goes where it belongs. Nothing a peer says is believed. */
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

/* Work that a frame costs beside its bytes, in bytes. */
#define FRAME_COST 256
/* ... and a buffer that stays with the caller: bounds how many do. */
#define LENT_COST (TCP_BUF / 2)
/* Payload of which at least this much is missing is received in place. */
#define DIRECT_MIN 4096
/* ... so much at a time while short operations come and go, which wait for it: where memory is copied at 5 GB/s, 26 us. */
#define MIXED_TURN (128 * 1024)
/* ... with so much behind it: the head of the next frame, or several small frames. */
#define DIRECT_TAIL TCP_FRAME_MAX
/*
 * Who takes each segment as it comes has the kernel acknowledge each, and who sends pays for that: so a socket in the middle of
 * a long payload that has been emptied is left alone for a moment, if so much of the payload is still to come. Writes of 1
 * MiB over loopback, two processors, in the fast and the slow state of the machine (bench/README.md), 64 and 16 under way: 12.2,
 * 10.1 and 7.1, 7.2 GB/s without, 12.5, 12.6 and 9.2, 9.0 so. With two sockets for what is long, where one is read while the other
 * is left alone, twice as long is better: 13.1, 13.1 and 10.5, 9.5. Longer ones leave the reader with nothing to do. What
 * epoll tells of meanwhile waits as well, but for nobody who is about to sleep.
 */
#define PAUSE_NS 8000
#define PAUSE_LEAST 131072

static const int16_t code_status[TCP_CODES] = {
    [TCP_OK] = 0,
    [TCP_CODE_KEY] = WEFT_EKEY,
    [TCP_CODE_BOUNDS] = WEFT_EBOUNDS,
    [TCP_CODE_ACCESS] = WEFT_EACCESS,
};

enum step {
    STEP_ON,    /* go on with the next frame */
    STEP_MORE,  /* needs bytes that have not come */
    STEP_FULL,  /* needs room for a comp */
    STEP_PROTO, /* the peer broke the protocol */
};

/* --- comps ------------------------------------------------------------------------------------- */

static bool comp_room(const struct tcp_poll *poll)
{
    return poll->n < poll->max;
}

static struct weft_comp *comp_add(struct tcp_poll *poll, struct tcp_link *link, uint8_t op)
{
    struct weft_comp *comp = &poll->comps[poll->n++];
    *comp = (struct weft_comp){.link = &link->base, .op = op};
    return comp;
}

/* --- the target's side ------------------------------------------------------------------------- */

static void count_executed(struct tcp_sock *sock)
{
    struct tcp_link *link = sock->link;
    sock->executed++;
    if (!link->acks)
        link->acks_poll = tcp_nic_of(link)->polls;
    link->acks |= 1u << sock->index;
    tcp_tx_owes(link);
}

static void refuse(struct tcp_sock *sock, enum tcp_code code)
{
    struct tcp_frame nack = {.type = TCP_NACK, .id = sock->executed, .word = {sock->index, code}};
    tcp_tx_answer(sock->link, &nack);
}

/* The range a WRITE frame may touch, and that its chunk lies in it. */
static enum step begin_write(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    bool part = frame->type == TCP_PART || frame->type == TCP_PART_IMM;
    uint64_t addr = frame->word[1], total = part ? frame->word[2] : frame->len;
    uint64_t offset = part ? frame->word[3] : 0;
    if (total > TCP_MAX_MSG || offset > total || frame->len > total - offset)
        return STEP_PROTO;
    struct tcp_rx *rx = &sock->rx;
    struct tcp_mem *mem = NULL;
    enum tcp_code code = tcp_mem_find(tcp_nic_of(sock->link), frame->word[0], addr, total,
                                      WEFT_ACCESS_WRITE, &mem);
    sock->link->base.nic->bulk = frame->len > TCP_BULK_MIN;
    rx->type = frame->type;
    rx->lent = frame->lent;
    rx->imm = frame->id;
    rx->len = rx->rest = frame->len;
    rx->dst = (uint8_t *)(uintptr_t)(addr + offset);
    rx->mem = mem;
    if (mem)
        mem->busy++;
    else
        refuse(sock, code);
    return STEP_ON;
}

/* The frame of a message, from its head on: most are, so it does not go by way of struct tcp_frame. */
static enum step take_send(struct tcp_poll *poll, struct tcp_sock *sock)
{
    struct tcp_buf *buf = sock->rx.buf;
    const uint8_t *head = buf->data + buf->head;
    uint32_t avail = buf->tail - buf->head;
    if (WEFT_UNLIKELY(avail < TCP_HEAD))
        return STEP_MORE;
    uint32_t len = tcp_get32(head + 8), patient = tcp_get32(head + 12);
    if (WEFT_UNLIKELY(sock->index != 0 || len > TCP_MAX_SEND || patient > 1 || tcp_get16(head + 2) != 0))
        return STEP_PROTO;
    if (WEFT_UNLIKELY(avail < TCP_HEAD + len))
        return STEP_MORE;
    if (WEFT_UNLIKELY(!comp_room(poll)))
        return STEP_FULL;
    struct weft_comp *comp = comp_add(poll, sock->link, WEFT_OP_RECV);
    comp->data = head + TCP_HEAD;
    comp->len = len;
    poll->budget -= buf->lent == poll->nic->polls ? FRAME_COST : FRAME_COST + LENT_COST;
    buf->lent = poll->nic->polls;
    buf->head += TCP_HEAD + len;
    if (!patient) {
        poll->nic->base.bulk = 0;
        tcp_note_short(poll->nic);
    }
    count_executed(sock);
    return tcp_post_heard(sock->link, head[1], tcp_get32(head + 4)) ? STEP_ON : STEP_PROTO;
}

static enum step begin_add(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    struct tcp_mem *mem;
    uint64_t addr = frame->word[1];
    struct tcp_frame answer = {.type = TCP_ADDED, .id = frame->id};
    enum tcp_code code = tcp_mem_find(tcp_nic_of(sock->link), frame->word[0], addr,
                                      sizeof(uint64_t), WEFT_ACCESS_ATOMIC, &mem);
    if (code == TCP_OK && addr % sizeof(uint64_t) != 0)
        code = TCP_CODE_BOUNDS;
    /* Sequentially consistent: pairs with whatever the target's threads do to the word. */
    if (code == TCP_OK)
        answer.word[0] = __atomic_fetch_add((uint64_t *)(uintptr_t)addr, frame->word[2],
                                            __ATOMIC_SEQ_CST);
    answer.word[1] = code;
    tcp_tx_answer(sock->link, &answer);
    return STEP_ON;
}

static enum step begin_read(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    int rc = tcp_tx_serve(sock->link, frame);
    if (rc < 0)
        tcp_link_fail(sock->link, rc);
    return STEP_ON;
}

/* --- the initiator's side ---------------------------------------------------------------------- */

static struct tcp_op *find_call(struct tcp_link *link, uint32_t call, uint8_t op)
{
    struct tcp_op *found = call < TCP_DEPTH ? link->calls[call] : NULL;
    return found && found->op == op ? found : NULL;
}

static enum step begin_data(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    struct tcp_op *op = find_call(sock->link, frame->id, WEFT_OP_READ);
    struct tcp_rx *rx = &sock->rx;
    uint64_t offset = frame->word[0];
    /* Bytes are claimed before they are received and have arrived when their chunk is whole: when
     * `arrived` reaches the end, no socket refers to the op any more. */
    if (!op || frame->len > op->end - op->claimed || offset > op->len ||
        frame->len > op->len - offset || (frame->len == 0) != (op->len == 0))
        return STEP_PROTO;
    if (frame->len == 0) {
        tcp_call_done(op, 0);
        return STEP_ON;
    }
    sock->link->base.nic->bulk = frame->len > TCP_BULK_MIN;
    op->claimed += frame->len;
    rx->type = frame->type;
    rx->lent = frame->lent;
    rx->len = rx->rest = frame->len;
    rx->op = op;
    rx->at = (struct tcp_cursor){0, 0};
    tcp_cursor_move(op, &rx->at, offset);
    return STEP_ON;
}

/* The target's memory waits for what is to be acknowledged. If this side waits for nothing more, it will perhaps not poll
 * again: at once. */
static void read_done(struct tcp_op *op)
{
    struct tcp_link *link = op->link;
    bool last = link->nfree_calls + 1 == TCP_DEPTH;
    if (link->acks && last) {
        link->acks_poll = tcp_nic_of(link)->polls - 1;
        tcp_nic_of(link)->stirred = true;
    }
    tcp_call_done(op, op->status);
}

static enum step begin_end(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    struct tcp_op *op = find_call(sock->link, frame->id, WEFT_OP_READ);
    uint64_t sent = frame->word[0], code = frame->word[1];
    if (!op || op->status < 0 || sent < op->claimed || sent > op->len || code == TCP_OK ||
        code >= TCP_CODES)
        return STEP_PROTO;
    op->end = sent;
    op->status = code_status[code];
    if (op->arrived == op->end)
        read_done(op);
    return STEP_ON;
}

static enum step begin_added(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    struct tcp_op *op = find_call(sock->link, frame->id, WEFT_OP_ADD64);
    if (!op || frame->word[1] >= TCP_CODES)
        return STEP_PROTO;
    op->value = frame->word[0];
    tcp_call_done(op, code_status[frame->word[1]]);
    return STEP_ON;
}

static enum step begin_nack(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    uint64_t code = frame->word[1];
    if (sock->index != 0 || code == TCP_OK || code >= TCP_CODES ||
        !tcp_post_nacked(sock->link, frame->word[0], frame->id, code_status[code]))
        return STEP_PROTO;
    return STEP_ON;
}

/* --- frames ------------------------------------------------------------------------------------ */

static bool has_payload(uint8_t type)
{
    const uint32_t with = 1u << TCP_WRITE | 1u << TCP_WRITE_IMM | 1u << TCP_PART |
                          1u << TCP_PART_IMM | 1u << TCP_DATA;
    return with >> type & 1;
}

/* Of any frame but a message. */
static enum step begin_type(struct tcp_sock *sock, const struct tcp_frame *frame)
{
    switch (frame->type) {
    case TCP_READ:
        return begin_read(sock, frame);
    case TCP_DATA:
        return begin_data(sock, frame);
    case TCP_END:
        return begin_end(sock, frame);
    case TCP_ADD:
        return begin_add(sock, frame);
    case TCP_ADDED:
        return begin_added(sock, frame);
    case TCP_NACK:
        return begin_nack(sock, frame);
    case TCP_ACK:
        return STEP_ON;
    default:
        return begin_write(sock, frame);
    }
}

/* Most others are short WRITEs, and here as a whole. False: not this one, or it is to be refused. */
static bool short_write(struct tcp_poll *poll, struct tcp_sock *sock)
{
    struct tcp_buf *buf = sock->rx.buf;
    const uint8_t *head = buf->data + buf->head;
    const uint32_t size = TCP_HEAD + 8 * 2;
    uint32_t avail = buf->tail - buf->head;
    if (avail < size || head[0] != TCP_WRITE || tcp_get16(head + 2) != 0)
        return false;
    uint32_t len = tcp_get32(head + 8);
    uint64_t addr = tcp_get64(head + TCP_HEAD + 8);
    struct tcp_mem *mem;
    if (len > TCP_COPY_MAX || avail < size + len ||
        tcp_mem_find(poll->nic, tcp_get64(head + TCP_HEAD), addr, len, WEFT_ACCESS_WRITE, &mem))
        return false;
    if (sock->index == 0 && !tcp_post_acked(sock->link, head[1], tcp_get32(head + 4)))
        return false;
    memcpy((void *)(uintptr_t)addr, head + size, len);
    buf->head += size + len;
    poll->budget -= FRAME_COST;
    poll->nic->base.bulk = 0;
    tcp_note_short(poll->nic);
    count_executed(sock);
    return true;
}

static enum step begin_frame(struct tcp_poll *poll, struct tcp_sock *sock)
{
    struct tcp_buf *buf = sock->rx.buf;
    if (buf->tail > buf->head && buf->data[buf->head] == TCP_SEND)
        return take_send(poll, sock);
    if (short_write(poll, sock))
        return STEP_ON;
    struct tcp_frame frame;
    int size = tcp_frame_decode(buf->data + buf->head, buf->tail - buf->head, &frame);
    if (size == 0)
        return STEP_MORE;
    if (WEFT_UNLIKELY(size < 0) || WEFT_UNLIKELY(!has_payload(frame.type) && frame.len > 0))
        return STEP_PROTO;
    enum step step = begin_type(sock, &frame);
    if (WEFT_UNLIKELY(step != STEP_ON) || WEFT_UNLIKELY(sock->link->state != TCP_LINK_UP))
        return step;
    buf->head += (uint32_t)size;
    poll->budget -= FRAME_COST;
    if (sock->index != 0)
        return STEP_ON;
    return tcp_post_acked(sock->link, frame.ack_sock, frame.ack) ? STEP_ON : STEP_PROTO;
}

/* The peer may have taken back the pages that a lent payload came out of: it resets the connection first. */
static bool taken_back(struct tcp_sock *sock)
{
    struct pollfd seen = {.fd = sock->fd}; /* SO_ERROR would also tell of what a connection outlives */
    if (!sock->rx.lent || poll(&seen, 1, 0) <= 0 ||
        !(seen.revents & (POLLERR | POLLHUP)))
        return false;
    tcp_link_fail(sock->link, WEFT_EPEER);
    return true;
}

/* A part of a READ is here. */
static void data_arrived(struct tcp_sock *sock, struct tcp_op *op, const struct tcp_rx *rx)
{
    op->arrived += rx->len;
    if (rx->lent)
        count_executed(sock);
    if (op->arrived == op->end)
        read_done(op);
}

/* All of the payload is in its place. */
static enum step end_frame(struct tcp_poll *poll, struct tcp_sock *sock)
{
    struct tcp_rx *rx = &sock->rx;
    struct tcp_op *op = rx->op;
    bool imm = rx->mem && (rx->type == TCP_WRITE_IMM || rx->type == TCP_PART_IMM);
    if (imm && !comp_room(poll))
        return STEP_FULL;
    if (taken_back(sock))
        return STEP_ON;
    if (imm)
        comp_add(poll, sock->link, WEFT_OP_WRITE_IMM)->imm = rx->imm;
    if (op)
        data_arrived(sock, op, rx);
    else
        count_executed(sock);
    if (rx->mem)
        rx->mem->busy--;
    rx->mem = NULL;
    rx->op = NULL;
    rx->type = 0;
    return STEP_ON;
}

static void payload_moved(struct tcp_rx *rx, uint64_t n)
{
    rx->rest -= (uint32_t)n;
    if (rx->mem)
        rx->dst += n;
    if (rx->op)
        tcp_cursor_move(rx->op, &rx->at, n);
}

/* Up to max pieces of where the next `most` bytes of payload go; bytes in them. A refused one goes nowhere: 0. */
static uint64_t payload_pieces(const struct tcp_rx *rx, uint64_t most, struct iovec *iov, int max, int *niov)
{
    uint64_t len = rx->rest < most ? rx->rest : most;
    if (rx->op)
        return tcp_pieces(rx->op, rx->at, len, iov, max, niov);
    if (!rx->mem)
        return 0;
    iov[(*niov)++] = (struct iovec){rx->dst, len};
    return len;
}

/* Payload that came with heads. */
static void payload_copy(struct tcp_rx *rx)
{
    struct tcp_buf *buf = rx->buf;
    while (rx->rest > 0 && buf->tail > buf->head) {
        struct iovec piece = {0};
        int niov = 0;
        uint64_t n = buf->tail - buf->head;
        uint64_t len = payload_pieces(rx, rx->rest, &piece, 1, &niov);
        if (niov == 0)
            len = rx->rest;
        if (n > len)
            n = len;
        if (niov > 0)
            memcpy(piece.iov_base, buf->data + buf->head, n);
        buf->head += (uint32_t)n;
        payload_moved(rx, n);
    }
}

/* --- a socket's turn --------------------------------------------------------------------------- */

static void park(struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    sock->rx.waits = true;
    sock->parked_next = NULL;
    *nic->parked_tail = sock;
    nic->parked_tail = &sock->parked_next;
    nic->nparked++;
}

/* Out of the list, wherever it is. */
static void unpark(struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    struct tcp_sock **at = &nic->parked;
    while (*at != sock)
        at = &(*at)->parked_next;
    *at = sock->parked_next;
    if (!*at)
        nic->parked_tail = at;
    sock->rx.waits = false;
    nic->nparked--;
}

void tcp_rx_unread(struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    if (sock->unread)
        return;
    sock->unread = true;
    sock->unread_next = NULL;
    *nic->unread_tail = sock;
    nic->unread_tail = &sock->unread_next;
    nic->nunread++;
}

void tcp_rx_forget(struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    struct tcp_sock **at = &nic->unread;
    while (*at != sock)
        at = &(*at)->unread_next;
    *at = sock->unread_next;
    if (!*at)
        nic->unread_tail = at;
    sock->unread = false;
    nic->nunread--;
}

/* Do what the buffered bytes say. True: it wants more bytes. */
static bool parse(struct tcp_poll *poll, struct tcp_sock *sock)
{
    struct tcp_rx *rx = &sock->rx;
    enum step step = STEP_ON;
    while (step == STEP_ON && sock->link->state == TCP_LINK_UP) {
        if (WEFT_UNLIKELY(poll->budget <= 0) && (rx->buf->tail > rx->buf->head || (rx->type && !rx->rest)))
            step = STEP_FULL;
        else if (WEFT_LIKELY(!rx->type))
            step = begin_frame(poll, sock);
        else if (rx->rest == 0)
            step = end_frame(poll, sock);
        else if (rx->buf->tail > rx->buf->head)
            payload_copy(rx);
        else
            step = STEP_MORE;
    }
    if (WEFT_UNLIKELY(step == STEP_PROTO))
        tcp_link_fail(sock->link, WEFT_EPROTO);
    else if (step == STEP_FULL && sock->link->state == TCP_LINK_UP)
        park(sock);
    return step == STEP_MORE;
}

/* Room behind the bytes of an unfinished frame, which is never larger than a buffer. */
static bool make_room(struct tcp_poll *poll, struct tcp_rx *rx)
{
    struct tcp_buf *old = rx->buf;
    uint32_t kept = old ? old->tail - old->head : 0;
    if (old && (kept == 0 || old->tail > TCP_BUF / 2) && old->lent != poll->nic->polls) {
        memmove(old->data, old->data + old->head, kept);
        old->head = 0;
        old->tail = kept;
    } else if (!old || old->tail > TCP_BUF / 2) {
        rx->buf = tcp_buf_get(poll->nic);
        if (!rx->buf)
            return false;
        if (old) {
            memcpy(rx->buf->data, old->data + old->head, kept);
            tcp_buf_put(poll->nic, old);
        }
        rx->buf->tail = kept;
    }
    return true;
}

static ssize_t receive_iov(int fd, struct iovec *iov, int niov)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)niov};
    ssize_t n;
    do
        n = niov == 1 ? recv(fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT)
                      : recvmsg(fd, &msg, MSG_DONTWAIT);
    while (WEFT_UNLIKELY(n < 0) && errno == EINTR);
    return n;
}

/* One system call, for at most `most` bytes of a payload in place. Bytes received, 0: nothing there; *drained: nothing is left. */
static ssize_t receive(struct tcp_sock *sock, uint64_t most, bool *drained)
{
    struct tcp_rx *rx = &sock->rx;
    struct tcp_buf *buf = rx->buf;
    struct iovec iov[TCP_IOV];
    int niov = 0;
    uint64_t direct = 0, tail = TCP_BUF - buf->tail;
    if (rx->rest >= DIRECT_MIN)
        direct = payload_pieces(rx, most, iov, TCP_IOV - 1, &niov);
    if (direct > 0)
        tail = direct < rx->rest ? 0 : DIRECT_TAIL;
    else if (sock->index > 0 && rx->rest == 0 && buf->tail == 0) /* only what is long comes here: its head, the rest in place */
        tail = DIRECT_TAIL;
    if (tail > 0)
        iov[niov++] = (struct iovec){buf->data + buf->tail, tail};
    ssize_t n = receive_iov(sock->fd, iov, niov);
    *drained = n < (ssize_t)(direct + tail);
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (WEFT_UNLIKELY(n <= 0)) {
        tcp_link_fail(sock->link, n == 0 ? WEFT_EPEER : tcp_status(errno));
        return 0;
    }
    uint64_t placed = (uint64_t)n < direct ? (uint64_t)n : direct;
    payload_moved(rx, placed);
    buf->tail += (uint32_t)((uint64_t)n - placed);
    return n;
}

static void turn_end(struct tcp_nic *nic, struct tcp_rx *rx)
{
    if (rx->buf && !rx->waits && rx->buf->head == rx->buf->tail) {
        tcp_buf_put(nic, rx->buf);
        rx->buf = NULL;
    }
}

/* Until when it is to be left alone; 0: it is not. */
static uint64_t pause_until(const struct tcp_sock *sock)
{
    if (WEFT_LIKELY(sock->index == 0) || sock->rx.rest < PAUSE_LEAST)
        return 0;
    return weft_now() + PAUSE_NS * (sock->link->nsocks > 2 ? 2 : 1);
}

bool tcp_rx_pauses(const struct tcp_sock *sock)
{
    return sock->pause && !sock->ending && !tcp_nic_of(sock->link)->sleepy &&
           weft_now() < sock->pause;
}

/* For who asks whether there is a crowd. */
static void count_busy(struct tcp_poll *poll, struct tcp_sock *sock)
{
    struct tcp_nic *nic = poll->nic;
    poll->found = true;
    nic->nbusy += sock->busy_round != nic->busy_round;
    sock->busy_round = nic->busy_round;
}

/* There is no memory to receive into: later, but for a peer that has ended, which would not be heard of before. */
static void starve(struct tcp_sock *sock)
{
    struct pollfd seen = {.fd = sock->fd, .events = POLLRDHUP};
    if (poll(&seen, 1, 0) > 0)
        tcp_link_fail(sock->link, -ENOMEM);
}

bool tcp_rx_turn(struct tcp_poll *poll, struct tcp_sock *sock)
{
    bool any = false, drained = false;
    const bool mixed = tcp_mixed(poll->nic);
    int64_t left = mixed ? MIXED_TURN : TCP_TURN;
    sock->turn = poll->nic->polls;
    while (!drained && !sock->rx.waits && left > 0 && poll->budget > 0) {
        if (WEFT_UNLIKELY(!make_room(poll, &sock->rx))) {
            starve(sock);
            break;
        }
        ssize_t n = receive(sock, mixed ? MIXED_TURN : UINT64_MAX, &drained);
        if (n <= 0)
            break;
        any = true;
        left -= n;
        poll->budget -= n;
        bool on = parse(poll, sock);
        /* fewer than there was room for is all there is, but for the end of the stream */
        drained = drained && !sock->ending;
        if (!on)
            break;
    }
    turn_end(poll->nic, &sock->rx);
    if (any) {
        sock->pause = WEFT_LIKELY(drained) ? pause_until(sock) : 0;
        count_busy(poll, sock);
    }
    if (!drained && sock->link->state == TCP_LINK_UP)
        tcp_rx_unread(sock);
    return any;
}

void tcp_rx_resume(struct tcp_poll *poll)
{
    struct tcp_nic *nic = poll->nic;
    for (uint32_t n = nic->nparked; n > 0 && nic->parked && poll->budget > 0; n--) {
        struct tcp_sock *sock = nic->parked;
        unpark(sock);
        if (parse(poll, sock))
            turn_end(nic, &sock->rx);
    }
}

void tcp_rx_drop(struct tcp_sock *sock)
{
    struct tcp_rx *rx = &sock->rx;
    if (rx->waits)
        unpark(sock);
    if (sock->unread)
        tcp_rx_forget(sock);
    if (rx->mem)
        rx->mem->busy--;
    if (rx->buf)
        tcp_buf_put(tcp_nic_of(sock->link), rx->buf);
    *rx = (struct tcp_rx){0};
}
