/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that tcp sends out of the caller's pages (transports/tcp/tcp_lend.c): what is lent and what is copied, and that
 * pages which are taken back before the peer has them make no operation end well.
 */
#include "contract/pair.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BIG (4u << 20)
#define LENT                                                                                      \
    98304 /* more than is copied (WEFT_TCP_ZEROCOPY is 32K here), and a kernel holds all of it */
#define SEND 60000
#define LINKS 24
#define OTHERS 6
#define DEPTH 512 /* of a link */
#define MOST_FDS 512
#define MOST_PIPES 16 /* of a nic (tcp_lend.c) */
#define SMALL 4096
#define SCARCE_BYTES (256 * 1024) /* of tcp_lend.c */
#define PIECES 24
#define LATER 300 /* polls after which pipes are asked for again */

/* --- the kernel --------------------------------------------------------------------------------- */

static uint64_t lent; /* bytes that went from a pipe into a socket */
static int resets, pipes;
static unsigned flags_seen; /* of the last splice */
static uint64_t most_filled; /* into a pipe at once, where all that there may be are in use */
static int no_pipes, no_pages, tiny_pipes, halves, broken, no_disconnect; /* faults */
static int scarce_at; /* so many ends of pipes are all that there may be; 0: not looked at */

static int open_pipes(void);

int __real_pipe2(int fd[2], int flags);
int __wrap_pipe2(int fd[2], int flags);
int __wrap_pipe2(int fd[2], int flags)
{
    pipes++;
    if (!no_pipes)
        return __real_pipe2(fd, flags);
    errno = EMFILE;
    return -1;
}

ssize_t __real_vmsplice(int fd, const struct iovec *iov, size_t niov, unsigned flags);
ssize_t __wrap_vmsplice(int fd, const struct iovec *iov, size_t niov, unsigned flags);
ssize_t __wrap_vmsplice(int fd, const struct iovec *iov, size_t niov, unsigned flags)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < niov; i++)
        sum += iov[i].iov_len;
    if (scarce_at && sum > most_filled && open_pipes() >= scarce_at)
        most_filled = sum;
    if (!no_pages)
        return __real_vmsplice(fd, iov, niov, flags);
    errno = EPERM;
    return -1;
}

/* As where a user's pipes hold more than /proc/sys/fs/pipe-user-pages-soft: a page each. */
int __real_fcntl(int fd, int cmd, ...);
int __wrap_fcntl(int fd, int cmd, int arg);
int __wrap_fcntl(int fd, int cmd, int arg)
{
    if (tiny_pipes && cmd == F_SETPIPE_SZ) {
        errno = EPERM;
        return -1;
    }
    return tiny_pipes && cmd == F_GETPIPE_SZ ? SMALL : __real_fcntl(fd, cmd, arg);
}

ssize_t __real_splice(int fd, off64_t *from, int to, off64_t *at, size_t len, unsigned flags);
ssize_t __wrap_splice(int fd, off64_t *from, int to, off64_t *at, size_t len, unsigned flags);
ssize_t __wrap_splice(int fd, off64_t *from, int to, off64_t *at, size_t len, unsigned flags)
{
    if (halves && ++halves % 3 == 0) { /* a signal, before anything has been moved, and after */
        errno = EINTR;
        return -1;
    }
    ssize_t n = __real_splice(fd, from, to, at, (halves || broken) && len > 1 ? len / 2 : len, flags);
    lent += n > 0 ? (uint64_t)n : 0;
    flags_seen = flags;
    if (broken && n < (ssize_t)len) /* the end of a connection, behind bytes that it still took */
        raise(SIGPIPE);
    return n;
}

int __real_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    resets += addr->sa_family == AF_UNSPEC;
    if (no_disconnect && addr->sa_family == AF_UNSPEC) {
        errno = EINVAL;
        return -1;
    }
    return __real_connect(fd, addr, len);
}

static int reset_faults(void **state)
{
    (void)state;
    lent = 0;
    resets = pipes = 0;
    no_pipes = no_pages = tiny_pipes = halves = broken = no_disconnect = 0;
    scarce_at = 0;
    most_filled = 0;
    return 0;
}

static int setup(void **state)
{
    reset_faults(NULL);
    return pair_setup(state);
}

static int setup_no_pipes(void **state)
{
    reset_faults(NULL);
    no_pipes = 1;
    return pair_setup(state);
}

static int setup_tiny_pipes(void **state)
{
    reset_faults(NULL);
    tiny_pipes = 1;
    return pair_setup(state);
}

/* Ends of pipes that this process has. */
static int open_pipes(void)
{
    struct stat st;
    int n = 0;
    for (int fd = 0; fd < MOST_FDS; fd++)
        n += fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
    return n;
}

