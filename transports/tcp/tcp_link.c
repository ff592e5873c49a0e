/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets, and a link's life: the active end connects them all, each says hello with the passive
 * link's token, the passive nic hands it to that link and answers. A link is up at an end when all
 * its sockets have joined and link_connect was called there; until then nothing is read from them.
 */
#include "tcp.h"

#include <errno.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024
#define ACCEPTS 16       /* most in one poll */
#define KEEPALIVE_MOST 10 /* probes in the second half of the timeout, if it has so many seconds */
#define KEEPALIVE_OTHERS 10 /* sockets beside the first are asked after so many times as long: that one tells of the host */
#define PROBES_SUSPECT 2 /* unanswered window probes that are no accident */

/* --- sockets ----------------------------------------------------------------------------------- */

int tcp_status(int err)
{
    return err == ECONNRESET || err == EPIPE ? WEFT_EPEER : -err;
}

int tcp_watch(struct tcp_nic *nic, int op, int fd, uint32_t events, void *source)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(nic->epoll_fd, op, fd, &event) < 0)
        return weft_fail(-errno, "tcp: cannot watch a socket: %m");
    return 0;
}

void tcp_tell_full(struct tcp_nic *nic, const char *so)
{
    if (!nic->full)
        weft_log(WEFT_LOG_WARN, "tcp", "%s: %s (/proc/sys/fs/epoll/max_user_watches?)", so, weft_last_error());
    nic->full = true;
}

static void set_int(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof(value)) < 0)
        weft_log(WEFT_LOG_DEBUG, "tcp", "socket option %d/%d not set: %m", level, name);
}

/*
 * An idle peer whose host is gone is found by keepalive, one that owes an acknowledgement by tcp_check_silence:
 * TCP_USER_TIMEOUT would also hit a live peer that does not read for a while.
 *
 * The sockets of many conns that fell silent together would be asked together, by one tick of the kernel's timers, which is a
 * quarter of a second wide here: more probes than a queue on their way holds (net.core.netdev_max_backlog: 1000). What is lost
 * would be asked again together, and so on until the last probe: conns were lost in three of seven runs of `WEFT_TCP_SOCKETS=2
 * weft_perf write --local -t tcp -s 8 -c 9500 -d 9500 -n 9500 --idle 30`, and 10000 to 60000 packets in each
 * (/proc/net/softnet_stat); now 150 to 1500. So they wait, in turns, for different numbers of seconds, from half to all of what there
 * is time for, and have more probes.
 */
static void set_keepalive(const struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    int seconds = (int)((nic->timeout + 999) / 1000), rest = seconds > 1 ? seconds / 2 : 1;
    int every = (rest + KEEPALIVE_MOST - 1) / KEEPALIVE_MOST, probes = (rest + every - 1) / every;
    int idle = (seconds + 1) / 2 * (sock->index ? KEEPALIVE_OTHERS : 1);
    idle -= (int)(nic->keepalives[sock->index > 0]++ % (uint32_t)(idle / 2 + 1));
    set_int(sock->fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
    set_int(sock->fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    set_int(sock->fd, IPPROTO_TCP, TCP_KEEPCNT, probes);
    set_int(sock->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

static void set_options(const struct tcp_nic *nic, int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (nic->sndbuf)
        set_int(fd, SOL_SOCKET, SO_SNDBUF, nic->sndbuf);
    if (nic->rcvbuf)
        set_int(fd, SOL_SOCKET, SO_RCVBUF, nic->rcvbuf);
}

/*
 * Congestion control. Within a host there is no path to be shared, and one that paces (bbr) sets a timer for every 64 KiB:
 * there it is reno, which every kernel has, lets everyone use and does not pace. It has to be chosen before a socket
 * is connected, since one that has begun to pace goes on; so the listener has it, and callers from elsewhere are
 * given the kernel's own. Half a round trip of 64 B over loopback, where the kernel's own is bbr: 4.14 us so and 4.24 us
 * with bbr (2026-11-24, 2 cores of an AMD EPYC).
 */
static int choose_congestion(struct tcp_nic *nic, int fd)
{
    const char *name = weft_config_str("WEFT_TCP_CONGESTION");
    socklen_t len = sizeof(nic->far);
    if (*name && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) < 0)
        return weft_fail(-errno, "tcp: WEFT_TCP_CONGESTION=%s: %m", name);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, nic->far, &len) < 0)
        return 0; /* there is no choice here */
    memcpy(nic->near, *name ? nic->far : "reno", *name ? sizeof(nic->far) : sizeof("reno"));
    return 0;
}

static bool has_congestion(int fd, const char *name)
{
    char has[TCP_CONGESTION_MAX] = "";
    socklen_t len = sizeof(has);
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &len) == 0 &&
           strncmp(has, name, sizeof(has)) == 0;
}

