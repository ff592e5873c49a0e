/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoints of a nic, and what they need.
 *
 * libfabric has no way to call back an operation. Memory of what is under way comes free at once only by closing the
 * endpoint: work for what this side does, target for what peers do. Both come again as new endpoints. Only peers whose
 * links are up are told of a new target; what the others had under way is lost, as it should be.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "efa.h"

#define LEAST_CQ 1024u
/* shm: the name may be that of a process that was killed and had this one's number; it is free then. ofi_rxd: a
 * program of others took the port meanwhile */
#define MOST_BUSY 64

int efa_fail(const struct efa_nic *nic, int rc, const char *what)
{
    /* codes from 256 on are libfabric's own */
    return weft_fail(-rc < 256 ? rc : -EIO, "efa %s: %s: %s", nic->name, what,
                     nic->lib->strerror(-rc));
}

/* --- one endpoint ---------------------------------------------------------------------------------------- */

static int open_cq(struct efa_nic *nic, struct efa_end *end)
{
    size_t most = nic->info->tx_attr->size + nic->recvs_most;
    struct fi_cq_attr attr = {.size = most < LEAST_CQ ? LEAST_CQ : most,
                              .format = FI_CQ_FORMAT_DATA,
                              .wait_obj = FI_WAIT_FD};
    struct epoll_event event = {.events = EPOLLIN};
    int rc = nic->wakes ? fi_cq_open(nic->domain, &attr, &end->cq, NULL) : -FI_ENOSYS;
    if (rc == 0 && fi_control(&end->cq->fid, FI_GETWAIT, &end->fd) == 0)
        return epoll_ctl(nic->epoll_fd, EPOLL_CTL_ADD, end->fd, &event) == 0
                   ? 0
                   : weft_fail(-errno, "efa %s: cannot watch a descriptor: %m", nic->name);
    end->fd = -1;
    if (rc == 0) { /* ofi_rxd wakes itself at each packet, and tells nobody by what */
        fi_close(&end->cq->fid);
        end->cq = NULL;
    }
    attr.wait_obj = FI_WAIT_NONE;
    rc = fi_cq_open(nic->domain, &attr, &end->cq, NULL);
    return rc ? efa_fail(nic, rc, "cannot open a completion queue") : 0;
}

static void let_go(const struct efa_nic *nic, struct fid *fid)
{
    if (!fid)
        return;
    if (nic->buries)
        efa_quirk_bury(fid);
    else
        fi_close(fid);
}

static void shut(const struct efa_nic *nic, struct efa_end *end)
{
    let_go(nic, end->ep ? &end->ep->fid : NULL);
    end->ep = NULL;
}

static void end_close(const struct efa_nic *nic, struct efa_end *end)
{
    shut(nic, end);
    let_go(nic, end->cq ? &end->cq->fid : NULL); /* and its descriptor, which epoll forgets */
    *end = (struct efa_end){.fd = -1};
}

static int try_end(struct efa_nic *nic, struct efa_end *end)
{
    int rc = fi_endpoint(nic->domain, nic->info, &end->ep, NULL);
    if (rc == 0)
        rc = fi_ep_bind(end->ep, &nic->av->fid, 0);
    if (rc == 0)
        rc = fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0 && nic->iface != FI_HMEM_SYSTEM)
        rc = efa_gpu_require(end->ep);
    if (rc == 0)
        rc = fi_enable(end->ep);
    if (rc && end->ep) {
        fi_close(&end->ep->fid);
        end->ep = NULL;
    }
    return rc;
}

static int try_again(struct efa_nic *nic, struct efa_end *end)
{
    int rc, busy = 0;
    do {
        int port = efa_port_hold(nic->info);
        rc = try_end(nic, end);
        efa_port_release(port);
    } while ((rc == -FI_EBUSY || rc == -FI_EADDRINUSE) && ++busy < MOST_BUSY);
    return rc;
}

static int end_open(struct efa_nic *nic, struct efa_end *end)
{
    int rc = open_cq(nic, end);
    if (rc)
        return rc;
    rc = try_again(nic, end);
    return rc ? efa_fail(nic, rc, "cannot open an endpoint") : 0;
}

static int name_of(const struct efa_nic *nic, struct fid_ep *ep, uint8_t *name, uint16_t *len)
{
    size_t size = EFA_MAX_NAME;
    memset(name, 0, EFA_MAX_NAME);
    int rc = fi_getname(&ep->fid, name, &size);
    if (rc)
        return efa_fail(nic, rc, "cannot tell the address of an endpoint");
    *len = (uint16_t)size;
    return 0;
}

