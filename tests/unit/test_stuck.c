/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that does not end a copy that it has begun: no call hangs, what can go goes, and what cannot stays as it is until the copy
 * ends. Staged over tcp, mapped over local, with the double of a GPU's driver.
 */
#include "gpu_pair.h"

#include <pthread.h>
#include <time.h>

#include "endpoint.h"
#include "util.h"

#define T TEST_DEADLINE_MS
#define LEN GPU_PAIR_LEN

static struct weft__endpoint *inside(weft_endpoint_t handle)
{
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    weft__handle_put(handle);
    return ep;
}

static void patience(weft_endpoint_t handle, uint64_t ms)
{
    inside(handle)->give_up_ns = ms * 1000000;
}

/* With those that were given up. */
static int conns_of(weft_endpoint_t handle)
{
    struct weft__endpoint *ep = inside(handle);
    pthread_mutex_lock(&ep->lock);
    int n = ep->nconns;
    pthread_mutex_unlock(&ep->lock);
    return n;
}

/* Until its GPU has begun a copy. */
static void is_at_it(weft_endpoint_t handle)
{
    TEST_UNTIL(atomic_load(&inside(handle)->copier.busy), test_sleep_ms(1), "a copy that begins");
}

static bool is_mapped(void)
{
    return !strcmp(test_env("WEFT_TEST_TRANSPORT", "tcp"), "local");
}

#define ENDS "words=0"
#define DOES_NOT_END "words=0,delay=4000000000"

static void impatient_open(struct gpu_pair *t, int near)
{
    WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", "100"));
    gpu_pair_open(t, ENDS, near, 0);
    WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", NULL));
    gpu_pair_work(t);
    patience(t->a, 300);
    patience(t->b, 300);
}

static void stuck_open(struct gpu_pair *t, int near)
{
    impatient_open(t, near);
    fake_driver(DOES_NOT_END);
    struct weft_op_status status;
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = &(struct weft_local){t->near.at, LEN, t->near_mem},
                          .nlocal = 1,
                          .remote = &t->remote,
                          .nremote = 1};
    WEFT_FAILS(WEFT_ETIMEOUT, weft_transfer(t->conn, &x, 300, &status));
    assert_int_equal(status.status, WEFT_ETIMEOUT);
}

static void be_patient(struct gpu_pair *t)
{
    patience(t->a, T);
    patience(t->b, T);
}

static void stuck_over(struct gpu_pair *t)
{
    fake_driver(ENDS);
    be_patient(t);
    duo_join(t->a, t->b, &t->conn, &t->other);
    gpu_pair_work(t);
    gpu_pair_close(t);
}

static void a_copy_here_that_does_not_end(void **state)
{
    (void)state;
    struct gpu_pair t;
    stuck_open(&t, 0);
    CHECK(strstr(weft_last_error(), "a GPU") && strstr(weft_last_error(), "stays in use"), "'%s'", weft_last_error());
    WEFT_FAILS(-EBUSY, weft_mem_dereg(t.near_mem));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_conn_close(t.conn));
    CHECK(strstr(weft_last_error(), "a GPU") && strstr(weft_last_error(), "stays in use"), "'%s'", weft_last_error());
    int rc = weft_conn_close(t.other); /* whose memory the GPU here may be writing to */
    CHECK(rc == (is_mapped() ? WEFT_ETIMEOUT : 0), "%d: %s", rc, weft_last_error());
    weft_conn_t list[4];
    assert_int_equal(weft_endpoint_conns(t.a, list, 4), 0);
    fake_driver(ENDS);
    TEST_UNTIL(weft_mem_dereg(t.near_mem) == 0, test_sleep_ms(1), "the operation that was left");
    TEST_UNTIL(conns_of(t.a) == 0, test_sleep_ms(1), "the conn that was left");
    stuck_over(&t);
}

static void a_copy_for_a_peer_that_does_not_end(void **state)
{
    (void)state;
    struct gpu_pair t;
    stuck_open(&t, -1);
    CHECK(!strstr(weft_last_error(), "stays in use"), "'%s'", weft_last_error());
    WEFT_OK(weft_mem_dereg(t.near_mem));
    WEFT_OK(weft_conn_close(t.conn));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_conn_close(t.other));
    stuck_over(&t);
}

