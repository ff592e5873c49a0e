/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes: single, vectors, long lists, asynchronous, blocking, canceled, refused. */
#include "duo.h"

#include <sys/mman.h>

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)
#define PIECES 10000

static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 257, 4095, 4096, 4097, 65537,
                               MIB - 1, MIB, MIB + 1, 5 * MIB + 3};

/* --- one buffer ---------------------------------------------------------------------------- */

static void write_then_read(struct duo *d, bool registered)
{
    struct area near = duo_area(d, A, 6 * MIB, 1, 0), far = duo_area(d, B, 6 * MIB, 0, 0);
    char *plain = malloc(6 * MIB);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i], at = i * 5;
        char *addr = registered ? near.addr + at : plain + at;
        duo_fill(d, far, 1000);
        test_fill(addr, n, i, at);
        assert_int_equal(weft_write(d->conn, addr, n, &far.remote, at, T), n);
        duo_check(d, far, at, n, i);
        duo_check(d, far, at + n, 64, 1000);
        test_zero(addr, n);
        assert_int_equal(weft_read(d->conn, addr, n, &far.remote, at, T), n);
        assert_true(test_differs(addr, n, i, at) < 0);
    }
    free(plain);
}

static void every_size_both_ways(void **state)
{
    write_then_read(*state, true);
}

static void memory_that_was_not_registered(void **state)
{
    write_then_read(*state, false);
}

static void the_ends_of_a_remote(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 1000, 3, 0);
    char byte = 'x';
    assert_int_equal(weft_write(d->conn, &byte, 1, &far.remote, 0, T), 1);
    assert_int_equal(weft_write(d->conn, &byte, 1, &far.remote, 999, T), 1);
    assert_int_equal(weft_write(d->conn, &byte, 0, &far.remote, 1000, T), 0);
    WEFT_FAILS(WEFT_EBOUNDS, weft_write(d->conn, &byte, 1, &far.remote, 1000, T));
    WEFT_FAILS(WEFT_EBOUNDS, weft_read(d->conn, &byte, 1, &far.remote, UINT64_MAX, T));
    duo_check_zero(d, far, 1, 998);
}

/* --- vectors ------------------------------------------------------------------------------- */

static void vectors_pair_piece_by_piece(void **state)
{
    struct duo *d = *state;
    enum { N = 12 };
    struct area near = duo_area(d, A, MIB, 0, 0), far[N];
    struct weft_local local[N];
    struct weft_remote remote[N];
    uint64_t offset[N], at = 0;
    duo_fill(d, near, 1);
    for (size_t i = 0; i < N; i++) {
        size_t len = i % 4 == 2 ? 0 : i * i * 500 + 1;
        far[i] = duo_area(d, B, len + 100, i, 0);
        local[i] = area_local(near, at, len);
        remote[i] = far[i].remote;
        offset[i] = i * 3;
        at += len;
    }
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = local,
                          .nlocal = N, .remote = remote, .nremote = N, .remote_offset = offset};
    struct weft_op_status status;
    assert_int_equal(weft_transfer(d->conn, &x, T, &status), at);
    assert_int_equal(status.bytes, at);
    x.op = WEFT_XFER_READ;
    test_zero(near.addr, at);
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), at);
    duo_check(d, near, 0, at, 1);
    for (size_t i = 0; i < N; i++)
        duo_check_zero(d, far[i], 0, offset[i]);
}

/* A list of thousands of pieces, scattered on both sides, moves as one operation. */
static void lists_of_thousands(void **state)
{
    struct duo *d = *state;
    enum { STEP = 40 };
    struct area near = duo_area(d, A, PIECES * STEP, 0, 0);
    struct area far = duo_area(d, B, PIECES * STEP, 0, 0);
    struct weft_local *local = calloc(PIECES, sizeof *local);
    struct weft_remote *remote = calloc(PIECES, sizeof *remote);
    uint64_t total = 0;
    duo_fill(d, near, 3);
    for (size_t i = 0; i < PIECES; i++) { /* piece i lands at the place of piece 7 i */
        size_t len = i % (STEP + 1), to = i * 7 % PIECES;
        local[i] = area_local(near, i * STEP, len);
        WEFT_OK(weft_remote_slice(&far.remote, to * STEP, len, &remote[i]));
        total += len;
    }
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = local,
                          .nlocal = PIECES, .remote = remote, .nremote = PIECES};
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), total);
    x.op = WEFT_XFER_READ;
    for (size_t i = 0; i < PIECES; i++)
        test_zero(local[i].addr, local[i].len);
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), total);
    duo_check(d, near, 0, near.len, 3);
    free(local);
    free(remote);
}

