/* SPDX-License-Identifier: Apache-2.0 */
/* The local transport's operations, each way a payload can travel: direct, and through the ring. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pair.h"

extern const struct weft_transport weft_transport_local;

#define BIG (3u << 20)
#define KEY 0x1234567890abcdefull

static const uint64_t sizes[] = {0, 1, 8, 64, 511, 4095, 4096, 4097, 70001, 262144, BIG};

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct pair));
    pair_open(*state, &weft_transport_local, "local");
    pair_connect(*state);
    return 0;
}

static int setup_ring(void **state)
{
    weft_config_set("WEFT_LOCAL_CMA", "0");
    weft_config_set("WEFT_LOCAL_RING", "16K");
    return setup(state);
}

static int teardown(void **state)
{
    pair_close(*state);
    free(*state);
    weft_config_set("WEFT_LOCAL_CMA", NULL);
    weft_config_set("WEFT_LOCAL_RING", NULL);
    return 0;
}

static struct weft_cmd cmd_for(enum weft_op op, void *local, uint64_t len, void *remote)
{
    return (struct weft_cmd){.op = (uint8_t)op,
                             .remote_addr = (uintptr_t)remote,
                             .remote_key = KEY,
                             .len = len,
                             .ctx = 1000 + len,
                             .one = {.addr = local, .len = len}};
}

static void write_and_read(void **state)
{
    struct pair *pair = *state;
    uint8_t *here = malloc(BIG + 8), *there = malloc(BIG + 8);
    pair_reg(pair, PAIR_B, there, BIG + 8, PAIR_ALL, KEY);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t len = sizes[i];
        memset(there, 0xee, BIG + 8);
        pair_fill(here, len, (uint32_t)i);
        struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, here, len, there);
        assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
        assert_true(pair_filled(there, len, (uint32_t)i));
        assert_int_equal(there[len], 0xee);
        memset(here, 0xdd, BIG + 8);
        cmd = cmd_for(WEFT_OP_READ, here, len, there);
        assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
        assert_true(pair_filled(here, len, (uint32_t)i));
        assert_int_equal(here[len], 0xdd);
    }
    free(here);
    free(there);
}

static void pieces_of_local_memory(void **state)
{
    struct pair *pair = *state;
    uint8_t *here = malloc(BIG), *there = malloc(BIG);
    pair_reg(pair, PAIR_A, there, BIG, PAIR_ALL, KEY);
    pair_fill(here, BIG, 7);
    struct weft_iov_local iov[] = {{here, 1, NULL},
                                   {here + 1, 0, NULL},
                                   {here + 1, 300000, NULL},
                                   {here + 300001, BIG - 300001, NULL}};
    struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, NULL, BIG, there);
    cmd.niov = 4;
    cmd.iov = iov;
    assert_int_equal(pair_do(pair, PAIR_B, &cmd), 0);
    assert_true(pair_filled(there, BIG, 7));
    memset(here, 0, BIG);
    cmd.op = WEFT_OP_READ;
    assert_int_equal(pair_do(pair, PAIR_B, &cmd), 0);
    assert_true(pair_filled(here, BIG, 7));
    free(here);
    free(there);
}

static void send_arrives(void **state)
{
    struct pair *pair = *state;
    uint32_t longest = pair->side[0].nic->attr.max_send;
    uint8_t *here = malloc(longest);
    for (uint32_t len = 0; len <= longest; len = len ? len * 2 : 1) {
        pair_fill(here, len, len);
        struct weft_cmd cmd = cmd_for(WEFT_OP_SEND, here, len, NULL);
        assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
        struct pair_comp got = pair_wait(pair, PAIR_B, WEFT_OP_RECV, 0);
        assert_int_equal(got.comp.len, len);
        assert_ptr_equal(got.comp.link, pair->side[PAIR_B].link);
        assert_true(pair_filled(got.data, len, len));
        free(got.data);
    }
    struct weft_cmd cmd = cmd_for(WEFT_OP_SEND, here, longest + 1, NULL);
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, &cmd, 1), -EINVAL);
    free(here);
}

static void immediate_comes_after_data(void **state)
{
    struct pair *pair = *state;
    uint8_t *here = malloc(BIG), *there = calloc(1, BIG);
    pair_reg(pair, PAIR_B, there, BIG, PAIR_ALL, KEY);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pair_fill(here, sizes[i], 100 + (uint32_t)i);
        struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE_IMM, here, sizes[i], there);
        cmd.imm = 0xfedc0000u + (uint32_t)i;
        pair_post(pair, PAIR_A, &cmd);
        struct pair_comp got = pair_wait(pair, PAIR_B, WEFT_OP_WRITE_IMM, 0);
        assert_true(pair_filled(there, sizes[i], 100 + (uint32_t)i));
        assert_int_equal(got.comp.imm, cmd.imm);
        assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_WRITE_IMM, cmd.ctx).comp.status, 0);
    }
    free(here);
    free(there);
}

static void add_returns_old_value(void **state)
{
    struct pair *pair = *state;
    uint64_t words[2] = {5, 6};
    pair_reg(pair, PAIR_B, words, sizeof words, PAIR_ALL, KEY);
    struct weft_cmd cmd = cmd_for(WEFT_OP_ADD64, NULL, 8, &words[1]);
    cmd.value = (uint64_t)-4;
    pair_post(pair, PAIR_A, &cmd);
    struct pair_comp got = pair_wait(pair, PAIR_A, WEFT_OP_ADD64, cmd.ctx);
    assert_int_equal(got.comp.status, 0);
    assert_int_equal(got.comp.value, 6);
    assert_int_equal(words[0], 5);
    assert_int_equal(words[1], 2);
    cmd.remote_addr += 4;
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, &cmd, 1), -EINVAL);
}

static void wrong_targets_are_refused(void **state)
{
    struct pair *pair = *state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_READ};
    uint8_t *here = malloc(BIG), *there = calloc(1, BIG), *zero = calloc(1, BIG);
    pair_reg(pair, PAIR_B, there, BIG - 1, WEFT_ACCESS_ATOMIC, KEY);
    pair_fill(here, BIG, 1);
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 1; i < sizeof sizes / sizeof *sizes; i++) {
            uint64_t len = sizes[i];
            struct weft_cmd cmd = cmd_for(ops[k], here, len, there);
            cmd.remote_key = KEY + 1;
            assert_int_equal(pair_do(pair, PAIR_A, &cmd), WEFT_EKEY);
            cmd.remote_key = KEY;
            cmd.remote_addr = (uintptr_t)there + BIG - len;
            assert_int_equal(pair_do(pair, PAIR_A, &cmd), WEFT_EBOUNDS);
            cmd.remote_addr = (uintptr_t)there - 1;
            assert_int_equal(pair_do(pair, PAIR_A, &cmd), WEFT_EBOUNDS);
            cmd.remote_addr = UINT64_MAX;
            assert_int_equal(pair_do(pair, PAIR_A, &cmd), WEFT_EBOUNDS);
            cmd.remote_addr = (uintptr_t)there;
            assert_int_equal(pair_do(pair, PAIR_A, &cmd),
                             len == BIG ? WEFT_EBOUNDS : WEFT_EACCESS);
        }
    assert_memory_equal(there, zero, BIG);
    assert_true(pair_filled(here, BIG, 1));
    struct pair_comp none;
    assert_false(pair_take(pair, PAIR_B, WEFT_OP_WRITE_IMM, 0, &none));
    free(here);
    free(there);
    free(zero);
}

/* A key that goes away in the middle ends what uses it; the link stays up. */
static void deregistered_under_way(void **state)
{
    struct pair *pair = *state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_READ};
    uint8_t *here = calloc(1, BIG), *there = calloc(1, BIG);
    for (int k = 0; k < 2; k++) {
        struct weft_mem_handle handle = pair_reg(pair, PAIR_B, there, BIG, PAIR_ALL, KEY);
        struct weft_cmd cmd = cmd_for(ops[k], here, BIG, there);
        pair_post(pair, PAIR_A, &cmd);
        pair_poll(pair, PAIR_B);
        assert_int_equal(pair->ops->mem_dereg(pair->side[PAIR_B].nic, handle.mem), 0);
        assert_int_equal(pair_wait(pair, PAIR_A, ops[k], cmd.ctx).comp.status, WEFT_EKEY);
    }
    pair_reg(pair, PAIR_B, there, BIG, PAIR_ALL, KEY);
    struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, here, 100, there);
    assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    free(here);
    free(there);
}

