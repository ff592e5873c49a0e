/* SPDX-License-Identifier: Apache-2.0 */
/* ADD64: one indivisible addition to an aligned word of the peer; the old word comes back. */
#include "pair.h"

#define ADDS 400

static struct pair *need_add(struct pair *p)
{
    test_need(pair_has(p, WEFT_OP_ADD64), "ADD64 in this transport");
    return p;
}

static void old_value_comes_back(void **state)
{
    struct pair *p = need_add(*state);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    const uint64_t values[] = {0, 1, 5, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX, 3};
    uint64_t want = 0x0123456789abcdef;
    pair_set_word(p, far, 24, want);
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        struct outcome got = pair_do(p, A, 0, cmd_add(near, far, 24, values[i]), 0);
        assert_true(got.value == want);
        assert_int_equal(got.len, 8);
        want += values[i]; /* modulo 2^64 */
        assert_true(pair_word(p, far, 24) == want);
    }
    pair_check_zero(p, far, 0, 24);
    pair_check_zero(p, far, 32, 32);
}

static void every_aligned_word_of_a_registration(void **state)
{
    struct pair *p = need_add(*state);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 256, 0, WEFT_ACCESS_ATOMIC);
    for (uint64_t at = 0; at < 256; at += 8)
        pair_do(p, A, 0, cmd_add(near, far, at, at + 1), 0);
    for (uint64_t at = 0; at < 256; at += 8)
        assert_int_equal(pair_word(p, far, at), at + 1);
}

/* Refused by post or by the comp; in no case is memory touched, and the link stays up. */
static void misaligned_or_short_is_refused(void **state)
{
    struct pair *p = need_add(*state);
    struct buf near = pair_buf(p, A, 16, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    const uint64_t lens[] = {0, 1, 4, 7, 9, 16};
    for (uint64_t i = 1; i < 8 + ARRAY_LEN(lens); i++) {
        struct weft_cmd cmd = cmd_add(near, far, i < 8 ? i : 8, 1);
        if (i >= 8)
            cmd.len = cmd.one.len = lens[i - 8];
        int64_t n = pair_try(p, A, 0, &cmd);
        if (n >= 0)
            n = pair_wait(p, A, (size_t)n).status;
        CHECK(n < 0, "an ADD64 of %" PRIu64 " bytes at +%" PRIu64 " was executed", cmd.len, i);
    }
    pair_check_zero(p, far, 0, 64);
    pair_do(p, A, 0, cmd_add(near, far, 0, 1), 0);
    assert_int_equal(pair_word(p, far, 0), 1);
}

/* Every old value is a different one, and the sum is exact. */
static void check_values(struct pair *p, const size_t *cmds, const enum who *who, size_t n)
{
    bool *seen = calloc(n, sizeof *seen);
    for (size_t i = 0; i < n; i++) {
        struct outcome got = pair_wait(p, who[i], cmds[i]);
        CHECK(got.done && got.status == 0, "an add ended with %s", weft_err_name(got.status));
        CHECK(got.value < n && !seen[got.value], "two adds saw %" PRIu64, got.value);
        seen[got.value] = true;
    }
    free(seen);
}

static void many_from_several_links_lose_nothing(void **state)
{
    struct pair *p = need_add(*state);
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8, 0, WEFT_ACCESS_ATOMIC);
    size_t cmds[ADDS];
    enum who who[ADDS];
    for (int link = 1; link < 4; link++)
        pair_link(p, link & 1 ? A : B);
    for (int i = 0; i < ADDS; i++) {
        struct weft_cmd cmd = cmd_add(near, far, 0, 1);
        who[i] = A;
        cmds[i] = pair_post(p, A, i % 4, &cmd);
    }
    check_values(p, cmds, who, ADDS);
    assert_int_equal(pair_word(p, far, 0), ADDS);
}

static void both_directions_at_once(void **state)
{
    struct pair *p = need_add(*state);
    struct buf word[2], near[2];
    for (int who = A; who <= B; who++) {
        word[who] = pair_buf(p, who, 8, 0, WEFT_ACCESS_ATOMIC);
        near[who] = pair_buf(p, who, 8, 0, 0);
    }
    for (uint64_t i = 0; i < ADDS; i++) {
        struct weft_cmd a = cmd_add(near[A], word[B], 0, i);
        struct weft_cmd b = cmd_add(near[B], word[A], 0, 2 * i);
        pair_post(p, A, 0, &a);
        pair_post(p, B, 0, &b);
    }
    pair_settle(p, A);
    pair_settle(p, B);
    assert_int_equal(pair_word(p, word[B], 0), ADDS * (ADDS - 1) / 2);
    assert_int_equal(pair_word(p, word[A], 0), ADDS * (ADDS - 1));
}

/* Adds between large writes are executed once each. */
static void among_other_traffic(void **state)
{
    struct pair *p = need_add(*state);
    enum { BIG = 300000 };
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG + 8, 0, ACCESS_ALL);
    struct buf old = pair_buf(p, A, 8, 0, 0);
    pair_fill(p, near, 1);
    for (int i = 0; i < 60; i++) {
        struct weft_cmd write = cmd_write(near, 0, far, 8, BIG), add = cmd_add(old, far, 0, 1);
        pair_post(p, A, 0, &write);
        pair_post(p, A, 0, &add);
    }
    pair_settle(p, A);
    assert_int_equal(pair_word(p, far, 0), 60);
    assert_true(pair_word(p, far, 8) == pair_word(p, near, 0));
}

/* The nic has none: the suite of the endpoint tests how core makes up for it. */
static void without_the_operation_post_refuses(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 8, 0, 0), far = pair_buf(p, B, 8, 0, ACCESS_ALL);
    struct weft_cmd cmd = cmd_add(near, far, 0, 1);
    if (!pair_has(p, WEFT_OP_ADD64))
        assert_true(pair_try(p, A, 0, &cmd) < 0);
    else
        pair_do(p, A, 0, cmd, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(without_the_operation_post_refuses),
        IN_BOTH(old_value_comes_back),
        IN_BOTH(every_aligned_word_of_a_registration),
        IN_BOTH(misaligned_or_short_is_refused),
        IN_BOTH(many_from_several_links_lose_nothing),
        IN_BOTH(both_directions_at_once),
        IN_BOTH(among_other_traffic),
    };
    return PAIR_MAIN("transport_atomic", tests);
}
