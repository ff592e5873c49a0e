/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no completion tells: events of the device (a port down or up again, a queue pair or the device
 * itself failed) and deadlines that have passed.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "verbs.h"

#define TICK_NS 20000000 /* how exact deadlines are */
#define ACK_EVENTS 256   /* acknowledging takes a lock: many at a time */

/* A port that comes back soon costs no link: the device sends again what was lost. */
static void port_event(struct verbs_nic *nic, const struct ibv_async_event *event)
{
    if (event->element.port_num != nic->port)
        return;
    if (event->event_type == IBV_EVENT_PORT_ACTIVE) {
        if (nic->port_lost)
            weft_log(WEFT_LOG_INFO, "verbs", "%s: the port is active again", nic->name);
        nic->port_lost = 0;
    } else if (!nic->port_lost) {
        weft_log(WEFT_LOG_WARN, "verbs", "%s: the port is down", nic->name);
        nic->port_lost = weft_now();
    }
}

static void fail_all(struct verbs_nic *nic, const char *why)
{
    for (struct verbs_link *link = nic->links; link; link = link->next)
        verbs_link_fail(link, WEFT_ELINK, "verbs %s: %s", nic->name, why);
}

static void qp_event(struct verbs_nic *nic, const struct ibv_async_event *event)
{
    struct verbs_link *link = verbs_link_find(nic, event->element.qp->qp_num);
    if (!link || link->control.qp != event->element.qp)
        return; /* of a data queue pair the control queue pair tells more */
    if (link->state == VERBS_LINK_CLOSED) {
        if (event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED && link->finishing)
            link->deadline = 1; /* past */
        return;
    }
    link->mute = true;
    verbs_link_fail(link, WEFT_ELINK, "verbs %s: its queue pair failed: %s", nic->name,
                    nic->lib->event_type_str(event->event_type));
}

static void on_event(struct verbs_nic *nic, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        port_event(nic, event);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_PATH_MIG_ERR:
        qp_event(nic, event);
        break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        fail_all(nic, nic->lib->event_type_str(event->event_type));
        nic->lost = WEFT_ENODEV;
        break;
    default: /* GIDs, LIDs, keys of the port: what is connected goes on */
        weft_log(WEFT_LOG_DEBUG, "verbs", "%s: %s", nic->name,
                 nic->lib->event_type_str(event->event_type));
    }
}

static void read_events(struct verbs_nic *nic)
{
    struct ibv_async_event event;
    while (nic->lib->get_async_event(nic->context, &event) == 0) {
        on_event(nic, &event);
        nic->lib->ack_async_event(&event);
    }
}

void verbs_events(struct verbs_nic *nic)
{
    read_events(nic);
    if (nic->nwaiting == 0 && nic->port_lost == 0)
        return;
    uint64_t now = weft_now();
    if (nic->port_lost && now - nic->port_lost > nic->flap_ns)
        fail_all(nic, "the port is down");
    verbs_link_tick(nic, now);
}

void verbs_wake(struct verbs_nic *nic)
{
    struct ibv_cq *cq;
    void *context;
    uint64_t ticks;
    nic->armed = false;
    if (nic->lib->get_cq_event(nic->channel, &cq, &context) == 0) {
        nic->notify = false;
        if (++nic->unacked == ACK_EVENTS) {
            nic->lib->ack_cq_events(nic->cq, nic->unacked);
            nic->unacked = 0;
        }
    }
    if (read(nic->timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
        weft_log(WEFT_LOG_WARN, "verbs", "%s: timer: %m", nic->name);
    verbs_events(nic);
}

void verbs_set_timer(struct verbs_nic *nic)
{
    bool on = nic->nwaiting > 0 || nic->port_lost;
    struct itimerspec when = {.it_value.tv_nsec = on ? TICK_NS : 0};
    if (on)
        timerfd_settime(nic->timer_fd, 0, &when, NULL);
}
