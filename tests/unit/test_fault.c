/* SPDX-License-Identifier: Apache-2.0 */
/* Each kind of fault, over local: it happens, and nothing else does. */
#include <stdio.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/fault/fault.h"

extern const struct weft_transport weft_transport_fault;
extern const struct weft_transport weft_transport_local;

#define KEY 77
#define CMDS 200

static struct weft_nic *wrap(const char *spec, int lane)
{
    void *extension = weft_transport_fault.ops->extension(WEFT_EXTENSION_WRAP);
    weft_wrap_fn *fn;
    memcpy(&fn, &extension, sizeof fn);
    struct weft_nic_opts opts = {.device = "local", .lane = lane};
    struct weft_nic *nic;
    PAIR_OK(fn(&weft_transport_local, spec, &opts, &nic));
    return nic;
}

/* Side A misbehaves; B is wrapped too, and behaves. */
static struct pair *wrapped(const char *spec)
{
    struct pair *pair = malloc(sizeof *pair);
    pair_adopt(pair, wrap(spec, 0), wrap("", 1));
    return pair;
}

static struct pair *connected(const char *spec)
{
    struct pair *pair = wrapped(spec);
    pair_connect(pair);
    return pair;
}

static void done_with(struct pair *pair)
{
    pair_close(pair);
    free(pair);
}

static struct weft_cmd write_cmd(uint64_t *from, uint64_t *to, uint64_t ctx)
{
    return (struct weft_cmd){.op = WEFT_OP_WRITE,
                             .remote_addr = (uintptr_t)to,
                             .remote_key = KEY,
                             .len = sizeof *from,
                             .ctx = ctx,
                             .one = {.addr = from, .len = sizeof *from}};
}

static void not_a_device(void **state)
{
    (void)state;
    struct weft_nic_opts opts = {.device = "local"};
    struct weft_nic *nic;
    assert_int_equal(weft_transport_fault.ops->probe(NULL, 0), 0);
    assert_non_null(strstr(weft_last_error(), "WEFT_FAULT"));
    assert_int_equal(weft_transport_fault.ops->open(&opts, &nic), WEFT_ENODEV);
    assert_null(weft_transport_fault.ops->extension("other"));
}

static void nothing_changes_without_a_spec(void **state)
{
    (void)state;
    struct pair *pair = connected("");
    struct weft_nic *plain;
    struct weft_nic_opts opts = {.device = "local"};
    PAIR_OK(weft_transport_local.ops->open(&opts, &plain));
    assert_memory_equal(&plain->attr, &pair->side[PAIR_A].nic->attr, sizeof plain->attr);
    assert_string_equal(pair->side[PAIR_A].nic->transport->name, "local");
    weft_transport_local.ops->close(plain);
    done_with(pair);
}

/* SEND CMDS numbered messages. Returns how many arrived out of order; all arrive once. */
static int send_numbers(struct pair *pair)
{
    static uint32_t numbers[CMDS];
    int swapped = 0;
    bool seen[CMDS] = {false};
    for (uint32_t i = 0; i < CMDS; i++) {
        numbers[i] = i;
        struct weft_cmd cmd = {.op = WEFT_OP_SEND,
                               .len = sizeof *numbers,
                               .ctx = 1 + i,
                               .one = {.addr = &numbers[i], .len = sizeof *numbers}};
        pair_post(pair, PAIR_A, &cmd);
    }
    for (uint32_t i = 0; i < CMDS; i++) {
        uint32_t number;
        struct pair_comp got = pair_wait(pair, PAIR_B, WEFT_OP_RECV, 0);
        assert_int_equal(got.comp.len, sizeof number);
        memcpy(&number, got.data, sizeof number);
        free(got.data);
        assert_true(number < CMDS && !seen[number]);
        seen[number] = true;
        swapped += number != i;
    }
    for (uint32_t i = 0; i < CMDS; i++)
        assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_SEND, 1 + i).comp.status, 0);
    assert_int_equal(pair->side[PAIR_A].ncomps + pair->side[PAIR_B].ncomps, 0);
    return swapped;
}