static void arrays_are_the_callers_after_post(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, MIB, 0, 0), far = duo_area(d, B, MIB, 0, 0);
    struct weft_local local = area_local(near, 0, MIB);
    struct weft_remote remote = far.remote;
    uint64_t offset = 0;
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = &local,
                          .nlocal = 1, .remote = &remote, .nremote = 1, .remote_offset = &offset};
    weft_op_t op;
    duo_fill(d, near, 1);
    WEFT_OK(weft_post(d->conn, &x, &op));
    memset(&local, 0xff, sizeof local);
    memset(&remote, 0xff, sizeof remote);
    memset(&x, 0xff, sizeof x);
    offset = UINT64_MAX;
    duo_wait(d, A, op, 0);
    duo_check(d, far, 0, MIB, 1);
}

/* --- asynchronous -------------------------------------------------------------------------- */

static struct weft_xfer xfer(enum weft_xfer_op op, const struct weft_local *local,
                             const struct weft_remote *remote)
{
    return (struct weft_xfer){.struct_size = sizeof(struct weft_xfer), .op = op, .local = local,
                              .nlocal = 1, .remote = remote, .nremote = 1};
}

/* So many at once, with the promise of more but for the last. */
static void in_flight(struct duo *d, size_t n, size_t len)
{
    struct area near = duo_area(d, A, n * len, 0, 0), far = duo_area(d, B, n * len, 0, 0);
    static weft_op_t ops[500];
    assert_true(n <= ARRAY_LEN(ops));
    duo_fill(d, near, 1);
    for (size_t i = 0; i < n; i++) {
        struct weft_local local = area_local(near, i * len, len);
        struct weft_remote piece;
        WEFT_OK(weft_remote_slice(&far.remote, i * len, len, &piece));
        struct weft_xfer x = xfer(WEFT_XFER_WRITE, &local, &piece);
        x.flags = i + 1 < n ? WEFT_XFER_MORE : 0;
        WEFT_OK(weft_post(d->conn, &x, &ops[i]));
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(duo_wait(d, A, ops[n - 1 - i], 0).bytes, len);
    duo_check(d, far, 0, n * len, 1);
}

/* Some fill what a transport sends in one turn, and are not cut into chunks. */
static void many_in_flight(void **state)
{
    in_flight(*state, 500, 3000);
    in_flight(*state, 32, 16384);
    in_flight(*state, 31, 16384);
}

/* Far more than a link takes at once, of one kind, and then of the other: all get their turn. */
static void behind_thousands_of_the_other_kind(void **state)
{
    struct duo *d = *state;
    enum { N = 3000 };
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_local local = area_local(near, 0, 64);
    struct weft_xfer write = xfer(WEFT_XFER_WRITE, &local, &far.remote);
    struct weft_xfer notify = {.struct_size = sizeof notify, .op = WEFT_XFER_NOTIFY,
                               .notify = "", .notify_len = 0};
    weft_op_t op;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++)
            WEFT_OK(weft_post(d->conn, round ? &write : &notify, NULL));
        WEFT_OK(weft_post(d->conn, round ? &notify : &write, &op));
        duo_wait(d, A, op, 0);
    }
    for (int i = 0; i < N + 1; i++)
        duo_notif(d, B, 0, 0, 0);
}

