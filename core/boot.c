/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap sockets: the listener, and the short TCP conversations in which two endpoints agree
 * on a transport and exchange link addresses. Moves frames; handshake.c decides what they say.
 *
 * A frame: u32 magic, u16 version, u16 type, u32 body length, body. If the endpoints share a secret,
 * the last WEFT_MAC bytes of a body are the code of all before them (auth.c). Nothing here blocks. A
 * stranger costs one socket, WEFT__FRAME_MAX bytes (WEFT__AUTH_FRAME where it has to prove that it
 * knows the secret) and no more than its deadline.
 */
#include "boot.h"
#include "auth.h"
#include "conn.h"
#include "endpoint.h"
#include "handshake.h"
#include "progress.h"
#include "util.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MAGIC 0x54464557u    /* "WEFT" */
#define STRANGERS 64         /* handshakes under way beyond the backlog */
#define EVICTABLE 1024       /* of the newest are looked at when there is no room for one more */
#define YOUNG_NS 1000000000u /* who is in earnest has spoken, and is mostly through, by then */
#define ACCEPTS 16
#define JOIN_STEP_NS 1000000u
#define LISTEN_BACKLOG 1024
#define UNREAD 65536 /* bytes of a peer that are thrown away when it is hung up on */
/* Frames for a peer that does not read: an honest one asks again only when it has the answer. */
#define UNSENT_MAX (2 * WEFT__FRAME_MAX)

/* --- sending and failing ----------------------------------------------------------------------- */

static void watch(struct weft__boot *boot, int op)
{
    struct epoll_event event = {.events = EPOLLIN | (boot->want_write ? EPOLLOUT : 0),
                                .data.ptr = boot};
    if (epoll_ctl(boot->ep->boot_epoll, op, boot->fd, &event))
        weft_log(WEFT_LOG_ERROR, "boot", "cannot watch a socket: %m");
}

static void close_fd(struct weft__boot *boot)
{
    if (boot->fd < 0)
        return;
    /* what is left unread turns the end into a reset, which can overtake our last words */
    recv(boot->fd, NULL, UNREAD, MSG_DONTWAIT | MSG_TRUNC);
    /* closing is not enough: a child of this process may hold the socket open */
    epoll_ctl(boot->ep->boot_epoll, EPOLL_CTL_DEL, boot->fd, NULL);
    close(boot->fd);
    boot->fd = -1;
}

static void detach(struct weft__boot *boot)
{
    struct weft__endpoint *ep = boot->ep;
    close_fd(boot);
    pthread_mutex_lock(&ep->lock);
    if (boot->conn) {
        boot->conn->handshaking = false;
        boot->conn = NULL;
        weft__changed(ep);
    }
    pthread_mutex_unlock(&ep->lock);
}

/* Whoever connects is told to what. */
static void begin_text(const struct weft__boot *boot, char *text, size_t size)
{
    text[0] = 0;
    if (boot->active && !boot->kept && boot->conn)
        snprintf(text, size, "cannot connect to %s: ", boot->conn->peer_text);
}

void weft__boot_fail(struct weft__boot *boot, int status, const char *fmt, ...)
{
    char text[256];
    begin_text(boot, text, sizeof text);
    size_t len = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + len, sizeof text - len, fmt, args);
    va_end(args);
    weft_log(WEFT_LOG_DEBUG, "boot", "%s", text);
    if (boot->conn) {
        pthread_mutex_lock(&boot->ep->lock);
        weft__conn_down(boot->conn, status, "%s", text);
        pthread_mutex_unlock(&boot->ep->lock);
    }
    detach(boot);
}

void weft__boot_end(struct weft__boot *boot, bool keep)
{
    if (keep) {
        atomic_fetch_sub(&boot->ep->booting, 1);
        boot->ep->nguests -= !boot->active;
        boot->kept = true;
        boot->deadline = UINT64_MAX;
    } else {
        detach(boot);
    }
}

/* The peer has not said hello yet. */
static bool is_greeting(const struct weft__boot *boot)
{
    return boot->active && !boot->conn->peer_pid;
}

