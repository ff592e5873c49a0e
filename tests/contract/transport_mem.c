/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: keys, bounds, access, the end of a registration. What a peer may not touch it
 * does not touch, it is told why, and the link stays up.
 */
#include "pair.h"

#define LEN 1000
#define SEED 1

/* Post every one-sided operation the nic has at [offset, offset+8) of `to`. */
static void refuse_all(struct pair *p, struct buf near, struct buf to, uint64_t offset, int status)
{
    pair_do(p, A, 0, cmd_write(near, 0, to, offset, 8), status);
    pair_do(p, A, 0, cmd_read(near, 8, to, offset, 8), status);
    if (pair_has(p, WEFT_OP_WRITE_IMM))
        pair_do(p, A, 0, cmd_imm(near, 0, to, offset, 8, 5), status);
    if (pair_has(p, WEFT_OP_ADD64))
        pair_do(p, A, 0, cmd_add(near, to, offset, 5), status);
}

/* Nothing of `to` has changed, nothing of near[8..16) either, no immediate came, the link works. */
static void check_untouched(struct pair *p, struct buf near, struct buf to)
{
    pair_check(p, to, 0, to.len, SEED);
    pair_check_zero(p, near, 8, 8);
    pair_linger(p);
    assert_int_equal(pair_arrivals(p, B), 0);
    struct buf good = pair_buf(p, B, 8, 0, ACCESS_ALL);
    pair_do(p, A, 0, cmd_write(near, 0, good, 0, 8), 0);
    assert_true(pair_word(p, good, 0) == pair_word(p, near, 0));
}

static struct buf near_buf(struct pair *p)
{
    struct buf near = pair_buf(p, A, 16, 0, 0);
    pair_set_word(p, near, 0, 0x1122334455667788);
    return near;
}

static struct buf far_buf(struct pair *p, uint32_t access)
{
    struct buf far = pair_buf(p, B, LEN, 0, access);
    pair_fill(p, far, SEED);
    return far;
}

static void an_unknown_key_is_refused(void **state)
{
    struct pair *p = *state;
    struct buf near = near_buf(p), far = far_buf(p, ACCESS_ALL), wrong = far;
    for (int bit = 0; bit < 64; bit++) {
        wrong.key = far.key ^ 1ull << bit;
        pair_do(p, A, 0, cmd_write(near, 0, wrong, 0, 8), WEFT_EKEY);
    }
    const uint64_t keys[] = {0, ~far.key, UINT64_MAX, far.key + 1};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        wrong.key = keys[i];
        refuse_all(p, near, wrong, 0, WEFT_EKEY);
    }
    check_untouched(p, near, far);
}

static void out_of_bounds_is_refused(void **state)
{
    struct pair *p = *state;
    struct buf near = near_buf(p), far = far_buf(p, ACCESS_ALL);
    /* multiples of 8, so that ADD64's word is aligned */
    const uint64_t offsets[] = {LEN, LEN + 8, LEN + (1 << 20), (uint64_t)-8, (uint64_t)-4096,
                                -far.addr, -far.addr - 8, 1ull << 63};
    for (size_t i = 0; i < ARRAY_LEN(offsets); i++)
        refuse_all(p, near, far, offsets[i], WEFT_EBOUNDS);
    check_untouched(p, near, far);
}

static void one_byte_out_of_bounds_is_refused(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, LEN + 64, 0, 0), far = far_buf(p, ACCESS_ALL);
    pair_do(p, A, 0, cmd_write(near, 0, far, LEN - 7, 8), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_write(near, 0, far, (uint64_t)-1, 8), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, LEN + 1), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_write(near, 0, far, (uint64_t)-1, LEN + 2), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_read(near, 0, far, LEN - 7, 8), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_read(near, 0, far, 1, LEN), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_read(near, 0, far, (uint64_t)-1, 1), WEFT_EBOUNDS);
    pair_check(p, far, 0, LEN, SEED);
    pair_check_zero(p, near, 0, near.len);
    pair_do(p, A, 0, cmd_read(near, 0, far, LEN - 1, 1), 0);
    pair_do(p, A, 0, cmd_read(near, 0, far, 0, LEN), 0);
    pair_check(p, near, 0, LEN, SEED);
}