static void poll_tells_once(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_local local = area_local(near, 0, 64);
    struct weft_xfer x = xfer(WEFT_XFER_WRITE, &local, &far.remote);
    struct weft_op_status status = {.status = 5};
    weft_op_t op;
    WEFT_OK(weft_post(d->conn, &x, &op));
    assert_true(op != 0);
    int rc = 0;
    TEST_UNTIL((rc = weft_op_poll(op, &status)), sched_yield(), "weft_op_poll");
    assert_int_equal(rc, 1);
    assert_int_equal(status.status, 0);
    assert_int_equal(status.bytes, 64);
    WEFT_FAILS(WEFT_EHANDLE, weft_op_poll(op, &status));
    WEFT_FAILS(WEFT_EHANDLE, weft_op_wait(op, 0, &status));
    WEFT_FAILS(WEFT_EHANDLE, weft_op_cancel(op));
}

static void nobody_asks(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_local local = area_local(near, 0, 64);
    struct weft_xfer x = xfer(WEFT_XFER_WRITE, &local, &far.remote);
    struct weft_conn_stats stats;
    duo_fill(d, near, 1);
    for (int i = 0; i < 100; i++)
        WEFT_OK(weft_post(d->conn, &x, NULL));
    TEST_UNTIL((weft_conn_stats(d->conn, &stats), stats.ops_done == 100), test_sleep_ms(1),
               "operations that nobody asks for");
    duo_check(d, far, 0, 64, 1);
}

/* A receive that nothing answers is an operation that is never done by itself. */
static void wait_gives_up_and_the_handle_lives(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_op_status status;
    weft_op_t op = duo_recv(d, A, 0, near, 0, 64);
    for (int ms = 0; ms <= 20; ms += 10) {
        WEFT_FAILS(WEFT_ETIMEOUT, weft_op_wait(op, ms, &status));
        assert_int_equal(status.status, WEFT_EAGAIN);
        assert_int_equal(weft_op_poll(op, NULL), 0);
    }
    duo_wait(d, B, duo_send(d, B, 0, far, 0, 10), 0);
    assert_int_equal(duo_wait(d, A, op, 0).bytes, 10);
}

/* --- canceled ------------------------------------------------------------------------------ */

static void cancel_ends_it_either_way(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 4 * MIB, 0, 0), far = duo_area(d, B, 4 * MIB, 0, 0);
    struct weft_local local = area_local(near, 0, 4 * MIB);
    duo_fill(d, near, 1);
    for (int i = 0; i < 20; i++) {
        struct weft_xfer x = xfer(i & 1 ? WEFT_XFER_WRITE : WEFT_XFER_READ, &local, &far.remote);
        struct weft_op_status status;
        weft_op_t op;
        WEFT_OK(weft_post(d->conn, &x, &op));
        assert_int_equal(weft_op_cancel(op), 0);
        assert_int_equal(weft_op_cancel(op), 0); /* the handle lives until it is waited for */
        int rc = weft_op_wait(op, T, &status);
        CHECK(rc == 0 || rc == WEFT_ECANCELED, "a canceled operation ended with %s",
              weft_err_name(rc));
        assert_int_equal(status.status, rc);
    }
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(d->conn, &info));
    assert_int_equal(info.state, WEFT_CONN_UP);
    assert_int_equal(weft_write(d->conn, near.addr, 64, &far.remote, 0, T), 64);
}

/* The peer is stopped: the call returns in time, and the memory is the caller's again. */
static void a_blocking_call_keeps_its_deadline(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 8 * MIB, 0, 0), far = duo_area(d, B, 8 * MIB, 0, 0);
    duo_fill(d, near, 1);
    test_peer_signal(&d->peer, SIGSTOP);
    uint64_t begin = weft_now();
    int64_t rc = weft_recv(d->conn, near.addr, 64, 50);
    assert_int_equal(rc, WEFT_ETIMEOUT);
    rc = weft_read(d->conn, near.addr, 8 * MIB, &far.remote, 0, 100);
    uint64_t took = (weft_now() - begin) / 1000000;
    CHECK(rc == WEFT_ETIMEOUT || rc == (int64_t)(8 * MIB), "a read of a stopped peer: %" PRId64,
          rc);
    CHECK(took < 150 + 1000 + 2000, "deadlines of 150 ms took %" PRIu64 " ms", took);
    duo_fill(d, near, 2);
    test_peer_signal(&d->peer, SIGCONT);
    test_sleep_ms(50);
    duo_check(d, near, 0, near.len, 2);
}

