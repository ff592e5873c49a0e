/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: what tells a sender that its messages were taken, and the receives that are there for them. */
#include "verbs_pair.h"

#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B

static struct weft_cmd message(struct verbs_pair *vp, int side, uint64_t ctx)
{
    struct weft_cmd cmd = verbs_pair_cmd(vp, side, WEFT_OP_SEND, 0, 0, 64);
    cmd.ctx = ctx;
    return cmd;
}

/* As many messages as the nic takes, at most n; none of them finds the peer without a receive. */
static int send_some(struct verbs_pair *vp, int side, int n)
{
    int sent = 0, took = 1;
    for (; sent < n && took > 0; sent += took) {
        struct weft_cmd cmd = message(vp, side, 1);
        took = PAIR_OK(vp->pair.ops->post(vp->pair.side[side].link, &cmd, 1));
    }
    assert_int_equal(fake_verbs_waiting(), 0);
    return sent;
}

/* Forget the comps of a side. Returns how many messages there were. */
static int forget(struct verbs_pair *vp, int side)
{
    struct pair_comp comp;
    int n = 0;
    for (; pair_take(&vp->pair, side, WEFT_OP_RECV, 0, &comp); n++)
        free(comp.data);
    while (pair_take(&vp->pair, side, WEFT_OP_SEND, 1, &comp))
        assert_int_equal(comp.comp.status, 0);
    return n;
}

/* The other side is not polled meanwhile. */
static void await_message(struct verbs_pair *vp, int side)
{
    struct pair_comp comp;
    uint64_t until = test_deadline();
    while (!pair_take(&vp->pair, side, WEFT_OP_RECV, 0, &comp)) {
        CHECK(weft_now() < until, "no message for side %d", side);
        pair_poll(&vp->pair, side);
    }
    free(comp.data);
}

/* Question and answer: when the answer is there, the question is known to be taken. Who asks need not
 * wait for the next message, or for the moment after which the count comes by itself: a poll more is enough. */
static void an_answer_ends_the_question(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "srq=0"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, devices[i]);
        for (uint64_t turn = 0; turn < 100; turn++) {
            struct weft_cmd question = message(&vp, A, 2 + turn), answer = message(&vp, B, 1);
            struct pair_comp comp;
            verbs_pair_post(&vp, A, &question, 1);
            await_message(&vp, B);
            assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[B].link, &answer, 1)), 1);
            await_message(&vp, A);
            assert_false(pair_take(&vp.pair, A, WEFT_OP_SEND, 2 + turn, &comp)); /* first the message, to be answered */
            pair_poll(&vp.pair, A);
            assert_true(pair_take(&vp.pair, A, WEFT_OP_SEND, 2 + turn, &comp));
            assert_int_equal(comp.comp.status, 0);
            forget(&vp, B);
        }
        verbs_pair_close(&vp);
    }
}

/* Two messages, of which the peer has taken one: that one has ended. */
static void each_message_ends_when_it_is_taken(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_comp comp;
    struct pair_comp taken;
    verbs_pair_open(&vp, "");
    struct weft_cmd first = message(&vp, A, 2), second = message(&vp, A, 3), answer = message(&vp, B, 1);
    verbs_pair_post(&vp, A, &first, 1);
    verbs_pair_post(&vp, A, &second, 1);
    TEST_UNTIL(PAIR_OK(vp.pair.ops->poll(vp.pair.side[B].nic, &comp, 1)) == 1, (void)0, "the first message");
    assert_int_equal(comp.op, WEFT_OP_RECV);
    assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[B].link, &answer, 1)), 1);
    await_message(&vp, A);
    for (int i = 0; i < 10; i++)
        pair_poll(&vp.pair, A);
    assert_true(pair_take(&vp.pair, A, WEFT_OP_SEND, 2, &taken));
    assert_false(pair_take(&vp.pair, A, WEFT_OP_SEND, 3, &taken));
    await_message(&vp, B);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_SEND, 3).comp.status, 0);
    verbs_pair_close(&vp);
}

/* A question and its answer, n times. Returns how many requests there were, *signaled: that asked for a completion. */
static uint64_t ask(struct verbs_pair *vp, int n, uint64_t *signaled)
{
    struct fake_verbs_stats before, after;
    fake_verbs_stats(&before);
    for (int i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            assert_int_equal(send_some(vp, side, 1), 1);
            await_message(vp, !side);
            forget(vp, side);
        }
    fake_verbs_stats(&after);
    *signaled = after.signaled - before.signaled;
    return after.sends - before.sends;
}

/* Nobody waits for the completions of messages: one in 16 gives back their places in the queue. Not those whose
 * payload the device reads later, nor when half of the completion queue is in use: receives may have it. */
static void few_messages_ask_for_a_completion(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        uint64_t each;
    } cases[] = {{"", 16}, {"srq=0", 16}, {"max_qp_wr=32", 8}, {"inline=0", 1}, {"max_cqe=144", 1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct verbs_pair vp;
        uint64_t signaled, sends;
        verbs_pair_open(&vp, cases[i].device);
        sends = ask(&vp, 1000, &signaled);
        CHECK(sends >= 2000 && sends < 2100 && signaled * cases[i].each <= sends + 32 * cases[i].each &&
                  (signaled + 2) * cases[i].each >= sends - 100,
              "%s: of %d requests %d asked for a completion", cases[i].device, (int)sends, (int)signaled);
        verbs_pair_close(&vp);
    }
}

