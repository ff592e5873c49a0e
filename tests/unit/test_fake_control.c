/* SPDX-License-Identifier: Apache-2.0 */
/* The fake libibverbs does what only it can: hold requests, fail on demand, raise events, be a
 * device of another kind, and notice misuse. */
#include "ibv_rig.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#define A 0
#define B 1

static int reset(void **state)
{
    (void)state;
    return fake_verbs_reset();
}

static void open_connected(struct rig *rig, const char *config, const struct rig_opts *opts)
{
    assert_int_equal(fake_verbs_configure(config), 0);
    rig_open(rig, opts);
    rig_connect(rig);
}

static int post(struct rig *rig, enum ibv_wr_opcode opcode, uint64_t wr_id, unsigned int flags)
{
    struct ibv_sge sge = rig_sge(rig, A, 64, 8);
    struct ibv_send_wr wr = rig_wr(rig, A, opcode, wr_id, &sge, 128);
    wr.send_flags = flags;
    return rig_post(rig, A, &wr);
}

static int post_write(struct rig *rig, uint64_t wr_id)
{
    return post(rig, IBV_WR_RDMA_WRITE, wr_id, IBV_SEND_SIGNALED);
}

static void expect(struct rig *rig, int side, uint64_t wr_id, enum ibv_wc_status status)
{
    struct ibv_wc wc = rig_wc(rig, side);
    CHECK(wc.wr_id == wr_id, "completion of request %" PRIu64 ", not %" PRIu64, wc.wr_id, wr_id);
    RIG_STATUS(wc, status);
}

/* So many faults since the last look, and one of them says this. */
static void expect_faults(int n, const char *words)
{
    char text[4096];
    int seen = fake_verbs_faults(text, sizeof text);
    CHECK(seen == n, "%d faults, not %d:\n%s", seen, n, text);
    CHECK(strstr(text, words), "no fault says '%s':\n%s", words, text);
    fake_verbs_forgive();
}

/* --- when things happen ----------------------------------------------------------------------- */

static void held_requests_wait(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    fake_verbs_hold();
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(post_write(&rig, i), 0);
    rig_no_wc(&rig, A);
    assert_int_equal(fake_verbs_waiting(), 4);
    assert_int_equal(fake_verbs_release(1), 1);
    expect(&rig, A, 0, IBV_WC_SUCCESS);
    rig_no_wc(&rig, A);
    assert_int_equal(fake_verbs_release(-1), 3);
    for (uint64_t i = 1; i < 4; i++)
        expect(&rig, A, i, IBV_WC_SUCCESS);
    assert_int_equal(post_write(&rig, 9), 0);
    expect(&rig, A, 9, IBV_WC_SUCCESS);
    rig_close(&rig);
}

static void held_answers_are_lost_with_the_pair(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    fake_verbs_hold_acks(true);
    memset(rig.end[B].buf + 128, 0, 8);
    assert_int_equal(post_write(&rig, 1), 0);
    assert_true(test_nonzero(rig.end[B].buf + 128, 8) >= 0);
    rig_no_wc(&rig, A);
    fake_verbs_hold_acks(false);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    fake_verbs_hold_acks(true);
    assert_int_equal(post_write(&rig, 2), 0);
    assert_int_equal(rig_to(&rig, A, IBV_QPS_ERR), 0);
    expect(&rig, A, 2, IBV_WC_WR_FLUSH_ERR);
    rig_close(&rig);
}

static void a_port_that_is_down_drops_all(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "retry_polls=3", NULL);
    assert_int_equal(fake_verbs_port("fake0", 1, false), 0);
    struct ibv_async_event event = rig_event(&rig, A);
    assert_int_equal(event.event_type, IBV_EVENT_PORT_ERR);
    assert_int_equal(event.element.port_num, 1);
    assert_int_equal(post_write(&rig, 1), 0);
    assert_int_equal(post_write(&rig, 2), 0);
    rig_no_wc(&rig, A);
    rig_no_wc(&rig, A);
    expect(&rig, A, 1, IBV_WC_RETRY_EXC_ERR);
    expect(&rig, A, 2, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(fake_verbs_port("fake0", 1, true), 0);
    event = rig_event(&rig, B);
    assert_int_equal(event.event_type, IBV_EVENT_PORT_ERR);
    event = rig_event(&rig, B);
    assert_int_equal(event.event_type, IBV_EVENT_PORT_ACTIVE);
    rig_close(&rig);
}