static void cmds_are_reordered(void **state)
{
    (void)state;
    struct pair *pair = connected("seed=1,reorder=8");
    assert_int_equal(pair->side[PAIR_A].nic->attr.order, WEFT_ORDER_NONE);
    assert_true(send_numbers(pair) > CMDS / 4);
    done_with(pair);
}

static void arrivals_are_reordered(void **state)
{
    (void)state;
    struct pair *pair = malloc(sizeof *pair);
    pair_adopt(pair, wrap("", 0), wrap("seed=1,reorder=8", 1));
    pair_connect(pair);
    assert_true(send_numbers(pair) > CMDS / 4);
    done_with(pair);
}

static void in_order_without_reordering(void **state)
{
    (void)state;
    struct pair *pair = connected("seed=1,delay=300,partial=50");
    assert_int_equal(send_numbers(pair), 0);
    done_with(pair);
}

/* The k-th group writes k into all words; a fence between groups keeps words from going back. */
static void fence_holds(void **state)
{
    (void)state;
    enum { WORDS = 6, GROUPS = 50 };
    static uint64_t words[WORDS], values[GROUPS + 1];
    struct pair *pair = connected("seed=5,reorder=16,partial=20");
    memset(words, 0, sizeof words);
    pair_reg(pair, PAIR_B, words, sizeof words, PAIR_ALL, KEY);
    for (uint64_t k = 1; k <= GROUPS; k++) {
        values[k] = k;
        for (int i = 0; i < WORDS; i++) {
            struct weft_cmd cmd = write_cmd(&values[k], &words[i], k);
            pair_post(pair, PAIR_A, &cmd);
        }
        struct weft_cmd fence = {.op = WEFT_OP_FENCE, .ctx = k};
        pair_post(pair, PAIR_A, &fence);
        uint64_t least = k, most = 0;
        for (int i = 0; i < WORDS; i++) {
            uint64_t word = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
            least = word < least ? word : least;
            most = word > most ? word : most;
        }
        assert_true(most - least <= 1 || most == 0);
    }
    for (uint64_t k = 1; k <= GROUPS; k++)
        pair_wait(pair, PAIR_A, WEFT_OP_FENCE, k);
    struct weft_cmd last = {.op = WEFT_OP_FENCE, .ctx = GROUPS + 1};
    assert_int_equal(pair_do(pair, PAIR_A, &last), 0);
    for (int i = 0; i < WORDS; i++)
        assert_int_equal(words[i], GROUPS);
    done_with(pair);
}

static void comps_are_delayed(void **state)
{
    (void)state;
    static uint64_t from = 1, to;
    struct pair *pair = connected("seed=2,delay=20000");
    pair_reg(pair, PAIR_B, &to, sizeof to, PAIR_ALL, KEY);
    uint64_t start = weft_now();
    for (uint64_t i = 1; i <= 8; i++) {
        struct weft_cmd cmd = write_cmd(&from, &to, i);
        assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    }
    assert_true(weft_now() - start > 10000000); /* 8 x 10 ms on average */
    done_with(pair);
}

static void posts_are_partial(void **state)
{
    (void)state;
    static uint64_t from = 1, to;
    struct pair *pair = connected("seed=3,partial=80");
    struct weft_cmd cmds[10];
    int whole = 0, none = 0;
    pair_reg(pair, PAIR_B, &to, sizeof to, PAIR_ALL, KEY);
    for (uint64_t round = 0; round < 50; round++) {
        for (uint64_t i = 0; i < 10; i++)
            cmds[i] = write_cmd(&from, &to, round * 10 + i + 1);
        int done = 0;
        while (done < 10) {
            int rc = PAIR_OK(pair->ops->post(pair->side[PAIR_A].link, cmds + done, 10 - done));
            none += rc == 0;
            whole += rc == 10;
            done += rc;
            pair_poll(pair, PAIR_A);
            pair_poll(pair, PAIR_B);
        }
    }
    assert_true(none > 10 && whole > 0 && whole < 25);
    for (uint64_t i = 1; i <= 500; i++)
        assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_WRITE, i).comp.status, 0);
    done_with(pair);
}

