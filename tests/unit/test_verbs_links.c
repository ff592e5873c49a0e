/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: how links begin and end, beside peers that speak out of turn, or not at all. */
#include "verbs_pair.h"

#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B
#define SECOND 1000000000ull

/* What a nic does when so much time has passed, without its passing. */
static void later(struct verbs_pair *vp, int side, uint64_t ns)
{
    verbs_link_tick(nic_of(vp, side), weft_now() + ns);
}

/* --- addresses -------------------------------------------------------------------------------- */

/* Another link of both sides, not connected. */
static void open_ends(struct verbs_pair *vp, struct verbs_link *ends[2], const uint8_t *key)
{
    for (int side = 0; side < 2; side++) {
        struct weft_link_opts opts = {.role = side == A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE, .key = key};
        struct weft_link *link;
        PAIR_OK(vp->pair.ops->link_open(vp->pair.side[side].nic, &opts, &link));
        ends[side] = (struct verbs_link *)link;
    }
}

static int join(struct verbs_link *link, struct verbs_address address, size_t len)
{
    uint8_t bytes[2 * sizeof address] = {0};
    memcpy(bytes, &address, sizeof address);
    return link->base.nic->transport->ops->link_connect(&link->base, bytes, len);
}

/* All its queue pairs have a number. */
static void fill_numbers(struct verbs_address *a)
{
    for (int i = 0; i <= VERBS_MAX_DATA; i++)
        a->qpn[i] = a->psn[i] = htole32(17);
}

static void close_ends(struct verbs_pair *vp, struct verbs_link *ends[2])
{
    for (int side = 0; side < 2; side++)
        vp->pair.ops->link_close(&ends[side]->base);
}

