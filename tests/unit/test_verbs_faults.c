/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: devices that refuse, fail and go away. Every cmd ends once, with a status that says why,
 * or its link does; what can go on goes on. */
#include "verbs_pair.h"

#include <poll.h>

#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B
#define STEP 4096 /* between what cmds write */

/* --- completions ----------------------------------------------------------------------------- */

/* Each status of a request that fails for itself, and what the cmd then ends with. */
static void a_refused_request_fails_alone(void **state)
{
    (void)state;
    static const struct {
        enum ibv_wc_status status;
        int code;
    } cases[] = {
        {IBV_WC_LOC_LEN_ERR, -EMSGSIZE},       {IBV_WC_LOC_PROT_ERR, -EFAULT},
        {IBV_WC_LOC_ACCESS_ERR, -EFAULT},      {IBV_WC_REM_INV_REQ_ERR, WEFT_EUNSUPPORTED},
        {IBV_WC_REM_ACCESS_ERR, WEFT_EACCESS},
    };
    static const struct {
        enum weft_op op;
        int opcode;
        size_t len;
    } ops[] = {
        {WEFT_OP_WRITE, IBV_WR_RDMA_WRITE, 64},
        {WEFT_OP_READ, IBV_WR_RDMA_READ, 64},
        {WEFT_OP_WRITE_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, 64},
        {WEFT_OP_ADD64, IBV_WR_ATOMIC_FETCH_AND_ADD, 8},
        {WEFT_OP_WRITE, IBV_WR_RDMA_WRITE, 2 << 20}, /* in chunks */
        {WEFT_OP_READ, IBV_WR_RDMA_READ, 2 << 20},
    };
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
            struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[k].op, 0, 0, ops[k].len);
            fake_verbs_fail_send(ops[k].opcode, 1, cases[i].status, false);
            verbs_pair_post(&vp, A, &cmd, 1);
            struct weft_comp comp = pair_wait(&vp.pair, A, ops[k].op, cmd.ctx).comp;
            CHECK(comp.status == cases[i].code, "%s of op %d is %s",
                  ibv_wc_status_str(cases[i].status), ops[k].op, weft_err_name(comp.status));
            verbs_pair_works(&vp);
        }
    }
    verbs_pair_close(&vp);
}

/* Those after which nothing is to be expected of the link. */
static void a_fatal_status_ends_the_link(void **state)
{
    (void)state;
    static const struct {
        enum ibv_wc_status status;
        int code;
        const char *says;
    } cases[] = {
        {IBV_WC_RNR_RETRY_EXC_ERR, WEFT_ELINK, "receive"},
        {IBV_WC_REM_OP_ERR, WEFT_ELINK, ""},
        {IBV_WC_REM_ABORT_ERR, WEFT_ELINK, ""},
        {IBV_WC_RESP_TIMEOUT_ERR, WEFT_ELINK, ""},
        {IBV_WC_LOC_QP_OP_ERR, -EIO, ""},
        {IBV_WC_MW_BIND_ERR, -EIO, ""},
        {IBV_WC_BAD_RESP_ERR, WEFT_EPROTO, ""},
        {IBV_WC_FATAL_ERR, -EIO, ""},
        {IBV_WC_GENERAL_ERR, -EIO, ""},
    };
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        struct verbs_pair vp;
        bool delivered = i % 2;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, cases[i / 2].status, delivered);
        verbs_pair_post(&vp, A, &cmd, 1);
        struct weft_comp comp = pair_wait(&vp.pair, A, WEFT_OP_LINK_DOWN, 0).comp;
        assert_int_equal(comp.status, cases[i / 2].code);
        CHECK(strstr(comp.data, cases[i / 2].says), "%s", (const char *)comp.data);
        WEFT_FAILS(WEFT_ELINK, vp.pair.ops->post(vp.pair.side[A].link, &cmd, 1));
        struct pair_comp none;
        assert_false(pair_take(&vp.pair, A, WEFT_OP_WRITE, cmd.ctx, &none));
        verbs_pair_end(&vp, A);
        verbs_pair_down(&vp, B); /* hears the goodbye, since messages still pass */
        verbs_pair_close(&vp);
    }
}

/* The peer is there, as its control queue pair shows: the request is posted again, if it was in order. */
static void a_request_without_an_answer_is_asked_about(void **state)
{
    (void)state;
    for (int delivered = 0; delivered < 2; delivered++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        struct weft_cmd wrong = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        wrong.remote_addr += 1 << 30;
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_RETRY_EXC_ERR, delivered);
        verbs_pair_post(&vp, A, &cmd, 1);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmd.ctx).comp.status, 0);
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_RETRY_EXC_ERR, false);
        verbs_pair_post(&vp, A, &wrong, 1);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, wrong.ctx).comp.status,
                         WEFT_EBOUNDS);
        verbs_pair_close(&vp);
    }
}

/* Answers are late again and again, and each time the request is carried out in the end. */
static void silence_that_ends_is_forgotten(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (size_t i = 0; i < 8; i++) {
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, i * STEP, i * STEP, 64);
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_RETRY_EXC_ERR, false);
        verbs_pair_post(&vp, A, &cmd, 1);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmd.ctx).comp.status, 0);
    }
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* Each immediate that A counts as sent has arrived, and B can send its count without a fault. */
static void check_imms(struct verbs_pair *vp)
{
    struct verbs_qp *a = ((struct verbs_link *)vp->pair.side[A].link)->data,
                    *b = ((struct verbs_link *)vp->pair.side[B].link)->data;
    CHECK(a->imms_out == b->imms_in, "%u immediates sent, %u arrived", a->imms_out, b->imms_in);
}