static void one_cmd_fails(void **state)
{
    (void)state;
    static uint64_t from = 1, to[6];
    struct pair *pair = connected("fail=3:-42,reorder=4");
    memset(to, 0, sizeof to);
    pair_reg(pair, PAIR_B, to, sizeof to, PAIR_ALL, KEY);
    for (uint64_t i = 1; i <= 5; i++) {
        struct weft_cmd cmd = write_cmd(&from, &to[i], i);
        pair_post(pair, PAIR_A, &cmd);
    }
    for (uint64_t i = 1; i <= 5; i++) {
        int status = pair_wait(pair, PAIR_A, WEFT_OP_WRITE, i).comp.status;
        assert_int_equal(status, i == 3 ? -42 : 0);
        assert_int_equal(to[i], i == 3 ? 0 : 1);
    }
    done_with(pair);
}

static void one_cmd_is_refused(void **state)
{
    (void)state;
    static uint64_t from = 1, to[6];
    struct pair *pair = connected("refuse=3:-42");
    struct weft_cmd cmds[5];
    memset(to, 0, sizeof to);
    pair_reg(pair, PAIR_B, to, sizeof to, PAIR_ALL, KEY);
    for (uint64_t i = 0; i < 5; i++)
        cmds[i] = write_cmd(&from, &to[i], i + 1);
    struct weft_link *link = pair->side[PAIR_A].link;
    assert_int_equal(pair->ops->post(link, cmds, 5), 2);
    assert_int_equal(pair->ops->post(link, cmds + 2, 3), -42);
    assert_int_equal(pair->ops->post(link, cmds + 3, 2), 2);
    for (uint64_t i = 0; i < 5; i++) {
        if (i != 2)
            assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_WRITE, i + 1).comp.status, 0);
        assert_int_equal(to[i], i != 2);
    }
    done_with(pair);
}

/* How many posts of a new pair accepted nothing before one was refused. */
static int posts_before_the_refusal(uint32_t seed)
{
    static uint64_t from = 1, to;
    char spec[64];
    snprintf(spec, sizeof spec, "seed=%u,partial=90,refuse=1:-42", seed);
    struct pair *pair = connected(spec);
    pair_reg(pair, PAIR_B, &to, sizeof to, PAIR_ALL, KEY);
    struct weft_cmd cmd = write_cmd(&from, &to, 1);
    int rc = 0, none = 0;
    for (; rc == 0 && none < 1000; none += rc == 0)
        rc = pair->ops->post(pair->side[PAIR_A].link, &cmd, 1);
    assert_int_equal(rc, -42);
    done_with(pair);
    return none;
}

/* A post that accepted nothing by itself has not said it. What a seed gives depends on how often the link
 * was polled until it was up: one of several does it. */
static void it_is_refused_after_partial_posts(void **state)
{
    (void)state;
    int none = 0;
    for (uint32_t seed = 1; seed <= 20; seed++)
        none += posts_before_the_refusal(seed) > 0;
    assert_true(none > 0);
}

static void limits_are_lowered(void **state)
{
    (void)state;
    static uint64_t from[4], to[4];
    struct pair *pair = connected("depth=2,maxmsg=16");
    const struct weft_nic_attr *attr = &pair->side[PAIR_A].nic->attr;
    assert_int_equal(attr->tx_depth, 2);
    assert_int_equal(attr->max_msg, 16);
    pair_reg(pair, PAIR_B, to, sizeof to, PAIR_ALL, KEY);
    struct weft_cmd cmds[3];
    for (uint64_t i = 0; i < 3; i++)
        cmds[i] = write_cmd(&from[i], &to[i], i + 1);
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, cmds, 3), 2);
    for (uint64_t i = 1; i <= 2; i++)
        assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_WRITE, i).comp.status, 0);
    cmds[2].len = cmds[2].one.len = 24;
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, &cmds[2], 1), -EINVAL);
    done_with(pair);
}

