/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: any bytes, any number, in the order sent, and after the data they announce. */
#include "duo.h"

#include <limits.h>

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)

/* Pattern `seed` of n bytes, sent from A. */
static void notify(struct duo *d, int conn, size_t n, uint64_t seed)
{
    char *bytes = malloc(n + 1);
    test_fill(bytes, n, seed, 0);
    int rc = weft_notify(d->a.conns[conn], bytes, n, T);
    CHECK(rc == 0, "weft_notify of %zu bytes: %s", n, weft_err_name(rc));
    free(bytes);
}

static void every_size_arrives_exactly(void **state)
{
    struct duo *d = *state;
    const size_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, 4000, 4096, 8191, 8192, 8193, 65537, MIB,
                            10 * MIB};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        notify(d, 0, sizes[i], i);
        duo_notif(d, B, 0, sizes[i], i);
    }
    duo_no_notif(d, B);
}

static void any_bytes(void **state)
{
    struct duo *d = *state;
    unsigned char all[512];
    for (int i = 0; i < 512; i++)
        all[i] = (unsigned char)i; /* zeros in the middle, too */
    WEFT_OK(weft_notify(d->conn, all, sizeof all, T));
    WEFT_OK(weft_notify(d->conn, "", 0, T));
    struct weft_notif n;
    WEFT_OK(weft_endpoint_notif(d->b.endpoint, T, &n));
    assert_int_equal(n.len, sizeof all);
    assert_memory_equal(n.data, all, sizeof all);
    weft_notif_free(&n);
    WEFT_OK(weft_endpoint_notif(d->b.endpoint, T, &n));
    assert_int_equal(n.len, 0);
    assert_non_null(n.data);
    assert_int_equal(n.conn, d->b.conns[0]);
    weft_notif_free(&n);
}

static void nonsense_is_refused(void **state)
{
    struct duo *d = *state;
    struct weft_notif n;
    WEFT_FAILS(-EINVAL, weft_notify(d->conn, NULL, 5, T));
    WEFT_FAILS(-EINVAL, weft_endpoint_notif(d->a.endpoint, 0, NULL));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_notif(d->a.endpoint, -7, &n)); /* no deadline is no wait */
    assert_string_equal(weft_last_error(), "no notification within 0 ms");
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_notif(d->a.endpoint, 20, &n));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_notif(d->a.endpoint, -2, &n)); /* has passed: not for ever */
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_notif(d->a.endpoint, INT_MIN, &n));
}

/* Blocking means: in the peer's queue. No waiting there any more. */
static void delivered_when_it_returns(void **state)
{
    struct duo *d = *state;
    for (size_t i = 0; i < 50; i++) {
        size_t len = i % 10 == 9 ? 200000 : i;
        notify(d, 0, len, i);
        struct weft_notif n;
        int rc = weft_endpoint_notif(d->b.endpoint, 0, &n);
        CHECK(rc == 0, "notification %zu of %zu bytes was not in the queue: %s", i, len,
              weft_err_name(rc));
        weft_notif_free(&n);
    }
}

static void many_come_in_the_order_sent(void **state)
{
    struct duo *d = *state;
    enum { N = 3000 };
    for (uint64_t i = 0; i < N; i++) {
        char bytes[100];
        size_t len = i % 97;
        test_fill(bytes, len, i, 0);
        WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes,
                                             .notify_len = len), NULL));
        memset(bytes, 0xff, sizeof bytes); /* it was copied */
    }
    for (uint64_t i = 0; i < N; i++)
        duo_notif(d, B, 0, i % 97, i);
    duo_no_notif(d, B);
}

static void small_and_large_keep_their_order(void **state)
{
    struct duo *d = *state;
    char *bytes = malloc(MIB);
    for (uint64_t i = 0; i < 30; i++) {
        size_t len = i % 3 ? i * 10 : MIB - i;
        test_fill(bytes, len, i, 0);
        WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes,
                                             .notify_len = len), NULL));
    }
    for (uint64_t i = 0; i < 30; i++)
        duo_notif(d, B, 0, i % 3 ? i * 10 : MIB - i, i);
    free(bytes);
}

