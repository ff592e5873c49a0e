/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that attr names, on both sides of each, and what post refuses or takes in part. */
#include "pair.h"

#define MIB (1 << 20)

static void attr_makes_sense(void **state)
{
    struct pair *p = *state;
    const struct weft_nic_attr attr = pair_attr(p);
    const uint32_t basic = WEFT_OP_BIT(WEFT_OP_SEND);
    assert_true((attr.ops & basic) == basic);
    assert_int_equal(attr.ops >> WEFT_OP_COUNT, 0);
    assert_true(attr.mem_kinds & WEFT_MEM_HOST);
    assert_int_equal(attr.mem_kinds & ~7u, 0);
    assert_true(attr.order == WEFT_ORDER_NONE || attr.order == WEFT_ORDER_LINK);
    assert_true(attr.done == WEFT_DONE_SENT || attr.done == WEFT_DONE_DELIVERED);
    assert_true(attr.imm_bits == 0 || attr.imm_bits == 32);
    assert_true(attr.max_send >= 4096);
    assert_true(attr.max_iov >= 1);
    assert_true(attr.tx_depth >= 1);
    assert_true(attr.max_msg >= 1);
    assert_true(attr.max_inline <= attr.max_send);
}

static void attr_is_constant(void **state)
{
    struct pair *p = *state;
    struct weft_nic_attr before = pair_attr(p), after;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    pair_link(p, B);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, MIB), 0);
    pair_do(p, B, 1, cmd_send(far, 0, 8), 0);
    after = pair_attr(p);
    assert_memory_equal(&before, &after, sizeof before);
}

/* --- depth --------------------------------------------------------------------------------- */

static void post_takes_no_more_than_the_depth(void **state)
{
    struct pair *p = *state;
    uint32_t depth = pair_attr(p).tx_depth;
    int n = (int)(depth < 20000 ? depth + 10 : 20000);
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    struct weft_cmd *cmds = calloc((size_t)n, sizeof *cmds);
    size_t first;
    for (int i = 0; i < n; i++)
        cmds[i] = cmd_write(near, 0, far, 0, 8);
    int took = side_post_many(&p->a, 0, cmds, n, &first);
    assert_true(took >= 1);
    CHECK((uint32_t)took <= depth, "post took %d, attr.tx_depth is %u", took, depth);
    int left = n - took;
    while (took > 0 && left > 0) { /* until the nic takes no more without being polled */
        took = side_post_many(&p->a, 0, cmds, left, &first);
        assert_true(took >= 0);
        left -= took;
    }
    CHECK(p->a.pending <= depth, "%zu cmds are in flight, attr.tx_depth is %u", p->a.pending,
          depth);
    TEST_UNTIL(left == 0, side_pump(&p->a); took = side_post_many(&p->a, 0, cmds, left, &first);
               assert_true(took >= 0); left -= took, "post to take the rest");
    pair_settle(p, A);
    free(cmds);
}

static void post_of_nothing_is_nothing(void **state)
{
    struct pair *p = *state;
    struct weft_cmd cmd = {0};
    assert_int_equal(p->a.ops->post(p->a.links[0].link, &cmd, 0), 0);
}

/* post takes what stands before the cmd that it must refuse, and refuses that alone. */
static void a_bad_cmd_among_good_ones(void **state)
{
    struct pair *p = *state;
    uint64_t most = pair_attr(p).max_send;
    struct buf near = pair_buf(p, A, most + 1, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    struct weft_cmd cmds[] = {cmd_write(near, 0, far, 0, 8), cmd_send(near, 0, most + 1),
                              cmd_write(near, 8, far, 8, 8)};
    size_t first;
    int took = 0;
    pair_fill(p, near, 1);
    TEST_UNTIL((took = side_post_many(&p->a, 0, cmds, 3, &first)), pair_pump(p), "post");
    assert_int_equal(took, 1);
    TEST_UNTIL((took = side_post_many(&p->a, 0, cmds + 1, 2, &first)), pair_pump(p), "post");
    assert_true(took < 0);
    assert_true(*weft_last_error());
    pair_do(p, A, 0, cmds[2], 0);
    pair_settle(p, A);
    pair_check(p, far, 0, 16, 1);
}

static void operations_that_do_not_exist_are_refused(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    for (int op = 0; op < 256; op++) {
        struct weft_cmd cmd = cmd_write(near, 0, far, 0, 8);
        bool can = op < WEFT_OP_COUNT && pair_attr(p).ops & WEFT_OP_BIT(op) &&
                   op != WEFT_OP_RECV && op != WEFT_OP_LINK_DOWN;
        cmd.op = (uint8_t)op;
        if (can)
            continue;
        int64_t rc = pair_try(p, A, 0, &cmd);
        CHECK(rc == WEFT_EUNSUPPORTED || rc == -EINVAL, "post of op %d gave %" PRId64, op, rc);
    }
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, 8), 0);
}

