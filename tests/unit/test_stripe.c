/* SPDX-License-Identifier: Apache-2.0 */
/* core/stripe.c: which of several links gets what. */
#include "contract/duo.h"

#include "conn.h"
#include "lane.h"

#define T TEST_DEADLINE_MS
#define PIECES 20
#define LEN ((size_t)64 << 10)

struct two {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    struct test_mem from, to;
    weft_mem_t mem;
    struct weft_remote remote;
    weft_op_t ops[PIECES];
};

static void two_open(struct two *t)
{
    const struct weft_endpoint_opts opts = duo_opts();
    WEFT_OK(weft_config_set("WEFT_LANES", "2"));
    WEFT_OK(weft_endpoint_open(&opts, &t->a));
    WEFT_OK(weft_endpoint_open(&opts, &t->b));
    WEFT_OK(weft_config_set("WEFT_LANES", NULL));
    duo_join(t->a, t->b, &t->conn, &t->other);
    test_mem_open(&t->from, PIECES * LEN, 1);
    test_mem_open(&t->to, PIECES * LEN, 2);
    test_fill(t->from.at, PIECES * LEN, 1, 0);
    WEFT_OK(weft_mem_reg(t->b, t->to.at, PIECES * LEN, NULL, &t->mem));
    WEFT_OK(weft_mem_advertise(t->mem, t->to.at, PIECES * LEN, &t->remote));
}

static void two_close(struct two *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
    test_mem_close(&t->from);
    test_mem_close(&t->to);
}

static void post(struct two *t, size_t i)
{
    uint64_t offset = i * LEN;
    struct weft_local local = {t->from.at + offset, LEN, 0};
    WEFT_OK(weft_post(t->conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &t->remote, .nremote = 1, .remote_offset = &offset),
                      &t->ops[i]));
}

static size_t collect(struct two *t)
{
    size_t n = 0;
    for (size_t i = 0; i < PIECES; i++)
        if (t->ops[i] && weft_op_poll(t->ops[i], NULL) == 1) {
            t->ops[i] = 0;
            n++;
        }
    return n;
}

/* One, and as long as that is under way the other link gets all. */
static void a_link_that_stands_still_gets_little(void **state)
{
    (void)state;
    struct two t = {0};
    two_open(&t);
    struct weft__conn *conn = weft__handle_get(t.conn, WEFT__CONN);
    assert_int_equal(conn->nlinks, 2);
    for (int still = 0; still < 2; still++) {
        pthread_mutex_t *lock = &conn->links[still]->lane->lock;
        size_t done = 0;
        pthread_mutex_lock(lock);
        for (size_t i = 0; i < PIECES; i++) {
            post(&t, i);
            TEST_UNTIL((done += collect(&t)) >= i, test_sleep_ms(1), "all but one");
        }
        pthread_mutex_unlock(lock);
        TEST_UNTIL((done += collect(&t)) == PIECES, test_sleep_ms(1), "the last one");
        assert_true(test_differs(t.to.at, PIECES * LEN, 1, 0) < 0);
        test_zero(t.to.at, PIECES * LEN);
    }
    assert_int_equal(conn->links[0]->bytes, 0);
    assert_int_equal(conn->links[1]->bytes, 0);
    weft__handle_put(t.conn);
    two_close(&t);
}

/* What failed is under way by no link. */
static void refused_parts_do_not_count(void **state)
{
    (void)state;
    struct two t = {0};
    weft_op_t op;
    two_open(&t);
    struct weft__conn *conn = weft__handle_get(t.conn, WEFT__CONN);
    WEFT_OK(weft_mem_dereg(t.mem));
    for (int i = 0; i < 10; i++) {
        struct weft_local local = {t.from.at, PIECES * LEN, 0};
        WEFT_OK(weft_post(t.conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                    .remote = &t.remote, .nremote = 1),
                          &op));
        assert_int_equal(weft_op_wait(op, T, NULL), WEFT_EKEY);
        assert_int_equal(conn->links[0]->bytes + conn->links[1]->bytes, 0);
    }
    weft__handle_put(t.conn);
    two_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_link_that_stands_still_gets_little),
                                       cmocka_unit_test(refused_parts_do_not_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