/* A's immediate is done, and the next one to arrive. */
static void do_imm(struct verbs_pair *vp, const struct weft_cmd *imm)
{
    assert_int_equal(pair_do(&vp->pair, A, imm), 0);
    assert_int_equal(pair_wait(&vp->pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, imm->imm);
}

/* B's memory, which is there under a key for its peers, or is not. */
static void withdraw(struct verbs_pair *vp)
{
    PAIR_OK(vp->pair.ops->mem_dereg(vp->pair.side[B].nic, vp->mem[B].mem));
}

static void offer(struct verbs_pair *vp, uint32_t access)
{
    vp->mem[B] = pair_reg(&vp->pair, B, vp->buf[B], VERBS_PAIR_BYTES, access, 0);
}

/* A device that flushes a queue pair and does not say for which request: the peer is asked about the first one
 * that is left, and it is refused as if the device had said so. The one behind it is carried out. */
static void a_queue_pair_that_fails_without_a_word_is_asked_about(void **state)
{
    (void)state;
    static const struct {
        enum weft_op op;
        enum ibv_wr_opcode opcode;
    } kinds[] = {
        {WEFT_OP_WRITE, IBV_WR_RDMA_WRITE},
        {WEFT_OP_READ, IBV_WR_RDMA_READ},
        {WEFT_OP_WRITE_IMM, IBV_WR_RDMA_WRITE_WITH_IMM},
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd bad = verbs_pair_cmd(&vp, A, kinds[i].op, 0, 0, 64),
                        good = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, STEP, STEP, 64);
        bad.remote_key ^= 0x5000;
        for (int n = 0; n < 3; n++) /* one after the other */
            fake_verbs_fail_send(kinds[i].opcode, 1, IBV_WC_WR_FLUSH_ERR, false);
        verbs_pair_post(&vp, A, &bad, 1);
        verbs_pair_post(&vp, A, &good, 1);
        struct weft_comp comp = pair_wait(&vp.pair, A, kinds[i].op, bad.ctx).comp;
        CHECK(comp.status == WEFT_EKEY, "op %d ended with %s", kinds[i].op,
              weft_strerror(comp.status));
        CHECK(strstr(comp.data, "refused"), "%s", (const char *)comp.data);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, good.ctx).comp.status, 0);
        assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, good.imm);
        verbs_pair_works(&vp);
        check_imms(&vp);
        verbs_pair_close(&vp);
    }
}

/* So it is with memory that may not be written, with what lies beyond it, and with additions. */
static void a_silent_refusal_has_its_reason(void **state)
{
    (void)state;
    static const char *const devices[] = {"mute=1", "mute=2"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, devices[i]);
        struct weft_cmd beyond = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, VERBS_PAIR_BYTES, 64),
                        add = verbs_pair_cmd(&vp, A, WEFT_OP_ADD64, 0, 0, 8);
        add.remote_key ^= 0x5000;
        assert_int_equal(pair_do(&vp.pair, A, &beyond), WEFT_EBOUNDS);
        assert_int_equal(pair_do(&vp.pair, A, &add), WEFT_EKEY);
        withdraw(&vp);
        offer(&vp, WEFT_ACCESS_READ);
        struct weft_cmd write = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        assert_int_equal(pair_do(&vp.pair, A, &write), WEFT_EACCESS);
        verbs_pair_close(&vp);
    }
}

/* An immediate without bytes needs no key: nobody refuses it, whatever else went wrong. */
static void an_immediate_alone_is_not_asked_about(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd imm = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 0);
    imm.remote_key ^= 0x5000;
    fake_verbs_fail_send(IBV_WR_RDMA_WRITE_WITH_IMM, 1, IBV_WC_WR_FLUSH_ERR, false);
    do_imm(&vp, &imm);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* It was executed, as its immediate shows: what the peer thinks of its key by now does not count. */
static void a_silent_request_that_was_executed_is_done(void **state)
{
    (void)state;
    static const enum ibv_wc_status how[] = {IBV_WC_WR_FLUSH_ERR, IBV_WC_RETRY_EXC_ERR};
    for (size_t i = 0; i < ARRAY_LEN(how); i++) {
        struct verbs_pair vp;
        struct pair_comp more;
        verbs_pair_open(&vp, "");
        struct weft_cmd imm = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64);
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE_WITH_IMM, 1, how[i], true);
        verbs_pair_post(&vp, A, &imm, 1);
        for (int k = 0; k < 4; k++)
            pair_poll(&vp.pair, A);
        withdraw(&vp);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, imm.ctx).comp.status, 0);
        assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, imm.imm);
        check_imms(&vp);
        offer(&vp, PAIR_ALL);
        for (size_t k = 0; k < 64; k++) { /* until B has told its count, and beyond */
            struct weft_cmd next = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, k * STEP, 64);
            do_imm(&vp, &next);
        }
        verbs_pair_works(&vp);
        assert_false(pair_take(&vp.pair, B, WEFT_OP_WRITE_IMM, 0, &more));
        verbs_pair_close(&vp);
    }
}

/* A write and an immediate without bytes behind it are executed, both answers are lost, and who was told frees the memory.
 * The fake cannot have a request fail whose successor was executed: its completion is played. */
static void an_immediate_behind_a_silent_request_comes_once(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct pair_comp more;
    verbs_pair_open(&vp, "");
    struct verbs_link *link = (struct verbs_link *)vp.pair.side[A].link;
    struct weft_cmd cmds[2] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                               verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, STEP, 0)};
    fake_verbs_hold_acks(true);
    verbs_pair_post(&vp, A, cmds, 2);
    pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0);
    withdraw(&vp);
    verbs_fault_comp(&link->data[0], link->data[0].settled, IBV_WC_RETRY_EXC_ERR);
    fake_verbs_hold_acks(false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pair_wait(&vp.pair, A, (enum weft_op)cmds[i].op, cmds[i].ctx).comp.status, 0);
    offer(&vp, PAIR_ALL);
    verbs_pair_works(&vp);
    check_imms(&vp);
    CHECK(!pair_take(&vp.pair, B, WEFT_OP_WRITE_IMM, 0, &more), "the immediate came twice");
    verbs_pair_close(&vp);
}