static void longer_than_max_msg_is_refused(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    if (pair_attr(p).max_msg == UINT64_MAX)
        return;
    struct weft_cmd write = cmd_write(near, 0, far, 0, pair_attr(p).max_msg + 1), read = write;
    read.op = WEFT_OP_READ;
    assert_true(pair_try(p, A, 0, &write) < 0);
    assert_true(pair_try(p, A, 0, &read) < 0);
}

static void more_pieces_than_max_iov_are_refused(void **state)
{
    struct pair *p = *state;
    uint32_t most = pair_attr(p).max_iov;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    if (most >= UINT16_MAX)
        return; /* niov cannot say more */
    struct weft_iov_local *iov = calloc(most + 1, sizeof *iov);
    for (uint32_t i = 0; i <= most; i++)
        iov[i] = (struct weft_iov_local){(void *)(uintptr_t)near.addr, 0, near.mem};
    iov[0].len = iov[most - 1].len = most > 1 ? 4 : 8;
    struct weft_cmd cmd = cmd_write(near, 0, far, 0, 8);
    cmd.iov = iov;
    cmd.niov = (uint16_t)(most + 1);
    assert_true(side_post(&p->a, 0, &cmd) < 0);
    cmd.niov = (uint16_t)most;
    int64_t n = side_post(&p->a, 0, &cmd);
    assert_true(n >= 0);
    assert_int_equal(pair_wait(p, A, (size_t)n).status, 0);
    free(iov);
}

/* --- inline and MORE ----------------------------------------------------------------------- */

static void try_inline(struct pair *p, struct weft_cmd cmd, struct buf near, uint64_t len)
{
    pair_fill(p, near, 5);
    cmd.flags = WEFT_CMD_INLINE;
    cmd.len = cmd.one.len = len;
    size_t n = pair_post(p, A, 0, &cmd);
    pair_fill(p, near, 6); /* the payload was copied before post returned */
    assert_int_equal(pair_wait(p, A, n).status, 0);
}

static void inline_payload_is_copied(void **state)
{
    struct pair *p = *state;
    uint64_t most = pair_attr(p).max_inline;
    test_need(most > 0, "inline payload in this transport");
    struct buf near = pair_buf(p, A, most, 0, 0), far = pair_buf(p, B, most, 0, ACCESS_ALL);
    size_t sent = 0;
    for (uint64_t len = 0; len <= most; len = len == most ? most + 1
                                            : len < 70    ? len + 1
                                            : len * 3 > most ? most : len * 3) {
        struct weft_cmd write = cmd_write(near, 0, far, 0, len), send = cmd_send(near, 0, len);
        pair_fill(p, far, 7);
        try_inline(p, write, near, len);
        pair_check(p, far, 0, len, 5);
        try_inline(p, send, near, len);
        assert_int_equal(pair_arrival(p, B, sent).len, len);
        pair_check_arrival(p, B, sent++, 5, 0);
    }
}

/* A burst with each payload overwritten right after its post. */
static void inline_payload_is_copied_under_load(void **state)
{
    struct pair *p = *state;
    test_need(pair_attr(p).max_inline >= 8, "inline payload in this transport");
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8 * 500, 0, ACCESS_ALL);
    for (uint64_t i = 0; i < 500; i++) {
        struct weft_cmd cmd = cmd_write(near, 0, far, 8 * i, 8);
        cmd.flags = WEFT_CMD_INLINE;
        pair_set_word(p, near, 0, i + 1);
        pair_post(p, A, 0, &cmd);
    }
    pair_settle(p, A);
    for (uint64_t i = 0; i < 500; i++)
        assert_int_equal(pair_word(p, far, 8 * i), i + 1);
}

/* What waits behind a fence is copied, too, and goes when its caller's bytes are others. */
static void inline_payload_that_waits_is_copied(void **state)
{
    struct pair *p = *state;
    uint64_t most = pair_attr(p).max_inline;
    test_need(most > 0 && pair_has(p, WEFT_OP_FENCE), "inline payload, and fences, in this transport");
    enum { LONG = 1 << 20 };
    struct buf bulk = pair_buf(p, A, LONG, 0, 0), place = pair_buf(p, B, LONG, 0, ACCESS_ALL);
    struct buf near = pair_buf(p, A, most, 0, 0), far = pair_buf(p, B, most, 0, ACCESS_ALL);
    const uint64_t lens[] = {1, most / 2 + 1, most};
    for (size_t i = 0; i < 2 * ARRAY_LEN(lens); i++) {
        uint64_t len = lens[i / 2];
        struct weft_cmd before[] = {cmd_write(bulk, 0, place, 0, LONG), cmd_fence()};
        struct weft_cmd cmd = i % 2 ? cmd_send(near, 0, len) : cmd_write(near, 0, far, 0, len);
        for (size_t c = 0; c < ARRAY_LEN(before); c++)
            pair_post(p, A, 0, &before[c]);
        try_inline(p, cmd, near, len);
        if (i % 2)
            assert_int_equal(pair_arrival(p, B, i / 2).len, len);
        if (i % 2)
            pair_check_arrival(p, B, i / 2, 5, 0);
        else
            pair_check(p, far, 0, len, 5);
        pair_settle(p, A);
    }
}