/* Each number of an address has its bounds, and what is not used is 0. A link that was shown a wrong one takes the right one. */
static void an_address_beyond_its_bounds_is_refused(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct verbs_link *ends[2];
    verbs_pair_open(&vp, "");
    open_ends(&vp, ends, NULL);
    const struct verbs_address right = ends[B]->own;
    const uint32_t n = right.ndata;
    assert_true(n > 0 && n < VERBS_MAX_DATA);
#define WRONG(code, what)                                                                                              \
    do {                                                                                                               \
        struct verbs_address a = right;                                                                                \
        what;                                                                                                          \
        int rc = join(ends[A], a, sizeof a);                                                                           \
        CHECK(rc == (code), "%s is %s", #what, weft_err_name(rc));                                                     \
    } while (0)
    WRONG(WEFT_EVERSION, a.version++);
    WRONG(WEFT_EPROTO, a.magic ^= 1);
    WRONG(WEFT_EPROTO, a.flags = 2);
    WRONG(WEFT_EAUTH, a.flags = VERBS_ADDRESS_KEYED);
    WRONG(WEFT_EPROTO, a.link_layer = 0);
    WRONG(WEFT_EPROTO, a.link_layer = 3);
    WRONG(WEFT_ENOPATH, a.link_layer = VERBS_INFINIBAND);
    WRONG(WEFT_EPROTO, a.mtu = 0);
    WRONG(WEFT_EPROTO, a.mtu = IBV_MTU_4096 + 1);
    WRONG(WEFT_EPROTO, (a.ndata = 0, memset(a.qpn + 1, 0, sizeof a.qpn - 4), memset(a.psn + 1, 0, sizeof a.psn - 4)));
    WRONG(WEFT_EPROTO, a.ndata = (uint8_t)(n + 1)); /* the last one has no number */
    WRONG(WEFT_EPROTO, a.ndata = (uint8_t)(n - 1)); /* there is one that is not used */
    WRONG(WEFT_EPROTO, (a.ndata = VERBS_MAX_DATA + 1, fill_numbers(&a)));
    WRONG(WEFT_EPROTO, a.credits = 0);
    WRONG(WEFT_EPROTO, a.credits = htole16(VERBS_IMM_TAKEN_MAX + 1));
    WRONG(WEFT_EPROTO, a.imms = 0);
    WRONG(WEFT_EPROTO, a.qpn[0] = 0);
    WRONG(WEFT_EPROTO, a.qpn[n] = htole32(0x1000000));
    WRONG(WEFT_EPROTO, a.psn[n] = htole32(0x1000000));
    WRONG(WEFT_EPROTO, a.qpn[n + 1] = htole32(17));
    WRONG(WEFT_EPROTO, a.psn[n + 1] = htole32(17));
#undef WRONG
    assert_int_equal(join(ends[A], right, sizeof right - 1), WEFT_EPROTO);
    assert_int_equal(join(ends[A], right, sizeof right + 1), WEFT_EPROTO);
    assert_int_equal(join(ends[A], right, sizeof right), WEFT_EAGAIN);
    close_ends(&vp, ends);
    verbs_pair_close(&vp);
}

/* A link has the queue pairs that both ends have; the others go back. */
static void ends_may_have_different_numbers_of_queue_pairs(void **state)
{
    (void)state;
    static const uint32_t counts[][2] = {{1, 4}, {4, 1}, {3, 2}};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        for (int side = 0; side < 2; side++) {
            verbs_pair_end(&vp, side);
            nic_of(&vp, side)->ndata = counts[i][side];
        }
        pair_connect(&vp.pair);
        uint32_t both = counts[i][A] < counts[i][B] ? counts[i][A] : counts[i][B];
        for (int side = 0; side < 2; side++) {
            CHECK(link_of(&vp, side)->ndata == both, "side %d has %u", side, link_of(&vp, side)->ndata);
            struct weft_cmd cmd = verbs_pair_cmd(&vp, side, WEFT_OP_WRITE, 0, 0, 3 << 20);
            assert_int_equal(pair_do(&vp.pair, side, &cmd), 0);
            assert_memory_equal(vp.buf[A], vp.buf[B], 3 << 20);
            test_fill(vp.buf[B], VERBS_PAIR_BYTES, 2, 0);
        }
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* --- joining ---------------------------------------------------------------------------------- */

static void who_hears_nothing_gives_up(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        struct verbs_pair vp;
        struct verbs_link *ends[2];
        verbs_pair_open(&vp, "");
        open_ends(&vp, ends, NULL);
        const struct verbs_address peer = ends[!side]->own;
        assert_int_equal(join(ends[side], peer, sizeof peer), WEFT_EAGAIN);
        later(&vp, side, 4 * SECOND);
        assert_int_equal(join(ends[side], peer, sizeof peer), WEFT_EAGAIN);
        later(&vp, side, 6 * SECOND);
        WEFT_FAILS(WEFT_ELINK, join(ends[side], peer, sizeof peer));
        CHECK(strstr(weft_last_error(), "did not answer"), "%s", weft_last_error());
        assert_true(nic_of(&vp, A)->cq_kept > 0 && nic_of(&vp, B)->cq_kept > 0);
        close_ends(&vp, ends);
        assert_true(nic_of(&vp, A)->cq_kept == 0 && nic_of(&vp, B)->cq_kept == 0);
        verbs_pair_works(&vp); /* the other link does not notice */
        verbs_pair_close(&vp);
    }
}

/* A message of this kind and length, as if the device had brought it. */
static bool hear(struct verbs_link *link, uint32_t kind, const void *body, uint32_t len)
{
    uint64_t data[32] = {0};
    struct ibv_wc wc = {.wc_flags = IBV_WC_WITH_IMM, .byte_len = len, .imm_data = htobe32(kind << 28)};
    const struct verbs_slot slot = {.data = data};
    if (body)
        memcpy(data, body, len);
    return verbs_control_arrived(link, &wc, &slot);
}

static void joining(struct verbs_pair *vp, struct verbs_link *ends[2], const uint8_t *key)
{
    open_ends(vp, ends, key);
    struct verbs_address own[2] = {ends[A]->own, ends[B]->own};
    for (int side = 0; side < 2; side++)
        assert_int_equal(join(ends[side], own[!side], sizeof *own), WEFT_EAGAIN);
}

/* Before the ends are sure of each other nothing but their greetings is listened to. */
static void nothing_is_heard_before_the_greeting(void **state)
{
    (void)state;
    static const struct {
        enum verbs_kind kind;
        uint32_t len;
    } early[] = {
        {VERBS_MSG, 64},
        {VERBS_FAULT, sizeof(struct verbs_fault_msg)},
        {VERBS_READY, sizeof(struct verbs_ready_msg)},
        {VERBS_CHECK, sizeof(struct verbs_check_msg)},
        {VERBS_CHECKED, sizeof(struct verbs_checked_msg)},
        {VERBS_KEYS, sizeof(struct verbs_keys_msg)},
        {VERBS_UP, 0}, /* the active end is not ready, and the passive one is told by no one */
    };
    for (size_t i = 0; i < 2 * ARRAY_LEN(early); i++) {
        struct verbs_pair vp;
        struct verbs_link *ends[2];
        verbs_pair_open(&vp, "");
        joining(&vp, ends, NULL);
        CHECK(!hear(ends[i % 2], early[i / 2].kind, NULL, early[i / 2].len), "kind %d was handed out", early[i / 2].kind);
        CHECK(ends[i % 2]->state == VERBS_LINK_DOWN && ends[i % 2]->status == WEFT_EPROTO, "kind %d, side %d",
              early[i / 2].kind, (int)(i % 2));
        close_ends(&vp, ends);
        verbs_pair_close(&vp);
    }
}

/* The proof of the other end, not one's own that comes back. */
static void a_proof_is_of_one_end(void **state)
{
    (void)state;
    static const uint8_t key[WEFT_MAC] = "a link's key", other[WEFT_MAC] = "another";
    for (int side = 0; side < 2; side++) {
        for (int right = 0; right < 2; right++) {
            struct verbs_pair vp;
            struct verbs_link *ends[2];
            struct verbs_hello hello;
            verbs_pair_open(&vp, "");
            joining(&vp, ends, key);
            enum weft_role mine = side == A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE,
                           peers = side == A ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
            PAIR_OK(verbs_link_proof(ends[side], right ? peers : mine, hello.mac));
            hear(ends[side], VERBS_HELLO, &hello, sizeof hello);
            assert_int_equal(ends[side]->state == VERBS_LINK_DOWN, !right);
            assert_true(right || ends[side]->status == WEFT_EAUTH);
            enum weft_role of = right ? peers : mine;
            assert_int_equal(verbs_link_check(ends[side], of, hello.mac), 0);
            ends[side]->own.nonce[0] ^= 1; /* of other ends, or under another key, it is another one */
            assert_true(verbs_link_check(ends[side], of, hello.mac) != 0);
            ends[side]->own.nonce[0] ^= 1;
            ends[side]->peer.psn[0] ^= 1;
            assert_true(verbs_link_check(ends[side], of, hello.mac) != 0);
            ends[side]->peer.psn[0] ^= 1;
            memcpy(ends[side]->key, other, sizeof other);
            assert_true(verbs_link_check(ends[side], of, hello.mac) != 0);
            close_ends(&vp, ends);
            verbs_pair_close(&vp);
        }
    }
}

/* --- out of turn ------------------------------------------------------------------------------ */

static void what_is_not_a_message_ends_the_link(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind, len;
    } wrong[] = {
        {0, 0},
        {VERBS_KINDS, 0},
        {15, 0},
        {VERBS_HELLO, sizeof(struct verbs_hello)}, /* a second time */
        {VERBS_UP, 0},
        {VERBS_BYE, 1},
        {VERBS_CREDIT, 1},
        {VERBS_FAULT, sizeof(struct verbs_fault_msg) - 1},
        {VERBS_READY, sizeof(struct verbs_ready_msg) + 1},
        {VERBS_CHECK, 0},
        {VERBS_CHECKED, sizeof(struct verbs_checked_msg) - 1},
        {VERBS_KEYS, sizeof(struct verbs_keys_msg) - 1},
    };
    for (size_t i = 0; i < 2 * ARRAY_LEN(wrong); i++) {
        struct verbs_pair vp;
        int side = i % 2;
        verbs_pair_open(&vp, "");
        hear(link_of(&vp, side), wrong[i / 2].kind, NULL, wrong[i / 2].len);
        CHECK(link_of(&vp, side)->state == VERBS_LINK_DOWN, "kind %u with %u bytes", wrong[i / 2].kind, wrong[i / 2].len);
        assert_int_equal(verbs_pair_down(&vp, side), WEFT_EPROTO);
        verbs_pair_end(&vp, side);
        verbs_pair_close(&vp);
    }
}

