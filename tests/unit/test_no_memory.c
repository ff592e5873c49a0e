/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out: the n-th allocation of the library fails, for each n, while two endpoints
 * meet, use every operation and part. Each call may then fail, but with a code, in time, and with
 * nothing left behind: a sanitizer sees what is lost or used after it was freed. The same under
 * endpoints that live on.
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
    CHECK(ms < (uint64_t)TEST_DEADLINE_MS, "without allocation %d a round took %" PRIu64 " ms", n, ms);
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

/* --- a long life --------------------------------------------------------------------------- */

/*
 * The same under two endpoints that live on: one allocation of each round fails. What was asked then
 * ends well or with -ENOMEM, and the second time well; or a conn is given up, which says so on both
 * sides, and the next round has another. The conn beside it stays up in any case.
 */
#define T TEST_DEADLINE_MS
#define HELD 64      /* receives that each round leaves behind: so the pools have to grow */
#define BURST_STEP 4 /* by so much longer in each round */
#define BURST_MOST 600

struct life {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;  /* given up and made again */
    weft_conn_t quiet, there; /* lives all the time */
    weft_mem_t mem;
    struct weft_remote remote;
    weft_op_t *held;
    int nheld, lost; /* receives, conns */
    unsigned char far[LARGE], from[LARGE], into[LARGE];
};

static void life_join(struct life *l, weft_conn_t *conn, weft_conn_t *other)
{
    char bytes[WEFT_METADATA_MAX];
    int len = WEFT_OK(weft_endpoint_metadata(l->b, bytes, sizeof bytes));
    WEFT_OK(weft_endpoint_connect(l->a, bytes, (size_t)len, NULL, conn));
    WEFT_OK(weft_endpoint_accept(l->b, T, other));
}

static bool is_down(weft_conn_t conn, struct weft_conn_info *info)
{
    WEFT_OK(weft_conn_info(conn, info));
    return info->state == WEFT_CONN_DOWN;
}

static bool gave_up(const struct life *l)
{
    struct weft_conn_info info;
    return is_down(l->conn, &info) || is_down(l->other, &info);
}

/* How something ended that may be done again. True: well. */
static bool well(const struct life *l, int64_t rc, const char *what)
{
    CHECK(rc >= 0 || rc == -ENOMEM || gave_up(l), "%s: %s: %s", what, weft_err_name((int)rc),
          weft_last_error());
    return rc >= 0;
}

/* The value of a call that has to work the second time. */
#define AGAIN(l, call)                                                                            \
    ({                                                                                            \
        int64_t again_ = (call);                                                                  \
        if (!well(l, again_, #call) && !gave_up(l))                                               \
            again_ = (call);                                                                      \
        CHECK(again_ >= 0 || gave_up(l), "%s, for the second time: %s: %s", #call,                \
              weft_err_name((int)again_), weft_last_error());                                     \
        again_;                                                                                   \
    })

static int message(weft_conn_t conn, enum weft_xfer_op op, void *addr, size_t len, weft_op_t *out)
{
    struct weft_local local = {.addr = addr, .len = len};
    return weft_post(conn, WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1), out);
}

/* A message, its receive posted first or late. What one side says of it is true of the other. */
static void exchange(struct life *l, size_t len, bool late)
{
    weft_op_t send, recv;
    int sent = -ENOMEM, got = -ENOMEM;
    for (int i = 0; i < 3 && sent && !gave_up(l); i++) {
        test_fill(l->from, len, 9, 0);
        test_zero(l->into, len);
        bool posted = !late &&
                      AGAIN(l, message(l->other, WEFT_XFER_RECV, l->into, len, &recv)) == 0;
        if (AGAIN(l, message(l->conn, WEFT_XFER_SEND, l->from, len, &send)) < 0)
            break;
        if (late) {
            test_sleep_ms(1);
            posted = AGAIN(l, message(l->other, WEFT_XFER_RECV, l->into, len, &recv)) == 0;
        }
        sent = weft_op_wait(send, T, NULL);
        well(l, sent, "a message");
        if (posted && sent)
            weft_op_cancel(recv); /* its message may never have left */
        if (posted)
            got = weft_op_wait(recv, T, NULL);
        CHECK(sent || got == 0 || gave_up(l), "a message was delivered, its receive gave %s",
              weft_err_name(got));
        CHECK(sent || got || test_differs(l->into, len, 9, 0) < 0, "a message is wrong");
    }
    CHECK(sent == 0 || gave_up(l), "a message cannot be sent: %s", weft_err_name(sent));
}

/* Announced, so that all of them are under way at once. */
static void burst(struct life *l, int n)
{
    static weft_op_t ops[BURST_MOST];
    struct weft_local local = {.addr = l->from, .len = 8};
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = &local,
                          .nlocal = 1,
                          .remote = &l->remote,
                          .nremote = 1};
    int posted = 0;
    n = n < BURST_MOST ? n : BURST_MOST;
    for (int i = 0; i < n; i++) {
        x.flags = i + 1 < n ? WEFT_XFER_MORE : 0;
        if (AGAIN(l, weft_post(l->conn, &x, &ops[posted])) == 0)
            posted++;
    }
    for (int i = 0; i < posted; i++)
        well(l, weft_op_wait(ops[i], T, NULL), "one of many writes");
}