/* A small one posted behind many large ones does not wait for them. */
static void small_overtakes_large(void **state)
{
    struct pair *pair = *state;
    uint8_t *here = calloc(1, BIG), *there = calloc(1, BIG);
    pair_reg(pair, PAIR_B, there, BIG, PAIR_ALL, KEY);
    for (uint64_t i = 0; i < 8; i++) {
        struct weft_cmd cmd = cmd_for(i % 2 ? WEFT_OP_READ : WEFT_OP_WRITE, here, BIG, there);
        cmd.ctx = i;
        pair_post(pair, PAIR_A, &cmd);
    }
    struct weft_cmd small = cmd_for(WEFT_OP_WRITE, here, 8, there);
    small.ctx = 99;
    assert_int_equal(pair_do(pair, PAIR_A, &small), 0);
    assert_int_equal(pair->side[PAIR_A].ncomps, 0);
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(
            pair_wait(pair, PAIR_A, i % 2 ? WEFT_OP_READ : WEFT_OP_WRITE, i).comp.status, 0);
    free(here);
    free(there);
}

static void fence_orders(void **state)
{
    struct pair *pair = *state;
    uint8_t *here = malloc(BIG), *there = calloc(1, BIG + 8);
    uint64_t flag = 1;
    pair_reg(pair, PAIR_B, there, BIG + 8, PAIR_ALL, KEY);
    pair_fill(here, BIG, 3);
    struct weft_cmd cmds[3] = {cmd_for(WEFT_OP_WRITE, here, BIG, there),
                               {.op = WEFT_OP_FENCE, .ctx = 5},
                               cmd_for(WEFT_OP_WRITE, &flag, 8, there + BIG)};
    int posted = 0;
    volatile uint8_t *seen = there + BIG;
    while (!*seen) {
        posted += PAIR_OK(pair->ops->post(pair->side[PAIR_A].link, cmds + posted, 3 - posted));
        pair_poll(pair, PAIR_B);
        pair_poll(pair, PAIR_A);
    }
    assert_true(pair_filled(there, BIG, 3));
    assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_FENCE, 5).comp.status, 0);
    struct weft_cmd fence = {.op = WEFT_OP_FENCE, .ctx = 6};
    assert_int_equal(pair_do(pair, PAIR_A, &fence), 0);
    free(here);
    free(there);
}