/* Faults while this end had nothing under way do not count against what it posts later. */
static void what_was_not_there_is_not_the_cause(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_cmd reads[3];
    verbs_pair_open(&vp, "");
    for (size_t i = 0; i < 3; i++) {
        reads[i] = verbs_pair_cmd(&vp, B, WEFT_OP_READ, i * STEP, i * STEP, 64);
        fake_verbs_fail_send(IBV_WR_RDMA_READ, 1, IBV_WC_WR_FLUSH_ERR, false);
        verbs_pair_post(&vp, B, &reads[i], 1);
        if (i < 2)
            assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_READ, reads[i].ctx).comp.status, 0);
    }
    struct weft_cmd write = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 3 * STEP, 3 * STEP, 64);
    verbs_pair_post(&vp, A, &write, 1);
    assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_READ, reads[2].ctx).comp.status, 0);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, write.ctx).comp.status, 0);
    verbs_pair_close(&vp);
}

/* The device of B is silent about its wrong reads. A, who judges them, knows that its own write was not the cause. */
static void the_judge_knows_the_cause(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_cmd bad[3];
    verbs_pair_open(&vp, "");
    struct weft_cmd write = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 8 * STEP, 8 * STEP, 64);
    for (size_t i = 0; i < 3; i++) {
        bad[i] = verbs_pair_cmd(&vp, B, WEFT_OP_READ, i * STEP, i * STEP, 64);
        bad[i].remote_key ^= 0x5000;
        fake_verbs_fail_send(IBV_WR_RDMA_READ, 1, IBV_WC_WR_FLUSH_ERR, false);
    }
    verbs_pair_post(&vp, B, bad, 3);
    verbs_pair_post(&vp, A, &write, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_READ, bad[i].ctx).comp.status, WEFT_EKEY);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, write.ctx).comp.status, 0);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* A's wrong write, about which its device is silent, leaves B's read without an answer: the write ends at once, and
 * the read is carried out. */
static void a_wrong_request_ends_while_the_peer_suspects_its_own(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd bad = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                    read = verbs_pair_cmd(&vp, B, WEFT_OP_READ, STEP, STEP, 64);
    bad.remote_key ^= 0x5000;
    fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_WR_FLUSH_ERR, false);
    for (int i = 0; i < 3; i++)
        fake_verbs_fail_send(IBV_WR_RDMA_READ, 1, IBV_WC_RETRY_EXC_ERR, false);
    verbs_pair_post(&vp, A, &bad, 1);
    verbs_pair_post(&vp, B, &read, 1);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, bad.ctx).comp.status, WEFT_EKEY);
    assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_READ, read.ctx).comp.status, 0);
    verbs_pair_close(&vp);
}

/* Words on a fault that make no sense: a guess that is none, and immediates that cannot be so many. The first ones make
 * some. */
static void a_fault_that_makes_no_sense_ends_the_link(void **state)
{
    (void)state;
    static const struct {
        uint8_t guess;
        uint32_t imms;
    } cases[] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {0, 0}, {0, 2}, {1, UINT32_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct verbs_link *link = (struct verbs_link *)vp.pair.side[A].link;
        struct weft_cmd imm = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64);
        do_imm(&vp, &imm);
        struct weft_cmd msg = verbs_pair_cmd(&vp, B, WEFT_OP_SEND, 0, 0, 64);
        assert_int_equal(pair_do(&vp.pair, B, &msg), 0); /* brings the count along */
        free(pair_wait(&vp.pair, A, WEFT_OP_RECV, 0).data);
        assert_int_equal(link->data[0].imms_heard, 1);
        struct verbs_fault_msg fault = {.epoch = (uint8_t)(link->data[0].epoch + 1),
                                        .guess = cases[i].guess,
                                        .imms = htole32(cases[i].imms),
                                        .question.op = VERBS_NO_QUESTION};
        verbs_fault_heard(link, &fault);
        assert_int_equal(link->state, i < 3 ? VERBS_LINK_UP : VERBS_LINK_DOWN);
        if (i >= 3)
            assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
        verbs_pair_close(&vp);
    }
}

/* A request that is in order for the peer, but not for its device: after some attempts it is said to be the
 * cause. So it is where each end has one. */
static void a_request_that_always_fails_without_a_word_ends(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd first = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, STEP, STEP, 64),
                    bad = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
    assert_int_equal(pair_do(&vp.pair, A, &first), 0);
    for (int n = 0; n < 3; n++)
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_WR_FLUSH_ERR, false);
    verbs_pair_post(&vp, A, &bad, 1);
    struct weft_comp comp = pair_wait(&vp.pair, A, WEFT_OP_WRITE, bad.ctx).comp;
    assert_int_equal(comp.status, -EIO);
    CHECK(strstr(comp.data, "does not say why"), "%s", (const char *)comp.data);
    CHECK(test_differs((char *)vp.buf[B], 64, 2, 0) < 0, "it was executed all the same");
    verbs_pair_works(&vp);
    struct weft_cmd both[2] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                               verbs_pair_cmd(&vp, B, WEFT_OP_READ, STEP, STEP, 64)};
    for (int n = 0; n < 6; n++) {
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_WR_FLUSH_ERR, false);
        fake_verbs_fail_send(IBV_WR_RDMA_READ, 1, IBV_WC_WR_FLUSH_ERR, false);
    }
    verbs_pair_post(&vp, A, &both[0], 1);
    verbs_pair_post(&vp, B, &both[1], 1);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, both[0].ctx).comp.status, -EIO);
    assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_READ, both[1].ctx).comp.status, -EIO);
    verbs_pair_close(&vp);
}

static void a_message_that_fails_ends_the_link(void **state)
{
    (void)state;
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_GENERAL_ERR; status++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_SEND, 0, 0, 64);
        fake_verbs_fail_send(IBV_WR_SEND_WITH_IMM, 1, (enum ibv_wc_status)status, false);
        verbs_pair_post(&vp, A, &cmd, 1);
        assert_true(verbs_pair_down(&vp, A) < 0);
        verbs_pair_close(&vp);
    }
}

