/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP between simulated hosts, as a program sees it: bytes wait in the sender's kernel, travel,
 * wait in the receiver's; connections are refused, reset, cut. A stream has two ends; what goes to
 * an end is in the pipe of that end.
 */
#include "net.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define MAX_STREAMS 4096
#define MAX_LISTENERS 256
#define FIRST_PORT 20000
#define PIPE_LEAST 4096
#define SYN_AGAIN SIM_S
#define SYN_GIVE_UP (127 * (uint64_t)SIM_S)
#define GIVE_UP (924 * (uint64_t)SIM_S) /* ... and after so long the kernel gives up */
#define LANE_LISTENER                                                                             \
    1 /* the listener of a process that is its first lane's; before: the endpoint's */
#define LATE_MOST (5 * SIM_MS)    /* ... by which the last bytes of a lost one are held up */
#define JOIN_MOST 500             /* bytes with which a socket of a link is joined, and more */
#define HEAL_MOST (1000 * SIM_MS) /* until the next resend after a cut */

static struct stream *streams[MAX_STREAMS];
static struct listener *listeners[MAX_LISTENERS];
static int nstreams, nlisteners, next_port;
static bool cuts[SIM_MAX_HOSTS][SIM_MAX_HOSTS], off[SIM_MAX_HOSTS];
static uint64_t cut_at[SIM_MAX_HOSTS][SIM_MAX_HOSTS];
static uint32_t refuse_every;

int sim_host_of_self(void)
{
    return sim_self() ? sim_self()->host : 0;
}

bool sim_is_cut(int a, int b)
{
    return (a != b && cuts[a][b]) || off[a] || off[b];
}

bool sim_stream_dark(const struct stream *s)
{
    return sim_is_cut(s->host, s->peer_host);
}

static uint64_t travel(const struct stream *s)
{
    uint64_t jitter = sim.plan.jitter ? sim_random() % sim.plan.jitter : 0;
    return (s->host == s->peer_host ? 5 * SIM_US : sim.plan.latency) + jitter;
}

/* --- pipes --------------------------------------------------------------------------------- */

static void tick(void *arg);

static void tick_at(struct stream *to, uint64_t when)
{
    if (to->in.ticking)
        return;
    to->in.ticking = true;
    sim_at(when, tick, to);
}

void sim_chunk_send(struct stream *to, enum sim_chunk_kind kind, size_t len)
{
    struct pipe *in = &to->in;
    struct chunk *chunk = sim_alloc(sizeof *chunk);
    uint64_t due = sim.now + travel(to);
    if (due < in->last_due)
        due = in->last_due;
    *chunk = (struct chunk){.kind = kind, .len = len, .due = due, .sent = sim.now};
    in->last_due = due;
    if (!in->chunks)
        in->tail = &in->chunks;
    *in->tail = chunk;
    in->tail = &chunk->next;
    tick_at(to, due);
}

static void drop_pipe(struct pipe *in)
{
    in->chunks = NULL;
    in->len = in->arrived;
}

static void fail_stream(struct stream *s, int error)
{
    if (s->reset || s->state == STREAM_FAILED)
        return;
    sim_trace("stream fails", s->port, s->peer_port, error);
    s->error = error;
    s->reset = true;
    drop_pipe(&s->in);
    if (s->peer) {
        drop_pipe(&s->peer->in);
    }
    s->edges++;
    sim_changed();
}

static void chunk_arrives(struct stream *to, const struct chunk *chunk)
{
    struct stream *from = to->peer;
    from->heard = to->heard = sim.now;
    if (!to->open || to->reset) {
        to->in.len = to->in.arrived = 0;
        if (chunk->kind != CHUNK_RESET && from->open && !from->reset && !to->reset)
            sim_chunk_send(from, CHUNK_RESET, 0);
        return;
    }
    if (chunk->kind == CHUNK_DATA)
        to->in.arrived += chunk->len;
    else if (chunk->kind == CHUNK_END)
        to->end_seen = true;
    else
        fail_stream(to, ECONNRESET);
    to->edges++;
    sim_changed();
}

