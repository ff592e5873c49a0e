/* SPDX-License-Identifier: Apache-2.0 */
/* The peer of peer.h. */
#include "peer.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "lane.h"
#include "progress.h"

#define OWNER 0x04030201u /* of the peer's remotes */

struct weft__endpoint *peer_endpoint_open(weft_endpoint_t *endpoint)
{
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "stub,stub2",
                                         .listen = "127.0.0.1",
                                         .progress_threads = WEFT_PROGRESS_CALLER),
                               endpoint));
    struct weft__endpoint *ep = weft__handle_get(*endpoint, WEFT__ENDPOINT);
    FUZZ_CHECK(ep && ep->nlanes == 2);
    weft__handle_put(*endpoint);
    ep->lanes[1]->nic->attr.ops &= ~WEFT_OP_BIT(WEFT_OP_ADD64);
    return ep;
}

static void open_link(struct weft__conn *conn, struct weft__lane *lane)
{
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    struct weft__link *link = calloc(1, sizeof *link);
    FUZZ_CHECK(link);
    weft__link_init(link, lane);
    link->conn = conn;
    link->index = conn->nlinks;
    FUZZ_OK(lane->nic->transport->ops->link_open(lane->nic, &opts, &link->tl));
    link->tl->user = link;
    conn->links[conn->nlinks++] = link;
    conn->links_open++;
}

struct weft__conn *peer_conn_open(struct weft__endpoint *ep, const int *lanes, int nlinks,
                                  uint64_t window)
{
    struct weft__conn *conn;
    FUZZ_OK(weft__conn_open(ep, true, NULL, &conn));
    for (int i = 0; i < nlinks; i++)
        open_link(conn, ep->lanes[lanes[i]]);
    conn->peer_owner = OWNER;
    conn->peer_window = window;
    pthread_mutex_lock(&ep->lock);
    conn->handshaking = false;
    weft__conn_up(conn);
    pthread_mutex_unlock(&ep->lock);
    return conn;
}

void peer_drive(struct weft__endpoint *ep)
{
    for (int i = 0; i < ep->nlanes; i++)
        weft__lane_progress(ep->lanes[i]);
    weft__copier_progress(ep, &ep->copier);
    weft__tell(ep);
}

struct weft_remote peer_remote(uint64_t len)
{
    struct weft_remote r;
    struct weft__writer w = {r.bytes, r.bytes + sizeof r.bytes, false};
    memset(&r, 0, sizeof r);
    weft__put_u8(&w, 1);
    weft__put_u8(&w, WEFT_READ | WEFT_WRITE | WEFT_ATOMIC);
    weft__put_u16(&w, 0x7257);
    weft__put_u32(&w, OWNER);
    weft__put_u64(&w, 0x10000);
    weft__put_u64(&w, len);
    return r;
}

void peer_put_head(struct weft__writer *w, const struct weft__msg_head *head)
{
    weft__put_u8(w, head->type);
    weft__put_u8(w, head->flags);
    weft__put_u8(w, head->stream);
    weft__put_u8(w, 0);
    weft__put_u32(w, head->index);
    weft__put_u64(w, head->seq);
    weft__put_u32(w, head->taken[0]);
    weft__put_u32(w, head->taken[1]);
    weft__put_u64(w, head->len);
    weft__put_u64(w, 0);
}

void peer_get_head(const struct stub_cmd *cmd, struct weft__msg_head *head, uint64_t *id)
{
    uint8_t bytes[WEFT__MSG_HEAD + 8] = {0};
    FUZZ_CHECK(stub_payload(cmd, bytes, sizeof bytes) >= WEFT__MSG_HEAD);
    struct weft__reader r = {bytes, bytes + sizeof bytes, false};
    memset(head, 0, sizeof *head);
    head->type = weft__get_u8(&r);
    head->flags = weft__get_u8(&r);
    head->stream = weft__get_u8(&r);
    weft__get_u8(&r);
    head->index = weft__get_u32(&r);
    head->seq = weft__get_u64(&r);
    head->taken[0] = weft__get_u32(&r);
    head->taken[1] = weft__get_u32(&r);
    head->len = weft__get_u64(&r);
    weft__get_u64(&r);
    *id = weft__get_u64(&r);
    FUZZ_CHECK(head->type >= 1 && head->type < WEFT__MSG_TYPES && head->stream < WEFT__STREAMS);
}
