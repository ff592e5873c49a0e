/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sockets alone can do, with the work that Weft's tcp has: a floor for bench/p2p.
 *
 * `write`: messages of one size, each behind a head of 16 bytes, from a ring of slots of the
 * initiator to the same slots of the target, which receives them into their place and answers how
 * many it has; no more are under way than the ring has slots. Message i takes socket i % sockets.
 * By default each side is one thread that spins, as in weft_perf; with --threads each socket has a
 * thread on either side, which sleeps in the kernel. `pingpong`: a message to and fro, both spin.
 *
 * Both processes fill their memory before the clock starts, and the target compares every byte
 * of it afterwards. One line of JSON goes to standard output.
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bare.h"

#define MAX_SOCKETS 16
/* As in transports/tcp: the receive buffer for heads and small payloads, the least that is received
 * in place, messages given to one system call. */
#define STAGING 131072
#define DIRECT_MIN 4096
#define GATHER 48
#define PAGE 4096
#define SPINS 64 /* turns in which nothing happens, before the core is offered to others */

struct head {
    uint64_t message, len;
};

struct shape {
    bool pingpong, threads, small_pages;
    int sockets, sndbuf;
    uint64_t size, depth, iters;
};

/* A socket, and the messages on it: how many were sent, are complete, of how many. */
struct lane {
    const struct shape *shape;
    int fd, index;
    uint8_t *memory;
    struct head heads[GATHER];
    uint64_t offset; /* of the message that is under way, with its head */
    uint64_t sent, done, total;
    uint64_t told;            /* target: answered; initiator: of the next answer, as far as here */
    uint32_t first, last;     /* target: of staging */
    uint8_t staging[STAGING]; /* initiator: partial answer */
};

/* What a side says when it has ended. */
struct outcome {
    double seconds, cpu_s, p50_us;
    uint64_t wrong;
};

/* --- the initiator ----------------------------------------------------------------------------- */

static uint64_t lane_window(const struct shape *s)
{
    uint64_t each = s->depth / (uint64_t)s->sockets;
    return each ? each : 1;
}

/* Where the lane's n-th message is. */
static uint8_t *slot_of(const struct lane *l, uint64_t n)
{
    uint64_t slot = n % lane_window(l->shape) * (uint64_t)l->shape->sockets + (uint64_t)l->index;
    return l->memory + slot % l->shape->depth * l->shape->size;
}

static ssize_t checked(ssize_t n, const char *what)
{
    if (n == 0 || (n < 0 && errno != EAGAIN))
        bare_die(what);
    return n < 0 ? 0 : n;
}

static ssize_t send_some(struct lane *l, int flags)
{
    struct iovec iov[2 * GATHER];
    const struct shape *s = l->shape;
    uint64_t skip = l->offset;
    int n = 0;
    for (uint64_t i = l->sent; n < 2 * GATHER && i < l->total && i < l->done + lane_window(s);
         i++) {
        struct head *head = &l->heads[n / 2];
        *head = (struct head){.message = i, .len = s->size};
        iov[n++] = (struct iovec){head, sizeof *head};
        iov[n++] = (struct iovec){slot_of(l, i), s->size};
    }
    for (int i = 0; i < n && skip; i++) {
        uint64_t part = skip < iov[i].iov_len ? skip : iov[i].iov_len;
        iov[i].iov_base = (uint8_t *)iov[i].iov_base + part;
        iov[i].iov_len -= part;
        skip -= part;
    }
    if (n == 0)
        return 0;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t sent = checked(sendmsg(l->fd, &msg, flags | MSG_NOSIGNAL), "send");
    l->offset += (uint64_t)sent;
    l->sent += l->offset / (sizeof(struct head) + s->size);
    l->offset %= sizeof(struct head) + s->size;
    return sent;
}

static ssize_t hear_answers(struct lane *l, int flags)
{
    ssize_t n = checked(recv(l->fd, l->staging + l->told, STAGING - l->told, flags), "answer");
    uint64_t have = l->told + (uint64_t)n, words = have / sizeof(uint64_t);
    if (words)
        memcpy(&l->done, l->staging + (words - 1) * sizeof(uint64_t), sizeof(uint64_t));
    l->told = have % sizeof(uint64_t);
    memmove(l->staging, l->staging + words * sizeof(uint64_t), l->told);
    return n;
}

