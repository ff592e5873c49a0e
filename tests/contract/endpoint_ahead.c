/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that are longer than what a link is given at once (WEFT_AHEAD): they can be canceled, and let others pass.
 * The initiator is driven by its caller alone: nothing moves between two calls.
 */
#include "duo.h"

#define T TEST_DEADLINE_MS
#define KIB ((size_t)1024)
#define AHEAD "256K"
#define MOST_OUT (320 * KIB) /* AHEAD, and the part that began before it was full */
#define LEN (32 * 1024 * KIB)

struct pair {
    weft_endpoint_t a, b;
    weft_conn_t conn;
    char *near, *far;
    weft_mem_t mem;
    struct weft_remote remote;
};

static void pair_open(struct pair *p)
{
    struct weft_endpoint_opts opts = duo_opts();
    opts.passive_accept = 1;
    WEFT_OK(weft_config_set("WEFT_AHEAD", AHEAD));
    WEFT_OK(weft_endpoint_open(&opts, &p->b));
    opts.progress_threads = WEFT_PROGRESS_CALLER;
    WEFT_OK(weft_endpoint_open(&opts, &p->a));
    WEFT_OK(weft_config_set("WEFT_AHEAD", NULL));
    char metadata[WEFT_METADATA_MAX];
    int n = weft_endpoint_metadata(p->b, metadata, sizeof metadata);
    WEFT_OK(weft_endpoint_connect(p->a, metadata, (size_t)n, NULL, &p->conn));
    p->near = malloc(LEN);
    p->far = calloc(1, LEN);
    WEFT_OK(weft_mem_reg(p->b, p->far, LEN, NULL, &p->mem));
    WEFT_OK(weft_mem_advertise(p->mem, p->far, LEN, &p->remote));
    test_fill(p->near, LEN, 1, 0);
}

static void pair_close(struct pair *p)
{
    WEFT_OK(weft_endpoint_close(p->a));
    WEFT_OK(weft_endpoint_close(p->b));
    free(p->near);
    free(p->far);
}

/* As many pieces, all together of so many bytes. */
static weft_op_t post(struct pair *p, enum weft_xfer_op kind, size_t pieces, size_t len)
{
    struct weft_local *local = calloc(pieces, sizeof *local);
    struct weft_remote *remote = calloc(pieces, sizeof *remote);
    uint64_t *offset = calloc(pieces, sizeof *offset);
    weft_op_t op;
    for (size_t i = 0; i < pieces; i++) {
        offset[i] = i * (len / pieces);
        local[i] = (struct weft_local){.addr = p->near + offset[i], .len = len / pieces};
        remote[i] = p->remote;
    }
    WEFT_OK(weft_post(p->conn,
                      WEFT_OPTS(weft_xfer, .op = kind, .local = local, .nlocal = pieces,
                                .remote = remote, .nremote = pieces, .remote_offset = offset),
                      &op));
    free(local);
    free(remote);
    free(offset);
    return op;
}

static uint64_t written(const struct pair *p)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(p->conn, &stats));
    return stats.bytes_written;
}

static void is_well(struct pair *p)
{
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(p->conn, &info));
    assert_int_equal(info.state, WEFT_CONN_UP);
    test_fill(p->near, 1000, 2, 0);
    assert_int_equal(weft_write(p->conn, p->near, 1000, &p->remote, 5, T), 1000);
    assert_true(test_differs(p->far + 5, 1000, 2, 0) < 0);
}

/* What is out ends, and nothing else of it begins. */
static void a_canceled_one_ends_with_what_is_out(void **state)
{
    (void)state;
    static const enum weft_xfer_op kinds[] = {WEFT_XFER_WRITE, WEFT_XFER_READ};
    static const size_t pieces[] = {1, 4, 100, 8192};
    struct pair p;
    pair_open(&p);
    for (size_t i = 0; i < ARRAY_LEN(kinds) * ARRAY_LEN(pieces); i++) {
        struct weft_op_status status;
        weft_op_t op = post(&p, kinds[i % 2], pieces[i / 2], LEN);
        WEFT_OK(weft_op_cancel(op));
        assert_int_equal(weft_op_wait(op, T, &status), WEFT_ECANCELED);
        assert_true(status.bytes > 0 && status.bytes <= MOST_OUT);
    }
    for (size_t i = MOST_OUT; i < LEN; i++)
        if (p.far[i])
            fail_msg("byte %zu was written", i);
    is_well(&p);
    pair_close(&p);
}

/* A peer that is well costs no conn. */
static void a_deadline_leaves_the_conn_up(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_write(p.conn, p.near, LEN, &p.remote, 0, 0));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_read(p.conn, p.near, LEN, &p.remote, 0, 0));
    is_well(&p);
    pair_close(&p);
}

static void a_short_one_passes_a_long_one(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p);
    struct weft_op_status status;
    weft_op_t longer = post(&p, WEFT_XFER_WRITE, 1, LEN);
    weft_op_t shorter = post(&p, WEFT_XFER_WRITE, 1, 8);
    weft_op_t list = post(&p, WEFT_XFER_WRITE, 100, 800);
    WEFT_OK(weft_op_wait(shorter, T, &status));
    WEFT_OK(weft_op_wait(list, T, &status));
    assert_true(written(&p) < LEN / 2);
    WEFT_OK(weft_op_wait(longer, T, &status));
    assert_int_equal(status.bytes, LEN);
    assert_true(test_differs(p.far, LEN, 1, 0) < 0);
    pair_close(&p);
}

static void long_ones_go_in_turn(void **state)
{
    (void)state;
    enum { N = 3 };
    struct pair p;
    pair_open(&p);
    struct weft_op_status status;
    weft_op_t ops[N];
    for (size_t i = 0; i < N; i++)
        ops[i] = post(&p, WEFT_XFER_WRITE, i ? 100 * i : 1, LEN / 400 * 400);
    WEFT_OK(weft_op_wait(ops[0], T, &status));
    assert_true(written(&p) > LEN / 2 * N); /* one after the other: a third */
    for (size_t i = 1; i < N; i++)
        WEFT_OK(weft_op_wait(ops[i], T, &status));
    assert_true(test_differs(p.far, LEN / 400 * 400, 1, 0) < 0);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_canceled_one_ends_with_what_is_out),
        cmocka_unit_test(a_deadline_leaves_the_conn_up),
        cmocka_unit_test(a_short_one_passes_a_long_one),
        cmocka_unit_test(long_ones_go_in_turn),
    };
    return DUO_MAIN("endpoint_ahead", tests);
}
