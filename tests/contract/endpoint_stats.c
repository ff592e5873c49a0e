/* SPDX-License-Identifier: Apache-2.0 */
/* What a conn counts, and what it says of its path. */
#include "duo.h"

#include "registry.h"

#define T TEST_DEADLINE_MS

static struct weft_conn_stats stats_of(weft_conn_t conn)
{
    struct weft_conn_stats s;
    WEFT_OK(weft_conn_stats(conn, &s));
    return s;
}

static void a_new_conn_has_counted_nothing(void **state)
{
    struct duo *d = *state;
    struct weft_conn_stats s = stats_of(d->conn);
    assert_int_equal(s.ops_posted | s.ops_done | s.ops_failed, 0);
    assert_int_equal(s.bytes_written | s.bytes_read | s.bytes_sent | s.bytes_received, 0);
    assert_int_equal(s.msgs_sent | s.msgs_received | s.msgs_large | s.msgs_unexpected, 0);
    assert_int_equal(s.cmds_resent | s.links_lost, 0);
}

static void one_sided_operations_are_counted(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 5000, 0, 0), far = duo_area(d, B, 5000, 0, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(weft_write(d->conn, near.addr, 1000, &far.remote, 0, T), 1000);
    assert_int_equal(weft_read(d->conn, near.addr, 500, &far.remote, 0, T), 500);
    assert_int_equal(weft_add(d->conn, &far.remote, 0, 1, NULL, T), 0);
    struct weft_conn_stats s = stats_of(d->conn);
    assert_int_equal(s.ops_posted, 5);
    assert_int_equal(s.ops_done, 5);
    assert_int_equal(s.ops_failed, 0);
    assert_int_equal(s.bytes_written, 3000);
    assert_int_equal(s.bytes_read, 500);
    assert_true(s.cmds_posted >= 5);
}

static void messages_are_counted_on_both_sides(void **state)
{
    struct duo *d = *state;
    enum { BIG = 1 << 20 };
    struct area near = duo_area(d, A, BIG, 0, 0), far = duo_area(d, B, BIG, 0, 0);
    weft_op_t send = duo_send(d, A, 0, near, 0, 100);
    test_sleep_ms(50); /* it arrives before its receive is posted */
    duo_wait(d, B, duo_recv(d, B, 0, far, 0, 100), 0);
    duo_wait(d, A, send, 0);
    weft_op_t recv = duo_recv(d, B, 0, far, 0, BIG);
    duo_wait(d, A, duo_send(d, A, 0, near, 0, BIG), 0);
    duo_wait(d, B, recv, 0);
    char text[50] = {0};
    WEFT_OK(weft_notify(d->conn, text, sizeof text, T));
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(d->b.endpoint, T, &notif));
    weft_notif_free(&notif);
    struct weft_conn_stats a = stats_of(d->conn), b = stats_of(d->b.conns[0]);
    assert_int_equal(a.msgs_sent, 3);
    assert_int_equal(a.bytes_sent, 150 + BIG);
    assert_int_equal(a.msgs_received | a.bytes_received, 0);
    assert_int_equal(b.msgs_received, 3);
    assert_int_equal(b.bytes_received, 150 + BIG);
    assert_int_equal(b.msgs_large,
                     test_memory(A) < 0 ? 1 : 2); /* a GPU's is fetched, however short */
    assert_int_equal(b.msgs_unexpected, 1);
    assert_int_equal(b.msgs_sent | b.bytes_sent, 0);
}

static void failures_are_counted(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_op_status status;
    weft_op_t op = duo_recv(d, A, 0, near, 0, 64);
    WEFT_OK(weft_op_cancel(op));
    assert_int_equal(weft_op_wait(op, T, &status), WEFT_ECANCELED);
    WEFT_OK(weft_mem_dereg(far.mem));
    assert_int_equal(weft_write(d->conn, near.addr, 8, &far.remote, 0, T), WEFT_EKEY);
    struct weft_conn_stats s = stats_of(d->conn);
    assert_int_equal(s.ops_posted, 2);
    assert_int_equal(s.ops_failed, 2);
    assert_int_equal(s.ops_done, 0);
    WEFT_FAILS(-EINVAL, weft_conn_stats(d->conn, NULL));
    WEFT_FAILS(-EINVAL, weft_conn_info(d->conn, NULL));
}

/* The path: which transport, over how many links, and why no better one. */
static void info_names_the_path(void **state)
{
    struct duo *d = *state;
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(d->conn, &info));
    assert_string_equal(info.transport, test_common_transport());
    assert_non_null(strstr(info.path, test_common_transport()));
    assert_non_null(strstr(info.path, "link"));
    assert_true(info.links >= 1);
    assert_true(strlen(info.why) > 3);
    assert_int_equal(info.same_host, test_same_host());
    assert_int_equal(info.peer_pid, d->peer.pid ? d->peer.pid : getpid());
}

/* Without a word about transports the best one is taken; either side can force another. */
static void the_best_is_chosen_and_can_be_forced(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_opts();
    const struct weft_transport *list[8], *best = NULL;
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    struct weft_conn_info info;
    char bytes[WEFT_METADATA_MAX];
    opts.transport = "auto";
    int n = WEFT_OK(weft__transport_select("auto", list, 8));
    WEFT_OK(weft_endpoint_open(&opts, &a));
    WEFT_OK(weft_endpoint_open(&opts, &b));
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_conn_info(conn, &info));
    for (int i = 0; i < n; i++) {
        struct weft_device_info device;
        if (list[i]->ops->probe(&device, 1) > 0 && device.usable &&
            (!best || list[i]->priority > best->priority))
            best = list[i];
    }
    assert_non_null(best);
    assert_string_equal(info.transport, best->name);
    int len = WEFT_OK(weft_endpoint_metadata(b, bytes, sizeof bytes));
    WEFT_OK(weft_endpoint_connect(a, bytes, (size_t)len,
                                  WEFT_OPTS(weft_connect_opts, .transport = test_transport()),
                                  &conn));
    WEFT_OK(weft_conn_info(conn, &info));
    assert_string_equal(info.transport, test_transport());
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(a_new_conn_has_counted_nothing),
        IN_BOTH(one_sided_operations_are_counted),
        IN_ONE(messages_are_counted_on_both_sides),
        IN_ONE(failures_are_counted),
        IN_BOTH(info_names_the_path),
        cmocka_unit_test(the_best_is_chosen_and_can_be_forced),
    };
    return DUO_MAIN("endpoint_stats", tests);
}
