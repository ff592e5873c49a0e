/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake libibverbs does what a real one does: operations, errors, states. These cases ask for
 * nothing but verbs, so they can be shown to a device, too:
 * WEFT_VERBS_LIBRARY=libibverbs.so.1 test_fake_ibverbs.
 */
#include "ibv_rig.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#define A 0
#define B 1
#define LEN 5000 /* several packets */
#define FROM 100
#define TO 20000

static void expect_bytes(struct rig *rig, int side, size_t at, size_t len, int seed, size_t offset)
{
    CHECK(test_differs(rig->end[side].buf + at, len, (uint64_t)seed, offset) < 0,
          "the bytes at side %d are wrong", side);
}

static void post_ok(struct rig *rig, int side, struct ibv_send_wr *wr)
{
    int err = rig_post(rig, side, wr);
    CHECK(!err, "post_send: %s", strerror(err));
}

static void recv_ok(struct rig *rig, int side, uint64_t wr_id, size_t offset, uint32_t len)
{
    int err = rig_recv(rig, side, wr_id, offset, len);
    CHECK(!err, "post_recv: %s", strerror(err));
}

static void open_connected(struct rig *rig, const struct rig_opts *opts)
{
    rig_open(rig, opts);
    rig_connect(rig);
}

static struct ibv_wc expect(struct rig *rig, int side, uint64_t wr_id, enum ibv_wc_status status)
{
    struct ibv_wc wc = rig_wc(rig, side);
    CHECK(wc.wr_id == wr_id, "completion of request %" PRIu64 ", not %" PRIu64, wc.wr_id, wr_id);
    RIG_STATUS(wc, status);
    return wc;
}

/* Where Soft-RoCE does not say what the specification has: the fake has to say that. */
static void expect_or(struct rig *rig, int side, enum ibv_wc_status status,
                      enum ibv_wc_status soft_roce)
{
    struct ibv_wc wc = rig_wc(rig, side);
    if (ibv.faults || wc.status != soft_roce)
        RIG_STATUS(wc, status);
}

/* --- operations ------------------------------------------------------------------------------- */

static void a_send_fills_the_receive(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND_WITH_IMM, 1, &sge, 0);
    wr.imm_data = htonl(0x01020304);
    recv_ok(&rig, B, 2, TO, LEN + 1);
    post_ok(&rig, A, &wr);
    struct ibv_wc wc = expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_SEND);
    wc = expect(&rig, B, 2, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_RECV);
    assert_int_equal(wc.byte_len, LEN);
    assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
    assert_int_equal(ntohl(wc.imm_data), 0x01020304);
    expect_bytes(&rig, B, TO, LEN, 1, FROM);
    rig_close(&rig);
}

static void a_send_takes_from_the_shared_queue(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.srq = true});
    struct ibv_sge sge = rig_sge(&rig, B, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, B, IBV_WR_SEND, 1, &sge, 0);
    recv_ok(&rig, A, 2, TO, LEN);
    post_ok(&rig, B, &wr);
    expect(&rig, B, 1, IBV_WC_SUCCESS);
    struct ibv_wc wc = expect(&rig, A, 2, IBV_WC_SUCCESS);
    assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, 0);
    expect_bytes(&rig, A, TO, LEN, 2, FROM);
    rig_close(&rig);
}

static void a_write_is_silent_at_its_target(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    post_ok(&rig, A, &wr);
    struct ibv_wc wc = expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_WRITE);
    expect_bytes(&rig, B, TO, LEN, 1, FROM);
    expect_bytes(&rig, B, 0, TO, 2, 0);
    expect_bytes(&rig, B, TO + LEN, RIG_BYTES - TO - LEN, 2, TO + LEN);
    rig_no_wc(&rig, B);
    rig_close(&rig);
}

