/* SPDX-License-Identifier: Apache-2.0 */
/* The network: which queue pair the packets of another one reach, if any. */
#include "fake.h"

#include <string.h>

static const struct fake_port *port_of(const struct fake_qp *qp)
{
    return &qp->object.context->device->ports[qp->attr.port_num];
}

static const struct fake_gid *source_gid(const struct fake_qp *qp)
{
    return &port_of(qp)->gids[qp->attr.ah_attr.grh.sgid_index];
}

static bool same_gid(const union ibv_gid *a, const union ibv_gid *b)
{
    return !memcmp(a, b, sizeof *a);
}

/* Does the port take packets that the queue pair addresses? */
static bool addressed(const struct fake_qp *qp, const struct fake_port *port)
{
    const struct ibv_ah_attr *ah = &qp->attr.ah_attr;
    if (port->state != IBV_PORT_ACTIVE)
        return false;
    if (fake__config.link == IBV_LINK_LAYER_INFINIBAND && ah->dlid != port->lid)
        return false;
    if (!ah->is_global)
        return true;
    for (int i = 0; i < FAKE_GIDS; i++)
        if (same_gid(&port->gids[i].gid, &ah->grh.dgid) &&
            port->gids[i].type == source_gid(qp)->type)
            return true;
    return false;
}

/* Would the peer's packets come here? A reliable queue pair takes packets from there alone. */
static bool answers(const struct fake_qp *peer, const struct fake_qp *qp)
{
    const struct ibv_ah_attr *ah = &peer->attr.ah_attr;
    if (peer->attr.dest_qp_num != qp->pub.qp_num || !addressed(peer, port_of(qp)))
        return false;
    if (ah->is_global != qp->attr.ah_attr.is_global)
        return false;
    return !ah->is_global || (same_gid(&ah->grh.dgid, &source_gid(qp)->gid) &&
                              same_gid(&qp->attr.ah_attr.grh.dgid, &source_gid(peer)->gid) &&
                              source_gid(peer)->type == source_gid(qp)->type);
}

static bool accepts(const struct fake_qp *peer, const struct fake_qp *qp)
{
    if (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS && peer->state != IBV_QPS_SQD)
        return false;
    return peer->attr.pkey_index == qp->attr.pkey_index && peer->recv_psn == qp->send_psn &&
           answers(peer, qp);
}

struct fake_qp *fake__path(const struct fake_qp *qp)
{
    if (port_of(qp)->state != IBV_PORT_ACTIVE)
        return NULL;
    for (uint64_t i = 0; i < fake__config.devices; i++) {
        const struct fake_device *device = &fake__devices[i];
        for (uint8_t port = 1; port <= fake__config.ports && !device->fatal; port++) {
            if (!addressed(qp, &device->ports[port]))
                continue;
            struct fake_qp *peer = fake__qp_find(device, qp->attr.dest_qp_num);
            if (peer && peer->attr.port_num == port && accepts(peer, qp))
                return peer;
        }
    }
    return NULL;
}