/* Three writes have one completion; then the link is lost by a message that cannot be posted. */
static void lose_after_writes(struct verbs_pair *vp, struct weft_comp *first)
{
    struct weft_cmd cmds[3], send = verbs_pair_cmd(vp, A, WEFT_OP_SEND, 0, 0, 64);
    for (size_t i = 0; i < 3; i++)
        cmds[i] = verbs_pair_cmd(vp, A, WEFT_OP_WRITE, i * STEP, i * STEP, 64);
    verbs_pair_post(vp, A, cmds, 3);
    uint64_t until = test_deadline();
    while (PAIR_OK(vp->pair.ops->poll(vp->pair.side[A].nic, first, 1)) == 0)
        CHECK(weft_now() < until, "no write has ended");
    fake_verbs_fail_post(1, 1, EINVAL);
    assert_true(vp->pair.ops->post(vp->pair.side[A].link, &send, 1) < 0);
}

/* Also to who takes one comp at a time, LINK_DOWN is the last one of a link. */
static void a_lost_link_tells_last_that_it_is_lost(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_comp comp;
    verbs_pair_open(&vp, "");
    lose_after_writes(&vp, &comp);
    int writes = 1;
    uint64_t until = test_deadline();
    while (comp.op != WEFT_OP_LINK_DOWN) {
        CHECK(weft_now() < until, "%d writes, and no LINK_DOWN", writes);
        if (PAIR_OK(vp.pair.ops->poll(vp.pair.side[A].nic, &comp, 1)) == 1)
            writes += comp.op == WEFT_OP_WRITE;
    }
    assert_int_equal(writes, 3);
    assert_int_equal(vp.pair.ops->poll(vp.pair.side[A].nic, &comp, 1), 0);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* A link that is closed before anyone heard of its loss is not told of any more: the nic can sleep. */
static void a_lost_link_that_is_closed_is_forgotten(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_comp comp;
    verbs_pair_open(&vp, "");
    lose_after_writes(&vp, &comp);
    verbs_pair_end(&vp, A);
    uint64_t until = test_deadline();
    while (vp.pair.ops->wait_fd(vp.pair.side[A].nic) == WEFT_EAGAIN) {
        CHECK(weft_now() < until, "the nic does not sleep");
        assert_int_equal(vp.pair.ops->poll(vp.pair.side[A].nic, &comp, 1), 0);
    }
    verbs_pair_close(&vp);
}

/* --- a fault among others --------------------------------------------------------------------- */

#define MANY 24

/* All but those before `base` that are wrong are done, and once. */
static int wait_all(struct verbs_pair *vp, int side, const struct weft_cmd *cmds, int n,
                    int *status)
{
    int failed = 0;
    for (int i = 0; i < n; i++) {
        struct pair_comp comp = pair_wait(&vp->pair, side, (enum weft_op)cmds[i].op, cmds[i].ctx),
                         again;
        status[i] = comp.comp.status;
        failed += status[i] != 0;
        assert_false(pair_take(&vp->pair, side, (enum weft_op)cmds[i].op, cmds[i].ctx, &again));
    }
    return failed;
}

/* Both ends have work under way when a request of one is refused: no other one is lost. */
static void a_fault_costs_nobody_else(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < MANY; wrong += 5) {
        struct verbs_pair vp;
        struct weft_cmd cmds[2][MANY];
        int status[2][MANY];
        verbs_pair_open(&vp, "");
        fake_verbs_hold();
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < MANY; i++) {
                enum weft_op op = i % 3 == 1 ? WEFT_OP_READ : WEFT_OP_WRITE;
                cmds[side][i] = verbs_pair_cmd(&vp, side, op, (64 + i) * STEP, i * STEP, STEP);
                if (op == WEFT_OP_READ) /* into a place of its own */
                    cmds[side][i].one.addr = vp.buf[side] + (256 + i) * STEP;
            }
        }
        cmds[A][wrong].remote_key ^= 0x5000;
        verbs_pair_post(&vp, A, cmds[A], MANY);
        verbs_pair_post(&vp, B, cmds[B], MANY);
        fake_verbs_release(wrong / 2);
        fake_verbs_release(-1);
        assert_int_equal(wait_all(&vp, A, cmds[A], MANY, status[A]), 1);
        assert_int_equal(status[A][wrong], WEFT_EKEY);
        assert_int_equal(wait_all(&vp, B, cmds[B], MANY, status[B]), 0);
        for (int side = 0; side < 2; side++)
            for (size_t i = 0; i < MANY; i++) {
                const struct weft_cmd *cmd = &cmds[side][i];
                if (!status[side][i])
                    assert_memory_equal(cmd->one.addr, (void *)(uintptr_t)cmd->remote_addr, STEP);
            }
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* So many of side B's requests happen, and one more, without side B being told; then side A's
 * fails, and with it the queue pairs of both. */
static void fail_after(struct verbs_pair *vp, int before, const struct weft_cmd *bad)
{
    fake_verbs_hold_acks(true);
    assert_int_equal(fake_verbs_release(before), before);
    verbs_pair_post(vp, A, bad, 1);
    fake_verbs_release(-1);
    fake_verbs_hold_acks(false);
}

/* Immediates come once each, also those that are posted again after a fault of the other end. */
static void a_fault_doubles_no_immediate(void **state)
{
    (void)state;
    for (int before = 0; before < MANY / 2; before += 3) {
        struct verbs_pair vp;
        struct weft_cmd cmds[MANY], bad;
        int status[MANY], seen[MANY] = {0};
        verbs_pair_open(&vp, "");
        fake_verbs_hold();
        for (size_t i = 0; i < MANY; i++) {
            cmds[i] = verbs_pair_cmd(&vp, B, WEFT_OP_WRITE_IMM, i * STEP, i * STEP, 64);
            cmds[i].imm = (uint32_t)i;
        }
        bad = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        bad.remote_key ^= 0x5000;
        verbs_pair_post(&vp, B, cmds, MANY / 2);
        fail_after(&vp, before, &bad);
        verbs_pair_post(&vp, B, cmds + MANY / 2, MANY - MANY / 2);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, bad.ctx).comp.status, WEFT_EKEY);
        assert_int_equal(wait_all(&vp, B, cmds, MANY, status), 0);
        for (int i = 0; i < MANY; i++) {
            uint32_t imm = pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, 0).comp.imm;
            CHECK(imm < MANY && !seen[imm]++, "immediate %u", imm);
        }
        verbs_pair_works(&vp);
        struct pair_comp more;
        assert_false(pair_take(&vp.pair, A, WEFT_OP_WRITE_IMM, 0, &more));
        verbs_pair_close(&vp);
    }
}