/* They are on their way, and the peer has room for them, when the conns are closed: each by itself, or with their endpoint. */
static void posted_before_the_close(bool each_by_itself)
{
    enum { CONNS = 8, EACH = 1000 }; /* what is beyond WEFT__WINDOW has not begun, and ends with WEFT_ECLOSED */
    WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", "20000")); /* closing waits so long for them; a second is little for some providers */
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", NULL));
    weft_conn_t conns[CONNS], others[CONNS];
    int heard[CONNS] = {0};
    for (int c = 0; c < CONNS; c++)
        duo_join(a, b, &conns[c], &others[c]);
    weft_conn_t idle, its_other; /* closed first or last, it has nothing to wait for */
    duo_join(a, b, &idle, &its_other);
    for (int c = 0; c < CONNS; c++)
        for (int i = 0; i < EACH; i++)
            WEFT_OK(weft_post(conns[c], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = &i,
                                                  .notify_len = sizeof i), NULL));
    for (int c = 0; c < CONNS && each_by_itself; c++)
        WEFT_OK(weft_conn_close(conns[c]));
    WEFT_OK(weft_endpoint_close(a));
    for (int n = 0; n < CONNS * EACH; n++) {
        struct weft_notif got;
        int c = 0, rc = weft_endpoint_notif(b, T, &got);
        CHECK(rc == 0, "of %d notifications %d have come: %s", CONNS * EACH, n, weft_err_name(rc));
        while (c < CONNS && got.conn != others[c])
            c++;
        assert_true(c < CONNS);
        assert_int_equal(got.len, sizeof(int));
        assert_memory_equal(got.data, &heard[c], sizeof heard[c]);
        heard[c]++;
        weft_notif_free(&got);
    }
    WEFT_OK(weft_endpoint_close(b));
}

static void posted_before_a_close_they_arrive(void **state)
{
    (void)state;
    posted_before_the_close(true);
    posted_before_the_close(false);
}

/* The queue holds as much as its limit; the sender of n notifications waits, nothing is lost. */
static void fill_queue(uint64_t n, size_t len)
{
    weft_config_set("WEFT_NOTIFY_QUEUE", "65536");
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_config_set("WEFT_NOTIFY_QUEUE", NULL);
    weft_conn_t conn, other;
    char *bytes = malloc(len);
    duo_join(a, b, &conn, &other);
    for (uint64_t i = 0; i < n; i++) {
        test_fill(bytes, len, i, 0);
        WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes,
                                          .notify_len = len), NULL));
    }
    test_sleep_ms(20);
    for (uint64_t i = 0; i < n; i++) {
        struct weft_notif got;
        WEFT_OK(weft_endpoint_notif(b, T, &got));
        assert_int_equal(got.len, len);
        CHECK(test_differs(got.data, len, i, 0) < 0, "notification %" PRIu64 " is wrong", i);
        weft_notif_free(&got);
    }
    free(bytes);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void a_full_queue_makes_the_sender_wait(void **state)
{
    (void)state;
    fill_queue(200, 5000);
}

/* Long ones are fetched as there is room. */
static void a_full_queue_makes_long_ones_wait(void **state)
{
    (void)state;
    fill_queue(20, 30000);
}

/* An endpoint whose queue holds as much, driven by its callers, or by a thread. */
static weft_endpoint_t with_queue(const char *bytes, int threads)
{
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t endpoint;
    opts.progress_threads = threads;
    weft_config_set("WEFT_NOTIFY_QUEUE", bytes);
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    weft_config_set("WEFT_NOTIFY_QUEUE", NULL);
    return endpoint;
}