static void a_port_that_comes_back_in_time_was_not_noticed(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "retry_polls=3", NULL);
    fake_verbs_port("fake0", 1, false);
    assert_int_equal(post_write(&rig, 1), 0);
    rig_no_wc(&rig, A);
    fake_verbs_port("fake0", 1, true);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    rig_close(&rig);
}

/* Nobody polls: the completion has to raise its event by itself. */
static void giving_up_wakes_a_sleeper(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "retry_ms=20", NULL);
    assert_int_equal(rig_to(&rig, B, IBV_QPS_ERR), 0);
    assert_int_equal(ibv_req_notify_cq(rig.end[A].cq, 0), 0);
    assert_int_equal(post_write(&rig, 1), 0);
    struct pollfd fd = {.fd = rig.end[A].channel->fd, .events = POLLIN};
    assert_int_equal(poll(&fd, 1, TEST_DEADLINE_MS), 1);
    struct ibv_cq *cq;
    void *context;
    assert_int_equal(ibv.get_cq_event(rig.end[A].channel, &cq, &context), 0);
    ibv.ack_cq_events(cq, 1);
    expect(&rig, A, 1, IBV_WC_RETRY_EXC_ERR);
    rig_close(&rig);
}

/* --- faults on demand ------------------------------------------------------------------------- */

static void a_post_fails_half_way(void **state)
{
    (void)state;
    struct rig rig;
    struct ibv_send_wr wr[4], *bad = NULL;
    open_connected(&rig, "", NULL);
    struct ibv_sge sge = rig_sge(&rig, A, 64, 8);
    for (size_t i = 0; i < ARRAY_LEN(wr); i++) {
        wr[i] = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, i, &sge, 128);
        wr[i].next = i == 3 ? NULL : &wr[i + 1];
    }
    fake_verbs_fail_post(2, 3, ENOMEM);
    assert_int_equal(ibv_post_send(rig.end[A].qp, wr, &bad), 0);
    assert_int_equal(post_write(&rig, 10), 0); /* has no third request: does not count */
    for (uint64_t i = 0; i < 5; i++)
        expect(&rig, A, i == 4 ? 10 : i, IBV_WC_SUCCESS);
    assert_int_equal(ibv_post_send(rig.end[A].qp, wr, &bad), ENOMEM);
    assert_ptr_equal(bad, &wr[2]);
    expect(&rig, A, 0, IBV_WC_SUCCESS);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    rig_no_wc(&rig, A);
    rig_close(&rig);
}

static void a_request_fails_with_any_status(void **state)
{
    (void)state;
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_GENERAL_ERR; status++) {
        for (int delivered = 0; delivered < 2; delivered++) {
            struct rig rig;
            open_connected(&rig, "", NULL);
            fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 2, (enum ibv_wc_status)status, delivered);
            assert_int_equal(post_write(&rig, 1), 0);
            expect(&rig, A, 1, IBV_WC_SUCCESS);
            assert_int_equal(post(&rig, IBV_WR_RDMA_READ, 2, IBV_SEND_SIGNALED), 0);
            expect(&rig, A, 2, IBV_WC_SUCCESS);
            memset(rig.end[B].buf + 128, 0, 8);
            assert_int_equal(post(&rig, IBV_WR_RDMA_WRITE, 3, 0), 0);
            expect(&rig, A, 3, (enum ibv_wc_status)status);
            assert_int_equal(test_nonzero(rig.end[B].buf + 128, 8) >= 0, delivered);
            rig_close(&rig);
        }
    }
}