static int setup_copying(void **state)
{
    reset_faults(NULL);
    return pair_setup_with(state, "WEFT_TCP_ZEROCOPY", "0");
}

static int setup_small(void **state)
{
    weft_config_set("WEFT_TCP_SNDBUF", "64K");
    weft_config_set("WEFT_TCP_RCVBUF", "64K");
    int rc = setup(state);
    weft_config_set("WEFT_TCP_SNDBUF", NULL);
    weft_config_set("WEFT_TCP_RCVBUF", NULL);
    return rc;
}

static int teardown(void **state)
{
    reset_faults(NULL);
    return pair_teardown(state);
}

/* --- what is lent ------------------------------------------------------------------------------- */

/* There and back. Bytes that were lent. */
static uint64_t move(struct pair *p, uint64_t len, uint64_t seed)
{
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct buf back = pair_buf(p, A, BIG, 0, 0);
    uint64_t before = lent;
    pair_fill(p, near, seed);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, len), 0);
    pair_check(p, far, 0, len, seed);
    pair_do(p, A, 0, cmd_read(back, 0, far, 0, len), 0);
    pair_check(p, back, 0, len, seed);
    return lent - before;
}

/* What is left where a pipe was full may be too short. */
static void move_lent(struct pair *p, uint64_t seed)
{
    uint64_t n = move(p, BIG, seed);
    CHECK(n > 2 * BIG / 16 * 15 && n <= 2 * BIG, "%" PRIu64 " bytes of %u were lent", n, 2 * BIG);
}

static void long_payload_is_lent(void **state)
{
    move_lent(*state, 1);
    assert_int_equal(move(*state, LENT, 2), 2 * LENT);
}

static void short_payload_is_copied(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, SEND, 0, 0);
    assert_int_equal(move(p, 32767, 3), 0);
    pair_fill(p, near, 4);
    pair_do(p, A, 0, cmd_send(near, 0, SEND), 0);
    pair_arrival(p, B, 0);
    pair_check_arrival(p, B, 0, 4, 0);
    assert_int_equal(lent, 0);
}

static void many_small_pieces_are_copied(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct weft_iov_local iov[PIECES];
    struct weft_cmd cmd = cmd_write(near, 0, far, 0, PIECES * SMALL);
    for (int i = 0; i < PIECES; i++)
        iov[i] = (struct weft_iov_local){.addr = (char *)(uintptr_t)near.addr + (size_t)i * SMALL,
                                         .len = SMALL,
                                         .mem = near.mem};
    pair_fill(p, near, 5);
    cmd.iov = iov;
    cmd.niov = PIECES;
    pair_do(p, A, 0, cmd, 0);
    pair_check(p, far, 0, PIECES * SMALL, 5);
    assert_int_equal(lent, 0);
}

static void nothing_is_lent_if_so_asked(void **state)
{
    assert_int_equal(move(*state, BIG, 6), 0);
}

/* All of them wait for a peer that does not read: none may keep the pipes from the others. */
static void full_sockets_share_the_pipes(void **state)
{
    struct pair *p = *state;
    struct buf near[LINKS], far[LINKS];
    size_t first;
    for (int i = 0; i < LINKS; i++) {
        assert_int_equal(pair_link(p, A), i + 1);
        near[i] = pair_buf(p, A, BIG, 0, 0);
        far[i] = pair_buf(p, B, BIG, 0, ACCESS_ALL);
        pair_fill(p, near[i], 20 + (uint64_t)i);
    }
    p->a.other = NULL;
    int before = open_pipes(), most = 0;
    scarce_at = before + 2 * (MOST_PIPES - 1); /* one is there from the beginning */
    for (int i = 0; i < LINKS; i++) {
        struct weft_cmd write = cmd_write(near[i], 0, far[i], 0, BIG);
        assert_int_equal(side_post_many(&p->a, i + 1, &write, 1, &first), 1);
    }
    for (int i = 0; i < LATER; i++) {
        side_poll(&p->a);
        int now = open_pipes();
        most = now > most ? now : most;
    }
    p->a.other = &p->b;
    assert_in_range(most, 2 * (MOST_PIPES - 1), before + 2 * MOST_PIPES);
    assert_true(pipes > MOST_PIPES); /* who was full has given up its own */
    assert_in_range(most_filled, 1, SCARCE_BYTES); /* and puts no more pages into it than a socket takes */
    pair_settle(p, A);
    for (int i = 0; i < LINKS; i++)
        pair_check(p, far[i], 0, BIG, 20 + (uint64_t)i);
    assert_int_equal(open_pipes(), before);
    assert_true(lent > LINKS * BIG / 16 * 15);
}

/* --- where the kernel does not play along ------------------------------------------------------- */

