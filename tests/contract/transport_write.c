/* SPDX-License-Identifier: Apache-2.0 */
/* WRITE: the bytes, all of them, nothing beside them, and there when the comp says so. */
#include "pair.h"

#define SMALL 600
#define MIB (1 << 20)
#define BURST 200

static const uint64_t sizes[] = {
    0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 4095,
    4096, 4097, 8191, 8192, 8193, 16384, 32769, 65535, 65536, 65537, 131073, 262143, 262144,
    262145, 524289, MIB - 1, MIB, MIB + 1, 3 * MIB + 5};

static void every_size_arrives_exactly(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, 4 * MIB, 0, 0);
    struct buf to = pair_buf(p, B, 4 * MIB, 0, ACCESS_ALL);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        pair_fill(p, from, i);
        pair_fill(p, to, 1000 + i);
        pair_do(p, A, 0, cmd_write(from, 0, to, 0, sizes[i]), 0);
        pair_check(p, to, 0, sizes[i], i);
        uint64_t rest = to.len - sizes[i] < 4096 ? to.len - sizes[i] : 4096;
        pair_check(p, to, sizes[i], rest, 1000 + i);
        pair_check(p, from, 0, sizes[i], i);
    }
}

static void every_alignment_arrives_exactly(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, SMALL, 3, 0);
    struct buf to = pair_buf(p, B, SMALL, 5, ACCESS_ALL);
    pair_fill(p, from, 1);
    for (uint64_t at = 0; at <= 257; at++) {
        pair_fill(p, to, 2);
        pair_do(p, A, 0, cmd_write(from, at, to, at, at + 1), 0);
        pair_check(p, to, 0, at, 2);
        pair_check(p, to, at, at + 1, 1);
        pair_check(p, to, 2 * at + 1, SMALL - 2 * at - 1, 2);
    }
}

/* Source and destination differ in alignment. */
static void shifted_by_any_offset(void **state)
{
    struct pair *p = *state;
    struct buf to = pair_buf(p, B, SMALL, 0, ACCESS_ALL);
    for (uint64_t at = 0; at < 70; at++) {
        struct buf from = pair_buf(p, A, 333, at, 0);
        pair_fill(p, from, at);
        struct buf window = to;
        window.addr += 70 - at;
        pair_do(p, A, 0, cmd_write(from, 0, window, 0, 333), 0);
        struct buf back = pair_buf(p, A, 333, 0, 0);
        pair_do(p, A, 0, cmd_read(back, 0, window, 0, 333), 0);
        pair_check(p, back, 0, 333, at);
    }
}

static void pieces_are_gathered_in_order(void **state)
{
    struct pair *p = *state;
    uint32_t most = pair_attr(p).max_iov < MAX_IOV ? pair_attr(p).max_iov : MAX_IOV;
    struct buf from = pair_buf(p, A, 1 << 17, 1, 0);
    struct buf to = pair_buf(p, B, 1 << 17, 7, ACCESS_ALL);
    pair_fill(p, from, 9);
    for (uint32_t n = 1; n <= most; n += n < 5 ? 1 : 7) {
        struct weft_iov_local iov[MAX_IOV];
        uint64_t len = buf_pieces(from, n, iov);
        pair_fill(p, to, 10);
        struct weft_cmd cmd = cmd_write(from, 0, to, 0, len);
        cmd.niov = (uint16_t)n;
        cmd.iov = iov;
        pair_do(p, A, 0, cmd, 0);
        pair_check(p, to, 0, len, 9);
        pair_check(p, to, len, 4096, 10);
    }
}

/* Pieces far from each other and in any order of address. */
static void pieces_may_lie_anywhere(void **state)
{
    struct pair *p = *state;
    if (pair_attr(p).max_iov < 3)
        return;
    struct buf from[3], to = pair_buf(p, B, 6000, 0, ACCESS_ALL);
    struct weft_iov_local iov[3];
    for (uint64_t i = 0; i < 3; i++) {
        from[i] = pair_buf(p, A, 2000, i, 0);
        pair_fill(p, from[i], i);
        iov[2 - i] = (struct weft_iov_local){(void *)(uintptr_t)from[i].addr, 2000, from[i].mem};
    }
    struct weft_cmd cmd = cmd_write(from[0], 0, to, 0, 6000);
    cmd.niov = 3;
    cmd.iov = iov;
    pair_do(p, A, 0, cmd, 0);
    for (uint64_t i = 0; i < 3; i++) {
        struct buf piece = to;
        piece.addr += (2 - i) * 2000;
        struct buf back = pair_buf(p, A, 2000, 0, 0);
        pair_do(p, A, 0, cmd_read(back, 0, piece, 0, 2000), 0);
        pair_check(p, back, 0, 2000, i);
    }
}

