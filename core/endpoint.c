/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint: open, connect, accept, notifications. */
#include "endpoint.h"
#include "auth.h"
#include "boot.h"
#include "conn.h"
#include "lane.h"
#include "match.h"
#include "metadata.h"
#include "msg.h"
#include "notify.h"
#include "op.h"
#include "progress.h"
#include "rail.h"
#include "registry.h"
#include "topology.h"
#include "util.h"
#include "weft/gpu.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* --- open ---------------------------------------------------------------------------------------- */

static struct weft__endpoint *endpoint_new(int threads)
{
    struct weft__endpoint *ep = calloc(1, sizeof *ep);
    if (!ep)
        return NULL;
    pthread_condattr_init(&ep->monotonic);
    pthread_condattr_setclock(&ep->monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&ep->lock, NULL);
    pthread_mutex_init(&ep->boot_lock, NULL);
    ep->threads_asked = threads;
    ep->listener = WEFT_LISTENER_NONE;
    ep->boot_epoll = -1;
    ep->accepts_tail = &ep->accepts;
    ep->notifs_tail = &ep->notifs;
    ep->served_adds_tail = &ep->served_adds;
    weft_list_init(&ep->aparts);
    ep->pid = (uint32_t)getpid();
    weft__host_self(&ep->host);
    if (weft__copier_open(ep)) {
        free(ep);
        return NULL;
    }
    ep->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ep->maps_fd = weft__mapping_open();
    return ep;
}

void weft__endpoint_free(struct weft__endpoint *ep)
{
    weft__boot_close(ep);
    weft__copier_close(ep);
    for (int i = 0; i < ep->nlanes; i++)
        weft__lane_close(ep->lanes[i]);
    weft__op_pool_free(ep);
    weft__pool_drain(&ep->wrs);
    weft__pool_drain(&ep->recs);
    weft__pool_drain(&ep->msgs);
    weft__pool_drain(&ep->pieces);
    weft__pool_drain(&ep->lots);
    if (ep->wake_fd >= 0)
        close(ep->wake_fd);
    if (ep->maps_fd >= 0)
        close(ep->maps_fd);
    for (int i = 1; i <= ep->nwakes; i++)
        close(ep->thread_wakes[i]);
    pthread_mutex_destroy(&ep->lock);
    pthread_mutex_destroy(&ep->boot_lock);
    pthread_condattr_destroy(&ep->monotonic);
    explicit_bzero(ep->auth_key, sizeof ep->auth_key);
    free(ep);
}

/* The last error says why. */
static void leave_out(struct weft__endpoint *ep, const struct weft_transport *transport)
{
    weft_log(WEFT_LOG_INFO, "endpoint", "%s: not used: %s", transport->name, weft_last_error());
    if (ep->nunused == WEFT__UNUSED)
        return;
    struct weft__unused *unused = &ep->unused[ep->nunused++];
    unused->priority = transport->priority;
    weft__text_add(unused->why, sizeof unused->why, 0, "%s", weft_last_error());
}

/* With "auto" a transport that cannot be opened is left out; one that was named must open. */
static int open_transports(struct weft__endpoint *ep, const char *policy, const char *near,
                           const char *fault)
{
    const struct weft_transport *wanted[WEFT__MAX_LANES];
    char host[64];
    struct weft__rails_opts rails = {.near = near, .fault = fault, .bind_host = host};
    bool named = *policy && strcmp(policy, "auto");
    int n = weft__transport_select(policy, wanted, WEFT__MAX_LANES);
    weft__address_host(&ep->bound, host, sizeof host);
    for (int i = 0; i < n; i++) {
        rails.later = n - 1 - i;
        int rc = weft__rails_open(ep, wanted[i], &rails);
        if (rc && named)
            return rc;
        if (rc)
            leave_out(ep, wanted[i]);
        else
            ep->transports[ep->ntransports++] = wanted[i];
    }
    if (n < 0)
        return n;
    return ep->ntransports
               ? 0
               : weft_fail(WEFT_ENODEV, "no transport can be opened: %s", weft_last_error());
}

/* Far longer than what a GPU or a nic has to end, which takes milliseconds. */
#define GIVE_UP_NS (10 * UINT64_C(1000000000))