/* A message that counts as taken has no receive yet: those to spare are there for it. */
static void no_message_comes_without_a_receive(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "srq=0"}, *const credits[] = {"1", "2", "5", "32"};
    for (size_t i = 0; i < ARRAY_LEN(devices) * ARRAY_LEN(credits); i++) {
        struct verbs_pair vp;
        weft_config_set("WEFT_VERBS_CREDITS", credits[i / 2]);
        verbs_pair_open(&vp, devices[i % 2]);
        int arrived[2] = {0}, sent[2] = {0}, most = atoi(credits[i / 2]);
        for (int turn = 0; turn < 50; turn++) {
            int side = turn % 2;
            sent[side] += send_some(&vp, side, 2 * most);
            pair_poll(&vp.pair, !side); /* once: what it brings has no new receives */
            arrived[!side] += forget(&vp, !side);
            sent[!side] += send_some(&vp, !side, 1 + turn % 3);
            pair_poll(&vp.pair, side);
            arrived[side] += forget(&vp, side);
            sent[side] += send_some(&vp, side, 2 * most);
        }
        uint64_t until = test_deadline();
        while (arrived[A] < sent[B] || arrived[B] < sent[A]) {
            CHECK(weft_now() < until, "%d of %d and %d of %d messages", arrived[A], sent[B],
                  arrived[B], sent[A]);
            for (int side = 0; side < 2; side++) {
                pair_poll(&vp.pair, side);
                arrived[side] += forget(&vp, side);
            }
        }
        CHECK(sent[A] > 20, "%d messages", sent[A]);
        verbs_pair_close(&vp);
    }
}

/* Side B gets what A sends, in order. */
static void send_numbers(struct verbs_pair *vp, int n)
{
    struct pair_comp comp;
    uint64_t until = test_deadline();
    for (int sent = 0, got = 0; got < n;) {
        struct weft_cmd cmd = message(vp, A, 1);
        CHECK(weft_now() < until, "%d of %d messages", got, n);
        memset(vp->buf[A], sent, 64);
        int took = sent < n ? PAIR_OK(vp->pair.ops->post(vp->pair.side[A].link, &cmd, 1)) : 0;
        sent += took;
        pair_poll(&vp->pair, A);
        if (took > 0 && sent % 32) /* several wait at a time */
            continue;
        pair_poll(&vp->pair, B);
        for (; pair_take(&vp->pair, B, WEFT_OP_RECV, 0, &comp); got++, free(comp.data))
            CHECK(comp.data[0] == got, "message %d is %d", got, comp.data[0]);
        forget(vp, A);
    }
}

/* The receives of a link that was closed are those of the next one, once each; also on a device where
 * completions of a queue that is gone still come. */
static void a_new_link_has_receives_of_its_own(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "stale=1", "srq=0", "srq=0,stale=1"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, devices[i]);
        for (int turn = 0; turn < 3; turn++) {
            send_numbers(&vp, 64);
            verbs_pair_end(&vp, A);
            verbs_pair_end(&vp, B);
            for (uint64_t until = weft_now() + 50000000; weft_now() < until;)
                for (int side = 0; side < 2; side++) {
                    pair_poll(&vp.pair, side);
                    vp.pair.ops->wait_fd(vp.pair.side[side].nic); /* it reads completions, too */
                    forget(&vp, side);
                }
            pair_connect(&vp.pair);
        }
        send_numbers(&vp, 64);
        verbs_pair_close(&vp);
    }
}

/* --- peers that lie --------------------------------------------------------------------------- */

/* Side A hears a bare count of its peer. */
static void hear_counts(struct verbs_pair *vp, uint32_t taken, uint32_t imms)
{
    struct ibv_wc wc = {.wc_flags = IBV_WC_WITH_IMM,
                        .imm_data = htobe32(verbs_imm(VERBS_CREDIT, taken, imms))};
    uint64_t nothing = 0;
    const struct verbs_slot slot = {.data = &nothing};
    assert_false(verbs_control_arrived(link_of(vp, A), &wc, &slot));
}

static void counts_of_what_was_never_sent_end_the_link(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64);
        verbs_pair_post(&vp, A, &cmd, 1);
        hear_counts(&vp, 0, which == 0); /* it was sent */
        assert_int_equal(link_of(&vp, A)->state, VERBS_LINK_UP);
        hear_counts(&vp, which, !which);
        assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
        verbs_pair_end(&vp, A);
        verbs_pair_close(&vp);
    }
}

static void a_fault_is_told_once(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct verbs_link *link = link_of(&vp, A);
    struct verbs_fault_msg msg = {.epoch = (uint8_t)(link->data[0].epoch + 1),
                                  .question = {.op = VERBS_NO_QUESTION}};
    fake_verbs_hold(); /* this end does not get on with it */
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
    verbs_pair_post(&vp, A, &cmd, 1);
    verbs_fault_heard(link, &msg);
    assert_int_equal(link->state, VERBS_LINK_UP);
    verbs_fault_heard(link, &msg);
    assert_int_equal(link->state, VERBS_LINK_DOWN); /* at once, not for what comes of it */
    fake_verbs_release(-1);
    assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(an_answer_ends_the_question),
        CASE(each_message_ends_when_it_is_taken),
        CASE(few_messages_ask_for_a_completion),
        CASE(no_message_comes_without_a_receive),
        CASE(a_new_link_has_receives_of_its_own),
        CASE(counts_of_what_was_never_sent_end_the_link),
        CASE(a_fault_is_told_once),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