/* Who takes a registration back waits for the copy, whichever of its pieces it is that lies there. */
static void registrations_of_a_copy_that_does_not_end(void **state)
{
    (void)state;
    enum { N = 3, STEP = 5000 };
    struct gpu_pair t;
    impatient_open(&t, -1);
    struct weft_local local[N];
    struct weft_remote remote[N];
    weft_mem_t mem[N];
    weft_op_t op;
    for (int i = 0; i < N; i++) {
        local[i] = (struct weft_local){t.near.at + i * STEP, STEP, t.near_mem};
        mem[i] = gpu_pair_reg(t.b, t.far.at + i * STEP, STEP);
        WEFT_OK(weft_mem_advertise(mem[i], t.far.at + i * STEP, STEP, &remote[i]));
    }
    fake_driver(DOES_NOT_END);
    WEFT_OK(weft_post(t.conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local, .nlocal = N,
                                .remote = remote, .nremote = N),
                      &op));
    is_at_it(t.b);
    for (int i = 0; i < N; i++)
        WEFT_FAILS(WEFT_ETIMEOUT, weft_mem_dereg(mem[i]));
    fake_driver(ENDS);
    assert_int_equal(gpu_pair_end(op).status, 0);
    be_patient(&t);
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

static void *writes_for_ever(void *arg)
{
    struct gpu_pair *t = arg;
    int64_t rc = weft_write(t->conn, t->near.at, LEN, &t->remote, 0, WEFT_FOREVER);
    CHECK(strstr(weft_last_error(), "not done, and a"), "'%s'", weft_last_error());
    return (void *)(intptr_t)rc;
}

/* Another thread waits without a deadline: who closes the conn lets it go. */
static void waited_for_without_a_deadline(void **state)
{
    (void)state;
    struct gpu_pair t;
    pthread_t thread;
    void *rc;
    impatient_open(&t, 0);
    fake_driver(DOES_NOT_END);
    assert_int_equal(pthread_create(&thread, NULL, writes_for_ever, &t), 0);
    is_at_it(t.a);
    weft_op_t op = gpu_pair_post(&t, WEFT_XFER_WRITE);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_conn_close(t.conn));
    assert_int_equal(pthread_join(thread, &rc), 0);
    assert_int_equal((intptr_t)rc, WEFT_ETIMEOUT);
    struct weft_op_status status;
    int ended = weft_op_wait(op, WEFT_FOREVER, &status); /* it may not have begun */
    CHECK(ended == WEFT_ECLOSED || (status.status == WEFT_EAGAIN && strstr(weft_last_error(), "the conn was closed")),
          "%d: '%s'", ended, weft_last_error());
    fake_driver(ENDS);
    stuck_over(&t);
}

/* Nothing of them is given back: they are the last. */
static void endpoints_whose_copies_do_not_end(void **state)
{
    (void)state;
    for (int near = -1; near <= 0; near++) {
        struct gpu_pair t;
        struct weft_remote remote;
        stuck_open(&t, near);
        int begun = weft_endpoint_close(t.a), served = weft_endpoint_close(t.b);
        CHECK(begun == (near ? 0 : WEFT_ETIMEOUT), "%d: who began it", begun);
        CHECK(served == (near || is_mapped() ? WEFT_ETIMEOUT : 0), "%d: its peer", served);
        WEFT_FAILS(WEFT_EHANDLE, weft_mem_advertise(t.near_mem, t.near.at, 1, &remote));
        WEFT_FAILS(WEFT_EHANDLE, weft_mem_advertise(t.far_mem, t.far.at, 1, &remote));
    }
}

/* --- an endpoint whose conns are stuck: what a copy reaches is not given back unless it ends, so these are the last --- */

static void *closes_the_conn(void *arg)
{
    return (void *)(intptr_t)weft_conn_close(((struct gpu_pair *)arg)->conn);
}

static void *closes_the_endpoint(void *arg)
{
    return (void *)(intptr_t)weft_endpoint_close(((struct gpu_pair *)arg)->a);
}

static void *waits_for_ever(void *arg)
{
    return (void *)(intptr_t)weft_op_wait(*(weft_op_t *)arg, WEFT_FOREVER, NULL);
}

static pthread_t begin(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fn, arg), 0);
    return thread;
}

