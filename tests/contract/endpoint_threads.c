/* SPDX-License-Identifier: Apache-2.0 */
/* Every function from any thread on the same objects, any number of progress threads, and handles
 * that are closed while others use them. */
#include "duo.h"

#include <pthread.h>
#include <stdatomic.h>

#define T TEST_DEADLINE_MS
#define THREADS 4
#define ROUNDS 60
#define LEN 20000
#define LONG (3u << 20)

/* Two endpoints with a conn, of this many progress threads each. */
struct couple {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    char memory[THREADS][LEN];
    weft_mem_t mem;
    struct weft_remote remote;
};

static weft_endpoint_t open_with(int progress_threads)
{
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t endpoint;
    opts.progress_threads = progress_threads;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    return endpoint;
}

static struct couple *couple_open(int threads_a, int threads_b)
{
    struct couple *c = calloc(1, sizeof *c);
    CHECK(c, "no memory");
    c->a = open_with(threads_a);
    c->b = open_with(threads_b);
    duo_join(c->a, c->b, &c->conn, &c->other);
    WEFT_OK(weft_mem_reg(c->b, c->memory, sizeof c->memory, NULL, &c->mem));
    WEFT_OK(weft_mem_advertise(c->mem, c->memory, sizeof c->memory, &c->remote));
    return c;
}

static void couple_close(struct couple *c)
{
    WEFT_OK(weft_endpoint_close(c->a));
    WEFT_OK(weft_endpoint_close(c->b));
    free(c);
}

struct worker {
    struct couple *c;
    int i;
};

/* Writes, reads back and compares, in its own part of the target's memory. */
static void *write_and_read(void *arg)
{
    struct worker *w = arg;
    char *from = malloc(LEN), *back = malloc(LEN);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        size_t len = round * 331 % LEN;
        uint64_t at = (uint64_t)w->i * LEN, seed = round * THREADS + (uint64_t)w->i;
        test_fill(from, len, seed, 0);
        int64_t rc = weft_write(w->c->conn, from, len, &w->c->remote, at, T);
        CHECK(rc == (int64_t)len, "weft_write: %s", weft_err_name((int)rc));
        rc = weft_read(w->c->conn, back, len, &w->c->remote, at, T);
        CHECK(rc == (int64_t)len, "weft_read: %s", weft_err_name((int)rc));
        CHECK(test_differs(back, len, seed, 0) < 0, "thread %d read wrong bytes", w->i);
    }
    free(from);
    free(back);
    return NULL;
}

static void run_workers(struct couple *c, void *(*fn)(void *))
{
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){c, i};
        CHECK(!pthread_create(&threads[i], NULL, fn, &workers[i]), "pthread_create");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void many_threads_over_one_conn(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        struct couple *c = couple_open(n, 3 - n);
        run_workers(c, write_and_read);
        couple_close(c);
    }
}

/* Only callers make progress at A: threads that wait drive each other's operations. */
static void many_waiters_without_a_progress_thread(void **state)
{
    (void)state;
    struct couple *c = couple_open(WEFT_PROGRESS_CALLER, 1);
    run_workers(c, write_and_read);
    couple_close(c);
}

/* The target has no thread of its own either: its caller drives it. */
static void *drive(void *arg)
{
    struct couple *c = arg;
    while (weft_endpoint_progress(c->b, 5) >= 0)
        ;
    return NULL;
}

static void no_progress_thread_at_all(void **state)
{
    (void)state;
    struct couple *c = calloc(1, sizeof *c);
    char bytes[WEFT_METADATA_MAX];
    c->a = open_with(WEFT_PROGRESS_CALLER);
    c->b = open_with(WEFT_PROGRESS_CALLER);
    pthread_t driver;
    CHECK(!pthread_create(&driver, NULL, drive, c), "pthread_create");
    int len = WEFT_OK(weft_endpoint_metadata(c->b, bytes, sizeof bytes));
    WEFT_OK(weft_endpoint_connect(c->a, bytes, (size_t)len, NULL, &c->conn));
    WEFT_OK(weft_endpoint_accept(c->b, T, &c->other));
    WEFT_OK(weft_mem_reg(c->b, c->memory, sizeof c->memory, NULL, &c->mem));
    WEFT_OK(weft_mem_advertise(c->mem, c->memory, sizeof c->memory, &c->remote));
    run_workers(c, write_and_read);
    WEFT_OK(weft_endpoint_close(c->b)); /* ends the driver, too */
    pthread_join(driver, NULL);
    WEFT_OK(weft_endpoint_close(c->a));
    free(c);
}

/* --- what is long ---------------------------------------------------------------------------- */

/* Memory at both ends: a's, which initiates, and b's. */
struct pair {
    struct test_mem a, b;
    struct weft_remote remote;
};