static bool initiator_turn(struct lane *l)
{
    bool open = l->sent < l->total && l->sent < l->done + lane_window(l->shape);
    bool sleeps = l->shape->threads;
    ssize_t n = open ? send_some(l, sleeps ? 0 : MSG_DONTWAIT) : 0;
    if (l->done < l->sent)
        n += hear_answers(l, sleeps && !open ? 0 : MSG_DONTWAIT);
    return n > 0;
}

/* --- the target -------------------------------------------------------------------------------- */

/* Take what is in staging: heads, and payload behind them. */
static void take_staging(struct lane *l)
{
    uint64_t frame = sizeof(struct head) + l->shape->size;
    while (l->last > l->first) {
        uint8_t *from = l->staging + l->first;
        uint64_t n = l->last - l->first;
        if (l->offset == 0 && n < sizeof(struct head))
            break;
        if (l->offset == 0) {
            struct head head;
            memcpy(&head, from, sizeof head);
            if (head.message != l->done || head.len != l->shape->size)
                bare_die("a head is wrong");
            l->offset = n = sizeof head;
        } else {
            n = n < frame - l->offset ? n : frame - l->offset;
            memcpy(slot_of(l, l->done) + l->offset - sizeof(struct head), from, n);
            l->offset += n;
        }
        l->first += (uint32_t)n;
        if (l->offset == frame) {
            l->offset = 0;
            l->done++;
        }
    }
    memmove(l->staging, l->staging + l->first, l->last - l->first);
    l->last -= l->first;
    l->first = 0;
}

static ssize_t receive_some(struct lane *l, int flags)
{
    uint64_t frame = sizeof(struct head) + l->shape->size, direct = 0;
    struct iovec iov[2];
    int n = 0;
    if (l->offset && frame - l->offset >= DIRECT_MIN) {
        direct = frame - l->offset;
        iov[n++] = (struct iovec){slot_of(l, l->done) + l->offset - sizeof(struct head), direct};
    }
    size_t behind = direct ? sizeof(struct head) : STAGING - l->last;
    iov[n++] = (struct iovec){l->staging + l->last, behind};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t got = checked(recvmsg(l->fd, &msg, flags), "receive");
    uint64_t placed = (uint64_t)got < direct ? (uint64_t)got : direct;
    l->offset += placed;
    l->last += (uint32_t)((uint64_t)got - placed);
    if (l->offset == frame) {
        l->offset = 0;
        l->done++;
    }
    take_staging(l);
    return got;
}

static bool target_turn(struct lane *l)
{
    ssize_t n = receive_some(l, l->shape->threads ? 0 : MSG_DONTWAIT);
    if (l->done > l->told) {
        l->told = l->done;
        if (send(l->fd, &l->told, sizeof l->told, MSG_NOSIGNAL) != sizeof l->told)
            bare_die("answer");
    }
    return n > 0;
}

/* --- lanes in one thread, or one thread each --------------------------------------------------- */

typedef bool turn_fn(struct lane *lane);

static bool over(const struct lane *l)
{
    return l->done == l->total;
}

static void *initiator_lane(void *arg)
{
    while (!over(arg))
        initiator_turn(arg);
    return NULL;
}

static void *target_lane(void *arg)
{
    while (!over(arg))
        target_turn(arg);
    return NULL;
}

static void drive_threads(struct lane *lanes, int n, void *(*body)(void *))
{
    pthread_t threads[MAX_SOCKETS];
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, body, &lanes[i]))
            bare_die("thread");
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void drive_spinning(struct lane *lanes, int n, turn_fn *turn)
{
    for (int left = n, idle = 0; left > 0;) {
        bool any = false;
        left = n;
        for (int i = 0; i < n; i++) {
            any |= !over(&lanes[i]) && turn(&lanes[i]);
            left -= over(&lanes[i]);
        }
        idle = any ? 0 : idle + 1;
        if (idle % SPINS == SPINS - 1)
            sched_yield();
    }
}

