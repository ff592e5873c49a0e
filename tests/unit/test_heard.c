/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an answer brings along beside itself: that the question was taken. Who drives takes the answer first, and looks at
 * that when it drives again (core/counts.c, transports/tcp/tcp_post.c). Here: that it is neither forgotten nor late.
 */
#include "contract/duo.h"

#include "conn.h"
#include "endpoint.h"

#include <pthread.h>

#define T TEST_DEADLINE_MS
#define ROUNDS 5
#define LATE_MS 3000 /* of ROUNDS: who is not woken sleeps a second in each */

static const char *const transports[] = {"tcp", "local"};

struct two {
    weft_endpoint_t a, b; /* driven by their callers */
    weft_conn_t conn, other;
    uint64_t question, asked, answer, answered;
};

/* Both are driven from here. */
static void join(struct two *t)
{
    char metadata[WEFT_METADATA_MAX];
    int len = weft_endpoint_metadata(t->b, metadata, sizeof metadata), rc = 0;
    WEFT_OK(weft_endpoint_connect(t->a, metadata, (size_t)len,
                                  WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &t->conn));
    TEST_UNTIL((rc = weft_conn_wait(t->conn, 0)) != WEFT_ETIMEOUT,
               WEFT_OK(weft_endpoint_progress(t->b, 0)), "a conn");
    WEFT_OK(rc);
    WEFT_OK(weft_endpoint_accept(t->b, T, &t->other));
}

static void two_open(struct two *t, const char *transport)
{
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts,
                                      .transport = transport,
                                      .progress_threads = WEFT_PROGRESS_CALLER};
    *t = (struct two){.question = 17, .answer = 42};
    WEFT_OK(weft_endpoint_open(&opts, &t->a));
    WEFT_OK(weft_endpoint_open(&opts, &t->b));
    join(t);
}

static void two_close(struct two *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
}

static weft_op_t post(weft_conn_t conn, enum weft_xfer_op kind, uint64_t *word)
{
    struct weft_local local = {.addr = word, .len = sizeof *word};
    weft_op_t op;
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = kind, .local = &local, .nlocal = 1), &op));
    return op;
}

/* Until it is done, driving only the endpoint that it is of, and the other one. */
static void end(weft_op_t op, weft_endpoint_t other)
{
    int rc = 0;
    TEST_UNTIL((rc = weft_op_poll(op, NULL)) != 0, WEFT_OK(weft_endpoint_progress(other, 0)),
               "an operation");
    assert_int_equal(rc, 1);
}

/* A asks, B answers, and A has the answer: nothing was done since. *back: B's answer. */
static weft_op_t ask(struct two *t, weft_op_t *back)
{
    weft_op_t answered = post(t->conn, WEFT_XFER_RECV, &t->answered);
    weft_op_t asked = post(t->other, WEFT_XFER_RECV, &t->asked);
    weft_op_t question = post(t->conn, WEFT_XFER_SEND, &t->question);
    end(asked, t->a);
    assert_int_equal(t->asked, t->question);
    *back = post(t->other, WEFT_XFER_SEND, &t->answer);
    end(answered, t->b);
    assert_int_equal(t->answered, t->answer);
    return question;
}

static void a_question_ends_at_the_next_look(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        struct two t;
        two_open(&t, transports[i]);
        for (int round = 0; round < ROUNDS; round++) {
            weft_op_t back, question = ask(&t, &back);
            assert_int_equal(weft_op_poll(question, NULL), 1);
            end(back, t.a);
        }
        two_close(&t);
    }
}

/* It was taken, whatever becomes of the conn: here before anybody has looked. */
static void what_was_taken_is_no_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        struct weft_op_status status;
        struct two t;
        two_open(&t, transports[i]);
        weft_op_t back, question = ask(&t, &back);
        struct weft__conn *conn = weft__handle_get(t.conn, WEFT__CONN);
        pthread_mutex_lock(&conn->ep->lock);
        assert_true(conn->hears);
        weft__conn_down(conn, WEFT_EPEER, "its last link is lost");
        pthread_mutex_unlock(&conn->ep->lock);
        weft__handle_put(t.conn);
        TEST_UNTIL(weft_op_poll(question, &status) == 1, (void)0, "the question");
        assert_int_equal(status.status, 0);
        assert_int_equal(status.bytes, sizeof t.question);
        two_close(&t);
    }
}

