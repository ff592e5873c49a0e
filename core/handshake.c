/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two endpoints become a conn. The active side connected, the passive side listened.
 *
 *     active                                     passive
 *     HELLO (who, which transports)  ---------->
 *                                    <----------  HELLO
 *     OFFER (transport, links)       ---------->  opens its links
 *                                    <----------  LINKS (their addresses)
 *     opens its links, LINKS         ---------->
 *     both join their links (link_connect until done or refused)
 *                                    <----------  READY (which it has joined)
 *     up, DONE (which both have)     ---------->  up
 *
 * A link that one of them cannot open or join is closed at both ends, and the conn comes up with the
 * others (join.c). The active side says READY, too, if it was refused one: so the peer does not wait.
 * A side that has no link left of a transport says NO with the reason; the active side then offers
 * its next one. Every frame of an offer carries the number of the attempt, so that answers to an
 * attempt that was given up are known as such. REJECT ends it all. Endpoints that share a secret
 * prove it before the first HELLO: auth.c.
 *
 * The boot lock is held in every function here.
 */
#include "handshake.h"
#include "auth.h"
#include "boot.h"
#include "conn.h"
#include "endpoint.h"
#include "join.h"
#include "lane.h"
#include "mem.h"
#include "progress.h"
#include "registry.h"
#include "util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_LINKS UINT32_MAX

enum state { GREETING, OFFERED, JOINING, JOINED };

struct hello {
    uint8_t uuid[16];
    struct weft__host host;
    uint32_t pid;
    uint64_t window;
    int n;
    struct {
        char name[16];
        uint8_t lanes;
    } transports[WEFT__MAX_LANES];
};

/* --- HELLO -------------------------------------------------------------------------------------- */

static void send_hello(struct weft__boot *boot)
{
    struct weft__endpoint *ep = boot->ep;
    uint8_t body[1024];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put(&w, ep->uuid, sizeof ep->uuid);
    weft__put(&w, ep->host.boot_id, sizeof ep->host.boot_id);
    weft__put_u64(&w, ep->host.netns);
    weft__put_u32(&w, ep->pid);
    weft__put_u64(&w, ep->window);
    weft__put_u8(&w, (uint8_t)ep->ntransports);
    for (int i = 0; i < ep->ntransports; i++) {
        weft__put_text(&w, ep->transports[i]->name);
        weft__put_u8(&w, (uint8_t)weft__lanes_of(ep, ep->transports[i]->name));
    }
    weft__boot_send(boot, WEFT__HELLO, body, (size_t)(w.at - body));
}

static int read_hello(const uint8_t *body, size_t len, struct hello *h)
{
    struct weft__reader r = {body, body + len, false};
    memset(h, 0, sizeof *h);
    weft__get(&r, h->uuid, sizeof h->uuid);
    weft__get(&r, h->host.boot_id, sizeof h->host.boot_id);
    h->host.netns = weft__get_u64(&r);
    h->pid = weft__get_u32(&r);
    h->window = weft__get_u64(&r);
    h->n = weft__get_u8(&r);
    if (h->n > WEFT__MAX_LANES || !h->pid || h->window < WEFT__WINDOW_LEAST)
        return WEFT_EPROTO;
    for (int i = 0; i < h->n; i++) {
        weft__get_text(&r, h->transports[i].name, sizeof h->transports[i].name);
        h->transports[i].lanes = weft__get_u8(&r);
    }
    return r.bad || r.at != r.end ? WEFT_EPROTO : 0;
}

static void adopt_hello(struct weft__boot *boot, const struct hello *h)
{
    struct weft__conn *conn = boot->conn;
    pthread_mutex_lock(&boot->ep->lock);
    memcpy(conn->peer_uuid, h->uuid, sizeof h->uuid);
    conn->peer_owner = weft__owner_id(h->uuid);
    conn->peer_pid = h->pid;
    conn->peer_window = h->window;
    conn->same_host = weft__host_same(&boot->ep->host, &h->host);
    pthread_mutex_unlock(&boot->ep->lock);
}

static void send_text(struct weft__boot *boot, enum weft__frame type, int code, const char *text)
{
    uint8_t body[512];
    char brief[256];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__text_add(brief, sizeof brief, 0, "%s", text);
    weft__put_u8(&w, boot->attempt);
    weft__put_u32(&w, (uint32_t)code);
    weft__put_text(&w, brief);
    weft__boot_send(boot, (uint16_t)type, body, (size_t)(w.at - body));
}