/* What it returned. */
static int end(pthread_t thread, const char *what)
{
    void *rc;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += T / 1000;
    CHECK(pthread_timedjoin_np(thread, &rc, &until) == 0, "%s does not return", what);
    return (int)(intptr_t)rc;
}

/* A's end is closed already. */
static void close_peer(struct gpu_pair *t)
{
    int rc = weft_endpoint_close(t->b);
    CHECK(rc == (is_mapped() ? WEFT_ETIMEOUT : 0), "%d: %s", rc, weft_last_error());
}

/* Each of these has an operation that does not end. */
static void more_stuck(struct gpu_pair *t, weft_op_t *ops, int n)
{
    for (int i = 0; i < n; i++) {
        weft_conn_t other;
        duo_join(t->a, t->b, &t->conn, &other);
        ops[i] = gpu_pair_post(t, WEFT_XFER_WRITE);
    }
}

/* Who waits for one of their operations without a deadline is let go, too. */
static void stuck_conns_are_waited_for_once(void **state)
{
    (void)state;
    enum { N = 8, MS = 1000 };
    struct gpu_pair t;
    weft_op_t ops[N];
    pthread_t waiters[N];
    stuck_open(&t, 0);
    patience(t.a, MS);
    more_stuck(&t, ops, N);
    for (int i = 0; i < N; i++)
        waiters[i] = begin(waits_for_ever, &ops[i]);
    uint64_t since = weft_now();
    int rc = end(begin(closes_the_endpoint, &t), "weft_endpoint_close");
    uint64_t ms = (weft_now() - since) / 1000000;
    assert_int_equal(rc, WEFT_ETIMEOUT);
    CHECK(ms < N * MS / 2, "%d conns, %d ms for each if they have them one after another: %d ms", N, MS, (int)ms);
    for (int i = 0; i < N; i++) { /* the first to be begun may be all that the GPU has begun: the others end */
        rc = end(waiters[i], "weft_op_wait");
        CHECK(rc == WEFT_ETIMEOUT || rc == WEFT_ECLOSED || rc == WEFT_EHANDLE, "%d", rc);
    }
    close_peer(&t);
}

/* Another thread is closing a conn that is stuck. The others go. */
static void an_endpoint_whose_conn_another_thread_closes(void **state)
{
    (void)state;
    struct gpu_pair t;
    weft_conn_t more[3], theirs[3];
    stuck_open(&t, 0);
    for (int i = 0; i < 3; i++)
        duo_join(t.a, t.b, &more[i], &theirs[i]);
    pthread_t thread = begin(closes_the_conn, &t);
    test_sleep_ms(50); /* it has begun, or has not: both are right */
    int rc = weft_endpoint_close(t.a);
    CHECK(rc == WEFT_ETIMEOUT, "%d: %s", rc, weft_last_error());
    rc = end(thread, "weft_conn_close");
    CHECK(rc == WEFT_ETIMEOUT || rc == WEFT_EHANDLE, "%d", rc);
    for (int i = 0; i < 3; i++) {
        weft_op_t op;
        struct weft_op_status status;
        struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_RECV};
        int posted = weft_post(theirs[i], &x, &op);
        int ended = posted ? posted : weft_op_wait(op, T, &status);
        CHECK(ended == WEFT_EPEER || ended == WEFT_ECLOSED || ended == WEFT_EHANDLE, "%d: %s", ended, weft_last_error());
    }
    close_peer(&t);
}

/* The copy ends after all while the endpoint is being closed, and after this thread, if there is one, has given its conn up: then
 * nothing is left. */
static void ends_in_time(struct gpu_pair *t, const pthread_t *gives_up)
{
    pthread_t closer = begin(closes_the_endpoint, t);
    if (gives_up)
        assert_int_equal(end(*gives_up, "weft_conn_close"), WEFT_ETIMEOUT);
    else
        test_sleep_ms(500); /* it waits now */
    fake_driver(ENDS);
    assert_int_equal(end(closer, "weft_endpoint_close"), 0);
    WEFT_OK(weft_endpoint_close(t->b));
    test_mem_close(&t->near);
    test_mem_close(&t->far);
}

static void a_copy_that_ends_when_its_conn_was_given_up(void **state)
{
    (void)state;
    struct gpu_pair t;
    stuck_open(&t, 0);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_conn_close(t.conn));
    be_patient(&t);
    ends_in_time(&t, NULL);
}