static void a_comp_gives_the_memory_back(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, MIB, 0, 0);
    struct buf to = pair_buf(p, B, 8 * MIB, 0, ACCESS_ALL);
    size_t cmds[8];
    for (uint64_t i = 0; i < 8; i++) { /* the same source again and again */
        pair_fill(p, from, i);
        struct weft_cmd cmd = cmd_write(from, 0, to, i * MIB, MIB);
        cmds[i] = pair_post(p, A, 0, &cmd);
        pair_wait(p, A, cmds[i]);
    }
    pair_fill(p, from, 99);
    pair_linger(p);
    for (uint64_t i = 0; i < 8; i++) {
        struct buf back = pair_buf(p, A, MIB, 0, 0), piece = to;
        piece.addr += i * MIB;
        pair_do(p, A, 0, cmd_read(back, 0, piece, 0, MIB), 0);
        pair_check(p, back, 0, MIB, i);
    }
}

static void burst(struct pair *p, enum who who, struct buf from, struct buf to, uint64_t step)
{
    for (uint64_t i = 0; i < BURST; i++) {
        struct weft_cmd cmd = cmd_write(from, i * step, to, i * step, step - i % 7);
        pair_post(p, who, 0, &cmd);
    }
}

static void many_at_once_land_each_in_its_place(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, BURST * 1500, 0, 0);
    struct buf to = pair_buf(p, B, BURST * 1500, 1, ACCESS_ALL);
    pair_fill(p, from, 3);
    burst(p, A, from, to, 1500);
    pair_settle(p, A);
    for (uint64_t i = 0; i < BURST; i++) {
        pair_check(p, to, i * 1500, 1500 - i % 7, 3);
        pair_check_zero(p, to, (i + 1) * 1500 - i % 7, i % 7);
    }
}

static void both_directions_at_once(void **state)
{
    struct pair *p = *state;
    struct buf a_from = pair_buf(p, A, BURST * 3000, 0, 0);
    struct buf b_from = pair_buf(p, B, BURST * 3000, 0, 0);
    struct buf a_to = pair_buf(p, A, BURST * 3000, 0, ACCESS_ALL);
    struct buf b_to = pair_buf(p, B, BURST * 3000, 0, ACCESS_ALL);
    pair_fill(p, a_from, 4);
    pair_fill(p, b_from, 5);
    burst(p, A, a_from, b_to, 3000);
    burst(p, B, b_from, a_to, 3000);
    pair_settle(p, A);
    pair_settle(p, B);
    for (uint64_t i = 0; i < BURST; i++) {
        pair_check(p, b_to, i * 3000, 3000 - i % 7, 4);
        pair_check(p, a_to, i * 3000, 3000 - i % 7, 5);
    }
}

static void several_links_share_one_memory(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, 4 * MIB, 0, 0);
    struct buf to = pair_buf(p, B, 4 * MIB, 0, ACCESS_ALL);
    pair_fill(p, from, 6);
    for (int link = 1; link < 4; link++)
        assert_int_equal(pair_link(p, link & 1 ? A : B), link);
    for (uint64_t i = 0; i < 64; i++) {
        struct weft_cmd cmd = cmd_write(from, i * 65536, to, i * 65536, 65536);
        pair_post(p, A, (int)i % 4, &cmd);
    }
    pair_settle(p, A);
    pair_check(p, to, 0, 4 * MIB, 6);
}

/* Target memory of one registration, addressed by absolute addresses inside it. */
static void any_part_of_a_registration_can_be_written(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, 64, 0, 0), to = pair_buf(p, B, MIB, 13, WEFT_ACCESS_WRITE);
    pair_fill(p, from, 7);
    for (uint64_t at = 0; at + 64 <= MIB; at += 9973)
        pair_do(p, A, 0, cmd_write(from, 0, to, at, 64), 0);
    pair_do(p, A, 0, cmd_write(from, 0, to, MIB - 64, 64), 0);
    pair_check_zero(p, to, 64, 9973 - 64);
    assert_true(pair_word(p, to, 0) == pair_word(p, from, 0));
    assert_true(pair_word(p, to, MIB - 64) == pair_word(p, from, 0));
    assert_true(pair_word(p, to, 9973 * 50 + 56) == pair_word(p, from, 56));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(every_size_arrives_exactly),
        IN_BOTH(every_alignment_arrives_exactly),
        IN_BOTH(shifted_by_any_offset),
        IN_BOTH(pieces_are_gathered_in_order),
        IN_BOTH(pieces_may_lie_anywhere),
        IN_BOTH(a_comp_gives_the_memory_back),
        IN_BOTH(many_at_once_land_each_in_its_place),
        IN_BOTH(both_directions_at_once),
        IN_BOTH(several_links_share_one_memory),
        IN_BOTH(any_part_of_a_registration_can_be_written),
    };
    return PAIR_MAIN("transport_write", tests);
}