static void notified(struct life *l, size_t len)
{
    struct weft_notif notif;
    if (AGAIN(l, weft_notify(l->conn, l->from, len, T)) < 0)
        return; /* the conn is gone; whether it arrived is open */
    int64_t rc = AGAIN(l, weft_endpoint_notif(l->b, T, &notif));
    CHECK(rc == 0 && notif.len == len, "a notification that was delivered is not there");
    weft_notif_free(&notif);
}

static void moved(struct life *l)
{
    struct weft_local local[3] = {
        {l->from, 10, 0}, {l->from + 10, 0, 0}, {l->from + 10, 20000, 0}};
    struct weft_remote remote[3] = {l->remote, l->remote, l->remote};
    uint64_t offset[3] = {0, 0, 10};
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = 3,
                          .remote = remote,
                          .nremote = 3,
                          .remote_offset = offset};
    test_fill(l->from, LARGE, 8, 0);
    test_zero(l->far, LARGE);
    int64_t rc = AGAIN(l, weft_transfer(l->conn, &x, T, NULL));
    CHECK(rc < 0 || test_differs(l->far, 20010, 8, 0) < 0, "a vector is wrong");
    rc = AGAIN(l, weft_write(l->conn, l->from, LARGE, &l->remote, 0, T));
    CHECK(rc < 0 || test_differs(l->far, LARGE, 8, 0) < 0, "a write is wrong");
    test_zero(l->into, LARGE);
    rc = AGAIN(l, weft_read(l->conn, l->into, LARGE, &l->remote, 0, T));
    CHECK(rc < 0 || test_differs(l->into, LARGE, 8, 0) < 0, "a read is wrong");
    test_set_word(l->far, 5);
    rc = AGAIN(l, weft_add(l->conn, &l->remote, 0, 2, NULL, T));
    CHECK(rc < 0 || test_get_word(l->far) == 7, "an addition is wrong");
}

static void registered(struct life *l)
{
    weft_mem_t mem;
    if (AGAIN(l, weft_mem_reg(l->a, l->into, LARGE, NULL, &mem)) == 0)
        WEFT_OK(weft_mem_dereg(mem));
}

