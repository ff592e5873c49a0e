/* SPDX-License-Identifier: Apache-2.0 */
/* core/lane.c: who hands operations to the nics when the endpoint has several threads, and how many at once. */
#include "contract/duo.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#define T TEST_DEADLINE_MS
#define SLOTS 32
#define MOST 32 /* of core/lane.c: as many wait over a link, if more is promised */
#define LEN ((size_t)128 << 10)
#define ROUNDS 125

/* What is sent by threads of the library, and by that of the test; in how many calls. */
static _Atomic(uint64_t) by_threads, calls;
static uint64_t by_caller;
static _Thread_local bool is_caller;

static ssize_t count(ssize_t n)
{
    atomic_fetch_add(&calls, 1);
    if (n > 0 && is_caller)
        by_caller += (uint64_t)n;
    else if (n > 0)
        atomic_fetch_add(&by_threads, (uint64_t)n);
    return n;
}

/* In the place of libc's. */
ssize_t send(int fd, const void *data, size_t len, int flags)
{
    ssize_t (*real)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
    return count(real(fd, data, len, flags));
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    ssize_t (*real)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    return count(real(fd, msg, flags));
}

ssize_t splice(int fd, off64_t *from, int to, off64_t *at, size_t len, unsigned flags)
{
    ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned) = dlsym(RTLD_NEXT, "splice");
    return count(real(fd, from, to, at, len, flags));
}

struct two {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    struct test_mem from, to;
    weft_mem_t from_mem, to_mem;
    struct weft_remote remote;
    weft_op_t ops[SLOTS];
};

static void two_open(struct two *t, int threads)
{
    struct weft_endpoint_opts opts = {
        .struct_size = sizeof opts, .transport = "tcp", .progress_threads = threads};
    struct weft_conn_info info;
    WEFT_OK(weft_endpoint_open(&opts, &t->a));
    WEFT_OK(weft_endpoint_open(&opts, &t->b));
    duo_join(t->a, t->b, &t->conn, &t->other);
    WEFT_OK(weft_conn_info(t->conn, &info));
    assert_int_equal(info.links, threads);
    test_mem_open(&t->from, SLOTS * LEN, 1);
    test_mem_open(&t->to, SLOTS * LEN, 2);
    test_fill(t->from.at, SLOTS * LEN, 1, 0);
    WEFT_OK(weft_mem_reg(t->a, t->from.at, SLOTS * LEN, NULL, &t->from_mem));
    WEFT_OK(weft_mem_reg(t->b, t->to.at, SLOTS * LEN, NULL, &t->to_mem));
    WEFT_OK(weft_mem_advertise(t->to_mem, t->to.at, SLOTS * LEN, &t->remote));
}

static void two_close(struct two *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
    test_mem_close(&t->from);
    test_mem_close(&t->to);
}

static void post(struct two *t, size_t slot, size_t len, uint32_t flags)
{
    uint64_t offset = slot * len;
    struct weft_local local = {t->from.at + offset, len, t->from_mem};
    WEFT_OK(weft_post(t->conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &t->remote, .nremote = 1, .remote_offset = &offset,
                                .flags = flags),
                      &t->ops[slot]));
}

/* Nobody waits for it. Each has bytes of its own: the threads of two links write them at the same time. */
static void post_unasked(struct two *t, size_t slot, uint32_t flags)
{
    uint64_t offset = slot * 64;
    struct weft_local local = {t->from.at + offset, 64, t->from_mem};
    WEFT_OK(weft_post(t->conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &t->remote, .nremote = 1, .remote_offset = &offset,
                                .flags = flags),
                      NULL));
}

static void wait_all(struct two *t)
{
    for (size_t i = 0; i < SLOTS; i++)
        assert_int_equal(weft_op_wait(t->ops[i], T, NULL), 0);
}

/* Who posts would be one thread for all lanes. It may send the first ones, when nothing is under way: of a round
 * one over each link. */
static void what_is_long_is_left_to_the_threads(void **state)
{
    (void)state;
    struct two t = {0};
    is_caller = true;
    two_open(&t, 2);
    by_caller = 0;
    by_threads = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < SLOTS; i++)
            post(&t, i, LEN, 0);
        wait_all(&t);
    }
    assert_true(test_differs(t.to.at, SLOTS * LEN, 1, 0) < 0);
    uint64_t all = by_caller + by_threads;
    assert_true(all >= ROUNDS * SLOTS * LEN);
    CHECK(by_caller < all / 8, "the caller sent %" PRIu64 " of %" PRIu64 " bytes", by_caller, all);
    two_close(&t);
}

/* Over several links, too: none of them while the threads sleep and more is promised. */
static void what_is_promised_goes_together(void **state)
{
    (void)state;
    struct two t = {0};
    two_open(&t, 2);
    for (int round = 0; round < 5; round++) {
        usleep(100000); /* until the threads sleep */
        calls = 0;
        for (size_t i = 0; i + 1 < SLOTS; i++)
            post(&t, i, 64, WEFT_XFER_MORE);
        assert_int_equal(calls, 0);
        post(&t, SLOTS - 1, 64, 0);
        assert_true(calls > 0);
        wait_all(&t);
    }
    assert_true(test_differs(t.to.at, SLOTS * 64, 1, 0) < 0);
    usleep(100000);
    calls = 0;
    /* the promise is not kept: so many wait over each of two links, no more */
    for (size_t i = 0; i < (size_t)MOST * 2; i++)
        post_unasked(&t, i, WEFT_XFER_MORE);
    assert_true(calls > 0);
    two_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_long_is_left_to_the_threads),
                                       cmocka_unit_test(what_is_promised_goes_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
