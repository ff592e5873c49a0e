/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap handshake: bytes of a stranger who connects to an endpoint, or of what an endpoint
 * connects to. Mostly frames that are right but for a field or two, in pieces of any size; what
 * the transports do meanwhile is of the input, too. With and without a shared secret: there the
 * input's frames carry the right codes, but for those that it damages.
 */
#include "fuzz.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "handshake.h"
#include "auth.h"
#include "boot.h"
#include "conn.h"
#include "endpoint.h"
#include "lane.h"
#include "progress.h"
#include "util.h"
#include "stub.h"

#define MAGIC 0x54464557u
#define STEPS 64 /* of one input */

static weft_endpoint_t endpoint;
static struct weft__endpoint *ep;
static uint8_t metadata[WEFT_METADATA_MAX]; /* of this endpoint, but with its address twice */
static size_t metadata_len;

struct peer {
    struct fuzz_in in;
    int fd;
    bool passive_side; /* the endpoint under test is: we are active */
    uint8_t attempt;   /* of the endpoint's last offer, or of ours */
    bool looked_for;   /* is whom the metadata names */
    struct weft__auth auth;
    bool heard_proof, said_proof;
    uint8_t rx[65536]; /* of what the endpoint says, what is not a whole frame */
    size_t rx_len;
};

static void set_up(void)
{
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_config_set("WEFT_LANES", "2"));
    FUZZ_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "stub,stub2",
                                         .listen = "127.0.0.1",
                                         .progress_threads = WEFT_PROGRESS_CALLER),
                               &endpoint));
    ep = weft__handle_get(endpoint, WEFT__ENDPOINT);
    FUZZ_CHECK(ep);
    weft__handle_put(endpoint);
    int len = weft_endpoint_metadata(endpoint, metadata, sizeof metadata);
    const char host[] = "127.0.0.1"; /* the last that is in it: a count of 1, a length, the text */
    size_t entry = 2 + sizeof host - 1;
    FUZZ_CHECK(len > 0 && metadata[(size_t)len - entry - 1] == 1);
    memcpy(metadata + len, metadata + (size_t)len - entry, entry);
    metadata[(size_t)len - entry - 1] = 2;
    metadata_len = (size_t)len + entry;
    FUZZ_OK(weft__mac_load());
    memset(ep->auth_key, 0x17, sizeof ep->auth_key); /* in use where an input says so */
}

/* --- the secret: what a peer that knows it would have --------------------------------------- */

static enum weft_role our_role(const struct peer *peer)
{
    return peer->passive_side ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE;
}

static enum weft_role its_role(const struct peer *peer)
{
    return peer->passive_side ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
}

static void seal_if_due(struct peer *peer)
{
    if (peer->heard_proof && peer->said_proof && peer->auth.state != WEFT__AUTH_SEALED)
        FUZZ_OK(weft__auth_seal(ep->auth_key, &peer->auth));
}

static void hear_secret(struct peer *peer, uint8_t type, const uint8_t *body, uint32_t len)
{
    if (type == WEFT__CHALLENGE && len == WEFT__NONCE + 16) {
        memcpy(peer->auth.nonce[its_role(peer)], body, WEFT__NONCE);
        memcpy(peer->auth.uuid, body + WEFT__NONCE, 16);
    }
    peer->heard_proof |= type == WEFT__PROOF;
    seal_if_due(peer);
}

static void put_secret(struct peer *peer, uint8_t type, struct weft__writer *w)
{
    uint8_t *nonce = peer->auth.nonce[our_role(peer)], proof[WEFT_MAC];
    if (type == WEFT__CHALLENGE) {
        memset(nonce, fuzz_u8(&peer->in), WEFT__NONCE);
        weft__put(w, nonce, WEFT__NONCE);
        weft__put(w, peer->auth.uuid, 16);
    } else if (type == WEFT__PROOF) {
        FUZZ_OK(weft__auth_proof(ep->auth_key, &peer->auth, our_role(peer), proof));
        weft__put(w, proof, sizeof proof);
    } else {
        weft__put_u8(w, fuzz_u8(&peer->in) % 5);
    }
}