/* --- refused ------------------------------------------------------------------------------- */

static void post_refuses_nonsense(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_local local[2] = {area_local(near, 0, 8), area_local(near, 8, 8)};
    const struct weft_xfer good = xfer(WEFT_XFER_WRITE, local, &far.remote);
    struct weft_xfer bad[12];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[0].struct_size = 0;
    bad[1].op = 0;
    bad[2].op = 99;
    bad[3].flags = 0x80;
    bad[4].local = NULL;
    bad[5].remote = NULL;
    bad[6].nlocal = 2;
    bad[7].nremote = 0;
    bad[8].op = WEFT_XFER_ADD; /* with a local piece */
    bad[9].op = WEFT_XFER_NOTIFY;
    bad[10].notify_len = 5; /* without bytes */
    bad[11].op = WEFT_XFER_SEND; /* with a remote piece */
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        weft_op_t op = 77;
        int rc = weft_post(d->conn, &bad[i], &op);
        CHECK(rc == -EINVAL, "nonsense %zu gave %s", i, weft_err_name(rc));
        assert_int_equal(op, 77);
    }
    WEFT_FAILS(-EINVAL, weft_post(d->conn, NULL, NULL));
    struct weft_op_status status = {0};
    assert_int_equal(weft_transfer(d->conn, &bad[7], T, &status), -EINVAL);
    assert_int_equal(status.status, -EINVAL);
    CHECK(status.text[0], "a transfer that was refused says nothing");
    assert_int_equal(weft_transfer(d->conn, &good, T, NULL), 8);
}

/* Lengths beyond 32 bits are compared, not truncated. */
static void lengths_beyond_4_gib_are_judged_whole(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    const size_t lens[] = {(1ull << 32) + 8, 1ull << 32, (1ull << 40) + 1, SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        assert_true(weft_write(d->conn, near.addr, lens[i], &far.remote, 0, T) < 0);
        assert_true(weft_read(d->conn, near.addr, lens[i], &far.remote, 0, T) < 0);
        WEFT_FAILS(WEFT_EBOUNDS, weft_write(d->conn, near.addr, 8, &far.remote, lens[i], T));
    }
    struct weft_local local[2] = {{near.addr, SIZE_MAX - 7, 0}, {near.addr, 16, 0}};
    struct weft_remote remote[2] = {far.remote, far.remote};
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = local,
                          .nlocal = 2, .remote = remote, .nremote = 2};
    assert_true(weft_post(d->conn, &x, NULL) < 0);
    duo_check_zero(d, far, 0, 64);
}

#ifndef TEST_THREAD_SANITIZER /* its shadow of so much is larger than most machines */

/* More than 4 GiB in one operation, on little memory: the same MiB mapped again and again. */
static char *repeated(int fd, size_t times)
{
    char *at = mmap(NULL, times * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %m");
    for (size_t i = 0; i < times; i++)
        CHECK(mmap(at + i * MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
                  MAP_FAILED,
              "mmap: %m");
    return at;
}

/* Far into a mem: an offset that lost its upper half would be in the first MiB. */
static void beyond_4_gib(void **state)
{
    struct duo *d = *state;
    enum { TIMES = 4097 };
    const uint64_t at = (uint64_t)(TIMES - 1) * MIB + 5;
    const size_t len = MIB - 5;
    int fd = memfd_create("to", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)(2 * MIB)), 0);
    char *to = repeated(fd, TIMES), *from = malloc(MIB);
    CHECK(mmap(to + at - 5, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)MIB) != MAP_FAILED, "mmap: %m");
    weft_mem_t mem;
    struct weft_remote remote;
    test_fill(from, MIB, 1, 0);
    WEFT_OK(weft_mem_reg(d->b.endpoint, to, TIMES * MIB, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, to, TIMES * MIB, &remote));
    assert_int_equal(weft_write(d->conn, from, len, &remote, at, 20 * T), len);
    assert_true(test_differs(to + at, len, 1, 0) < 0);
    for (size_t i = 0; i < MIB; i++)
        CHECK(to[i] == 0, "byte %zu of the first MiB has changed", i);
    test_zero(from, MIB);
    assert_int_equal(weft_read(d->conn, from, len, &remote, at, 20 * T), len);
    assert_true(test_differs(from, len, 1, 0) < 0);
    WEFT_OK(weft_mem_dereg(mem));
    munmap(to, TIMES * MIB);
    free(from);
    close(fd);
}

