/* SPDX-License-Identifier: Apache-2.0 */
/* What is ordered: an immediate after its data, what stands behind a FENCE after what stands
 * before it, and everything of a link where attr.order says so. Nothing else is asked for. */
#include "pair.h"

#define N 300
#define MIB (1 << 20)

static struct pair *need(struct pair *p, enum weft_op op)
{
    test_need(pair_has(p, op), weft_op_name(op));
    return p;
}

/* --- WRITE_IMM ----------------------------------------------------------------------------- */

static void an_immediate_arrives_whole(void **state)
{
    struct pair *p = need(*state, WEFT_OP_WRITE_IMM);
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    assert_int_equal(pair_attr(p).imm_bits, 32);
    const uint32_t imms[] = {0, 1, 0x80000000, 0xffffffff, 0x12345678, 0x0000ffff};
    for (size_t i = 0; i < ARRAY_LEN(imms); i++) {
        pair_do(p, A, 0, cmd_imm(near, 0, far, 0, i, imms[i]), 0);
        struct arrived got = pair_arrival(p, B, i);
        assert_int_equal(got.op, WEFT_OP_WRITE_IMM);
        assert_int_equal(got.imm, imms[i]);
        assert_int_equal(got.link, 0);
    }
    pair_linger(p);
    assert_int_equal(pair_arrivals(p, B), ARRAY_LEN(imms));
}

static void without_immediates_imm_bits_is_0(void **state)
{
    struct pair *p = *state;
    assert_int_equal(pair_attr(p).imm_bits, pair_has(p, WEFT_OP_WRITE_IMM) ? 32 : 0);
}

/* At the moment of arrival the whole of the write it came with is in memory. Immediate i came with
 * block i of the buffer, whose bytes are pattern 7. */
static const uint64_t blocks[] = {1, 8, 100, 4096, 65536, 300000, MIB, 3 * MIB + 1};

static void data_is_here(struct side *side, const struct arrival *arrival)
{
    uint64_t at = 0;
    if (arrival->op != WEFT_OP_WRITE_IMM)
        return;
    CHECK(arrival->imm < ARRAY_LEN(blocks), "immediate %u was never sent", arrival->imm);
    for (uint32_t i = 0; i < arrival->imm; i++)
        at += blocks[i];
    int64_t differs = test_differs(side->bufs[0].mem.at + at, blocks[arrival->imm], 7, at);
    CHECK(differs < 0, "immediate %u was here before byte %" PRId64 " of its data", arrival->imm,
          differs);
}

static void watch_data(struct side *side, void *arg)
{
    (void)arg;
    side->on_arrival = data_is_here;
}

static void an_immediate_comes_after_its_data(void **state)
{
    struct pair *p = need(*state, WEFT_OP_WRITE_IMM);
    struct buf far = pair_buf(p, B, 5 * MIB, 3, ACCESS_ALL), near = pair_buf(p, A, 5 * MIB, 0, 0);
    uint64_t at = 0;
    pair_fill(p, near, 7);
    pair_call(p, B, watch_data, NULL, 0);
    for (uint32_t i = 0; i < ARRAY_LEN(blocks); i++) {
        struct weft_cmd cmd = cmd_imm(near, at, far, at, blocks[i], i);
        pair_post(p, A, 0, &cmd);
        at += blocks[i];
    }
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++)
        pair_arrival(p, B, i);
    pair_check(p, far, 0, at, 7);
}

static void each_immediate_arrives_once(void **state)
{
    struct pair *p = need(*state, WEFT_OP_WRITE_IMM);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8 * N, 0, ACCESS_ALL);
    unsigned char seen[N] = {0};
    for (uint32_t i = 0; i < N; i++) {
        struct weft_cmd cmd = cmd_imm(near, 0, far, 8 * i, i % 3 ? 8 : 0, i);
        pair_post(p, A, 0, &cmd);
    }
    for (size_t i = 0; i < N; i++) {
        struct arrived got = pair_arrival(p, B, i);
        CHECK(got.imm < N && !seen[got.imm]++, "immediate %u arrived twice", got.imm);
        if (pair_attr(p).order == WEFT_ORDER_LINK)
            assert_int_equal(got.imm, i);
    }
    pair_linger(p);
    assert_int_equal(pair_arrivals(p, B), N);
}

