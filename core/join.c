/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of a conn while it is made. Each joins the nth nic of one side with the nth of the other;
 * one that cannot be opened or joined is given up, and costs the conn no more than that.
 *
 * The boot lock is held in every function here.
 */
#include "join.h"
#include "boot.h"
#include "conn.h"
#include "endpoint.h"
#include "progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_SLOT 0xff /* of a nic that takes the keys that core chose */

static uint32_t bit(int i)
{
    return UINT32_C(1) << i;
}

int weft__lanes_of(const struct weft__endpoint *ep, const char *transport)
{
    int n = 0;
    for (int i = 0; i < ep->nlanes; i++)
        n += !strcmp(ep->lanes[i]->transport->name, transport);
    return n;
}

struct weft__lane *weft__lane_of(const struct weft__endpoint *ep, const char *transport, int nth)
{
    for (int i = 0; i < ep->nlanes; i++)
        if (!strcmp(ep->lanes[i]->transport->name, transport) && ep->lanes[i]->nth == nth)
            return ep->lanes[i];
    return NULL;
}

/* --- giving up ---------------------------------------------------------------------------------- */

static void shut(struct weft__boot *boot, uint32_t which, int code)
{
    struct weft__conn *conn = boot->conn;
    pthread_mutex_lock(&boot->ep->lock);
    for (int i = 0; i < conn->nlinks; i++)
        if (which & bit(i))
            weft__link_shut(conn->links[i], code);
    pthread_mutex_unlock(&boot->ep->lock);
    weft__kick_all(boot->ep);
}

/* The first reason is kept for whoever asks why the conn has fewer links than it could have. */
static void note(struct weft__boot *boot, int i, int code, const char *why)
{
    struct weft__join *join = &boot->join;
    weft_log(WEFT_LOG_INFO, "conn", "%s: link %d: given up: %s", boot->conn->peer_text, i, why);
    if (join->code)
        return;
    join->code = code;
    weft__text_add(join->why, sizeof join->why, 0, "%s", why);
}

static void give_up(struct weft__boot *boot, int i, int code, const char *why)
{
    char text[sizeof boot->join.why]; /* `why` is changed by what follows */
    weft__text_add(text, sizeof text, 0, "%s", why);
    boot->join.wanted &= ~bit(i);
    boot->join.joined &= ~bit(i);
    note(boot, i, code, text);
    shut(boot, bit(i), code);
}

void weft__join_keep(struct weft__boot *boot, uint32_t which, int code, const char *why)
{
    for (int i = 0; i < boot->conn->nlinks; i++)
        if (boot->join.wanted & ~which & bit(i))
            give_up(boot, i, code, why);
}

void weft__join_drop(struct weft__boot *boot)
{
    shut(boot, UINT32_MAX, WEFT_ECANCELED);
    boot->dropping = true;
}

bool weft__join_dropped(struct weft__boot *boot)
{
    struct weft__conn *conn = boot->conn;
    if (!boot->dropping)
        return true;
    pthread_mutex_lock(&boot->ep->lock);
    bool done = conn->links_open == 0 && !conn->stage.serving; /* which refers to links */
    for (int i = 0; done && i < conn->nlinks; i++) {
        free(conn->links[i]);
        conn->links[i] = NULL;
    }
    if (done)
        conn->nlinks = 0;
    pthread_mutex_unlock(&boot->ep->lock);
    boot->dropping = !done;
    return done;
}

/* --- opening ------------------------------------------------------------------------------------ */

/* The next link of the conn, not open yet: from now on it is closed by its lane, and only there. */
static struct weft__link *link_new(struct weft__boot *boot, struct weft__lane *lane)
{
    struct weft__conn *conn = boot->conn;
    struct weft__link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    weft__link_init(link, lane);
    link->conn = conn;
    pthread_mutex_lock(&boot->ep->lock);
    link->index = conn->nlinks;
    conn->links[conn->nlinks++] = link;
    conn->links_open++;
    if (conn->state == WEFT_CONN_DOWN) /* since we looked: closed by another thread */
        weft__link_shut(link, conn->status);
    pthread_mutex_unlock(&boot->ep->lock);
    return link;
}

static bool is_closing(struct weft__link *link)
{
    struct weft__endpoint *ep = link->conn->ep;
    pthread_mutex_lock(&ep->lock);
    bool closing = link->closing;
    pthread_mutex_unlock(&ep->lock);
    return closing;
}

/* The key of a link, if the endpoints share a secret; else *out is NULL. */
static int link_key(const struct weft__boot *boot, const struct weft__link *link,
                    uint8_t key[WEFT_MAC], const uint8_t **out)
{
    bool secured = boot->auth.state == WEFT__AUTH_SEALED;
    *out = secured ? key : NULL;
    return secured ? weft__auth_link_key(&boot->auth, link->lane->transport->name, boot->attempt,
                                         (uint8_t)link->index, key)
                   : 0;
}

/* Lane lock held. Returns the length of the address, or a code. */
static int open_locked(struct weft__boot *boot, struct weft__link *link,
                       uint8_t address[WEFT_LINK_ADDRESS_MAX])
{
    const struct weft__conn *conn = boot->conn;
    struct weft_nic *nic = link->lane->nic;
    uint8_t key[WEFT_MAC];
    struct weft_link_opts opts = {.role = boot->active ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE,
                                  .peer = (const struct sockaddr *)&conn->peer_addr.sa,
                                  .peer_len = conn->peer_addr.len};
    if (link->lane->lost)
        return weft_fail(link->lane->lost, "%s of this side was lost", link->lane->device);
    if (is_closing(link))
        return weft_fail(WEFT_ECLOSED, "the conn was closed during its handshake");
    int rc = link_key(boot, link, key, &opts.key);
    if (rc == 0)
        rc = nic->transport->ops->link_open(nic, &opts, &link->tl);
    explicit_bzero(key, sizeof key);
    if (rc)
        return rc;
    link->tl->user = link;
    return nic->transport->ops->link_address(link->tl, address, WEFT_LINK_ADDRESS_MAX);
}