/* A write that an immediate has told of is done: who was told may use its memory for something else. */
static void a_fault_repeats_no_write_that_was_told_of(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd cmds[2] = {verbs_pair_cmd(&vp, B, WEFT_OP_WRITE, 0, 0, 64),
                               verbs_pair_cmd(&vp, B, WEFT_OP_WRITE_IMM, 0, STEP, 64)},
                    bad = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
    int status[2];
    bad.remote_key ^= 0x5000;
    fake_verbs_hold();
    verbs_pair_post(&vp, B, cmds, 2);
    fake_verbs_hold_acks(true);
    assert_int_equal(fake_verbs_release(2), 2);
    pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, 0);
    assert_memory_equal(vp.buf[A], vp.buf[B], 64);
    memset(vp.buf[A], 0x55, 64);
    verbs_pair_post(&vp, A, &bad, 1);
    fake_verbs_release(-1);
    fake_verbs_hold_acks(false);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, bad.ctx).comp.status, WEFT_EKEY);
    assert_int_equal(wait_all(&vp, B, cmds, 2, status), 0);
    for (int i = 0; i < 64; i++)
        assert_int_equal(vp.buf[A][i], 0x55);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* An addition takes place once, or ends with an error that leaves it open. */
static void a_fault_doubles_no_addition(void **state)
{
    (void)state;
    for (int before = 0; before < MANY; before += 5) {
        struct verbs_pair vp;
        struct weft_cmd cmds[MANY], bad;
        int status[MANY];
        verbs_pair_open(&vp, "");
        uint64_t *word = (uint64_t *)(void *)vp.buf[A], old = *word;
        fake_verbs_hold();
        for (size_t i = 0; i < MANY; i++) {
            cmds[i] = verbs_pair_cmd(&vp, B, WEFT_OP_ADD64, 8, 0, 8);
            cmds[i].ctx = i + 1;
        }
        bad = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        bad.remote_key ^= 0x5000;
        verbs_pair_post(&vp, B, cmds, MANY);
        fail_after(&vp, before, &bad);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, bad.ctx).comp.status, WEFT_EKEY);
        int failed = wait_all(&vp, B, cmds, MANY, status);
        CHECK(*word - old >= (uint64_t)(MANY - failed) && *word - old <= MANY,
              "%d of %d ended with an error, and the word grew by %d", failed, MANY,
              (int)(*word - old));
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* The cause lies with the other end, which had its queue pair fail: of a chain of writes some had happened, and
 * none was told of. */
static void a_fault_of_the_peer_in_the_middle_of_a_chain(void **state)
{
    (void)state;
    for (int before = 0; before < MANY; before += 5) {
        struct verbs_pair vp;
        struct weft_cmd cmds[MANY], bad;
        int status[MANY];
        verbs_pair_open(&vp, "");
        fake_verbs_hold();
        for (size_t i = 0; i < MANY; i++)
            cmds[i] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, i * STEP, i * STEP, 64);
        assert_int_equal(PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, cmds, MANY)), MANY);
        fake_verbs_release(before);
        bad = verbs_pair_cmd(&vp, B, WEFT_OP_READ, MANY * STEP, MANY * STEP, 64);
        fake_verbs_fail_send(IBV_WR_RDMA_READ, 1, IBV_WC_LOC_PROT_ERR, false);
        verbs_pair_post(&vp, B, &bad, 1);
        for (int i = 0; i < 4; i++) {
            fake_verbs_release(1);
            pair_poll(&vp.pair, B);
        }
        fake_verbs_release(-1);
        assert_int_equal(wait_all(&vp, A, cmds, MANY, status), 0);
        assert_true(pair_wait(&vp.pair, B, WEFT_OP_READ, bad.ctx).comp.status < 0);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* The answer to the last request comes when the peer has told of its fault: nothing else will. */
static void a_fault_is_over_with_the_last_answer(void **state)
{
    (void)state;
    struct verbs_pair vp;
    weft_config_set("WEFT_VERBS_QPS", "2");
    verbs_pair_open(&vp, "");
    struct weft_cmd write = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 100000),
                    read = verbs_pair_cmd(&vp, B, WEFT_OP_READ, 1 << 20, 1 << 20, 100000);
    fake_verbs_hold_acks(true);
    verbs_pair_post(&vp, A, &write, 1);
    fake_verbs_fail_send(IBV_WR_RDMA_READ, 1, IBV_WC_LOC_PROT_ERR, false);
    verbs_pair_post(&vp, B, &read, 1);
    pair_poll(&vp.pair, B);
    fake_verbs_hold_acks(false);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, write.ctx).comp.status, 0);
    assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_READ, read.ctx).comp.status, -EFAULT);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* A refused WRITE_IMM keeps its place as a write of no bytes. When that fails, the cmd fails no second time. */
static void a_refused_cmd_fails_once(void **state)
{
    (void)state;
    static const enum ibv_wc_status how[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR,
                                             IBV_WC_WR_FLUSH_ERR};
    for (size_t i = 0; i < ARRAY_LEN(how); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd bad = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64),
                        good = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, STEP, 64);
        bad.remote_key ^= 0x5000;
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, how[i], false);
        assert_int_equal(pair_do(&vp.pair, A, &bad), WEFT_EKEY);
        do_imm(&vp, &good);
        check_imms(&vp);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* --- posts that the device refuses ------------------------------------------------------------ */

static void a_post_that_stops_half_way_loses_nothing(void **state)
{
    (void)state;
    for (int at = 1; at <= 8; at++) {
        struct verbs_pair vp;
        struct weft_cmd cmds[8];
        int status[8];
        verbs_pair_open(&vp, "");
        for (size_t i = 0; i < 8; i++)
            cmds[i] = verbs_pair_cmd(&vp, A, i == 4 ? WEFT_OP_WRITE_IMM : WEFT_OP_WRITE, i * STEP,
                                     i * STEP, 64);
        fake_verbs_fail_post(1, at, ENOMEM);
        int n = PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, cmds, 8));
        assert_int_equal(n, at - 1);
        verbs_pair_post(&vp, A, cmds + n, 8 - n);
        assert_int_equal(wait_all(&vp, A, cmds, 8, status), 0);
        for (size_t i = 0; i < 8; i++)
            assert_memory_equal(vp.buf[A] + i * STEP, vp.buf[B] + i * STEP, 64);
        assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, 4 * STEP);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* The common case looks at less; not at less than this. */
