/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports go down and come back under transfers over two RDMA devices on each side: what the devices had
 * not delivered arrives over what is left, once; nothing left ends operations with a status; a port
 * that is back is used by new conns.
 *
 * Runs where tests/vm/run --topo rails has made wires ra0-ra1 and rb0-rb1: this side has the devices
 * of ra0 and rb0, the other those of ra1 and rb1. Skips elsewhere.
 */
#include "party.h"

#define T 60000
#define LEN ((size_t)256 << 20)
#define BEGUN ((uint64_t)16 << 20) /* bytes after which a port goes down: the middle is reached */
#define SEED 42
/* Devices that are given up: WEFT_VERBS_FLAP, an unanswered request, and a slow machine. */
#define ENDED_MS 20000
#define OURS "rxe0,rxe1"
#define THEIRS "rxe2,rxe3"

static void shell(const char *what)
{
    int rc = system(what);
    CHECK(rc == 0, "%s: status %d", what, rc);
}

static void settings(const char *devices)
{
    WEFT_OK(weft_config_set("WEFT_VERBS_DEVICES", devices));
    WEFT_OK(weft_config_set("WEFT_VERBS_FLAP", "300"));
    WEFT_OK(weft_config_set("WEFT_VERBS_TIMEOUT", "15")); /* 134 ms, 7 times */
    WEFT_OK(weft_config_set("WEFT_LOG", test_env("WEFT_LOG", "error")));
}

static bool is_active(int device)
{
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/sys/class/infiniband/rxe%d/ports/1/state", device);
    FILE *f = fopen(path, "r");
    CHECK(f, "%s: %m", path);
    bool active = fgets(line, sizeof line, f) && strstr(line, "ACTIVE");
    fclose(f);
    return active;
}

static void all_up(void)
{
    shell("ip link set ra0 up");
    shell("ip link set rb0 up");
    for (int i = 0; i < 4; i++)
        TEST_UNTIL(is_active(i), test_sleep_ms(10), "a port to be active");
}

/* --- the other side ------------------------------------------------------------------------------ */

static struct test_mem large;

struct advertised {
    struct weft_remote remote;
};

static void settle_there(struct member *member, void *arg)
{
    (void)member;
    (void)arg;
    settings(THEIRS);
}

static void offer_large(struct member *member, void *arg)
{
    struct advertised *a = arg;
    weft_mem_t mem;
    test_mem_open(&large, LEN, 0);
    WEFT_OK(weft_mem_reg(member->endpoint, large.at, LEN, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, large.at, LEN, &a->remote));
}

struct arrival {
    char text[16];
    uint64_t extra; /* notifications beyond the first */
};

/* The one notification, and every byte that it announces. */
static void check_arrival(struct member *member, void *arg)
{
    struct arrival *a = arg;
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(member->endpoint, T, &notif));
    CHECK(notif.len == strlen(a->text) && !memcmp(notif.data, a->text, notif.len),
          "another notification");
    weft_notif_free(&notif);
    int64_t wrong = test_differs(large.at, LEN, SEED, 0);
    CHECK(wrong < 0, "byte %" PRId64 " is wrong", wrong);
    memset(large.at, 0, LEN);
    while (weft_endpoint_notif(member->endpoint, 200, &notif) == 0) {
        weft_notif_free(&notif);
        a->extra++;
    }
}

/* Wait until the conn is down there, too. */
static void check_down(struct member *member, void *arg)
{
    int *status = arg;
    char byte;
    uint64_t end = weft_now() + ENDED_MS * UINT64_C(1000000);
    while ((*status = weft_recv(member->conn, &byte, 1, 100) < 0 ? 0 : 1) == 0 &&
           weft_now() < end) {
        struct weft_conn_info info;
        WEFT_OK(weft_conn_info(member->conn, &info));
        if (info.state == WEFT_CONN_DOWN) {
            *status = info.status;
            return;
        }
    }
}

/* --- this side ------------------------------------------------------------------------------------ */

struct here {
    struct party party;
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    struct test_mem mem;
    weft_mem_t handle;
    struct weft_remote remote;
};

static int links_of(weft_conn_t conn)
{
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(conn, &info));
    return info.links;
}

static int setup(void **state)
{
    struct here *h = calloc(1, sizeof *h);
    struct advertised a;
    CHECK(h, "no memory");
    test_begin();
    all_up();
    party_fork(&h->party);
    party_call(&h->party, settle_there, NULL, 0);
    party_open(&h->party);
    party_call(&h->party, offer_large, &a, sizeof a);
    h->remote = a.remote;
    settings(OURS);
    struct weft_endpoint_opts opts = party_opts();
    WEFT_OK(weft_endpoint_open(&opts, &h->endpoint));
    test_mem_open(&h->mem, LEN, 0);
    test_fill(h->mem.at, LEN, SEED, 0);
    WEFT_OK(weft_mem_reg(h->endpoint, h->mem.at, LEN, NULL, &h->handle));
    h->conn = party_connect(h->endpoint, &h->party);
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(h->conn, &info));
    CHECK(info.links == 2, "%d of %d links: %s", info.links, info.links_of, info.why);
    *state = h;
    return 0;
}

