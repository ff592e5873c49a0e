/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two builds of the library, or more, in turns and in one pair of processes: which one is faster, and by how much.
 *
 *     paired pingpong|write|list TRANSPORT DEPTH BLOCKS LIBWEFT.SO...
 *
 * pingpong: messages of 64 bytes to and fro; the first build is plain sockets that spin. write: 64-byte writes, DEPTH under way.
 * list: writes of 128 pieces of 8 bytes, DEPTH under way. Both processes open every build with an endpoint of its own, and take
 * a block of some milliseconds with each, BLOCKS times: the states of a machine that last longer than that meet all of them alike.
 * Runs one after the other differ by a tenth on a shared machine where this tells half a percent. What arrives is checked.
 *
 * Prints a line for each build: the median of a block, and the quartiles and the median of what it is to the block of the
 * first one beside it. Each build is a file of its own name: the loader opens one that it knows only once.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bare.h"
#include "weft.h"

#define MOST_BUILDS 8
#define MOST_DEPTH 64
#define PIECES 128
#define BYTES 64
#define WORDS (BYTES / sizeof(uint64_t))
#define CONNECT_MS 10000
#define LONGEST_S 900 /* of all of it: then a signal ends it */

enum test { PINGPONG, WRITE, LIST };
/* Operations of a block, and those before it that are not timed: each build begins with what the others have left in the caches. */
static const struct {
    const char *name;
    int timed, untimed;
} tests[] = {[PINGPONG] = {"pingpong", 300, 100}, [WRITE] = {"write", 20000, 1000}, [LIST] = {"list", 1000, 100}};

#define FUNCTIONS(XX)                                                                             \
    XX(last_error) XX(endpoint_open) XX(endpoint_metadata) XX(endpoint_connect) XX(endpoint_accept) \
    XX(endpoint_progress) XX(mem_reg) XX(mem_advertise) XX(post) XX(op_poll)

struct build {
    const char *path;
#define MEMBER(name) __typeof__(&weft_##name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    weft_mem_t mem;
    weft_op_t sent, expected; /* PINGPONG: a message and a receive under way; 0: none */
    uint64_t out, in;         /* messages */
    struct memory {
        uint64_t from[MOST_DEPTH][WORDS], to[MOST_DEPTH][WORDS], list[2][PIECES];
    } memory;
};

/* What both processes see. */
struct shared {
    _Atomic(int) turn; /* the build that the target drives; -1: the end */
    struct weft_remote remote[MOST_BUILDS];
};

static enum test test;
static int depth, nbuilds;
static bool initiator;
static int control, plain; /* to the other process */
static struct build builds[MOST_BUILDS];
static struct shared *shared;

static _Noreturn void die(const struct build *b, const char *what)
{
    fprintf(stderr, "paired: %s: %s: %s\n", b->path, what, b->last_error ? b->last_error() : dlerror());
    exit(1);
}

static void need(const struct build *b, int64_t rc, const char *what)
{
    if (rc < 0)
        die(b, what);
}

/* --- the two processes -------------------------------------------------------------------------- */