static void more_than_4_gib_at_once(void **state)
{
    struct duo *d = *state;
    enum { TIMES = 4097 };
    size_t len = TIMES * MIB - 5;
    int from_fd = memfd_create("from", MFD_CLOEXEC), to_fd = memfd_create("to", MFD_CLOEXEC);
    assert_int_equal(ftruncate(from_fd, (off_t)MIB) | ftruncate(to_fd, (off_t)MIB), 0);
    char *from = repeated(from_fd, TIMES), *to = repeated(to_fd, TIMES);
    weft_mem_t mem;
    struct weft_remote remote;
    test_fill(from, MIB, 1, 0);
    WEFT_OK(weft_mem_reg(d->b.endpoint, to, TIMES * MIB, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, to, TIMES * MIB, &remote));
    /* a device in software on a processor in software takes a minute for it, and more if it is not alone */
    assert_int_equal(weft_write(d->conn, from, len, &remote, 5, 20 * T), len);
    /* the last piece but 5 bytes lies over the first: shifted by 5 */
    assert_true(test_differs(to + 5, MIB - 5, 1, 0) < 0);
    test_zero(from, MIB);
    assert_int_equal(weft_read(d->conn, from, len, &remote, 5, 20 * T), len);
    assert_true(test_differs(from, MIB - 5, 1, 0) < 0);
    WEFT_OK(weft_mem_dereg(mem));
    munmap(from, TIMES * MIB);
    munmap(to, TIMES * MIB);
    close(from_fd);
    close(to_fd);
}

#endif

/* Messages fill the link; when they are through, data must get the room that they leave. */
static void a_write_behind_many_messages(void **state)
{
    struct duo *d = *state;
    enum { N = 1000 };
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct area into = duo_area(d, B, 64, 0, 0);
    struct weft_local local = area_local(near, 0, 64);
    static weft_op_t sends[N];
    duo_fill(d, near, 1);
    test_peer_signal(&d->peer, SIGSTOP);
    for (int i = 0; i < N; i++)
        sends[i] = duo_send(d, A, 0, near, 0, 1);
    weft_op_t write = duo_post(d, A, 0,
                               WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                         .nlocal = 1, .remote = &far.remote, .nremote = 1));
    test_peer_signal(&d->peer, SIGCONT);
    duo_wait(d, A, write, 0);
    duo_check(d, far, 0, 64, 1);
    for (int i = 0; i < N; i++)
        duo_wait(d, B, duo_recv(d, B, 0, into, 0, 64), 0);
    for (int i = 0; i < N; i++)
        duo_wait(d, A, sends[i], 0);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(every_size_both_ways),
        IN_BOTH(memory_that_was_not_registered),
        IN_BOTH(the_ends_of_a_remote),
        IN_BOTH(vectors_pair_piece_by_piece),
        IN_BOTH(lists_of_thousands),
        IN_BOTH(arrays_are_the_callers_after_post),
        IN_BOTH(many_in_flight),
        IN_BOTH(behind_thousands_of_the_other_kind),
        IN_BOTH(poll_tells_once),
        IN_BOTH(nobody_asks),
        IN_BOTH(wait_gives_up_and_the_handle_lives),
        IN_BOTH(cancel_ends_it_either_way),
        IN_TWO(a_blocking_call_keeps_its_deadline),
        IN_BOTH(post_refuses_nonsense),
        IN_BOTH(lengths_beyond_4_gib_are_judged_whole),
#ifndef TEST_THREAD_SANITIZER
        IN_ONE(beyond_4_gib),
        IN_ONE(more_than_4_gib_at_once),
#endif
        IN_TWO(a_write_behind_many_messages),
    };
    return DUO_MAIN("endpoint_transfer", tests);
}