/* What no queue has room for is refused, and what fits goes on. */
static void longer_than_the_queue(void **state)
{
    (void)state;
    static char bytes[200000];
    weft_endpoint_t a = duo_endpoint(), b = with_queue("131072", 1);
    struct weft_notif got;
    weft_conn_t conn, other;
    duo_join(a, b, &conn, &other);
    WEFT_FAILS(WEFT_ELIMIT, weft_notify(conn, bytes, sizeof bytes, T));
    WEFT_FAILS(WEFT_ELIMIT, weft_notify(conn, bytes, 131073, T));
    WEFT_OK(weft_notify(conn, bytes, 131072, T));
    WEFT_OK(weft_endpoint_notif(b, T, &got));
    assert_int_equal(got.len, 131072);
    weft_notif_free(&got);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static weft_op_t post_notify(weft_conn_t conn, const char *bytes, size_t len)
{
    weft_op_t op;
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes, .notify_len = len), &op));
    return op;
}

/* What one sender cancels as it is being fetched makes room for another's, which waits for it. What was canceled may have
 * arrived, whole and once. */
static void what_is_canceled_holds_up_no_other(void **state)
{
    (void)state;
    enum { LEN = 60000, TIMES = 20, FICKLE = 1000 };
    weft_endpoint_t a = duo_endpoint(), c = duo_endpoint(), b = with_queue("65536", WEFT_PROGRESS_CALLER);
    weft_conn_t fickle = duo_join_driven(a, b), steady = duo_join_driven(c, b);
    char *bytes = malloc(LEN), *unsure = malloc(LEN);
    for (uint64_t i = 0, next_unsure = 0; i < TIMES; i++) {
        struct weft_notif got;
        struct weft_op_status status;
        test_fill(bytes, LEN, i, 0);
        test_fill(unsure, LEN, FICKLE + i, 0);
        weft_op_t canceled = post_notify(fickle, unsure, LEN), op = post_notify(steady, bytes, LEN);
        test_sleep_ms(2); /* both are on the way, and nobody drives b */
        WEFT_OK(weft_op_cancel(canceled));
        for (bool is_steady = false; !is_steady; weft_notif_free(&got)) {
            WEFT_OK(weft_endpoint_notif(b, T, &got));
            assert_int_equal(got.len, LEN);
            is_steady = test_differs(got.data, LEN, i, 0) < 0;
            while (!is_steady && test_differs(got.data, LEN, FICKLE + next_unsure++, 0) >= 0)
                CHECK(next_unsure <= i, "notification %" PRIu64 " is wrong", i);
        }
        while (weft_op_wait(op, 0, &status) == WEFT_ETIMEOUT || weft_op_wait(canceled, 0, &status) == WEFT_ETIMEOUT)
            assert_true(weft_endpoint_progress(b, 1) >= 0);
    }
    free(bytes);
    free(unsure);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(c));
    WEFT_OK(weft_endpoint_close(b));
}

/* Nor does what goes with its conn: nobody need ask for a notification for others to go on. */
static void what_goes_with_its_conn_holds_up_no_other(void **state)
{
    (void)state;
    enum { LEN = 5000, TIMES = 40 };
    static const char bytes[LEN];
    weft_endpoint_t a = duo_endpoint(), c = duo_endpoint(), b = with_queue("65536", 1);
    weft_conn_t flood, flood_end, other, other_end;
    weft_op_t first, last = 0;
    struct weft_op_status status;
    duo_join(a, b, &flood, &flood_end);
    duo_join(c, b, &other, &other_end);
    first = post_notify(flood, bytes, LEN);
    for (int i = 0; i < TIMES; i++)
        WEFT_OK(weft_post(flood, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes, .notify_len = LEN), NULL));
    assert_int_equal(weft_op_wait(first, T, &status), 0);
    for (int i = 0; i == 0 || weft_op_wait(last, 200, &status) == 0; i++) { /* until the flood is there */
        assert_in_range(i, 0, 20);
        test_sleep_ms(50);
        last = post_notify(other, bytes, 1);
    }
    WEFT_OK(weft_conn_close(flood_end));
    assert_int_equal(weft_op_wait(last, T, &status), 0);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(c));
    WEFT_OK(weft_endpoint_close(b));
}