/* Without an immediate there is no kind, whatever stands where it would be. */
static void a_message_without_an_immediate_ends_the_link(void **state)
{
    (void)state;
    struct verbs_pair vp;
    uint64_t nothing = 0;
    const struct verbs_slot slot = {.data = &nothing};
    struct ibv_wc wc = {.byte_len = 0, .imm_data = htobe32(VERBS_CREDIT << 28)};
    verbs_pair_open(&vp, "");
    assert_false(verbs_control_arrived(link_of(&vp, A), &wc, &slot));
    assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* A link that is down says so last: what comes for it afterwards is not handed out. */
static void a_link_that_is_down_hears_no_more(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct pair_comp comp;
    verbs_pair_open(&vp, "");
    struct weft_cmd msg = verbs_pair_cmd(&vp, B, WEFT_OP_SEND, 0, 0, 64),
                    imm = verbs_pair_cmd(&vp, B, WEFT_OP_WRITE_IMM, 0, 0, 64);
    struct weft_cmd write = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 4096, 4096, 64);
    verbs_pair_post(&vp, A, &write, 1);
    verbs_pair_post(&vp, B, &imm, 1);
    verbs_pair_post(&vp, B, &msg, 1);
    verbs_link_fail(link_of(&vp, A), WEFT_ELINK, "a test");
    assert_int_equal(verbs_pair_down(&vp, A), WEFT_ELINK);
    for (int i = 0; i < 16; i++)
        pair_poll(&vp.pair, A);
    assert_false(pair_take(&vp.pair, A, WEFT_OP_RECV, 0, &comp));
    assert_false(pair_take(&vp.pair, A, WEFT_OP_WRITE_IMM, 0, &comp));
    assert_false(pair_take(&vp.pair, A, WEFT_OP_WRITE, write.ctx, &comp));
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* Nor does it do any more: what had not been done by then never is. */
static void a_link_that_is_down_does_no_more(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd cmds[2] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                               verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 4096, 4096, 1 << 20)};
    fake_verbs_hold();
    verbs_pair_post(&vp, A, cmds, 2);
    verbs_link_fail(link_of(&vp, A), WEFT_ELINK, "a test");
    fake_verbs_release(-1);
    assert_int_equal(verbs_pair_down(&vp, A), WEFT_ELINK);
    CHECK(test_differs(vp.buf[B], VERBS_PAIR_BYTES, B + 1, 0) < 0, "a write took place");
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* What a peer says of a fault: of a queue pair that there is, in its turn, with numbers that can be. The first one may. */
static void a_fault_out_of_turn_ends_the_link(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct verbs_link *link = link_of(&vp, A);
        uint8_t epoch = link->data[0].epoch;
        struct verbs_fault_msg fault = {.epoch = (uint8_t)(epoch + 1), .question.op = VERBS_NO_QUESTION};
        struct verbs_ready_msg ready = {.epoch = epoch};
        switch (i) {
        case 1:
            fault.qp = (uint8_t)link->ndata;
            break;
        case 2:
            fault.epoch = epoch;
            break;
        case 3:
            fault.epoch = (uint8_t)(epoch + 2);
            break;
        case 4:
            fault.psn = htole32(0x1000000);
            break;
        case 5:
            ready.qp = (uint8_t)link->ndata;
            break;
        case 6:
            ready.qp = 255;
            break;
        default:
            break;
        }
        if (i < 5)
            hear(link, VERBS_FAULT, &fault, sizeof fault);
        else
            hear(link, VERBS_READY, &ready, sizeof ready); /* the queue pair has not failed */
        CHECK((link->state == VERBS_LINK_UP) == (i == 0), "case %d", i);
        if (i > 0)
            assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
        verbs_pair_end(&vp, A);
        verbs_pair_close(&vp);
    }
}

