/* SPDX-License-Identifier: Apache-2.0 */
/* efa when operations end with EFA's own errors: every cmd ends once, with a status that says why, or its link does; what
 * can go on goes on. */
#include "efa_pair.h"

#include "transports/efa/efa.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define A PAIR_A
#define B PAIR_B

/* Some requests fail, and go again; one that always does ends its op, and no other. */
static void a_request_that_fails(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_READ, WEFT_OP_WRITE_IMM};
    struct efa_pair ep;
    efa_pair_open(&ep, LIKE_EFA ",fail=2", NULL);
    for (uint32_t i = 0; i < 60; i++) {
        enum weft_op op = ops[i % ARRAY_LEN(ops)];
        struct weft_cmd cmd = efa_pair_cmd(&ep, op, 1 + i * 100);
        pair_fill(ep.buf[op == WEFT_OP_READ ? B : A], cmd.len, i);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        assert_true(pair_filled(ep.buf[op == WEFT_OP_READ ? A : B], cmd.len, i));
        if (op == WEFT_OP_WRITE_IMM)
            pair_wait(&ep.pair, B, WEFT_OP_WRITE_IMM, 0);
    }
    fake_fabric_set(LIKE_EFA ",fail=1");
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct weft_cmd cmd = efa_pair_cmd(&ep, ops[i], EFA_PAIR_BYTES);
        pair_post(&ep.pair, A, &cmd);
        struct weft_comp comp = pair_wait(&ep.pair, A, ops[i], 1).comp;
        assert_int_equal(comp.status, -EIO);
        assert_non_null(comp.data);
    }
    fake_fabric_set(LIKE_EFA);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 4096);
    pair_fill(ep.buf[A], 4096, 99);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    assert_true(pair_filled(ep.buf[B], 4096, 99));
    assert_int_equal(ep.pair.side[B].ncomps, 0); /* no immediate of what failed */
    efa_pair_close(&ep);
}

static void new_link_works(struct efa_pair *ep)
{
    for (int i = 0; i < 2; i++)
        ep->pair.ops->link_close(ep->pair.side[i].link);
    for (int i = 0; i < 2; i++)
        while (ep->pair.side[i].ncomps > 0)
            free(ep->pair.side[i].comps[--ep->pair.side[i].ncomps].data);
    pair_connect(&ep->pair);
    struct weft_cmd cmd = efa_pair_cmd(ep, WEFT_OP_WRITE, 4096);
    pair_fill(ep->buf[A], 4096, 98);
    assert_int_equal(pair_do(&ep->pair, A, &cmd), 0);
    assert_true(pair_filled(ep->buf[B], 4096, 98));
}

/* The link goes down, and whatever was under way on it, of any kind, with a reason; the nic goes on. */
static void a_peer_that_does_not_answer(void **state)
{
    (void)state;
    static const struct {
        enum weft_op op;
        uint64_t len;
    } cases[] = {{WEFT_OP_WRITE, 64},     {WEFT_OP_WRITE, EFA_PAIR_BYTES}, {WEFT_OP_READ, 64},
                 {WEFT_OP_READ, EFA_PAIR_BYTES}, {WEFT_OP_WRITE_IMM, 64},  {WEFT_OP_SEND, 64},
                 {WEFT_OP_SEND, 4096},    {WEFT_OP_ADD64, 8}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct efa_pair ep;
        efa_pair_open(&ep, LIKE_EFA, NULL);
        struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0); /* the region is known */
        fake_fabric_unreachable(true);
        cmd = efa_pair_cmd(&ep, cases[i].op, cases[i].len);
        pair_post(&ep.pair, A, &cmd);
        struct weft_comp comp = pair_wait(&ep.pair, A, WEFT_OP_LINK_DOWN, 0).comp;
        assert_int_equal(comp.status, WEFT_ELINK);
        CHECK(comp.data && strstr(comp.data, "Unresponsive"), "%s", (const char *)comp.data);
        struct pair_comp own;
        if (pair_take(&ep.pair, A, cases[i].op, 1, &own)) /* before the link went down; else with link_close */
            assert_int_not_equal(own.comp.status, 0);
        fake_fabric_unreachable(false);
        new_link_works(&ep);
        efa_pair_close(&ep);
    }
}

/* A long operation of many chunks, of which each fifth fails, and goes well the next time. */
static void each_chunk_may_fail(void **state)
{
    (void)state;
    struct efa_pair ep;
    WEFT_OK(weft_config_set("WEFT_EFA_CHUNK", "4K"));
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, EFA_PAIR_BYTES);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    test_fill(ep.buf[A], EFA_PAIR_BYTES, 1, 0);
    fake_fabric_set(LIKE_EFA ",fail=5");
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    assert_true(test_differs(ep.buf[B], EFA_PAIR_BYTES, 1, 0) < 0);
    fake_fabric_set(LIKE_EFA);
    efa_pair_close(&ep);
    WEFT_OK(weft_config_set("WEFT_EFA_CHUNK", NULL));
}

