/* SPDX-License-Identifier: Apache-2.0 */
/* efa over the double: what ends. Memory that is given back, links that go down with something under way, endpoints that cannot be
 * opened anew. Neither side says that it is done before it is, and says so then. */
#include "efa_pair.h"
#include "transports/efa/efa.h"

#include <errno.h>
#include <sys/resource.h>

#define A PAIR_A
#define B PAIR_B
#define LIKE_EFA "narrow=1,local=1,provkey=1"
#define HELD LIKE_EFA ",delay=1000000000"

static struct efa_link *link_of(const struct efa_pair *ep, int side)
{
    return (struct efa_link *)ep->pair.side[side].link;
}

static int post(const struct efa_pair *ep, const struct weft_cmd *cmd)
{
    return ep->pair.ops->post(ep->pair.side[A].link, cmd, 1);
}

static void poll_both(struct efa_pair *ep, int n)
{
    for (int i = 0; i < n; i++) {
        pair_poll(&ep->pair, A);
        pair_poll(&ep->pair, B);
    }
}

/* A pair whose side A has written to B's memory. */
static struct weft_cmd open_used(struct efa_pair *ep)
{
    efa_pair_open(ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep->pair, A, &cmd), 0);
    poll_both(ep, 100);
    return cmd;
}

/* --- endpoints ------------------------------------------------------------------------------------------- */

/* There is no descriptor for a new endpoint: the nic is lost, takes nothing more, and says so. */
static void a_nic_without_its_endpoint_is_lost(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct efa_pair ep;
        struct weft_comp comps[8];
        struct rlimit limit, none;
        struct weft_cmd cmd = open_used(&ep);
        struct efa_nic *a = efa_pair_nic(&ep, A);
        fake_fabric_set(HELD);
        assert_int_equal(post(&ep, &cmd), 1); /* which waits to go out again */
        getrlimit(RLIMIT_NOFILE, &limit);
        none = limit;
        none.rlim_cur = 3;
        setrlimit(RLIMIT_NOFILE, &none);
        int rc = which ? efa_ep_reset_target(a) : efa_ep_reset_work(a);
        setrlimit(RLIMIT_NOFILE, &limit);
        assert_true(rc < 0);
        WEFT_FAILS(rc, post(&ep, &cmd));
        for (int i = 0; i < 100; i++)
            assert_int_equal(ep.pair.ops->poll(ep.pair.side[A].nic, comps, 8), rc);
        assert_true(ep.pair.ops->wait_fd(ep.pair.side[A].nic) < 0);
        fake_fabric_set(LIKE_EFA);
        a->lost = 0; /* for close; and what waits goes out again, from a new endpoint */
        if (which)
            assert_int_equal(efa_ep_reset_target(a), 0);
        assert_int_equal(efa_ep_reset_work(a), 0);
        TEST_UNTIL(link_of(&ep, A)->nposted == 0, poll_both(&ep, 1), "the end");
        efa_pair_close(&ep);
    }
}

/* --- memory ---------------------------------------------------------------------------------------------- */

/* The peer gives memory back behind a WRITE_IMM that has ended: its immediate is here already, and is handed out. */
static void an_immediate_comes_before_its_memory_is_given_back(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd;
    struct pair_comp comp;
    efa_pair_open(&ep, "", NULL);
    uint8_t *more = calloc(1, 4096);
    struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd);
    struct efa_nic *b = efa_pair_nic(&ep, B);
    assert_int_equal(ep.pair.ops->mem_dereg(&b->base, other.mem), WEFT_EAGAIN);
    pair_poll(&ep.pair, B); /* the peer is asked for it */
    cmd.op = WEFT_OP_WRITE_IMM;
    assert_int_equal(post(&ep, &cmd), 1);
    /* a NIC fills its queue by itself */
    TEST_UNTIL(pair_take(&ep.pair, A, WEFT_OP_WRITE_IMM, 1, &comp),
               (fi_cq_read(b->target.cq, NULL, 0), pair_poll(&ep.pair, A)), "the end");
    assert_int_equal(comp.comp.status, 0);
    for (int i = 0; i < 20; i++)
        pair_poll(&ep.pair, A);
    TEST_UNTIL(b->nleases == 1, pair_poll(&ep.pair, B), "the memory"); /* all but the pair's own */
    int polls = 0;
    while (!pair_take(&ep.pair, B, WEFT_OP_WRITE_IMM, 0, &comp) && polls++ < 100)
        pair_poll(&ep.pair, B);
    CHECK(polls <= 100, "the immediate is not handed out");
    efa_pair_dereg(&ep, B, other);
    efa_pair_close(&ep);
    free(more);
}

