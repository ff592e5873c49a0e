/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A socket's way out: a buffer of heads and small payloads, and splices, which are large payloads
 * that go between its bytes. All of it leaves in as few system calls as it takes.
 */
#include "tcp.h"

#include <errno.h>
#include <linux/tcp.h> /* the kernel's struct tcp_info: the C library's lacks tcpi_min_rtt */
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bytes between looks at a socket's buffer: so many at first, twice as many after each that found it as it should be. */
#define FIT_EVERY ((uint64_t)1 << 20)
#define FIT_DOUBLINGS 4
/* Bounds of a socket's buffer. That of lent pages takes a whole chunk, which the kernel counts as 16 packets of 17 pages each. */
#define FIT_LEAST (256 * 1024)
#define FIT_LEAST_LENT (576 * 1024)
#define FIT_MOST (4 << 20)
/* Longest round trip, in microseconds, on which buffers are fitted. */
#define FIT_MAX_RTT_US 1000
/* One within a host: what the system's bound allows will do there. */
#define FIT_NEAR_RTT_US 20
/* Of what the rate was, so much is taken from the last look: what goes out between two of them comes in bursts. */
#define FIT_SHARE 4
#ifndef SO_BUF_LOCK /* Linux 5.14 */
#define SO_BUF_LOCK 72
#endif
#ifndef SOCK_RCVBUF_LOCK
#define SOCK_RCVBUF_LOCK 2
#endif

/* --- pieces ------------------------------------------------------------------------------------ */

uint64_t tcp_pieces(const struct tcp_op *op, struct tcp_cursor at, uint64_t len, struct iovec *iov,
                    int max, int *niov)
{
    uint64_t sum = 0;
    for (; sum < len && *niov < max; at.index++, at.offset = 0) {
        const struct weft_iov_local *piece = &op->iov[at.index];
        uint64_t n = piece->len - at.offset;
        if (n == 0)
            continue;
        if (n > len - sum)
            n = len - sum;
        iov[*niov].iov_base = (char *)piece->addr + at.offset;
        iov[(*niov)++].iov_len = n;
        sum += n;
    }
    return sum;
}

void tcp_cursor_move(const struct tcp_op *op, struct tcp_cursor *at, uint64_t by)
{
    while (by > 0) {
        uint64_t left = op->iov[at->index].len - at->offset;
        if (by < left) {
            at->offset += by;
            return;
        }
        by -= left;
        at->index++;
        at->offset = 0;
    }
}

/* --- the out buffer ---------------------------------------------------------------------------- */

static void out_compact(struct tcp_sock *sock)
{
    struct tcp_buf *buf = sock->out;
    memmove(buf->data, buf->data + buf->head, buf->tail - buf->head);
    for (uint32_t i = 0; i < sock->nsplices; i++)
        sock->splices[(sock->splice_first + i) % TCP_SPLICES].pos -= buf->head;
    buf->tail -= buf->head;
    buf->head = 0;
}

/* Room for `need` bytes, if no more than `limit` are in the buffer then. */
bool tcp_out_room(struct tcp_sock *sock, uint32_t need, uint32_t limit)
{
    if (!sock->out)
        sock->out = tcp_buf_get(tcp_nic_of(sock->link));
    struct tcp_buf *buf = sock->out;
    if (WEFT_UNLIKELY(!buf))
        tcp_tx_ready(sock->link); /* no memory: try again in the next poll */
    if (WEFT_UNLIKELY(!buf || buf->tail - buf->head + need > limit))
        return false;
    if (WEFT_UNLIKELY(TCP_BUF - buf->tail < need))
        out_compact(sock);
    return true;
}

/* Tell the peer what was executed; socket 0 only. */
static void ack_fill(struct tcp_link *link, struct tcp_frame *frame)
{
    uint32_t i = link->acks ? (uint32_t)__builtin_ctz(link->acks) : 0;
    frame->ack_sock = (uint8_t)i;
    frame->ack = link->socks[i].executed;
    link->acks &= ~(1u << i);
}

/* The caller has made room. */
void tcp_out_head(struct tcp_sock *sock, struct tcp_frame *frame)
{
    struct tcp_buf *buf = sock->out;
    if (sock->index == 0)
        ack_fill(sock->link, frame);
    uint32_t n = tcp_frame_encode(buf->data + buf->tail, frame);
    buf->tail += n;
    sock->staged += n;
}

