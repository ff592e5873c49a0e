/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that is killed: its operations end with WEFT_EPEER in bounded time, the deadline of each
 * call holds, and other conns do not notice. */
#include "duo.h"

#include <pthread.h>

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)

static void expect_down(weft_conn_t conn)
{
    struct weft_conn_info info;
    char byte = 0;
    WEFT_OK(weft_conn_info(conn, &info));
    assert_int_equal(info.state, WEFT_CONN_DOWN);
    assert_int_equal(info.status, WEFT_EPEER);
    assert_int_equal(info.links, 0);
    assert_true(*info.why);
    assert_int_equal(weft_send(conn, &byte, 1, T), WEFT_EPEER);
    assert_int_equal(weft_notify(conn, &byte, 1, T), WEFT_EPEER);
    assert_int_equal(weft_conn_wait(conn, 0), WEFT_EPEER);
    WEFT_OK(weft_conn_close(conn));
}

static void killed_while_idle(void **state)
{
    struct duo *d = *state;
    struct weft_conn_info info;
    char byte;
    test_peer_kill(&d->peer);
    assert_int_equal(weft_recv(d->conn, &byte, 1, T), WEFT_EPEER);
    WEFT_OK(weft_conn_info(d->conn, &info));
    assert_int_equal(info.state, WEFT_CONN_DOWN);
    expect_down(d->conn);
}

struct killer {
    struct duo *d;
    int ms;
};

static void *kill_later(void *arg)
{
    struct killer *k = arg;
    test_sleep_ms(k->ms);
    test_peer_signal(&k->d->peer, SIGKILL);
    return NULL;
}

/* The thread kills host B while the test is inside a blocking call. */
static pthread_t start_killer(struct killer *k)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, kill_later, k), "pthread_create");
    return thread;
}

static void under_blocking_calls(struct duo *d, enum weft_xfer_op op)
{
    struct area near = duo_area(d, A, 4 * MIB, 0, 0), far = duo_area(d, B, 4 * MIB, 0, 0);
    struct weft_local local = area_local(near, 0, 4 * MIB);
    struct weft_xfer x = {.struct_size = sizeof x, .op = op, .local = &local, .nlocal = 1};
    struct killer k = {d, 10};
    bool one_sided = op == WEFT_XFER_READ || op == WEFT_XFER_WRITE;
    int64_t rc = 0;
    x.remote = one_sided ? &far.remote : NULL;
    x.nremote = one_sided;
    pthread_t thread = start_killer(&k);
    for (uint64_t end = test_deadline(); rc >= 0;) {
        CHECK(weft_now() < end, "the death of the peer was never noticed");
        rc = weft_transfer(d->conn, &x, T, NULL);
    }
    CHECK(rc == WEFT_EPEER, "a call with a dead peer gave %s", weft_err_name((int)rc));
    pthread_join(thread, NULL);
    test_peer_join(&d->peer, SIGKILL);
    duo_fill(d, near, 1); /* the memory is ours again */
    test_sleep_ms(5);
    duo_check(d, near, 0, 4 * MIB, 1);
    expect_down(d->conn);
}

static void under_blocking_writes(void **state)
{
    under_blocking_calls(*state, WEFT_XFER_WRITE);
}

static void under_blocking_reads(void **state)
{
    under_blocking_calls(*state, WEFT_XFER_READ);
}

static void under_a_blocking_send(void **state)
{
    under_blocking_calls(*state, WEFT_XFER_SEND);
}

static void under_a_blocking_recv(void **state)
{
    under_blocking_calls(*state, WEFT_XFER_RECV);
}

static void under_posted_operations(void **state)
{
    struct duo *d = *state;
    enum { N = 60 };
    struct area near = duo_area(d, A, 2 * MIB, 0, 0), far = duo_area(d, B, 2 * MIB, 0, 0);
    struct area into = duo_area(d, A, 2 * MIB, 0, 0); /* of READs and RECVs: a send reads `near` */
    weft_op_t ops[N];
    for (size_t i = 0; i < N; i++) {
        struct weft_local local = area_local(i % 2 ? into : near, 0, i % 2 ? 2 * MIB : 100);
        struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE + i % 4,
                              .local = &local, .nlocal = 1, .remote = &far.remote,
                              .nremote = i % 4 < 2};
        WEFT_OK(weft_post(d->conn, &x, &ops[i]));
    }
    test_peer_signal(&d->peer, SIGKILL);
    for (size_t i = 0; i < N; i++) {
        struct weft_op_status status;
        int rc = weft_op_wait(ops[i], T, &status);
        CHECK(rc == 0 || rc == WEFT_EPEER, "an operation ended with %s: %s", weft_err_name(rc),
              status.text);
    }
    test_peer_join(&d->peer, SIGKILL);
    expect_down(d->conn);
}

