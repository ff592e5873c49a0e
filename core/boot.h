/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstrap sockets: boot.c moves the bytes of a handshake, handshake.c decides. */
#ifndef WEFT_CORE_BOOT_H
#define WEFT_CORE_BOOT_H

#include <stdbool.h>

#include "weft/transport.h"

#include "auth.h"
#include "join.h"
#include "lane.h"
#include "util.h"

struct weft__conn;
struct weft__endpoint;

/* One bootstrap socket: frames in, frames out. boot.c moves the bytes, handshake.c decides. */
struct weft__boot {
    struct weft__boot *next;
    struct weft__endpoint *ep;
    struct weft__conn *conn; /* NULL: a stranger that has not said hello */
    int fd;                  /* -1: dead, to be swept */
    bool active, connecting, want_write;
    bool kept;                     /* the handshake is over; EOF means that the peer died */
    uint8_t place;                 /* passive: weft_stranger_from */
    uint64_t since;                /* passive: when it came */
    int state;                     /* handshake.c */
    uint64_t deadline, try_until;  /* of all, and of the address being tried */
    struct weft__address addrs[8]; /* active: where to try */
    int naddrs, addr;
    struct weft__auth auth;
    uint8_t *rx; /* for one frame of those that may come now */
    size_t rx_len, rx_cap;
    uint8_t *tx;
    size_t tx_len, tx_sent;
    /* active: transports to offer, best first, and which is on offer */
    const struct weft_transport *offers[WEFT__MAX_LANES];
    int noffers, offer;
    uint8_t attempt;  /* of the offer that is under way */
    bool dropping;    /* links of a failed attempt are being closed */
    bool next_offer;  /* active: make the next offer when they are */
    uint8_t held[64]; /* passive: an offer that came before they are */
    size_t held_len;
    struct weft__join join;
    char policy[128];
    char reasons[256]; /* why better transports were passed over */
};

int weft__boot_open(struct weft__endpoint *ep, const char *listen);
void weft__boot_close(struct weft__endpoint *ep);
/* Boot lock held. Queue a frame. */
void weft__boot_send(struct weft__boot *boot, uint16_t type, const void *body, size_t len);
/* Close the socket; the conn, if it is not up, goes down with this. */
void weft__boot_fail(struct weft__boot *boot, int status, const char *fmt, ...) WEFT_PRINTF(3, 4);
#define WEFT__OTHER_ENDPOINT                                                                      \
    "the endpoint of this metadata is gone, another one listens in its place"
/* The same, unless the peer has not said hello and there is another address to try. */
void weft__boot_elsewhere(struct weft__boot *boot, int status, const char *fmt, ...)
    WEFT_PRINTF(3, 4);
/* The handshake is over: the socket is closed, or kept to learn of the peer's death. */
void weft__boot_end(struct weft__boot *boot, bool keep);
/* Drive listener and handshakes. Returns things that happened. */
int weft__boot_progress(struct weft__endpoint *ep);
/* Begin connecting to one of these addresses, where the endpoint with this uuid (NULL: any) is to
 * be. Boot lock held. */
int weft__boot_connect(struct weft__conn *conn, const struct weft__address *list, int n,
                       const uint8_t *uuid, const char *policy, uint64_t deadline);
/* Nearest deadline of a handshake, UINT64_MAX if none. */
uint64_t weft__boot_deadline(struct weft__endpoint *ep);

#endif