static void stage_copy(struct tcp_sock *sock, struct tcp_op *op, uint32_t len)
{
    struct tcp_buf *buf = sock->out;
    const struct weft_iov_local *first = &op->iov[op->at.index];
    if (first->len - op->at.offset >= len) {
        memcpy(buf->data + buf->tail, (const char *)first->addr + op->at.offset, len);
        op->at.offset += len;
        buf->tail += len;
        return;
    }
    for (uint32_t done = 0; done < len;) {
        struct iovec piece;
        int n = 0;
        uint64_t part = tcp_pieces(op, op->at, len - done, &piece, 1, &n);
        memcpy(buf->data + buf->tail, piece.iov_base, part);
        tcp_cursor_move(op, &op->at, part);
        buf->tail += (uint32_t)part;
        done += (uint32_t)part;
    }
}

static void stage_splice(struct tcp_sock *sock, struct tcp_op *op, uint32_t len,
                         struct tcp_mem *mem)
{
    uint32_t last = (sock->splice_first + sock->nsplices++) % TCP_SPLICES;
    sock->splices[last] = (struct tcp_splice){
        .op = op, .mem = mem, .at = op->at, .left = len, .pos = sock->out->tail};
    tcp_cursor_move(op, &op->at, len);
    if (mem) {
        mem->busy++;
        op->pending++;
    }
}

/* The next `len` bytes of op, behind a head that was just staged. */
void tcp_out_payload(struct tcp_sock *sock, struct tcp_op *op, uint32_t len, struct tcp_mem *mem)
{
    if (len <= TCP_COPY_MAX)
        stage_copy(sock, op, len);
    else
        stage_splice(sock, op, len, mem);
    op->staged += len;
    sock->staged += len;
}

bool tcp_out_fits(struct tcp_sock *sock, uint64_t len)
{
    uint32_t need = TCP_FRAME_MAX + (len <= TCP_COPY_MAX ? (uint32_t)len : 0);
    return (len <= TCP_COPY_MAX || sock->nsplices < TCP_SPLICES) &&
           tcp_out_room(sock, need, TCP_OUT_CMDS);
}

/* What was just staged is acknowledged by the peer's count. */
static void flight_add(struct tcp_sock *sock, struct tcp_op *op)
{
    uint32_t last = sock->flight_first + sock->nflight++;
    last -= last < sock->window ? 0 : sock->window;
    sock->flight[last] = (struct tcp_flight){.op = op, .end = sock->staged};
    sock->nawaited += !op->quiet;
}

/* A frame that the peer counts. */
void tcp_out_counted(struct tcp_sock *sock, struct tcp_op *op, struct tcp_frame *frame)
{
    tcp_out_head(sock, frame);
    tcp_out_payload(sock, op, frame->len, NULL);
    flight_add(sock, op);
    op->pending++;
}

static uint8_t *put_piece(uint8_t *at, const struct weft_iov_local *piece)
{
    if (WEFT_LIKELY(piece->len))
        memcpy(at, piece->addr, piece->len);
    return at + piece->len;
}

void tcp_out_short(struct tcp_sock *sock, struct tcp_op *op, const struct weft_cmd *cmd)
{
    struct tcp_buf *buf = sock->out;
    uint8_t *start = buf->data + buf->tail, *at = start;
    struct tcp_frame frame = {.type = TCP_SEND, .len = (uint32_t)cmd->len};
    ack_fill(sock->link, &frame);
    if (cmd->op == WEFT_OP_SEND)
        frame.id = (cmd->flags & WEFT_CMD_PATIENT) != 0;
    if (cmd->op == WEFT_OP_WRITE) {
        frame.type = TCP_WRITE;
        frame.word[0] = cmd->remote_key;
        frame.word[1] = cmd->remote_addr;
        at += tcp_frame_encode(at, &frame);
    } else {
        at += tcp_frame_encode(at, &frame);
    }
    if (WEFT_LIKELY(cmd->niov == 0))
        at = put_piece(at, &cmd->one);
    else
        for (uint32_t i = 0; i < cmd->niov; i++)
            at = put_piece(at, &cmd->iov[i]);
    buf->tail += (uint32_t)(at - start);
    sock->staged += (uint64_t)(at - start);
    flight_add(sock, op);
}

/* --- sending what is staged -------------------------------------------------------------------- */

/* Pieces of what is staged, up to a payload behind the first one that is to be lent. */
static int out_gather(struct tcp_sock *sock, struct iovec *iov)
{
    struct tcp_buf *buf = sock->out;
    uint32_t at = buf->head;
    int n = 0;
    for (uint32_t i = 0; i < sock->nsplices; i++) {
        struct tcp_splice *splice = &sock->splices[(sock->splice_first + i) % TCP_SPLICES];
        if (splice->pos > at)
            iov[n++] = (struct iovec){buf->data + at, splice->pos - at};
        at = splice->pos;
        if (i > 0 && tcp_lend_fits(sock, splice))
            return n;
        if (tcp_pieces(splice->op, splice->at, splice->left, iov, TCP_IOV - 2, &n) <
                splice->left ||
            n >= TCP_IOV - 2)
            return n;
    }
    if (buf->tail > at)
        iov[n++] = (struct iovec){buf->data + at, buf->tail - at};
    return n;
}