/* --- what the endpoint says ----------------------------------------------------------------- */

static uint32_t little(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Its frames are well-formed; remember what an answer needs. */
static void hear(struct peer *peer)
{
    ssize_t n = recv(peer->fd, peer->rx + peer->rx_len, sizeof peer->rx - peer->rx_len,
                     MSG_DONTWAIT);
    peer->rx_len += n > 0 ? (size_t)n : 0;
    size_t at = 0;
    while (peer->rx_len - at >= WEFT__FRAME_HEAD) {
        const uint8_t *frame = peer->rx + at;
        uint32_t len = little(frame + 8);
        FUZZ_CHECK(little(frame) == MAGIC && len <= WEFT__FRAME_MAX);
        if (peer->rx_len - at < WEFT__FRAME_HEAD + len)
            break;
        if (frame[6] == WEFT__OFFER && len)
            peer->attempt = frame[WEFT__FRAME_HEAD];
        hear_secret(peer, frame[6], frame + WEFT__FRAME_HEAD, len);
        at += WEFT__FRAME_HEAD + len;
    }
    peer->rx_len -= at;
    memmove(peer->rx, peer->rx + at, peer->rx_len);
}

/* The endpoint has gone on to the next address: another conversation. */
static void follow(struct peer *peer)
{
    int fd = fuzz_net_take();
    if (fd < 0)
        return;
    close(peer->fd);
    peer->fd = fd;
    peer->rx_len = 0;
    peer->auth.state = WEFT__AUTH_OFF;
    memset(peer->auth.frames, 0, sizeof peer->auth.frames);
    peer->heard_proof = peer->said_proof = false;
}

static void drive(struct peer *peer)
{
    weft__boot_progress(ep);
    weft__kick_all(ep);
    if (peer->fd >= 0) {
        follow(peer);
        hear(peer);
    }
}

/* --- what we say ---------------------------------------------------------------------------- */

static void put_hello(struct peer *peer, struct weft__writer *w)
{
    struct fuzz_in *in = &peer->in;
    static const char *const names[] = {"stub", "stub2", "tcp", "pigeon"};
    static const uint8_t another[16] = {1, 2, 3};
    weft__put(w, peer->looked_for ? ep->uuid : another, sizeof another);
    weft__put(w, ep->host.boot_id, sizeof ep->host.boot_id);
    weft__put_u64(w, fuzz_near(in, ep->host.netns));
    weft__put_u32(w, (uint32_t)fuzz_near(in, 1));
    weft__put_u64(w, fuzz_near(in, 65536));
    uint8_t n = fuzz_u8(in) % 20;
    weft__put_u8(w, (uint8_t)fuzz_near(in, n));
    for (int i = 0; i < n; i++) {
        uint8_t name = fuzz_u8(in);
        weft__put_text(w, names[name % 4]);
        weft__put_u8(w, (uint8_t)fuzz_near(in, 2));
    }
}

static void put_offer(struct peer *peer, struct weft__writer *w)
{
    static const char *const names[] = {"stub", "stub2", "stub", "no such transport"};
    struct fuzz_in *in = &peer->in;
    peer->attempt = (uint8_t)fuzz_near(in, peer->attempt + 1u);
    weft__put_u8(w, peer->attempt);
    weft__put_u8(w, (uint8_t)fuzz_near(in, 2));
    weft__put_text(w, names[fuzz_pick(in, 4)]);
}

static void put_links(struct fuzz_in *in, struct weft__writer *w)
{
    uint8_t address[WEFT_LINK_ADDRESS_MAX + 64] = {0};
    int n = fuzz_u8(in) % 32;
    n = n < 16 ? 2 : n - 15; /* both sides have two nics of each transport */
    weft__put_u8(w, (uint8_t)fuzz_near(in, (uint64_t)n));
    for (int i = 0; i < n; i++) {
        uint16_t len = (uint16_t)fuzz_near(in, 8);
        uint8_t open = (uint8_t)fuzz_near(in, 1);
        weft__put_u8(w, open);
        if (!open)
            continue;
        weft__put_u8(w, (uint8_t)fuzz_near(in, (uint64_t)i));
        weft__put_u16(w, len);
        weft__put(w, address, len < sizeof address ? len : sizeof address);
    }
}

static void put_text(struct fuzz_in *in, struct weft__writer *w)
{
    char text[300];
    size_t len = fuzz_u16(in) % sizeof text;
    memset(text, 'x', sizeof text);
    text[len] = 0;
    weft__put_u32(w, (uint32_t)fuzz_near(in, (uint64_t)WEFT_EREFUSED));
    weft__put_text(w, text);
}

static void put_body(struct peer *peer, uint8_t type, struct weft__writer *w)
{
    const uint8_t *span;
    size_t len;
    switch (type) {
    case WEFT__HELLO:
        put_hello(peer, w);
        return;
    case WEFT__OFFER:
        put_offer(peer, w);
        return;
    case WEFT__LINKS:
    case WEFT__READY:
    case WEFT__DONE:
    case WEFT__NO:
    case WEFT__REJECT:
        weft__put_u8(w, (uint8_t)fuzz_near(&peer->in, peer->attempt));
        if (type == WEFT__LINKS)
            put_links(&peer->in, w);
        if (type == WEFT__READY || type == WEFT__DONE) /* which of two links */
            weft__put_u32(w, (uint32_t)fuzz_near(&peer->in, 3));
        if (type == WEFT__NO || type == WEFT__REJECT)
            put_text(&peer->in, w);
        return;
    case WEFT__CHALLENGE:
    case WEFT__PROOF:
    case WEFT__DENY:
        put_secret(peer, type, w);
        return;
    default:
        len = fuzz_span(&peer->in, fuzz_u8(&peer->in), &span);
        weft__put(w, span, len);
    }
}

/* In two pieces, sometimes. */
static void say(struct peer *peer, const uint8_t *bytes, size_t len)
{
    uint8_t cut = fuzz_u8(&peer->in);
    size_t first = cut < 192 || !len ? len : cut % len;
    FUZZ_CHECK(len < WEFT__FRAME_MAX + 64u);
    send(peer->fd, bytes, first, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (first == len)
        return;
    drive(peer);
    send(peer->fd, bytes + first, len - first, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void say_frame(struct peer *peer, uint8_t type)
{
    uint8_t frame[WEFT__FRAME_MAX + WEFT_MAC];
    struct weft__writer body = {frame + WEFT__FRAME_HEAD, frame + WEFT__FRAME_MAX, false};
    put_body(peer, type, &body);
    size_t len = (size_t)(body.at - frame) - WEFT__FRAME_HEAD;
    struct weft__writer w = {frame, frame + WEFT__FRAME_HEAD, false};
    weft__put_u32(&w, MAGIC);
    weft__put_u16(&w, (uint16_t)fuzz_near(&peer->in, WEFT__BOOT_VERSION));
    weft__put_u16(&w, type);
    bool sealed = peer->auth.state == WEFT__AUTH_SEALED;
    weft__put_u32(&w, (uint32_t)fuzz_near(&peer->in, len + (sealed ? WEFT_MAC : 0)));
    len += WEFT__FRAME_HEAD;
    if (sealed) {
        FUZZ_OK(weft__auth_sign(&peer->auth, our_role(peer), frame, len, frame + len));
        len += WEFT_MAC;
    }
    peer->said_proof |= type == WEFT__PROOF;
    say(peer, frame, fuzz_damage(&peer->in, frame, len));
    seal_if_due(peer);
}

/* The frame that comes next if all goes well. */
static uint8_t next_frame(const struct peer *peer, int nth)
{
    static const uint8_t active[] = {WEFT__CHALLENGE, WEFT__PROOF, WEFT__HELLO,
                                     WEFT__OFFER,     WEFT__LINKS, WEFT__DONE};
    static const uint8_t passive[] = {WEFT__CHALLENGE, WEFT__PROOF, WEFT__HELLO, WEFT__LINKS,
                                      WEFT__READY};
    int first = ep->secured ? 0 : 2; /* without a secret there is nothing to prove */
    return peer->passive_side ? active[first + nth % (6 - first)]
                              : passive[first + nth % (5 - first)];
}

static void script(struct fuzz_in *in)
{
    static const int results[] = {0, 0, WEFT_EPROTO, -EHOSTUNREACH};
    uint8_t what = fuzz_u8(in);
    stub_script.open_fails = what & 1 ? fuzz_u8(in) % 4 : 0;
    stub_script.connect_later = what & 2 ? fuzz_u8(in) % 3 : 0;
    stub_script.connect_result = results[what >> 2 & 3];
    stub_script.connect_spared = what >> 4 & 3;
}

static void step(struct peer *peer, int *nth)
{
    uint8_t what = fuzz_u8(&peer->in);
    const uint8_t *span;
    struct weft_link *link;
    if (what < 128)
        say_frame(peer, next_frame(peer, (*nth)++));
    else if (what < 176)
        say_frame(peer, what % (WEFT__DENY + 2));
    else if (what < 192)
        script(&peer->in);
    else if (what < 208 && (link = stub_link_at(what % 4)))
        stub_down(link, WEFT_EPEER);
    else if (what < 224) {
        size_t len = fuzz_span(&peer->in, fuzz_u8(&peer->in), &span);
        send(peer->fd, span, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (what < 240)
        for (int i = 0; i < ep->nlanes; i++)
            weft__lane_progress(ep->lanes[i]);
    drive(peer);
}

/* --- one input ------------------------------------------------------------------------------ */

static void begin(struct peer *peer, weft_conn_t *conn)
{
    uint8_t how = fuzz_u8(&peer->in);
    const struct weft_connect_opts *opts = WEFT_OPTS(weft_connect_opts, .nonblocking = 1);
    peer->looked_for = how & 16;
    peer->passive_side = how & 1;
    ep->passive = how & 2;
    ep->secured = how & 4;
    stub_script = (struct stub_script){0};
    if (peer->passive_side) {
        peer->fd = fuzz_net_dial(0);
    } else {
        FUZZ_OK(how & 8 ? weft_endpoint_connect(endpoint, metadata, metadata_len, opts, conn)
                        : weft_endpoint_connect_to(endpoint, "127.0.0.1:4711", opts, conn));
        peer->fd = fuzz_net_take();
        FUZZ_CHECK(peer->fd >= 0);
    }
    drive(peer);
}

/* The stranger is gone: so is all that it was to the endpoint. */
static void end(struct peer *peer, weft_conn_t conn)
{
    weft_conn_t accepted;
    close(peer->fd);
    peer->fd = -1;
    pthread_mutex_lock(&ep->lock);
    for (struct weft__conn *c = ep->conns; c; c = c->next)
        weft__conn_down(c, WEFT_EPEER, "the input is over");
    pthread_mutex_unlock(&ep->lock);
    for (int i = 0; i < 4; i++)
        drive(peer);
    if (conn)
        FUZZ_OK(weft_conn_close(conn));
    while (ep->naccepts && weft_endpoint_accept(endpoint, 0, &accepted) == 0)
        FUZZ_OK(weft_conn_close(accepted));
    drive(peer);
    FUZZ_CHECK(!ep->nboots && !ep->booting && !ep->nconns && !ep->reapable && !stub_link_at(0));
    fuzz_net_reset();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct peer peer;
    weft_conn_t conn = 0;
    int nth = 0;
    if (!endpoint)
        set_up();
    peer.in = (struct fuzz_in){data, data + size};
    peer.attempt = 0;
    peer.rx_len = 0;
    memset(&peer.auth, 0, sizeof peer.auth);
    peer.heard_proof = peer.said_proof = false;
    begin(&peer, &conn);
    for (int i = 0; i < STEPS && fuzz_more(&peer.in); i++)
        step(&peer, &nth);
    end(&peer, conn);
    return 0;
}