/* Another conn, as far as it gets; then without a failure, if it was one. */
static void connected(struct life *l)
{
    char bytes[WEFT_METADATA_MAX];
    weft_conn_t conn = 0, other = 0;
    int len = (int)AGAIN(l, weft_endpoint_metadata(l->b, bytes, sizeof bytes));
    int rc = len < 0
                 ? len
                 : weft_endpoint_connect(l->a, bytes, (size_t)len,
                                         WEFT_OPTS(weft_connect_opts, .timeout_ms = 2000), &conn);
    if (rc == 0)
        rc = weft_endpoint_accept(l->b, 200, &other);
    CHECK(rc == 0 || *weft_last_error(), "connecting failed without a sentence");
    if (conn)
        WEFT_OK(weft_conn_close(conn));
    if (other)
        WEFT_OK(weft_conn_close(other));
}

static void hold(struct life *l)
{
    l->held = __real_realloc(l->held, (size_t)(l->nheld + HELD) * sizeof *l->held);
    for (int i = 0; i < HELD; i++) {
        int rc = message(l->quiet, WEFT_XFER_RECV, NULL, 0, &l->held[l->nheld]);
        CHECK(rc == 0 || rc == -ENOMEM, "a receive: %s", weft_err_name(rc));
        l->nheld += rc == 0;
    }
}

/* The conn that was given up says why, at both ends. */
static void join_again(struct life *l)
{
    struct weft_conn_info here, there;
    TEST_UNTIL(is_down(l->conn, &here) && is_down(l->other, &there), test_sleep_ms(1),
               "the other end to notice that a conn was given up");
    CHECK(here.status == -ENOMEM || there.status == -ENOMEM, "a conn was given up: %s, %s",
          here.why, there.why);
    CHECK(*here.why && *there.why, "a conn was given up without a sentence");
    struct weft_notif notif;
    while (weft_endpoint_notif(l->b, 0, &notif) == 0)
        weft_notif_free(&notif); /* it had arrived, and nobody was told */
    WEFT_OK(weft_conn_close(l->conn));
    WEFT_OK(weft_conn_close(l->other));
    life_join(l, &l->conn, &l->other);
    l->lost++;
}

static void all_of_it(struct life *l, int n)
{
    moved(l);
    registered(l);
    exchange(l, 100, false);
    exchange(l, 100, true);
    exchange(l, LARGE, false);
    exchange(l, LARGE, true);
    notified(l, 10);
    notified(l, LARGE);
    burst(l, BURST_STEP * n);
}

/* Whoever called while accepting failed is not in the way. */
static void accept_rest(struct life *l)
{
    weft_conn_t conn;
    while (weft_endpoint_accept(l->b, 0, &conn) == 0)
        WEFT_OK(weft_conn_close(conn));
}

/* True: an allocation has failed. */
static bool round_without(struct life *l, int n, bool connecting)
{
    atomic_store(&left, n);
    if (connecting) {
        connected(l);
    } else {
        hold(l);
        all_of_it(l, n);
    }
    bool failed = atomic_exchange(&left, -1) < 0;
    if (gave_up(l))
        join_again(l);
    accept_rest(l);
    CHECK(weft_notify(l->quiet, "", 0, T) == 0, "the other conn: %s", weft_last_error());
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(l->b, T, &notif));
    CHECK(notif.conn == l->there, "a notification was left over");
    weft_notif_free(&notif);
    return failed;
}

static void life_open(struct life *l, const char *transport)
{
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = transport};
    WEFT_OK(weft_endpoint_open(&opts, &l->a));
    WEFT_OK(weft_endpoint_open(&opts, &l->b));
    life_join(l, &l->conn, &l->other);
    life_join(l, &l->quiet, &l->there);
    WEFT_OK(weft_mem_reg(l->b, l->far, LARGE, NULL, &l->mem));
    WEFT_OK(weft_mem_advertise(l->mem, l->far, LARGE, &l->remote));
}

static void life_close(struct life *l)
{
    WEFT_OK(weft_endpoint_close(l->a));
    WEFT_OK(weft_endpoint_close(l->b));
    free(l->held);
    free(l);
}