static void read_settings(struct weft__endpoint *ep)
{
    ep->backlog = (int)weft_config_int("WEFT_BACKLOG");
    ep->grace_ns = (uint64_t)weft_config_int("WEFT_CANCEL_GRACE") * 1000000u;
    ep->give_up_ns = GIVE_UP_NS;
    ep->spin_ns = (uint64_t)weft_config_int("WEFT_SPIN") * 1000u;
    ep->window = (uint64_t)weft_config_int("WEFT_EAGER_WINDOW");
    ep->notif_limit = (uint64_t)weft_config_int("WEFT_NOTIFY_QUEUE");
    ep->chunk = (uint64_t)weft_config_int("WEFT_CHUNK");
    ep->ahead = (uint64_t)weft_config_int("WEFT_AHEAD");
    ep->ipc = weft_config_int("WEFT_IPC");
    ep->nic_adds = weft_config_int("WEFT_NIC_ADDS");
    int64_t eager = weft_config_int("WEFT_EAGER");
    for (int i = 0; i < ep->nlanes; i++) {
        int64_t most = (int64_t)ep->lanes[i]->nic->attr.max_send - WEFT__MSG_HEAD;
        eager = eager < most ? eager : most;
    }
    ep->eager = (uint32_t)(eager < (int64_t)ep->window ? eager : (int64_t)ep->window);
}

static int open_gpu(struct weft__endpoint *ep, const char *name)
{
    ep->gpu_auto = !*name || !strcmp(name, "auto");
    ep->gpu_loads = weft__loads();
    ep->gpu = ep->gpu_auto ? weft__gpu_used() : weft_gpu_find(name);
    if (!ep->gpu)
        return WEFT_ENODEV;
    ep->gpu_apart = strcmp(ep->gpu->name, "host") != 0;
    if (ep->gpu_auto || ep->gpu->ops->probe() > 0)
        return 0;
    return weft_fail(WEFT_ENODEV, "the GPU backend %s was named, and cannot be used: %s", name,
                     weft_last_error());
}

static int open_all(struct weft__endpoint *ep, const struct weft_endpoint_opts *o)
{
    if (ep->wake_fd < 0)
        return weft_fail(-EMFILE, "cannot make an eventfd");
    int rc = weft_random(ep->uuid, sizeof ep->uuid);
    if (rc)
        return rc;
    rc = weft__auth_open(ep, o->secret, o->secret_len);
    if (rc)
        return rc;
    rc = open_gpu(ep, o->gpu ? o->gpu : weft_config_str("WEFT_GPU"));
    if (rc)
        return rc;
    weft__copier_fit(ep);
    rc = weft__boot_open(ep, o->listen ? o->listen : weft_config_str("WEFT_LISTEN"));
    if (rc)
        return rc;
    ep->passive = o->passive_accept;
    const char *near = o->near ? o->near : weft_config_str("WEFT_NEAR");
    rc = weft__near_check(near);
    if (rc)
        return rc;
    rc = open_transports(ep, o->transport ? o->transport : weft_config_str("WEFT_TRANSPORT"), near,
                         o->fault ? o->fault : weft_config_str("WEFT_FAULT"));
    if (rc)
        return rc;
    read_settings(ep);
    return 0;
}

int weft_endpoint_open(const struct weft_endpoint_opts *opts, weft_endpoint_t *endpoint)
{
    struct weft_endpoint_opts o = {0};
    int rc = weft__opts_copy(&o, sizeof o, opts, "weft_endpoint_opts");
    if (rc == 0 && !endpoint)
        rc = weft_fail(-EINVAL, "weft_endpoint_open: endpoint is NULL");
    if (rc == 0 && (o.progress_threads < WEFT_PROGRESS_CALLER || o.progress_threads > 64))
        rc = weft_fail(
            -EINVAL,
            "weft_endpoint_opts.progress_threads is %d, not 1 to 64, 0 or WEFT_PROGRESS_CALLER",
            o.progress_threads);
    if (rc == 0)
        rc = weft__config_check();
    if (rc)
        return rc;
    struct weft__endpoint *ep = endpoint_new(
        o.progress_threads ? o.progress_threads : (int)weft_config_int("WEFT_PROGRESS_THREADS"));
    if (!ep)
        return weft_fail(-ENOMEM, "no memory for an endpoint");
    rc = open_all(ep, &o);
    if (rc == 0 && !(ep->handle = weft__handle_open(WEFT__ENDPOINT, ep, NULL)))
        rc = -ENOMEM;
    if (rc) {
        weft__endpoint_free(ep);
        return rc;
    }
    weft_endpoint_t handle = ep->handle;
    if (ep->threads_asked > 0)
        rc = weft__threads_start(ep, ep->threads_asked);
    if (rc) { /* those that were started may have let peers in */
        char text[200];
        weft__text_add(text, sizeof text, 0, "%s", weft_last_error());
        weft_endpoint_close(handle);
        return weft_fail(rc, "%s", text);
    }
    *endpoint = handle;
    return 0;
}

/* --- connect and accept -------------------------------------------------------------------------- */