/* Open a link and append its address, or that there is none. */
static void open_link(struct weft__boot *boot, struct weft__link *link, struct weft__writer *w)
{
    uint8_t address[WEFT_LINK_ADDRESS_MAX];
    struct weft__lane *lane = link->lane;
    weft__lane_lock(lane);
    int len = open_locked(boot, link, address);
    weft__lane_unlock(lane);
    if (len < 0) {
        weft__put_u8(w, false);
        give_up(boot, link->index, len, weft_last_error());
        return;
    }
    boot->join.open |= bit(link->index);
    weft__put_u8(w, true);
    weft__put_u8(w, lane->key_slot < 0 ? NO_SLOT : (uint8_t)lane->key_slot);
    weft__put_u16(w, (uint16_t)len);
    weft__put(w, address, (size_t)len);
}

int weft__join_open(struct weft__boot *boot, const struct weft_transport *transport, int n,
                    uint32_t which, struct weft__writer *w)
{
    struct weft__join *join = &boot->join;
    join->open = join->wanted = join->joined = join->refused = join->theirs = 0;
    join->ready = false;
    join->code = 0;
    weft__put_u8(w, (uint8_t)n);
    for (int i = 0; i < n; i++) {
        struct weft__lane *lane = weft__lane_of(boot->ep, transport->name, i);
        struct weft__link *link = lane ? link_new(boot, lane) : NULL;
        if (!link)
            return weft_fail(-ENOMEM, "no memory for a link");
        if (which & bit(i)) {
            open_link(boot, link, w);
        } else {
            weft__put_u8(w, false);
            give_up(boot, i, WEFT_ENOPATH, "the peer could not open its end");
        }
    }
    weft__kick_all(boot->ep);
    if (w->bad)
        return weft_fail(-EMSGSIZE, "link addresses are too long");
    return join->open ? 0 : weft_fail(join->code, "%s", join->why);
}

/* --- the peer's end ------------------------------------------------------------------------------ */

static int read_link(struct weft__join *join, struct weft__reader *r, int i)
{
    join->peer_slot[i] = weft__get_u8(r);
    uint16_t len = weft__get_u16(r);
    if (len > WEFT_LINK_ADDRESS_MAX ||
        (join->peer_slot[i] >= WEFT__KEYS && join->peer_slot[i] != NO_SLOT))
        return WEFT_EPROTO;
    join->peer_addr_len[i] = len;
    weft__get(r, join->peer_addr[i], len);
    return 0;
}

int weft__join_read(struct weft__boot *boot, struct weft__reader *r, uint32_t *which)
{
    int n = weft__get_u8(r), rc = 0;
    *which = 0;
    if (n < 1 || n > WEFT__MAX_LINKS)
        return WEFT_EPROTO;
    for (int i = 0; rc == 0 && i < n; i++) {
        uint8_t open = weft__get_u8(r);
        if (open > 1)
            return WEFT_EPROTO;
        if (open)
            rc = read_link(&boot->join, r, i);
        *which |= open ? bit(i) : 0;
    }
    return rc || r->bad || r->at != r->end || !*which ? WEFT_EPROTO : n;
}

/* --- joining ------------------------------------------------------------------------------------- */

void weft__join_begin(struct weft__boot *boot, uint32_t wanted)
{
    struct weft__join *join = &boot->join;
    uint64_t now = weft_now(), left = boot->deadline > now ? boot->deadline - now : 0;
    join->wanted = join->open;
    weft__join_keep(boot, wanted, WEFT_ENOPATH, "the peer could not open its end");
    /* half of the time is for those that take long, the rest for what comes after them */
    join->patience = now + left / 2;
    for (int i = 0; i < boot->conn->nlinks; i++) {
        struct weft__link *link = boot->conn->links[i];
        if (!(join->wanted & bit(i)) || link->lane->key_slot < 0)
            continue;
        link->peer_slot = join->peer_slot[i];
        if (link->peer_slot == NO_SLOT)
            give_up(boot, i, WEFT_ENOPATH, "the peer's nic has keys of another kind");
    }
}

/* 0 joined, WEFT_EAGAIN not yet, else a code. */
static int join_one(struct weft__boot *boot, int i)
{
    struct weft__link *link = boot->conn->links[i];
    const struct weft__join *join = &boot->join;
    int rc = weft_fail(WEFT_ELINK, "a link died while it was joined");
    weft__lane_lock(link->lane);
    if (link->tl && !is_closing(link))
        rc = link->lane->nic->transport->ops->link_connect(link->tl, join->peer_addr[i],
                                                           join->peer_addr_len[i]);
    weft__lane_unlock(link->lane);
    return rc;
}

bool weft__join_step(struct weft__boot *boot)
{
    struct weft__join *join = &boot->join;
    for (int i = 0; i < boot->conn->nlinks; i++) {
        if (!(join->wanted & ~join->joined & bit(i)))
            continue;
        int rc = join_one(boot, i);
        if (rc == 0)
            join->joined |= bit(i);
        if (rc == 0 || rc == WEFT_EAGAIN)
            continue;
        join->refused |= bit(i);
        give_up(boot, i, rc, weft_last_error());
    }
    if (join->joined && join->joined != join->wanted && weft_now() >= join->patience) {
        join->refused |= join->wanted & ~join->joined;
        weft__join_keep(boot, join->joined, WEFT_ETIMEOUT, "it was not joined in time");
    }
    return join->joined == join->wanted;
}
