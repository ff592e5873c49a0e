/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several links in one conn: large transfers are spread over them, and when one of them dies the
 * others bring everything, exactly once. WEFT_LANES gives an endpoint several nics of a device, and
 * so a conn several links; with one, its loss ends the conn.
 */
#include "duo.h"

#include "registry.h"

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)
#define LEN (24 * MIB)

struct striped {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    struct test_mem from, to;
    weft_mem_t mem;
    struct weft_remote remote;
};

static void striped_open(struct striped *s, const char *lanes, const char *fault)
{
    struct weft_endpoint_opts opts = duo_opts();
    struct weft_conn_info info;
    WEFT_OK(weft_config_set("WEFT_LANES", lanes));
    opts.fault = fault ? fault : test_fault();
    WEFT_OK(weft_endpoint_open(&opts, &s->a));
    opts.fault = test_fault();
    WEFT_OK(weft_endpoint_open(&opts, &s->b));
    WEFT_OK(weft_config_set("WEFT_LANES", NULL));
    duo_join(s->a, s->b, &s->conn, &s->other);
    WEFT_OK(weft_conn_info(s->conn, &info));
    assert_int_equal(info.links, atoi(lanes));
    test_mem_open(&s->from, LEN, 0);
    test_mem_open(&s->to, LEN, 0);
    WEFT_OK(weft_mem_reg(s->b, s->to.at, LEN, NULL, &s->mem));
    WEFT_OK(weft_mem_advertise(s->mem, s->to.at, LEN, &s->remote));
}

static void striped_close(struct striped *s)
{
    WEFT_OK(weft_endpoint_close(s->a));
    WEFT_OK(weft_endpoint_close(s->b));
    test_mem_close(&s->from);
    test_mem_close(&s->to);
}

static int64_t move(struct striped *s, uint64_t seed)
{
    test_fill(s->from.at, LEN, seed, 0);
    int64_t rc = weft_write(s->conn, s->from.at, LEN, &s->remote, 0, T);
    if (rc == LEN)
        CHECK(test_differs(s->to.at, LEN, seed, 0) < 0, "striped bytes are wrong");
    return rc;
}

static void transfers_are_spread_and_whole(void **state)
{
    (void)state;
    const char *lanes[] = {"1", "2", "3"};
    for (size_t i = 0; i < ARRAY_LEN(lanes); i++) {
        struct striped s;
        striped_open(&s, lanes[i], NULL);
        assert_int_equal(move(&s, i), LEN);
        test_zero(s.from.at, LEN);
        assert_int_equal(weft_read(s.conn, s.from.at, LEN, &s.remote, 0, T), LEN);
        assert_true(test_differs(s.from.at, LEN, i, 0) < 0);
        for (uint64_t n = 0; n < 200; n++) { /* order holds over several links */
            struct weft_notif notif;
            WEFT_OK(weft_post(
                s.conn,
                WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = &n, .notify_len = 8),
                NULL));
            if (n % 50 != 49)
                continue;
            for (uint64_t m = n - 49; m <= n; m++) {
                WEFT_OK(weft_endpoint_notif(s.b, T, &notif));
                assert_memory_equal(notif.data, &m, 8);
                weft_notif_free(&notif);
            }
        }
        striped_close(&s);
    }
}

static void cut_spec(char *text, size_t cap, int after, int which)
{
    const char *also = test_fault();
    snprintf(text, cap, "cut=%d,cutnic=%d%s%s", after, which, *also ? "," : "", also);
}

/* The first nic's link dies in the middle; the word at the target is added to exactly once. */
static void one_link_dies_and_all_arrives_once(void **state)
{
    (void)state;
    for (int after = 1; after <= 9; after += 2) {
        struct striped s;
        struct weft_conn_stats stats;
        struct weft_conn_info info;
        char spec[256];
        cut_spec(spec, sizeof spec, after, 1);
        striped_open(&s, "3", spec);
        for (uint64_t i = 0; i < 3; i++)
            assert_int_equal(move(&s, i), LEN);
        WEFT_OK(weft_conn_stats(s.conn, &stats));
        WEFT_OK(weft_conn_info(s.conn, &info));
        assert_int_equal(info.state, WEFT_CONN_UP);
        assert_true(stats.links_lost >= 1);
        assert_int_equal(info.links, 3 - stats.links_lost);
        striped_close(&s);
    }
}

static uint64_t links_lost(const struct striped *s)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(s->conn, &stats));
    return stats.links_lost;
}

/* A list of short pieces, which go in runs: those that were under way go once more, as a whole, also
 * when part of one has ended. So the nic has room for few, and they end in any order. */