static void a_call_fails(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    struct rig_end *a = &rig.end[A];
    fake_verbs_fail_call("ibv_reg_mr", 2, ENOMEM, false);
    for (int i = 0; i < 3; i++) {
        struct ibv_mr *mr = ibv.reg_mr(a->pd, a->buf, 8, 0);
        CHECK(!mr == (i == 1), "call %d", i);
        assert_true(mr || errno == ENOMEM);
        assert_true(!mr || !ibv.dereg_mr(mr));
    }
    fake_verbs_fail_call("ibv_alloc_pd", 1, EMFILE, true);
    for (int i = 0; i < 2; i++)
        assert_null(ibv.alloc_pd(a->context));
    fake_verbs_fail_call("ibv_alloc_pd", 1, 0, false);
    struct ibv_pd *pd = ibv.alloc_pd(a->context);
    assert_non_null(pd);
    assert_int_equal(ibv.dealloc_pd(pd), 0);
    rig_close(&rig);
}

static void a_fatal_device_flushes_and_refuses(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    fake_verbs_hold();
    assert_int_equal(post_write(&rig, 1), 0);
    assert_int_equal(fake_verbs_event("fake0", IBV_EVENT_DEVICE_FATAL, 0), 0);
    expect(&rig, A, 1, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(rig_event(&rig, B).event_type, IBV_EVENT_DEVICE_FATAL);
    assert_null(ibv.reg_mr(rig.end[A].pd, rig.end[A].buf, 8, 0));
    assert_int_equal(errno, EIO);
    assert_int_equal(rig_to(&rig, A, IBV_QPS_RESET), EIO);
    rig_close(&rig);
}

static void events_of_a_pair_name_it(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    assert_int_equal(fake_verbs_event("fake0", IBV_EVENT_QP_FATAL, rig.end[A].qp->qp_num), 0);
    struct ibv_async_event event = rig_event(&rig, A);
    assert_int_equal(event.event_type, IBV_EVENT_QP_FATAL);
    assert_ptr_equal(event.element.qp, rig.end[A].qp);
    assert_int_equal(post_write(&rig, 1), 0);
    expect(&rig, A, 1, IBV_WC_WR_FLUSH_ERR);
    rig_close(&rig);
}

/* --- devices of other kinds ------------------------------------------------------------------- */

static void infiniband_needs_no_gid(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "link=ib,devices=2", &(struct rig_opts){.device = {0, 1}});
    assert_false(rig.end[A].ethernet);
    assert_int_not_equal(rig.end[A].lid, rig.end[B].lid);
    assert_int_equal(post_write(&rig, 1), 0);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    rig_close(&rig);
}

static void two_devices_reach_each_other(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "devices=2", &(struct rig_opts){.device = {0, 1}});
    assert_int_equal(post_write(&rig, 1), 0);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    fake_verbs_port("fake1", 1, false);
    assert_int_equal(post_write(&rig, 2), 0);
    expect(&rig, A, 2, IBV_WC_RETRY_EXC_ERR);
    rig_close(&rig);
}

static void a_wrong_gid_leads_nowhere(void **state)
{
    (void)state;
    struct rig rig;
    assert_int_equal(fake_verbs_configure("retry_ms=1"), 0);
    rig_open(&rig, NULL);
    rig.end[B].gid.raw[15] ^= 1;
    rig_connect(&rig);
    assert_int_equal(post_write(&rig, 1), 0);
    expect(&rig, A, 1, IBV_WC_RETRY_EXC_ERR);
    rig_close(&rig);
}

static void a_pair_takes_packets_of_its_peer_alone(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "retry_ms=1", &(struct rig_opts){.qpn_off = 1});
    assert_int_equal(post_write(&rig, 1), 0);
    expect(&rig, A, 1, IBV_WC_RETRY_EXC_ERR);
    rig_close(&rig);
}