/* One that was given back, since the peer has fewer, is none. */
static void a_queue_pair_that_only_one_end_has_cannot_fail(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (int side = 0; side < 2; side++) {
        verbs_pair_end(&vp, side);
        nic_of(&vp, side)->ndata = side == A ? 3 : 1;
    }
    pair_connect(&vp.pair);
    struct verbs_link *link = link_of(&vp, A);
    struct verbs_fault_msg fault = {.qp = 1, .epoch = link->data[1].epoch, .question.op = VERBS_NO_QUESTION};
    hear(link, VERBS_FAULT, &fault, sizeof fault);
    assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* Side A's write is refused; polls until its queue pair is in this state, and no further. */
static struct verbs_qp *fault_until(struct verbs_pair *vp, enum verbs_qp_state wanted)
{
    struct verbs_qp *qp = &link_of(vp, A)->data[0];
    struct weft_cmd cmd = verbs_pair_cmd(vp, A, WEFT_OP_WRITE, 0, 0, 64);
    cmd.remote_key ^= 0x5000;
    verbs_pair_post(vp, A, &cmd, 1);
    fake_verbs_hold();
    TEST_UNTIL(
        qp->state == wanted,
        {
            pair_poll(&vp->pair, A);
            if (wanted != VERBS_QP_TOLD)
                pair_poll(&vp->pair, B);
            if (qp->state != wanted)
                fake_verbs_release(1);
        },
        "state %d", wanted);
    return qp;
}

/* This end is ready again: another fault of the peer comes too soon, and a READY of another life is none. */
static void words_of_another_life_end_the_link(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct verbs_link *link = link_of(&vp, A);
        const struct verbs_qp *qp = fault_until(&vp, VERBS_QP_RESET);
        struct verbs_fault_msg fault = {.epoch = qp->epoch, .question.op = VERBS_NO_QUESTION};
        struct verbs_ready_msg ready = {.epoch = (uint8_t)(qp->epoch + (i == 1 ? 1 : -1))};
        link->data[0].heard = false; /* what else would keep it off */
        if (i == 0)
            hear(link, VERBS_FAULT, &fault, sizeof fault);
        else
            hear(link, VERBS_READY, &ready, sizeof ready);
        assert_int_equal(link->state, VERBS_LINK_DOWN);
        fake_verbs_release(-1);
        assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
        verbs_pair_end(&vp, A);
        verbs_pair_close(&vp);
    }
}