/* Also an operation of no bytes has a key and a place. */
static void zero_bytes_are_judged_too(void **state)
{
    struct pair *p = *state;
    struct buf near = near_buf(p), far = far_buf(p, ACCESS_ALL), wrong = far;
    wrong.key ^= 1;
    pair_do(p, A, 0, cmd_write(near, 0, far, LEN, 0), 0);
    pair_do(p, A, 0, cmd_read(near, 0, far, LEN, 0), 0);
    pair_do(p, A, 0, cmd_write(near, 0, wrong, 0, 0), WEFT_EKEY);
    pair_do(p, A, 0, cmd_read(near, 0, wrong, 0, 0), WEFT_EKEY);
    pair_do(p, A, 0, cmd_write(near, 0, far, LEN + 1, 0), WEFT_EBOUNDS);
    pair_do(p, A, 0, cmd_read(near, 0, far, (uint64_t)-1, 0), WEFT_EBOUNDS);
    check_untouched(p, near, far);
}

static void access_is_what_was_registered(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 16, 0, 0);
    for (uint32_t access = 0; access <= ACCESS_ALL; access++) {
        struct buf far = pair_buf(p, B, 16, 0, access);
        int write = access & WEFT_ACCESS_WRITE ? 0 : WEFT_EACCESS;
        int read = access & WEFT_ACCESS_READ ? 0 : WEFT_EACCESS;
        int add = access & WEFT_ACCESS_ATOMIC ? 0 : WEFT_EACCESS;
        uint64_t want = 0;
        pair_set_word(p, near, 0, 7);
        pair_do(p, A, 0, cmd_write(near, 0, far, 0, 8), write);
        want = write ? 0 : 7;
        if (pair_has(p, WEFT_OP_ADD64)) {
            pair_do(p, A, 0, cmd_add(near, far, 0, 3), add);
            want += add ? 0 : 3;
        }
        assert_int_equal(pair_word(p, far, 0), want);
        pair_set_word(p, near, 8, 99);
        pair_do(p, A, 0, cmd_read(near, 8, far, 0, 8), read);
        assert_int_equal(pair_word(p, near, 8), read ? 99 : want);
    }
}

/* Two registrations of one range: each key has its own access, one's end is not the other's. */
static void one_range_may_be_registered_many_times(void **state)
{
    struct pair *p = *state;
    struct side_buf *b;
    struct buf near = near_buf(p), writable = far_buf(p, WEFT_ACCESS_WRITE), readable = writable;
    b = &p->b.bufs[writable.id];
    struct weft_mem_range range = {.addr = b->mem.at, .len = LEN, .access = WEFT_ACCESS_READ,
                                   .kind = WEFT_MEM_HOST, .dmabuf_fd = -1, .key = 12345678};
    struct weft_mem_handle second;
    WEFT_OK(p->b.ops->mem_reg(p->b.nic, &range, &second));
    readable.key = second.rkey;
    pair_do(p, A, 0, cmd_write(near, 0, readable, 0, 8), WEFT_EACCESS);
    pair_do(p, A, 0, cmd_read(near, 8, writable, 0, 8), WEFT_EACCESS);
    pair_do(p, A, 0, cmd_write(near, 0, writable, 0, 8), 0);
    pair_do(p, A, 0, cmd_read(near, 8, readable, 0, 8), 0);
    assert_true(pair_word(p, near, 8) == pair_word(p, near, 0));
    pair_dereg(p, &writable);
    pair_do(p, A, 0, cmd_write(near, 0, writable, 0, 8), WEFT_EKEY);
    pair_do(p, A, 0, cmd_read(near, 8, readable, 0, 8), 0);
    int rc;
    TEST_UNTIL((rc = p->b.ops->mem_dereg(p->b.nic, second.mem)) != WEFT_EAGAIN, pair_pump(p),
               "mem_dereg");
    assert_int_equal(rc, 0);
    pair_do(p, A, 0, cmd_read(near, 8, readable, 0, 8), WEFT_EKEY);
}