/* The peer was the one who wrote, read and sent when it died. */
static void as_initiator(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 4 * MIB, 0, 0), far = duo_area(d, B, 4 * MIB, 0, 0);
    struct area into = duo_area(d, B, 4 * MIB, 0, 0); /* of READs */
    char byte;
    for (int i = 0; i < 12; i++) {
        struct weft_local local = area_local(i % 3 == 1 ? into : far, 0, 4 * MIB);
        struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE + i % 3,
                              .local = &local, .nlocal = 1, .remote = &near.remote,
                              .nremote = i % 3 < 2};
        duo_post(d, B, 0, &x);
    }
    weft_op_t recv = duo_recv(d, A, 0, near, 0, near.len);
    test_peer_kill(&d->peer);
    int rc = weft_op_wait(recv, T, NULL);
    CHECK(rc == 0 || rc == WEFT_EPEER, "a receive ended with %s", weft_err_name(rc));
    while ((rc = (int)weft_recv(d->conn, &byte, 1, T)) == WEFT_ETRUNC)
        ;
    assert_int_equal(rc, WEFT_EPEER);
    WEFT_OK(weft_mem_dereg(near.mem)); /* nobody touches it any more */
    duo_fill(d, near, 1);
    test_sleep_ms(5);
    duo_check(d, near, 0, 4 * MIB, 1);
    expect_down(d->conn);
}

static void other_conns_go_on(void **state)
{
    struct duo *d = *state;
    weft_endpoint_t third = duo_endpoint();
    weft_conn_t conn, other;
    static char from[100000], to[100000];
    weft_mem_t mem;
    struct weft_remote remote;
    duo_join(d->a.endpoint, third, &conn, &other);
    WEFT_OK(weft_mem_reg(third, to, sizeof to, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, to, sizeof to, &remote));
    test_peer_signal(&d->peer, SIGKILL);
    for (uint64_t i = 0; i < 100; i++) {
        test_fill(from, sizeof from, i, 0);
        assert_int_equal(weft_write(conn, from, sizeof from, &remote, 0, T), sizeof from);
        assert_true(test_differs(to, sizeof to, i, 0) < 0);
    }
    test_peer_join(&d->peer, SIGKILL);
    assert_int_equal(weft_recv(d->conn, from, 1, T), WEFT_EPEER);
    WEFT_OK(weft_notify(conn, "alive", 5, T));
    WEFT_OK(weft_endpoint_close(third));
}

/* A peer that lives but does nothing: the deadline holds, and nothing says that it is dead. */
static void stopped_is_not_dead(void **state)
{
    struct duo *d = *state;
    char byte = 0;
    struct weft_conn_info info;
    test_peer_signal(&d->peer, SIGSTOP);
    uint64_t begin = weft_now();
    assert_int_equal(weft_recv(d->conn, &byte, 1, 200), WEFT_ETIMEOUT);
    uint64_t took = (weft_now() - begin) / 1000000;
    CHECK(took >= 199 && took < 4000, "a deadline of 200 ms took %" PRIu64, took);
    WEFT_OK(weft_conn_info(d->conn, &info));
    assert_int_equal(info.state, WEFT_CONN_UP);
    test_peer_signal(&d->peer, SIGCONT);
    WEFT_OK(weft_notify(d->conn, &byte, 1, T));
    test_peer_kill(&d->peer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KILLED(killed_while_idle),
        KILLED(under_blocking_writes),
        KILLED(under_blocking_reads),
        KILLED(under_a_blocking_send),
        KILLED(under_a_blocking_recv),
        KILLED(under_posted_operations),
        KILLED(as_initiator),
        KILLED(other_conns_go_on),
        KILLED(stopped_is_not_dead),
    };
    return DUO_MAIN("endpoint_death", tests);
}