static void an_immediate_comes_after_its_write(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    for (int bytes = 0; bytes < 2; bytes++) {
        struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE_WITH_IMM, 1, bytes ? &sge : NULL,
                                       TO);
        wr.imm_data = htonl(77);
        recv_ok(&rig, B, 2, 0, 0);
        post_ok(&rig, A, &wr);
        struct ibv_wc wc = expect(&rig, B, 2, IBV_WC_SUCCESS);
        assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        assert_int_equal(wc.byte_len, bytes ? LEN : 0);
        assert_int_equal(ntohl(wc.imm_data), 77);
        assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
        if (bytes)
            expect_bytes(&rig, B, TO, LEN, 1, FROM);
        expect(&rig, A, 1, IBV_WC_SUCCESS);
    }
    rig_close(&rig);
}

static void a_read_fetches(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, TO, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_READ, 1, &sge, FROM);
    post_ok(&rig, A, &wr);
    struct ibv_wc wc = expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_READ);
    expect_bytes(&rig, A, TO, LEN, 2, FROM);
    rig_close(&rig);
}

static void an_addition_returns_what_was_there(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    uint64_t *word = (uint64_t *)(void *)(rig.end[B].buf + TO), old = *word;
    struct ibv_sge sge = rig_sge(&rig, A, 8, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, TO);
    wr.wr.atomic.compare_add = 5;
    post_ok(&rig, A, &wr);
    struct ibv_wc wc = expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_FETCH_ADD);
    assert_true(*word == old + 5);
    assert_memory_equal(rig.end[A].buf + 8, &old, 8);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.compare_add = old + 5;
    wr.wr.atomic.swap = 9;
    post_ok(&rig, A, &wr);
    wc = expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_COMP_SWAP);
    assert_true(*word == 9);
    rig_close(&rig);
}

static void pieces_are_gathered_and_scattered(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.sge = 3});
    struct ibv_sge from[] = {rig_sge(&rig, A, 0, 10), rig_sge(&rig, A, 10, 3000),
                             rig_sge(&rig, A, 3010, 7)};
    struct ibv_sge to[] = {rig_sge(&rig, B, TO, 17), rig_sge(&rig, B, TO + 17, 2000),
                           rig_sge(&rig, B, TO + 2017, 1000)};
    struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = to, .num_sge = 3}, *bad;
    assert_int_equal(ibv_post_recv(rig.end[B].qp, &recv, &bad), 0);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, 1, from, 0);
    wr.num_sge = 3;
    post_ok(&rig, A, &wr);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    expect(&rig, B, 2, IBV_WC_SUCCESS);
    expect_bytes(&rig, B, TO, 3017, 1, 0);
    rig_close(&rig);
}

static void inline_payload_may_change_after_the_post(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.inlined = 64});
    uint8_t local[64];
    test_fill(local, sizeof local, 3, 0);
    struct ibv_sge sge = {(uintptr_t)local, sizeof local, 0}; /* not registered */
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    wr.send_flags |= IBV_SEND_INLINE;
    post_ok(&rig, A, &wr);
    memset(local, 0, sizeof local);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    expect_bytes(&rig, B, TO, sizeof local, 3, 0);
    rig_close(&rig);
}

static void only_what_is_signaled_completes(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
    struct ibv_send_wr wr[4];
    for (size_t i = 0; i < ARRAY_LEN(wr); i++) {
        wr[i] = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, i, &sge, TO + 8 * i);
        wr[i].send_flags = i == 3 ? IBV_SEND_SIGNALED : 0;
        wr[i].next = i == 3 ? NULL : &wr[i + 1];
    }
    post_ok(&rig, A, wr);
    expect(&rig, A, 3, IBV_WC_SUCCESS);
    rig_no_wc(&rig, A);
    rig_close(&rig);
}

static void all_completes_if_the_queue_pair_says_so(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.sig_all = true});
    struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    wr.send_flags = 0;
    post_ok(&rig, A, &wr);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    rig_close(&rig);
}

static void a_send_waits_for_a_receive(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, 1, &sge, 0);
    post_ok(&rig, A, &wr);
    test_sleep_ms(20);
    rig_no_wc(&rig, A);
    recv_ok(&rig, B, 2, TO, LEN);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    expect(&rig, B, 2, IBV_WC_SUCCESS);
    expect_bytes(&rig, B, TO, LEN, 1, FROM);
    rig_close(&rig);
}