static void the_gid_table_is_as_configured(void **state)
{
    (void)state;
    struct ibv_gid_entry entries[32];
    struct rig rig;
    open_connected(&rig, "ports=2,gid=link1+zero+ipv6v2+ipv4v2", NULL);
    ssize_t n = ibv.query_gid_table(rig.end[A].context, entries, ARRAY_LEN(entries), 0,
                                    sizeof *entries);
    assert_int_equal(n, 6);
    assert_int_equal(entries[0].gid_type, IBV_GID_TYPE_ROCE_V1);
    assert_int_equal(entries[1].gid_index, 2);
    assert_int_equal(entries[1].gid.raw[0], 0x20);
    assert_int_equal(entries[5].port_num, 2);
    assert_int_equal(entries[5].gid.raw[10], 0xff);
    union ibv_gid gid;
    assert_int_equal(ibv.query_gid(rig.end[A].context, 1, 1, &gid), 0);
    assert_int_equal(test_nonzero(&gid, sizeof gid), -1);
    assert_int_equal(fake_verbs_set_gid("fake0", 1, 1, "2001::1", IBV_GID_TYPE_ROCE_V2), 0);
    assert_int_equal(ibv.query_gid(rig.end[A].context, 1, 1, &gid), 0);
    assert_int_equal(gid.raw[15], 1);
    rig_close(&rig);
}

static void what_is_missing_is_refused(void **state)
{
    (void)state;
    struct rig rig;
    struct ibv_device_attr attr;
    open_connected(&rig, "inline=0,atomics=none,srq=0,max_rd_atom=0,dmabuf=0,max_mr_size=64K",
                   &(struct rig_opts){.rd_atom = RIG_NONE});
    struct rig_end *a = &rig.end[A];
    assert_int_equal(ibv.query_device(a->context, &attr), 0);
    assert_int_equal(attr.atomic_cap, IBV_ATOMIC_NONE);
    assert_int_equal(attr.max_srq, 0);
    assert_int_equal(attr.max_qp_rd_atom, 0);
    assert_int_equal(attr.max_mr_size, 65536);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    assert_null(ibv.create_srq(a->pd, &srq));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_null(ibv.reg_mr(a->pd, a->buf, RIG_BYTES + 1, IBV_ACCESS_LOCAL_WRITE));
    assert_null(ibv.reg_dmabuf_mr(a->pd, 0, 8, 0, -1, 0));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_int_equal(post(&rig, IBV_WR_RDMA_READ, 1, 0), 0);
    expect(&rig, A, 1, IBV_WC_REM_INV_REQ_ERR);
    rig_close(&rig);
}

static void a_dmabuf_is_reached(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    struct rig_end *b = &rig.end[B];
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 16384), 0);
    uint8_t *map = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    assert_null(ibv.reg_dmabuf_mr(b->pd, 8192, 16384, 0, fd, access));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv.reg_dmabuf_mr(b->pd, 0, 4096, 0, -1, access));
    assert_int_equal(errno, EBADF);
    struct ibv_mr *mr = ibv.reg_dmabuf_mr(b->pd, 4100, 4096, 0x7000, fd, access);
    assert_non_null(mr);
    struct ibv_sge sge = rig_sge(&rig, A, 0, 8);
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_RDMA_WRITE, 1, &sge, 0);
    wr.wr.rdma.remote_addr = 0x7010;
    wr.wr.rdma.rkey = mr->rkey;
    assert_int_equal(rig_post(&rig, A, &wr), 0);
    expect(&rig, A, 1, IBV_WC_SUCCESS);
    assert_memory_equal(map + 4116, rig.end[A].buf, 8);
    assert_int_equal(ibv.dereg_mr(mr), 0);
    munmap(map, 16384);
    close(fd);
    rig_close(&rig);
}

