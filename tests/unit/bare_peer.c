/* SPDX-License-Identifier: Apache-2.0 */
/* See bare_peer.h. */
#include "bare_peer.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "handshake.h"
#include "util.h"

static int dial(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = TEST_DEADLINE_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&at, sizeof at), "connect: %m");
    return fd;
}

static void hear(int fd, void *data, size_t len)
{
    ssize_t n = recv(fd, data, len, MSG_WAITALL);
    CHECK(n == (ssize_t)len, "the endpoint said %zd bytes of %zu: %m", n, len);
}

static void say(struct bare_peer *peer, enum weft__frame type, const void *body, size_t len)
{
    uint8_t frame[WEFT__FRAME_MAX];
    struct weft__writer w = {frame, frame + sizeof frame, false};
    weft__put_u32(&w, 0x54464557u);
    weft__put_u16(&w, WEFT__BOOT_VERSION);
    weft__put_u16(&w, (uint16_t)type);
    weft__put_u32(&w, (uint32_t)len);
    weft__put(&w, body, len);
    ssize_t n = send(peer->boot, frame, (size_t)(w.at - frame), MSG_NOSIGNAL);
    CHECK(n == w.at - frame, "a bootstrap frame was not sent: %m");
}

/* The body of the next frame, which has this type. */
static size_t expect(struct bare_peer *peer, enum weft__frame type, uint8_t *body, size_t cap)
{
    uint8_t head[WEFT__FRAME_HEAD];
    hear(peer->boot, head, sizeof head);
    struct weft__reader r = {head + 6, head + sizeof head, false};
    uint16_t got = weft__get_u16(&r);
    uint32_t len = weft__get_u32(&r);
    CHECK(got == type && len <= cap, "frame %u of %u bytes came, not %d", got, len, type);
    hear(peer->boot, body, len);
    return len;
}

static void say_hello(struct bare_peer *peer)
{
    uint8_t body[256];
    struct weft__writer w = {body, body + sizeof body, false};
    WEFT_OK(weft_random(peer->uuid, sizeof peer->uuid));
    weft__put(&w, peer->uuid, sizeof peer->uuid);
    weft__put(&w, "0123456789abcdef", 16); /* of another host */
    weft__put_u64(&w, 1);
    weft__put_u32(&w, 1);
    weft__put_u64(&w, WEFT__WINDOW_LEAST);
    weft__put_u8(&w, 1);
    weft__put_text(&w, "tcp");
    weft__put_u8(&w, (uint8_t)peer->links);
    say(peer, WEFT__HELLO, body, (size_t)(w.at - body));
}

/* Connect one socket to the link with this address. */
static int join(const uint8_t *address)
{
    uint8_t hello[TCP_HELLO_SIZE], answer[TCP_HELLO_SIZE];
    struct tcp_hello h = {.version = TCP_VERSION, .sockets = 1, .depth = 512};
    int fd = dial(tcp_get16(address + 8));
    memcpy(h.token, address + 32, TCP_TOKEN);
    tcp_hello_encode(hello, &h);
    CHECK(send(fd, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello, "hello: %m");
    hear(fd, answer, sizeof answer);
    return fd;
}

static void join_links(struct bare_peer *peer, uint8_t *links, size_t len)
{
    uint8_t out[256], mine[TCP_ADDRESS_SIZE] = {0};
    struct weft__reader r = {links, links + len, false};
    struct weft__writer w = {out, out + sizeof out, false};
    tcp_put32(mine, TCP_MAGIC);
    mine[4] = TCP_VERSION;
    weft__put_u8(&w, weft__get_u8(&r)); /* attempt */
    CHECK(weft__get_u8(&r) == peer->links, "the endpoint has fewer links");
    weft__put_u8(&w, (uint8_t)peer->links);
    for (int i = 0; i < peer->links; i++) {
        CHECK(weft__get_u8(&r) == 1, "the endpoint has not opened a link");
        weft__get_u8(&r); /* slot of its keys */
        uint16_t size = weft__get_u16(&r);
        const uint8_t *address = weft__get_span(&r, size);
        CHECK(address && size == TCP_ADDRESS_SIZE, "a link's address is malformed");
        peer->fd[i] = join(address);
        weft__put_u8(&w, 1);
        weft__put_u8(&w, 0xff);
        weft__put_u16(&w, sizeof mine);
        weft__put(&w, mine, sizeof mine);
    }
    say(peer, WEFT__LINKS, out, (size_t)(w.at - out));
}

void bare_connect(struct bare_peer *peer, int port, int links)
{
    bare_connect_by(peer, port, links, (uint8_t)((1 << links) - 1));
}

void bare_connect_by(struct bare_peer *peer, int port, int links, uint8_t which)
{
    uint8_t body[WEFT__FRAME_MAX], offer[] = {1, (uint8_t)links, 3, 0, 't', 'c', 'p'};
    uint8_t done[5] = {1, which};
    *peer = (struct bare_peer){.boot = dial(port), .links = links};
    say_hello(peer);
    expect(peer, WEFT__HELLO, body, sizeof body);
    say(peer, WEFT__OFFER, offer, sizeof offer);
    size_t len = expect(peer, WEFT__LINKS, body, sizeof body);
    join_links(peer, body, len);
    expect(peer, WEFT__READY, body, sizeof body);
    say(peer, WEFT__DONE, done, sizeof done);
    close(peer->boot);
}

void bare_close(struct bare_peer *peer)
{
    for (int i = 0; i < peer->links; i++)
        close(peer->fd[i]);
}

bool bare_frame(struct bare_peer *peer, int link, struct tcp_frame frame, const void *payload)
{
    uint8_t bytes[TCP_FRAME_MAX + 8192];
    uint32_t len = tcp_frame_encode(bytes, &frame), more = payload ? frame.len : 0;
    CHECK(more <= 8192, "a payload of %u bytes", more);
    if (more)
        memcpy(bytes + len, payload, more);
    /* one that is cut off in the middle has sent a part of it */
    uint32_t sent = 0;
    ssize_t n = 1;
    while (n > 0 && sent < len + more) {
        n = send(peer->fd[link], bytes + sent, len + more - sent, MSG_NOSIGNAL);
        sent += n > 0 ? (uint32_t)n : 0;
    }
    CHECK(n > 0 || errno != EAGAIN, "the endpoint does not read: %m");
    return n > 0;
}

bool bare_message(struct bare_peer *peer, int link, struct weft__msg_head head, const void *body,
                  size_t len)
{
    uint8_t bytes[WEFT__MSG_MAX];
    struct weft__writer w = {bytes, bytes + sizeof bytes, false};
    weft__put_u8(&w, head.type);
    weft__put_u8(&w, head.flags);
    weft__put_u8(&w, head.stream);
    weft__put_u8(&w, 0);
    weft__put_u32(&w, head.index);
    weft__put_u64(&w, peer->seq++);
    weft__put_u32(&w, head.taken[0]);
    weft__put_u32(&w, head.taken[1]);
    weft__put_u64(&w, head.len);
    weft__put_u64(&w, 0);
    weft__put(&w, body, len);
    CHECK(!w.bad, "a message of %zu bytes", len);
    struct tcp_frame frame = {.type = TCP_SEND, .len = (uint32_t)(w.at - bytes)};
    return bare_frame(peer, link, frame, bytes);
}