static void a_piece_of_another_length_is_refused(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (size_t len = 32; len <= 128; len += 96) {
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
        cmd.one.len = len;
        WEFT_FAILS(-EINVAL, vp.pair.ops->post(vp.pair.side[A].link, &cmd, 1));
    }
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

static void a_post_that_is_never_taken_is_an_error(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_cmd cmds[4];
    int status[4];
    verbs_pair_open(&vp, "");
    for (size_t i = 0; i < 4; i++)
        cmds[i] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, i * STEP, i * STEP, 64);
    fake_verbs_fail_post(1, 3, EINVAL);
    assert_int_equal(vp.pair.ops->post(vp.pair.side[A].link, cmds, 4), 2);
    fake_verbs_fail_post(1, 1, EINVAL);
    WEFT_FAILS(-EINVAL, vp.pair.ops->post(vp.pair.side[A].link, cmds + 2, 2));
    verbs_pair_post(&vp, A, cmds + 2, 2);
    assert_int_equal(wait_all(&vp, A, cmds, 4, status), 0);
    verbs_pair_close(&vp);
}

/* A long one goes out in chunks: the device refuses one of them. */
static void a_chunk_that_is_refused_is_posted_again_or_ends_the_cmd(void **state)
{
    (void)state;
    for (int error = 0; error < 2; error++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 3 << 20);
        fake_verbs_fail_post(2, 1, error ? EINVAL : ENOMEM);
        int rc = pair_do(&vp.pair, A, &cmd);
        assert_int_equal(rc, error ? -EINVAL : 0);
        CHECK(error || test_differs(vp.buf[B], 3 << 20, A + 1, 0) < 0, "bytes");
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* --- calls that fail -------------------------------------------------------------------------- */

static void each_call_of_open_may_fail(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "ibv_get_device_list", "ibv_open_device",      "ibv_query_device",
        "ibv_query_port",      "ibv_alloc_pd",         "ibv_create_cq",
        "ibv_create_qp",       "_ibv_query_gid_table", "ibv_create_comp_channel",
        "ibv_create_srq",      "ibv_query_gid",        "ibv_query_pkey",
    };
    struct weft_nic_opts opts = {.device = "fake0"};
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        for (int nth = 1; nth <= 3; nth++) {
            struct weft_nic *nic = NULL;
            fake_verbs_fail_call(calls[i], nth, EPERM, true);
            int rc = weft_transport_verbs.ops->open(&opts, &nic);
            fake_verbs_fail_call(calls[i], 1, 0, false);
            CHECK(rc == 0 || *weft_last_error(), "%s: %d without a sentence", calls[i], rc);
            if (rc == 0)
                weft_transport_verbs.ops->close(nic);
            verbs_pair_check_fake();
        }
    }
}

static void each_call_of_a_link_may_fail(void **state)
{
    (void)state;
    static const char *const calls[] = {"ibv_create_qp", "ibv_modify_qp", "ibv_post_recv",
                                        "ibv_post_srq_recv", "ibv_reg_mr"};
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        for (int nth = 1; nth <= 6; nth++) {
            struct verbs_pair vp;
            verbs_pair_open(&vp, "");
            const struct weft_transport_ops *ops = vp.pair.ops;
            struct weft_link *link[2] = {NULL, NULL};
            uint8_t address[2][WEFT_LINK_ADDRESS_MAX];
            size_t len[2] = {0, 0};
            int rc = 0;
            fake_verbs_fail_call(calls[i], nth, EPERM, false);
            for (int side = 1; side >= 0 && rc == 0; side--) {
                struct weft_link_opts opts = {.role = side ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE};
                rc = ops->link_open(vp.pair.side[side].nic, &opts, &link[side]);
                if (rc == 0)
                    len[side] = (size_t)PAIR_OK(
                        ops->link_address(link[side], address[side], sizeof address[side]));
                else
                    link[side] = NULL;
            }
            int up[2] = {WEFT_EAGAIN, WEFT_EAGAIN};
            uint64_t until = test_deadline();
            while (rc == 0 && (up[A] == WEFT_EAGAIN || up[B] == WEFT_EAGAIN) &&
                   up[A] != WEFT_ELINK && up[B] != WEFT_ELINK && weft_now() < until) {
                for (int side = 0; side < 2; side++) {
                    if (up[side] == WEFT_EAGAIN)
                        up[side] = ops->link_connect(link[side], address[!side], len[!side]);
                    if (up[side] < 0 && up[side] != WEFT_EAGAIN)
                        rc = up[side];
                    pair_poll(&vp.pair, side);
                }
            }
            fake_verbs_fail_call(calls[i], 1, 0, false);
            CHECK(rc == 0 || *weft_last_error(), "%s without a sentence", calls[i]);
            for (int side = 0; side < 2; side++)
                if (link[side])
                    ops->link_close(link[side]);
            verbs_pair_works(&vp); /* the other link does not notice */
            verbs_pair_close(&vp);
        }
    }
}

/* --- events ----------------------------------------------------------------------------------- */