static void flush(struct weft__boot *boot)
{
    while (boot->tx_sent < boot->tx_len) {
        ssize_t n = send(boot->fd, boot->tx + boot->tx_sent, boot->tx_len - boot->tx_sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            weft__boot_fail(boot, WEFT_EPEER, "lost the peer during the handshake: %m");
            return;
        }
        if (n < 0)
            break;
        boot->tx_sent += (size_t)n;
    }
    bool want = boot->tx_sent < boot->tx_len;
    if (!want)
        boot->tx_len = boot->tx_sent = 0;
    if (want != boot->want_write) {
        boot->want_write = want;
        watch(boot, EPOLL_CTL_MOD);
    }
}

static enum weft_role role_of(const struct weft__boot *boot)
{
    return boot->active ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE;
}

void weft__boot_send(struct weft__boot *boot, uint16_t type, const void *body, size_t len)
{
    if (boot->fd < 0)
        return;
    size_t code = boot->auth.state == WEFT__AUTH_SEALED ? WEFT_MAC : 0;
    size_t frame = WEFT__FRAME_HEAD + len + code;
    if (boot->tx_len + frame > UNSENT_MAX) {
        weft__boot_fail(boot, WEFT_EPROTO, "the peer does not read what it asks for");
        return;
    }
    uint8_t *tx = frame > WEFT__FRAME_MAX ? NULL : realloc(boot->tx, boot->tx_len + frame);
    if (!tx) {
        weft__boot_fail(boot, -ENOMEM, "no memory for a handshake frame of %zu bytes", frame);
        return;
    }
    boot->tx = tx;
    struct weft__writer w = {tx + boot->tx_len, tx + boot->tx_len + frame, false};
    weft__put_u32(&w, MAGIC);
    weft__put_u16(&w, WEFT__BOOT_VERSION);
    weft__put_u16(&w, type);
    weft__put_u32(&w, (uint32_t)(len + code));
    weft__put(&w, body, len);
    if (code &&
        weft__auth_sign(&boot->auth, role_of(boot), tx + boot->tx_len, frame - code, w.at)) {
        weft__boot_fail(boot, -EIO, "%s", weft_last_error());
        return;
    }
    boot->tx_len += frame;
    flush(boot);
}

/* --- receiving ---------------------------------------------------------------------------------- */

/* Longest frame that may come now. */
static size_t frame_max(const struct weft__boot *boot)
{
    return weft__auth_pending(&boot->auth) ? WEFT__AUTH_FRAME : WEFT__FRAME_MAX;
}

/* Could this head be one of the peer's? If not, the boot has failed. */
static bool check_head(struct weft__boot *boot, uint32_t magic, uint16_t version, uint16_t type,
                       uint32_t len)
{
    bool sealed = boot->auth.state == WEFT__AUTH_SEALED;
    bool sound = magic == MAGIC && version == WEFT__BOOT_VERSION &&
                 len <= WEFT__FRAME_MAX - WEFT__FRAME_HEAD && (!sealed || len >= WEFT_MAC);
    if (sound)
        return !weft__auth_pending(&boot->auth) || weft__auth_expects(boot, type, len);
    if (sealed)
        weft__handshake_reject(boot, WEFT_EAUTH, "a frame of the handshake was tampered with");
    else if (magic != MAGIC)
        weft__boot_elsewhere(boot, WEFT_EPROTO, "what answers there is not a Weft endpoint");
    else if (version != WEFT__BOOT_VERSION)
        weft__boot_fail(boot, WEFT_EVERSION, "peer speaks version %u of the handshake, we %u",
                        version, WEFT__BOOT_VERSION);
    else
        weft__boot_fail(boot, WEFT_EPROTO, "handshake frame of %u bytes", len);
    return false;
}

/* One frame from the front of rx. Returns its size, 0 if it is not complete. */
static size_t take_frame(struct weft__boot *boot)
{
    if (boot->rx_len < WEFT__FRAME_HEAD)
        return 0;
    struct weft__reader r = {boot->rx, boot->rx + boot->rx_len, false};
    uint32_t magic = weft__get_u32(&r);
    uint16_t version = weft__get_u16(&r), type = weft__get_u16(&r);
    uint32_t len = weft__get_u32(&r);
    size_t frame = WEFT__FRAME_HEAD + len,
           code = boot->auth.state == WEFT__AUTH_SEALED ? WEFT_MAC : 0;
    if (!check_head(boot, magic, version, type, len) || boot->rx_len < frame)
        return 0;
    if (weft__auth_pending(&boot->auth))
        weft__auth_frame(boot, type, r.at);
    else if (code && weft__auth_check(&boot->auth, !role_of(boot), boot->rx, frame - code,
                                      boot->rx + frame - code))
        weft__handshake_reject(boot, WEFT_EAUTH, "a frame of the handshake was tampered with");
    else
        weft__handshake_frame(boot, type, r.at, len - code);
    return frame;
}