static void plain_read(void *to, size_t len)
{
    ssize_t n;
    while ((n = recv(plain, to, len, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        ;
    if (n != (ssize_t)len)
        bare_die("plain sockets");
}

static void plain_write(const void *from, size_t len)
{
    if (send(plain, from, len, MSG_NOSIGNAL) != (ssize_t)len)
        bare_die("plain sockets");
}

/* Both are here; meanwhile this end's part of the build is driven. */
static void meet(const struct build *b)
{
    char word = 0;
    if (send(control, &word, 1, MSG_NOSIGNAL) != 1)
        bare_die("the other process");
    ssize_t n;
    while ((n = recv(control, &word, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        need(b, b->endpoint_progress(b->endpoint, 0), "progress");
    if (n != 1)
        bare_die("the other process");
}

/* The plain sockets have the congestion control that Weft has within a host. */
static void split(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int one = 1, pair[2], listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &len) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        bare_die("sockets");
    pid_t parent = getpid(), child = fork();
    if (child < 0)
        bare_die("fork");
    initiator = child > 0;
    if (!initiator && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        exit(1);
    alarm(LONGEST_S);
    control = pair[initiator];
    close(pair[!initiator]);
    plain = initiator ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    if (plain < 0 || (!initiator && connect(plain, (struct sockaddr *)&at, len)))
        bare_die("connect");
    close(listener);
    setsockopt(plain, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(plain, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

static void load(struct build *b)
{
    void *library = dlopen(b->path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        die(b, "dlopen");
#define FIND(name)                                                                                \
    *(void **)&b->name = dlsym(library, "weft_" #name);                                           \
    if (!b->name)                                                                                 \
        die(b, "weft_" #name);
    FUNCTIONS(FIND)
#undef FIND
}

static void connect_build(struct build *b, const char *transport)
{
    char text[WEFT_METADATA_MAX];
    need(b, b->endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = transport,
                                       .progress_threads = WEFT_PROGRESS_CALLER),
                             &b->endpoint),
         "open");
    need(b, b->mem_reg(b->endpoint, &b->memory, sizeof b->memory, NULL, &b->mem), "register");
    if (initiator) {
        ssize_t len = recv(control, text, sizeof text, 0);
        if (len <= 0)
            bare_die("metadata");
        need(b, b->endpoint_connect(b->endpoint, text, (size_t)len,
                                    WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS), &b->conn),
             "connect");
    } else {
        int len = b->endpoint_metadata(b->endpoint, text, sizeof text);
        need(b, len, "metadata");
        if (send(control, text, (size_t)len, MSG_NOSIGNAL) != len)
            bare_die("metadata");
        need(b, b->endpoint_accept(b->endpoint, CONNECT_MS, &b->conn), "accept");
        need(b, b->mem_advertise(b->mem, &b->memory, sizeof b->memory, &shared->remote[b - builds]), "advertise");
    }
    meet(b);
}

/* --- a block ------------------------------------------------------------------------------------ */

static void finish(const struct build *b, weft_op_t op)
{
    int rc;
    while ((rc = b->op_poll(op, NULL)) == 0)
        ;
    need(b, rc, "operation");
}

static weft_op_t post_message(const struct build *b, enum weft_xfer_op op, void *at)
{
    weft_op_t handle;
    struct weft_local local = {.addr = at, .len = BYTES, .mem = b->mem};
    need(b, b->post(b->conn, WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1), &handle), "post");
    return handle;
}

static void send_next(struct build *b)
{
    b->memory.from[b->out % 2][0] = b->out;
    b->sent = post_message(b, WEFT_XFER_SEND, b->memory.from[b->out++ % 2]);
}

static void take_next(struct build *b)
{
    finish(b, b->expected);
    if (b->memory.to[0][0] != b->in++) {
        fprintf(stderr, "paired: %s: message %" PRIu64 " has %" PRIu64 "\n", b->path, b->in - 1, b->memory.to[0][0]);
        exit(1);
    }
}

/* Question and answer. What can wait does, until the answer is on its way. */
static void trip(struct build *b)
{
    weft_op_t before = b->sent;
    if (initiator) {
        send_next(b);
        if (before)
            finish(b, before);
        take_next(b);
        b->expected = post_message(b, WEFT_XFER_RECV, b->memory.to[0]);
    } else {
        take_next(b);
        send_next(b);
        b->expected = post_message(b, WEFT_XFER_RECV, b->memory.to[0]);
        if (before)
            finish(b, before);
    }
}

static double block_of_trips(struct build *b)
{
    double start = 0;
    if (!b->expected)
        b->expected = post_message(b, WEFT_XFER_RECV, b->memory.to[0]);
    meet(b);
    for (int i = 0; i < tests[test].untimed + tests[test].timed; i++) {
        if (i == tests[test].untimed)
            start = bare_now_s();
        trip(b);
    }
    double half = (bare_now_s() - start) / 2 / tests[test].timed;
    finish(b, b->sent);
    b->sent = 0;
    meet(b);
    return half;
}

static double block_of_plain_trips(void)
{
    uint64_t words[WORDS] = {0};
    double start = 0;
    for (int i = 0; i < tests[test].untimed + tests[test].timed; i++) {
        if (i == tests[test].untimed)
            start = bare_now_s();
        if (initiator)
            plain_write(words, sizeof words);
        plain_read(words, sizeof words);
        if (!initiator)
            plain_write(words, sizeof words);
    }
    return (bare_now_s() - start) / 2 / tests[test].timed;
}

static weft_op_t post_write(struct build *b, int slot, uint64_t word)
{
    weft_op_t handle;
    uint64_t offset = (uint64_t)((char *)b->memory.to[slot] - (char *)&b->memory);
    struct weft_local local = {.addr = b->memory.from[slot], .len = BYTES, .mem = b->mem};
    b->memory.from[slot][0] = word;
    need(b, b->post(b->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                       .remote = &shared->remote[b - builds], .nremote = 1, .remote_offset = &offset),
                    &handle),
         "post");
    return handle;
}

static weft_op_t post_list(struct build *b, uint64_t word)
{
    static struct weft_local local[PIECES];
    static struct weft_remote remote[PIECES];
    static uint64_t offset[PIECES];
    weft_op_t handle;
    for (int i = 0; i < PIECES; i++) {
        b->memory.list[0][i] = word; /* the same in all of a block, some of which are under way */
        local[i] = (struct weft_local){.addr = &b->memory.list[0][i], .len = sizeof(uint64_t), .mem = b->mem};
        remote[i] = shared->remote[b - builds];
        offset[i] = (uint64_t)((char *)&b->memory.list[1][i] - (char *)&b->memory);
    }
    need(b, b->post(b->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local, .nlocal = PIECES,
                                       .remote = remote, .nremote = PIECES, .remote_offset = offset),
                    &handle),
         "post");
    return handle;
}

static double block_of_writes(struct build *b, uint64_t block)
{
    weft_op_t ops[MOST_DEPTH] = {0};
    double start = 0;
    const int all = tests[test].untimed + tests[test].timed;
    for (int i = 0; i < all + depth; i++) {
        int slot = i % depth;
        if (i == tests[test].untimed)
            start = bare_now_s();
        if (ops[slot])
            finish(b, ops[slot]);
        ops[slot] = 0;
        if (i < all)
            ops[slot] = test == LIST ? post_list(b, block) : post_write(b, slot, block);
    }
    return (bare_now_s() - start) / tests[test].timed;
}

/* The target has what the initiator has written last. */
static void check_writes(const struct build *b, uint64_t block)
{
    uint64_t wrong = 0;
    for (int i = 0; test == LIST && i < PIECES; i++)
        wrong += b->memory.list[1][i] != block;
    for (int i = 0; test == WRITE && i < depth; i++)
        wrong += b->memory.to[i][0] != block;
    if (!wrong)
        return;
    fprintf(stderr, "paired: %s: %" PRIu64 " words of block %" PRIu64 " are wrong\n", b->path, wrong, block);
    exit(1);
}

/* The target of writes: it drives the build whose turn it is. */
static void serve(uint64_t block, int turn)
{
    struct build *b = &builds[turn];
    meet(b);
    while (shared->turn == turn)
        for (int i = 0; i < 20; i++)
            need(b, b->endpoint_progress(b->endpoint, 0), "progress");
    check_writes(b, block);
    meet(b);
}

static double initiate(uint64_t block, int turn)
{
    shared->turn = turn;
    meet(&builds[turn]);
    double each = block_of_writes(&builds[turn], block);
    shared->turn = -1;
    meet(&builds[turn]);
    return each;
}

/* --- all of it ---------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *name, const double *took, int column, int columns, int blocks)
{
    double *all = calloc((size_t)blocks, 2 * sizeof *all), *ratio = all + blocks;
    if (!all)
        bare_die("memory");
    for (int i = 0; i < blocks; i++) {
        all[i] = took[i * columns + column];
        ratio[i] = all[i] / took[i * columns];
    }
    qsort(all, (size_t)blocks, sizeof *all, compare);
    qsort(ratio, (size_t)blocks, sizeof *ratio, compare);
    printf("%-40s %9.1f ns   x the first: %.3f  (%.3f to %.3f)\n", name, all[blocks / 2] * 1e9, ratio[blocks / 2],
           ratio[blocks / 4], ratio[blocks * 3 / 4]);
    free(all);
}

static void run(int blocks)
{
    const int plains = test == PINGPONG, columns = nbuilds + plains;
    double *took = calloc((size_t)(blocks * columns), sizeof *took);
    if (!took)
        bare_die("memory");
    for (int i = 0; i < blocks; i++) {
        double *row = &took[i * columns];
        if (plains)
            row[0] = block_of_plain_trips();
        for (int k = 0; k < nbuilds; k++) {
            if (test == PINGPONG)
                row[plains + k] = block_of_trips(&builds[k]);
            else if (initiator)
                row[k] = initiate((uint64_t)i + 1, k);
            else
                serve((uint64_t)i + 1, k);
        }
    }
    if (initiator && plains)
        report("plain sockets", took, 0, columns, blocks);
    for (int k = 0; initiator && k < nbuilds; k++)
        report(builds[k].path, took, plains + k, columns, blocks);
    free(took);
}

static bool arguments(int argc, char **argv, int *blocks)
{
    if (argc < 6 || argc > 5 + MOST_BUILDS)
        return false;
    size_t i = 0;
    while (i < sizeof tests / sizeof *tests && strcmp(argv[1], tests[i].name) != 0)
        i++;
    test = (enum test)i;
    depth = (int)bare_number(argv[3]);
    *blocks = (int)bare_number(argv[4]);
    nbuilds = argc - 5;
    for (int k = 0; k < nbuilds; k++)
        builds[k].path = argv[5 + k];
    return i < sizeof tests / sizeof *tests && depth > 0 && depth <= MOST_DEPTH && *blocks > 0 && *blocks <= 100000;
}

int main(int argc, char **argv)
{
    int blocks = 0, status = 0;
    if (!arguments(argc, argv, &blocks)) {
        fprintf(stderr, "Usage: paired pingpong|write|list TRANSPORT DEPTH BLOCKS LIBWEFT.SO...\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        bare_die("memory");
    split();
    for (int k = 0; k < nbuilds; k++) {
        load(&builds[k]);
        connect_build(&builds[k], argv[2]);
    }
    run(blocks);
    fflush(stdout);
    if (initiator && (wait(&status) < 0 || status))
        return 1;
    return 0;
}