static void pair_open(struct pair *p, struct couple *c)
{
    weft_mem_t handle;
    test_mem_open(&p->a, LONG, 1);
    test_mem_open(&p->b, LONG, 2);
    WEFT_OK(weft_mem_reg(c->b, p->b.at, LONG, NULL, &handle));
    WEFT_OK(weft_mem_advertise(handle, p->b.at, LONG, &p->remote));
}

static void pair_close(struct pair *p)
{
    test_mem_close(&p->a);
    test_mem_close(&p->b);
}

/* To b's memory or from it, and there as it was sent. */
static void move_long(struct couple *c, enum weft_xfer_op op, struct pair *p, uint64_t seed)
{
    struct weft_local local = {p->a.at, LONG, 0};
    const struct test_mem *from = op == WEFT_XFER_READ ? &p->b : &p->a;
    const struct test_mem *to = op == WEFT_XFER_READ ? &p->a : &p->b;
    test_fill(from->at, LONG, seed, 0);
    assert_int_equal(weft_transfer(c->conn,
                                   WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1,
                                             .remote = &p->remote, .nremote = 1),
                                   T, NULL),
                     LONG);
    assert_true(test_differs(to->at, LONG, seed, 0) < 0);
}

/* It is left to threads that sleep, each with its own links. (That they are woken at once, and not by the next look after
 * a second at most, is for tests/sim to say.)
 *
 * What is read is other memory than what is written: ThreadSanitizer notes what a send() has read only once it has
 * returned. The bytes are with a by then, and its next write may have come to b by another thread. */
static void threads_that_sleep_move_what_is_long(void **state)
{
    (void)state;
    static const int threads[][2] = {{2, 2}, {3, 1}, {1, 3}};
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        struct couple *c = couple_open(threads[i][0], threads[i][1]);
        struct pair written, read;
        pair_open(&written, c);
        pair_open(&read, c);
        for (uint64_t round = 0; round < 5; round++) {
            test_sleep_ms(20);
            move_long(c, WEFT_XFER_WRITE, &written, 2 * round);
            test_sleep_ms(20);
            move_long(c, WEFT_XFER_READ, &read, 2 * round + 1);
        }
        couple_close(c);
        pair_close(&written);
        pair_close(&read);
    }
}

/* --- messages and notifications ------------------------------------------------------------ */

static void *send_many(void *arg)
{
    struct worker *w = arg;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t words[200] = {(uint64_t)w->i, i};
        size_t len = 16 + i % 100 * 8;
        CHECK(weft_send(w->c->conn, words, len, T) == (int64_t)len, "weft_send");
        CHECK(weft_notify(w->c->conn, words, 16, T) == 0, "weft_notify");
    }
    return NULL;
}

static _Atomic(int) received;

static void *recv_many(void *arg)
{
    struct couple *c = arg;
    uint64_t words[200];
    while (atomic_fetch_add(&received, 1) < THREADS * ROUNDS) {
        int64_t n = weft_recv(c->other, words, sizeof words, T);
        CHECK(n == (int64_t)(16 + words[1] % 100 * 8) && words[0] < THREADS && words[1] < ROUNDS,
              "a message of %" PRId64 " bytes is damaged", n);
    }
    return NULL;
}

static void many_senders_and_receivers(void **state)
{
    (void)state;
    struct couple *c = couple_open(1, 1);
    pthread_t receivers[2];
    uint64_t next[THREADS] = {0};
    received = 0;
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&receivers[i], NULL, recv_many, c), "pthread_create");
    run_workers(c, send_many);
    for (int i = 0; i < 2; i++)
        pthread_join(receivers[i], NULL);
    for (int i = 0; i < THREADS * ROUNDS; i++) { /* each thread's own come in its order */
        struct weft_notif n;
        WEFT_OK(weft_endpoint_notif(c->b, T, &n));
        uint64_t words[2];
        memcpy(words, n.data, sizeof words);
        assert_true(n.len == 16 && words[0] < THREADS && words[1] == next[words[0]]);
        next[words[0]]++;
        weft_notif_free(&n);
    }
    couple_close(c);
}

/* --- one operation, several askers --------------------------------------------------------- */

static weft_op_t shared_op;
static _Atomic(int) told;

static void *ask(void *arg)
{
    struct worker *w = arg;
    int rc = w->i & 1 ? weft_op_wait(shared_op, T, NULL) : 0;
    while (!(w->i & 1) && !(rc = weft_op_poll(shared_op, NULL)))
        sched_yield();
    CHECK(rc == 0 || rc == 1 || rc == WEFT_EHANDLE, "an asker was told %s", weft_err_name(rc));
    atomic_fetch_add(&told, rc >= 0);
    return NULL;
}

static void one_of_several_askers_is_told(void **state)
{
    (void)state;
    struct couple *c = couple_open(1, 1);
    for (int i = 0; i < 50; i++) {
        struct weft_local local = {c->memory[0], 64, 0};
        told = 0;
        WEFT_OK(weft_post(c->conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                    .remote = &c->remote, .nremote = 1),
                          &shared_op));
        run_workers(c, ask);
        assert_int_equal(told, 1);
    }
    couple_close(c);
}