static bool make_rx(struct weft__boot *boot)
{
    size_t cap = frame_max(boot);
    uint8_t *rx = boot->rx_cap < cap ? realloc(boot->rx, cap) : boot->rx;
    if (!rx) {
        weft__boot_fail(boot, -ENOMEM, "no memory for a handshake");
        return false;
    }
    boot->rx = rx;
    boot->rx_cap = boot->rx_cap < cap ? cap : boot->rx_cap;
    return true;
}

static void receive(struct weft__boot *boot)
{
    if (!make_rx(boot))
        return;
    ssize_t n = recv(boot->fd, boot->rx + boot->rx_len, boot->rx_cap - boot->rx_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        weft__boot_elsewhere(boot, WEFT_EPEER, n ? "lost the peer: %m" : "the peer closed");
        return;
    }
    boot->rx_len += (size_t)n;
    size_t used;
    while (boot->fd >= 0 && (used = take_frame(boot))) {
        if (boot->connecting)
            return; /* to another address: what is left in rx was said by this one */
        boot->rx_len -= used;
        memmove(boot->rx, boot->rx + used, boot->rx_len);
    }
}

/* --- connecting --------------------------------------------------------------------------------- */

/* Try the next address. Ends the boot when there is none left. */
static void try_connect(struct weft__boot *boot, int error)
{
    while (boot->addr < boot->naddrs) {
        struct weft__address *a = &boot->addrs[boot->addr++];
        close_fd(boot);
        boot->fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (boot->fd < 0) {
            error = errno;
            continue;
        }
        boot->connecting = boot->want_write = true;
        if (connect(boot->fd, (struct sockaddr *)&a->sa, a->len) && errno != EINPROGRESS) {
            error = errno;
            continue;
        }
        pthread_mutex_lock(&boot->ep->lock); /* weft_conn_info may be asked already */
        boot->conn->peer_addr = *a;
        pthread_mutex_unlock(&boot->ep->lock);
        watch(boot, EPOLL_CTL_ADD);
        /* an address that swallows everything must not use up the time of the others */
        uint64_t now = weft_now(), left = boot->deadline > now ? boot->deadline - now : 0;
        boot->try_until = now + left / (uint64_t)(boot->naddrs - boot->addr + 1);
        return;
    }
    const char *hint = boot->conn->hint ? boot->conn->hint : "";
    weft__boot_fail(boot, -error, "%s%s", strerror(error), hint);
}

void weft__boot_elsewhere(struct weft__boot *boot, int status, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!is_greeting(boot) || boot->addr == boot->naddrs) {
        weft__boot_fail(boot, status, "%s", text);
        return;
    }
    weft_log(WEFT_LOG_DEBUG, "boot", "%s: trying the next address", text);
    boot->tx_len = boot->tx_sent = 0;
    boot->auth.state = boot->ep->secured ? WEFT__AUTH_CHALLENGE : WEFT__AUTH_OFF;
    memset(boot->auth.frames, 0, sizeof boot->auth.frames);
    try_connect(boot, EHOSTUNREACH);
}

static void connected(struct weft__boot *boot)
{
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(boot->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) {
        try_connect(boot, error);
        return;
    }
    boot->connecting = boot->want_write = false;
    boot->rx_len = 0; /* of an address that was tried before */
    watch(boot, EPOLL_CTL_MOD);
    if (boot->ep->secured)
        weft__auth_begin(boot);
    else
        weft__handshake_begin(boot);
}

static struct weft__boot *boot_new(struct weft__endpoint *ep, int fd, uint64_t deadline)
{
    struct weft__boot *boot = calloc(1, sizeof *boot);
    if (!boot)
        return NULL;
    boot->ep = ep;
    boot->fd = fd;
    boot->deadline = deadline;
    boot->auth.state = ep->secured ? WEFT__AUTH_CHALLENGE : WEFT__AUTH_OFF;
    boot->next = ep->boots;
    ep->boots = boot;
    ep->nboots++;
    atomic_fetch_add(&ep->booting, 1);
    return boot;
}