/* The oldest chunk is due. */
static void tick(void *arg)
{
    struct stream *to = arg;
    struct pipe *in = &to->in;
    in->ticking = false;
    if (!in->chunks || sim_stream_dark(to))
        return; /* goes on when the cut heals */
    struct chunk *chunk = in->chunks;
    if (chunk->due <= sim.now) {
        in->chunks = chunk->next;
        chunk_arrives(to, chunk);
    }
    if (in->chunks)
        tick_at(to, in->chunks->due);
}

/* A reset is told by one packet, which may be lost, and may overtake. */
static void send_reset(struct stream *s)
{
    struct stream *peer = s->peer;
    if (!peer || !peer->open || peer->reset || sim_stream_dark(s))
        return;
    if (sim_once_in(4))
        drop_pipe(&peer->in);
    sim_chunk_send(peer, CHUNK_RESET, 0);
}

/* --- silence ------------------------------------------------------------------------------- */

static uint64_t keepalive_after(const struct stream *s)
{
    if (!s->idle)
        return 2 * 3600 * (uint64_t)SIM_S;
    return ((uint64_t)s->idle + (uint64_t)s->interval * (uint64_t)s->count) * SIM_S;
}

/* Some time after the last sign of life: still nothing? */
static void guard(void *arg)
{
    struct stream *s = arg;
    s->guarded = false;
    if (!s->open || s->reset || s->state != STREAM_UP)
        return;
    if (sim_stream_dark(s) || s->peer->vanished) {
        bool owed = s->peer->in.chunks != NULL;
        uint64_t limit = owed ? GIVE_UP : keepalive_after(s);
        if (!sim_stream_dark(s))
            fail_stream(s, ECONNRESET); /* the host is back and knows nothing */
        else if (sim.now - s->heard >= limit)
            fail_stream(s, ETIMEDOUT);
    } else if (!s->peer->open && !s->end_seen) {
        fail_stream(s, ECONNRESET); /* its reset was lost */
    } else {
        return;
    }
    if (!s->reset) {
        s->guarded = true;
        sim_at(sim.now + keepalive_after(s), guard, s);
    }
}

static void guard_all(void)
{
    for (int i = 0; i < nstreams; i++) {
        struct stream *s = streams[i];
        if (s->guarded || !s->open || s->state != STREAM_UP)
            continue;
        s->guarded = true;
        sim_at(sim.now + keepalive_after(s), guard, s);
    }
}

uint64_t sim_cut_since(int a, int b)
{
    return cuts[a][b] ? cut_at[a][b] : SIM_NEVER;
}

/* What was held up by a cut goes on. */
static void resume_all(void)
{
    for (int i = 0; i < nstreams; i++)
        if (streams[i]->in.chunks && !sim_stream_dark(streams[i]))
            tick_at(streams[i], sim.now + sim_random() % HEAL_MOST);
}

void sim_cut(int a, int b, bool cut)
{
    sim_trace(cut ? "cut" : "heal", a, b, 0);
    if (cut && !cuts[a][b])
        cut_at[a][b] = cut_at[b][a] = sim.now;
    cuts[a][b] = cuts[b][a] = cut;
    guard_all();
    if (!cut)
        resume_all();
}

void sim_power(int host, bool on)
{
    sim_trace(on ? "power on" : "power off", host, 0, 0);
    off[host] = !on;
    guard_all();
    if (on)
        resume_all();
}

void sim_streams_vanish(const struct sim_proc *proc)
{
    for (int i = 0; i < nstreams; i++)
        if (streams[i]->proc == proc && streams[i]->open)
            streams[i]->vanished = true;
    for (int i = 0; i < nstreams; i++) /* theirs never arrives, either */
        if (streams[i]->proc == proc && streams[i]->peer)
            drop_pipe(&streams[i]->peer->in);
}