/* --- all of them ----------------------------------------------------------------------------------------- */

static int open_av(struct efa_nic *nic)
{
    struct fi_av_attr attr = {.type = nic->info->domain_attr->av_type};
    if (attr.type == FI_AV_UNSPEC)
        attr.type = FI_AV_TABLE;
    int rc = fi_av_open(nic->domain, &attr, &nic->av, NULL);
    return rc ? efa_fail(nic, rc, "cannot open an address vector") : 0;
}

static int open_domain(struct efa_nic *nic)
{
    nic->buries = efa_quirk_begin(nic->info);
    /* core lets in one thread at a time. A provider that says it is safe for more may still be told so; ofi_rxm (1.17)
     * has been seen to wait for a lock of its own that it had not let go */
    if (nic->info->domain_attr->data_progress == FI_PROGRESS_MANUAL)
        nic->info->domain_attr->threading = FI_THREAD_DOMAIN;
    int rc = nic->lib->fabric(nic->info->fabric_attr, &nic->fabric, NULL);
    if (rc)
        return efa_fail(nic, rc, "cannot open the fabric");
    rc = fi_domain(nic->fabric, nic->info, &nic->domain, NULL);
    return rc ? efa_fail(nic, rc, "cannot open the domain") : 0;
}

int efa_ep_open_all(struct efa_nic *nic)
{
    int rc = open_domain(nic);
    if (rc == 0)
        rc = open_av(nic);
    if (rc == 0)
        rc = end_open(nic, &nic->message);
    if (rc == 0)
        rc = end_open(nic, &nic->work);
    if (rc == 0)
        rc = end_open(nic, &nic->target);
    nic->where.epoch = 1;
    return rc ? rc : name_of(nic, nic->target.ep, nic->where.name, &nic->where.len);
}

void efa_ep_close_all(struct efa_nic *nic)
{
    end_close(nic, &nic->work);
    end_close(nic, &nic->target);
    end_close(nic, &nic->message);
    efa_pool_fini(&nic->smalls);
    efa_pool_fini(&nic->larges);
    let_go(nic, nic->av ? &nic->av->fid : NULL);
    let_go(nic, nic->domain ? &nic->domain->fid : NULL);
    let_go(nic, nic->fabric ? &nic->fabric->fid : NULL);
    nic->av = NULL;
    nic->domain = NULL;
    nic->fabric = NULL;
    if (nic->buries)
        efa_quirk_end();
    nic->buries = false;
}

/* --- anew ------------------------------------------------------------------------------------------------ */

int efa_ep_reset_work(struct efa_nic *nic)
{
    efa_drain(nic, &nic->work); /* what has ended has; the rest is done again */
    end_close(nic, &nic->work);
    while (!weft_list_empty(&nic->flying)) {
        struct efa_req *req = WEFT_LIST_OF(nic->flying.next, struct efa_req, in);
        efa_req_back(req);
        weft_list_push(&nic->again, &req->in);
    }
    weft_log(WEFT_LOG_DEBUG, "efa", "%s: a new endpoint for work", nic->name);
    int rc = end_open(nic, &nic->work);
    if (rc)
        nic->lost = rc;
    return rc;
}

static void tell_peers(struct efa_nic *nic)
{
    struct efa_target where = nic->where;
    where.epoch = htole32(where.epoch);
    where.len = htole16(where.len);
    for (struct weft_list *at = nic->links.next, *next; at != &nic->links; at = next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, in);
        next = at->next;
        if (link->hello_sent && link->state < EFA_LINK_DOWN)
            efa_msg_note(link, EFA_TARGET, &where, sizeof where);
    }
}

int efa_ep_reset_target(struct efa_nic *nic)
{
    shut(nic, &nic->target);
    efa_drain(nic, &nic->target); /* what has arrived has, also of a WRITE_IMM that came at the last moment */
    end_close(nic, &nic->target);
    int rc = end_open(nic, &nic->target);
    if (rc == 0)
        rc = name_of(nic, nic->target.ep, nic->where.name, &nic->where.len);
    if (rc) {
        nic->lost = rc;
        return rc;
    }
    nic->where.epoch++;
    weft_log(WEFT_LOG_DEBUG, "efa", "%s: a new endpoint for peers, number %u", nic->name,
             nic->where.epoch);
    efa_mem_clean(nic);
    tell_peers(nic);
    return 0;
}