static int teardown(void **state)
{
    struct here *h = *state;
    if (test_failed()) {
        party_kill(&h->party);
        return 0;
    }
    WEFT_OK(weft_endpoint_close(h->endpoint));
    test_mem_close(&h->mem);
    party_close(&h->party);
    free(h);
    return 0;
}

static weft_op_t begin_write(struct here *h)
{
    struct weft_local local = {h->mem.at, LEN, h->handle};
    weft_op_t op;
    WEFT_OK(weft_post(h->conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &h->remote, .nremote = 1, .notify = "whole",
                                .notify_len = 5),
                      &op));
    return op;
}

static uint64_t written(weft_conn_t conn)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(conn, &stats));
    return stats.bytes_written;
}

static void wait_for_the_middle(struct here *h, weft_op_t op)
{
    TEST_UNTIL(written(h->conn) >= BEGUN, test_sleep_ms(1), "the transfer to begin");
    assert_int_equal(weft_op_poll(op, NULL), 0);
}

static void expect_whole(struct here *h)
{
    struct arrival a = {.text = "whole"};
    party_call(&h->party, check_arrival, &a, sizeof a);
    assert_int_equal(a.extra, 0);
}

/* One of two goes down in the middle: every byte arrives, and what announces them arrives once. */
static void one_port_goes_down(void **state)
{
    struct here *h = *state;
    struct weft_op_status status;
    struct weft_conn_stats stats;
    weft_op_t op = begin_write(h);
    wait_for_the_middle(h, op);
    shell("ip link set ra0 down");
    int rc = weft_op_wait(op, T, &status);
    CHECK(rc == 0, "the write ended with %s: %s", weft_err_name(rc), weft_last_error());
    assert_int_equal(status.bytes, LEN);
    expect_whole(h);
    WEFT_OK(weft_conn_stats(h->conn, &stats));
    assert_int_equal(stats.links_lost, 1);
    assert_true(stats.cmds_resent > 0);
    assert_int_equal(links_of(h->conn), 1);
}

/* The same for what is read. */
static void one_port_goes_down_under_a_read(void **state)
{
    struct here *h = *state;
    struct weft_op_status status;
    WEFT_OK(weft_write(h->conn, h->mem.at, LEN, &h->remote, 0, T));
    memset(h->mem.at, 0, LEN);
    struct weft_local local = {h->mem.at, LEN, h->handle};
    weft_op_t op;
    WEFT_OK(weft_post(h->conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_READ, .local = &local, .nlocal = 1,
                                .remote = &h->remote, .nremote = 1),
                      &op));
    test_sleep_ms(300);
    shell("ip link set rb0 down");
    int rc = weft_op_wait(op, T, &status);
    CHECK(rc == 0, "the read ended with %s: %s", weft_err_name(rc), weft_last_error());
    int64_t wrong = test_differs(h->mem.at, LEN, SEED, 0);
    CHECK(wrong < 0, "byte %" PRId64 " is wrong", wrong);
}

/* Both go down: the operation ends at both sides, and says what the device said. One comes back: a new
 * conn uses it. */
static void both_ports_go_down_and_one_comes_back(void **state)
{
    struct here *h = *state;
    struct weft_op_status status;
    struct weft_conn_info info;
    int there = 0;
    weft_op_t op = begin_write(h);
    wait_for_the_middle(h, op);
    shell("ip link set ra0 down");
    shell("ip link set rb0 down");
    int rc = weft_op_wait(op, ENDED_MS, &status);
    CHECK(rc == WEFT_EPEER, "the write ended with %s: %s", weft_err_name(rc), weft_last_error());
    CHECK(strstr(status.text, "verbs"), "'%s' does not say what the device said", status.text);
    party_call(&h->party, check_down, &there, sizeof there);
    assert_int_equal(there, WEFT_EPEER);
    WEFT_OK(weft_conn_close(h->conn));
    shell("ip link set rb0 up");
    TEST_UNTIL(is_active(1) && is_active(3), test_sleep_ms(10), "the port to be active again");
    h->conn = party_connect(h->endpoint, &h->party);
    WEFT_OK(weft_conn_info(h->conn, &info));
    assert_int_equal(info.links, 1);
    assert_int_equal(info.links_of, 2);
    WEFT_OK(weft_op_wait(begin_write(h), T, &status));
    expect_whole(h);
}

#define WITH_CONN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_CONN(one_port_goes_down),
        WITH_CONN(one_port_goes_down_under_a_read),
        WITH_CONN(both_ports_go_down_and_one_comes_back),
    };
    if (access("/sys/class/infiniband/rxe3", F_OK)) {
        printf("skipped: no rxe0 to rxe3 (tests/vm/run --topo rails)\n");
        return 77;
    }
    setenv("WEFT_TEST_TRANSPORT", "verbs", 0); /* both sides are on one host */
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests_name("ports", tests, NULL, NULL);
}