/* --- after the data ------------------------------------------------------------------------ */

struct watch {
    struct area area;
    size_t len;
    uint64_t seed;
};

/* Wait for the notification and look at the memory at once. */
static void data_is_here(struct host *host, void *arg)
{
    struct watch *w = arg;
    struct weft_notif n;
    WEFT_OK(weft_endpoint_notif(host->endpoint, T, &n));
    const unsigned char *at = host->areas[w->area.id].mem.at;
    int64_t differs = test_differs(at, w->len, w->seed, 0);
    CHECK(differs < 0, "the notification was here before byte %" PRId64 " of %zu", differs,
          w->len);
    CHECK(n.len == 4 && !memcmp(n.data, &w->seed, 4), "a wrong notification");
    weft_notif_free(&n);
}

static void a_write_announces_its_data(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 4 * MIB, 0, 0), far = duo_area(d, B, 4 * MIB, 0, 0);
    for (uint64_t i = 0; i < 40; i++) {
        struct watch w = {far, i % 4 ? i * 3000 : 4 * MIB - i, i};
        struct weft_local local = area_local(near, 0, w.len);
        duo_fill(d, near, i);
        weft_op_t op;
        WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                             .nlocal = 1, .remote = &far.remote, .nremote = 1,
                                             .notify = &w.seed, .notify_len = 4), &op));
        duo_call(d, B, data_is_here, &w, sizeof w);
        duo_wait(d, A, op, 0);
    }
}

static void a_list_of_writes_announces_all_its_data(void **state)
{
    struct duo *d = *state;
    enum { N = 2000, STEP = 500 };
    struct area near = duo_area(d, A, N * STEP, 0, 0), far = duo_area(d, B, N * STEP, 0, 0);
    struct weft_local *local = calloc(N, sizeof *local);
    struct weft_remote *remote = calloc(N, sizeof *remote);
    for (size_t i = 0; i < N; i++) {
        local[i] = area_local(near, i * STEP, STEP);
        WEFT_OK(weft_remote_slice(&far.remote, i * STEP, STEP, &remote[i]));
    }
    for (uint64_t i = 0; i < 5; i++) {
        struct watch w = {far, N * STEP, 50 + i};
        duo_fill(d, near, 50 + i);
        weft_op_t op;
        WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local,
                                             .nlocal = N, .remote = remote, .nremote = N,
                                             .notify = &w.seed, .notify_len = 4), &op));
        duo_call(d, B, data_is_here, &w, sizeof w);
        duo_wait(d, A, op, 0);
    }
    free(local);
    free(remote);
}

/* A short piece is there long before a long one of the same operation. */
static void a_long_and_a_short_piece(void **state)
{
    struct duo *d = *state;
    const size_t len = 16 * MIB, cut = len - 8;
    struct area near = duo_area(d, A, len, 0, 0), far = duo_area(d, B, len, 0, 0);
    struct weft_local local[] = {area_local(near, 0, cut), area_local(near, cut, 8)};
    struct weft_remote remote[2];
    WEFT_OK(weft_remote_slice(&far.remote, 0, cut, &remote[0]));
    WEFT_OK(weft_remote_slice(&far.remote, cut, 8, &remote[1]));
    for (uint64_t i = 0; i < 5; i++) {
        struct watch w = {far, len, 70 + i};
        duo_fill(d, near, 70 + i);
        weft_op_t op;
        WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local,
                                             .nlocal = 2, .remote = remote, .nremote = 2,
                                             .notify = &w.seed, .notify_len = 4), &op));
        duo_call(d, B, data_is_here, &w, sizeof w);
        duo_wait(d, A, op, 0);
    }
}

