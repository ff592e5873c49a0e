/* SPDX-License-Identifier: Apache-2.0 */
/* Which changes of state a reliable queue pair allows, and with which attributes: the tables of
 * the InfiniBand specification, section 11.2.5.2, as the kernel enforces them. */
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define INIT_NEEDS (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_NEEDS                                                                                 \
    (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |  \
     IBV_QP_MIN_RNR_TIMER)
#define RTR_TAKES (IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX)
#define RTS_NEEDS                                                                                 \
    (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |                       \
     IBV_QP_MAX_QP_RD_ATOMIC)
#define RTS_TAKES                                                                                 \
    (IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |            \
     IBV_QP_PATH_MIG_STATE)
#define SQD_TAKES                                                                                 \
    (IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |             \
     IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |                      \
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE)

#define MAX_TIMEOUT 31
#define MAX_RETRY 7

static const struct change {
    enum ibv_qp_state from, to;
    int needs, takes;
} changes[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, INIT_NEEDS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, INIT_NEEDS},
    {IBV_QPS_INIT, IBV_QPS_RTR, RTR_NEEDS, RTR_TAKES},
    {IBV_QPS_RTR, IBV_QPS_RTS, RTS_NEEDS, RTS_TAKES},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, RTS_TAKES},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, RTS_TAKES},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, SQD_TAKES},
};

static const char *const state_name[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

static const struct change *find(enum ibv_qp_state from, enum ibv_qp_state to)
{
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        if (changes[i].from == from && changes[i].to == to)
            return &changes[i];
    return NULL;
}

static int check_mask(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    static const struct change anywhere; /* to RESET and ERR, from any state */
    const struct change *change = find(from, to);
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
        change = &anywhere;
    if (!change) {
        fake__fault("ibv_modify_qp: there is no way from %s to %s", state_name[from],
                    to <= IBV_QPS_ERR ? state_name[to] : "an unknown state");
        return EINVAL;
    }
    int missing = change->needs & ~mask;
    int surplus = mask & ~(change->needs | change->takes | IBV_QP_STATE);
    if (missing || surplus) {
        fake__fault("ibv_modify_qp from %s to %s: attributes 0x%x are missing, 0x%x are wrong",
                    state_name[from], state_name[to], (unsigned int)missing,
                    (unsigned int)surplus);
        return EINVAL;
    }
    return 0;
}

static const char *check_address(const struct fake_qp *qp, const struct ibv_qp_attr *attr)
{
    const struct ibv_ah_attr *ah = &attr->ah_attr;
    bool ib = fake__config.link == IBV_LINK_LAYER_INFINIBAND;
    if (!fake__port_exists(ah->port_num) || ah->port_num != qp->attr.port_num)
        return "ah_attr.port_num";
    if (!ah->is_global)
        return ib ? NULL : "ah_attr.is_global (RoCE needs it)";
    const struct fake_port *port = &qp->object.context->device->ports[ah->port_num];
    static const union ibv_gid zero;
    if (ah->grh.sgid_index >= FAKE_GIDS ||
        !memcmp(&port->gids[ah->grh.sgid_index].gid, &zero, sizeof zero))
        return "ah_attr.grh.sgid_index";
    return NULL;
}

static const char *check_values(const struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    if ((mask & IBV_QP_PORT) && !fake__port_exists(attr->port_num))
        return "port_num";
    if ((mask & IBV_QP_PKEY_INDEX) && attr->pkey_index >= fake__config.pkeys)
        return "pkey_index";
    if ((mask & IBV_QP_PATH_MTU) &&
        (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > (enum ibv_mtu)fake__config.mtu))
        return "path_mtu";
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > fake__config.max_rd_atom)
        return "max_rd_atomic";
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > fake__config.max_rd_atom)
        return "max_dest_rd_atomic";
    if ((mask & IBV_QP_TIMEOUT) && attr->timeout > MAX_TIMEOUT)
        return "timeout";
    if ((mask & IBV_QP_MIN_RNR_TIMER) && attr->min_rnr_timer > MAX_TIMEOUT)
        return "min_rnr_timer";
    if ((mask & IBV_QP_RETRY_CNT) && attr->retry_cnt > MAX_RETRY)
        return "retry_cnt";
    if ((mask & IBV_QP_RNR_RETRY) && attr->rnr_retry > MAX_RETRY)
        return "rnr_retry";
    return mask & IBV_QP_AV ? check_address(qp, attr) : NULL;
}

int fake__state_check(const struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
    if ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != qp->state)
        return EINVAL; /* no fault: the state may have changed by itself */
    int err = check_mask(qp->state, to, mask);
    const char *wrong = err ? NULL : check_values(qp, attr, mask);
    if (wrong) {
        fake__fault("ibv_modify_qp: %s is out of range", wrong);
        err = EINVAL;
    }
    return err;
}
