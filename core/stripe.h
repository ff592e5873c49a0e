/* SPDX-License-Identifier: Apache-2.0 */
/* Data operations: their pieces over the links of a conn, and the wrs they go by. */
#ifndef WEFT_CORE_STRIPE_H
#define WEFT_CORE_STRIPE_H

#include "weft/transport.h"

struct weft__conn;
struct weft__endpoint;
struct weft__op;
struct weft__wr;

/* All with the endpoint lock held. */
struct weft__wr *weft__wr_new(struct weft__endpoint *ep);
void weft__wr_free(struct weft__endpoint *ep, struct weft__wr *wr);
/* A new op. It may have ended when this returns, if there was nothing to move. */
void weft__stripe_start(struct weft__conn *conn, struct weft__op *op);
/* Out of the queue that it waits in, if it does: no more of it is sent. */
void weft__stripe_leave(struct weft__op *op);
/* Assign work to links as far as they have room. */
void weft__stripe_fill(struct weft__conn *conn);
/* The nth cmd of a run, made of the first one. Lane lock held, and no other. */
void weft__stripe_cmd(const struct weft__wr *wr, uint32_t nth, struct weft_cmd *cmd);
/* The nth cmd of a wr failed. */
void weft__stripe_failed(struct weft__wr *wr, uint32_t nth, int status, const char *why);
/* All cmds of a wr have ended, the last one so. */
void weft__stripe_done(struct weft__wr *wr, const struct weft_comp *comp);
/* The link of a wr is closed: keep it for another link, or end it. */
void weft__stripe_orphan(struct weft__wr *wr);
/* The peer has closed its end of link i: what was posted there may go elsewhere. */
void weft__stripe_release(struct weft__conn *conn, int i);
/* End what waits for another link: of op, or of all ops if op is NULL. */
void weft__stripe_drop(struct weft__conn *conn, const struct weft__op *op, int status,
                       const char *text);
/* Tell the peer how its addition ended. 0, or a code that takes the conn down. */
int weft__add_answer(struct weft__conn *conn, uint64_t id, int status, uint64_t old);
/* Messages of additions on nics that have none. 0, or a code that takes the conn down. */
int weft__add_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);
int weft__added_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);

#endif