/* --- errors ----------------------------------------------------------------------------------- */

/* The request ends so, and both queue pairs are in the error state. */
static void fails_at_both(struct rig *rig, struct ibv_send_wr *wr, enum ibv_wc_status status)
{
    wr->send_flags &= ~(unsigned int)IBV_SEND_SIGNALED; /* an error completes in any case */
    recv_ok(rig, B, 50, TO, 8);
    recv_ok(rig, A, 51, TO, 8);
    post_ok(rig, A, wr);
    expect(rig, A, wr->wr_id, status);
    expect(rig, A, 51, IBV_WC_WR_FLUSH_ERR);
    struct ibv_wc wc = rig_wc(rig, B);
    assert_int_equal(wc.wr_id, 50);
    assert_int_not_equal(wc.status, IBV_WC_SUCCESS);
    struct ibv_send_wr late = *wr;
    late.wr_id = 52;
    post_ok(rig, A, &late);
    expect(rig, A, 52, IBV_WC_WR_FLUSH_ERR);
}

static void remote_keys_are_checked(void **state)
{
    (void)state;
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (size_t i = 0; i < ARRAY_LEN(opcodes); i++) {
        for (int what = 0; what < 3; what++) {
            struct rig rig;
            int writes = IBV_ACCESS_LOCAL_WRITE;
            open_connected(&rig, &(struct rig_opts){.access = what == 2 ? writes : 0});
            struct ibv_sge sge = rig_sge(&rig, A, 8, 8);
            struct ibv_send_wr wr = rig_wr(&rig, A, opcodes[i], 1, &sge, RIG_BYTES - 8);
            bool atomic = opcodes[i] == IBV_WR_ATOMIC_FETCH_AND_ADD;
            uint32_t *key = atomic ? &wr.wr.atomic.rkey : &wr.wr.rdma.rkey;
            uint64_t *addr = atomic ? &wr.wr.atomic.remote_addr : &wr.wr.rdma.remote_addr;
            *key += what == 0 ? 0x100 : 0;
            *addr += what == 1 ? 8 : 0;
            fails_at_both(&rig, &wr, IBV_WC_REM_ACCESS_ERR);
            expect_bytes(&rig, B, 0, RIG_BYTES, 2, 0);
            rig_close(&rig);
        }
    }
}

static void a_deregistered_key_is_refused(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct rig_end *b = &rig.end[B];
    struct ibv_sge sge = rig_sge(&rig, A, 8, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    struct ibv_mr *other = ibv.reg_mr(b->pd, b->buf, 4096, IBV_ACCESS_LOCAL_WRITE);
    assert_int_equal(ibv.dereg_mr(b->mr), 0);
    b->mr = other;
    fails_at_both(&rig, &wr, IBV_WC_REM_ACCESS_ERR);
    rig_close(&rig);
}

static void local_keys_are_checked(void **state)
{
    (void)state;
    for (int read = 0; read < 2; read++) {
        struct rig rig;
        open_connected(&rig, NULL);
        struct rig_end *a = &rig.end[A];
        struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
        struct ibv_mr *plain = ibv.reg_mr(a->pd, a->buf, RIG_BYTES, IBV_ACCESS_REMOTE_READ);
        sge.lkey = read ? plain->lkey : sge.lkey + 0x100;
        struct ibv_send_wr wr = rig_wr(&rig, A, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 1,
                                       &sge, TO);
        post_ok(&rig, A, &wr);
        expect_or(&rig, A, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(ibv.dereg_mr(plain), 0);
        rig_close(&rig);
    }
}

static void the_queue_pair_has_to_allow_it(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.qp_access = RIG_NONE});
    struct ibv_sge sge = rig_sge(&rig, A, 8, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    fails_at_both(&rig, &wr, IBV_WC_REM_INV_REQ_ERR);
    expect_bytes(&rig, B, 0, RIG_BYTES, 2, 0);
    rig_close(&rig);
}

static void a_message_has_to_fit(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, 1, &sge, 0);
    recv_ok(&rig, B, 2, TO, LEN - 1);
    post_ok(&rig, A, &wr);
    expect_or(&rig, B, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR);
    expect_or(&rig, A, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
    rig_close(&rig);
}

static void a_receiver_that_is_not_ready_ends_it(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.rnr_retry = RIG_NONE});
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, 1, &sge, 0);
    post_ok(&rig, A, &wr);
    expect(&rig, A, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    rig_close(&rig);
}

