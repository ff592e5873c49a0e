/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that begin after what their caller has queued on a stream of a GPU (weft_xfer.stream). after.c */
#ifndef WEFT_CORE_AFTER_H
#define WEFT_CORE_AFTER_H

#include "weft/list.h"

struct weft__after;
struct weft__conn;
struct weft__endpoint;
struct weft__op;

/* Mark the end of what is queued on a stream now. No lock held. */
int weft__after_mark(struct weft__endpoint *ep, void *stream, struct weft__after **out);
/* No operation came of it. No lock held. */
void weft__after_drop(struct weft__after *after);

/* Endpoint lock held: */

/* Start an op that is new on its conn: after the mark, or now (NULL), but not before one that was posted earlier and has to
 * come first. */
void weft__after_start(struct weft__conn *conn, struct weft__op *op, struct weft__after *after);
/* The op is canceled: it waits no more. */
void weft__after_leave(struct weft__op *op);

#endif
