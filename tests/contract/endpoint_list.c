/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of short pieces, of which core hands several to a nic in one go: what one piece meets is
 * told of that piece, counts for no other, and a nic gets no more than it takes.
 */
#include "duo.h"

#include "registry.h"

#define T TEST_DEADLINE_MS
#define PIECES 100 /* all under way at once */
#define STEP 4096  /* between pieces: none is longer */

struct lists {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    struct test_mem near, far;
    struct weft_local local[PIECES];
    struct weft_remote remote[PIECES];
    uint64_t offset[PIECES], total;
    struct weft_xfer xfer;
};

/* Side A has these faults beside those of the run. */
static void open_with(struct lists *l, const char *spec)
{
    char both[256];
    const char *also = test_fault();
    struct weft_endpoint_opts opts = duo_opts();
    struct weft_remote whole;
    weft_mem_t mem;
    snprintf(both, sizeof both, "%s%s%s", spec, *spec && *also ? "," : "", also);
    opts.fault = both;
    WEFT_OK(weft_config_set("WEFT_LANES", "1")); /* the spec counts what one nic does */
    WEFT_OK(weft_endpoint_open(&opts, &l->a));
    WEFT_OK(weft_config_set("WEFT_LANES", NULL));
    l->b = duo_endpoint();
    duo_join(l->a, l->b, &l->conn, &l->other);
    test_mem_open(&l->near, PIECES * STEP, 0);
    test_mem_open(&l->far, PIECES * STEP, 0);
    WEFT_OK(weft_mem_reg(l->b, l->far.at, PIECES * STEP, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, l->far.at, PIECES * STEP, &whole));
    for (size_t i = 0; i < PIECES; i++)
        l->remote[i] = whole;
}

static void close_all(struct lists *l)
{
    WEFT_OK(weft_endpoint_close(l->a));
    WEFT_OK(weft_endpoint_close(l->b));
    test_mem_close(&l->near);
    test_mem_close(&l->far);
}

/* Piece i lands at the place of piece 7 i. */
static void make(struct lists *l, const size_t *lens, size_t nlens, enum weft_xfer_op op)
{
    bool write = op == WEFT_XFER_WRITE;
    l->total = 0;
    for (size_t i = 0; i < PIECES; i++) {
        l->local[i] = (struct weft_local){.addr = l->near.at + i * STEP, .len = lens[i % nlens]};
        l->offset[i] = i * 7 % PIECES * STEP;
        l->total += l->local[i].len;
    }
    test_fill(write ? l->near.at : l->far.at, PIECES * STEP, 1, 0);
    test_zero(write ? l->far.at : l->near.at, PIECES * STEP);
    l->xfer = (struct weft_xfer){.struct_size = sizeof l->xfer,
                                 .op = op,
                                 .local = l->local,
                                 .nlocal = PIECES,
                                 .remote = l->remote,
                                 .nremote = PIECES,
                                 .remote_offset = l->offset};
}

static bool landed(const struct lists *l, size_t i)
{
    return memcmp(l->local[i].addr, l->far.at + l->offset[i], l->local[i].len) == 0;
}

static uint64_t landed_bytes(const struct lists *l)
{
    uint64_t n = 0;
    for (size_t i = 0; i < PIECES; i++)
        n += landed(l, i) ? l->local[i].len : 0;
    return n;
}

static uint64_t counted(const struct lists *l)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(l->conn, &stats));
    assert_int_equal(stats.links_lost, 0);
    return stats.bytes_written + stats.bytes_read;
}

static uint64_t cmds(const struct lists *l)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(l->conn, &stats));
    return stats.cmds_posted;
}

static void moves_all(struct lists *l)
{
    struct weft_op_status status;
    uint64_t before = counted(l), least = cmds(l);
    for (size_t i = 0; i < PIECES; i++)
        least += l->local[i].len > 0;
    assert_int_equal(weft_transfer(l->conn, &l->xfer, T, &status), l->total);
    assert_int_equal(status.bytes, l->total);
    assert_int_equal(landed_bytes(l), l->total);
    assert_int_equal(counted(l) - before, l->total);
    assert_true(cmds(l) >= least);
}