/* The handshake keeps the time itself; who waits for it gives it so much more to say so. */
#define CONNECT_SLACK_MS 1000

static int start_connect(struct weft__endpoint *ep, const struct weft__address *list, int n,
                         const uint8_t *uuid, const char *hint, const struct weft_connect_opts *o,
                         weft_conn_t *out)
{
    struct weft__conn *conn;
    int rc = weft__conn_open(ep, true, &list[0], &conn);
    if (rc)
        return rc;
    int timeout = o->timeout_ms ? o->timeout_ms : (int)weft_config_int("WEFT_CONNECT_TIMEOUT");
    conn->hint = hint;
    weft_conn_t handle = conn->handle;
    bool over;
    pthread_mutex_lock(&ep->boot_lock);
    rc = weft__boot_connect(conn, list, n, uuid, o->transport ? o->transport : "",
                            weft__deadline(timeout));
    pthread_mutex_unlock(&ep->boot_lock);
    weft__wake(ep); /* the deadline of the handshake is new to a sleeping thread */
    if (rc == 0 && !o->nonblocking)
        rc = weft__conn_wait(handle, timeout < INT_MAX - CONNECT_SLACK_MS ? timeout + CONNECT_SLACK_MS : timeout,
                             &over);
    if (rc == 0) {
        *out = handle;
        return 0;
    }
    if (rc == WEFT_EHANDLE) /* no one else has it: it went with the endpoint */
        return weft_fail(WEFT_ECLOSED, "endpoint is being closed");
    char text[300];
    snprintf(text, sizeof text, "%s", weft_last_error());
    weft_conn_close(handle);
    return weft_fail(rc, "%s", text);
}

static int check_connect(const struct weft_connect_opts *opts, struct weft_connect_opts *o,
                         weft_conn_t *conn)
{
    const struct weft_transport *list[WEFT__MAX_LANES];
    memset(o, 0, sizeof *o);
    int rc = weft__opts_copy(o, sizeof *o, opts, "weft_connect_opts");
    if (rc == 0 && !conn)
        rc = weft_fail(-EINVAL, "conn is NULL");
    if (rc == 0 && o->timeout_ms < 0)
        rc = weft_fail(-EINVAL, "weft_connect_opts.timeout_ms is %d", o->timeout_ms);
    if (rc == 0 && o->transport) {
        rc = weft__transport_select(o->transport, list, WEFT__MAX_LANES);
        rc = rc < 0 ? rc : 0;
    }
    return rc;
}

/* Why nobody may be there: the default listens on loopback only. */
static const char *hint_of(const struct weft__endpoint *ep, const struct weft__metadata *m,
                           const struct weft__address *list, int n)
{
    bool loopback = !weft__host_same(&ep->host, &m->host);
    for (int i = 0; i < n; i++)
        loopback &= weft__address_is_loopback(&list[i]);
    return loopback ? "; the peer listens on loopback only, of another host or network namespace (there: WEFT_LISTEN)"
                    : NULL;
}

int weft_endpoint_connect(weft_endpoint_t handle, const void *metadata, size_t len,
                          const struct weft_connect_opts *opts, weft_conn_t *conn)
{
    struct weft_connect_opts o;
    struct weft__metadata m;
    struct weft__address list[WEFT__METADATA_ADDRESSES];
    int rc = check_connect(opts, &o, conn);
    if (rc == 0)
        rc = weft__metadata_decode(metadata, len, &m);
    if (rc == 0)
        rc = weft__metadata_addresses(&m, list);
    if (rc < 0)
        return rc;
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    rc = start_connect(ep, list, rc, m.info.uuid, hint_of(ep, &m, list, rc), &o, conn);
    weft__handle_put(handle);
    return rc;
}

int weft_endpoint_connect_to(weft_endpoint_t handle, const char *address,
                             const struct weft_connect_opts *opts, weft_conn_t *conn)
{
    struct weft_connect_opts o;
    struct weft__address a;
    int rc = check_connect(opts, &o, conn);
    if (rc == 0 && !address)
        rc = weft_fail(-EINVAL, "address is NULL");
    if (rc)
        return rc;
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    weft__handle_put(handle); /* looking up a name may take long: who closes the endpoint does not wait for it */
    rc = weft__address_parse_peer(address, &a);
    if (rc)
        return rc;
    ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    rc = start_connect(ep, &a, 1, NULL, NULL, &o, conn);
    weft__handle_put(handle);
    return rc;
}

struct accept_wait {
    struct weft__endpoint *ep;
    weft_conn_t conn; /* 0: none yet */
    bool closing;     /* as seen under the lock */
};

