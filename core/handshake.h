/* SPDX-License-Identifier: Apache-2.0 */
/* The frames with which two endpoints become a conn, and what to do about each. */
#ifndef WEFT_CORE_HANDSHAKE_H
#define WEFT_CORE_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weft__boot;

/* Least WEFT_EAGER_WINDOW: one below it would not take the longest message that peers send so. */
#define WEFT__WINDOW_LEAST 65536

/* Version of what follows, and of the proofs. */
#define WEFT__BOOT_VERSION 5
#define WEFT__FRAME_HEAD 12
#define WEFT__FRAME_MAX 32768 /* an address of each of WEFT__MAX_LINKS links */

enum weft__frame {
    WEFT__HELLO = 1,
    WEFT__OFFER,
    WEFT__LINKS,
    WEFT__READY,
    WEFT__DONE,
    WEFT__NO,
    WEFT__REJECT,
    WEFT__CHALLENGE, /* these three before the peer's proof has been checked: auth.c */
    WEFT__PROOF,
    WEFT__DENY
};

/* What boot.c asks of handshake.c. Boot lock held. */
/* The active side's first word: the socket is connected, and proofs have been checked. */
void weft__handshake_begin(struct weft__boot *boot);
/* Tell the peer, then fail. */
void weft__handshake_reject(struct weft__boot *boot, int code, const char *text);
void weft__handshake_frame(struct weft__boot *boot, uint16_t type, const uint8_t *body,
                           size_t len);
void weft__handshake_step(struct weft__boot *boot);          /* time has passed */
bool weft__handshake_joining(const struct weft__boot *boot); /* needs to be stepped often */

#endif
