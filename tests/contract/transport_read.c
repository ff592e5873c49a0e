/* SPDX-License-Identifier: Apache-2.0 */
/* READ: the bytes, all of them, nothing beside them, into one place or scattered. */
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
    struct buf from = pair_buf(p, B, 4 * MIB, 0, WEFT_ACCESS_READ);
    struct buf into = pair_buf(p, A, 4 * MIB, 0, 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        pair_fill(p, from, i);
        pair_fill(p, into, 1000 + i);
        pair_do(p, A, 0, cmd_read(into, 0, from, 0, sizes[i]), 0);
        pair_check(p, into, 0, sizes[i], i);
        uint64_t rest = into.len - sizes[i] < 4096 ? into.len - sizes[i] : 4096;
        pair_check(p, into, sizes[i], rest, 1000 + i);
        pair_check(p, from, 0, sizes[i], i);
    }
}

static void every_alignment_arrives_exactly(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, B, SMALL, 5, WEFT_ACCESS_READ);
    struct buf into = pair_buf(p, A, SMALL, 3, 0);
    pair_fill(p, from, 1);
    for (uint64_t at = 0; at <= 257; at++) {
        pair_fill(p, into, 2);
        pair_do(p, A, 0, cmd_read(into, at, from, at, at + 1), 0);
        pair_check(p, into, 0, at, 2);
        pair_check(p, into, at, at + 1, 1);
        pair_check(p, into, 2 * at + 1, SMALL - 2 * at - 1, 2);
    }
}

static void pieces_are_scattered_in_order(void **state)
{
    struct pair *p = *state;
    uint32_t most = pair_attr(p).max_iov < MAX_IOV ? pair_attr(p).max_iov : MAX_IOV;
    struct buf from = pair_buf(p, B, 1 << 17, 1, WEFT_ACCESS_READ);
    struct buf into = pair_buf(p, A, 1 << 17, 7, 0);
    pair_fill(p, from, 9);
    for (uint32_t n = 1; n <= most; n += n < 5 ? 1 : 7) {
        struct weft_iov_local iov[MAX_IOV];
        uint64_t len = buf_pieces(into, n, iov);
        pair_fill(p, into, 10);
        struct weft_cmd cmd = cmd_read(into, 0, from, 0, len);
        cmd.niov = (uint16_t)n;
        cmd.iov = iov;
        pair_do(p, A, 0, cmd, 0);
        pair_check(p, into, 0, len, 9);
        pair_check(p, into, len, 4096, 10);
    }
}

/* Between the pieces nothing is touched. */
static void gaps_between_pieces_stay(void **state)
{
    struct pair *p = *state;
    uint32_t n = pair_attr(p).max_iov < 8 ? pair_attr(p).max_iov : 8;
    struct buf from = pair_buf(p, B, 8 * 5000, 0, WEFT_ACCESS_READ);
    struct buf into = pair_buf(p, A, 8 * 6001, 0, 0);
    struct weft_iov_local iov[8];
    pair_fill(p, from, 1);
    for (uint32_t i = 0; i < n; i++)
        iov[i] = (struct weft_iov_local){(char *)(uintptr_t)into.addr + i * 6001, 5000, into.mem};
    struct weft_cmd cmd = cmd_read(into, 0, from, 0, n * 5000);
    cmd.niov = (uint16_t)n;
    cmd.iov = iov;
    pair_do(p, A, 0, cmd, 0);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(pair_word(p, into, i * 6001) == pair_word(p, from, i * 5000));
        assert_true(pair_word(p, into, i * 6001 + 4992) == pair_word(p, from, i * 5000 + 4992));
        pair_check_zero(p, into, i * 6001 + 5000, 1001);
    }
}

static void burst(struct pair *p, enum who who, struct buf into, struct buf from, uint64_t step)
{
    for (uint64_t i = 0; i < BURST; i++) {
        struct weft_cmd cmd = cmd_read(into, i * step, from, i * step, step - i % 7);
        pair_post(p, who, 0, &cmd);
    }
}