/* The peer's device answers, its program says nothing. */
static void a_fault_that_does_not_end_ends_the_link(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    fault_until(&vp, VERBS_QP_TOLD);
    fake_verbs_release(-1);
    later(&vp, A, 9 * SECOND);
    assert_int_equal(link_of(&vp, A)->state, VERBS_LINK_UP);
    later(&vp, A, 11 * SECOND);
    assert_int_equal(link_of(&vp, A)->state, VERBS_LINK_DOWN);
    struct weft_comp comp;
    TEST_UNTIL(PAIR_OK(vp.pair.ops->poll(vp.pair.side[A].nic, &comp, 1)) == 1, (void)0, "the end");
    assert_int_equal(comp.op, WEFT_OP_LINK_DOWN);
    assert_int_equal(comp.status, WEFT_ELINK);
    CHECK(strstr(comp.data, "did not come back"), "%s", (const char *)comp.data);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* Both sides look once, and one request goes. */
static void turn(struct verbs_pair *vp)
{
    fake_verbs_release(1);
    pair_poll(&vp->pair, A);
    pair_poll(&vp->pair, B);
}

/* It is to come back, and the device does not let it: each of the calls that this takes, and the post of what was behind it. */
static void a_queue_pair_that_cannot_come_back_ends_the_link(void **state)
{
    (void)state;
    for (int nth = 2; nth <= 6; nth++) { /* the first call tells side B's queue pair that it has failed, which it has */
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct verbs_link *link = link_of(&vp, A);
        struct weft_cmd cmds[2] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                                   verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 4096, 4096, 64)};
        cmds[0].remote_key ^= 0x5000;
        fake_verbs_hold();
        verbs_pair_post(&vp, A, cmds, 2);
        if (nth < 6) {
            TEST_UNTIL(link->data[0].state == VERBS_QP_TOLD, turn(&vp), "the fault");
            fake_verbs_fail_call("ibv_modify_qp", nth, EIO, false);
            TEST_UNTIL(link->state == VERBS_LINK_DOWN || link_of(&vp, B)->state == VERBS_LINK_DOWN ||
                           link->data[0].state == VERBS_QP_LIVE,
                       turn(&vp), "the failure");
            fake_verbs_fail_call("ibv_modify_qp", 1, 0, false);
        } else {
            TEST_UNTIL(link->data[0].state == VERBS_QP_RESET, turn(&vp), "the fault");
            fake_verbs_fail_post(1, 2, EINVAL); /* where both are posted again, no other post is so long */
            TEST_UNTIL(link->data[0].state == VERBS_QP_LIVE, turn(&vp), "the failure");
        }
        CHECK(link->state == VERBS_LINK_DOWN || link_of(&vp, B)->state == VERBS_LINK_DOWN, "call %d", nth);
        fake_verbs_release(-1);
        int side = link->state == VERBS_LINK_DOWN ? A : B;
        assert_int_equal(verbs_pair_down(&vp, side), nth < 6 ? -EIO : WEFT_ELINK);
        CHECK(!strstr(link_of(&vp, side)->why, "did not come back"), "call %d is noticed by the clock", nth);
        verbs_pair_end(&vp, side);
        verbs_pair_close(&vp);
    }
}

/* What is posted while the only queue pair is coming back goes out when it is there. */
static void what_is_posted_during_a_fault_goes_out_after_it(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_READ};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct verbs_pair vp;
        weft_config_set("WEFT_VERBS_QPS", "1");
        verbs_pair_open(&vp, "");
        fault_until(&vp, VERBS_QP_TOLD);
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[i], 0, 4096, 1 << 20);
        assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, &cmd, 1)), 1);
        fake_verbs_release(-1);
        assert_int_equal(pair_wait(&vp.pair, A, ops[i], cmd.ctx).comp.status, 0);
        assert_memory_equal(vp.buf[A], vp.buf[B] + 4096, 1 << 20);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* --- a peer that says nothing ----------------------------------------------------------------- */