static void longer_than_max_inline_is_refused(void **state)
{
    struct pair *p = *state;
    uint64_t len = pair_attr(p).max_inline + 1ull;
    struct buf near = pair_buf(p, A, len, 0, 0), far = pair_buf(p, B, len, 0, ACCESS_ALL);
    struct weft_cmd cmd = cmd_write(near, 0, far, 0, len);
    cmd.flags = WEFT_CMD_INLINE;
    assert_true(pair_try(p, A, 0, &cmd) < 0);
    cmd.flags = 0;
    pair_do(p, A, 0, cmd, 0);
}

static void trains_of_cmds_with_more(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 8 * 100, 0, 0), far = pair_buf(p, B, 8 * 100, 0, ACCESS_ALL);
    for (uint64_t train = 1; train <= 10; train++) {
        pair_fill(p, near, train);
        for (uint64_t i = 0; i < 10 * train; i++) {
            struct weft_cmd cmd = cmd_write(near, 8 * i, far, 8 * i, 8);
            cmd.flags = i + 1 < 10 * train ? WEFT_CMD_MORE : 0;
            pair_post(p, A, 0, &cmd);
        }
        pair_settle(p, A);
        pair_check(p, far, 0, 80 * train, train);
    }
}

/* --- size ---------------------------------------------------------------------------------- */

static void sixty_four_mebibytes(void **state)
{
    struct pair *p = *state;
    uint64_t len = 64ull * MIB - 3;
    len = pair_attr(p).max_msg < len ? pair_attr(p).max_msg : len;
    struct buf near = pair_buf(p, A, len, 1, 0), far = pair_buf(p, B, len, 2, ACCESS_ALL);
    pair_fill(p, near, 1);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, len), 0);
    pair_check(p, far, 0, len, 1);
    pair_fill(p, far, 2);
    pair_do(p, A, 0, cmd_read(near, 0, far, 0, len), 0);
    pair_check(p, near, 0, len, 2);
}

/* post and poll do a bounded amount of work: a large write takes many polls. */
static void one_poll_does_a_bounded_amount(void **state)
{
    struct pair *p = *state;
    enum { LEAST_POLLS = 8 }; /* about 1 MiB each is promised; 8 MiB each would still pass */
    struct buf near = pair_buf(p, A, 64 * MIB, 0, 0);
    struct buf far = pair_buf(p, B, 64 * MIB, 0, ACCESS_ALL);
    for (int read = 0; read < 2; read++) {
        struct weft_cmd cmd = read ? cmd_read(near, 0, far, 0, 64 * MIB)
                                   : cmd_write(near, 0, far, 0, 64 * MIB);
        int polls = 0;
        pair_post(p, A, 0, &cmd);
        TEST_UNTIL(!p->a.pending, pair_pump(p); polls++, "64 MiB");
        CHECK(polls >= LEAST_POLLS, "64 MiB were moved by %d polls", polls);
    }
}

static void no_bytes_are_legal(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8, 0, ACCESS_ALL);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, 0), 0);
    pair_do(p, A, 0, cmd_read(near, 0, far, 0, 0), 0);
    pair_do(p, A, 0, cmd_send(near, 0, 0), 0);
    if (pair_has(p, WEFT_OP_WRITE_IMM))
        pair_do(p, A, 0, cmd_imm(near, 0, far, 0, 0, 9), 0);
    pair_arrival(p, B, pair_has(p, WEFT_OP_WRITE_IMM));
    struct weft_cmd null = {.op = WEFT_OP_SEND}; /* without any memory */
    pair_do(p, A, 0, null, 0);
    assert_int_equal(pair_arrival(p, B, 1 + pair_has(p, WEFT_OP_WRITE_IMM)).len, 0);
    pair_check_zero(p, far, 0, 8);
    pair_check_zero(p, near, 0, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(attr_makes_sense),
        IN_BOTH(attr_is_constant),
        IN_ONE(post_takes_no_more_than_the_depth),
        IN_ONE(post_of_nothing_is_nothing),
        IN_ONE(a_bad_cmd_among_good_ones),
        IN_BOTH(operations_that_do_not_exist_are_refused),
        IN_BOTH(longer_than_max_msg_is_refused),
        IN_ONE(more_pieces_than_max_iov_are_refused),
        IN_BOTH(inline_payload_is_copied),
        IN_BOTH(inline_payload_is_copied_under_load),
        IN_BOTH(inline_payload_that_waits_is_copied),
        IN_BOTH(longer_than_max_inline_is_refused),
        IN_BOTH(trains_of_cmds_with_more),
        IN_BOTH(sixty_four_mebibytes),
        IN_ONE(one_poll_does_a_bounded_amount),
        IN_BOTH(no_bytes_are_legal),
    };
    return PAIR_MAIN("transport_limits", tests);
}