/* The spec is for the first list: it fails, and the second one does not. */
static void fails_once(const char *spec, enum weft_xfer_op op, bool alone)
{
    static const size_t lens[] = {72, 500, 8};
    struct lists l;
    struct weft_op_status status;
    open_with(&l, spec);
    make(&l, lens, ARRAY_LEN(lens), op);
    WEFT_FAILS(-42, weft_transfer(l.conn, &l.xfer, T, &status));
    const char *text = strstr(status.text, ", piece ");
    size_t piece = text ? strtoul(text + 8, NULL, 10) : PIECES;
    CHECK(piece < PIECES, "%s: no piece in '%s'", spec, status.text);
    CHECK(!landed(&l, piece), "%s: it is there, but '%s'", spec, status.text);
    char len[32];
    snprintf(len, sizeof len, " of %zu bytes ", l.local[piece].len);
    CHECK(strstr(status.text, len), "%s: '%s', but its length is%s", spec, status.text, len);
    assert_int_equal(status.bytes, landed_bytes(&l));
    assert_int_equal(counted(&l), status.bytes);
    if (alone)
        assert_int_equal(status.bytes, l.total - l.local[piece].len);
    make(&l, lens, ARRAY_LEN(lens), op);
    moves_all(&l);
    close_all(&l);
}

/* The first cmd, the ends of a run, in the middle; how: fail or refuse. */
static void fails_at_each(const char *how, const char *more, bool alone)
{
    static const int nths[] = {1, 2, 16, 17, 23, 40};
    char spec[64];
    for (size_t i = 0; i < ARRAY_LEN(nths); i++) {
        snprintf(spec, sizeof spec, "%s=%d:-42%s", how, nths[i], more);
        fails_once(spec, WEFT_XFER_WRITE, alone);
        fails_once(spec, WEFT_XFER_READ, alone);
    }
}

static void a_piece_that_fails(void **state)
{
    (void)state;
    fails_at_each("fail", "", true);
}

/* What it was handed over with and comes behind it may not have gone. No room is lost by that: the
 * nic has just enough for one such lot. */
static void a_piece_that_a_nic_refuses(void **state)
{
    (void)state;
    fails_at_each("refuse", ",depth=16", false);
}

static void nics_that_take_little(void **state)
{
    (void)state;
    static const char *const specs[] = {"depth=1",  "depth=2",   "depth=17",
                                        "depth=20", "maxmsg=50", "maxmsg=600"};
    static const size_t lens[] = {72, 0, 1, 601, 600, 0, 0, 1500, 8};
    for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
        struct lists l;
        open_with(&l, specs[i]);
        make(&l, lens, ARRAY_LEN(lens), WEFT_XFER_WRITE);
        moves_all(&l);
        make(&l, lens, ARRAY_LEN(lens), WEFT_XFER_READ);
        moves_all(&l);
        close_all(&l);
    }
}

/* Each piece has to lie in its own mem, not only the first of those that name it. */
static void a_piece_outside_its_mem(void **state)
{
    (void)state;
    static const size_t lens[] = {STEP};
    struct lists l;
    weft_mem_t mem;
    open_with(&l, "");
    make(&l, lens, ARRAY_LEN(lens), WEFT_XFER_WRITE);
    WEFT_OK(weft_mem_reg(l.a, l.near.at, 10 * STEP - 1, NULL, &mem));
    for (size_t i = 0; i < 10; i++)
        l.local[i].mem = mem;
    WEFT_FAILS(WEFT_EBOUNDS, weft_transfer(l.conn, &l.xfer, T, NULL));
    CHECK(strstr(weft_last_error(), "local[9]"), "'%s'", weft_last_error());
    l.local[9].mem = 0;
    moves_all(&l);
    close_all(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_piece_that_fails),
        cmocka_unit_test(a_piece_that_a_nic_refuses),
        cmocka_unit_test(nics_that_take_little),
        cmocka_unit_test(a_piece_outside_its_mem),
    };
    if (!weft__transport_find("fault")) {
        fprintf(stderr, "skipped: this build has no fault transport\n");
        return 77;
    }
    return DUO_MAIN("endpoint_list", tests);
}
