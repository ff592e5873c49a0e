/* SPDX-License-Identifier: Apache-2.0 */
/* efa: a poll that has a message hands it out, and leaves what else there is to the next poll. None of that is lost, late, or
 * out of turn. */
#include "efa_pair.h"

#include "transports/efa/efa.h"

#include <errno.h>
#include <stdlib.h>

#define A PAIR_A
#define B PAIR_B

static int poll_into(const struct efa_pair *ep, int side, struct weft_comp *comps, int max)
{
    return ep->pair.ops->poll(ep->pair.side[side].nic, comps, max);
}

/* A has sent a message that B has taken and answered; the answer, which says so, is at A, and nobody has polled for it. */
static void ask_and_answer(struct efa_pair *ep)
{
    struct weft_cmd question = efa_pair_cmd(ep, WEFT_OP_SEND, 64), answer = question;
    answer.one = (struct weft_iov_local){ep->buf[B], 64, ep->mem[B].mem};
    pair_post(&ep->pair, A, &question);
    struct pair_comp comp;
    TEST_UNTIL(pair_take(&ep->pair, B, WEFT_OP_RECV, 0, &comp), pair_poll(&ep->pair, B), "the question");
    free(comp.data);
    assert_int_equal(PAIR_OK(ep->pair.ops->post(ep->pair.side[B].link, &answer, 1)), 1);
    TEST_UNTIL(!weft_list_empty(&efa_pair_nic(ep, A)->arrivals), efa_progress(efa_pair_nic(ep, A)), "the answer");
}

/* First the answer, then, one poll later, the end of the question; and nobody goes to sleep in between. */
static void the_end_follows_the_answer(void **state)
{
    (void)state;
    struct weft_comp comps[8];
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    for (int asleep = 0; asleep < 2; asleep++) {
        ask_and_answer(&ep);
        assert_int_equal(PAIR_OK(poll_into(&ep, A, comps, 8)), 1);
        assert_int_equal(comps[0].op, WEFT_OP_RECV);
        if (asleep)
            assert_int_equal(ep.pair.ops->wait_fd(ep.pair.side[A].nic), WEFT_EAGAIN);
        assert_int_equal(PAIR_OK(poll_into(&ep, A, comps, 8)), 1);
        assert_int_equal(comps[0].op, WEFT_OP_SEND);
        assert_int_equal(comps[0].ctx, 1);
        assert_int_equal(comps[0].status, 0);
        TEST_UNTIL(pair_take(&ep.pair, B, WEFT_OP_SEND, 1, &(struct pair_comp){0}),
                   (pair_poll(&ep.pair, A), pair_poll(&ep.pair, B)), "the end of the answer");
    }
    efa_pair_close(&ep);
}

/* What the peer has taken is known to be, whatever happens then: it ends before LINK_DOWN comes. */
static void ends_come_before_the_link_goes(void **state)
{
    (void)state;
    struct weft_comp comps[8];
    struct efa_pair ep;
    int n = 0;
    efa_pair_open(&ep, "", NULL);
    ask_and_answer(&ep);
    efa_link_fail((struct efa_link *)ep.pair.side[A].link, WEFT_ELINK, "cut");
    for (int polls = 0; polls < 4 && n < 2; polls++)
        n += PAIR_OK(poll_into(&ep, A, comps + n, 8 - n));
    assert_int_equal(n, 2);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
    assert_int_equal(comps[0].status, 0);
    assert_int_equal(comps[1].op, WEFT_OP_LINK_DOWN);
    efa_pair_close(&ep);
}