/* A piece of a registered range, registered alone: its key does not reach the rest. */
static void a_key_reaches_its_own_range_only(void **state)
{
    struct pair *p = *state;
    struct buf near = near_buf(p), far = far_buf(p, ACCESS_ALL), part = far;
    struct weft_mem_range range = {.addr = p->b.bufs[far.id].mem.at + 200, .len = 100,
                                   .access = ACCESS_ALL, .kind = WEFT_MEM_HOST, .dmabuf_fd = -1,
                                   .key = 987654321};
    struct weft_mem_handle handle;
    WEFT_OK(p->b.ops->mem_reg(p->b.nic, &range, &handle));
    part.key = handle.rkey;
    refuse_all(p, near, part, 192, WEFT_EBOUNDS);
    refuse_all(p, near, part, 296, WEFT_EBOUNDS);
    refuse_all(p, near, part, 0, WEFT_EBOUNDS);
    check_untouched(p, near, far);
    pair_do(p, A, 0, cmd_write(near, 0, part, 200, 8), 0);
    pair_do(p, A, 0, cmd_write(near, 0, part, 292, 8), 0);
    int rc;
    TEST_UNTIL((rc = p->b.ops->mem_dereg(p->b.nic, handle.mem)) != WEFT_EAGAIN, pair_pump(p),
               "mem_dereg");
    assert_int_equal(rc, 0);
}

static void a_stale_key_is_unknown(void **state)
{
    struct pair *p = *state;
    struct buf near = near_buf(p), far = far_buf(p, ACCESS_ALL), stale = far;
    for (int i = 0; i < 20; i++) {
        pair_dereg(p, &far);
        refuse_all(p, near, stale, 0, WEFT_EKEY);
        pair_rereg(p, &far, ACCESS_ALL);
        assert_true(far.key != stale.key);
        refuse_all(p, near, stale, 0, WEFT_EKEY);
        stale = far;
    }
    check_untouched(p, near, far);
}

/* A key of one nic means nothing to another nic of the same process. */
static void a_key_belongs_to_its_nic(void **state)
{
    struct pair *p = *state;
    struct side third;
    struct buf near = near_buf(p), far = far_buf(p, ACCESS_ALL), other = far;
    side_open(&third, 1);
    int id = side_buf(&third, LEN, 0, ACCESS_ALL);
    other.addr = (uintptr_t)third.bufs[id].mem.at;
    other.key = third.bufs[id].handle.rkey;
    if (other.key != far.key) /* a nic that makes its own keys may make the same ones */
        refuse_all(p, near, other, 0, WEFT_EKEY);
    check_untouched(p, near, far);
    side_close(&third);
}

/* Every registration of many works, whatever order they end in. */
static void many_registrations(void **state)
{
    struct pair *p = *state;
    struct buf near = near_buf(p), far[300];
    for (uint64_t i = 0; i < ARRAY_LEN(far); i++) {
        far[i] = pair_buf(p, B, 8 + i, i % 9, ACCESS_ALL);
        for (uint64_t j = 0; j < i; j++)
            assert_true(far[j].key != far[i].key);
    }
    for (size_t i = 0; i < ARRAY_LEN(far); i += 3)
        pair_dereg(p, &far[i]);
    for (size_t i = 0; i < ARRAY_LEN(far); i++)
        pair_do(p, A, 0, cmd_write(near, 0, far[i], 0, 8), i % 3 ? 0 : WEFT_EKEY);
    for (size_t i = 0; i < ARRAY_LEN(far); i++)
        assert_true(pair_word(p, far[i], 0) == (i % 3 ? pair_word(p, near, 0) : 0));
}

enum { BIG = 1 << 20, UNDER_WAY = 12 };

/* Each ended well, or because the key is unknown now. */
static void wait_cut_off(struct pair *p, const size_t *cmds, bool *well)
{
    for (int i = 0; i < UNDER_WAY; i++) {
        struct outcome got = pair_wait(p, A, cmds[i]);
        CHECK(got.done, "the link died");
        CHECK(got.status == 0 || got.status == WEFT_EKEY, "it ended with %s (%s)",
              weft_strerror(got.status), got.why);
        well[i] = got.status == 0;
    }
}

/* Writes are under way, less or more of them, while the registration ends: after that, not a byte
 * changes. */