static void set_congestion(int fd, const char *name)
{
    if (*name && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) < 0)
        weft_log(WEFT_LOG_DEBUG, "tcp", "congestion control '%s' not set: %m", name);
}

int tcp_listen(struct tcp_nic *nic, const char *host)
{
    socklen_t len = 0, bound_len = sizeof(nic->bound);
    int rc = tcp_addr_parse(host, &nic->bound, &len);
    if (rc < 0)
        return rc;
    struct sockaddr *addr = (struct sockaddr *)&nic->bound;
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return weft_fail(-errno, "tcp: cannot make a socket: %m");
    if (addr->sa_family == AF_INET6)
        set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    set_options(nic, fd); /* the window scale of accepted sockets follows from the listener's */
    rc = choose_congestion(nic, fd);
    if (rc < 0)
        goto err_close;
    set_congestion(fd, nic->near);
    if (bind(fd, addr, len) < 0 || listen(fd, LISTEN_BACKLOG) < 0 ||
        getsockname(fd, addr, &bound_len) < 0) {
        rc = weft_fail(-errno, "tcp: cannot listen on %s: %m", host ? host : "127.0.0.1");
        goto err_close;
    }
    rc = weft_listener_open(&nic->listener, fd, nic->epoll_fd, &nic->listener_source);
    if (rc == 0)
        return 0;
    weft_fail(rc, "tcp: cannot watch the listener: %m");
err_close:
    close(fd);
    return rc;
}

/* A child of this process that does not exec may hold the socket open: so that closing is not all.
 * The peer is to see the end, and epoll must not speak of what is no more. */