static uint64_t writes(void)
{
    struct fake_verbs_stats stats;
    fake_verbs_stats(&stats);
    return stats.op[IBV_WR_RDMA_WRITE];
}

/* The program of the peer is waited for, be it for room for messages or immediates, or for an answer: every now and then its
 * device is asked whether there is still one. Who waits for nothing asks nothing. */
static void who_waits_looks_whether_the_peer_is_there(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_SEND, WEFT_OP_WRITE_IMM, WEFT_OP_READ};
    for (size_t i = 0; i <= ARRAY_LEN(ops); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_link *link = vp.pair.side[A].link;
        int n = 0;
        if (i < ARRAY_LEN(ops)) {
            struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[i], 0, 0, ops[i] == WEFT_OP_READ ? 0 : 64);
            cmd.ctx = 1;
            while (PAIR_OK(vp.pair.ops->post(link, &cmd, 1)) == 1) { /* B takes none of them */
                n++;
                pair_poll(&vp.pair, A);
            }
            CHECK(n > 0, "op %d", ops[i]);
        }
        for (int k = 0; k < 8; k++)
            pair_poll(&vp.pair, A);
        for (uint64_t turn = 1; turn <= 3; turn++) {
            uint64_t before = writes();
            later(&vp, A, turn * SECOND);
            CHECK(writes() - before == (i < ARRAY_LEN(ops)), "op %d: %d looks, turn %d",
                  i < ARRAY_LEN(ops) ? (int)ops[i] : -1, (int)(writes() - before), (int)turn);
            for (int k = 0; k < 8; k++)
                pair_poll(&vp.pair, A);
        }
        for (int k = 0; k < n; k++)
            assert_int_equal(pair_wait(&vp.pair, A, ops[i], 1).comp.status, 0);
        struct pair_comp msg;
        while (pair_take(&vp.pair, B, WEFT_OP_RECV, 0, &msg))
            free(msg.data);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* A question waits for a credit, and goes when there is one: the peer has taken messages, and says no more than that. */
static void a_question_waits_for_a_credit(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd msg = verbs_pair_cmd(&vp, A, WEFT_OP_SEND, 0, 0, 64), read = verbs_pair_cmd(&vp, A, WEFT_OP_READ, 0, 0, 0);
    struct pair_comp comp;
    msg.ctx = 1;
    while (PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, &msg, 1)) == 1)
        pair_poll(&vp.pair, A);
    assert_int_equal(link_of(&vp, A)->credits, 0);
    assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, &read, 1)), 1);
    assert_int_equal(link_of(&vp, A)->nnotes, 1);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_READ, read.ctx).comp.status, 0);
    while (pair_take(&vp.pair, B, WEFT_OP_RECV, 0, &comp))
        free(comp.data);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* Nothing is left to be said or posted, which would have the link looked at in any case. */
static void settle(struct verbs_pair *vp)
{
    TEST_UNTIL(!link_of(vp, A)->busy && !link_of(vp, B)->busy, { pair_poll(&vp->pair, A); pair_poll(&vp->pair, B); },
               "quiet links");
}

/* A device that is full when nothing of the cmd is under way, so that no completion will tell that it no longer is. */
static void a_device_that_is_full_is_tried_again(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_READ, WEFT_OP_WRITE_IMM};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[i], 0, 0, 100000);
        settle(&vp);
        fake_verbs_fail_post(1, 1, ENOMEM);
        assert_int_equal(pair_do(&vp.pair, A, &cmd), 0);
        assert_memory_equal(vp.buf[A], vp.buf[B], 100000);
        verbs_pair_close(&vp);
    }
}

/* Of a chain the device takes the first ones, without the last, which asks for their completion: they end all the same, though
 * nothing is posted behind them. */
static void the_first_of_a_chain_end_without_the_others(void **state)
{
    (void)state;
    for (int at = 2; at <= 8; at += 3) {
        struct verbs_pair vp;
        struct weft_cmd cmds[8];
        verbs_pair_open(&vp, "");
        settle(&vp);
        for (size_t i = 0; i < ARRAY_LEN(cmds); i++)
            cmds[i] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, i * 4096, i * 4096, 64);
        fake_verbs_fail_post(1, at, ENOMEM);
        assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, cmds, ARRAY_LEN(cmds))), at - 1);
        for (int i = 0; i < at - 1; i++)
            assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmds[i].ctx).comp.status, 0);
        verbs_pair_close(&vp);
    }
}

