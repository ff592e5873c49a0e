/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two builds of the library, or more, in turns and in one pair of processes: which one is faster, and by how much.
 *
 *     paired pingpong|write|list|bulk|conns TRANSPORT DEPTH BLOCKS LIBWEFT.SO...
 *
 * pingpong: messages of 64 bytes to and fro; before the builds come plain sockets that spin, as the machine makes them and with
 * the congestion control that Weft has within a host. write: 64-byte writes, DEPTH under way.
 * list: writes of 128 pieces of 8 bytes, DEPTH under way. bulk: writes of 1 MiB, DEPTH under way, each from and to memory of its
 * own; conns: the same twice, all over one conn and each of the DEPTH over a conn of its own. Both processes open every build with an endpoint of its own, and take
 * a block of some milliseconds with each (bulk and conns: of some tenths of a second), BLOCKS times: the states of a machine that last longer than that meet all of them alike.
 * Runs one after the other differ by a tenth on a shared machine where this tells half a percent. What arrives is checked.
 *
 * Prints a line for each build: the median of a block, and the quartiles and the median of what it is to the block of the
 * first one beside it. Each build is a file of its own: the loader opens one that it knows only once.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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
#define MOST_DEPTH 256
#define MOST_BLOCKS 100000
#define PIECES 128
#define BYTES 64
#define WORDS (BYTES / sizeof(uint64_t))
#define MIB ((size_t)1 << 20)
#define CONNECT_MS 10000
#define LONGEST_S 900 /* of all of it: then a signal ends it */

enum test { PINGPONG, WRITE, LIST, BULK, CONNS };

/* What is measured of a build in turns. */
enum way { ALL_ON_ONE, ONE_EACH, DEFAULT = 0, RENO };
/* Operations of a block, and those before it that are not timed: each build begins with what the others have left in the caches. */
static const struct {
    const char *name;
    int timed, untimed;
} tests[] = {[PINGPONG] = {"pingpong", 300, 100},
             [WRITE] = {"write", 20000, 1000},
             [LIST] = {"list", 1000, 100},
             [BULK] = {"bulk", 0, 0}, /* a number of each that is under way */
             [CONNS] = {"conns", 0, 0}};
#define BULK_TIMED 4
#define BULK_UNTIMED 1

#define FUNCTIONS(XX)                                                                             \
    XX(last_error) XX(endpoint_open) XX(endpoint_metadata) XX(endpoint_connect) XX(endpoint_accept) \
    XX(endpoint_progress) XX(mem_reg) XX(mem_advertise) XX(post) XX(op_poll)

struct build {
    const char *path;
    void *library;
#define MEMBER(name) __typeof__(&weft_##name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
    weft_endpoint_t endpoint;
    weft_conn_t conn[MOST_DEPTH]; /* one; CONNS: as many as operations */
    weft_mem_t mem, bulk_mem;
    uint8_t *bulk; /* BULK, CONNS: a MiB for each operation */
    weft_op_t sent, expected; /* PINGPONG: a message and a receive under way; 0: none */
    uint64_t out, in;         /* messages */
    struct memory {
        uint64_t from[MOST_DEPTH][WORDS], to[MOST_DEPTH][WORDS], list[2][PIECES];
    } memory;
};

/* What both processes see. */
struct shared {
    _Atomic(int) turn; /* the build that the target drives; -1: the end of its block */
    struct weft_remote remote[MOST_BUILDS], bulk[MOST_BUILDS];
};

static enum test test;
static int depth, nbuilds;
static bool initiator;
static int control, plain[2]; /* to the other process; plain sockets: by way */
static struct build builds[MOST_BUILDS];
static struct shared *shared;

static _Noreturn void die(const struct build *b, const char *what)
{
    fprintf(stderr, "paired: %s: %s: %s\n", b->path, what, b->last_error ? b->last_error() : dlerror());
    exit(1);
}

static _Noreturn void lost(void)
{
    fputs("paired: the other process has ended\n", stderr);
    exit(1);
}

static void need(const struct build *b, int64_t rc, const char *what)
{
    if (rc < 0)
        die(b, what);
}

/* --- the two processes -------------------------------------------------------------------------- */