static void fd_close(struct tcp_nic *nic, int fd)
{
    epoll_ctl(nic->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

static void half_drop(struct tcp_nic *nic, struct tcp_half *half)
{
    fd_close(nic, half->fd);
    half->fd = -1;
    nic->nhalf--;
}

void tcp_unlisten(struct tcp_nic *nic)
{
    for (int i = 0; i < TCP_HALF_OPEN; i++)
        if (nic->half[i].fd >= 0)
            half_drop(nic, &nic->half[i]);
    weft_listener_close(&nic->listener);
}

/* --- accepted sockets that have not said hello ------------------------------------------------- */

/* A free place; if there is none, that of another stranger. */
static struct tcp_half *half_place(struct tcp_nic *nic)
{
    struct weft_stranger list[TCP_HALF_OPEN];
    uint64_t now = weft_now();
    for (int i = 0; i < TCP_HALF_OPEN; i++) {
        struct tcp_half *half = &nic->half[i];
        if (half->fd < 0)
            return half;
        bool silent = half->len == 0 && now - half->since > TCP_HALF_YOUNG;
        list[i] = (struct weft_stranger){half->since, half->place, !silent};
    }
    struct tcp_half *half = &nic->half[weft_stranger_choose(list, TCP_HALF_OPEN)];
    half_drop(nic, half);
    return half;
}

void tcp_half_expire(struct tcp_nic *nic)
{
    uint64_t now = nic->nhalf ? weft_now() : 0, limit = (uint64_t)nic->timeout * 1000000;
    limit = limit < TCP_HELLO_TIMEOUT ? limit : TCP_HELLO_TIMEOUT;
    for (int i = 0; nic->nhalf && i < TCP_HALF_OPEN; i++)
        if (nic->half[i].fd >= 0 && now - nic->half[i].since > limit)
            half_drop(nic, &nic->half[i]);
}

/* Their callers cannot be accepted, and not even refused: the peer would wait for nothing. */
static void fail_joining(struct tcp_nic *nic)
{
    for (struct tcp_link *link = nic->links; link; link = link->next)
        if (link->role == WEFT_ROLE_PASSIVE && link->joined < link->nsocks)
            tcp_link_fail(link, -EMFILE);
}

void tcp_accept(struct tcp_nic *nic)
{
    tcp_half_expire(nic);
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage from;
        int fd = weft_listener_accept(&nic->listener, &from, "tcp");
        if (nic->listener.resume)
            fail_joining(nic);
        if (fd < 0)
            return;
        set_options(nic, fd);
        if (strcmp(nic->near, nic->far) != 0 && has_congestion(fd, nic->near) && !tcp_addr_is_ours(&from))
            set_congestion(fd, nic->far); /* unless a route has chosen */
        struct tcp_half *half = half_place(nic);
        *half = (struct tcp_half){
            .source = TCP_HALF, .fd = fd, .since = weft_now(), .place = weft_stranger_from(&from)};
        nic->nhalf++;
        if (tcp_watch(nic, EPOLL_CTL_ADD, fd, EPOLLIN, half) < 0) {
            tcp_tell_full(nic, "callers are dropped");
            half_drop(nic, half);
        }
    }
}

/* As long for a wrong token as for the right one. */
static bool token_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (int i = 0; i < TCP_TOKEN; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}

static struct tcp_link *find_link(struct tcp_nic *nic, const struct tcp_hello *hello)
{
    struct tcp_link *found = NULL;
    for (struct tcp_link *link = nic->links; link; link = link->next)
        if (link->role == WEFT_ROLE_PASSIVE && token_equal(link->token, hello->token))
            found = link;
    return found;
}

static bool hello_fits(const struct tcp_link *link, const struct tcp_hello *hello)
{
    if (link->state != TCP_LINK_NEW && link->state != TCP_LINK_JOINING)
        return false;
    bool sockets = link->joined ? hello->sockets == link->nsocks
                                : hello->sockets > 0 && hello->sockets <= link->nsocks;
    return sockets && hello->depth > 0 && hello->index < hello->sockets &&
           link->socks[hello->index].state == TCP_CLOSED;
}

/* A socket has found its link. */
static int sock_join(struct tcp_sock *sock, uint16_t peer_depth)
{
    struct tcp_link *link = sock->link;
    uint32_t window = TCP_DEPTH;
    if (peer_depth < link->depth)
        link->depth = peer_depth;
    if (sock->index > 0)
        window /= link->nsocks - 1;
    sock->window = window < link->depth ? window : link->depth;
    sock->flight = calloc(sock->window, sizeof(*sock->flight));
    if (!sock->flight)
        return weft_fail(-ENOMEM, "tcp: no memory for a link");
    int rc = tcp_watch(tcp_nic_of(link), EPOLL_CTL_MOD, sock->fd, 0, sock);
    if (rc < 0)
        return rc;
    set_keepalive(sock);
    sock->state = TCP_JOINED;
    link->joined++;
    return 0;
}

static int prove(const struct tcp_link *link, enum weft_role who, const uint8_t *hello,
                 uint8_t proof[TCP_PROOF])
{
    uint8_t said[1 + TCP_HELLO_PROVEN] = {(uint8_t)who};
    memset(proof, 0, TCP_PROOF);
    memcpy(said + 1, hello, TCP_HELLO_PROVEN);
    return link->keyed ? weft_mac(link->key, said, sizeof(said), proof) : 0;
}

/* Has who said this the link's key? */
static bool proven(const struct tcp_link *link, enum weft_role who, const uint8_t *hello)
{
    static const uint8_t none[TCP_PROOF];
    uint8_t said[1 + TCP_HELLO_PROVEN] = {(uint8_t)who};
    const uint8_t *proof = hello + TCP_HELLO_PROVEN;
    memcpy(said + 1, hello, TCP_HELLO_PROVEN);
    return link->keyed ? weft_mac_check(link->key, said, sizeof(said), proof) == 0
                       : memcmp(proof, none, sizeof(none)) == 0;
}

static bool say_hello(struct tcp_sock *sock)
{
    uint8_t buf[TCP_HELLO_SIZE];
    struct tcp_hello hello = {.index = sock->index,
                              .version = TCP_VERSION,
                              .depth = TCP_DEPTH,
                              .sockets = (uint8_t)sock->link->nsocks};
    memcpy(hello.token, sock->link->token, TCP_TOKEN);
    tcp_hello_encode(buf, &hello);
    if (prove(sock->link, sock->link->role, buf, buf + TCP_HELLO_PROVEN) < 0)
        return false;
    return send(sock->fd, buf, sizeof(buf), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(buf);
}

/* Hand an accepted socket to the link whose token it knows. False: to none. */
static bool half_join(struct tcp_nic *nic, struct tcp_half *half)
{
    struct tcp_hello hello;
    if (!tcp_hello_decode(half->hello, &hello))
        return false;
    struct tcp_link *link = find_link(nic, &hello);
    if (!link || !hello_fits(link, &hello) || !proven(link, WEFT_ROLE_ACTIVE, half->hello))
        return false;
    struct tcp_sock *sock = &link->socks[hello.index];
    link->nsocks = hello.sockets;
    sock->fd = half->fd;
    half->fd = -1;
    nic->nhalf--;
    int rc = say_hello(sock) ? sock_join(sock, hello.depth) : WEFT_EPEER;
    if (rc < 0) {
        sock->state = TCP_GREETED; /* has a descriptor to close */
        tcp_link_fail(link, rc);
    }
    return true;
}

void tcp_half_event(struct tcp_nic *nic, struct tcp_half *half)
{
    ssize_t n = recv(half->fd, half->hello + half->len, TCP_HELLO_SIZE - half->len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        half->len += (uint32_t)n;
    if (n > 0 && half->len < TCP_HELLO_SIZE)
        return;
    if (n <= 0 || !half_join(nic, half)) {
        weft_log(WEFT_LOG_DEBUG, "tcp", "listener: a caller without a sound hello was dropped");
        half_drop(nic, half);
    }
}

/* --- the active end's greeting ----------------------------------------------------------------- */

static int sock_connected(struct tcp_sock *sock)
{
    int err = 0;
    socklen_t len = sizeof(err);
    if (getsockopt(sock->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
        err = errno;
    if (err != 0)
        return weft_fail(-err, "tcp: cannot connect: %s", weft_strerror(-err));
    if (!say_hello(sock))
        return weft_fail(WEFT_EPEER, "tcp: the peer hung up during the handshake");
    sock->state = TCP_GREETED;
    return tcp_watch(tcp_nic_of(sock->link), EPOLL_CTL_MOD, sock->fd, EPOLLIN, sock);
}

static int sock_answered(struct tcp_sock *sock)
{
    struct tcp_hello hello;
    ssize_t n = recv(sock->fd, sock->greeting + sock->greeting_len,
                     TCP_HELLO_SIZE - sock->greeting_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return weft_fail(WEFT_EREFUSED, "tcp: the peer does not know this link");
    sock->greeting_len += (uint32_t)n;
    if (sock->greeting_len < TCP_HELLO_SIZE)
        return 0;
    if (!tcp_hello_decode(sock->greeting, &hello) || hello.index != sock->index ||
        hello.sockets != sock->link->nsocks || hello.depth == 0 ||
        !token_equal(hello.token, sock->link->token))
        return weft_fail(WEFT_EPROTO, "tcp: the peer's answer to a hello makes no sense");
    if (!proven(sock->link, WEFT_ROLE_PASSIVE, sock->greeting))
        return weft_fail(WEFT_EAUTH, "tcp: the peer's answer to a hello is not the peer's");
    return sock_join(sock, hello.depth);
}

void tcp_sock_greet(struct tcp_sock *sock)
{
    int rc = WEFT_EPEER; /* joined, and gone before link_connect was done */
    if (sock->state == TCP_CONNECTING)
        rc = sock_connected(sock);
    else if (sock->state == TCP_GREETED)
        rc = sock_answered(sock);
    if (rc < 0)
        tcp_link_fail(sock->link, rc);
}

/* --- a link's life ----------------------------------------------------------------------------- */

int tcp_link_open(struct weft_nic *base, const struct weft_link_opts *opts, struct weft_link **out)
{
    struct tcp_nic *nic = (struct tcp_nic *)base;
    struct tcp_link *link = calloc(1, sizeof(*link));
    if (!link)
        return weft_fail(-ENOMEM, "tcp: no memory for a link");
    link->base.nic = base;
    link->role = opts->role;
    link->depth = TCP_DEPTH;
    link->nsocks = nic->nsocks;
    link->nfree_calls = TCP_DEPTH;
    for (uint16_t i = 0; i < TCP_DEPTH; i++)
        link->free_calls[i] = (uint16_t)(TCP_DEPTH - 1 - i);
    if (opts->peer && opts->peer_len <= sizeof(link->peer))
        memcpy(&link->peer, opts->peer, opts->peer_len);
    link->keyed = opts->key != NULL;
    if (opts->key)
        memcpy(link->key, opts->key, sizeof(link->key));
    int rc = link->role == WEFT_ROLE_PASSIVE ? weft_random(link->token, TCP_TOKEN) : 0;
    link->socks = calloc(link->nsocks, sizeof(*link->socks));
    if (!link->socks && rc == 0)
        rc = weft_fail(-ENOMEM, "tcp: no memory for the sockets of a link");
    if (rc < 0) {
        free(link->socks);
        free(link);
        return rc;
    }
    for (uint32_t i = 0; i < link->nsocks; i++)
        link->socks[i] = (struct tcp_sock){
            .source = TCP_SOCK, .link = link, .fd = -1, .index = (uint8_t)i};
    link->next = nic->links;
    if (link->next)
        link->next->prev = link;
    nic->links = link;
    *out = &link->base;
    return 0;
}

static int sock_dial(struct tcp_sock *sock, const struct sockaddr_storage *addr, socklen_t len)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    sock->fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (sock->fd < 0)
        return weft_fail(-errno, "tcp: cannot make a socket: %m");
    sock->state = TCP_CONNECTING;
    set_options(nic, sock->fd);
    if (strcmp(nic->near, nic->far) == 0 || tcp_addr_is_ours(addr)) /* else the kernel's own, or its route's */
        set_congestion(sock->fd, nic->near);
    if (connect(sock->fd, (const struct sockaddr *)addr, len) < 0 && errno != EINPROGRESS)
        return weft_fail(-errno, "tcp: cannot connect: %m");
    return tcp_watch(nic, EPOLL_CTL_ADD, sock->fd, EPOLLOUT, sock);
}

static int link_dial(struct tcp_link *link, const uint8_t *blob)
{
    struct sockaddr_storage addr;
    socklen_t len = tcp_addr_target(link, blob, &addr);
    int rc = 0;
    if (blob[6] < link->nsocks)
        link->nsocks = blob[6];
    memcpy(link->token, blob + 32, TCP_TOKEN);
    link->state = TCP_LINK_JOINING;
    for (uint32_t i = 0; rc == 0 && i < link->nsocks; i++)
        rc = sock_dial(&link->socks[i], &addr, len);
    if (rc < 0)
        tcp_link_fail(link, rc);
    return rc;
}

static int link_up(struct tcp_link *link)
{
    for (uint32_t i = 0; i < link->nsocks; i++) {
        struct tcp_sock *sock = &link->socks[i];
        int rc = tcp_watch(tcp_nic_of(link), EPOLL_CTL_MOD, sock->fd, TCP_EDGES, sock);
        if (rc < 0) {
            tcp_link_fail(link, rc);
            return rc;
        }
    }
    link->state = TCP_LINK_UP;
    return 0;
}

int tcp_link_connect(struct weft_link *base, const void *addr, size_t len)
{
    struct tcp_link *link = (struct tcp_link *)base;
    if (link->state == TCP_LINK_DOWN)
        return weft_fail(link->status, "tcp: the link could not be connected: %s",
                         weft_strerror(link->status));
    if (link->state == TCP_LINK_UP)
        return 0;
    int rc = tcp_addr_check(link, addr, len);
    if (rc == 0 && link->role == WEFT_ROLE_ACTIVE && link->state == TCP_LINK_NEW)
        rc = link_dial(link, addr);
    if (rc < 0)
        return rc;
    return link->joined == link->nsocks ? link_up(link) : WEFT_EAGAIN;
}

static void sock_close(struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    if (sock->state == TCP_CLOSED)
        return;
    for (uint32_t i = 0; sock->hot && i < nic->nhot; i++)
        if (nic->hot[i] == sock)
            nic->hot[i] = nic->hot[--nic->nhot];
    nic->nblocked -= sock->blocked;
    nic->nunproven -= sock->unproven;
    sock->hot = sock->blocked = sock->unproven = sock->unwatched = false;
    tcp_rx_drop(sock);
    tcp_lend_end(sock);
    tcp_out_drop(sock);
    free(sock->flight);
    sock->flight = NULL;
    sock->state = TCP_CLOSED;
    fd_close(nic, sock->fd);
}

/* Give back all that a link holds, but what its last comps need. */
static void link_strip(struct tcp_link *link)
{
    for (uint32_t i = 0; i < link->nsocks; i++)
        sock_close(&link->socks[i]);
    while (link->ops)
        tcp_op_free(link->ops);
    link->todo.head = link->bulk.head = link->answers.head = NULL;
    link->started = link->nlong = link->nanswers = link->acks = 0;
}

void tcp_link_fail(struct tcp_link *link, int status)
{
    if (link->state == TCP_LINK_DOWN)
        return;
    weft_log(WEFT_LOG_DEBUG, "tcp", "link %p is down: %s", (void *)link, weft_strerror(status));
    if (tcp_nic_of(link)->heard == link) /* what the peer has executed has been executed */
        (void)tcp_post_hear(tcp_nic_of(link));
    link->down_due = link->state == TCP_LINK_UP;
    tcp_nic_of(link)->ndown += link->down_due;
    link->state = TCP_LINK_DOWN;
    link->status = status;
    link_strip(link);
}

/* Take a link off the lists of its nic. */
static void link_forget(struct tcp_link *link)
{
    struct tcp_nic *nic = tcp_nic_of(link);
    struct tcp_queue done = {0};
    struct tcp_link **at = &nic->ready;
    if (nic->heard == link)
        nic->heard = NULL;
    while (nic->done.head) {
        struct tcp_op *op = tcp_queue_pop(&nic->done);
        if (op->link == link)
            tcp_op_forget(op);
        else
            tcp_queue_push(&done, op);
    }
    nic->done = done;
    while (link->ready && *at != link)
        at = &(*at)->ready_next;
    if (link->ready) {
        *at = link->ready_next;
        if (!*at)
            nic->ready_tail = at;
    }
    nic->ndown -= link->down_due;
    if (link->prev)
        link->prev->next = link->next;
    else
        nic->links = link->next;
    if (link->next)
        link->next->prev = link->prev;
}

void tcp_link_close(struct weft_link *base)
{
    struct tcp_link *link = (struct tcp_link *)base;
    if (tcp_nic_of(link)->heard == link) /* what the peer has executed is not taken back */
        (void)tcp_post_hear(tcp_nic_of(link));
    if (link->state == TCP_LINK_UP)
        tcp_tx_farewell(link);
    link_strip(link);
    link_forget(link);
    explicit_bzero(link->key, sizeof(link->key));
    free(link->socks);
    free(link);
}

/* --- silence ----------------------------------------------------------------------------------- */

/* The peer's kernel owes an answer and has been asked again for it. */
static bool sock_stalls(const struct tcp_info *info)
{
    return (info->tcpi_unacked > 0 && info->tcpi_retransmits > 0) ||
           info->tcpi_probes >= PROBES_SUSPECT;
}

/* All that was sent is acknowledged: from here on keepalive watches the peer. It does not while a
 * byte is under way, be it of an answer that no op waits for: the kernel alone then takes a quarter
 * of an hour. */
static void sock_proven(struct tcp_sock *sock)
{
    sock->unproven = false;
    tcp_nic_of(sock->link)->nunproven--;
}

static bool sock_silent(struct tcp_sock *sock, uint64_t now, int64_t timeout)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    if (getsockopt(sock->fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 || !sock_stalls(&info)) {
        sock->suspect = 0;
        if (info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0)
            sock_proven(sock);
        return false;
    }
    int64_t since = (int64_t)(now - sock->suspect) / 1000000;
    if (sock->suspect == 0 || info.tcpi_last_ack_recv < since) {
        sock->suspect = now;
        return false;
    }
    return since >= timeout;
}

void tcp_check_silence(struct tcp_nic *nic)
{
    uint64_t now = weft_now();
    nic->checked = now;
    for (struct tcp_link *link = nic->links; link; link = link->next)
        for (uint32_t i = 0; link->state == TCP_LINK_UP && i < link->nsocks; i++)
            if (link->socks[i].unproven && sock_silent(&link->socks[i], now, nic->timeout))
                tcp_link_fail(link, -ETIMEDOUT);
}