static void splice_done(struct tcp_sock *sock, struct tcp_splice *splice)
{
    struct tcp_op *op = splice->op;
    sock->splice_first = (sock->splice_first + 1) % TCP_SPLICES;
    sock->nsplices--;
    if (!splice->mem)
        return;
    splice->mem->busy--;
    if (--op->pending == 0 && op->staged == op->len)
        tcp_answer_end(op);
}

static void out_consume(struct tcp_sock *sock, uint64_t n)
{
    struct tcp_buf *buf = sock->out;
    sock->sent += n;
    while (n > 0) {
        struct tcp_splice *splice = sock->nsplices ? &sock->splices[sock->splice_first] : NULL;
        uint64_t part = (splice ? splice->pos : buf->tail) - buf->head;
        if (part > n)
            part = n;
        buf->head += (uint32_t)part;
        n -= part;
        if (!splice)
            continue;
        part = n < splice->left ? n : splice->left;
        tcp_cursor_move(splice->op, &splice->at, part);
        splice->left -= part;
        n -= part;
        if (splice->left == 0 && splice->pos == buf->head)
            splice_done(sock, splice);
    }
}

/* Epoll tells when there is room again. False: it cannot, and the link is lost. */
static bool sock_block(struct tcp_sock *sock)
{
    int rc = tcp_rewatch(sock);
    if (rc < 0) {
        tcp_link_fail(sock->link, rc);
        return false;
    }
    sock->blocked = true;
    tcp_nic_of(sock->link)->nblocked++;
    return true;
}

/* Cut pieces down to `limit` bytes. Returns how many pieces are left; bytes in them. */
static int cut(struct iovec *iov, int niov, uint64_t limit, uint64_t *sum)
{
    *sum = 0;
    for (int i = 0; i < niov; i++) {
        *sum += iov[i].iov_len;
        if (*sum < limit)
            continue;
        iov[i].iov_len -= *sum - limit;
        *sum = limit;
        return i + 1;
    }
    return niov;
}

/* One system call; a single piece does without a msghdr, which the kernel would have to copy. */
static ssize_t send_pieces(const struct tcp_sock *sock, struct iovec *iov, int niov, int flags)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)niov};
    ssize_t n;
    flags |= MSG_NOSIGNAL | MSG_DONTWAIT;
    do
        n = niov == 1 ? send(sock->fd, iov->iov_base, iov->iov_len, flags)
                      : sendmsg(sock->fd, &msg, flags);
    while (n < 0 && errno == EINTR);
    return n;
}

static ssize_t send_mixed(struct tcp_sock *sock, uint64_t limit, uint64_t *want)
{
    struct iovec iov[TCP_IOV];
    int niov = cut(iov, out_gather(sock, iov), limit, want);
    return send_pieces(sock, iov, niov, 0);
}

/* Heads and small payloads alone: most of what is sent at once. */
static ssize_t send_plain(const struct tcp_sock *sock, uint64_t limit, uint64_t *want)
{
    struct tcp_buf *buf = sock->out;
    uint64_t len = buf->tail - buf->head;
    struct iovec iov = {buf->data + buf->head, len < limit ? len : limit};
    *want = iov.iov_len;
    return send_pieces(sock, &iov, 1, 0);
}

/* What goes before a payload that is lent. */
static ssize_t send_heads(const struct tcp_sock *sock, uint64_t limit, uint64_t *want)
{
    const struct tcp_splice *first = &sock->splices[sock->splice_first];
    uint64_t len = first->pos - sock->out->head;
    struct iovec iov = {sock->out->data + sock->out->head, len < limit ? len : limit};
    *want = iov.iov_len;
    return send_pieces(sock, &iov, 1, limit > len ? MSG_MORE : 0);
}

/* One system call. */
static ssize_t send_some(struct tcp_sock *sock, uint64_t limit, uint64_t *want)
{
    ssize_t n;
    if (WEFT_LIKELY(!sock->nsplices))
        return send_plain(sock, limit, want);
    if (!sock->pipe && !tcp_lend_fits(sock, &sock->splices[sock->splice_first]))
        return send_mixed(sock, limit, want);
    if (sock->splices[sock->splice_first].pos > sock->out->head)
        return send_heads(sock, limit, want);
    return tcp_lend(sock, limit, want, &n) ? n : send_mixed(sock, limit, want);
}

int tcp_out_most(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), size = FIT_MOST;
    socklen_t len = sizeof(size);
    if (fd < 0) {
        weft_log(WEFT_LOG_DEBUG, "tcp", "send buffers are the kernel's: no socket to ask for their bound: %s",
                 weft_strerror(-errno));
        return 0;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, &len) < 0)
        size = 0;
    close(fd);
    return size / 2; /* socket(7): the kernel doubles it */
}

