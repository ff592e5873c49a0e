/* SPDX-License-Identifier: Apache-2.0 */
/* The links of a conn while it is made: opened, joined, and those given up that are not. */
#ifndef WEFT_CORE_JOIN_H
#define WEFT_CORE_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/transport.h"

#include "lane.h"
#include "util.h"

struct weft__boot;

/* Links of one attempt. Sets of links are bits. */
struct weft__join {
    uint32_t open;     /* opened here */
    uint32_t wanted;   /* opened at both ends: to be joined */
    uint32_t joined;   /* here */
    uint32_t refused;  /* by the transport here: the peer has not been told yet */
    uint32_t theirs;   /* joined at the peer, once it has said READY */
    bool ready;        /* it has */
    uint64_t patience; /* who is not joined by then is given up, if another one is */
    int code;          /* of the first that was given up, and why */
    char why[160];
    int peer_slot[WEFT__MAX_LINKS];
    uint8_t peer_addr[WEFT__MAX_LINKS][WEFT_LINK_ADDRESS_MAX];
    uint16_t peer_addr_len[WEFT__MAX_LINKS];
};

/* Boot lock held in all of them. */

/* Nics of an endpoint that have a transport; the nth of them, or NULL. */
int weft__lanes_of(const struct weft__endpoint *ep, const char *transport);
struct weft__lane *weft__lane_of(const struct weft__endpoint *ep, const char *transport, int nth);

/* Make n links of a transport, open those of `which`, and append what a LINKS frame says of them. 0
 * if one or more could be opened, else a code with the reason of the first. */
int weft__join_open(struct weft__boot *boot, const struct weft_transport *transport, int n,
                    uint32_t which, struct weft__writer *w);
/* What the peer says of its links: how many there are, WEFT_EPROTO, or a code. `which`: opened there. */
int weft__join_read(struct weft__boot *boot, struct weft__reader *r, uint32_t *which);
/* The links to be joined, which both ends have opened. */
void weft__join_begin(struct weft__boot *boot, uint32_t wanted);
/* A step. True when none is left that may still be joined here. */
bool weft__join_step(struct weft__boot *boot);
/* Close all but these. */
void weft__join_keep(struct weft__boot *boot, uint32_t which, int code, const char *why);
/* Close all. dropped: true when that is done, and the conn has no links any more. */
void weft__join_drop(struct weft__boot *boot);
bool weft__join_dropped(struct weft__boot *boot);

#endif
