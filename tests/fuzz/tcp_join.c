/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How sockets find their link in tcp: hellos of strangers and of the right peer to a passive link,
 * greetings to an active one, and the addresses of links; of links with a key and without.
 *
 * Checked: nothing comes of a link that was never up; one with a key comes up only when each of
 * its sockets has brought the right proof.
 */
#include "fuzz.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transports/tcp/tcp.h"

/* A caller's bytes, then its end, each in a poll of its own; and after a sleep every other poll does
 * not ask epoll. */
#define POLLS_TO_END 8
#define POLLS_MOST 100000 /* a socket that is left alone for a moment (tcp_rx.c) keeps epoll from being asked */
#define STEPS 48
#define FDS 16
#define COMPS 4

extern const struct weft_transport weft_transport_tcp;
static const struct weft_transport_ops *ops;
static struct tcp_nic *nic;

struct run {
    struct fuzz_in in;
    struct weft_link *link;
    bool active, keyed, done;
    uint8_t address[TCP_ADDRESS_SIZE]; /* of the peer, as core carried it */
    uint8_t token[TCP_TOKEN];
    int fds[FDS];
    bool proven[FDS]; /* has said a hello with the right proof */
    int nfds;
};

static void set_up(void)
{
    struct weft_nic *base;
    struct weft_nic_opts opts = {.device = "tcp"};
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_config_set("WEFT_TCP_SOCKETS", "3"));
    ops = weft_transport_tcp.ops;
    FUZZ_OK(ops->open(&opts, &base));
    nic = (struct tcp_nic *)base;
}

/* Nothing comes of a link that was never up. */
static void poll_nic(struct run *run)
{
    struct weft_comp comps[COMPS];
    int n = ops->poll(&nic->base, comps, COMPS);
    FUZZ_CHECK(n == 0 || run->done);
}

static bool all_proven(const struct run *run)
{
    uint32_t n = 0;
    for (int i = 0; i < run->nfds; i++)
        n += run->proven[i];
    return n >= ((struct tcp_link *)run->link)->nsocks;
}

static void connect_link(struct run *run, const void *address, size_t len)
{
    int rc = ops->link_connect(run->link, address, len);
    FUZZ_CHECK(rc <= 0);
    FUZZ_CHECK(rc < 0 || run->done || !run->keyed || all_proven(run));
    run->done = run->done || rc == 0;
    int fd;
    while (run->nfds < FDS && (fd = fuzz_net_take()) >= 0)
        run->fds[run->nfds++] = fd;
}

/* As the peer's end of a link with a key would. True: the proof is right. */
static bool prove(struct run *run, uint8_t hello[TCP_HELLO_SIZE])
{
    uint8_t role = run->active ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
    uint8_t said[1 + TCP_HELLO_PROVEN] = {(uint8_t)fuzz_near(&run->in, role)};
    memcpy(said + 1, hello, TCP_HELLO_PROVEN);
    return fuzz_prove(&run->in, said, sizeof said, hello + TCP_HELLO_PROVEN) && said[0] == role;
}

static void say_hello(struct run *run)
{
    struct fuzz_in *in = &run->in;
    if (!run->nfds)
        return;
    uint8_t bytes[TCP_HELLO_SIZE], sound[TCP_HELLO_SIZE],
        nth = (uint8_t)fuzz_pick(in, (uint32_t)run->nfds);
    struct tcp_hello hello = {.version = (uint8_t)fuzz_near(in, TCP_VERSION),
                              .index = (uint8_t)fuzz_near(in, nth % 3),
                              .sockets = (uint8_t)fuzz_near(in, 3),
                              .depth = (uint16_t)fuzz_near(in, TCP_DEPTH)};
    memcpy(hello.token, run->token, TCP_TOKEN);
    tcp_hello_encode(bytes, &hello);
    bool right = run->keyed && prove(run, bytes);
    memcpy(sound, bytes, sizeof sound);
    size_t len = fuzz_damage(in, bytes, sizeof bytes), first = fuzz_u8(in);
    if (first > len)
        first = len;
    if (right && len == sizeof sound && memcmp(bytes, sound, len) == 0)
        run->proven[nth] = true;
    send(run->fds[nth], bytes, first, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (first < len)
        poll_nic(run);
    send(run->fds[nth], bytes + first, len - first, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void step(struct run *run)
{
    struct fuzz_in *in = &run->in;
    uint8_t what = fuzz_u8(in), address[TCP_ADDRESS_SIZE];
    const uint8_t *span;
    memcpy(address, run->address, sizeof address);
    if (what < 96)
        say_hello(run);
    else if (what < 128 && run->nfds < FDS)
        run->fds[run->nfds++] = fuzz_net_dial(0);
    else if (what < 168)
        connect_link(run, run->address, sizeof run->address);
    else if (what < 184) {
        size_t len = fuzz_damage(in, address, sizeof address);
        connect_link(run, address, len);
    } else if (what < 208 && run->nfds) {
        size_t len = fuzz_span(in, fuzz_u8(in), &span);
        send(run->fds[what % run->nfds], span, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (what < 216 && run->nfds) {
        shutdown(run->fds[what % run->nfds], SHUT_RDWR);
    } else if (what < 220) {
        tcp_half_expire(nic);
    } else if (what < 236) {
        fuzz_net_refuse(what < 228);
    }
    poll_nic(run);
}

static void begin(struct run *run)
{
    static const uint8_t hosts[] = {0, 127, 10};
    uint8_t how = fuzz_u8(&run->in), blob[WEFT_LINK_ADDRESS_MAX];
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = 9, .sin_addr.s_addr = 1};
    struct weft_link_opts opts = {.role = how & 1 ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
    if (how & 2) {
        opts.peer = (struct sockaddr *)&peer;
        opts.peer_len = sizeof peer;
    }
    if (how & 128)
        opts.key = fuzz_link_key();
    run->keyed = opts.key;
    FUZZ_OK(ops->link_open(&nic->base, &opts, &run->link));
    FUZZ_OK(ops->link_address(run->link, blob, sizeof blob));
    run->active = how & 1;
    memcpy(run->token, blob + 32, TCP_TOKEN);
    tcp_put32(run->address, TCP_MAGIC);
    run->address[4] = TCP_VERSION;
    if (!run->active)
        return;
    run->address[5] = 1;
    run->address[6] = (uint8_t)fuzz_near(&run->in, 3);
    run->address[7] = how & 4 ? 6 : 4;
    tcp_put16(run->address + 8, 9);
    run->address[16] = hosts[(how >> 3) % 3];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run run = {.in = {data, data + size}};
    if (!nic)
        set_up();
    begin(&run);
    for (int i = 0; i < STEPS && fuzz_more(&run.in); i++)
        step(&run);
    for (int i = 0; i < run.nfds; i++)
        close(run.fds[i]);
    run.done = true; /* so that a LINK_DOWN is right */
    for (int i = 0; i < POLLS_TO_END || (nic->nhalf && i < POLLS_MOST); i++)
        poll_nic(&run);
    ops->link_close(run.link);
    FUZZ_CHECK(!nic->links && !nic->nhalf && !nic->ndown && !nic->nhot);
    fuzz_net_reset();
    fuzz_net_refuse(false);
    return 0;
}