static void plain_read(int fd, void *to, size_t len)
{
    ssize_t n;
    while ((n = recv(fd, to, len, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        ;
    if (n != (ssize_t)len)
        lost();
}

static void plain_write(int fd, const void *from, size_t len)
{
    if (send(fd, from, len, MSG_NOSIGNAL) != (ssize_t)len)
        lost();
}

/* Both are here; meanwhile this end's part of the build is driven. */
static void meet(const struct build *b)
{
    char word = 0;
    if (send(control, &word, 1, MSG_NOSIGNAL) != 1)
        lost();
    ssize_t n;
    while ((n = recv(control, &word, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        need(b, b->endpoint_progress(b->endpoint, 0), "progress");
    if (n != 1)
        lost();
}

/* Unless the other process is gone before it has connected. */
static int accept_plain(int listener)
{
    struct pollfd seen[] = {{.fd = listener, .events = POLLIN}, {.fd = control, .events = POLLIN}};
    if (poll(seen, 2, CONNECT_MS) < 0 || !(seen[0].revents & POLLIN))
        lost();
    return accept(listener, NULL, NULL);
}

static int plain_socket(int listener, const struct sockaddr_in *at, enum way way)
{
    int one = 1, fd = initiator ? accept_plain(listener) : socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || (!initiator && connect(fd, (const struct sockaddr *)at, sizeof *at)))
        bare_die("connect");
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ||
        (way == RENO && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4)))
        bare_die("socket options");
    return fd;
}

static void split(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int pair[2], listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, len) || listen(listener, 2) ||
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
    plain[DEFAULT] = plain_socket(listener, &at, DEFAULT);
    plain[RENO] = plain_socket(listener, &at, RENO);
    close(listener);
}

static void load(struct build *b)
{
    char path[PATH_MAX]; /* without a slash dlopen would look elsewhere */
    b->library = dlopen(realpath(b->path, path) ? path : b->path, RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        die(b, "dlopen");
    for (const struct build *other = builds; other < b; other++)
        if (other->library == b->library) {
            fprintf(stderr, "paired: %s is the same library as %s: make a copy\n", b->path, other->path);
            exit(1);
        }
#define FIND(name)                                                                                \
    *(void **)&b->name = dlsym(b->library, "weft_" #name);                                           \
    if (!b->name)                                                                                 \
        die(b, "weft_" #name);
    FUNCTIONS(FIND)
#undef FIND
}

static bool is_bulk(void)
{
    return test == BULK || test == CONNS;
}

static void register_bulk(struct build *b)
{
    size_t len = (size_t)depth * MIB;
    b->bulk = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->bulk == MAP_FAILED)
        bare_die("memory");
    madvise(b->bulk, len, MADV_HUGEPAGE);
    memset(b->bulk, 1, len);
    need(b, b->mem_reg(b->endpoint, b->bulk, len, NULL, &b->bulk_mem), "register");
    if (!initiator)
        need(b, b->mem_advertise(b->bulk_mem, b->bulk, len, &shared->bulk[b - builds]), "advertise");
}

static void connect_build(struct build *b, const char *transport)
{
    char text[WEFT_METADATA_MAX];
    const int conns = test == CONNS ? depth : 1;
    need(b, b->endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = transport,
                                       .progress_threads = WEFT_PROGRESS_CALLER),
                             &b->endpoint),
         "open");
    need(b, b->mem_reg(b->endpoint, &b->memory, sizeof b->memory, NULL, &b->mem), "register");
    if (is_bulk())
        register_bulk(b);
    if (initiator) {
        ssize_t len = recv(control, text, sizeof text, 0);
        if (len <= 0)
            lost();
        for (int i = 0; i < conns; i++)
            need(b, b->endpoint_connect(b->endpoint, text, (size_t)len,
                                        WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS), &b->conn[i]),
                 "connect");
    } else {
        int len = b->endpoint_metadata(b->endpoint, text, sizeof text);
        need(b, len, "metadata");
        if (send(control, text, (size_t)len, MSG_NOSIGNAL) != len)
            lost();
        for (int i = 0; i < conns; i++)
            need(b, b->endpoint_accept(b->endpoint, CONNECT_MS, &b->conn[i]), "accept");
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
    need(b, b->post(b->conn[0], WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1), &handle), "post");
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

static double block_of_plain_trips(int fd)
{
    uint64_t words[WORDS] = {0};
    double start = 0;
    for (int i = 0; i < tests[test].untimed + tests[test].timed; i++) {
        if (i == tests[test].untimed)
            start = bare_now_s();
        if (initiator)
            plain_write(fd, words, sizeof words);
        plain_read(fd, words, sizeof words);
        if (!initiator)
            plain_write(fd, words, sizeof words);
    }
    return (bare_now_s() - start) / 2 / tests[test].timed;
}

static weft_op_t post_write(struct build *b, int slot, uint64_t word)
{
    weft_op_t handle;
    uint64_t offset = (uint64_t)((char *)b->memory.to[slot] - (char *)&b->memory);
    struct weft_local local = {.addr = b->memory.from[slot], .len = BYTES, .mem = b->mem};
    b->memory.from[slot][0] = word;
    need(b, b->post(b->conn[0], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
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
    need(b, b->post(b->conn[0], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local, .nlocal = PIECES,
                                       .remote = remote, .nremote = PIECES, .remote_offset = offset),
                    &handle),
         "post");
    return handle;
}

/* The first and the last word of what is written tell which block it is of. */
static uint64_t *bulk_word(const struct build *b, int slot, bool last)
{
    return (uint64_t *)(void *)(b->bulk + (size_t)slot * MIB + (last ? MIB - sizeof(uint64_t) : 0));
}

static weft_op_t post_bulk(const struct build *b, enum way way, int slot, uint64_t word)
{
    weft_op_t handle;
    uint64_t offset = (uint64_t)slot * MIB;
    struct weft_local local = {.addr = b->bulk + offset, .len = MIB, .mem = b->bulk_mem};
    *bulk_word(b, slot, false) = *bulk_word(b, slot, true) = word;
    need(b, b->post(b->conn[way == ONE_EACH ? slot : 0],
                    WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                              .remote = &shared->bulk[b - builds], .nremote = 1, .remote_offset = &offset),
                    &handle),
         "post");
    return handle;
}

static weft_op_t post_one(struct build *b, enum way way, int slot, uint64_t word)
{
    if (is_bulk())
        return post_bulk(b, way, slot, word);
    return test == LIST ? post_list(b, word) : post_write(b, slot, word);
}

static void write_all(struct build *b, enum way way, uint64_t word, int count)
{
    weft_op_t ops[MOST_DEPTH] = {0};
    for (int i = 0; i < count + depth; i++) {
        int slot = i % depth;
        if (ops[slot])
            finish(b, ops[slot]);
        ops[slot] = i < count ? post_one(b, way, slot, word) : 0;
    }
}

static double block_of_writes(struct build *b, enum way way, uint64_t word)
{
    const int untimed = is_bulk() ? depth * BULK_UNTIMED : tests[test].untimed;
    const int timed = is_bulk() ? depth * BULK_TIMED : tests[test].timed;
    write_all(b, way, word, untimed);
    double start = bare_now_s();
    write_all(b, way, word, timed);
    return (bare_now_s() - start) / timed;
}

/* The target has what the initiator has written last. */
static void check_writes(const struct build *b, uint64_t word)
{
    uint64_t wrong = 0;
    for (int i = 0; test == LIST && i < PIECES; i++)
        wrong += b->memory.list[1][i] != word;
    for (int i = 0; test == WRITE && i < depth; i++)
        wrong += b->memory.to[i][0] != word;
    for (int i = 0; is_bulk() && i < depth; i++)
        wrong += (*bulk_word(b, i, false) != word) + (*bulk_word(b, i, true) != word);
    if (!wrong)
        return;
    fprintf(stderr, "paired: %s: %" PRIu64 " words of %" PRIu64 " are wrong\n", b->path, wrong, word);
    exit(1);
}

/* The target of writes: it drives the build whose turn it is. */
static void serve(uint64_t word, int turn)
{
    struct build *b = &builds[turn];
    meet(b);
    while (shared->turn == turn)
        for (int i = 0; i < 20; i++)
            need(b, b->endpoint_progress(b->endpoint, 0), "progress");
    check_writes(b, word);
    meet(b);
}

static double initiate(uint64_t word, int turn, enum way way)
{
    shared->turn = turn;
    meet(&builds[turn]);
    double each = block_of_writes(&builds[turn], way, word);
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

/* What is measured in turns. build NULL: plain sockets. */
static struct column {
    const char *what;
    char more[32];
    struct build *build;
    enum way way;
} columns[2 * MOST_BUILDS + 2];
static int ncolumns;

static void add_column(struct build *b, enum way way, const char *more)
{
    struct column *c = &columns[ncolumns++];
    c->what = b ? b->path : "plain sockets";
    snprintf(c->more, sizeof c->more, "%s", more);
    c->build = b;
    c->way = way;
}

static void add_columns(void)
{
    char more[32];
    snprintf(more, sizeof more, ", %d conns", depth);
    if (test == PINGPONG) {
        add_column(NULL, DEFAULT, "");
        add_column(NULL, RENO, " with reno");
    }
    for (int k = 0; k < nbuilds; k++) {
        add_column(&builds[k], ALL_ON_ONE, test == CONNS ? ", 1 conn" : "");
        if (test == CONNS)
            add_column(&builds[k], ONE_EACH, more);
    }
}

static void report(const double *took, int column, int blocks)
{
    double *all = calloc((size_t)blocks, 2 * sizeof *all), *ratio = all + blocks;
    if (!all)
        bare_die("memory");
    for (int i = 0; i < blocks; i++) {
        all[i] = took[i * ncolumns + column];
        ratio[i] = all[i] / took[i * ncolumns];
    }
    qsort(all, (size_t)blocks, sizeof *all, compare);
    qsort(ratio, (size_t)blocks, sizeof *ratio, compare);
    const struct column *c = &columns[column];
    int left = 40 - (int)strlen(c->what);
    printf("%s%-*s %9.1f ns   x the first: %.3f  (%.3f to %.3f)\n", c->what, left > 0 ? left : 0, c->more,
           all[blocks / 2] * 1e9, ratio[blocks / 2], ratio[blocks / 4], ratio[blocks * 3 / 4]);
    free(all);
}

/* Seconds of an operation. word: none has been written before that was the same. */
static double block_of(const struct column *c, uint64_t word)
{
    if (!c->build)
        return block_of_plain_trips(plain[c->way]);
    if (test == PINGPONG)
        return block_of_trips(c->build);
    if (initiator)
        return initiate(word, (int)(c->build - builds), c->way);
    serve(word, (int)(c->build - builds));
    return 0;
}

static void run(int blocks)
{
    double *took = calloc((size_t)(blocks * ncolumns), sizeof *took);
    if (!took)
        bare_die("memory");
    for (int i = 0; i < blocks * ncolumns; i++)
        took[i] = block_of(&columns[i % ncolumns], (uint64_t)i + 1);
    for (int c = 0; initiator && c < ncolumns; c++)
        report(took, c, blocks);
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
    uint64_t operations = bare_number(argv[3]), times = bare_number(argv[4]);
    depth = operations <= MOST_DEPTH ? (int)operations : 0;
    *blocks = times <= MOST_BLOCKS ? (int)times : 0;
    nbuilds = argc - 5;
    for (int k = 0; k < nbuilds; k++)
        builds[k].path = argv[5 + k];
    return i < sizeof tests / sizeof *tests && depth > 0 && *blocks > 0;
}

int main(int argc, char **argv)
{
    int blocks = 0, status = 0;
    if (!arguments(argc, argv, &blocks)) {
        fprintf(stderr, "Usage: paired pingpong|write|list|bulk|conns TRANSPORT DEPTH BLOCKS LIBWEFT.SO...\n"
                        "DEPTH: 1 to %d (pingpong has 1), BLOCKS: 1 to %d, up to %d files. Ends after %d s.\n",
                MOST_DEPTH, MOST_BLOCKS, MOST_BUILDS, LONGEST_S);
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
    add_columns();
    run(blocks);
    fflush(stdout);
    if (initiator && (wait(&status) < 0 || status))
        return 1;
    return 0;
}
