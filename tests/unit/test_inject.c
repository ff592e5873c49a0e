/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SENDs that nobody will ask for (WEFT_INJECT): copied at once, whether they may go or have to wait, and counted when they end
 * (core/post.c, core/match.c).
 */
#include "contract/duo.h"

#include "conn.h"

#define T TEST_DEADLINE_MS
#define N (2 * WEFT__WINDOW + 50) /* more than may be under way */
#define EAGER 8000                /* short enough to go with its payload: WEFT_EAGER_WINDOW has room for 32... */
#define WAITING 100               /* of these */

static const char *const transports[] = {"tcp", "local"};

struct two {
    const char *transport;
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    char from[WEFT_INJECT + 1], to[WEFT_INJECT + 1];
};

static void two_open(struct two *t, const char *transport)
{
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = transport, .progress_threads = 1};
    *t = (struct two){.transport = transport};
    WEFT_OK(weft_endpoint_open(&opts, &t->a));
    WEFT_OK(weft_endpoint_open(&opts, &t->b));
}

static void two_close(struct two *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
}

/* Over each transport one after the other. */
static void over_each(void (*test)(struct two *t), bool joined)
{
    static struct two t;
    for (size_t k = 0; k < ARRAY_LEN(transports); k++) {
        two_open(&t, transports[k]);
        if (joined)
            duo_join(t.a, t.b, &t.conn, &t.other);
        test(&t);
        two_close(&t);
    }
}

static int send_pieces(const struct two *t, const struct weft_local *local, size_t n)
{
    return weft_post(t->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = local, .nlocal = n), NULL);
}

/* Of the same memory each time, which is other bytes as soon as it is posted. */
static void inject(struct two *t, uint64_t seed, size_t len)
{
    struct weft_local local[] = {
        {.addr = t->from, .len = len / 3}, {.addr = NULL}, {.addr = t->from + len / 3, .len = len - len / 3}};
    test_fill(t->from, len, seed, 0);
    WEFT_OK(send_pieces(t, local, ARRAY_LEN(local)));
    memset(t->from, 0xee, len);
}

static weft_op_t receive(struct two *t, size_t room)
{
    struct weft_local local = {.addr = t->to, .len = room};
    weft_op_t op;
    WEFT_OK(weft_post(t->other, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1), &op));
    return op;
}

static void expect(struct two *t, uint64_t seed, size_t len)
{
    struct weft_op_status status;
    int rc = weft_op_wait(receive(t, sizeof t->to), T, &status);
    CHECK(rc == 0, "%s: message %d: %s", t->transport, (int)seed, weft_last_error());
    assert_int_equal(status.bytes, len);
    assert_true(test_differs(t->to, len, seed, 0) < 0);
}

/* How many have ended, of those that were posted. */
static void expect_ended(const struct two *t, uint64_t done, uint64_t failed)
{
    struct weft_conn_stats s;
    TEST_UNTIL((weft_conn_stats(t->conn, &s), s.ops_done + s.ops_failed == done + failed), test_sleep_ms(1),
               "operations that nobody asks for");
    assert_int_equal(s.ops_posted, done + failed);
    assert_int_equal(s.ops_done, done);
}

static size_t len_of(uint64_t i)
{
    return i % (WEFT_INJECT + 1);
}

static void so_many_come(struct two *t, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        inject(t, i, len_of(i));
    for (uint64_t i = 0; i < n; i++)
        expect(t, i, len_of(i));
    expect_ended(t, n, 0);
}

/* Those behind the first thousand wait. */
static void all_come(struct two *t)
{
    so_many_come(t, N);
}

static void more_than_may_be_under_way(void **state)
{
    (void)state;
    over_each(all_come, true);
}

static void all_lengths_come(struct two *t)
{
    so_many_come(t, WEFT_INJECT + 1);
}

/* Each is fetched by the receiver, out of the copy. */
static void where_none_goes_with_its_payload(void **state)
{
    (void)state;
    weft_config_set("WEFT_EAGER", "0");
    over_each(all_lengths_come, true);
    weft_config_set("WEFT_EAGER", NULL);
}

/* The window has no room for the next long one, but would have for one that is injected behind it. */
static void none_overtakes(struct two *t)
{
    static char bytes[EAGER], into[EAGER];
    static weft_op_t sends[WAITING];
    struct weft_local local = {.addr = bytes, .len = EAGER};
    for (int i = 0; i < WAITING; i++)
        WEFT_OK(weft_post(t->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local, .nlocal = 1), &sends[i]));
    inject(t, 1, 1);
    for (int i = 0; i < WAITING; i++) {
        struct weft_local room = {.addr = into, .len = EAGER};
        struct weft_op_status status;
        weft_op_t recv;
        WEFT_OK(weft_post(t->other, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &room, .nlocal = 1), &recv));
        WEFT_OK(weft_op_wait(recv, T, &status));
        assert_int_equal(status.bytes, EAGER);
        WEFT_OK(weft_op_wait(sends[i], T, NULL));
    }
    expect(t, 1, 1);
    expect_ended(t, WAITING + 1, 0);
}