/* Both ends post as much as is accepted, of all kinds: every cmd ends, with its bytes. */
static void both_ends_flood(void **state)
{
    enum { CMDS = 2000 };
    struct pair *pair = *state;
    static uint64_t words[2];
    uint8_t *mem[2], *here = malloc(1 << 16);
    int posted[2] = {0, 0}, ended[2] = {0, 0};
    uint64_t sums[2] = {0, 0};
    words[0] = words[1] = 0;
    pair_fill(here, 1 << 16, 9);
    for (int i = 0; i < 2; i++) {
        mem[i] = malloc(1 << 16);
        pair_fill(mem[i], 1 << 16, 9);
        pair_reg(pair, i, mem[i], 1 << 16, PAIR_ALL, KEY);
        pair_reg(pair, i, &words[i], 8, PAIR_ALL, KEY + 1);
    }
    while (ended[0] < CMDS || ended[1] < CMDS)
        for (int i = 0; i < 2; i++) {
            for (int rc = 1; rc == 1 && posted[i] < CMDS; posted[i] += rc) {
                uint64_t len = (uint64_t)(posted[i] * 7919) % (1 << 16);
                struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, here, len, mem[!i]);
                cmd.op = posted[i] % 3 == 1 ? WEFT_OP_READ : WEFT_OP_WRITE;
                if (posted[i] % 3 == 2) {
                    cmd = cmd_for(WEFT_OP_ADD64, NULL, 8, &words[!i]);
                    cmd.remote_key = KEY + 1;
                    cmd.value = (uint64_t)posted[i];
                }
                rc = PAIR_OK(pair->ops->post(pair->side[i].link, &cmd, 1));
                sums[!i] += rc && cmd.op == WEFT_OP_ADD64 ? cmd.value : 0;
            }
            struct weft_comp comps[7];
            int n = PAIR_OK(pair->ops->poll(pair->side[i].nic, comps, 7));
            for (int k = 0; k < n; k++)
                assert_int_equal(comps[k].status, 0);
            ended[i] += n;
        }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(words[i], sums[i]);
        assert_true(pair_filled(mem[i], 1 << 16, 9));
        free(mem[i]);
    }
    assert_true(pair_filled(here, 1 << 16, 9));
    free(here);
}