static void drive(const struct shape *s, const int *fds, uint8_t *memory, bool initiator)
{
    struct lane *lanes = calloc((size_t)s->sockets, sizeof *lanes);
    if (!lanes)
        bare_die("memory");
    for (int i = 0; i < s->sockets; i++) {
        uint64_t rest = s->iters % (uint64_t)s->sockets;
        lanes[i] = (struct lane){.shape = s, .fd = fds[i], .index = i, .memory = memory};
        lanes[i].total = s->iters / (uint64_t)s->sockets + ((uint64_t)i < rest);
    }
    if (s->threads)
        drive_threads(lanes, s->sockets, initiator ? initiator_lane : target_lane);
    else
        drive_spinning(lanes, s->sockets, initiator ? initiator_turn : target_turn);
    free(lanes);
}

/* --- to and fro -------------------------------------------------------------------------------- */

static void spin_receive(int fd, uint8_t *to, uint64_t size)
{
    for (uint64_t got = 0; got < size;)
        got += (uint64_t)checked(recv(fd, to + got, size - got, MSG_DONTWAIT), "receive");
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double pingpong(const struct shape *s, int fd, uint8_t *memory, bool initiator)
{
    double *half = calloc(s->iters, sizeof *half);
    if (!half)
        bare_die("memory");
    for (uint64_t i = 0; i < s->iters; i++) {
        double start = bare_now_s();
        if (!initiator)
            spin_receive(fd, memory, s->size);
        if (send(fd, memory, s->size, MSG_NOSIGNAL) != (ssize_t)s->size)
            bare_die("send");
        if (initiator)
            spin_receive(fd, memory, s->size);
        half[i] = (bare_now_s() - start) / 2 * 1e6;
    }
    qsort(half, s->iters, sizeof *half, compare);
    double p50 = half[s->iters / 2];
    free(half);
    return p50;
}

/* --- both sides -------------------------------------------------------------------------------- */

static struct outcome side(const struct shape *s, const int *fds, uint8_t *memory, bool initiator)
{
    struct outcome out = {0};
    double start = bare_now_s(), cpu = bare_cpu_s();
    if (s->pingpong)
        out.p50_us = pingpong(s, fds[0], memory, initiator);
    else
        drive(s, fds, memory, initiator);
    out.seconds = bare_now_s() - start;
    out.cpu_s = bare_cpu_s() - cpu;
    return out;
}

static void sockets_open(const struct shape *s, int (*fds)[MAX_SOCKETS])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &len))
        bare_die("listen");
    for (int i = 0; i < s->sockets; i++) {
        fds[0][i] = socket(AF_INET, SOCK_STREAM, 0);
        if (fds[0][i] < 0 || connect(fds[0][i], (struct sockaddr *)&at, len))
            bare_die("connect");
        fds[1][i] = accept(listener, NULL, NULL);
        if (fds[1][i] < 0)
            bare_die("accept");
        for (int k = 0; k < 2; k++) {
            setsockopt(fds[k][i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            if (s->sndbuf)
                setsockopt(fds[k][i], SOL_SOCKET, SO_SNDBUF, &s->sndbuf, sizeof s->sndbuf);
        }
    }
    close(listener);
}

/* The target's process: its own copy of the pages before the clock starts. */
static int target_main(const struct shape *s, const int *fds, uint8_t *place, int report)
{
    uint64_t bytes = s->depth * s->size, used = s->iters < s->depth ? s->iters : s->depth;
    for (uint64_t i = 0; i < bytes; i += PAGE)
        ((volatile uint8_t *)place)[i] = place[i];
    if (write(report, place, 1) != 1)
        bare_die("pipe");
    struct outcome out = side(s, fds, place, false);
    out.wrong = s->pingpong ? 0 : bare_wrong(place, used * s->size);
    return write(report, &out, sizeof out) != sizeof out;
}

/* One measurement in two processes. Those after the first find the sockets warm. */
static struct outcome measure(const struct shape *s, int (*fds)[MAX_SOCKETS], uint8_t *source,
                              uint8_t *place)
{
    struct outcome mine, theirs;
    char ready;
    int ends[2];
    pid_t self = getpid();
    if (pipe(ends))
        bare_die("pipe");
    pid_t child = fork();
    if (child < 0)
        bare_die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it has both ends of each socket, and would spin for ever */
        exit(getppid() != self || target_main(s, fds[1], place, ends[1]));
    }
    close(ends[1]);
    if (read(ends[0], &ready, 1) != 1)
        bare_die("the target");
    mine = side(s, fds[0], source, true);
    if (read(ends[0], &theirs, sizeof theirs) != sizeof theirs || waitpid(child, NULL, 0) < 0)
        bare_die("the target");
    close(ends[0]);
    mine.cpu_s += theirs.cpu_s;
    mine.wrong += theirs.wrong;
    return mine;
}