/* Memory that a peer knows, also by a second question after errors, is given back when it is asked for: the target stays, and the
 * key is known no more. */
static void what_a_peer_knows_is_given_back_at_once(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    uint8_t *more = calloc(1, 4096);
    for (int i = 0; i < 2; i++) {
        fake_fabric_set(i ? LIKE_EFA ",fail=2" : LIKE_EFA);
        struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd);
        for (int k = 0; i && k < 6; k++)
            assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        fake_fabric_set(LIKE_EFA);
        efa_pair_dereg(&ep, B, other);
        assert_int_equal(efa_pair_nic(&ep, B)->where.epoch, 1);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), WEFT_EKEY);
    }
    efa_pair_close(&ep);
    free(more);
}

/* A WRITE_IMM of several chunks that has failed tells the peer nothing. */
static void what_failed_brings_no_immediate(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct pair_comp comp;
    bool ended = false;
    open_used(&ep);
    efa_pair_nic(&ep, A)->chunk = 4096;
    struct efa_link *link = link_of(&ep, A);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE_IMM, 20480);
    fake_fabric_set(LIKE_EFA ",fail=1");
    pair_post(&ep.pair, A, &cmd);
    TEST_UNTIL(ended, {
        if (!weft_list_empty(&link->ops) && WEFT_LIST_OF(link->ops.next, struct efa_op, all)->status)
            fake_fabric_set(LIKE_EFA); /* it has failed; the others go well */
        poll_both(&ep, 1);
        ended = pair_take(&ep.pair, A, WEFT_OP_WRITE_IMM, 1, &comp);
    }, "the end");
    assert_int_equal(comp.comp.status, -EIO);
    poll_both(&ep, 2000);
    assert_false(pair_take(&ep.pair, B, WEFT_OP_WRITE_IMM, 0, &comp));
    efa_pair_close(&ep);
}

/* --- links ----------------------------------------------------------------------------------------------- */

/* Of what waits to go out again nothing does when the link is down. */
static void nothing_goes_out_after_the_link(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd = open_used(&ep);
    struct efa_nic *a = efa_pair_nic(&ep, A);
    assert_int_equal(post(&ep, &cmd), 1);
    assert_int_equal(efa_ep_reset_work(a), 0);
    assert_false(weft_list_empty(&a->again));
    efa_link_fail(link_of(&ep, A), WEFT_ELINK, "cut");
    for (int i = 0; i < 300; i++) {
        poll_both(&ep, 1);
        assert_int_equal(a->nflying, 0);
    }
    efa_pair_close(&ep);
}

/* The peer says goodbye, and hears that nothing is under way to its memory: not before that is so, and as soon as it is. */
static void a_goodbye_is_answered_when_nothing_is_under_way(void **state)
{
    (void)state;
    enum { IDLE, DOWN_BEFORE, ENDS, HELD_UP, CASES };
    for (int which = 0; which < CASES; which++) {
        struct efa_pair ep;
        struct weft_cmd cmd = open_used(&ep);
        struct efa_nic *b = efa_pair_nic(&ep, B);
        struct efa_link *la = link_of(&ep, A), *lb = link_of(&ep, B);
        if (which == HELD_UP)
            fake_fabric_set(HELD);
        if (which >= ENDS) {
            cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, EFA_PAIR_BYTES);
            assert_int_equal(post(&ep, &cmd), 1);
            assert_int_not_equal(la->nflying, 0);
        }
        if (which == DOWN_BEFORE)
            efa_link_fail(la, WEFT_ELINK, "cut");
        efa_link_on_bye(la, la->taken);
        CHECK(which < ENDS || !la->quiet_told, "the peer is told so while a WRITE is under way");
        for (int i = 0; i < 300 && which == HELD_UP; i++) {
            pair_poll(&ep.pair, A);
            efa_progress(b);
            CHECK(!la->quiet_told, "the peer is told so while a WRITE is under way");
        }
        if (which < HELD_UP)
            TEST_UNTIL(lb->quiet, (pair_poll(&ep.pair, A), efa_progress(b)), "the word, case %d", which);
        fake_fabric_set(LIKE_EFA);
        efa_pair_close(&ep);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nic_without_its_endpoint_is_lost),
        cmocka_unit_test(an_immediate_comes_before_its_memory_is_given_back),
        cmocka_unit_test(what_a_peer_knows_is_given_back_at_once),
        cmocka_unit_test(what_failed_brings_no_immediate),
        cmocka_unit_test(nothing_goes_out_after_the_link),
        cmocka_unit_test(a_goodbye_is_answered_when_nothing_is_under_way),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