static void a_port_that_comes_back_soon_costs_nothing(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "retry_ms=5000");
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 3 << 20);
    assert_int_equal(fake_verbs_port("fake0", 1, false), 0);
    verbs_pair_post(&vp, A, &cmd, 1);
    for (uint64_t until = weft_now() + 50 * 1000000ull; weft_now() < until;)
        assert_int_equal(pair_poll(&vp.pair, A), 0);
    assert_int_equal(fake_verbs_port("fake0", 1, true), 0);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmd.ctx).comp.status, 0);
    CHECK(test_differs(vp.buf[B], 3 << 20, A + 1, 0) < 0, "bytes");
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* So long, and not as long as by default. */
static void how_long_a_port_may_stay_down_can_be_said(void **state)
{
    (void)state;
    struct verbs_pair vp;
    weft_config_set("WEFT_VERBS_FLAP", "600000");
    verbs_pair_open(&vp, "retry_ms=5000");
    assert_int_equal(fake_verbs_port("fake0", 1, false), 0);
    for (uint64_t until = weft_now() + 1200 * 1000000ull; weft_now() < until;)
        for (int i = 0; i < 2; i++)
            assert_int_equal(pair_poll(&vp.pair, i), 0);
    assert_int_equal(fake_verbs_port("fake0", 1, true), 0);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

static void a_port_that_stays_down_ends_its_links(void **state)
{
    (void)state;
    for (int busy = 0; busy < 2; busy++) {
        struct verbs_pair vp;
        weft_config_set("WEFT_VERBS_FLAP", busy ? "600000" : "50");
        verbs_pair_open(&vp, "retry_ms=100");
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 3 << 20);
        fake_verbs_hold();
        if (busy)
            verbs_pair_post(&vp, A, &cmd, 1);
        assert_int_equal(fake_verbs_port("fake0", 1, false), 0);
        fake_verbs_release(-1);
        /* what is under way gives up by itself; an idle link is told of the port */
        assert_int_equal(verbs_pair_down(&vp, A), WEFT_ELINK);
        if (!busy)
            assert_int_equal(verbs_pair_down(&vp, B), WEFT_ELINK);
        assert_int_equal(fake_verbs_port("fake0", 1, true), 0);
        verbs_pair_close(&vp);
    }
}

/* The event, and nothing but the event, wakes who sleeps. */
static void a_port_that_goes_down_wakes_a_sleeper(void **state)
{
    (void)state;
    struct verbs_pair vp;
    weft_config_set("WEFT_VERBS_FLAP", "50");
    verbs_pair_open(&vp, "");
    struct weft_nic *nic = vp.pair.side[A].nic;
    struct pair_comp comp;
    int fd = WEFT_EAGAIN;
    uint64_t until = test_deadline();
    bool down = false;
    while (!pair_take(&vp.pair, A, WEFT_OP_LINK_DOWN, 0, &comp)) {
        CHECK(weft_now() < until, "the link is still up");
        fd = vp.pair.ops->wait_fd(nic);
        if (fd >= 0) {
            if (!down)
                fake_verbs_port("fake0", 1, false);
            down = true;
            CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, TEST_DEADLINE_MS) == 1,
                  "nothing wakes");
        }
        pair_poll(&vp.pair, A);
    }
    assert_int_equal(comp.comp.status, WEFT_ELINK);
    fake_verbs_port("fake0", 1, true);
    verbs_pair_close(&vp);
}

static void a_lost_device_ends_all(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 3 << 20);
    fake_verbs_hold();
    verbs_pair_post(&vp, A, &cmd, 1);
    assert_int_equal(fake_verbs_event("fake0", IBV_EVENT_DEVICE_FATAL, 0), 0);
    for (int side = 0; side < 2; side++) {
        struct weft_comp comps[8];
        int rc = 0;
        bool down = false;
        TEST_UNTIL(
            rc < 0,
            {
                rc = vp.pair.ops->poll(vp.pair.side[side].nic, comps, ARRAY_LEN(comps));
                for (int i = 0; i < rc; i++)
                    down |= comps[i].op == WEFT_OP_LINK_DOWN;
            },
            "the end of side %d", side);
        CHECK(down, "side %d heard of no link", side);
        struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
        struct weft_link *link;
        WEFT_FAILS(WEFT_ENODEV, vp.pair.ops->link_open(vp.pair.side[side].nic, &opts, &link));
    }
    fake_verbs_release(-1);
    verbs_pair_close(&vp);
}

/* Whichever queue pair fails by itself: the link goes on, or it ends at both sides. */
static void a_broken_queue_pair_is_noticed(void **state)
{
    (void)state;
    uint32_t first = 0;
    for (uint32_t k = 0; k < 6; k++) { /* two sides with three each */
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        uint32_t seen = 0, number = first;
        do
            number++;
        while (fake_verbs_event("fake0", IBV_EVENT_COMM_EST, number) != 0 || seen++ < k);
        first = number - k - 1;
        assert_int_equal(fake_verbs_event("fake0", IBV_EVENT_QP_FATAL, number), 0);
        struct weft_cmd cmds[2];
        struct pair_comp comp;
        bool down[2] = {false, false}, done[2] = {false, false};
        for (int i = 0; i < 2; i++) {
            cmds[i] = verbs_pair_cmd(&vp, i, WEFT_OP_WRITE, 0, 0, 2 << 20);
            vp.pair.ops->post(vp.pair.side[i].link, &cmds[i], 1);
        }
        uint64_t until = test_deadline();
        while (!(down[A] || done[A]) || !(down[B] || done[B])) {
            CHECK(weft_now() < until, "queue pair %u: down %d %d, done %d %d", k, down[A], down[B],
                  done[A], done[B]);
            for (int i = 0; i < 2; i++) {
                pair_poll(&vp.pair, i);
                down[i] |= pair_take(&vp.pair, i, WEFT_OP_LINK_DOWN, 0, &comp);
                done[i] |= pair_take(&vp.pair, i, WEFT_OP_WRITE, cmds[i].ctx, &comp);
            }
            if (down[A] != down[B]) /* as core does, so that the other end hears of it */
                break;
        }
        verbs_pair_close(&vp);
    }
}

/* --- many links ------------------------------------------------------------------------------- */

#define LINKS 64

/* One end of a link that a test connects by itself. */
struct end {
    struct weft_link *link;
    uint8_t address[WEFT_LINK_ADDRESS_MAX];
    size_t len;
};