/* Of a read: once it has been read. Of an add: once it was added. */
static void reads_and_adds_announce_too(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, MIB, 0, 0), far = duo_area(d, B, MIB, 0, 0);
    struct weft_local local = area_local(near, 0, MIB);
    uint64_t old;
    duo_fill(d, far, 1);
    struct weft_xfer read = {.struct_size = sizeof read, .op = WEFT_XFER_READ, .local = &local,
                             .nlocal = 1, .remote = &far.remote, .nremote = 1, .notify = "",
                             .notify_len = 0};
    assert_int_equal(weft_transfer(d->conn, &read, T, NULL), MIB);
    duo_check(d, near, 0, MIB, 1);
    duo_notif(d, B, 0, 0, 0);
    duo_set_word(d, far, 8, 100);
    char bytes[64];
    test_fill(bytes, 64, 9, 0);
    struct weft_remote word;
    WEFT_OK(weft_remote_slice(&far.remote, 8, 8, &word));
    struct weft_xfer add = {.struct_size = sizeof add, .op = WEFT_XFER_ADD, .remote = &word,
                            .nremote = 1, .value = 5, .result = &old, .notify = bytes,
                            .notify_len = 64};
    assert_int_equal(weft_transfer(d->conn, &add, T, NULL), 8);
    assert_int_equal(old, 100);
    duo_notif(d, B, 0, 64, 9);
    assert_int_equal(duo_word(d, far, 8), 105);
}

/* Data that could not be delivered is not announced. */
static void a_failed_write_announces_nothing(void **state)
{
    struct duo *d = *state;
    char byte = 0;
    struct weft_local local = {&byte, 1, 0};
    static char memory[64];
    weft_mem_t mem;
    struct weft_remote remote;
    WEFT_OK(weft_mem_reg(d->b.endpoint, memory, 64, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, memory, 64, &remote));
    WEFT_OK(weft_mem_dereg(mem));
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = &local,
                          .nlocal = 1, .remote = &remote, .nremote = 1, .notify = "no",
                          .notify_len = 2};
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), WEFT_EKEY);
    duo_no_notif(d, B);
}

/* --- several conns ------------------------------------------------------------------------- */

static void each_notification_names_its_conn(void **state)
{
    struct duo *d = *state;
    for (int i = 1; i < 4; i++)
        duo_connect(d);
    for (int i = 0; i < 40; i++) {
        notify(d, i % 4, (size_t)i, (uint64_t)i);
        duo_notif(d, B, i % 4, (size_t)i, (uint64_t)i);
    }
}

static void to_oneself(void **state)
{
    struct duo *d = *state;
    weft_conn_t conn, other;
    duo_join(d->a.endpoint, d->a.endpoint, &conn, &other);
    for (int i = 0; i < 20; i++) {
        struct weft_notif n;
        WEFT_OK(weft_notify(i & 1 ? other : conn, &i, sizeof i, T));
        WEFT_OK(weft_endpoint_notif(d->a.endpoint, T, &n));
        assert_int_equal(n.conn, i & 1 ? conn : other);
        assert_int_equal(n.len, sizeof i);
        assert_memory_equal(n.data, &i, sizeof i);
        weft_notif_free(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(every_size_arrives_exactly),
        IN_ONE(any_bytes),
        IN_ONE(nonsense_is_refused),
        IN_ONE(delivered_when_it_returns),
        IN_BOTH(many_come_in_the_order_sent),
        IN_BOTH(small_and_large_keep_their_order),
        cmocka_unit_test(posted_before_a_close_they_arrive),
        cmocka_unit_test(a_full_queue_makes_the_sender_wait),
        cmocka_unit_test(a_full_queue_makes_long_ones_wait),
        cmocka_unit_test(longer_than_the_queue),
        cmocka_unit_test(what_is_canceled_holds_up_no_other),
        cmocka_unit_test(what_goes_with_its_conn_holds_up_no_other),
        IN_BOTH(a_write_announces_its_data),
        IN_BOTH(a_list_of_writes_announces_all_its_data),
        IN_BOTH(a_long_and_a_short_piece),
        IN_BOTH(reads_and_adds_announce_too),
        IN_ONE(a_failed_write_announces_nothing),
        IN_BOTH(each_notification_names_its_conn),
        IN_ONE(to_oneself),
    };
    return DUO_MAIN("endpoint_notify", tests);
}
