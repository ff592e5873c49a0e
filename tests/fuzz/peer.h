/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conn over stub links whose peer is whoever calls this: it needs no handshake, and what arrives
 * on it, in which order, and how its cmds end is the caller's choice (stub.h).
 */
#ifndef WEFT_FUZZ_PEER_H
#define WEFT_FUZZ_PEER_H

#include "conn.h"
#include "endpoint.h"
#include "msg.h"
#include "stub.h"
#include "util.h"

/* An endpoint with a nic of each stub transport, the second without ADD64. No progress threads. */
struct weft__endpoint *peer_endpoint_open(weft_endpoint_t *endpoint);
/* A conn with a link over each of these nics, up. The peer takes so many eager bytes. */
struct weft__conn *peer_conn_open(struct weft__endpoint *ep, const int *lanes, int nlinks,
                                  uint64_t window);
/* Do what there is to do. */
void peer_drive(struct weft__endpoint *ep);
/* A remote of the peer's memory. */
struct weft_remote peer_remote(uint64_t len);
/* Encode a message's head; the body goes behind it. */
void peer_put_head(struct weft__writer *w, const struct weft__msg_head *head);
/* The other way, of a message that core has posted. Its first 8 bytes of body in *id. */
void peer_get_head(const struct stub_cmd *cmd, struct weft__msg_head *head, uint64_t *id);

#endif