/* Nobody reports what became of messages that libfabric took over: they are missed, and asked after. */
static void injected_messages_that_are_lost(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_SEND, 16);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    fake_fabric_unreachable(true);
    pair_post(&ep.pair, A, &cmd);
    struct weft_comp comp = pair_wait(&ep.pair, A, WEFT_OP_LINK_DOWN, 0).comp;
    assert_int_equal(comp.status, WEFT_ELINK);
    fake_fabric_unreachable(false);
    new_link_works(&ep);
    efa_pair_close(&ep);
}

/* The peer lets go of other memory while this end does not poll, so its endpoint for that moves: what is under way to where it
 * was ends there, or goes again, and its address is kept until then. */
static int closes;

/* As ofi_rxm's: it is gone, and an error. */
static int close_and_fail(struct fid *fid)
{
    (void)fid;
    closes++;
    return -FI_EIO;
}

static void memory_that_the_provider_keeps(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_mem_handle handle;
    efa_pair_open(&ep, "", NULL);
    uint8_t *bytes = aligned_alloc(4096, 4096);
    handle = pair_reg(&ep.pair, PAIR_A, bytes, 4096, PAIR_ALL, 900);
    struct efa_mem *mem = handle.mem;
    struct fid *fid = &mem->mr->fid;
    struct fi_ops *own = fid->ops, failing = *own;
    failing.close = close_and_fail;
    fid->ops = &failing;
    closes = 0;
    for (int i = 0; i < 3; i++)
        WEFT_FAILS(WEFT_EAGAIN, (weft_fail(0, "-"), ep.pair.ops->mem_dereg(ep.pair.side[PAIR_A].nic, mem)));
    assert_int_equal(closes, 1); /* what has failed may be gone */
    fid->ops = own;
    mem->mr = (struct fid_mr *)fid; /* so that nothing is left */
    mem->stuck = false;
    ((struct efa_nic *)ep.pair.side[PAIR_A].nic)->nwaiting++;
    assert_int_equal(ep.pair.ops->mem_dereg(ep.pair.side[PAIR_A].nic, mem), 0);
    efa_pair_close(&ep);
    free(bytes);
}

static void a_target_that_moves_under_operations(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_READ};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct efa_pair ep;
        efa_pair_open(&ep, LIKE_EFA, NULL);
        uint8_t *more = calloc(1, 4096);
        struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd); /* both regions are known to A */
        fake_fabric_set(LIKE_EFA ",delay=1000000000"); /* what ends is not read */
        cmd = efa_pair_cmd(&ep, ops[i], EFA_PAIR_BYTES);
        pair_fill(ep.buf[ops[i] == WEFT_OP_READ ? B : A], EFA_PAIR_BYTES, (uint32_t)i);
        pair_post(&ep.pair, A, &cmd);
        for (int k = 0; k < 100; k++) {
            pair_poll(&ep.pair, A);
            pair_poll(&ep.pair, B);
        }
        fake_fabric_set(LIKE_EFA);
        TEST_UNTIL(ep.pair.ops->mem_dereg(ep.pair.side[B].nic, other.mem) == 0,
                   pair_poll(&ep.pair, B), "mem_dereg while A does not poll");
        assert_int_equal(pair_wait(&ep.pair, A, ops[i], 1).comp.status, 0);
        assert_true(pair_filled(ep.buf[ops[i] == WEFT_OP_READ ? A : B], EFA_PAIR_BYTES, (uint32_t)i));
        efa_pair_close(&ep);
        free(more);
    }
}

/* It may still be writing to it, and mem_dereg would not wait for that. */
static void a_peer_that_gives_back_what_nobody_asked_for(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    const struct efa_mem *mem = ep.mem[B].mem;
    const struct efa_nic *nic = (struct efa_nic *)ep.pair.side[B].nic;
    assert_int_equal(nic->nleases, 1);
    const struct efa_lease *lease = WEFT_LIST_OF(mem->leases.next, struct efa_lease, of_mem);
    struct efa_revoke_msg msg = {
        .key = htole64(mem->range.key), .id = htole32(lease->id), .done = htole32(1)};
    efa_msg_note((struct efa_link *)ep.pair.side[A].link, EFA_REVOKE, &msg, sizeof msg);
    cmd.op = WEFT_OP_SEND; /* follows it */
    pair_post(&ep.pair, A, &cmd);
    free(pair_wait(&ep.pair, B, WEFT_OP_RECV, 0).data);
    assert_int_equal(nic->nleases, 1);
    pair_wait(&ep.pair, A, WEFT_OP_SEND, 1);
    efa_pair_close(&ep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_that_fails),
        cmocka_unit_test(a_peer_that_does_not_answer),
        cmocka_unit_test(each_chunk_may_fail),
        cmocka_unit_test(injected_messages_that_are_lost),
        cmocka_unit_test(memory_that_the_provider_keeps),
        cmocka_unit_test(a_target_that_moves_under_operations),
        cmocka_unit_test(a_peer_that_gives_back_what_nobody_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