static void dereg_under_writes(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    bool well[UNDER_WAY];
    size_t cmds[UNDER_WAY];
    pair_fill(p, near, 2);
    for (int pumps = 0; pumps < 12; pumps++) {
        for (size_t i = 0; i < UNDER_WAY; i++) {
            struct weft_cmd cmd = cmd_write(near, 0, far, 0, BIG - i);
            cmds[i] = pair_post(p, A, 0, &cmd);
        }
        for (int i = 0; i < pumps; i++)
            pair_pump(p);
        pair_dereg(p, &far);
        pair_fill(p, far, 3);
        wait_cut_off(p, cmds, well);
        pair_do(p, A, 0, cmd_write(near, 0, far, 0, 8), WEFT_EKEY);
        pair_check(p, far, 0, BIG, 3);
        pair_rereg(p, &far, ACCESS_ALL);
    }
}

/* A read that is being answered ends well and right, or with WEFT_EKEY. */
static void dereg_under_reads(void **state)
{
    struct pair *p = *state;
    struct buf far = pair_buf(p, B, BIG, 0, WEFT_ACCESS_READ), near[UNDER_WAY];
    bool well[UNDER_WAY];
    size_t cmds[UNDER_WAY];
    for (int i = 0; i < UNDER_WAY; i++)
        near[i] = pair_buf(p, A, BIG, 0, 0);
    for (int pumps = 0; pumps < 12; pumps++) {
        pair_fill(p, far, 2);
        for (int i = 0; i < UNDER_WAY; i++) {
            struct weft_cmd cmd = cmd_read(near[i], 0, far, 0, BIG);
            cmds[i] = pair_post(p, A, 0, &cmd);
        }
        for (int i = 0; i < pumps; i++)
            pair_pump(p);
        pair_dereg(p, &far);
        pair_fill(p, far, 3);
        wait_cut_off(p, cmds, well);
        for (int i = 0; i < UNDER_WAY; i++)
            if (well[i])
                pair_check(p, near[i], 0, BIG, 2);
        pair_do(p, A, 0, cmd_read(near[0], 0, far, 0, 8), WEFT_EKEY);
        pair_rereg(p, &far, WEFT_ACCESS_READ);
    }
}

static void what_cannot_be_registered_is_refused(void **state)
{
    struct pair *p = *state;
    char memory[64];
    struct weft_mem_handle handle = {.mem = memory, .rkey = 1};
    for (int bit = 0; bit < 32; bit++) {
        uint32_t kind = 1u << bit;
        struct weft_mem_range range = {.addr = memory, .len = 64, .access = ACCESS_ALL,
                                       .kind = kind, .dmabuf_fd = -1, .key = 77};
        if (pair_attr(p).mem_kinds & kind)
            continue;
        assert_true(p->a.ops->mem_reg(p->a.nic, &range, &handle) < 0);
        assert_true(*weft_last_error());
    }
    assert_ptr_equal(handle.mem, memory);
}

/* Whatever access peers have: this side uses its memory as source and as destination. */
static void local_use_is_always_allowed(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    pair_fill(p, near, 1);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, 64), 0);
    pair_fill(p, near, 2);
    pair_do(p, A, 0, cmd_read(near, 0, far, 0, 64), 0);
    pair_check(p, near, 0, 64, 1);
    pair_do(p, A, 0, cmd_send(near, 0, 64), 0);
    pair_arrival(p, B, 0);
    pair_check_arrival(p, B, 0, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(an_unknown_key_is_refused),
        IN_BOTH(out_of_bounds_is_refused),
        IN_BOTH(one_byte_out_of_bounds_is_refused),
        IN_BOTH(zero_bytes_are_judged_too),
        IN_BOTH(access_is_what_was_registered),
        IN_ONE(one_range_may_be_registered_many_times),
        IN_ONE(a_key_reaches_its_own_range_only),
        IN_BOTH(a_stale_key_is_unknown),
        IN_ONE(a_key_belongs_to_its_nic),
        IN_BOTH(many_registrations),
        IN_BOTH(dereg_under_writes),
        IN_BOTH(dereg_under_reads),
        IN_ONE(what_cannot_be_registered_is_refused),
        IN_BOTH(local_use_is_always_allowed),
    };
    return PAIR_MAIN("transport_mem", tests);
}
