/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out: the n-th allocation of the library fails, for each n, while two endpoints
 * meet, use every operation and part. Each call may then fail, but with a code, in time, and with
 * nothing left behind: a sanitizer sees what is lost or used after it was freed.
 */
#include "helpers.h"

#include <stdatomic.h>

#define MOST 2000 /* far more allocations than a round needs */
#define SHORT_MS 200
#define LARGE 50000

/* The linker sends the library's calls here. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static _Atomic(int) left = -1; /* allocations until one fails; below 0: none will */

static bool fails(void)
{
    return atomic_load(&left) >= 0 && atomic_fetch_sub(&left, 1) == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

/* --- a round ------------------------------------------------------------------------------- */

struct round {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    weft_mem_t mem;
    weft_op_t ops[8];
    int nops;
    char far[LARGE], from[LARGE], into[LARGE];
};

static void post(struct round *r, weft_conn_t conn, enum weft_xfer_op op, void *addr, size_t len)
{
    struct weft_local local = {.addr = addr, .len = len};
    if (!weft_post(conn, WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1),
                   &r->ops[r->nops]))
        r->nops++;
}

static void wait_all(struct round *r)
{
    for (int i = 0; i < r->nops; i++) {
        if (weft_op_wait(r->ops[i], SHORT_MS, NULL) != WEFT_ETIMEOUT)
            continue;
        weft_op_cancel(r->ops[i]);
        weft_op_wait(r->ops[i], SHORT_MS, NULL);
    }
}

static void messages(struct round *r)
{
    post(r, r->other, WEFT_XFER_RECV, r->into, 100);
    post(r, r->other, WEFT_XFER_RECV, r->into, LARGE);
    post(r, r->other, WEFT_XFER_RECV, r->into, 10); /* its message is longer */
    post(r, r->conn, WEFT_XFER_SEND, r->from, 100);
    post(r, r->conn, WEFT_XFER_SEND, r->from, LARGE);
    post(r, r->conn, WEFT_XFER_SEND, r->from, 100);
    post(r, r->conn, WEFT_XFER_SEND, r->from, 100); /* no one takes it */
    wait_all(r);
}

static void notifications(struct round *r)
{
    struct weft_notif notif;
    weft_notify(r->conn, r->from, 10, SHORT_MS);
    weft_notify(r->conn, r->from, LARGE, SHORT_MS);
    if (!weft_endpoint_notif(r->b, 0, &notif))
        weft_notif_free(&notif);
}

static void one_sided(struct round *r)
{
    struct weft_remote remote;
    if (weft_mem_reg(r->b, r->far, LARGE, NULL, &r->mem))
        return;
    WEFT_OK(weft_mem_advertise(r->mem, r->far, LARGE, &remote));
    weft_write(r->conn, r->from, LARGE, &remote, 0, SHORT_MS);
    weft_read(r->conn, r->into, LARGE, &remote, 0, SHORT_MS);
    weft_add(r->conn, &remote, 0, 1, NULL, SHORT_MS);
    WEFT_OK(weft_mem_dereg(r->mem));
}

static void meet(struct round *r)
{
    char bytes[WEFT_METADATA_MAX];
    int len = weft_endpoint_metadata(r->b, bytes, sizeof bytes);
    if (len < 0 ||
        weft_endpoint_connect(r->a, bytes, (size_t)len,
                              WEFT_OPTS(weft_connect_opts, .timeout_ms = 2000), &r->conn) ||
        weft_endpoint_accept(r->b, 1000, &r->other))
        return;
    one_sided(r);
    messages(r);
    notifications(r);
}

/* The round in which allocation n fails. False: it had fewer. */
static bool play(const char *transport, int n)
{
    struct round *r = calloc(1, sizeof *r);
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = transport};
    uint64_t begin = weft_now();
    atomic_store(&left, n);
    if (weft_endpoint_open(&opts, &r->a) == 0) {
        if (weft_endpoint_open(&opts, &r->b) == 0) {
            meet(r);
            WEFT_OK(weft_endpoint_close(r->b));
        }
        WEFT_OK(weft_endpoint_close(r->a));
    }
    bool failed = atomic_exchange(&left, -1) < 0;
    uint64_t ms = (weft_now() - begin) / 1000000;
    CHECK(ms < TEST_DEADLINE_MS, "without allocation %d a round took %" PRIu64 " ms", n, ms);
    free(r);
    return failed;
}

static void each_allocation_fails_once(void **state)
{
    const char *transport = *state;
    CHECK(!play(transport, MOST), "a round has more than %d allocations", MOST);
    int fds = test_count_fds(), n = 0;
    while (play(transport, n))
        n++;
    CHECK(n > 20, "a round has but %d allocations", n);
    assert_int_equal(test_count_fds(), fds);
    CHECK(!play(transport, MOST), "it does not work any more");
}

int main(void)
{
    weft_config_set("WEFT_CANCEL_GRACE", "200");
    weft_config_set("WEFT_LOG", "error");
    const struct CMUnitTest tests[] = {
        {"over local", each_allocation_fails_once, NULL, NULL, (void *)"local"},
        {"over tcp", each_allocation_fails_once, NULL, NULL, (void *)"tcp"},
    };
    return cmocka_run_group_tests_name("no_memory", tests, NULL, NULL);
}