void weft__handshake_reject(struct weft__boot *boot, int code, const char *text)
{
    send_text(boot, WEFT__REJECT, code, text);
    weft__boot_fail(boot, code, "%s", text);
}

static void add_reason(struct weft__boot *boot, const char *transport, const char *text)
{
    size_t used = strlen(boot->reasons);
    bool named = !strncmp(text, transport, strlen(transport));
    weft__text_add(boot->reasons, sizeof boot->reasons, used, "%s%s%s%s", used ? "; " : "",
                   named ? "" : transport, named ? "" : ": ", text);
}

/* The transports both sides have, in the order of this side's policy. */
static int make_offers(struct weft__boot *boot, const struct hello *h)
{
    const struct weft_transport *wanted[WEFT__MAX_LANES];
    struct weft__endpoint *ep = boot->ep;
    int n = ep->ntransports;
    memcpy(wanted, ep->transports, sizeof wanted);
    if (*boot->policy) {
        n = weft__transport_select(boot->policy, wanted, WEFT__MAX_LANES);
        if (n < 0)
            return n;
    }
    for (int i = 0; i < n; i++) {
        bool theirs = false;
        for (int j = 0; j < h->n; j++)
            theirs |= !strcmp(h->transports[j].name, wanted[i]->name) && h->transports[j].lanes;
        if (!weft__lanes_of(ep, wanted[i]->name))
            add_reason(boot, wanted[i]->name, "not open on this side");
        else if (!theirs)
            add_reason(boot, wanted[i]->name, "the peer does not have it");
        else if (wanted[i]->same_host && !boot->conn->same_host)
            add_reason(boot, wanted[i]->name, "the peer is on another host");
        else
            boot->offers[boot->noffers++] = wanted[i];
    }
    return 0;
}

/* --- the active side's offers --------------------------------------------------------------------- */

static void offer(struct weft__boot *boot)
{
    if (boot->offer == boot->noffers) {
        weft__handshake_reject(boot, WEFT_ENOPATH,
                               *boot->reasons ? boot->reasons
                                              : "the endpoints have no transport in common");
        return;
    }
    uint8_t body[64];
    struct weft__writer w = {body, body + sizeof body, false};
    const struct weft_transport *transport = boot->offers[boot->offer];
    weft__put_u8(&w, ++boot->attempt);
    weft__put_u8(&w, (uint8_t)weft__lanes_of(boot->ep, transport->name));
    weft__put_text(&w, transport->name);
    boot->state = OFFERED;
    weft__boot_send(boot, WEFT__OFFER, body, (size_t)(w.at - body));
}

/* This attempt is over. The active side goes on with its next offer once the links are closed. */
static void give_up(struct weft__boot *boot, const char *text, bool say, int code)
{
    char reason[256];
    snprintf(reason, sizeof reason, "%s", text);
    if (say)
        send_text(boot, WEFT__NO, code, reason);
    if (boot->fd < 0)
        return;
    if (boot->active)
        add_reason(boot, boot->offers[boot->offer]->name, reason);
    weft__join_drop(boot);
    boot->state = GREETING;
    boot->offer += boot->active;
    boot->next_offer = boot->active;
}

/* --- frames -------------------------------------------------------------------------------------- */

/* Addresses of metadata may belong to several hosts: each has a 172.17.0.1 of its own, say. */
static bool is_wanted(const struct weft__boot *boot, const struct hello *h)
{
    static const uint8_t anyone[sizeof h->uuid];
    const uint8_t *wanted = boot->auth.uuid;
    return !memcmp(wanted, anyone, sizeof anyone) || !memcmp(wanted, h->uuid, sizeof h->uuid);
}

static void on_hello_active(struct weft__boot *boot, const struct hello *h)
{
    if (!is_wanted(boot, h)) {
        weft__boot_elsewhere(boot, WEFT_EREFUSED, "%s", WEFT__OTHER_ENDPOINT);
        return;
    }
    adopt_hello(boot, h);
    int rc = make_offers(boot, h);
    if (rc < 0)
        weft__handshake_reject(boot, rc, weft_last_error());
    else
        offer(boot);
}