static void run(struct shape *s)
{
    int fds[2][MAX_SOCKETS];
    uint64_t given = s->iters;
    uint8_t *source = bare_memory(s->depth * s->size, true, !s->small_pages);
    uint8_t *place = bare_memory(s->depth * s->size, s->pingpong, !s->small_pages);
    sockets_open(s, fds);
    s->iters = given ? given : 2 * s->depth;
    struct outcome out = measure(s, fds, source, place);
    while (!given && out.seconds < BARE_GOAL_S / 10) {
        s->iters *= 4;
        out = measure(s, fds, source, place);
    }
    if (!given)
        s->iters = (uint64_t)((double)s->iters * BARE_GOAL_S / out.seconds) + s->depth;
    out = measure(s, fds, source, place);
    double bytes = (double)s->iters * (double)s->size;
    printf("{\"GBps\": %.4f, \"Mops\": %.4f, \"p50_us\": %.3f, \"cpu_s_per_GB\": %.4f, "
           "\"iters\": %" PRIu64 ", \"verified\": %s}\n",
           bytes / out.seconds / 1e9, (double)s->iters / out.seconds / 1e6, out.p50_us,
           out.cpu_s / (bytes / 1e9), s->iters, out.wrong ? "false" : "true");
    exit(out.wrong != 0);
}

static const char usage[] =
    "Usage: bare_tcp write|pingpong [-s SIZE] [-k SOCKETS] [-t] [-b SNDBUF] [-d DEPTH] [-P] "
    "[-n ITERS]\n"
    "  -t  a thread for each socket on either side (default: one thread a side, which spins)\n"
    "  -P  memory without huge pages\n"
    "  -n  default: about a second\n";

static bool parse(int argc, char **argv, struct shape *s)
{
    int option;
    while ((option = getopt(argc, argv, "ts:k:b:d:Pn:")) != -1) {
        uint64_t value = optarg ? bare_number(optarg) : 0;
        if (option == 't')
            s->threads = true;
        else if (option == 'P')
            s->small_pages = true;
        else if (option == 's')
            s->size = value;
        else if (option == 'k')
            s->sockets = (int)value;
        else if (option == 'b')
            s->sndbuf = (int)value;
        else if (option == 'd')
            s->depth = value;
        else if (option == 'n')
            s->iters = value;
        else
            return false;
    }
    const char *what = optind + 1 == argc ? argv[optind] : "";
    s->pingpong = !strcmp(what, "pingpong");
    return (s->pingpong || !strcmp(what, "write")) && s->sockets >= 1 &&
           s->sockets <= MAX_SOCKETS && s->size >= 1 && s->size <= BARE_WINDOW && s->depth >= 1 &&
           s->depth <= BARE_WINDOW;
}

int main(int argc, char **argv)
{
    struct shape s = {.sockets = 1, .size = 1 << 20, .depth = BARE_DEPTH};
    if (!parse(argc, argv, &s)) {
        fputs(usage, stderr);
        return 2;
    }
    uint64_t sockets = (uint64_t)s.sockets, most = BARE_WINDOW / s.size;
    if (s.pingpong)
        s.depth = 1;
    if (s.depth > most)
        s.depth = most;
    s.depth = s.depth < sockets ? sockets : s.depth - s.depth % sockets;
    run(&s);
    return 0;
}