int weft__boot_connect(struct weft__conn *conn, const struct weft__address *list, int n,
                       const uint8_t *uuid, const char *policy, uint64_t deadline)
{
    struct weft__boot *boot = boot_new(conn->ep, -1, deadline);
    if (!boot) {
        pthread_mutex_lock(&conn->ep->lock);
        conn->handshaking = false;
        weft__changed(conn->ep);
        pthread_mutex_unlock(&conn->ep->lock);
        return weft_fail(-ENOMEM, "no memory for a handshake");
    }
    boot->conn = conn;
    boot->active = true;
    if (uuid)
        memcpy(boot->auth.uuid, uuid, sizeof boot->auth.uuid);
    boot->naddrs = n < (int)WEFT__ARRAY_LEN(boot->addrs) ? n : (int)WEFT__ARRAY_LEN(boot->addrs);
    memcpy(boot->addrs, list, (size_t)boot->naddrs * sizeof *list);
    snprintf(boot->policy, sizeof boot->policy, "%s", policy);
    try_connect(boot, EHOSTUNREACH);
    return 0;
}

/* --- the listener ------------------------------------------------------------------------------- */

/* How much a stranger has said. One that came only now is not called silent. */
static uint8_t known(const struct weft__boot *boot, uint64_t now)
{
    bool spoke = boot->rx_len || boot->auth.state > WEFT__AUTH_CHALLENGE;
    return boot->conn ? 2 : spoke || now - boot->since < YOUNG_NS;
}

/* One whose handshake may be ended to make room. Who has said hello has some time to go on. */
static bool may_go(const struct weft__boot *boot, uint64_t now)
{
    return boot->fd >= 0 && !boot->active && !boot->kept &&
           (!boot->conn || now - boot->since > YOUNG_NS);
}

/* Room for one more handshake, if need be that of another stranger. */
static bool has_room(struct weft__endpoint *ep)
{
    struct weft__boot *boots[EVICTABLE];
    struct weft_stranger list[EVICTABLE];
    uint64_t now = weft_now();
    int n = 0;
    if (ep->nguests < ep->backlog + STRANGERS)
        return true;
    for (struct weft__boot *boot = ep->boots; boot && n < EVICTABLE; boot = boot->next) {
        if (!may_go(boot, now))
            continue;
        boots[n] = boot;
        list[n++] = (struct weft_stranger){boot->since, boot->place, known(boot, now)};
    }
    if (n) /* swept later: an event of this round may name it */
        weft__boot_fail(boots[weft_stranger_choose(list, n)], WEFT_EPEER,
                        "made room for another one");
    return n > 0;
}

static void greet(struct weft__endpoint *ep, int fd, const struct sockaddr_storage *from)
{
    uint64_t limit = (uint64_t)weft_config_int("WEFT_CONNECT_TIMEOUT") * 1000000u;
    uint64_t now = weft_now();
    struct weft__boot *boot = has_room(ep) ? boot_new(ep, fd, now + limit) : NULL;
    if (!boot) {
        close(fd);
        return;
    }
    boot->since = now;
    boot->place = weft_stranger_from(from);
    ep->nguests++;
    watch(boot, EPOLL_CTL_ADD);
}

/* In one look no more come in than that: those who are there have their turns in between. */
static void accept_some(struct weft__endpoint *ep)
{
    for (int n = 0; n < ACCEPTS; n++) {
        struct sockaddr_storage from;
        int fd = weft_listener_accept(&ep->listener, &from, "boot");
        if (fd < 0)
            return;
        greet(ep, fd, &from);
    }
}

/* Returns the socket. */
static int listen_on(struct weft__address *a, const char *text)
{
    int one = 1, zero = 0, fd;
    fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return weft_fail(-errno, "cannot listen on '%s': %m", text);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->sa.ss_family == AF_INET6) /* "any" takes IPv4 peers too */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    socklen_t len = sizeof a->sa;
    if (bind(fd, (struct sockaddr *)&a->sa, a->len) || listen(fd, LISTEN_BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&a->sa, &len)) {
        int rc = weft_fail(-errno, "cannot listen on '%s': %m", text);
        close(fd);
        return rc;
    }
    a->len = len;
    return fd;
}

int weft__boot_open(struct weft__endpoint *ep, const char *text)
{
    int rc = weft__address_parse(text, &ep->bound);
    if (rc)
        return rc;
    ep->boot_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (ep->boot_epoll < 0)
        return weft_fail(-errno, "cannot make an epoll descriptor: %m");
    int fd = listen_on(&ep->bound, text);
    if (fd < 0)
        return fd;
    rc = weft_listener_open(&ep->listener, fd, ep->boot_epoll, NULL);
    if (rc) {
        weft_fail(rc, "cannot watch the listener: %m");
        close(fd);
    }
    return rc;
}