static void the_old_library_lacks_what_is_new(void **state)
{
    (void)state;
    void *lib = dlopen(FAKE_IBVERBS_OLD, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(lib);
    assert_null(dlsym(lib, "ibv_reg_mr_iova2"));
    assert_null(dlsym(lib, "ibv_reg_dmabuf_mr"));
    assert_null(dlsym(lib, "_ibv_query_gid_table"));
    assert_non_null(dlsym(lib, "ibv_reg_mr"));
    dlclose(lib);
}

static void only_what_parses_is_taken(void **state)
{
    (void)state;
    static const char *const wrong[] = {"devices",   "devices=x", "devices=99", "inline=1Q",
                                        "nothing=1", "link=wifi", "mtu=1500",   "ports=0"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        CHECK(fake_verbs_configure(wrong[i]) == EINVAL, "'%s' was taken", wrong[i]);
    struct rig rig;
    open_connected(&rig, "", NULL);
    assert_int_equal(fake_verbs_configure("devices=2"), EBUSY);
    rig_close(&rig);
}

/* --- misuse is noticed ------------------------------------------------------------------------ */

static void a_full_send_queue_refuses(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", &(struct rig_opts){.depth = 4});
    /* they have happened long ago, but nobody could know */
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(post(&rig, IBV_WR_RDMA_WRITE, i, i == 2 ? IBV_SEND_SIGNALED : 0), 0);
    assert_int_equal(post_write(&rig, 4), ENOMEM);
    expect_faults(1, "more than 4 requests");
    expect(&rig, A, 2, IBV_WC_SUCCESS);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(post(&rig, IBV_WR_RDMA_WRITE, i, 0), 0);
    assert_int_equal(post_write(&rig, 4), ENOMEM);
    expect_faults(1, "more than 4 requests");
    rig_close(&rig);
}

static void a_full_receive_queue_refuses(void **state)
{
    (void)state;
    for (int srq = 0; srq < 2; srq++) {
        struct rig rig;
        open_connected(&rig, "", &(struct rig_opts){.depth = 4, .srq = srq});
        for (uint64_t i = 0; i < 4; i++)
            assert_int_equal(rig_recv(&rig, A, i, 0, 8), 0);
        assert_int_equal(rig_recv(&rig, A, 4, 0, 8), ENOMEM);
        expect_faults(1, "more than 4 receives");
        rig_close(&rig);
    }
}

static void a_completion_queue_overruns(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", &(struct rig_opts){.cqe = 2});
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(post_write(&rig, i), 0);
    expect_faults(1, "2 entries overran");
    struct ibv_async_event event = rig_event(&rig, A);
    assert_int_equal(event.event_type, IBV_EVENT_CQ_ERR);
    assert_ptr_equal(event.element.cq, rig.end[A].cq);
    rig_close(&rig);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "atomics=none,inline=8", &(struct rig_opts){.inlined = 4});
    assert_int_equal(post(&rig, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0), EINVAL);
    expect_faults(1, "no atomics");
    assert_int_equal(post(&rig, IBV_WR_RDMA_WRITE, 1, IBV_SEND_INLINE), EINVAL);
    expect_faults(1, "more inline");
    struct ibv_sge sge[2] = {rig_sge(&rig, A, 0, 8), rig_sge(&rig, A, 8, 8)};
    struct ibv_send_wr wr = rig_wr(&rig, A, IBV_WR_SEND, 1, sge, 0);
    wr.num_sge = 2;
    assert_int_equal(rig_post(&rig, A, &wr), EINVAL);
    expect_faults(1, "more pieces");
    rig_close(&rig);
}

static void the_dead_are_remembered(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    struct rig_end *a = &rig.end[A];
    struct ibv_mr *mr = ibv.reg_mr(a->pd, a->buf, 8, 0);
    assert_int_equal(ibv.dereg_mr(mr), 0);
    assert_int_equal(ibv.dereg_mr(mr), EINVAL);
    expect_faults(1, "has been destroyed");
    assert_int_equal(rig_to(&rig, A, IBV_QPS_ERR), 0);
    rig_close(&rig);
}

static void events_have_to_be_acknowledged(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    struct rig_end *a = &rig.end[A];
    struct ibv_cq *cq = ibv.create_cq(a->context, 4, NULL, a->channel, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *own = a->qp;
    a->qp = ibv.create_qp(a->pd, &init);
    assert_int_equal(rig_init(&rig, A), 0);
    assert_int_equal(rig_recv(&rig, A, 1, 0, 8), 0);
    assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
    assert_int_equal(rig_to(&rig, A, IBV_QPS_ERR), 0);
    struct ibv_cq *seen;
    void *context;
    assert_int_equal(ibv.get_cq_event(a->channel, &seen, &context), 0);
    assert_ptr_equal(seen, cq);
    assert_int_equal(ibv.destroy_qp(a->qp), 0);
    assert_int_equal(ibv.destroy_cq(cq), 0);
    expect_faults(1, "not acknowledged");
    a->qp = own;
    rig_close(&rig);
}

static void what_is_left_behind_is_counted(void **state)
{
    (void)state;
    struct rig rig;
    open_connected(&rig, "", NULL);
    int n;
    struct ibv_device **list = ibv.get_device_list(&n);
    struct ibv_context *context = ibv.open_device(list[0]);
    ibv.free_device_list(list);
    struct ibv_pd *pd = ibv.alloc_pd(context);
    assert_non_null(pd);
    assert_int_equal(ibv.close_device(context), 0);
    expect_faults(1, "closed with 1 domains");
    free(pd); /* its memory is a plain block */
    rig_close(&rig);
}

/* --- threads ---------------------------------------------------------------------------------- */

#define ROUNDS 2000

struct side_thread {
    struct rig *rig;
    int side;
};

static void *write_rounds(void *arg)
{
    const struct side_thread *thread = arg;
    struct ibv_sge sge = rig_sge(thread->rig, thread->side, 1024, 512);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct ibv_send_wr wr = rig_wr(thread->rig, thread->side, IBV_WR_RDMA_WRITE, i, &sge,
                                       8192);
        CHECK(!rig_post(thread->rig, thread->side, &wr), "post");
        struct ibv_wc wc = rig_wc(thread->rig, thread->side);
        CHECK(wc.wr_id == i && wc.status == IBV_WC_SUCCESS, "completion");
    }
    return NULL;
}

static void both_sides_may_have_threads(void **state)
{
    (void)state;
    struct rig rig;
    pthread_t thread[2];
    open_connected(&rig, "", NULL);
    struct side_thread sides[2] = {{&rig, A}, {&rig, B}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_rounds, &sides[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    assert_memory_equal(rig.end[B].buf + 8192, rig.end[A].buf + 1024, 512);
    rig_close(&rig);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        CASE(held_requests_wait),
        CASE(held_answers_are_lost_with_the_pair),
        CASE(a_port_that_is_down_drops_all),
        CASE(a_port_that_comes_back_in_time_was_not_noticed),
        CASE(giving_up_wakes_a_sleeper),
        CASE(a_post_fails_half_way),
        CASE(a_request_fails_with_any_status),
        CASE(a_call_fails),
        CASE(a_fatal_device_flushes_and_refuses),
        CASE(events_of_a_pair_name_it),
        CASE(infiniband_needs_no_gid),
        CASE(two_devices_reach_each_other),
        CASE(a_wrong_gid_leads_nowhere),
        CASE(a_pair_takes_packets_of_its_peer_alone),
        CASE(the_gid_table_is_as_configured),
        CASE(what_is_missing_is_refused),
        CASE(a_dmabuf_is_reached),
        CASE(the_old_library_lacks_what_is_new),
        CASE(only_what_parses_is_taken),
        CASE(a_full_send_queue_refuses),
        CASE(a_full_receive_queue_refuses),
        CASE(a_completion_queue_overruns),
        CASE(bad_requests_are_refused),
        CASE(the_dead_are_remembered),
        CASE(events_have_to_be_acknowledged),
        CASE(what_is_left_behind_is_counted),
        CASE(both_sides_may_have_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
