/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More messages and notifications over one conn than may be under way at once, long, short and refused: each that was answered makes
 * room for another one (core/match.c, core/notify.c, core/msg.c).
 */
#include "contract/duo.h"

#include "conn.h"

#define T TEST_DEADLINE_MS
#define N (WEFT__WINDOW + 50)
#define LONG 9000 /* WEFT_EAGER is 8 KiB */

static const char *const transports[] = {"tcp", "local"};

struct two {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    char from[LONG], to[LONG];
};

static void two_open(struct two *t, const char *transport)
{
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = transport, .progress_threads = 1};
    WEFT_OK(weft_endpoint_open(&opts, &t->a));
    WEFT_OK(weft_endpoint_open(&opts, &t->b));
    duo_join(t->a, t->b, &t->conn, &t->other);
}

static void two_close(struct two *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
}

static weft_op_t post(weft_conn_t conn, enum weft_xfer_op kind, char *bytes)
{
    struct weft_local local = {.addr = bytes, .len = LONG};
    weft_op_t op;
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = kind, .local = &local, .nlocal = 1), &op));
    return op;
}

/* Over each transport one after the other, each of other bytes. */
static void one_by_one(void (*one)(struct two *t, const char *transport, uint64_t i), uint64_t n)
{
    static struct two t;
    for (size_t k = 0; k < ARRAY_LEN(transports); k++) {
        two_open(&t, transports[k]);
        for (uint64_t i = 0; i < n; i++) {
            test_fill(t.from, LONG, i, 0);
            one(&t, transports[k], i);
        }
        two_close(&t);
    }
}

/* Every other one finds its RECV. */
static void message(struct two *t, const char *transport, uint64_t i)
{
    weft_op_t recv = i % 2 ? post(t->other, WEFT_XFER_RECV, t->to) : 0, send = post(t->conn, WEFT_XFER_SEND, t->from);
    recv = recv ? recv : post(t->other, WEFT_XFER_RECV, t->to);
    int rc = weft_op_wait(recv, T, NULL);
    CHECK(rc == 0, "%s: message %d: %s", transport, (int)i, weft_last_error());
    WEFT_OK(weft_op_wait(send, T, NULL));
    assert_true(test_differs(t->to, LONG, i, 0) < 0);
}

static void notification(struct two *t, const char *transport, uint64_t i)
{
    struct weft_notif n;
    int rc = weft_notify(t->conn, t->from, LONG, T);
    CHECK(rc == 0, "%s: notification %d: %s", transport, (int)i, weft_last_error());
    WEFT_OK(weft_endpoint_notif(t->b, T, &n));
    assert_int_equal(n.len, LONG);
    assert_true(test_differs(n.data, LONG, i, 0) < 0);
    weft_notif_free(&n);
}

static void long_messages(void **state)
{
    (void)state;
    one_by_one(message, N);
}

static void long_notifications(void **state)
{
    (void)state;
    one_by_one(notification, N);
}

/* Each is answered, and there are more of them than a peer may have answers to wait for. */
#define ANSWERED (16 * WEFT__WINDOW + 50)

static void short_notification(struct two *t, const char *transport, uint64_t i)
{
    struct weft_notif n;
    int rc = weft_notify(t->conn, &i, sizeof i, T);
    CHECK(rc == 0, "%s: notification %d: %s", transport, (int)i, weft_last_error());
    WEFT_OK(weft_endpoint_notif(t->b, T, &n));
    assert_int_equal(n.len, sizeof i);
    assert_memory_equal(n.data, &i, sizeof i);
    weft_notif_free(&n);
}

static void short_notifications(void **state)
{
    (void)state;
    one_by_one(short_notification, ANSWERED);
}

/* Longer than the queue at the peer will ever hold. */
#define QUEUE "64K"
#define TOO_LONG 100000

static void refused_notification(struct two *t, const char *transport, uint64_t i)
{
    static const char bytes[TOO_LONG];
    int rc = weft_notify(t->conn, bytes, sizeof bytes, T);
    CHECK(rc == WEFT_ELIMIT, "%s: notification %d: %s: %s", transport, (int)i, weft_err_name(rc), weft_last_error());
}

static void refused_notifications(void **state)
{
    (void)state;
    weft_config_set("WEFT_NOTIFY_QUEUE", QUEUE);
    one_by_one(refused_notification, N);
    weft_config_set("WEFT_NOTIFY_QUEUE", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_messages),
        cmocka_unit_test(long_notifications),
        cmocka_unit_test(short_notifications),
        cmocka_unit_test(refused_notifications),
    };
    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
