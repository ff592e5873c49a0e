/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on simulated sockets that are connected, of both families. */
#include "net.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>

#define WHOLE 1024 /* an empty kernel buffer takes so much at once */

static void put_address(int host, int port, bool v6, struct sockaddr *out, socklen_t *len)
{
    struct sockaddr_storage all = {0};
    struct sockaddr_in *in4 = (struct sockaddr_in *)&all;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&all;
    if (v6) {
        *in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        in6->sin6_addr.s6_addr[0] = 0xfd;
        in6->sin6_addr.s6_addr[15] = (uint8_t)(host + 1);
    } else {
        *in4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        in4->sin_addr.s_addr = htonl(0x0a000001u + (uint32_t)host);
    }
    socklen_t size = v6 ? sizeof *in6 : sizeof *in4;
    memcpy(out, &all, *len < size ? *len : size);
    *len = size;
}

static int told(struct stream *s, int otherwise)
{
    int error = s->error ? s->error : otherwise;
    s->error = 0;
    return error;
}

static size_t some_of(size_t n)
{
    return n > 1 && sim_once_in(sim.plan.short_every) ? 1 + (size_t)(sim_random() % n) : n;
}

static size_t pipe_put(struct pipe *in, const struct iovec *iov, size_t niov, size_t most)
{
    size_t sum = 0;
    for (size_t i = 0; i < niov && sum < most; i++) {
        const uint8_t *from = iov[i].iov_base;
        for (size_t left = iov[i].iov_len; left && sum < most;) {
            size_t at = (in->head + in->len) % in->cap, n = in->cap - at;
            n = n < left ? n : left;
            n = n < most - sum ? n : most - sum;
            memcpy(in->data + at, from, n);
            from += n;
            left -= n;
            sum += n;
            in->len += n;
        }
    }
    return sum;
}

static size_t iov_len(const struct iovec *iov, size_t niov)
{
    size_t sum = 0;
    for (size_t i = 0; i < niov; i++)
        sum += iov[i].iov_len;
    return sum;
}

/* Tell a sender that waits for room of it. */
static void room_for(struct stream *s)
{
    if (!s->wants_room || !(sim_stream_events(s) & EPOLLOUT))
        return;
    s->wants_room = false;
    s->edges++;
}

ssize_t sim_stream_send(struct stream *s, const struct iovec *iov, size_t niov)
{
    int error = 0;
    if (s->reset || s->state == STREAM_FAILED)
        error = told(s, EPIPE);
    else if (s->end_sent)
        error = EPIPE;
    else if (s->state != STREAM_UP)
        error = s->state == STREAM_NEW ? ENOTCONN : EAGAIN;
    else if (s->peer->in.len == s->peer->in.cap)
        error = EAGAIN;
    s->wants_room |= error == EAGAIN;
    if (error) {
        errno = error;
        return -1;
    }
    struct pipe *out = &s->peer->in;
    size_t want = iov_len(iov, niov), room = out->cap - out->len;
    size_t most = want < room ? want : room;
    if (out->len || want > WHOLE) /* an empty kernel buffer takes a little at once */
        most = some_of(most);
    size_t n = pipe_put(out, iov, niov, most);
    out->put += n;
    s->wants_room |= n < want;
    room_for(s); /* as if it were made just now */
    s->carried += n;
    if (n)
        sim_chunk_send(s->peer, CHUNK_DATA, n);
    return (ssize_t)n;
}

static size_t pipe_get(struct pipe *in, const struct iovec *iov, size_t niov, size_t most)
{
    size_t sum = 0;
    for (size_t i = 0; i < niov && sum < most; i++) {
        uint8_t *to = iov[i].iov_base;
        for (size_t left = iov[i].iov_len; left && sum < most;) {
            size_t n = in->cap - in->head;
            n = n < left ? n : left;
            n = n < most - sum ? n : most - sum;
            sim_loans_check(in, in->data + in->head, n);
            in->got += n;
            if (to) { /* NULL: thrown away */
                memcpy(to, in->data + in->head, n);
                to += n;
            }
            left -= n;
            sum += n;
            in->head = (in->head + n) % in->cap;
        }
    }
    in->len -= sum;
    in->arrived -= sum;
    sim_loans_received(in);
    return sum;
}

static ssize_t stream_recv(struct stream *s, const struct iovec *iov, size_t niov)
{
    size_t want = iov_len(iov, niov);
    if (s->in.arrived && want) {
        size_t most = want < s->in.arrived ? want : s->in.arrived;
        size_t n = pipe_get(&s->in, iov, niov, some_of(most));
        s->edges += n < most; /* as if the rest came just now */
        if (s->peer)
            room_for(s->peer);
        sim_changed();
        return (ssize_t)n;
    }
    int error = 0;
    if (s->error)
        error = told(s, 0);
    else if (s->reset || s->end_seen || s->read_shut)
        return 0;
    else
        error = s->state == STREAM_NEW ? ENOTCONN : EAGAIN;
    errno = error;
    return -1;
}