void sim_reset_one(void)
{
    if (!nstreams)
        return;
    struct stream *s = streams[sim_pick((uint32_t)nstreams)];
    if (!s->open || s->state != STREAM_UP || s->reset)
        return;
    sim_trace("reset", s->port, s->peer_port, 0);
    struct stream *peer = s->peer;
    fail_stream(s, ECONNRESET);
    if (peer->open)
        fail_stream(peer, ECONNRESET);
}

/* One end loses a connection; the other hears of it behind what is on its way, which may take its
 * time: that end has to do with what it brings, whatever the other has done meanwhile. */
static void lose(struct stream *s)
{
    uint64_t late = sim_once_in(2) ? sim_random() % LATE_MOST : 0;
    for (struct chunk *chunk = s->peer->in.chunks; chunk; chunk = chunk->next)
        chunk->due += late;
    s->peer->in.last_due += late;
    s->error = ECONNRESET;
    s->reset = true;
    drop_pipe(&s->in);
    s->edges++;
    sim_chunk_send(s->peer, CHUNK_RESET, 0);
    sim_changed();
}

/* Of the first link of a conn that is up: its sockets have carried more than it takes to join. */
void sim_reset_link(void)
{
    uint32_t first = nstreams ? sim_pick((uint32_t)nstreams) : 0;
    for (int i = 0; i < nstreams; i++) {
        struct stream *s = streams[((int)first + i) % nstreams];
        if (!s->of_first || !s->open || s->state != STREAM_UP || s->reset || !s->peer->open ||
            s->peer->reset || s->carried + s->peer->carried < JOIN_MOST)
            continue;
        struct stream *loser = sim_once_in(2) ? s : s->peer;
        sim_trace("link reset", loser->port, loser->peer_port, 0);
        lose(loser);
        return;
    }
}

void sim_refuse(uint32_t every)
{
    refuse_every = every;
}

/* --- addresses ----------------------------------------------------------------------------- */

/* 10.0.0.N and fd00::N are host N - 1; loopback is the host itself. */
static int host_of(const struct sockaddr *addr, int self)
{
    if (addr->sa_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr);
        return ip >> 24 == 127 ? self : (int)(ip & 0xff) - 1;
    }
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(in6) ? self : in6->s6_addr[15] - 1;
}

static int port_of(const struct sockaddr *addr)
{
    return ntohs(((const struct sockaddr_in *)addr)->sin_port);
}

/* --- making connections -------------------------------------------------------------------- */

static struct stream *stream_new(struct sim_proc *proc, int host, bool v6)
{
    SIM_CHECK(nstreams < MAX_STREAMS, "the simulation has too many connections");
    struct stream *s = sim_alloc(sizeof *s);
    *s = (struct stream){.proc = proc, .host = host, .peer_host = host, .v6 = v6, .open = true};
    streams[nstreams++] = s;
    return s;
}

static void pipe_open(struct pipe *in)
{
    in->cap = PIPE_LEAST + sim_pick(sim.plan.pipe_most);
    in->data = sim_alloc(in->cap);
}

static struct listener *listener_at(int host, int port, bool v6)
{
    for (int i = 0; i < nlisteners; i++) {
        struct listener *l = listeners[i];
        if (l->open && !l->packets && l->host == host && l->port == port && l->v6 == v6)
            return l;
    }
    return NULL;
}

static void connected(void *arg)
{
    struct stream *s = arg;
    if (s->state != STREAM_CONNECTING)
        return;
    s->state = STREAM_UP;
    s->heard = sim.now;
    s->edges++;
    if (!s->open && !s->end_sent)
        sim_chunk_send(s->peer, CHUNK_END, 0);
    sim_changed();
}

static void refused(void *arg)
{
    struct stream *s = arg;
    s->state = STREAM_FAILED;
    s->error = ECONNREFUSED;
    s->edges++;
    sim_changed();
}

static void join(struct stream *s, struct listener *l)
{
    struct stream *other = stream_new(NULL, s->peer_host, s->v6);
    other->port = s->peer_port;
    other->peer_host = s->host;
    other->peer_port = s->port;
    other->state = STREAM_UP;
    other->heard = sim.now;
    other->peer = s;
    s->peer = other;
    s->of_first = l->first;
    pipe_open(&s->in);
    pipe_open(&other->in);
    l->queue[l->nqueue++] = other;
    sim_at(sim.now + travel(s), connected, s);
    sim_changed();
}