/* The ring of the only queue pair has no room for the first chunk, since a request that is of no cmd takes some of it: what is
 * short ends, and the long one goes out. */
static void a_ring_that_is_full_of_short_ones_keeps_no_long_one(void **state)
{
    (void)state;
    struct verbs_pair vp;
    weft_config_set("WEFT_VERBS_QPS", "1");
    verbs_pair_open(&vp, "");
    struct weft_link *base = vp.pair.side[A].link;
    struct verbs_qp *qp = &link_of(&vp, A)->data[0];
    const struct weft_cmd cmds[] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                                    verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64)};
    settle(&vp);
    fake_verbs_hold();
    fake_verbs_fail_post(1, 2, ENOMEM);
    assert_int_equal(PAIR_OK(vp.pair.ops->post(base, cmds, 2)), 1);
    TEST_UNTIL(!qp->loose, pair_poll(&vp.pair, A), "a request behind the one that was taken");
    while (verbs_qp_room(qp) > 0)
        assert_int_equal(PAIR_OK(vp.pair.ops->post(base, cmds, 1)), 1);
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 4096, 1 << 20);
    assert_int_equal(PAIR_OK(vp.pair.ops->post(base, &cmd, 1)), 1);
    fake_verbs_release(-1);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmd.ctx).comp.status, 0);
    assert_memory_equal(vp.buf[A], vp.buf[B] + 4096, 1 << 20);
    verbs_pair_close(&vp);
}

/* Over a port that is down no link begins; when it is up again, one does. */
static void no_link_begins_over_a_port_that_is_down(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    struct weft_link *link;
    verbs_pair_open(&vp, "");
    assert_int_equal(fake_verbs_port("fake0", 1, false), 0);
    TEST_UNTIL(nic_of(&vp, A)->port_lost, pair_poll(&vp.pair, A), "the event");
    WEFT_FAILS(WEFT_ELINK, vp.pair.ops->link_open(vp.pair.side[A].nic, &opts, &link));
    assert_int_equal(fake_verbs_port("fake0", 1, true), 0);
    TEST_UNTIL(!nic_of(&vp, A)->port_lost, pair_poll(&vp.pair, A), "the event");
    WEFT_OK(vp.pair.ops->link_open(vp.pair.side[A].nic, &opts, &link));
    vp.pair.ops->link_close(link);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* --- closing ---------------------------------------------------------------------------------- */

/* A goodbye that nobody acknowledges is given up, and what the link had is there again. */
static void a_goodbye_that_does_not_arrive_is_given_up(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "retry_ms=5000");
    struct verbs_nic *nic = nic_of(&vp, A);
    int64_t room = nic->cq_size;
    fake_verbs_hold();
    verbs_pair_end(&vp, A);
    later(&vp, A, SECOND / 2);
    assert_false(nic->closed->finishing);
    later(&vp, A, 2 * SECOND);
    assert_true(nic->closed && nic->closed->finishing);
    later(&vp, A, 4 * SECOND);
    assert_null(nic->closed);
    assert_int_equal(nic->srq_want, 0);
    assert_int_equal(nic->cq_kept, 0);
    assert_int_equal(nic->nwaiting, 0);
    assert_int_equal(nic->cq_room + nic->srq_posted, room);
    fake_verbs_release(-1);
    verbs_pair_close(&vp);
}

/* Nor is one waited for that the device says is lost. */
static void a_goodbye_that_fails_is_the_end(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    const struct verbs_nic *nic = nic_of(&vp, A);
    fake_verbs_fail_send(IBV_WR_SEND_WITH_IMM, 1, IBV_WC_RETRY_EXC_ERR, false);
    verbs_pair_end(&vp, A);
    pair_poll(&vp.pair, A);
    assert_true(!nic->closed || nic->closed->finishing);
    verbs_pair_close(&vp);
}

/* Who has heard a goodbye says none, and one that has arrived is waited for no longer. */
static void one_goodbye_is_enough(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct fake_verbs_stats before, after;
    const struct verbs_nic *nic = nic_of(&vp, B);
    verbs_pair_end(&vp, A);
    assert_int_equal(verbs_pair_down(&vp, B), WEFT_ELINK);
    assert_true(!nic_of(&vp, A)->closed || nic_of(&vp, A)->closed->finishing);
    fake_verbs_stats(&before);
    verbs_pair_end(&vp, B);
    fake_verbs_stats(&after);
    assert_int_equal(after.sends, before.sends);
    assert_true(!nic->closed || nic->closed->finishing);
    verbs_pair_close(&vp);
}