static void many_at_once_land_each_in_its_place(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, B, BURST * 1500, 1, WEFT_ACCESS_READ);
    struct buf into = pair_buf(p, A, BURST * 1500, 0, 0);
    pair_fill(p, from, 3);
    burst(p, A, into, from, 1500);
    pair_settle(p, A);
    for (uint64_t i = 0; i < BURST; i++) {
        pair_check(p, into, i * 1500, 1500 - i % 7, 3);
        pair_check_zero(p, into, (i + 1) * 1500 - i % 7, i % 7);
    }
}

static void both_directions_at_once(void **state)
{
    struct pair *p = *state;
    struct buf a_from = pair_buf(p, A, BURST * 3000, 0, WEFT_ACCESS_READ);
    struct buf b_from = pair_buf(p, B, BURST * 3000, 0, WEFT_ACCESS_READ);
    struct buf a_into = pair_buf(p, A, BURST * 3000, 0, 0);
    struct buf b_into = pair_buf(p, B, BURST * 3000, 0, 0);
    pair_fill(p, a_from, 4);
    pair_fill(p, b_from, 5);
    burst(p, A, a_into, b_from, 3000);
    burst(p, B, b_into, a_from, 3000);
    pair_settle(p, A);
    pair_settle(p, B);
    for (uint64_t i = 0; i < BURST; i++) {
        pair_check(p, a_into, i * 3000, 3000 - i % 7, 5);
        pair_check(p, b_into, i * 3000, 3000 - i % 7, 4);
    }
}

/* Large answers of both sides and writes beside them: nobody waits for the other for ever. */
static void large_reads_and_writes_both_ways(void **state)
{
    struct pair *p = *state;
    struct buf far[2], near[2];
    for (int who = A; who <= B; who++) {
        far[who] = pair_buf(p, who, 8 * MIB, 0, ACCESS_ALL);
        near[who] = pair_buf(p, who, 8 * MIB, 0, 0);
        pair_fill(p, far[who], 20 + (uint64_t)who);
        pair_fill(p, near[who], 30 + (uint64_t)who);
    }
    for (uint64_t i = 0; i < 4; i++)
        for (int who = A; who <= B; who++) {
            struct weft_cmd read = cmd_read(near[who], i * MIB, far[!who], i * MIB, MIB);
            struct weft_cmd write = cmd_write(near[who], (4 + i) * MIB, far[!who], (4 + i) * MIB,
                                              MIB);
            pair_post(p, who, 0, &read);
            pair_post(p, who, 0, &write);
        }
    for (int who = A; who <= B; who++)
        pair_settle(p, who);
    for (int who = A; who <= B; who++) {
        pair_check(p, near[who], 0, 4 * MIB, 20 + (uint64_t)!who);
        pair_check(p, far[who], 4 * MIB, 4 * MIB, 30 + (uint64_t)!who);
    }
}

static void several_links_share_one_memory(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, B, 4 * MIB, 0, WEFT_ACCESS_READ);
    struct buf into = pair_buf(p, A, 4 * MIB, 0, 0);
    pair_fill(p, from, 6);
    for (int link = 1; link < 4; link++)
        assert_int_equal(pair_link(p, link & 1 ? A : B), link);
    for (uint64_t i = 0; i < 64; i++) {
        struct weft_cmd cmd = cmd_read(into, i * 65536, from, i * 65536, 65536);
        pair_post(p, A, (int)i % 4, &cmd);
    }
    pair_settle(p, A);
    pair_check(p, into, 0, 4 * MIB, 6);
}

/* What was read is what was there when it was read, not when something was first asked for. */
static void reads_see_what_the_target_has_now(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, B, 64, 0, WEFT_ACCESS_READ), into = pair_buf(p, A, 64, 0, 0);
    for (uint64_t i = 0; i < 50; i++) {
        pair_fill(p, from, i);
        pair_do(p, A, 0, cmd_read(into, 0, from, 0, 64), 0);
        pair_check(p, into, 0, 64, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(every_size_arrives_exactly),
        IN_BOTH(every_alignment_arrives_exactly),
        IN_BOTH(pieces_are_scattered_in_order),
        IN_BOTH(gaps_between_pieces_stay),
        IN_BOTH(many_at_once_land_each_in_its_place),
        IN_BOTH(both_directions_at_once),
        IN_BOTH(large_reads_and_writes_both_ways),
        IN_BOTH(several_links_share_one_memory),
        IN_BOTH(reads_see_what_the_target_has_now),
    };
    return PAIR_MAIN("transport_read", tests);
}