static void behind_one_that_waits(void **state)
{
    (void)state;
    over_each(none_overtakes, true);
}

/* Of memory that is in a mem, which is not in use by what was copied: neither by what has gone nor by what waits. */
static void a_mem_is_free_at_once(struct two *t)
{
    weft_mem_t mem;
    struct weft_local local = {.addr = t->from, .len = 10};
    WEFT_OK(weft_mem_reg(t->a, t->from, sizeof t->from, NULL, &mem));
    local.mem = mem;
    test_fill(t->from, local.len, 3, 0);
    for (int i = 0; i < N; i++)
        WEFT_OK(send_pieces(t, &local, 1));
    WEFT_OK(weft_mem_dereg(mem));
    for (int i = 0; i < N; i++)
        expect(t, 3, local.len);
    expect_ended(t, N, 0);
}

static void out_of_a_mem(void **state)
{
    (void)state;
    over_each(a_mem_is_free_at_once, true);
    weft_config_set("WEFT_EAGER", "0");
    over_each(a_mem_is_free_at_once, true);
    weft_config_set("WEFT_EAGER", NULL);
}

/* The conn is not up yet: they wait for that. */
static void before_it_is_up(struct two *t)
{
    char metadata[WEFT_METADATA_MAX];
    int len = weft_endpoint_metadata(t->b, metadata, sizeof metadata);
    WEFT_OK(weft_endpoint_connect(t->a, metadata, (size_t)len, WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &t->conn));
    for (uint64_t i = 0; i < 10; i++)
        inject(t, i, len_of(20 * i));
    WEFT_OK(weft_endpoint_accept(t->b, T, &t->other));
    for (uint64_t i = 0; i < 10; i++)
        expect(t, i, len_of(20 * i));
    expect_ended(t, 10, 0);
}

static void posted_on_a_conn_that_is_not_up(void **state)
{
    (void)state;
    over_each(before_it_is_up, false);
}

static void what_is_wrong_is_refused(struct two *t)
{
    struct weft_local wrong[] = {{.addr = NULL, .len = 1}, {.addr = t->from, .len = 1, .mem = 4711},
                                 {.addr = t->from, .len = SIZE_MAX}};
    assert_int_equal(send_pieces(t, &wrong[0], 1), -EINVAL);
    assert_int_equal(send_pieces(t, &wrong[1], 1), WEFT_EHANDLE);
    struct weft_local two[] = {{.addr = t->from, .len = 10}, wrong[2]};
    assert_int_equal(send_pieces(t, two, 2), -EINVAL);
    inject(t, 7, 100);
    expect(t, 7, 100); /* and nothing of them has gone */
    expect_ended(t, 1, 0);
}

static void nonsense(void **state)
{
    (void)state;
    over_each(what_is_wrong_is_refused, true);
}

static void one_finds_no_room(struct two *t)
{
    inject(t, 1, 100);
    inject(t, 2, 50);
    assert_int_equal(weft_op_wait(receive(t, 99), T, NULL), WEFT_ETRUNC);
    expect(t, 2, 50);
    expect_ended(t, 1, 1);
}

static void too_long_for_its_recv(void **state)
{
    (void)state;
    over_each(one_finds_no_room, true);
}

/* The peer takes none of them: half of them are under way, the others wait. */
static void nobody_takes(struct two *t)
{
    for (uint64_t i = 0; i < N; i++)
        inject(t, i, len_of(i));
    WEFT_OK(weft_conn_close(t->other));
    TEST_UNTIL(send_pieces(t, NULL, 0) == WEFT_EPEER, test_sleep_ms(1), "a conn that is down");
    struct weft_conn_stats s;
    WEFT_OK(weft_conn_stats(t->conn, &s)); /* some of the last, perhaps */
    expect_ended(t, 0, s.ops_posted);
}

static void a_conn_that_goes_down(void **state)
{
    (void)state;
    over_each(nobody_takes, true);
}

/* One byte more is not copied: it has an op, which is the message's until it is taken. */
static void the_longest_and_one_more(struct two *t)
{
    struct weft_local local = {.addr = t->from, .len = WEFT_INJECT + 1};
    test_fill(t->from, local.len, 1, 0);
    WEFT_OK(send_pieces(t, &local, 1));
    expect(t, 1, local.len);
    inject(t, 2, WEFT_INJECT);
    expect(t, 2, WEFT_INJECT);
    expect_ended(t, 2, 0);
}

static void the_limit(void **state)
{
    (void)state;
    over_each(the_longest_and_one_more, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_may_be_under_way),
        cmocka_unit_test(where_none_goes_with_its_payload),
        cmocka_unit_test(behind_one_that_waits),
        cmocka_unit_test(out_of_a_mem),
        cmocka_unit_test(posted_on_a_conn_that_is_not_up),
        cmocka_unit_test(nonsense),
        cmocka_unit_test(too_long_for_its_recv),
        cmocka_unit_test(a_conn_that_goes_down),
        cmocka_unit_test(the_limit),
    };
    return cmocka_run_group_tests_name("inject", tests, NULL, NULL);
}