/* --- calls --------------------------------------------------------------------------------- */

static int passed_fd(const struct msghdr *msg)
{
    int fd = -1;
    const struct cmsghdr *c = msg->msg_controllen ? CMSG_FIRSTHDR(msg) : NULL;
    if (c)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    (void)flags;
    if (fd == -1) { /* local does not look whether it has a socket to wake a dead peer by */
        errno = EBADF;
        return -1;
    }
    struct sim_file *file = sim_fd(fd, -1);
    sim_step();
    ssize_t n = file->kind == SIM_PACKET
                    ? sim_packet_send(file->object, msg->msg_iov, msg->msg_iovlen, passed_fd(msg))
                    : sim_stream_send(file->object, msg->msg_iov, msg->msg_iovlen);
    sim_trace("send", fd, n, n < 0 ? errno : 0);
    return n;
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
    (void)flags;
    struct sim_file *file = sim_fd(fd, -1);
    sim_step();
    ssize_t n = file->kind == SIM_PACKET
                    ? sim_packet_recv(file->object, msg)
                    : stream_recv(file->object, msg->msg_iov, msg->msg_iovlen);
    if (n >= 0 || errno != EAGAIN)
        sim_trace("recv", fd, n, n < 0 ? errno : 0);
    return n;
}

ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags)
{
    struct iovec iov = {(void *)(uintptr_t)buf, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    return __wrap_sendmsg(fd, &msg, flags);
}

ssize_t __wrap_recv(int fd, void *buf, size_t len, int flags)
{
    struct iovec iov = {buf, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    return __wrap_recvmsg(fd, &msg, flags);
}

int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
    const struct sim_file *file = sim_fd(fd, -1);
    if (file->kind == SIM_LISTENER) {
        const struct listener *l = file->object;
        put_address(l->host, l->port, l->v6, addr, len);
    } else {
        const struct stream *s = file->object;
        put_address(s->host, s->port, s->v6, addr, len);
    }
    return 0;
}

int __wrap_getpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
    const struct stream *s = sim_fd(fd, SIM_STREAM)->object;
    if (s->state != STREAM_UP || s->reset) {
        errno = ENOTCONN;
        return -1;
    }
    put_address(s->peer_host, s->peer_port, s->v6, addr, len);
    return 0;
}

static void tcp_info_of(const struct stream *s, struct tcp_info *info)
{
    const struct pipe *out = &s->peer->in;
    const struct chunk *oldest = out->chunks;
    bool owed = oldest && oldest->kind == CHUNK_DATA;
    bool dark = sim_stream_dark(s) || s->peer->vanished;
    uint64_t quiet = sim.now - s->heard;
    info->tcpi_unacked = owed;
    info->tcpi_retransmits = owed && sim.now - oldest->sent > SIM_RESEND_AFTER;
    if (dark && !owed && out->len == out->cap)
        info->tcpi_probes = (uint8_t)(quiet / SIM_RESEND_AFTER < 15 ? quiet / SIM_RESEND_AFTER
                                                                    : 15);
    info->tcpi_last_ack_recv = (uint32_t)(quiet / SIM_MS);
    info->tcpi_min_rtt = (uint32_t)(2 * sim.plan.latency / SIM_US);
    info->tcpi_rtt = info->tcpi_min_rtt;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    struct sim_file *file = sim_fd(fd, -1);
    memset(value, 0, *len);
    sim_step();
    if (file->kind == SIM_PACKET) {
        struct ucred cred = {.pid = sim_packet_pid(file->object)};
        memcpy(value, &cred, sizeof cred);
        return 0;
    }
    struct stream *s = file->object;
    if (level == SOL_SOCKET && name == SO_ERROR) {
        int error = told(s, 0);
        memcpy(value, &error, sizeof error);
    } else if (level == IPPROTO_TCP && name == TCP_INFO && s->peer) {
        struct tcp_info info = {0};
        tcp_info_of(s, &info);
        memcpy(value, &info, *len < sizeof info ? *len : sizeof info);
    }
    return 0;
}

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    struct sim_file *file = sim_fd(fd, -1);
    int v = 0;
    memcpy(&v, value, len < sizeof v ? len : sizeof v);
    if (file->kind != SIM_STREAM || level != IPPROTO_TCP)
        return 0;
    struct stream *s = file->object;
    if (name == TCP_KEEPIDLE)
        s->idle = v;
    else if (name == TCP_KEEPINTVL)
        s->interval = v;
    else if (name == TCP_KEEPCNT)
        s->count = v;
    return 0;
}