static void a_peer_that_is_gone_ends_it(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    assert_int_equal(rig_to(&rig, B, IBV_QPS_RESET), 0);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, LEN);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    wr.send_flags = 0;
    post_ok(&rig, A, &wr);
    wr.wr_id = 2;
    post_ok(&rig, A, &wr);
    expect(&rig, A, 1, IBV_WC_RETRY_EXC_ERR);
    expect(&rig, A, 2, IBV_WC_WR_FLUSH_ERR);
    expect_bytes(&rig, B, 0, RIG_BYTES, 2, 0);
    rig_close(&rig);
}

static void a_peer_that_expects_other_packets_does_not_answer(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.psn_off = (1 << 24) - 100});
    struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    post_ok(&rig, A, &wr);
    expect(&rig, A, 1, IBV_WC_RETRY_EXC_ERR);
    expect_bytes(&rig, B, 0, RIG_BYTES, 2, 0);
    rig_close(&rig);
}

/* --- states ----------------------------------------------------------------------------------- */

static void a_failed_pair_can_be_reset(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, 8, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    wr.wr.rdma.rkey += 0x100;
    post_ok(&rig, A, &wr);
    expect(&rig, A, 1, IBV_WC_REM_ACCESS_ERR);
    for (int side = 0; side < 2; side++)
        assert_int_equal(rig_to(&rig, side, IBV_QPS_RESET), 0);
    rig_connect(&rig);
    wr.wr_id = 2;
    wr.wr.rdma.rkey -= 0x100;
    post_ok(&rig, A, &wr);
    expect(&rig, A, 2, IBV_WC_SUCCESS);
    expect_bytes(&rig, B, TO, 8, 1, 8);
    rig_close(&rig);
}

static void the_error_state_flushes_in_order(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
    for (uint64_t i = 0; i < 3; i++) {
        struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, i, &sge, 0); /* no receive at B */
        recv_ok(&rig, A, 10 + i, TO, 8);
        post_ok(&rig, A, &wr);
    }
    assert_int_equal(rig_to(&rig, A, IBV_QPS_ERR), 0);
    uint64_t send = 0, recv = 10;
    while (send < 3 || recv < 13) {
        struct ibv_wc wc = rig_wc(&rig, A);
        RIG_STATUS(wc, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(wc.wr_id, wc.wr_id < 10 ? send++ : recv++);
    }
    rig_no_wc(&rig, A);
    rig_close(&rig);
}

/* The mask of each step, with one bit too few. */
static void each_attribute_is_needed(void **state)
{
    (void)state;
    static const struct {
        enum ibv_qp_state to;
        int mask;
    } steps[] = {
        {IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
        {IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
        {IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC},
    };
    int (*const proper[])(struct rig *, int) = {rig_init, rig_rtr, rig_rts};
    struct rig rig;
    rig_open(&rig, NULL);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct ibv_qp_attr attr = {.qp_state = steps[i].to,
                                   .port_num = 1,
                                   .path_mtu = IBV_MTU_256,
                                   .ah_attr = {.port_num = 1}};
        for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
            int mask = (steps[i].mask ^ bit) | IBV_QP_STATE;
            bool allowed = (i == 1 && (bit == IBV_QP_ACCESS_FLAGS || bit == IBV_QP_PKEY_INDEX ||
                                       bit == IBV_QP_ALT_PATH)) ||
                           (i == 2 && bit != IBV_QP_CAP && !(steps[i].mask & bit));
            if (bit == IBV_QP_STATE || allowed)
                continue;
            int err = ibv.modify_qp(rig.end[A].qp, &attr, mask);
            CHECK(err == EINVAL, "step %zu with bit 0x%x changed: %d", i, (unsigned)bit, err);
        }
        assert_int_equal(proper[i](&rig, A), 0);
    }
    rig_forgive();
    rig_close(&rig);
}