static void on_hello_passive(struct weft__boot *boot, const struct hello *h)
{
    struct weft__endpoint *ep = boot->ep;
    pthread_mutex_lock(&ep->lock);
    bool full = !ep->passive && ep->naccepts >= ep->backlog;
    pthread_mutex_unlock(&ep->lock);
    if (full) {
        weft__handshake_reject(boot, WEFT_EREFUSED, "too many conns wait to be accepted there");
        return;
    }
    struct weft__conn *conn;
    struct weft__address peer = {.len = sizeof peer.sa};
    bool known = getpeername(boot->fd, (struct sockaddr *)&peer.sa, &peer.len) == 0;
    int rc = weft__conn_open(ep, false, known ? &peer : NULL, &conn);
    if (rc) {
        weft__handshake_reject(boot, rc, weft_last_error());
        return;
    }
    boot->conn = conn;
    adopt_hello(boot, h);
    send_hello(boot);
}

static void on_offer(struct weft__boot *boot, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    char name[16];
    uint8_t attempt = weft__get_u8(&r), n = weft__get_u8(&r);
    weft__get_text(&r, name, sizeof name);
    if (boot->active || boot->state != GREETING || r.bad || r.at != r.end || n < 1) {
        weft__boot_fail(boot, WEFT_EPROTO, "unexpected offer");
        return;
    }
    if (!weft__join_dropped(boot)) { /* keep it until the links of the last attempt are closed */
        boot->held_len = len < sizeof boot->held ? len : 0;
        memcpy(boot->held, body, boot->held_len);
        return;
    }
    boot->attempt = attempt;
    int have = weft__lanes_of(boot->ep, name);
    if (have > WEFT__MAX_LINKS)
        have = WEFT__MAX_LINKS;
    uint8_t out[WEFT__FRAME_MAX - WEFT__FRAME_HEAD];
    struct weft__writer w = {out, out + sizeof out, false};
    weft__put_u8(&w, attempt);
    int rc = have ? 0 : weft_fail(WEFT_ENODEV, "the peer does not have transport %s", name);
    if (rc == 0)
        rc = weft__join_open(boot, weft__lane_of(boot->ep, name, 0)->transport,
                             n < have ? n : have, ALL_LINKS, &w);
    if (rc < 0) {
        give_up(boot, weft_last_error(), true, rc);
        return;
    }
    snprintf(boot->conn->transport, sizeof boot->conn->transport, "%s", name);
    boot->state = OFFERED;
    weft__boot_send(boot, WEFT__LINKS, out, (size_t)(w.at - out));
}

/* The active side's end of what the passive side has opened. Its links connect before the passive side can
 * know of them: what that says first finds someone who listens, on transports where nothing waits. */
static int answer_links(struct weft__boot *boot, int n, uint32_t which)
{
    uint8_t out[WEFT__FRAME_MAX - WEFT__FRAME_HEAD];
    struct weft__writer w = {out, out + sizeof out, false};
    weft__put_u8(&w, boot->attempt);
    int rc = weft__join_open(boot, boot->offers[boot->offer], n, which, &w);
    if (rc)
        return rc;
    weft__join_begin(boot, which);
    weft__join_step(boot);
    weft__boot_send(boot, WEFT__LINKS, out, (size_t)(w.at - out));
    return 0;
}

/* Links that the attempt under way can have. */
static int most_links(const struct weft__boot *boot)
{
    return boot->active ? weft__lanes_of(boot->ep, boot->offers[boot->offer]->name)
                        : boot->conn->nlinks;
}

static void on_links(struct weft__boot *boot, struct weft__reader *r)
{
    uint32_t theirs;
    int n = boot->state == OFFERED ? weft__join_read(boot, r, &theirs) : WEFT_EPROTO;
    if (n < 0 || n > most_links(boot) ||
        (!boot->active && (n != boot->conn->nlinks || theirs & ~boot->join.open))) {
        weft__boot_fail(boot, WEFT_EPROTO, "malformed link addresses");
        return;
    }
    int rc = boot->active ? answer_links(boot, n, theirs) : 0;
    if (rc < 0) {
        give_up(boot, weft_last_error(), true, rc);
        return;
    }
    if (boot->fd < 0)
        return;
    if (!boot->active)
        weft__join_begin(boot, theirs);
    boot->state = JOINING;
}