static void a_refused_write_brings_no_immediate(void **state)
{
    struct pair *p = need(*state, WEFT_OP_WRITE_IMM);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8, 0, WEFT_ACCESS_READ);
    pair_do(p, A, 0, cmd_imm(near, 0, far, 0, 8, 1), WEFT_EACCESS);
    far.key ^= 4;
    pair_do(p, A, 0, cmd_imm(near, 0, far, 0, 8, 2), WEFT_EKEY);
    pair_linger(p);
    assert_int_equal(pair_arrivals(p, B), 0);
}

/* --- FENCE --------------------------------------------------------------------------------- */

/* Data, fence, flag: whoever sees the flag sees the data. The flag is looked at after each poll. */
static void what_follows_a_fence_is_delivered_after(void **state)
{
    struct pair *p = need(*state, WEFT_OP_FENCE);
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    struct buf flag = pair_buf(p, B, 8, 0, ACCESS_ALL), one = pair_buf(p, A, 8, 0, 0);
    for (uint64_t i = 1; i <= 20; i++) {
        uint64_t len = i % 2 ? MIB : 100 * i;
        pair_fill(p, near, i);
        pair_set_word(p, one, 0, i);
        struct weft_cmd cmds[] = {cmd_write(near, 0, far, 0, len / 2),
                                  cmd_write(near, len / 2, far, len / 2, len - len / 2),
                                  cmd_fence(), cmd_write(one, 0, flag, 0, 8)};
        for (size_t c = 0; c < ARRAY_LEN(cmds); c++)
            pair_post(p, A, 0, &cmds[c]);
        TEST_UNTIL(pair_word(p, flag, 0) == i, pair_pump(p), "the flag behind a fence");
        pair_check(p, far, 0, len, i);
        pair_settle(p, A);
    }
}

static void a_message_behind_a_fence_comes_after_the_data(void **state)
{
    struct pair *p = need(*state, WEFT_OP_FENCE);
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    for (uint64_t i = 0; i < 10; i++) {
        pair_fill(p, near, i);
        struct weft_cmd cmds[] = {cmd_write(near, 0, far, 0, MIB), cmd_fence(),
                                  cmd_send(near, 0, 8)};
        for (size_t c = 0; c < ARRAY_LEN(cmds); c++)
            pair_post(p, A, 0, &cmds[c]);
        pair_arrival(p, B, i);
        pair_check(p, far, 0, MIB, i);
        pair_settle(p, A);
    }
}

static void fences_complete_anywhere(void **state)
{
    struct pair *p = need(*state, WEFT_OP_FENCE);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8, 0, ACCESS_ALL);
    struct outcome got = pair_do(p, A, 0, cmd_fence(), 0);
    assert_int_equal(got.len, 0);
    for (int i = 0; i < 50; i++) {
        struct weft_cmd fence = cmd_fence(), write = cmd_write(near, 0, far, 0, 8);
        struct weft_cmd send = cmd_send(near, 0, 8);
        if (i % 2)
            pair_post(p, A, 0, &send);
        pair_post(p, A, 0, &fence);
        pair_post(p, A, 0, &fence);
        pair_post(p, A, 0, &write);
    }
    pair_settle(p, A);
}

/* A read behind a fence sees the write before it. */
static void a_read_behind_a_fence_sees_the_write(void **state)
{
    struct pair *p = need(*state, WEFT_OP_FENCE);
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    struct buf back = pair_buf(p, A, MIB, 0, 0);
    for (uint64_t i = 0; i < 10; i++) {
        pair_fill(p, near, i);
        struct weft_cmd cmds[] = {cmd_write(near, 0, far, 0, MIB), cmd_fence(),
                                  cmd_read(back, 0, far, 0, MIB)};
        for (size_t c = 0; c < ARRAY_LEN(cmds); c++)
            pair_post(p, A, 0, &cmds[c]);
        pair_settle(p, A);
        pair_check(p, back, 0, MIB, i);
    }
}

/* What a fence waits for is the answer to a read or an addition, and nothing else is said that could wake what waits. */
static void a_fence_behind_what_is_answered_alone(void **state)
{
    struct pair *p = need(*state, WEFT_OP_FENCE);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL), back = pair_buf(p, A, MIB, 0, 0);
    pair_fill(p, far, 4);
    for (int i = 0; i < 6; i++) {
        struct weft_cmd first = i % 2 && pair_has(p, WEFT_OP_ADD64) ? cmd_add(near, far, 0, 1) : cmd_read(back, 0, far, 0, i < 3 ? 8 : MIB);
        struct weft_cmd cmds[] = {first, cmd_fence(), cmd_write(near, 0, far, 8, 8)};
        for (size_t c = 0; c < ARRAY_LEN(cmds); c++)
            pair_post(p, A, 0, &cmds[c]);
        pair_settle(p, A);
    }
}

