/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two connected queue pairs in one process, over whichever libibverbs WEFT_VERBS_LIBRARY names
 * (default: the fake one): what tests of the fake start from. The same cases can so be shown to a
 * real device, to see that both agree.
 */
#ifndef WEFT_TESTS_UNIT_IBV_RIG_H
#define WEFT_TESTS_UNIT_IBV_RIG_H

#include "helpers.h"

#include "fake_ibverbs.h"

/* The macros of verbs.h stand before functions of these names. */
#undef ibv_query_port
#undef ibv_reg_mr

#define IBV_CALLS(X)                                                                              \
    X(get_device_list)                                                                            \
    X(free_device_list)                                                                           \
    X(get_device_name)                                                                            \
    X(open_device)                                                                                \
    X(close_device)                                                                               \
    X(query_device)                                                                               \
    X(query_port)                                                                                 \
    X(query_gid)                                                                                  \
    X(query_pkey)                                                                                 \
    X(alloc_pd)                                                                                   \
    X(dealloc_pd)                                                                                 \
    X(reg_mr)                                                                                     \
    X(dereg_mr)                                                                                   \
    X(create_comp_channel)                                                                        \
    X(destroy_comp_channel)                                                                       \
    X(create_cq)                                                                                  \
    X(destroy_cq)                                                                                 \
    X(get_cq_event)                                                                               \
    X(ack_cq_events)                                                                              \
    X(create_srq)                                                                                 \
    X(destroy_srq)                                                                                \
    X(create_qp)                                                                                  \
    X(modify_qp)                                                                                  \
    X(destroy_qp)                                                                                 \
    X(get_async_event)                                                                            \
    X(ack_async_event)                                                                            \
    X(wc_status_str)                                                                              \
    X(event_type_str)

struct ibv_lib {
#define IBV_MEMBER(name) __typeof__(ibv_##name) *name;
    IBV_CALLS(IBV_MEMBER)
    __typeof__(ibv_reg_mr_iova2) *reg_mr_iova2;   /* may be NULL */
    __typeof__(ibv_reg_dmabuf_mr) *reg_dmabuf_mr; /* may be NULL */
    __typeof__(_ibv_query_gid_table) *query_gid_table;
    /* NULL of a real one. Nothing here is linked with the fake: its calls would stand before those
     * that a real library makes of itself. */
    __typeof__(fake_verbs_faults) *faults;
    __typeof__(fake_verbs_forgive) *forgive;
    __typeof__(fake_verbs_objects) *objects;
};
extern struct ibv_lib ibv;

#define RIG_BYTES 65536

struct rig_end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *buf; /* RIG_BYTES, registered */
    union ibv_gid gid;
    int gid_index;
    uint16_t lid;
    enum ibv_mtu mtu;
    bool ethernet;
};

struct rig_opts {
    uint32_t depth, sge, inlined; /* 0: 16, 1, 0 */
    int cqe;                      /* 0: 64 */
    bool srq, sig_all;
    int access;                        /* of the registrations; 0: all */
    int qp_access;                     /* 0: all; RIG_NONE: none */
    int rd_atom;                       /* 0: 1; RIG_NONE: 0 */
    uint8_t timeout, retry, rnr_retry; /* 0: 14, 1, RIG_NONE is 0 */
    uint32_t psn_off;                  /* what side B expects is wrong by so much */
    uint32_t qpn_off;                  /* so is whose packets it takes */
    int device[2];
};
#define RIG_NONE 0x80

struct rig {
    struct rig_opts opts;
    struct rig_end end[2];
};

void rig_open(struct rig *rig, const struct rig_opts *opts);
/* Each state by itself, for tests of the states; both ends to RTS. */
int rig_init(struct rig *rig, int side);
int rig_rtr(struct rig *rig, int side);
int rig_rts(struct rig *rig, int side);
void rig_connect(struct rig *rig);
int rig_to(struct rig *rig, int side, enum ibv_qp_state state);
/* What the fake has counted as misuse was meant. */
void rig_forgive(void);
/* Destroys all; if the fake is under test, it must have seen no fault and hold no object. */
void rig_close(struct rig *rig);

/* The next completion, in time. And that there is none now. */
struct ibv_wc rig_wc(struct rig *rig, int side);
void rig_no_wc(struct rig *rig, int side);
#define RIG_STATUS(wc, want)                                                                      \
    CHECK((wc).status == (want), "status %s, not %s", ibv.wc_status_str((wc).status),             \
          ibv.wc_status_str(want))

struct ibv_sge rig_sge(struct rig *rig, int side, size_t offset, uint32_t len);
int rig_post(struct rig *rig, int side, struct ibv_send_wr *wr);
int rig_recv(struct rig *rig, int side, uint64_t wr_id, size_t offset, uint32_t len);
/* A request of this opcode between the two buffers, signaled. */
struct ibv_send_wr rig_wr(struct rig *rig, int side, enum ibv_wr_opcode opcode, uint64_t wr_id,
                          struct ibv_sge *sge, size_t remote_offset);
/* The next asynchronous event, in time, acknowledged. */
struct ibv_async_event rig_event(struct rig *rig, int side);

#endif