static bool accept_ready(void *arg)
{
    struct accept_wait *w = arg;
    struct weft__conn *first = w->ep->accepts;
    w->closing = w->ep->closing;
    if (!w->conn && first && !w->closing) {
        w->conn = first->handle;
        weft__conn_unqueue(first);
    }
    return w->conn || w->closing;
}

int weft_endpoint_accept(weft_endpoint_t handle, int timeout_ms, weft_conn_t *out)
{
    if (!out)
        return weft_fail(-EINVAL, "weft_endpoint_accept: conn is NULL");
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    struct accept_wait w = {.ep = ep};
    if (!ep->passive)
        weft__wait(ep, accept_ready, &w, weft__deadline(timeout_ms));
    int rc = 0;
    if (w.conn)
        *out = w.conn;
    else if (ep->passive)
        rc = weft_fail(-EINVAL, "weft_endpoint_accept: the endpoint has passive_accept: its conns "
                                "are listed by weft_endpoint_conns");
    else
        rc = w.closing ? weft_fail(WEFT_ECLOSED, "endpoint is being closed")
                       : weft_fail(WEFT_ETIMEOUT, "no peer connected within %d ms", weft__waited_ms(timeout_ms));
    weft__handle_put(handle);
    return rc;
}

int weft_endpoint_conns(weft_endpoint_t handle, weft_conn_t *list, int max)
{
    if (!list && max > 0)
        return weft_fail(-EINVAL, "weft_endpoint_conns: list is NULL");
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    int n = 0;
    pthread_mutex_lock(&ep->lock);
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next) {
        if (conn->passive && conn->state != WEFT_CONN_UP)
            continue; /* in its handshake, or about to be freed */
        if (n < max)
            list[n] = conn->handle;
        n++;
    }
    pthread_mutex_unlock(&ep->lock);
    weft__handle_put(handle);
    return n;
}

int weft_endpoint_port(weft_endpoint_t handle)
{
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    int port = weft__address_port(&ep->bound);
    weft__handle_put(handle);
    return port;
}

/* --- progress and notifications -------------------------------------------------------------------- */

struct event_wait {
    struct weft__endpoint *ep;
    uint64_t since;
};

static uint64_t events(struct weft__endpoint *ep)
{
    uint64_t n = atomic_load(&ep->events) + atomic_load(&ep->changes);
    for (int i = 0; i < ep->nlanes; i++)
        n += atomic_load_explicit(&ep->lanes[i]->events, memory_order_relaxed);
    return n;
}

static bool event_happened(void *arg)
{
    struct event_wait *w = arg;
    return events(w->ep) != w->since || w->ep->closing;
}

int weft_endpoint_progress(weft_endpoint_t handle, int timeout_ms)
{
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    struct event_wait w = {ep, atomic_load(&ep->events_seen)};
    int n = weft__progress(ep);
    if (n == 0 && timeout_ms && weft__wait(ep, event_happened, &w, weft__deadline(timeout_ms)))
        n = 1;
    atomic_store(&ep->events_seen, events(ep));
    weft__handle_put(handle);
    return n;
}

struct notif_wait {
    struct weft__endpoint *ep;
    struct weft__arrival *arrival;
    bool closing; /* as seen under the lock */
};

static bool notif_ready(void *arg)
{
    struct notif_wait *w = arg;
    if (!w->arrival)
        w->arrival = weft__notif_pop(w->ep);
    w->closing = w->ep->closing;
    return w->arrival || w->closing;
}

int weft_endpoint_notif(weft_endpoint_t handle, int timeout_ms, struct weft_notif *notif)
{
    if (!notif)
        return weft_fail(-EINVAL, "weft_endpoint_notif: notif is NULL");
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    struct notif_wait w = {.ep = ep};
    weft__wait(ep, notif_ready, &w, weft__deadline(timeout_ms));
    weft__kick_all(ep); /* taking one may let a peer go on */
    weft__tell(ep);
    int rc = 0;
    if (w.arrival) {
        *notif = (struct weft_notif){
            .conn = w.arrival->conn_handle, .data = w.arrival->data, .len = w.arrival->len};
        w.arrival->data = NULL;
        weft__arrival_free(w.arrival);
    } else {
        rc = w.closing ? weft_fail(WEFT_ECLOSED, "endpoint is being closed")
                       : weft_fail(WEFT_ETIMEOUT, "no notification within %d ms", weft__waited_ms(timeout_ms));
    }
    weft__handle_put(handle);
    return rc;
}

void weft_notif_free(struct weft_notif *notif)
{
    if (!notif)
        return;
    free(notif->data);
    *notif = (struct weft_notif){0};
}