/* A target that has no more room in the ring for what is read sleeps until the initiator has taken some. */
static void room_wakes_who_waits_for_it(void **state)
{
    struct pair *pair = *state;
    uint8_t *here = malloc(BIG), *there = malloc(BIG);
    pair_fill(there, BIG, 4);
    pair_reg(pair, PAIR_B, there, BIG, PAIR_ALL, KEY);
    struct weft_cmd cmd = cmd_for(WEFT_OP_READ, here, BIG, there);
    struct pair_comp comp;
    pair_post(pair, PAIR_A, &cmd);
    uint64_t until = weft_now() + PAIR_WAIT_MS * 1000000ull;
    for (int slept = 0; !pair_take(pair, PAIR_A, WEFT_OP_READ, cmd.ctx, &comp);) {
        assert_true(weft_now() < until);
        int fd = pair->ops->wait_fd(pair->side[PAIR_B].nic);
        if (fd >= 0) {
            struct pollfd look = {.fd = fd, .events = POLLIN};
            for (int i = 0; i < 4; i++)
                pair_poll(pair, PAIR_A);
            if (pair_take(pair, PAIR_A, WEFT_OP_READ, cmd.ctx, &comp))
                break;
            slept++;
            if (poll(&look, 1, PAIR_WAIT_MS) != 1)
                fail_msg("nothing wakes the target, which slept %d times", slept);
        }
        pair_poll(pair, PAIR_B);
    }
    assert_int_equal(comp.comp.status, 0);
    assert_true(pair_filled(here, BIG, 4));
    free(here);
    free(there);
}

static void close_is_seen(void **state)
{
    struct pair *pair = *state;
    uint8_t byte = 1;
    struct weft_cmd cmd = cmd_for(WEFT_OP_SEND, &byte, 1, NULL);
    pair_post(pair, PAIR_A, &cmd);
    pair->ops->link_close(pair->side[PAIR_A].link);
    pair->side[PAIR_A].link = NULL;
    struct pair_comp down = pair_wait(pair, PAIR_B, WEFT_OP_LINK_DOWN, 0), last;
    assert_int_equal(down.comp.status, WEFT_EPEER);
    /* what the peer had posted before is not lost */
    assert_true(pair_take(pair, PAIR_B, WEFT_OP_RECV, 0, &last));
    free(last.data);
    assert_ptr_equal(down.comp.link, pair->side[PAIR_B].link);
    assert_int_equal(pair->ops->post(pair->side[PAIR_B].link, &cmd, 1), WEFT_ELINK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(pair_poll(pair, PAIR_B), 0);
}

#define BOTH(test)                                                                                \
    cmocka_unit_test_setup_teardown(test, setup, teardown),                                       \
    {                                                                                             \
#test " through the ring", test, setup_ring, teardown, NULL                               \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(write_and_read),         BOTH(pieces_of_local_memory),
        BOTH(send_arrives),           BOTH(immediate_comes_after_data),
        BOTH(add_returns_old_value),  BOTH(wrong_targets_are_refused),
        BOTH(deregistered_under_way), BOTH(small_overtakes_large),
        BOTH(fence_orders),           BOTH(both_ends_flood),
        BOTH(close_is_seen),
        cmocka_unit_test_setup_teardown(room_wakes_who_waits_for_it, setup_ring, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