/* Which links the peer has joined, of those that it may have; the set is never empty. */
static bool read_set(const struct weft__boot *boot, struct weft__reader *r, uint32_t most,
                     uint32_t *which)
{
    *which = weft__get_u32(r);
    return !r->bad && r->at == r->end && *which && !(*which & ~most) && boot->conn;
}

static void on_ready(struct weft__boot *boot, struct weft__reader *r)
{
    struct weft__join *join = &boot->join;
    uint32_t most = (uint32_t)((UINT64_C(1) << boot->conn->nlinks) - 1); /* up to 32 */
    if (boot->state != JOINING && boot->state != JOINED)
        return; /* of an attempt that this side has given up */
    if (join->ready || !read_set(boot, r, most, &join->theirs)) {
        weft__boot_fail(boot, WEFT_EPROTO, "malformed list of joined links");
        return;
    }
    join->ready = true;
    weft__join_keep(boot, join->theirs, WEFT_ENOPATH, "the peer did not join it");
    if (!join->wanted)
        give_up(boot, join->why, true, join->code);
}

static void finish(struct weft__boot *boot);

static void on_done(struct weft__boot *boot, struct weft__reader *r)
{
    uint32_t both;
    if (boot->active || boot->state != JOINED)
        return;
    if (!read_set(boot, r, boot->join.joined, &both)) {
        weft__boot_fail(boot, WEFT_EPROTO, "malformed list of joined links");
        return;
    }
    weft__join_keep(boot, both, WEFT_ENOPATH, "the peer did not join it");
    finish(boot);
}

static void on_no(struct weft__boot *boot, struct weft__reader *r)
{
    char text[256];
    weft__get_u32(r);
    weft__get_text(r, text, sizeof text);
    if (r->bad || r->at != r->end)
        weft__boot_fail(boot, WEFT_EPROTO, "malformed refusal");
    else if (boot->state != GREETING)
        give_up(boot, text, false, 0);
}

static void on_reject(struct weft__boot *boot, struct weft__reader *r)
{
    char text[256];
    int code = (int32_t)weft__get_u32(r);
    weft__get_text(r, text, sizeof text);
    if (r->bad || r->at != r->end || code >= 0)
        weft__boot_fail(boot, WEFT_EPROTO, "malformed rejection");
    else
        weft__boot_fail(boot, code, "the peer refused, in its words: %s", text);
}

/* Frames that belong to an attempt; those of an earlier one are ignored. */
static void on_attempt(struct weft__boot *boot, uint16_t type, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    uint8_t attempt = weft__get_u8(&r);
    if (r.bad) {
        weft__boot_fail(boot, WEFT_EPROTO, "malformed handshake frame");
        return;
    }
    if (attempt != boot->attempt && type != WEFT__REJECT)
        return;
    switch (type) {
    case WEFT__LINKS:
        on_links(boot, &r);
        break;
    case WEFT__READY:
        on_ready(boot, &r);
        break;
    case WEFT__DONE:
        on_done(boot, &r);
        break;
    case WEFT__NO:
        on_no(boot, &r);
        break;
    default:
        on_reject(boot, &r);
    }
}

void weft__handshake_frame(struct weft__boot *boot, uint16_t type, const uint8_t *body, size_t len)
{
    struct hello h;
    bool expect_hello = boot->active ? !boot->conn->peer_pid : !boot->conn;
    if (boot->kept && type == WEFT__REJECT) { /* of this side's last frame */
        weft__boot_fail(boot, WEFT_EPEER, "the peer did not accept the end of the handshake");
    } else if (boot->kept) {
        weft__boot_fail(boot, WEFT_EPROTO, "handshake frame %u after the handshake", type);
    } else if (type == WEFT__CHALLENGE && !boot->active && expect_hello) {
        weft__auth_unwanted(boot);
    } else if (expect_hello != (type == WEFT__HELLO) && type != WEFT__REJECT) {
        weft__boot_fail(boot, WEFT_EPROTO, "unexpected handshake frame %u", type);
    } else if (type == WEFT__HELLO && read_hello(body, len, &h)) {
        weft__boot_fail(boot, WEFT_EPROTO, "malformed hello");
    } else if (type == WEFT__HELLO && boot->active) {
        on_hello_active(boot, &h);
    } else if (type == WEFT__HELLO) {
        on_hello_passive(boot, &h);
    } else if (type == WEFT__OFFER) {
        on_offer(boot, body, len);
    } else if (type >= WEFT__LINKS && type <= WEFT__REJECT &&
               (boot->conn || type == WEFT__REJECT)) {
        on_attempt(boot, type, body, len);
    } else {
        weft__boot_fail(boot, WEFT_EPROTO, "unknown handshake frame %u", type);
    }
}