/* Bytes that the buffer should have, or 0: leave it to the kernel, which goes beyond what it lets a program ask for. */
static int fitting(const struct tcp_sock *sock)
{
    const struct tcp_nic *nic = tcp_nic_of(sock->link);
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    if (getsockopt(sock->fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
        info.tcpi_min_rtt > FIT_MAX_RTT_US)
        return 0;
    uint64_t want =
        (nic->zerocopy ? FIT_LEAST_LENT : FIT_LEAST) + 2 * sock->fit_rate * info.tcpi_min_rtt;
    if (want > FIT_MOST)
        want = FIT_MOST;
    if (want > (uint64_t)nic->sndbuf_most)
        return info.tcpi_min_rtt <= FIT_NEAR_RTT_US ? nic->sndbuf_most : 0;
    return (int)want;
}

/* It has been set, which ends the kernel's own growth. */
static void let_grow(struct tcp_sock *sock)
{
    int locked = tcp_nic_of(sock->link)->rcvbuf ? SOCK_RCVBUF_LOCK : 0;
    setsockopt(sock->fd, SOL_SOCKET, SO_BUF_LOCK, &locked, sizeof(locked));
}

/*
 * A send buffer far above rate x round trip only moves bytes out of the cache before the peer reads
 * them, so on short paths it follows that product (twice, and some for a peer that is late). On long
 * ones the kernel's own growth is left alone. Writes of 1 MiB over loopback, depth 64, 2 cores: 2.9
 * GB/s with the kernel's buffers, 3.9 so; with lent pages 12.6 of 512 KiB, 11.5 of 256 KiB or 1 MiB
 * (another machine). With 256 conns, of which each has one write, those 512 KiB took it in two parts: 8.2, and 9.0 of 576
 * KiB, where one conn has 9.9 (in the slow state, bench/README.md).
 */
static void fit_buffer(struct tcp_sock *sock)
{
    uint64_t now = weft_now(), took = (now - sock->fit_at) / 1000 + 1;
    uint64_t rate = (sock->sent - sock->fit_sent) / took;
    if (sock->fit_at)
        sock->fit_rate = sock->fit_rate - sock->fit_rate / FIT_SHARE + rate / FIT_SHARE;
    sock->fit_sent = sock->sent;
    sock->fit_at = now;
    int size = fitting(sock), off = size - sock->fit_size;
    if ((off < 0 ? -off : off) <= sock->fit_size / 4) {
        sock->fits += sock->fits < FIT_DOUBLINGS;
        return;
    }
    sock->fit_size = size;
    sock->fits = 0;
    if (size)
        setsockopt(sock->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    else
        let_grow(sock);
}

uint64_t tcp_out_flush(struct tcp_sock *sock, uint64_t limit)
{
    uint64_t sum = 0;
    while (!sock->blocked && sock->sent < sock->staged && sum < limit) {
        uint64_t want;
        ssize_t n = send_some(sock, limit - sum, &want);
        if (n < 0 && errno != EAGAIN) {
            tcp_link_fail(sock->link, tcp_status(errno));
            return sum;
        }
        if (n > 0)
            out_consume(sock, (uint64_t)n);
        if (!sock->unproven) {
            sock->unproven = true;
            tcp_nic_of(sock->link)->nunproven++;
        }
        if (sock->sent - sock->fit_sent >= FIT_EVERY << sock->fits &&
            tcp_nic_of(sock->link)->sndbuf_most)
            fit_buffer(sock);
        sum += n > 0 ? (uint64_t)n : 0;
        if ((n < 0 || (uint64_t)n < want) && !sock_block(sock))
            return sum;
    }
    if (sock->out && sock->sent == sock->staged) {
        tcp_buf_put(tcp_nic_of(sock->link), sock->out);
        sock->out = NULL;
    }
    return sum;
}

void tcp_out_drop(struct tcp_sock *sock)
{
    for (; sock->nsplices; sock->nsplices--) {
        struct tcp_mem *mem = sock->splices[sock->splice_first].mem;
        if (mem)
            mem->busy--;
        sock->splice_first = (sock->splice_first + 1) % TCP_SPLICES;
    }
    for (; sock->nflight; sock->nflight--) {
        const struct tcp_op *op = sock->flight[sock->flight_first].op;
        if (op->is_answer)
            op->mem->busy--;
        sock->flight_first = (sock->flight_first + 1) % sock->window;
    }
    sock->nawaited = 0;
    if (sock->out)
        tcp_buf_put(tcp_nic_of(sock->link), sock->out);
    sock->out = NULL;
}
