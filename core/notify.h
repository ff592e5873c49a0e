/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications that have arrived, until they are handed out. */
#ifndef WEFT_CORE_NOTIFY_H
#define WEFT_CORE_NOTIFY_H

struct weft__arrival;
struct weft__conn;
struct weft__endpoint;

/* All with the endpoint lock held. */
void weft__notif_arrived(struct weft__conn *conn, struct weft__arrival *arrival);
void weft__notif_down(struct weft__conn *conn);
/* Next notification that may be handed out, or NULL. */
struct weft__arrival *weft__notif_pop(struct weft__endpoint *ep);

#endif
