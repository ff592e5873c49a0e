/* SPDX-License-Identifier: Apache-2.0 */
/* How many short messages of each stream were taken: what is told, and what is heard. */
#ifndef WEFT_CORE_COUNTS_H
#define WEFT_CORE_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "match.h"

struct weft__conn;
struct weft__endpoint;
struct weft__msg_head;

/* All with the endpoint lock held. */

/* The counts that go into every header; marks them as told. */
void weft__counts_put(struct weft__conn *conn, uint32_t taken[2]);
/* One more eager message of a stream is taken: the peer is to be told. */
void weft__counts_take(struct weft__conn *conn, struct weft__stream *s, uint64_t len, bool urgent);
/* Tell the peer what was taken and has found no message to ride on; of all peers. */
void weft__counts_tell(struct weft__conn *conn);
void weft__counts_tell_all(struct weft__endpoint *ep);
/* A RESULT with a cap has its header; next: the one after it that has not, or NULL. */
void weft__counts_uncap(struct weft__conn *conn, enum weft__stream_id stream,
                        const struct weft__msg_head *next);

/* End what these counts of the peer's end. WEFT_EPROTO: they cannot be. */
int weft__counts_taken(struct weft__conn *conn, const uint32_t taken[2]);
/* The same, but what they end may end a moment later: when next anyone makes progress. */
int weft__counts_heard(struct weft__conn *conn, const uint32_t taken[2]);
/* What has waited since. Returns of how many conns. */
int weft__counts_hear_all(struct weft__endpoint *ep);
/* The same of one conn, which goes down; and then it is in no list any more. */
void weft__counts_last(struct weft__conn *conn);
void weft__counts_down(struct weft__conn *conn);

#endif