static void link_is_cut(void **state)
{
    (void)state;
    static uint64_t from = 1, to;
    struct pair *pair = connected("cut=5,reorder=3");
    pair_reg(pair, PAIR_B, &to, sizeof to, PAIR_ALL, KEY);
    for (uint64_t i = 1; i <= 5; i++) {
        struct weft_cmd cmd = write_cmd(&from, &to, i);
        pair_post(pair, PAIR_A, &cmd);
    }
    struct weft_cmd cmd = write_cmd(&from, &to, 6);
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, &cmd, 1), WEFT_ELINK);
    assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_ELINK);
    assert_int_equal(pair_wait(pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_EPEER);
    for (int i = 0; i < 50; i++)
        assert_int_equal(pair_poll(pair, PAIR_A) + pair_poll(pair, PAIR_B), 0);
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, &cmd, 1), WEFT_ELINK);
    done_with(pair);
}

/* Held comps of a link come before its LINK_DOWN. */
static void link_down_is_last(void **state)
{
    (void)state;
    static uint64_t from = 1;
    struct pair *pair = malloc(sizeof *pair);
    pair_adopt(pair, wrap("", 0), wrap("seed=1,reorder=8,delay=20000", 1));
    pair_connect(pair);
    for (uint64_t i = 1; i <= 8; i++) {
        struct weft_cmd cmd = write_cmd(&from, NULL, i);
        cmd.op = WEFT_OP_SEND;
        assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    }
    pair->ops->link_close(pair->side[PAIR_A].link);
    pair->side[PAIR_A].link = NULL;
    struct pair_side *b = &pair->side[PAIR_B];
    while (!b->ncomps || b->comps[b->ncomps - 1].comp.op != WEFT_OP_LINK_DOWN)
        pair_poll(pair, PAIR_B);
    assert_int_equal(b->ncomps, 9);
    for (int i = 0; i < 50; i++)
        assert_int_equal(pair_poll(pair, PAIR_B), 0);
    done_with(pair);
}

static void only_the_second_link_is_cut(void **state)
{
    (void)state;
    static uint64_t from = 1, to;
    struct pair *pair = connected("cut=1:2");
    pair_reg(pair, PAIR_B, &to, sizeof to, PAIR_ALL, KEY);
    struct weft_cmd cmd = write_cmd(&from, &to, 1);
    for (int i = 0; i < 10; i++)
        assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    for (int i = 0; i < 2; i++)
        pair->ops->link_close(pair->side[i].link);
    pair_connect(pair);
    pair_post(pair, PAIR_A, &cmd);
    assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_ELINK);
    done_with(pair);
}

static void operations_are_hidden(void **state)
{
    (void)state;
    static uint64_t word;
    struct pair *pair = connected("hide=add64+write_imm");
    const struct weft_nic_attr *attr = &pair->side[PAIR_A].nic->attr;
    assert_false(attr->ops & (WEFT_OP_BIT(WEFT_OP_ADD64) | WEFT_OP_BIT(WEFT_OP_WRITE_IMM)));
    assert_true(attr->ops & WEFT_OP_BIT(WEFT_OP_WRITE));
    assert_int_equal(attr->imm_bits, 0);
    struct weft_cmd cmd = write_cmd(&word, &word, 1);
    cmd.op = WEFT_OP_ADD64;
    assert_int_equal(pair->ops->post(pair->side[PAIR_A].link, &cmd, 1), WEFT_EUNSUPPORTED);
    done_with(pair);
}