/* --- everything closed under everyone ------------------------------------------------------ */

/* Uses the conn in all ways until it is told that it is gone. */
static void *use_until_gone(void *arg)
{
    struct worker *w = arg;
    char *memory = calloc(1, LEN);
    struct weft_notif notif;
    for (int64_t rc = 0; rc >= 0 || rc == WEFT_ETIMEOUT || rc == WEFT_ECANCELED;) {
        struct weft_conn_info info;
        rc = w->i == 0   ? weft_write(w->c->conn, memory, LEN, &w->c->remote, 0, T)
             : w->i == 1 ? weft_read(w->c->conn, memory, LEN, &w->c->remote, LEN, T)
             : w->i == 2 ? weft_recv(w->c->conn, memory, LEN, 1)
                         : weft_conn_info(w->c->conn, &info);
        CHECK(rc >= 0 || rc == WEFT_EHANDLE || rc == WEFT_ECLOSED || rc == WEFT_EPEER ||
                  rc == WEFT_ETIMEOUT || rc == WEFT_ECANCELED,
              "a call on a conn that is being closed gave %s", weft_err_name((int)rc));
        if (w->i == 3 && rc == 0 && info.state == WEFT_CONN_DOWN)
            break;
        if (weft_endpoint_notif(w->c->a, 0, &notif) == 0)
            weft_notif_free(&notif);
    }
    free(memory);
    return NULL;
}

static void closed_under_everyone(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        struct couple *c = couple_open(1 + round % 2, 1);
        pthread_t threads[THREADS];
        struct worker workers[THREADS];
        for (int i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){c, i};
            CHECK(!pthread_create(&threads[i], NULL, use_until_gone, &workers[i]), "thread");
        }
        test_sleep_ms(round);
        if (round % 3 == 0)
            WEFT_OK(weft_conn_close(c->conn));
        else if (round % 3 == 1)
            WEFT_OK(weft_conn_close(c->other));
        else
            WEFT_OK(weft_endpoint_close(c->a));
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        if (round % 3 != 2)
            WEFT_OK(weft_endpoint_close(c->a));
        WEFT_OK(weft_endpoint_close(c->b));
        free(c);
    }
}

static void *open_use_close(void *arg)
{
    (void)arg;
    for (int i = 0; i < 6; i++) {
        struct couple *c = couple_open(1, 1);
        struct worker w = {c, i % THREADS};
        write_and_read(&w);
        couple_close(c);
    }
    return NULL;
}

static void endpoints_come_and_go_in_all_threads(void **state)
{
    (void)state;
    run_workers(NULL, open_use_close);
}

struct connecter {
    weft_endpoint_t endpoint;
    char metadata[WEFT_METADATA_MAX];
    size_t len;
    _Atomic(bool) begun;
};

static void *connect_until_closed(void *arg)
{
    struct connecter *c = arg;
    for (;;) {
        weft_conn_t conn;
        int rc = weft_endpoint_connect(c->endpoint, c->metadata, c->len,
                                       WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &conn);
        atomic_store(&c->begun, true);
        if (rc == WEFT_EHANDLE || rc == WEFT_ECLOSED)
            return NULL;
        CHECK(rc == 0, "connecting gave %s: %s", weft_err_name(rc), weft_last_error());
        weft_conn_close(conn);
    }
}

/* Closing finds conns in every state, also those that are being made at this moment. */
static void closed_while_others_connect(void **state)
{
    (void)state;
    weft_endpoint_t far = open_with(1);
    for (int round = 0; round < ROUNDS; round++) {
        struct connecter c = {.endpoint = open_with(1 + round % 2)};
        pthread_t threads[2];
        c.len = (size_t)WEFT_OK(
            weft_endpoint_metadata(round % 3 ? far : c.endpoint, c.metadata, sizeof c.metadata));
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&threads[i], NULL, connect_until_closed, &c), "pthread_create");
        while (!atomic_load(&c.begun))
            sched_yield();
        WEFT_OK(weft_endpoint_close(c.endpoint));
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    WEFT_OK(weft_endpoint_close(far));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_over_one_conn),
        cmocka_unit_test(many_waiters_without_a_progress_thread),
        cmocka_unit_test(no_progress_thread_at_all),
        cmocka_unit_test(threads_that_sleep_move_what_is_long),
        cmocka_unit_test(many_senders_and_receivers),
        cmocka_unit_test(one_of_several_askers_is_told),
        cmocka_unit_test(closed_under_everyone),
        cmocka_unit_test(endpoints_come_and_go_in_all_threads),
        cmocka_unit_test(closed_while_others_connect),
    };
    return DUO_MAIN("endpoint_threads", tests);
}
