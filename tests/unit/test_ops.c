/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of operations (core/op.c): each endpoint uses its own again, and who opens and closes endpoints needs no more of it. */
#include "contract/duo.h"

#include "op.h"

#define T TEST_DEADLINE_MS
#define OPS (3 * WEFT__OP_CHUNK)
#define ROUNDS 20

/* Two endpoints and their ends of a conn. */
struct two {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
};

static struct two two_open(void)
{
    struct two t = {.a = duo_endpoint(), .b = duo_endpoint()};
    duo_join(t.a, t.b, &t.conn, &t.other);
    return t;
}

static void two_close(struct two *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
}

/* So many at once, each given back; their slots go to seen[]. */
static void use_ops(weft_conn_t conn, bool *seen, uint32_t nseen)
{
    static char byte;
    struct weft_local local = {.addr = &byte, .len = 1};
    weft_op_t ops[OPS];
    for (int i = 0; i < OPS; i++) {
        WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1), &ops[i]));
        uint32_t slot = weft__handle_slot(ops[i]);
        assert_true(slot < nseen);
        seen[slot] = true;
    }
    for (int i = 0; i < OPS; i++) {
        WEFT_OK(weft_op_cancel(ops[i]));
        assert_int_equal(weft_op_wait(ops[i], T, NULL), WEFT_ECANCELED);
    }
}

static uint32_t slots(void)
{
    uint32_t n = 0;
    while (weft__op_slot(n))
        n += WEFT__OP_CHUNK;
    return n;
}

/* What the threads of one endpoint have in their caches is not another's. */
static void each_endpoint_has_its_own(void **state)
{
    (void)state;
    static bool by[2][64 * OPS];
    memset(by, 0, sizeof by);
    struct two t = two_open();
    for (int round = 0; round < ROUNDS; round++) {
        use_ops(t.conn, by[0], 64 * OPS);
        use_ops(t.other, by[1], 64 * OPS);
    }
    for (uint32_t i = 0; i < 64 * OPS; i++)
        CHECK(!by[0][i] || !by[1][i], "operation %u was of both", i);
    two_close(&t);
}

/* Those that nobody has asked for, too. */
static void who_comes_and_goes_takes_no_more(void **state)
{
    (void)state;
    static bool seen[64 * OPS];
    static char byte;
    struct weft_local local = {.addr = &byte, .len = 1};
    uint32_t before = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct two t = two_open();
        weft_op_t forgotten;
        use_ops(t.conn, seen, 64 * OPS);
        use_ops(t.other, seen, 64 * OPS);
        for (int i = 0; i < OPS; i++)
            WEFT_OK(weft_post(t.conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1), &forgotten));
        two_close(&t);
        if (round == 1)
            before = slots();
    }
    assert_int_equal(slots(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_endpoint_has_its_own),
        cmocka_unit_test(who_comes_and_goes_takes_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