static void one_fails_in_each_round(void **state)
{
    struct life *l = calloc(1, sizeof *l);
    int fds = test_count_fds(), n = 0;
    life_open(l, *state);
    for (int connecting = 0; connecting < 2; connecting++) {
        for (n = 0; round_without(l, n, connecting); n++)
            CHECK(n < MOST, "a round has more than %d allocations", MOST);
        CHECK(n > 10, "a round has but %d allocations", n);
        CHECK(!round_without(l, MOST, connecting), "more of them each time");
    }
    WEFT_OK(weft_conn_close(l->quiet));
    for (int i = 0; i < l->nheld; i++)
        CHECK(weft_op_wait(l->held[i], T, NULL) == WEFT_ECLOSED, "receive %d was lost", i);
    life_close(l);
    assert_int_equal(test_count_fds(), fds);
}

/* --- a command ----------------------------------------------------------------------------- */

/*
 * A write of one piece that finds no memory for its command asks once more a moment later, so a
 * single failure does not show. Here it is a list that has more pieces than any before it: so the
 * last of its commands are new, and one of these is refused.
 */
#define LISTS 16
#define MORE_PIECES 4 /* than the list before: so many commands are new */
#define PIECE 9000    /* two of them are too much for one command */

static int write_list(struct life *l, int pieces, int refused, struct weft_op_status *status)
{
    struct weft_local local[LISTS * MORE_PIECES];
    struct weft_remote remote[LISTS * MORE_PIECES];
    uint64_t offset[LISTS * MORE_PIECES];
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = (size_t)pieces,
                          .remote = remote,
                          .nremote = (size_t)pieces,
                          .remote_offset = offset};
    weft_op_t op;
    for (int i = 0; i < pieces; i++) {
        offset[i] = 0; /* all are the same bytes */
        local[i] = (struct weft_local){.addr = l->from, .len = PIECE};
        remote[i] = l->remote;
    }
    test_fill(l->from, LARGE, (uint64_t)pieces, 0);
    test_zero(l->far, LARGE);
    atomic_store(&left, refused);
    WEFT_OK(weft_post(l->conn, &x, &op));
    int rc = weft_op_wait(op, T, status);
    atomic_store(&left, -1);
    CHECK(rc || test_differs(l->far, PIECE, (uint64_t)pieces, 0) < 0,
          "a list that was written is wrong");
    return rc;
}

static void one_command_fails(void **state)
{
    struct life *l = calloc(1, sizeof *l);
    struct weft_op_status status;
    int failed = 0;
    life_open(l, *state);
    for (int n = 1; n <= LISTS; n++) {
        /* the first allocation is the list itself */
        int rc = write_list(l, n * MORE_PIECES, 1 + n % MORE_PIECES, &status);
        CHECK(rc == 0 || (rc == -ENOMEM && !strcmp(status.text, "no memory for a command")),
              "a list: %s: %s", weft_err_name(rc), status.text);
        failed += rc != 0;
        rc = write_list(l, n * MORE_PIECES, -1, &status);
        CHECK(rc == 0, "the list again: %s: %s", weft_err_name(rc), status.text);
    }
    CHECK(failed > LISTS / 2, "%d of %d lists lacked a command", failed, LISTS);
    life_close(l);
}

int main(void)
{
    weft_config_set("WEFT_CANCEL_GRACE", "200");
    weft_config_set("WEFT_LOG", "error");
    const struct CMUnitTest tests[] = {
        {"over local", each_allocation_fails_once, NULL, NULL, (void *)"local"},
        {"over tcp", each_allocation_fails_once, NULL, NULL, (void *)"tcp"},
        {"a long life over local", one_fails_in_each_round, NULL, NULL, (void *)"local"},
        {"a long life over tcp", one_fails_in_each_round, NULL, NULL, (void *)"tcp"},
        {"a command over local", one_command_fails, NULL, NULL, (void *)"local"},
        {"a command over tcp", one_command_fails, NULL, NULL, (void *)"tcp"},
    };
    return cmocka_run_group_tests_name("no_memory", tests, NULL, NULL);
}