static void without_pipes_it_is_copied(void **state)
{
    assert_int_equal(move(*state, BIG, 7), 0);
    no_pipes = 0;
    for (int i = 0; i < LATER; i++)
        pair_pump(*state);
    move_lent(*state, 8);
}

static void with_tiny_pipes_it_is_copied(void **state)
{
    assert_int_equal(move(*state, BIG, 9), 0);
}

static void pages_that_cannot_be_lent_are_copied(void **state)
{
    no_pages = 1;
    assert_int_equal(move(*state, BIG, 10), 0);
    no_pages = 0;
    move_lent(*state, 11);
}

/* Who sleeps is told of room by epoll, and only where the socket was full. */
static void a_signal_is_no_full_socket(void **state)
{
    struct pair *p = *state;
    halves = 1;
    move_lent(p, 12);
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct weft_cmd write = cmd_write(near, 0, far, 0, LENT);
    lent = 0;
    size_t first;
    assert_int_equal(side_post_many(&p->a, 0, &write, 1, &first), 1);
    assert_int_equal(lent, LENT); /* in one call: its socket was never full */
    pair_settle(p, A);
}

/* A kernel that is told of more to come waits for it. */
static void what_is_last_is_sent_at_once(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct weft_cmd write[2] = {cmd_write(near, 0, far, 0, LENT), cmd_write(near, LENT, far, LENT, LENT)};
    size_t first;
    pair_fill(p, near, 16);
    for (int n = 1; n <= 2; n++) {
        lent = 0;
        assert_int_equal(side_post_many(&p->a, 0, write, n, &first), n);
        TEST_UNTIL(lent == (uint64_t)n * LENT, side_poll(&p->a), "all to be lent");
        assert_false(flags_seen & SPLICE_F_MORE);
        pair_settle(p, A);
    }
    pair_check(p, far, 0, 2 * LENT, 16);
}

static bool pending(void)
{
    sigset_t set;
    return sigpending(&set) == 0 && sigismember(&set, SIGPIPE) == 1;
}

/* Writes over a connection whose peer has gone. */
static void write_to_the_gone(struct pair *p)
{
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    int link = pair_link(p, A);
    struct weft_cmd write = cmd_write(near, 0, far, 0, BIG);
    size_t first;
    p->a.other = NULL;
    assert_int_equal(side_post_many(&p->a, link, &write, 1, &first), 1);
    uint64_t before = lent;
    assert_true(before > 0);
    p->b.other = NULL;
    side_link_close(&p->b, link);
    p->a.other = &p->b;
    p->b.other = &p->a;
    pair_link_down(p, A, link);
    pair_settle(p, A);
}

static void a_peer_that_is_gone_sends_no_signal(void **state)
{
    struct pair *p = *state;
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 5; i++)
        write_to_the_gone(p);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    write_to_the_gone(p);
    assert_false(pending());
    raise(SIGPIPE); /* the caller's own is left alone */
    write_to_the_gone(p);
    assert_true(pending());
    sigtimedwait(&set, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Some of what is given to a connection is still taken as it ends, and the signal comes with that. */
static void bytes_before_the_end_send_no_signal(void **state)
{
    signal(SIGPIPE, SIG_DFL);
    broken = 1;
    move_lent(*state, 17);
    assert_false(pending());
}

/* --- taken back --------------------------------------------------------------------------------- */

/* A side sends all it is going to, and the other hears nothing of it yet. */
static void alone(struct side *side, uint64_t until)
{
    struct side *other = side->other;
    side->other = NULL;
    TEST_UNTIL(lent >= until, side_poll(side), "all to be lent");
    side->other = other;
}

static void a_write_that_is_taken_back_is_not_counted(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, LENT, 0, 0), far = pair_buf(p, B, LENT, 0, ACCESS_ALL);
    struct weft_cmd write = cmd_imm(near, 0, far, 0, LENT, 77);
    int link = pair_link(p, A);
    size_t first;
    assert_int_equal(side_post_many(&p->a, link, &write, 1, &first), 1);
    alone(&p->a, LENT);
    side_link_close(&p->a, link);
    pair_fill(p, near, 13); /* and the peer's kernel holds these very pages */
    assert_int_equal(pair_link_down(p, B, link), WEFT_EPEER);
    pair_linger(p);
    assert_int_equal(pair_arrivals(p, B), 0);
}

/* Where a kernel does not let go of a connection, closing has to do. */
static void a_write_is_taken_back_by_closing(void **state)
{
    no_disconnect = 1;
    a_write_that_is_taken_back_is_not_counted(state);
    assert_true(resets > 0);
}