static void steps_cannot_be_skipped(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, NULL);
    assert_int_equal(rig_rtr(&rig, A), EINVAL);
    assert_int_equal(rig_rts(&rig, A), EINVAL);
    assert_int_equal(rig_init(&rig, A), 0);
    assert_int_equal(rig_rts(&rig, A), EINVAL);
    assert_int_equal(rig_rtr(&rig, A), 0);
    assert_int_equal(rig_init(&rig, A), EINVAL);
    assert_int_equal(rig_rts(&rig, A), 0);
    assert_int_equal(rig_rtr(&rig, A), EINVAL);
    rig_forgive();
    rig_close(&rig);
}

/* --- events ----------------------------------------------------------------------------------- */

static bool readable(int fd, int ms)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, ms) == 1;
}

static void an_armed_queue_raises_one_event(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct rig_end *a = &rig.end[A];
    struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, TO);
    assert_int_equal(ibv_req_notify_cq(a->cq, 0), 0);
    assert_false(readable(a->channel->fd, 0));
    post_ok(&rig, A, &wr);
    post_ok(&rig, A, &wr);
    assert_true(readable(a->channel->fd, TEST_DEADLINE_MS));
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    assert_int_equal(ibv.get_cq_event(a->channel, &cq, &context), 0);
    assert_ptr_equal(cq, a->cq);
    assert_ptr_equal(context, a);
    ibv.ack_cq_events(cq, 1);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    post_ok(&rig, A, &wr); /* not armed */
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_false(readable(a->channel->fd, 20));
    int flags = fcntl(a->channel->fd, F_GETFL);
    assert_int_equal(fcntl(a->channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
    assert_int_equal(ibv.get_cq_event(a->channel, &cq, &context), -1);
    assert_int_equal(errno, EAGAIN);
    rig_close(&rig);
}

static void solicited_events_are_for_solicited_messages(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, NULL);
    struct rig_end *b = &rig.end[B];
    struct ibv_sge sge = rig_sge(&rig, A, FROM, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, 1, &sge, 0);
    assert_int_equal(ibv_req_notify_cq(b->cq, 1), 0);
    for (int solicited = 0; solicited < 2; solicited++) {
        recv_ok(&rig, B, 2, TO, 8);
        wr.send_flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0);
        post_ok(&rig, A, &wr);
        expect(&rig, A, 1, IBV_WC_SUCCESS);
        expect(&rig, B, 2, IBV_WC_SUCCESS);
        CHECK(readable(b->channel->fd, solicited ? TEST_DEADLINE_MS : 20) == solicited,
              "solicited %d: event %d", solicited, !solicited);
    }
    struct ibv_cq *cq;
    void *context;
    assert_int_equal(ibv.get_cq_event(b->channel, &cq, &context), 0);
    ibv.ack_cq_events(cq, 1);
    rig_close(&rig);
}