/* --- joining and the end --------------------------------------------------------------------------- */

static void announce(struct weft__conn *conn)
{
    struct weft__endpoint *ep = conn->ep;
    if (conn->initiator || ep->passive)
        return;
    conn->passive = false;
    conn->queued_accept = true;
    conn->accept_next = NULL;
    *ep->accepts_tail = conn;
    ep->accepts_tail = &conn->accept_next;
    ep->naccepts++;
}

/* Why this path, why not all of it, and why no better one. */
static void explain(const struct weft__boot *boot)
{
    struct weft__conn *conn = boot->conn;
    const struct weft__endpoint *ep = boot->ep;
    const struct weft__join *join = &boot->join;
    char less[40] = "";
    if (join->code)
        snprintf(less, sizeof less, "; %d of %d links: ", __builtin_popcount(join->joined),
                 conn->nlinks);
    size_t used = weft__text_add(conn->why, sizeof conn->why, 0, "%s%s%s%s%s",
                                 conn->same_host_path ? "the peer is on this host"
                                                      : "the best transport both have",
                                 less, join->code ? join->why : "", *boot->reasons ? "; " : "",
                                 boot->reasons);
    for (int i = 0; i < ep->nunused; i++)
        if (ep->unused[i].priority > conn->links[0]->lane->transport->priority)
            used = weft__text_add(conn->why, sizeof conn->why, used, "; %s", ep->unused[i].why);
}

static void finish(struct weft__boot *boot)
{
    struct weft__conn *conn = boot->conn;
    struct weft__lane *lane = conn->links[0]->lane;
    pthread_mutex_lock(&boot->ep->lock);
    if (conn->state == WEFT_CONN_CONNECTING) {
        conn->same_host_path = lane->transport->same_host;
        explain(boot);
        announce(conn);
        weft__conn_up(conn);
    }
    pthread_mutex_unlock(&boot->ep->lock);
    weft__boot_end(boot, !lane->nic->attr.peer_death);
}

static void say_joined(struct weft__boot *boot, enum weft__frame type)
{
    uint8_t body[5];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u8(&w, boot->attempt);
    weft__put_u32(&w, boot->join.joined);
    boot->join.refused = 0;
    weft__boot_send(boot, (uint16_t)type, body, sizeof body);
}

static void join_all(struct weft__boot *boot)
{
    struct weft__join *join = &boot->join;
    if (!weft__join_step(boot))
        return;
    if (!join->joined) {
        give_up(boot, join->why, true, join->code);
        return;
    }
    boot->state = JOINED;
    /* the active side says so if the peer may be waiting for a link that does not come */
    if (!boot->active || (join->refused && !join->ready))
        say_joined(boot, WEFT__READY);
}

void weft__handshake_begin(struct weft__boot *boot)
{
    send_hello(boot);
}

void weft__handshake_step(struct weft__boot *boot)
{
    if (!boot->conn || !weft__join_dropped(boot))
        return;
    if (boot->next_offer) {
        boot->next_offer = false;
        offer(boot);
    }
    if (boot->held_len && boot->fd >= 0) {
        size_t len = boot->held_len;
        boot->held_len = 0;
        on_offer(boot, boot->held, len);
    }
    if (boot->fd >= 0 && boot->state == JOINING)
        join_all(boot);
    if (boot->fd >= 0 && boot->active && boot->state == JOINED && boot->join.ready) {
        pthread_mutex_lock(&boot->ep->lock); /* weft_conn_info may be asked */
        snprintf(boot->conn->transport, sizeof boot->conn->transport, "%s",
                 boot->offers[boot->offer]->name);
        pthread_mutex_unlock(&boot->ep->lock);
        say_joined(boot, WEFT__DONE);
        if (boot->fd >= 0)
            finish(boot);
    }
}

bool weft__handshake_joining(const struct weft__boot *boot)
{
    return boot->state == JOINING || boot->dropping || boot->next_offer;
}