/* Both ends of another link, not connected. False: there is no room for it. */
static bool open_ends(struct verbs_pair *vp, struct end ends[2])
{
    for (int side = 0; side < 2; side++) {
        struct weft_link_opts opts = {.role = side == A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
        int rc = vp->pair.ops->link_open(vp->pair.side[side].nic, &opts, &ends[side].link);
        if (rc == WEFT_ELIMIT && side == B)
            vp->pair.ops->link_close(ends[A].link);
        if (rc == WEFT_ELIMIT)
            return false;
        PAIR_OK(rc);
        ends[side].len = (size_t)PAIR_OK(vp->pair.ops->link_address(
            ends[side].link, ends[side].address, sizeof ends[side].address));
    }
    return true;
}

/* As many links as the completion queue bears, all of them busy: it never overruns. */
static void links_are_refused_before_the_queue_is_full(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_link *links[LINKS][2];
    int n = 0;
    verbs_pair_open(&vp, "max_cqe=2048");
    struct weft_link *first[2] = {vp.pair.side[A].link, vp.pair.side[B].link};
    for (; n < LINKS; n++) {
        struct end probes[2][2]; /* two: what is on its way takes some room, too */
        int found = 0;
        while (found < 2 && open_ends(&vp, probes[found]))
            found++;
        for (int i = 0; i < 2 * found; i++)
            vp.pair.ops->link_close(probes[i / 2][i % 2].link);
        for (int i = 0; i < 2; i++)
            pair_poll(&vp.pair, i);
        if (found < 2)
            break;
        pair_connect(&vp.pair);
        links[n][A] = vp.pair.side[A].link;
        links[n][B] = vp.pair.side[B].link;
    }
    CHECK(n > 2 && n < LINKS, "%d links", n);
    for (uint64_t round = 0; round < 200; round++) {
        for (int k = 0; k < n; k++) {
            struct weft_cmd cmds[2] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                                       verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 8)};
            vp.pair.ops->post(links[k][A], cmds, 2);
        }
        for (int i = 0; i < 2; i++) {
            while (pair_poll(&vp.pair, i) > 0)
                ;
            vp.pair.side[i].ncomps = 0;
        }
    }
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 2; i++)
            vp.pair.ops->link_close(links[k][i]);
    vp.pair.side[A].link = first[A];
    vp.pair.side[B].link = first[B];
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* Many links are opened before the first of them is connected: there is room for what each will post. */
static void links_that_are_not_connected_count(void **state)
{
    (void)state;
    static const char *const devices[] = {"max_cqe=512", "max_cqe=1024,srq=0", "max_cqe=4096"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        static struct end ends[LINKS][2];
        int n = 0, up = 0;
        verbs_pair_open(&vp, devices[i]);
        while (n < LINKS && open_ends(&vp, ends[n]))
            n++;
        CHECK(n > 1, "%d links", n);
        uint64_t until = test_deadline();
        while (up < 2 * n) {
            CHECK(weft_now() < until, "%d of %d ends are up, over %s", up, 2 * n, devices[i]);
            up = 0;
            for (int k = 0; k < 2 * n; k++) {
                struct end *end = &ends[k / 2][k % 2], *peer = &ends[k / 2][1 - k % 2];
                int rc = vp.pair.ops->link_connect(end->link, peer->address, peer->len);
                up += rc == 0;
                if (rc != WEFT_EAGAIN)
                    PAIR_OK(rc);
            }
            for (int side = 0; side < 2; side++)
                pair_poll(&vp.pair, side);
        }
        verbs_pair_works(&vp);
        for (int k = 0; k < 2 * n; k++)
            vp.pair.ops->link_close(ends[k / 2][k % 2].link);
        verbs_pair_works(&vp);
        /* what they had is there again when their goodbyes are said */
        for (int again = 0; again < n;) {
            CHECK(weft_now() < until, "%d links after %d were closed, over %s", again, n, devices[i]);
            for (int side = 0; side < 2; side++)
                pair_poll(&vp.pair, side);
            for (again = 0; again < n && open_ends(&vp, ends[again]);)
                again++;
            for (int k = 0; k < 2 * again; k++)
                vp.pair.ops->link_close(ends[k / 2][k % 2].link);
        }
        verbs_pair_close(&vp);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(a_refused_request_fails_alone),
        CASE(a_fatal_status_ends_the_link),
        CASE(a_request_without_an_answer_is_asked_about),
        CASE(silence_that_ends_is_forgotten),
        CASE(a_queue_pair_that_fails_without_a_word_is_asked_about),
        CASE(a_silent_refusal_has_its_reason),
        CASE(an_immediate_alone_is_not_asked_about),
        CASE(a_silent_request_that_was_executed_is_done),
        CASE(an_immediate_behind_a_silent_request_comes_once),
        CASE(what_was_not_there_is_not_the_cause),
        CASE(the_judge_knows_the_cause),
        CASE(a_wrong_request_ends_while_the_peer_suspects_its_own),
        CASE(a_fault_that_makes_no_sense_ends_the_link),
        CASE(a_request_that_always_fails_without_a_word_ends),
        CASE(a_message_that_fails_ends_the_link),
        CASE(a_lost_link_tells_last_that_it_is_lost),
        CASE(a_lost_link_that_is_closed_is_forgotten),
        CASE(a_fault_costs_nobody_else),
        CASE(a_fault_doubles_no_immediate),
        CASE(a_fault_repeats_no_write_that_was_told_of),
        CASE(a_fault_doubles_no_addition),
        CASE(a_fault_of_the_peer_in_the_middle_of_a_chain),
        CASE(a_fault_is_over_with_the_last_answer),
        CASE(a_refused_cmd_fails_once),
        CASE(a_post_that_stops_half_way_loses_nothing),
        CASE(a_piece_of_another_length_is_refused),
        CASE(a_post_that_is_never_taken_is_an_error),
        CASE(a_chunk_that_is_refused_is_posted_again_or_ends_the_cmd),
        CASE(each_call_of_open_may_fail),
        CASE(each_call_of_a_link_may_fail),
        CASE(a_port_that_comes_back_soon_costs_nothing),
        CASE(how_long_a_port_may_stay_down_can_be_said),
        CASE(a_port_that_stays_down_ends_its_links),
        CASE(a_port_that_goes_down_wakes_a_sleeper),
        CASE(a_lost_device_ends_all),
        CASE(a_broken_queue_pair_is_noticed),
        CASE(links_are_refused_before_the_queue_is_full),
        CASE(links_that_are_not_connected_count),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