/* Nothing of a closed link is handed out, also of what had ended by then. */
static void what_has_ended_is_forgotten_with_its_link(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd cmds[2] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64), {.op = WEFT_OP_FENCE, .ctx = 7}};
    cmds[0].remote_key = 1ull << 32; /* no device has such keys: it ends at once */
    for (int i = 0; i < 2; i++) {
        if (i > 0)
            pair_connect(&vp.pair);
        assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, &cmds[i], 1)), 1);
        verbs_pair_end(&vp, A);
        assert_null(nic_of(&vp, A)->done.head);
        for (int k = 0; k < 8; k++)
            assert_int_equal(pair_poll(&vp.pair, A), 0);
        verbs_pair_down(&vp, B);
        verbs_pair_end(&vp, B);
    }
    verbs_pair_close(&vp);
}

/* After links that were closed at any moment, also in the middle of a fault, a nic has all it had, and no deadline. */
static void a_closed_link_leaves_nothing(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "srq=0", "stale=1"};
    for (size_t i = 0; i < 3 * ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, devices[i / 3]);
        struct weft_cmd imm = verbs_pair_cmd(&vp, B, WEFT_OP_WRITE_IMM, 0, 0, 64),
                        big = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 3 << 20),
                        read = verbs_pair_cmd(&vp, A, WEFT_OP_READ, 0, 0, 0);
        if (i % 3 == 1)
            fault_until(&vp, VERBS_QP_TOLD);
        else
            fake_verbs_hold();
        if (i % 3 == 2) {
            verbs_pair_post(&vp, B, &imm, 1);
            verbs_pair_post(&vp, A, &big, 1);
            verbs_pair_post(&vp, A, &read, 1);
        }
        for (int side = 0; side < 2; side++)
            verbs_pair_end(&vp, side);
        fake_verbs_release(-1);
        for (int side = 0; side < 2; side++) {
            struct verbs_nic *nic = nic_of(&vp, side);
            TEST_UNTIL(!nic->closed, pair_poll(&vp.pair, side), "the end of the link");
            CHECK(nic->cq_room + nic->srq_posted == nic->cq_size, "%lld of %lld places are left", (long long)nic->cq_room,
                  (long long)nic->cq_size);
            assert_int_equal(nic->nwaiting, 0);
            assert_int_equal(nic->nlong, 0);
            assert_int_equal(nic->ndown, 0);
            assert_int_equal(nic->srq_want, 0);
            assert_int_equal(nic->cq_kept, 0);
            assert_null(nic->done.head);
        }
        pair_connect(&vp.pair);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(an_address_beyond_its_bounds_is_refused),
        CASE(ends_may_have_different_numbers_of_queue_pairs),
        CASE(who_hears_nothing_gives_up),
        CASE(nothing_is_heard_before_the_greeting),
        CASE(a_proof_is_of_one_end),
        CASE(what_is_not_a_message_ends_the_link),
        CASE(a_message_without_an_immediate_ends_the_link),
        CASE(a_link_that_is_down_hears_no_more),
        CASE(a_link_that_is_down_does_no_more),
        CASE(a_fault_out_of_turn_ends_the_link),
        CASE(a_queue_pair_that_only_one_end_has_cannot_fail),
        CASE(words_of_another_life_end_the_link),
        CASE(a_fault_that_does_not_end_ends_the_link),
        CASE(a_queue_pair_that_cannot_come_back_ends_the_link),
        CASE(what_is_posted_during_a_fault_goes_out_after_it),
        CASE(who_waits_looks_whether_the_peer_is_there),
        CASE(a_question_waits_for_a_credit),
        CASE(a_device_that_is_full_is_tried_again),
        CASE(the_first_of_a_chain_end_without_the_others),
        CASE(a_ring_that_is_full_of_short_ones_keeps_no_long_one),
        CASE(no_link_begins_over_a_port_that_is_down),
        CASE(a_goodbye_that_does_not_arrive_is_given_up),
        CASE(a_goodbye_that_fails_is_the_end),
        CASE(one_goodbye_is_enough),
        CASE(what_has_ended_is_forgotten_with_its_link),
        CASE(a_closed_link_leaves_nothing),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
