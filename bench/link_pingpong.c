/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ping-pong over one link of a transport, without an endpoint: what the transport itself takes. Two processes, both of
 * which poll; each message is looked at.
 *
 *     link_pingpong TRANSPORT BYTES ROUND-TRIPS
 *
 * Prints JSON: half a round trip in microseconds, as the mean of all.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "registry.h"
#include "util.h"
#include "weft/transport.h"

#define MOST_BYTES 65536
#define MOST_DEVICES 16
#define COMPS 32
#define WAIT_NS (WAIT_S * 1000000000ull) /* for the other side, in anything */
#define LOOK_POLLS 4096      /* between looks at the clock */
#define WAIT_S 20

struct end {
    const struct weft_transport_ops *ops;
    struct weft_nic *nic;
    struct weft_link *link;
    bool active;
    bool done;          /* all messages have been exchanged */
    uint32_t under_way; /* sends that have not ended */
    uint64_t heard;     /* messages of the other side */
    uint64_t len;
    uint8_t out[MOST_BYTES];
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "link_pingpong: %s: %s\n", what, weft_last_error());
    exit(1);
}

/* What message n carries at both ends of it. */
static uint64_t word_of(uint64_t n, bool active)
{
    return (n << 1 | active) * 0x9E3779B97F4A7C15u;
}

static void check(const struct end *e, const struct weft_comp *comp)
{
    uint64_t first = 0, last = 0, want = word_of(e->heard, !e->active);
    if (comp->len == e->len && e->len >= sizeof first) {
        memcpy(&first, comp->data, sizeof first);
        memcpy(&last, (const uint8_t *)comp->data + e->len - sizeof last, sizeof last);
    }
    if (comp->len != e->len || (e->len >= sizeof first && (first != want || last != want))) {
        fprintf(stderr, "link_pingpong: message %" PRIu64 " is wrong\n", e->heard);
        exit(1);
    }
}

static void poll_once(struct end *e)
{
    struct weft_comp comps[COMPS];
    int n = e->ops->poll(e->nic, comps, COMPS);
    if (n < 0)
        die("poll");
    for (int i = 0; i < n; i++) {
        if (comps[i].op == WEFT_OP_LINK_DOWN && e->done)
            continue; /* the other side was told, and has gone */
        if (comps[i].op == WEFT_OP_LINK_DOWN || comps[i].status < 0) {
            fprintf(stderr, "link_pingpong: %s: %s\n", weft_op_name(comps[i].op), weft_strerror(comps[i].status));
            exit(1);
        }
        if (comps[i].op != WEFT_OP_RECV) {
            e->under_way--;
            continue;
        }
        check(e, &comps[i]);
        e->heard++;
        if (e->nic->attr.rx_scatter)
            e->ops->rx_release(e->nic, &comps[i]);
    }
}

struct patience {
    uint32_t polls;
    uint64_t until; /* 0: the clock was not looked at yet */
};

static void poll_again(struct end *e, struct patience *p, const char *what)
{
    poll_once(e);
    if (++p->polls % LOOK_POLLS)
        return;
    uint64_t now = weft_now();
    p->until = p->until ? p->until : now + WAIT_NS;
    if (now > p->until) {
        weft_fail(WEFT_ETIMEOUT, "waited for %d s", WAIT_S);
        die(what);
    }
}

/* Poll until that many messages of the other side are here. */
static void hear(struct end *e, uint64_t upto)
{
    struct patience p = {0};
    while (e->heard < upto)
        poll_again(e, &p, "a message");
}

static void say(struct end *e, uint64_t n)
{
    uint64_t word = word_of(n, e->active);
    if (e->len >= sizeof word) {
        memcpy(e->out, &word, sizeof word);
        memcpy(e->out + e->len - sizeof word, &word, sizeof word);
    }
    struct weft_cmd cmd = {.op = WEFT_OP_SEND,
                           .flags = WEFT_CMD_QUIET | (e->len <= e->nic->attr.max_inline ? WEFT_CMD_INLINE : 0),
                           .len = e->len,
                           .ctx = 1,
                           .one = {e->out, e->len, NULL}};
    struct patience p = {0};
    int rc;
    while ((rc = e->ops->post(e->link, &cmd, 1)) == 0)
        poll_again(e, &p, "room for a message");
    if (rc < 0)
        die("post");
    e->under_way++;
}