static void a_pair_with_a_shared_queue_says_that_it_took_its_last(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, &(struct rig_opts){.srq = true});
    recv_ok(&rig, A, 1, TO, 8);
    assert_int_equal(rig_to(&rig, A, IBV_QPS_ERR), 0);
    struct ibv_async_event event = rig_event(&rig, A);
    assert_int_equal(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    assert_ptr_equal(event.element.qp, rig.end[A].qp);
    rig_no_wc(&rig, A); /* what is in the shared queue stays there */
    rig_close(&rig);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void registrations_are_checked(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, NULL);
    struct rig_end *a = &rig.end[A];
    assert_null(ibv.reg_mr(a->pd, a->buf, 0, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv.reg_mr(a->pd, a->buf, 64, IBV_ACCESS_REMOTE_WRITE));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv.reg_mr(a->pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EFAULT);
    static const char constant[4096] __attribute__((aligned(4096))) = {1};
    union {
        const char *from;
        void *to;
    } of = {constant};
    assert_null(ibv.reg_mr(a->pd, of.to, sizeof constant, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EFAULT);
    struct ibv_mr *mr = ibv.reg_mr_iova2(a->pd, a->buf, 4096, (uintptr_t)a->buf,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    assert_non_null(mr);
    assert_int_equal(ibv.dereg_mr(mr), 0);
    rig_forgive();
    rig_close(&rig);
}

static void what_is_in_use_cannot_be_destroyed(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, &(struct rig_opts){.srq = true});
    struct rig_end *a = &rig.end[A];
    assert_int_equal(ibv.dealloc_pd(a->pd), EBUSY);
    assert_int_equal(ibv.destroy_cq(a->cq), EBUSY);
    assert_int_equal(ibv.destroy_srq(a->srq), EBUSY);
    assert_int_equal(ibv.destroy_comp_channel(a->channel), EBUSY);
    rig_forgive();
    rig_close(&rig);
}

static void what_a_device_cannot_do_is_refused(void **state)
{
    (void)state;
    struct rig rig;
    struct ibv_device_attr attr;
    rig_open(&rig, NULL);
    struct rig_end *a = &rig.end[A];
    assert_int_equal(ibv.query_device(a->context, &attr), 0);
    struct ibv_qp_init_attr init = {
        .send_cq = a->cq, .recv_cq = a->cq, .cap = {4, 4, 1, 1, 1 << 20}, .qp_type = IBV_QPT_RC};
    assert_null(ibv.create_qp(a->pd, &init)); /* inline */
    init.cap = (struct ibv_qp_cap){4, 4, (uint32_t)attr.max_sge + 1, 1, 0};
    assert_null(ibv.create_qp(a->pd, &init));
    init.cap = (struct ibv_qp_cap){(uint32_t)attr.max_qp_wr + 1, 4, 1, 1, 0};
    assert_null(ibv.create_qp(a->pd, &init));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv.create_cq(a->context, attr.max_cqe + 1, NULL, NULL, 0));
    assert_int_equal(errno, EINVAL);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_send_fills_the_receive),
        cmocka_unit_test(a_send_takes_from_the_shared_queue),
        cmocka_unit_test(a_write_is_silent_at_its_target),
        cmocka_unit_test(an_immediate_comes_after_its_write),
        cmocka_unit_test(a_read_fetches),
        cmocka_unit_test(an_addition_returns_what_was_there),
        cmocka_unit_test(pieces_are_gathered_and_scattered),
        cmocka_unit_test(inline_payload_may_change_after_the_post),
        cmocka_unit_test(only_what_is_signaled_completes),
        cmocka_unit_test(all_completes_if_the_queue_pair_says_so),
        cmocka_unit_test(a_send_waits_for_a_receive),
        cmocka_unit_test(remote_keys_are_checked),
        cmocka_unit_test(a_deregistered_key_is_refused),
        cmocka_unit_test(local_keys_are_checked),
        cmocka_unit_test(the_queue_pair_has_to_allow_it),
        cmocka_unit_test(a_message_has_to_fit),
        cmocka_unit_test(a_receiver_that_is_not_ready_ends_it),
        cmocka_unit_test(a_peer_that_is_gone_ends_it),
        cmocka_unit_test(a_peer_that_expects_other_packets_does_not_answer),
        cmocka_unit_test(a_failed_pair_can_be_reset),
        cmocka_unit_test(the_error_state_flushes_in_order),
        cmocka_unit_test(each_attribute_is_needed),
        cmocka_unit_test(steps_cannot_be_skipped),
        cmocka_unit_test(an_armed_queue_raises_one_event),
        cmocka_unit_test(solicited_events_are_for_solicited_messages),
        cmocka_unit_test(a_pair_with_a_shared_queue_says_that_it_took_its_last),
        cmocka_unit_test(registrations_are_checked),
        cmocka_unit_test(what_is_in_use_cannot_be_destroyed),
        cmocka_unit_test(what_a_device_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