/* The first packet of a connection arrives, or is sent again. */
static void syn(void *arg)
{
    struct stream *s = arg;
    if (!s->open)
        return;
    struct listener *l = listener_at(s->peer_host, s->peer_port, s->v6);
    if (sim_stream_dark(s) || (l && l->nqueue == SIM_QUEUE)) {
        if (sim.now - s->called < SYN_GIVE_UP) {
            sim_at(sim.now + SYN_AGAIN, syn, s);
            return;
        }
        s->state = STREAM_FAILED;
        s->error = ETIMEDOUT;
        sim_changed();
    } else if (!l || sim_once_in(refuse_every)) {
        sim_at(sim.now + travel(s), refused, s);
    } else {
        join(s, l);
    }
}

int __wrap_socket(int domain, int type, int protocol)
{
    (void)protocol;
    sim_step();
    if (domain == AF_UNIX)
        return sim_fd_new(sim_file_new(SIM_PACKET, sim_packet_new()));
    if (type & SOCK_DGRAM) { /* to ask whose an address is */
        struct stream *asks = sim_alloc(sizeof *asks);
        asks->host = sim_host_of_self();
        asks->asks = true;
        asks->v6 = domain == AF_INET6;
        return sim_fd_new(sim_file_new(SIM_STREAM, asks));
    }
    struct stream *s = stream_new(sim_self(), sim_host_of_self(), domain == AF_INET6);
    return sim_fd_new(sim_file_new(SIM_STREAM, s));
}

int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t len)
{
    struct sim_file *file = sim_fd(fd, -1);
    if (file->kind == SIM_PACKET)
        return sim_packet_bind(file, addr, len);
    struct stream *s = file->object;
    int port = port_of(addr);
    if (host_of(addr, s->host) != s->host) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    s->port = port ? port : FIRST_PORT + next_port++;
    return 0;
}

int __wrap_listen(int fd, int backlog)
{
    (void)backlog;
    struct sim_file *file = sim_fd(fd, -1);
    SIM_CHECK(nlisteners < MAX_LISTENERS, "the simulation has too many listeners");
    struct listener *l = sim_alloc(sizeof *l);
    if (file->kind == SIM_PACKET) {
        *l = (struct listener){.open = true, .packets = true, .unix_listener = file->object};
    } else {
        struct stream *s = file->object;
        *l = (struct listener){.host = s->host,
                               .port = s->port,
                               .open = true,
                               .v6 = s->v6,
                               .first = sim_self()->nlisteners++ == LANE_LISTENER};
        s->open = false;
        if (listener_at(l->host, l->port, l->v6)) {
            errno = EADDRINUSE;
            return -1;
        }
    }
    listeners[nlisteners++] = l;
    file->kind = SIM_LISTENER;
    file->object = l;
    sim_trace("listen", fd, l->host, l->port);
    return 0;
}

uint32_t sim_listener_events(const void *object)
{
    const struct listener *l = object;
    return l->packets ? sim_packet_events(l->unix_listener) : l->nqueue ? EPOLLIN : 0;
}

void sim_listener_close(void *object)
{
    struct listener *l = object;
    l->open = false;
    if (l->packets)
        sim_packet_close(l->unix_listener);
    for (int i = 0; i < l->nqueue; i++) {
        l->queue[i]->open = false;
        send_reset(l->queue[i]);
    }
    l->nqueue = 0;
}

int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    (void)addr;
    (void)len;
    (void)flags;
    struct listener *l = sim_fd(fd, SIM_LISTENER)->object;
    sim_step();
    if (l->packets)
        return sim_packet_accept(l->unix_listener);
    if (!l->nqueue) {
        errno = EAGAIN;
        return -1;
    }
    struct stream *s = l->queue[0];
    int got = sim_fd_new(sim_file_new(SIM_STREAM, s));
    if (got < 0)
        return -1;
    memmove(l->queue, l->queue + 1, (size_t)--l->nqueue * sizeof *l->queue);
    s->proc = sim_self();
    sim_trace("accept", fd, got, s->peer_port);
    return got;
}