/* --- progress ----------------------------------------------------------------------------------- */

static void sweep(struct weft__endpoint *ep)
{
    for (struct weft__boot **at = &ep->boots; *at;) {
        struct weft__boot *boot = *at;
        if (boot->fd >= 0) {
            at = &boot->next;
            continue;
        }
        *at = boot->next;
        ep->nboots--;
        if (!boot->kept)
            atomic_fetch_sub(&ep->booting, 1);
        ep->nguests -= !boot->kept && !boot->active;
        free(boot->rx);
        free(boot->tx);
        explicit_bzero(&boot->auth, sizeof boot->auth);
        free(boot);
    }
}

static bool conn_gone(struct weft__boot *boot)
{
    struct weft__endpoint *ep = boot->ep;
    pthread_mutex_lock(&ep->lock);
    bool gone = boot->conn && boot->conn->state == WEFT_CONN_DOWN;
    pthread_mutex_unlock(&ep->lock);
    return gone;
}

static void step(struct weft__boot *boot, uint64_t now)
{
    if (boot->fd < 0)
        return;
    if (conn_gone(boot))
        detach(boot);
    else if (now >= boot->deadline)
        weft__boot_fail(boot, WEFT_ETIMEOUT, "%s in time%s%s",
                        boot->connecting ? "no answer" : "the handshake was not done",
                        *boot->reasons ? ": " : "", boot->reasons);
    else if (boot->connecting && now >= boot->try_until)
        try_connect(boot, ETIMEDOUT);
    else if (is_greeting(boot) && now >= boot->try_until)
        weft__boot_elsewhere(boot, WEFT_ETIMEOUT, "nobody says hello there");
    else if (!boot->connecting && !boot->kept)
        weft__handshake_step(boot);
}

static void event(struct weft__boot *boot, uint32_t events)
{
    if (boot->fd < 0)
        return;
    if (boot->connecting) {
        connected(boot);
        return;
    }
    if (events & EPOLLOUT)
        flush(boot);
    if (boot->fd >= 0 && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(boot);
}

int weft__boot_progress(struct weft__endpoint *ep)
{
    struct epoll_event events[32];
    if (pthread_mutex_trylock(&ep->boot_lock))
        return 0;
    weft_listener_look(&ep->listener);
    int n = epoll_wait(ep->boot_epoll, events, (int)WEFT__ARRAY_LEN(events), 0);
    int happened = n > 0 ? n : 0;
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr)
            event(events[i].data.ptr, events[i].events);
        else
            accept_some(ep);
    }
    if (ep->boots) {
        uint64_t now = weft_now();
        for (struct weft__boot *boot = ep->boots; boot; boot = boot->next)
            step(boot, now);
        sweep(ep);
    }
    if (atomic_load(&ep->reapable))
        weft__conn_reap(ep);
    pthread_mutex_unlock(&ep->boot_lock);
    return happened;
}

uint64_t weft__boot_deadline(struct weft__endpoint *ep)
{
    uint64_t nearest = UINT64_MAX, soon = weft_now() + JOIN_STEP_NS;
    if (!atomic_load(&ep->booting))
        return nearest;
    if (pthread_mutex_trylock(&ep->boot_lock))
        return soon;
    for (struct weft__boot *boot = ep->boots; boot; boot = boot->next) {
        bool trying = boot->connecting || (boot->fd >= 0 && boot->conn && is_greeting(boot));
        uint64_t at = trying ? boot->try_until : boot->deadline;
        if (weft__handshake_joining(boot) && soon < at)
            at = soon;
        if (at < nearest)
            nearest = at;
    }
    pthread_mutex_unlock(&ep->boot_lock);
    return nearest;
}

void weft__boot_close(struct weft__endpoint *ep)
{
    pthread_mutex_lock(&ep->boot_lock);
    for (struct weft__boot *boot = ep->boots; boot; boot = boot->next)
        if (boot->fd >= 0)
            detach(boot);
        else
            boot->conn = NULL;
    sweep(ep);
    pthread_mutex_unlock(&ep->boot_lock);
    weft_listener_close(&ep->listener);
    if (ep->boot_epoll >= 0)
        close(ep->boot_epoll);
    ep->boot_epoll = -1;
}
