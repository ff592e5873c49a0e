/* SPDX-License-Identifier: Apache-2.0 */
/* The shared secret: how two endpoints prove that they have it, and the codes and keys that come
 * of it. */
#ifndef WEFT_CORE_AUTH_H
#define WEFT_CORE_AUTH_H

#include <stdbool.h>

#include "weft/transport.h"

#include "handshake.h"

struct weft__boot;
struct weft__endpoint;

#define WEFT__NONCE 32
#define WEFT__AUTH_FRAME (WEFT__FRAME_HEAD + WEFT__NONCE + 16) /* longest before the proof */

enum weft__auth_state {
    WEFT__AUTH_OFF,       /* this endpoint has no secret */
    WEFT__AUTH_CHALLENGE, /* waits for the peer's challenge */
    WEFT__AUTH_PROOF,     /* waits for the peer's proof */
    WEFT__AUTH_SEALED     /* it has come; every frame carries a code from now on */
};

/* What two endpoints have said to each other. Arrays of two are by enum weft_role. */
struct weft__auth {
    enum weft__auth_state state;
    uint8_t nonce[2][WEFT__NONCE];
    uint8_t uuid[16]; /* of the passive endpoint; zeros: the active one does not know it */
    uint8_t session[WEFT_MAC];
    uint8_t frame_key[2][WEFT_MAC]; /* by who sends */
    uint64_t frames[2];             /* sent so far */
};

/* Set the endpoint's secret: the caller's, else that of WEFT_SECRET_FILE, else none. */
int weft__auth_open(struct weft__endpoint *ep, const void *secret, size_t len);
/* Under the secret's key: a side's proof; the keys of the conversation. */
int weft__auth_proof(const uint8_t key[WEFT_MAC], const struct weft__auth *auth,
                     enum weft_role role, uint8_t proof[WEFT_MAC]);
int weft__auth_seal(const uint8_t key[WEFT_MAC], struct weft__auth *auth);
/* The code of the next frame of a side. weft__auth_check: 0, or WEFT_EAUTH. */
int weft__auth_sign(struct weft__auth *auth, enum weft_role from, const void *frame, size_t len,
                    uint8_t mac[WEFT_MAC]);
int weft__auth_check(struct weft__auth *auth, enum weft_role from, const void *frame, size_t len,
                     const uint8_t mac[WEFT_MAC]);
/* Key of the index-th link of an attempt. */
int weft__auth_link_key(const struct weft__auth *auth, const char *transport, uint8_t attempt,
                        uint8_t index, uint8_t key[WEFT_MAC]);

/* The conversation. Boot lock held. */
static inline bool weft__auth_pending(const struct weft__auth *auth)
{
    return auth->state == WEFT__AUTH_CHALLENGE || auth->state == WEFT__AUTH_PROOF;
}
void weft__auth_begin(struct weft__boot *boot);
/* While pending: may a frame like this come now? If not, the boot has failed. */
bool weft__auth_expects(struct weft__boot *boot, uint16_t type, uint32_t len);
void weft__auth_frame(struct weft__boot *boot, uint16_t type, const uint8_t *body);
/* A challenge has come, and this endpoint has no secret. */
void weft__auth_unwanted(struct weft__boot *boot);

#endif