/* The program takes back what it has lent. On the same host the peer knows at once. */
static void give_up(struct stream *s)
{
    sim_trace("gives up", s->port, s->peer_port, 0);
    if (s->state != STREAM_UP)
        return;
    bool same_host = s->host == s->peer_host;
    if (same_host && s->peer->open)
        fail_stream(s->peer, ECONNRESET);
    else if (!s->reset)
        send_reset(s);
    s->reset = true;
    drop_pipe(&s->in);
    sim_loans_end(&s->peer->in, same_host);
    sim_changed();
}

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    struct sim_file *file = sim_fd(fd, -1);
    sim_step();
    if (file->kind == SIM_PACKET)
        return sim_packet_connect(file, addr, len);
    struct stream *s = file->object;
    if (s->asks)
        return 0;
    if (addr->sa_family == AF_UNSPEC) {
        give_up(s);
        return 0;
    }
    s->peer_host = host_of(addr, s->host);
    s->peer_port = port_of(addr);
    s->port = FIRST_PORT + next_port++;
    s->state = STREAM_CONNECTING;
    s->called = sim.now;
    sim_trace("connect", fd, s->peer_host, s->peer_port);
    if (s->peer_host < 0 || s->peer_host >= SIM_MAX_HOSTS) {
        errno = ENETUNREACH;
        return -1;
    }
    sim_at(sim.now + travel(s), syn, s);
    errno = EINPROGRESS;
    return -1;
}

/* --- the life of a connection -------------------------------------------------------------- */

uint32_t sim_stream_events(const void *object)
{
    const struct stream *s = object;
    if (s->state == STREAM_NEW)
        return EPOLLOUT | EPOLLHUP;
    if (s->state == STREAM_CONNECTING)
        return 0;
    if (s->state == STREAM_FAILED || s->reset)
        return EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP | (s->error ? EPOLLERR : 0);
    uint32_t events = 0;
    if (s->in.arrived || s->end_seen || s->read_shut)
        events |= EPOLLIN;
    if (s->end_seen || s->read_shut)
        events |= EPOLLRDHUP;
    if ((s->end_seen || s->read_shut) && s->end_sent)
        events |= EPOLLHUP;
    const struct pipe *out = &s->peer->in;
    if (s->end_sent || out->cap - out->len >= out->cap / 3)
        events |= EPOLLOUT;
    return events;
}

uint64_t sim_stream_edges(const void *object)
{
    return ((const struct stream *)object)->edges;
}

static void end_stream(struct stream *s)
{
    if (!s->end_sent && s->state == STREAM_UP && !s->reset)
        sim_chunk_send(s->peer, CHUNK_END, 0);
    s->end_sent = true;
}

void sim_stream_close(void *object)
{
    struct stream *s = object;
    bool unread = s->in.arrived > 0;
    s->open = false;
    if (s->vanished || s->state != STREAM_UP || s->reset)
        return;
    SIM_CHECK(s->proc->dead || !s->peer->open || !s->peer->in.loans || s->peer->reset,
              "a connection is closed, and its peer receives lent bytes");
    if (unread)
        send_reset(s);
    else
        end_stream(s);
    s->in.len = s->in.arrived = 0;
}

int __wrap_shutdown(int fd, int how)
{
    (void)how; /* the library only shuts both */
    struct sim_file *file = sim_fd(fd, -1);
    sim_trace("shutdown", fd, 0, 0);
    if (file->kind == SIM_PACKET) {
        sim_packet_shutdown(file->object);
    } else if (file->kind == SIM_STREAM) {
        struct stream *s = file->object;
        end_stream(s);
        s->read_shut = true;
        s->edges++;
    }
    sim_changed();
    sim_step();
    return 0;
}
