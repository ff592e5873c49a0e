/* SPDX-License-Identifier: Apache-2.0 */
/* efa over a provider that takes few operations of a link at once, as shm does: it is not asked in vain again and again, nor
 * never again. */
#include "efa_pair.h"

#include "transports/efa/efa.h"

#include <stdlib.h>

#define A PAIR_A
#define B PAIR_B
#define REST 64 /* polls before the first question that may be in vain */

/* Polls of A until so many WRITEs have ended. */
static unsigned end(struct efa_pair *ep, int n)
{
    unsigned polls = 0;
    struct pair_comp comp;
    for (uint64_t until = test_deadline(); n > 0; polls++) {
        assert_true(weft_now() < until);
        pair_poll(&ep->pair, A);
        pair_poll(&ep->pair, B);
        while (pair_take(&ep->pair, A, WEFT_OP_WRITE, 1, &comp)) {
            assert_int_equal(comp.comp.status, 0);
            n--;
        }
    }
    return polls;
}

static void seldom_in_vain(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0); /* what is behind the key is known */
    fake_fabric_set("room=1");
    unsigned before = fake_fabric_refused();
    for (int i = 0; i < 200; i++)
        pair_post(&ep.pair, A, &cmd);
    unsigned polls = end(&ep, 200), vain = fake_fabric_refused() - before;
    CHECK(vain >= 1 && vain <= 1 + polls / REST, "asked %u times in vain in %u polls", vain, polls);
    efa_pair_close(&ep);
}

/* Each question in vain makes the rest before the next one twice as long. */
static void more_seldom_each_time(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    fake_fabric_set("room=1,hold=8,delay=8");
    for (uint32_t rest = REST; rest <= 4096; rest *= 2) {
        for (uint64_t until = test_deadline(); link->rest != rest;) {
            assert_true(weft_now() < until);
            assert_true(link->rest < rest);
            pair_post(&ep.pair, A, &cmd);
            pair_post(&ep.pair, A, &cmd);
            end(&ep, 2);
        }
        assert_int_equal(link->most, 1);
    }
    fake_fabric_set("");
    efa_pair_close(&ep);
}

/* It was others' work that was in the way: by and by more is under way again. */
static void tries_with_more_again(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    fake_fabric_set("room=1,hold=8");
    pair_post(&ep.pair, A, &cmd);
    pair_post(&ep.pair, A, &cmd);
    assert_int_equal(link->most, 1);
    end(&ep, 2);
    fake_fabric_set("hold=8");
    uint64_t first = link->most_poll;
    for (uint64_t until = test_deadline(); link->nflying < 2;) {
        assert_true(weft_now() < until);
        if (efa_pair_nic(&ep, A)->polls - first < REST)
            assert_int_equal(link->most, 1);
        if (link->nposted < 4)
            pair_post(&ep.pair, A, &cmd);
        pair_poll(&ep.pair, A);
        pair_poll(&ep.pair, B);
        while (pair_take(&ep.pair, A, WEFT_OP_WRITE, 1, &(struct pair_comp){0}))
            ;
    }
    assert_true(efa_pair_nic(&ep, A)->polls - first >= REST);
    assert_int_equal(link->most, UINT32_MAX);
    fake_fabric_set("");
    efa_pair_close(&ep);
}

/* That a WRITE has ended says that its target lives: the kernel need not be asked before the next one. */
static void who_ends_a_write_lives(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct efa_process process = {.refs = 1, .fd = -1};
    efa_pair_open(&ep, "", NULL);
    struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    assert_null(link->process); /* this one */
    link->process = &process;
    pair_post(&ep.pair, A, &cmd);
    process.heard = false; /* of messages */
    end(&ep, 1);
    assert_true(process.heard);
    link->process = NULL;
    efa_pair_close(&ep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seldom_in_vain),
        cmocka_unit_test(more_seldom_each_time),
        cmocka_unit_test(tries_with_more_again),
        cmocka_unit_test(who_ends_a_write_lives),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