/* A peer that says to have taken what was never sent is found out a moment later, too. */
static void counts_that_cannot_be_end_the_conn(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        struct weft_conn_info info = {0};
        struct two t;
        two_open(&t, transports[i]);
        weft_op_t back, question = ask(&t, &back), third = post(t.conn, WEFT_XFER_RECV, &t.answered);
        struct weft__conn *conn = weft__handle_get(t.conn, WEFT__CONN);
        pthread_mutex_lock(&conn->ep->lock);
        assert_true(conn->hears);
        conn->heard[0] += 1;
        pthread_mutex_unlock(&conn->ep->lock);
        weft__handle_put(t.conn);
        WEFT_OK(weft_endpoint_progress(t.a, 0));
        WEFT_OK(weft_conn_info(t.conn, &info));
        assert_int_equal(info.state, WEFT_CONN_DOWN);
        assert_int_equal(info.status, WEFT_EPROTO);
        assert_int_equal(weft_op_poll(question, NULL), 1);
        assert_int_equal(weft_op_poll(third, NULL), WEFT_EPROTO);
        two_close(&t);
    }
}

/* The same if the peer ends it, and is gone at once. */
static void who_answers_may_leave(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        struct weft_op_status status;
        struct weft_conn_info info = {0};
        struct two t;
        two_open(&t, transports[i]);
        weft_op_t back, question = ask(&t, &back);
        WEFT_OK(weft_endpoint_close(t.b));
        TEST_UNTIL(weft_conn_info(t.conn, &info) == 0 && info.state == WEFT_CONN_DOWN,
                   WEFT_OK(weft_endpoint_progress(t.a, 0)), "the end of the conn");
        assert_int_equal(weft_op_poll(question, &status), 1);
        assert_int_equal(status.status, 0);
        WEFT_OK(weft_endpoint_close(t.a));
    }
}

/* Canceled after the answer: too late. */
static void it_is_too_late_to_cancel(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        struct weft_op_status status;
        struct two t;
        two_open(&t, transports[i]);
        weft_op_t back, question = ask(&t, &back);
        WEFT_OK(weft_op_cancel(question));
        end(question, t.b);
        question = ask(&t, &back);
        WEFT_OK(weft_op_cancel(question));
        TEST_UNTIL(weft_op_poll(question, &status) != 0, (void)0, "the question");
        assert_int_equal(status.status, 0);
        two_close(&t);
    }
}

struct waiter {
    weft_op_t op;
    int rc;
};

static void *wait_for(void *arg)
{
    struct waiter *w = arg;
    w->rc = weft_op_wait(w->op, T, NULL);
    return NULL;
}

/* One thread takes the answer and never drives again; another one sleeps until the question has ended. */
static void who_sleeps_for_the_question_wakes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        struct two t;
        two_open(&t, transports[i]);
        uint64_t took = 0;
        for (int round = 0; round < ROUNDS; round++) {
            pthread_t thread;
            weft_op_t answered = post(t.conn, WEFT_XFER_RECV, &t.answered);
            weft_op_t asked = post(t.other, WEFT_XFER_RECV, &t.asked);
            struct waiter w = {.op = post(t.conn, WEFT_XFER_SEND, &t.question), .rc = -1};
            pthread_create(&thread, NULL, wait_for, &w);
            test_sleep_ms(20); /* it sleeps */
            end(asked, t.b);
            weft_op_t back = post(t.other, WEFT_XFER_SEND, &t.answer);
            end(answered, t.b);
            uint64_t since = weft_now();
            pthread_join(thread, NULL);
            took += weft_now() - since;
            assert_int_equal(w.rc, 0);
            end(back, t.a);
        }
        CHECK(took < LATE_MS * 1000000ull, "%s: %d questions ended after %d ms", transports[i],
              ROUNDS, (int)(took / 1000000));
        two_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_ends_at_the_next_look),
        cmocka_unit_test(what_was_taken_is_no_error),
        cmocka_unit_test(counts_that_cannot_be_end_the_conn),
        cmocka_unit_test(who_answers_may_leave),
        cmocka_unit_test(it_is_too_late_to_cancel),
        cmocka_unit_test(who_sleeps_for_the_question_wakes),
    };
    return cmocka_run_group_tests_name("heard", tests, NULL, NULL);
}