static void a_read_that_is_taken_back_does_not_end_well(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, LENT, 0, 0), far = pair_buf(p, B, LENT, 0, ACCESS_ALL);
    struct weft_cmd read = cmd_read(near, 0, far, 0, LENT);
    int link = pair_link(p, A);
    size_t first;
    assert_int_equal(side_post_many(&p->a, link, &read, 1, &first), 1);
    alone(&p->b, LENT);
    side_link_close(&p->b, link);
    pair_fill(p, far, 14);
    pair_link_down(p, A, link);
    pair_settle(p, A);
    assert_false(pair_wait(p, A, first).done);
}

static void what_the_peer_has_is_not_taken_back(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, LENT, 0, ACCESS_ALL),
               far = pair_buf(p, B, LENT, 0, ACCESS_ALL);
    struct weft_cmd write = cmd_write(near, 0, far, 0, LENT),
                    read = cmd_read(near, 0, far, 0, LENT);
    size_t first;
    for (int i = 0; i < 2; i++) {
        int link = pair_link(p, A);
        assert_int_equal(side_post_many(&p->a, link, i ? &read : &write, 1, &first), 1);
        pair_settle(p, A);
        assert_true(lent >= LENT);
        pair_linger(p);
        side_link_close(&p->a, link);
        pair_link_down(p, B, link);
        side_link_close(&p->b, link);
    }
    assert_int_equal(resets, 0);
}

static void what_answers_a_read_keeps_its_memory(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, LENT, 0, 0), far = pair_buf(p, B, LENT, 0, ACCESS_ALL);
    struct weft_cmd read = cmd_read(near, 0, far, 0, LENT);
    struct weft_mem_handle handle = p->b.bufs[far.id].handle;
    size_t first;
    pair_fill(p, far, 15);
    assert_int_equal(side_post_many(&p->a, 0, &read, 1, &first), 1);
    alone(&p->b, LENT);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(p->b.ops->mem_dereg(p->b.nic, handle.mem), WEFT_EAGAIN);
        p->b.other = NULL;
        side_poll(&p->b);
    }
    p->a.other = NULL;
    TEST_UNTIL(p->a.recs[first].done, side_poll(&p->a), "the READ to end");
    pair_check(p, near, 0, LENT, 15);
    /* the one who has read polls no more */
    TEST_UNTIL(p->b.ops->mem_dereg(p->b.nic, handle.mem) == 0, side_poll(&p->b),
               "the memory to come free");
    p->b.bufs[far.id].registered = false;
    p->a.other = &p->b;
    p->b.other = &p->a;
}

/* Its answers are acknowledged later than they come: a new READ finds their number at the target still counted. */
static void many_long_reads_beside_other_traffic(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct weft_cmd read = cmd_read(near, 0, far, 0, 70000), write = cmd_write(near, 0, far, 0, BIG);
    size_t first;
    for (int i = 1; i <= OTHERS; i++)
        assert_int_equal(pair_link(p, A), i);
    p->a.other = p->b.other = NULL;
    for (int round = 0; round < 400 && !p->a.links[0].down; round++) {
        while (side_post_many(&p->a, 0, &read, 1, &first) == 1)
            ;
        for (int i = 1; i <= OTHERS && p->a.pending < DEPTH + 60; i++)
            for (int k = 0; k < 4; k++)
                side_post_many(&p->a, i, &write, 1, &first);
        side_poll(&p->b);
        side_poll(&p->a);
    }
    p->a.other = &p->b;
    p->b.other = &p->a;
    pair_settle(p, A);
    assert_false(pair_link_state(p, A, 0).down);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(long_payload_is_lent),
        CASE(short_payload_is_copied),
        CASE(many_small_pieces_are_copied),
        cmocka_unit_test_setup_teardown(nothing_is_lent_if_so_asked, setup_copying, teardown),
        cmocka_unit_test_setup_teardown(full_sockets_share_the_pipes, setup_small, teardown),
        cmocka_unit_test_setup_teardown(without_pipes_it_is_copied, setup_no_pipes, teardown),
        cmocka_unit_test_setup_teardown(with_tiny_pipes_it_is_copied, setup_tiny_pipes, teardown),
        CASE(pages_that_cannot_be_lent_are_copied),
        CASE(a_signal_is_no_full_socket),
        CASE(what_is_last_is_sent_at_once),
        CASE(a_peer_that_is_gone_sends_no_signal),
        CASE(bytes_before_the_end_send_no_signal),
        CASE(a_write_that_is_taken_back_is_not_counted),
        CASE(a_write_is_taken_back_by_closing),
        CASE(a_read_that_is_taken_back_does_not_end_well),
        CASE(what_the_peer_has_is_not_taken_back),
        CASE(what_answers_a_read_keeps_its_memory),
        CASE(many_long_reads_beside_other_traffic),
    };
    return PAIR_MAIN("tcp_lend", tests);
}
