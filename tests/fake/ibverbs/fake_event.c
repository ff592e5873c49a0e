/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events behind descriptors: those of completion channels and of contexts. The descriptor is an
 * eventfd; its count is above 0 while the queue is not empty, and each event adds to it, so that
 * an edge-triggered watcher sees each one. Only who holds the mutex reads or writes it, so neither
 * ever blocks.
 */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_FIRST 64 /* places of a queue that has not grown */

int fake__events_open(struct fake_events *events)
{
    memset(events, 0, sizeof *events);
    events->fd = eventfd(0, EFD_CLOEXEC);
    return events->fd < 0 ? errno : 0;
}

void fake__events_close(struct fake_events *events)
{
    close(events->fd);
    free(events->ring);
    events->ring = NULL;
}

/* As the kernel's, the queue takes what comes. */
static bool grow(struct fake_events *events)
{
    size_t size = events->size ? 2 * events->size : EVENTS_FIRST;
    struct fake_event *ring = calloc(size, sizeof *ring);
    if (!ring)
        return false;
    for (size_t i = 0; i < events->count; i++)
        ring[i] = events->ring[(events->head + i) % events->size];
    free(events->ring);
    events->ring = ring;
    events->head = 0;
    events->size = size;
    return true;
}

void fake__events_push(struct fake_events *events, const struct fake_event *event)
{
    uint64_t one = 1;
    if (events->count == events->size && !grow(events)) {
        fake__fault("no memory for an event");
        return;
    }
    events->ring[(events->head + events->count++) % events->size] = *event;
    if (write(events->fd, &one, sizeof one) != sizeof one)
        fake__fault("the descriptor of an event queue was closed by someone else");
}

static void quiet_if_empty(struct fake_events *events)
{
    uint64_t count;
    if (events->count == 0 && read(events->fd, &count, sizeof count) != sizeof count)
        fake__fault("the descriptor of an event queue was read or closed by someone else");
}

static const void *element_of(const struct fake_event *event)
{
    return event->cq ? (const void *)event->cq : event->async.element.qp;
}

static bool is_of_port(const struct fake_event *event)
{
    switch (event->async.event_type) {
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return false;
    default:
        return !event->cq;
    }
}

void fake__events_forget(struct fake_events *events, const void *element)
{
    size_t n = events->count, kept = 0;
    for (size_t i = 0; i < n; i++) {
        struct fake_event event = events->ring[(events->head + i) % events->size];
        if (is_of_port(&event) || element_of(&event) != element)
            events->ring[(events->head + kept++) % events->size] = event;
    }
    events->count = kept;
    if (kept < n)
        quiet_if_empty(events);
}

int fake__events_wait(struct fake_events *events, struct fake_event *event)
{
    for (;;) {
        fake__lock();
        if (events->count > 0)
            break;
        int fd = events->fd;
        fake__unlock();
        if (fcntl(fd, F_GETFL) & O_NONBLOCK) {
            errno = EAGAIN;
        } else if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1) > 0) {
            continue;
        }
        int err = errno;
        fake__lock();
        errno = err;
        return -1;
    }
    *event = events->ring[events->head];
    events->head = (events->head + 1) % events->size;
    events->count--;
    quiet_if_empty(events);
    return 0;
}

void fake__async(struct fake_context *context, enum ibv_event_type type, void *element)
{
    struct fake_event event = {.async = {.event_type = type}};
    event.async.element.qp = element;
    fake__events_push(&context->async, &event);
}

void fake__async_port(struct fake_context *context, enum ibv_event_type type, int port)
{
    struct fake_event event = {.async = {.event_type = type}};
    event.async.element.port_num = port;
    fake__events_push(&context->async, &event);
}

int ibv_get_async_event(struct ibv_context *pub, struct ibv_async_event *event)
{
    struct fake_event got;
    fake__lock();
    struct fake_context *context = fake__context(pub);
    fake__unlock();
    if (!context) {
        errno = EINVAL;
        return -1;
    }
    int rc = fake__events_wait(&context->async, &got);
    if (!rc) {
        *event = got.async;
        if (is_of_port(&got))
            ;
        else if (got.async.event_type == IBV_EVENT_CQ_ERR)
            ((struct fake_cq *)got.async.element.cq)->async_reported++;
        else if (got.async.event_type == IBV_EVENT_SRQ_ERR ||
                 got.async.event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
            ((struct fake_srq *)got.async.element.srq)->reported++;
        else
            ((struct fake_qp *)got.async.element.qp)->reported++;
    }
    fake__unlock();
    return rc;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    struct fake_event of = {.async = *event};
    fake__lock();
    if (is_of_port(&of))
        ;
    else if (event->event_type == IBV_EVENT_CQ_ERR)
        event->element.cq->async_events_completed++;
    else if (event->event_type == IBV_EVENT_SRQ_ERR ||
             event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
        event->element.srq->events_completed++;
    else
        event->element.qp->events_completed++;
    fake__unlock();
}