static void open_nic(struct end *e, const char *name)
{
    const struct weft_transport *t = weft__transport_find(name);
    struct weft_device_info list[MOST_DEVICES];
    if (!t)
        die(name);
    e->ops = t->ops;
    int n = e->ops->probe(list, MOST_DEVICES), at = 0;
    while (at < n && at < MOST_DEVICES && !list[at].usable)
        at++;
    if (n < 0)
        die(name);
    if (at == n || at == MOST_DEVICES) {
        fprintf(stderr, "link_pingpong: %s has no device here: %s\n", name, n ? list[0].reason : weft_last_error());
        exit(1);
    }
    struct weft_nic_opts opts = {.device = list[at].name};
    if (e->ops->open(&opts, &e->nic))
        die("open");
    if (e->len > e->nic->attr.max_send || e->len > MOST_BYTES) {
        weft_fail(-EMSGSIZE, "%" PRIu64 " bytes are too many for one message", e->len);
        die("send");
    }
}

/* The passive end's address goes first (weft_link_address_fn). */
static void join(struct end *e, int fd)
{
    uint8_t mine[WEFT_LINK_ADDRESS_MAX], theirs[WEFT_LINK_ADDRESS_MAX];
    struct weft_link_opts opts = {.role = e->active ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
    ssize_t got = e->active ? recv(fd, theirs, sizeof theirs, 0) : 0;
    if (e->ops->link_open(e->nic, &opts, &e->link))
        die("link_open");
    int len = e->ops->link_address(e->link, mine, sizeof mine);
    if (len < 0 || send(fd, mine, (size_t)len, MSG_NOSIGNAL) != len)
        die("link_address");
    if (!e->active)
        got = recv(fd, theirs, sizeof theirs, 0);
    if (got <= 0)
        die("the other side's address");
    int rc;
    for (uint64_t until = weft_now() + WAIT_NS; (rc = e->ops->link_connect(e->link, theirs, (size_t)got)) == WEFT_EAGAIN;) {
        poll_once(e);
        if (weft_now() > until)
            rc = weft_fail(WEFT_ETIMEOUT, "it does not come up");
        if (rc != WEFT_EAGAIN)
            break;
    }
    if (rc)
        die("link_connect");
}

/* The passive end answers as many, and goes when the other is done. */
static void run(struct end *e, int fd, uint64_t trips)
{
    uint64_t warm = trips / 10, begin = 0;
    for (uint64_t i = 0; i < warm + trips; i++) {
        if (i == warm)
            begin = weft_now();
        if (e->active)
            say(e, i);
        hear(e, i + 1);
        if (!e->active)
            say(e, i);
    }
    double us = (double)(weft_now() - begin) / 1e3;
    char done = 1;
    e->done = true;
    if (e->active) {
        printf("{\"transport\": \"%s\", \"bytes\": %" PRIu64 ", \"trips\": %" PRIu64 ", \"half_us\": %.3f, \"verified\": true}\n",
               e->nic->transport->name, e->len, trips, us / 2 / (double)trips);
        if (send(fd, &done, 1, MSG_NOSIGNAL) != 1)
            die("the other side");
    } else {
        struct patience p = {0};
        while (recv(fd, &done, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
            poll_again(e, &p, "the end");
    }
    e->ops->link_close(e->link);
    e->ops->close(e->nic);
}

int main(int argc, char **argv)
{
    static struct end e;
    char *rest[2];
    int fd[2], status = 0;
    if (argc != 4) {
        fputs("Usage: link_pingpong TRANSPORT BYTES ROUND-TRIPS\n", stderr);
        return 2;
    }
    e.len = strtoull(argv[2], &rest[0], 10);
    uint64_t trips = strtoull(argv[3], &rest[1], 10);
    if (*rest[0] || *rest[1] || trips == 0) {
        fputs("link_pingpong: BYTES and ROUND-TRIPS are numbers\n", stderr);
        return 2;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd))
        die("socketpair");
    for (int i = 0; i < 2; i++)
        setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = WAIT_S}, sizeof(struct timeval));
    pid_t child = fork(); /* before the library has done anything */
    if (child < 0)
        die("fork");
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    e.active = child > 0;
    close(fd[e.active]);
    open_nic(&e, argv[1]);
    join(&e, fd[!e.active]);
    run(&e, fd[!e.active], trips);
    if (child == 0)
        return 0;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