static void links_do_not_connect(void **state)
{
    (void)state;
    struct pair *pair = wrapped("connectfail=2");
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    struct weft_link *link[2];
    for (int i = 0; i < 2; i++)
        PAIR_OK(pair->ops->link_open(pair->side[PAIR_A].nic, &opts, &link[i]));
    for (int i = 0; i < 4; i++)
        assert_int_equal(pair->ops->link_connect(link[i / 2], "", 0), WEFT_ENOPATH);
    for (int i = 0; i < 2; i++)
        pair->ops->link_close(link[i]);
    pair_connect(pair);
    done_with(pair);
}

static void sleeping(void **state)
{
    (void)state;
    static uint64_t from = 1, to;
    struct pair *pair = connected("delay=5000");
    struct weft_nic *a = pair->side[PAIR_A].nic;
    pair_reg(pair, PAIR_B, &to, sizeof to, PAIR_ALL, KEY);
    assert_true(pair->ops->wait_fd(a) >= 0);
    struct weft_cmd cmd = write_cmd(&from, &to, 1);
    for (int i = 0; i < 20; i++) {
        pair_post(pair, PAIR_A, &cmd);
        while (!((struct fault_nic *)a)->ncomps && !pair->side[PAIR_A].ncomps) {
            pair_poll(pair, PAIR_B);
            pair_poll(pair, PAIR_A);
        }
        /* either the comp has been handed out, or there is something to come back for */
        if (pair->side[PAIR_A].ncomps == 0)
            assert_int_equal(pair->ops->wait_fd(a), WEFT_EAGAIN);
        pair_wait(pair, PAIR_A, WEFT_OP_WRITE, 1);
        assert_true(pair->ops->wait_fd(a) >= 0);
    }
    done_with(pair);
    pair = connected("nofd");
    assert_int_equal(pair->ops->wait_fd(pair->side[PAIR_A].nic), WEFT_EUNSUPPORTED);
    done_with(pair);
}

/* An inline payload may be overwritten as soon as post returns, also while the cmd is held. */
static void inline_payload_is_copied(void **state)
{
    (void)state;
    static uint64_t to[16];
    uint64_t from;
    struct pair *pair = connected("seed=1,reorder=16");
    pair_reg(pair, PAIR_B, to, sizeof to, PAIR_ALL, KEY);
    for (uint64_t i = 0; i < 16; i++) {
        from = 100 + i;
        struct weft_cmd cmd = write_cmd(&from, &to[i], 1 + i);
        cmd.flags = WEFT_CMD_INLINE;
        pair_post(pair, PAIR_A, &cmd);
        from = 0;
    }
    for (uint64_t i = 0; i < 16; i++) {
        assert_int_equal(pair_wait(pair, PAIR_A, WEFT_OP_WRITE, 1 + i).comp.status, 0);
        assert_int_equal(to[i], 100 + i);
    }
    done_with(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_a_device),
        cmocka_unit_test(nothing_changes_without_a_spec),
        cmocka_unit_test(cmds_are_reordered),
        cmocka_unit_test(arrivals_are_reordered),
        cmocka_unit_test(in_order_without_reordering),
        cmocka_unit_test(fence_holds),
        cmocka_unit_test(comps_are_delayed),
        cmocka_unit_test(posts_are_partial),
        cmocka_unit_test(one_cmd_fails),
        cmocka_unit_test(one_cmd_is_refused),
        cmocka_unit_test(it_is_refused_after_partial_posts),
        cmocka_unit_test(limits_are_lowered),
        cmocka_unit_test(link_is_cut),
        cmocka_unit_test(link_down_is_last),
        cmocka_unit_test(only_the_second_link_is_cut),
        cmocka_unit_test(operations_are_hidden),
        cmocka_unit_test(links_do_not_connect),
        cmocka_unit_test(sleeping),
        cmocka_unit_test(inline_payload_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