/* --- attr.order ---------------------------------------------------------------------------- */

static struct weft_cmd mixed(struct pair *p, struct buf near, struct buf far, uint64_t i)
{
    uint64_t len = i % 5 == 0 ? 70000 : 8 * (i % 40);
    switch (i % 4) {
    case 0: return cmd_write(near, 0, far, 0, len);
    case 1: return cmd_read(near, 100000, far, 0, len);
    case 2: return cmd_send(near, 0, 8 + i % 100);
    default: return pair_has(p, WEFT_OP_ADD64) ? cmd_add(near, far, 0, 1)
                                               : cmd_write(near, 0, far, 0, 8);
    }
}

/* Where order is promised comps come as posted; where it is not, each still comes once. */
static void mixed_cmds_complete_as_attr_order_says(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 200000, 0, 0), far = pair_buf(p, B, 200000, 0, ACCESS_ALL);
    size_t cmds[N];
    for (uint64_t i = 0; i < N; i++) {
        struct weft_cmd cmd = mixed(p, near, far, i);
        cmds[i] = pair_post(p, A, 0, &cmd);
    }
    uint64_t last = 0;
    for (size_t i = 0; i < N; i++) {
        struct outcome got = pair_wait(p, A, cmds[i]);
        assert_int_equal(got.status, 0);
        if (pair_attr(p).order == WEFT_ORDER_LINK)
            CHECK(got.nth > last, "cmd %zu completed before an earlier one", i);
        last = got.nth;
    }
}

/* Writes to one word in order: no later value is ever followed by an earlier one. */
static void ordered_writes_to_one_word(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 8 * N, 0, 0), far = pair_buf(p, B, 8, 0, ACCESS_ALL);
    if (pair_attr(p).order != WEFT_ORDER_LINK)
        return; /* nothing is promised */
    for (uint64_t i = 0; i < N; i++) {
        struct weft_cmd cmd = cmd_write(near, 8 * i, far, 0, 8);
        pair_set_word(p, near, 8 * i, i + 1);
        pair_post(p, A, 0, &cmd);
    }
    uint64_t seen = 0;
    while (seen < N) {
        uint64_t now = pair_word(p, far, 0);
        CHECK(now >= seen, "the word went from %" PRIu64 " back to %" PRIu64, seen, now);
        seen = now;
        pair_pump(p);
    }
}

static void ordered_message_follows_the_write(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    if (pair_attr(p).order != WEFT_ORDER_LINK)
        return;
    for (uint64_t i = 0; i < 10; i++) {
        pair_fill(p, near, i);
        struct weft_cmd write = cmd_write(near, 0, far, 0, MIB - 5), send = cmd_send(near, 0, 8);
        pair_post(p, A, 0, &write);
        pair_post(p, A, 0, &send);
        pair_arrival(p, B, i);
        pair_check(p, far, 0, MIB - 5, i);
        pair_settle(p, A);
    }
}

/* A completed write is in memory, even if the target has done nothing since. */
static void done_means_delivered(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    if (pair_attr(p).done != WEFT_DONE_DELIVERED)
        return;
    for (uint64_t i = 0; i < 30; i++) {
        uint64_t len = i % 3 ? 1000 * i : MIB;
        pair_fill(p, near, i);
        pair_do(p, A, 0, cmd_write(near, 0, far, 0, len), 0);
        CHECK(test_differs(p->b.bufs[far.id].mem.at, len, i, 0) < 0, "a write was done too early");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(an_immediate_arrives_whole),
        IN_ONE(without_immediates_imm_bits_is_0),
        IN_BOTH(an_immediate_comes_after_its_data),
        IN_BOTH(each_immediate_arrives_once),
        IN_BOTH(a_refused_write_brings_no_immediate),
        IN_BOTH(what_follows_a_fence_is_delivered_after),
        IN_BOTH(a_message_behind_a_fence_comes_after_the_data),
        IN_BOTH(fences_complete_anywhere),
        IN_BOTH(a_read_behind_a_fence_sees_the_write),
        IN_BOTH(a_fence_behind_what_is_answered_alone),
        IN_BOTH(mixed_cmds_complete_as_attr_order_says),
        IN_BOTH(ordered_writes_to_one_word),
        IN_BOTH(ordered_message_follows_the_write),
        IN_ONE(done_means_delivered),
    };
    return PAIR_MAIN("transport_order", tests);
}