static void await_closing(weft_conn_t conn)
{
    TEST_UNTIL(weft_conn_wait(conn, 0) == WEFT_EHANDLE, test_sleep_ms(1), "a conn that is being closed");
}

static void a_copy_that_ends_while_another_thread_closes_its_conn(void **state)
{
    (void)state;
    struct gpu_pair t;
    stuck_open(&t, 0);
    be_patient(&t);
    pthread_t thread = begin(closes_the_conn, &t);
    await_closing(t.conn);
    ends_in_time(&t, NULL);
    assert_int_equal(end(thread, "weft_conn_close"), 0);
}

/* That thread gives its conn up before the copy ends, while the endpoint waits for it, or for another that is stuck. */
static void a_copy_that_ends_when_another_thread_gave_up(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct gpu_pair t;
        weft_op_t op;
        stuck_open(&t, 0);
        patience(t.a, 1000);
        struct gpu_pair given_up = t;
        more_stuck(&t, &op, more);
        pthread_t thread = begin(closes_the_conn, &given_up);
        await_closing(given_up.conn);
        test_sleep_ms(500);                /* it waits now */
        weft_endpoint_conns(t.a, NULL, 0); /* takes the lock after it: no race */
        be_patient(&t);
        ends_in_time(&t, &thread);
    }
}

/* The time for what is stuck begins when the conns have had theirs to tell their peers what these wait for. */
static void a_copy_that_ends_after_another_conn_has_lingered(void **state)
{
    (void)state;
    enum { MS = 2000 };
    struct gpu_pair t;
    stuck_open(&t, 0);
    be_patient(&t);
    inside(t.a)->grace_ns = (uint64_t)MS * 1000000;
    patience(t.a, MS);
    weft_endpoint_t silent = duo_undriven(test_env("WEFT_TEST_TRANSPORT", "tcp"));
    duo_clog(duo_join_driven(t.a, silent));
    pthread_t closer = begin(closes_the_endpoint, &t);
    test_sleep_ms(MS + MS / 2);
    fake_driver(ENDS);
    assert_int_equal(end(closer, "weft_endpoint_close"), 0);
    WEFT_OK(weft_endpoint_close(t.b));
    WEFT_OK(weft_endpoint_close(silent));
    test_mem_close(&t.near);
    test_mem_close(&t.far);
}

/* A peer's conn that nobody has accepted is closed by who found it in the list: nobody accepts it any more. */
static void a_conn_that_is_closed_before_it_is_accepted(void **state)
{
    (void)state;
    struct gpu_pair t;
    weft_conn_t list[2], conn;
    uint8_t metadata[WEFT_METADATA_MAX];
    impatient_open(&t, -1);
    int len = WEFT_OK(weft_endpoint_metadata(t.b, metadata, sizeof metadata));
    WEFT_OK(weft_endpoint_connect(t.a, metadata, (size_t)len, NULL, &t.conn));
    TEST_UNTIL(weft_endpoint_conns(t.b, list, 2) == 2, test_sleep_ms(1), "a conn that a peer opened");
    fake_driver(DOES_NOT_END);
    gpu_pair_post(&t, WEFT_XFER_WRITE);
    is_at_it(t.b);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_conn_close(list[list[0] == t.other]));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(t.b, 0, &conn));
    WEFT_OK(weft_conn_close(t.conn));
    stuck_over(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_here_that_does_not_end),
        cmocka_unit_test(a_copy_for_a_peer_that_does_not_end),
        cmocka_unit_test(registrations_of_a_copy_that_does_not_end),
        cmocka_unit_test(waited_for_without_a_deadline),
        cmocka_unit_test(a_conn_that_is_closed_before_it_is_accepted),
        cmocka_unit_test(a_copy_that_ends_when_its_conn_was_given_up),
        cmocka_unit_test(a_copy_that_ends_while_another_thread_closes_its_conn),
        cmocka_unit_test(a_copy_that_ends_when_another_thread_gave_up),
        cmocka_unit_test(a_copy_that_ends_after_another_conn_has_lingered),
        cmocka_unit_test(endpoints_whose_copies_do_not_end),
        cmocka_unit_test(an_endpoint_whose_conn_another_thread_closes),
        cmocka_unit_test(stuck_conns_are_waited_for_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