/* A nic that is lost says so when it has nothing else to say: nobody polls it again. */
static void a_lost_nic_hands_out_what_it_has(void **state)
{
    (void)state;
    struct weft_comp comps[8];
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    ask_and_answer(&ep);
    efa_link_fail((struct efa_link *)ep.pair.side[A].link, WEFT_ELINK, "cut");
    efa_pair_nic(&ep, A)->lost = -EIO;
    assert_int_equal(poll_into(&ep, A, comps, 8), 2);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
    assert_int_equal(comps[1].op, WEFT_OP_LINK_DOWN);
    assert_int_equal(poll_into(&ep, A, comps, 8), -EIO);
    efa_pair_nic(&ep, A)->lost = 0; /* for close */
    efa_pair_close(&ep);
}

/* Messages that go at once take credits like all others, and so do those behind them. */
static void no_more_than_the_peer_gives(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    const struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_SEND, 64);
    uint32_t n = link->window + 5;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(PAIR_OK(ep.pair.ops->post(ep.pair.side[A].link, &cmd, 1)), 1);
        assert_true(link->seq - link->acked <= link->window);
    }
    assert_false(weft_list_empty(&link->sends));
    for (uint32_t i = 0; i < n; i++)
        free(pair_wait(&ep.pair, B, WEFT_OP_RECV, 0).data);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pair_wait(&ep.pair, A, WEFT_OP_SEND, 1).comp.status, 0);
    efa_pair_close(&ep);
}

/* The endpoint that peers reach is opened anew just as a WRITE_IMM has come, whose initiator knows that it ended well. */
static void an_immediate_at_the_last_moment(void **state)
{
    (void)state;
    /* of 64 bits, and in halves; the double keeps what is closed, so that this nic need not */
    const char *settings[] = {"provider=shm", "provider=shm," LIKE_EFA};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct efa_pair ep;
        efa_pair_open(&ep, settings[i], NULL);
        struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE_IMM, 64);
        fake_fabric_late(true);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        efa_pair_nic(&ep, B)->buries = false;
        assert_int_equal(PAIR_OK(efa_ep_reset_target(efa_pair_nic(&ep, B))), 0);
        efa_pair_nic(&ep, B)->buries = true;
        fake_fabric_late(false);
        assert_int_equal(pair_wait(&ep.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, 77);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        assert_int_equal(pair_wait(&ep.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, 77);
        efa_pair_close(&ep);
    }
}

/* Memory goes while a WRITE_IMM to it is under way. The peer's refusal acknowledges its message, too, and is looked at first; it ends all the same. */
static void an_immediate_to_memory_that_goes(void **state)
{
    (void)state;
    for (int i = 0; i < 25; i++) {
        struct efa_pair ep;
        struct pair_comp comp;
        bool gone = false, ended = false;
        efa_pair_open(&ep, LIKE_EFA, NULL);
        uint8_t *more = calloc(1, 4096);
        struct weft_cmd cmd;
        struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd);
        fake_fabric_set(LIKE_EFA ",fail=1");
        cmd.op = WEFT_OP_WRITE_IMM;
        pair_post(&ep.pair, A, &cmd);
        for (uint64_t until = test_deadline(); !ended || !gone;) {
            CHECK(weft_now() < until, "case %d: ended %d, gone %d", i, ended, gone);
            gone = gone || ep.pair.ops->mem_dereg(ep.pair.side[B].nic, other.mem) == 0;
            for (int k = 0; k < 1 + i % 5; k++)
                pair_poll(&ep.pair, A);
            for (int k = 0; k < 1 + i / 5; k++)
                pair_poll(&ep.pair, B);
            ended = ended || pair_take(&ep.pair, A, WEFT_OP_WRITE_IMM, 1, &comp);
        }
        assert_int_not_equal(comp.comp.status, 0);
        fake_fabric_set(LIKE_EFA);
        efa_pair_close(&ep);
        free(more);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_follows_the_answer),
        cmocka_unit_test(ends_come_before_the_link_goes),
        cmocka_unit_test(a_lost_nic_hands_out_what_it_has),
        cmocka_unit_test(no_more_than_the_peer_gives),
        cmocka_unit_test(an_immediate_at_the_last_moment),
        cmocka_unit_test(an_immediate_to_memory_that_goes),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