static void a_list_outlives_a_link(void **state)
{
    (void)state;
    enum { N = 600, PIECE = 72, STEP = 100 };
    static struct weft_local local[N];
    static struct weft_remote remote[N];
    static uint64_t offset[N];
    static const int afters[] = {1, 17, 90, 161, 270};
    for (size_t n = 0; n < ARRAY_LEN(afters); n++) {
        struct striped s;
        struct weft_conn_stats stats;
        uint64_t moved = 0;
        char spec[256];
        int after = afters[n];
        cut_spec(spec, sizeof spec, after, 1);
        strcat(spec, ",reorder=16,partial=80,depth=64");
        striped_open(&s, "2", spec);
        test_fill(s.from.at, N * PIECE, 9, 0);
        for (uint64_t i = 0; i < N; i++) {
            local[i] = (struct weft_local){.addr = s.from.at + i * PIECE, .len = PIECE};
            remote[i] = s.remote;
            offset[i] = i * 7 % N * STEP;
        }
        struct weft_xfer x = {.struct_size = sizeof x,
                              .op = WEFT_XFER_WRITE,
                              .local = local,
                              .nlocal = N,
                              .remote = remote,
                              .nremote = N,
                              .remote_offset = offset};
        for (int i = 0; i < 50 && (i < 2 || links_lost(&s) == 0 || i % 2); i++) {
            x.op = i % 2 ? WEFT_XFER_READ : WEFT_XFER_WRITE;
            if (x.op == WEFT_XFER_READ)
                test_zero(s.from.at, N * PIECE);
            else
                test_zero(s.to.at, N * STEP);
            assert_int_equal(weft_transfer(s.conn, &x, T, NULL), N * PIECE);
            moved += N * PIECE;
            for (uint64_t p = 0; p < N; p++)
                CHECK(test_differs(s.to.at + offset[p], PIECE, 9, p * PIECE) < 0 &&
                          test_differs(s.from.at + p * PIECE, PIECE, 9, p * PIECE) < 0,
                      "cut after %d: piece %llu is wrong", after, (unsigned long long)p);
        }
        WEFT_OK(weft_conn_stats(s.conn, &stats));
        assert_int_equal(stats.links_lost, 1);
        assert_int_equal(stats.bytes_written, moved / 2);
        assert_int_equal(stats.bytes_read, moved / 2);
        /* each piece once, and a few messages about the link */
        assert_in_range(stats.cmds_posted - stats.cmds_resent, moved / PIECE, moved / PIECE + 10);
        striped_close(&s);
    }
}

/* The same with messages, notifications and adds: each of them once, in order. */
static void a_dying_link_doubles_nothing(void **state)
{
    (void)state;
    struct striped s;
    char spec[256];
    cut_spec(spec, sizeof spec, 20, 1);
    striped_open(&s, "2", spec);
    for (uint64_t i = 0; i < 100; i++) {
        struct weft_notif notif;
        uint64_t old = 77, word = i;
        assert_int_equal(weft_add(s.conn, &s.remote, 0, 1, &old, T), 0);
        assert_int_equal(old, i);
        WEFT_OK(weft_notify(s.conn, &word, 8, T));
        WEFT_OK(weft_endpoint_notif(s.b, T, &notif));
        assert_memory_equal(notif.data, &word, 8);
        weft_notif_free(&notif);
    }
    struct weft_notif none;
    struct weft_conn_stats stats;
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_notif(s.b, 10, &none));
    WEFT_OK(weft_conn_stats(s.conn, &stats));
    assert_int_equal(stats.links_lost, 1);
    striped_close(&s);
}

/* Post a message of one byte, or a receive of it. */
static weft_op_t post_byte(weft_conn_t conn, enum weft_xfer_op op, void *byte)
{
    struct weft_local local = {.addr = byte, .len = 1};
    weft_op_t handle;
    WEFT_OK(
        weft_post(conn, WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1), &handle));
    return handle;
}

/* Many messages both ways at once. */
static void exchange(struct striped *s)
{
    enum { N = 128 }; /* even ones go one way, odd ones the other */
    weft_conn_t conns[] = {s->conn, s->other};
    weft_op_t sends[N], recvs[N];
    unsigned char in[N];
    for (int i = 0; i < N; i++) {
        s->from.at[i] = (unsigned char)i;
        recvs[i] = post_byte(conns[(i + 1) % 2], WEFT_XFER_RECV, &in[i]);
        sends[i] = post_byte(conns[i % 2], WEFT_XFER_SEND, &s->from.at[i]);
    }
    for (int i = 0; i < N; i++) {
        WEFT_OK(weft_op_wait(sends[i], T, NULL));
        WEFT_OK(weft_op_wait(recvs[i], T, NULL));
        assert_int_equal(in[i], i);
    }
}

/* Messages of both directions keep telling each other what was taken: one that is sent again tells
 * no more than it did, since a later one may be there already. */
static void a_dying_link_confuses_no_counts(void **state)
{
    (void)state;
    for (int after = 20; after <= 200; after += 20) {
        struct striped s;
        struct weft_conn_info info;
        char spec[256];
        cut_spec(spec, sizeof spec, after, 1);
        striped_open(&s, "2", spec);
        for (int round = 0; round < 5; round++)
            exchange(&s);
        WEFT_OK(weft_conn_info(s.conn, &info));
        assert_int_equal(info.links, 1);
        striped_close(&s);
    }
}

/* When the last link is gone the operations end, on both sides. */
static void the_last_link_ends_the_conn(void **state)
{
    (void)state;
    struct striped s;
    char spec[256], byte;
    const char *also = test_fault();
    snprintf(spec, sizeof spec, "cut=5%s%s", *also ? "," : "", also);
    striped_open(&s, "1", spec);
    int64_t rc = 0;
    for (uint64_t i = 0; i < 50 && rc >= 0; i++)
        rc = move(&s, i);
    CHECK(rc == WEFT_EPEER, "without any link a write ended with %s", weft_err_name((int)rc));
    assert_int_equal(weft_recv(s.other, &byte, 1, T), WEFT_EPEER);
    striped_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_are_spread_and_whole),
        cmocka_unit_test(one_link_dies_and_all_arrives_once),
        cmocka_unit_test(a_list_outlives_a_link),
        cmocka_unit_test(a_dying_link_doubles_nothing),
        cmocka_unit_test(a_dying_link_confuses_no_counts),
        cmocka_unit_test(the_last_link_ends_the_conn),
    };
    if (!weft__transport_find("fault")) {
        fprintf(stderr, "skipped: this build has no fault transport\n");
        return 77;
    }
    return DUO_MAIN("endpoint_lanes", tests);
}
