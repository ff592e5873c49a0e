/* SPDX-License-Identifier: Apache-2.0 */
#include "meet.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "helpers.h"

#define HALF 16 /* bytes of the token that each side shows */
#define MAGIC 0x5745465453494445ull
#define MAX_PLACES 16
#define BACKLOG 16
/* A caller that says nothing, and an address that swallows everything, keep others waiting. */
#define STEP_MS 2000
/* A host that is switched off is noticed after about 30 s of silence. */
#define KEEP_IDLE_S 15
#define KEEP_INTERVAL_S 5
#define KEEP_COUNT 3

struct token {
    unsigned char shown_by_b[HALF], shown_by_a[HALF];
};

struct greeting {
    uint64_t magic;
    uint64_t program; /* both sides run functions of one program by their place in it */
    unsigned char shown[HALF];
    uint32_t number;
};

static int listener = -1;
static struct token token;
static struct weft__address met; /* side B: where A was reached */

/* FNV-1a of the running program's file. */
static uint64_t program_hash(void)
{
    static uint64_t hash;
    FILE *f = hash ? NULL : fopen("/proc/self/exe", "r");
    if (!f)
        return hash;
    static unsigned char block[65536];
    hash = 0xcbf29ce484222325ull;
    for (size_t n; (n = fread(block, 1, sizeof block, f));)
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ block[i]) * 0x100000001b3ull;
    fclose(f);
    return hash;
}

static void set_options(int fd)
{
    int on = 1, idle = KEEP_IDLE_S, interval = KEEP_INTERVAL_S, count = KEEP_COUNT;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static bool ready(int fd, short events, uint64_t end)
{
    struct pollfd p = {.fd = fd, .events = events};
    uint64_t now = weft_now();
    return poll(&p, 1, now < end ? (int)((end - now) / 1000000) + 1 : 0) == 1;
}

static uint64_t sooner(uint64_t end, int ms)
{
    uint64_t step = weft_now() + (uint64_t)ms * 1000000;
    return step < end ? step : end;
}

/* All of len bytes by then. */
static bool take(int fd, void *data, size_t len, uint64_t end)
{
    for (char *at = data; len;) {
        ssize_t n = ready(fd, POLLIN, end) ? recv(fd, at, len, MSG_DONTWAIT) : 0;
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

/* --- addresses ------------------------------------------------------------------------------ */

/* An IPv4 peer of a socket that takes both kinds. */
static struct weft__address plain(struct weft__address a)
{
    struct sockaddr_in6 in6;
    memcpy(&in6, &a.sa, sizeof in6);
    if (a.sa.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
        return a;
    struct sockaddr_in in4 = {.sin_family = AF_INET, .sin_port = in6.sin6_port};
    memcpy(&in4.sin_addr, in6.sin6_addr.s6_addr + 12, sizeof in4.sin_addr);
    struct weft__address out = {.len = sizeof in4};
    memcpy(&out.sa, &in4, sizeof in4);
    return out;
}

struct weft__address meet_here(int fd)
{
    struct weft__address a = {.len = sizeof a.sa};
    CHECK(!getsockname(fd, (struct sockaddr *)&a.sa, &a.len), "getsockname: %m");
    return plain(a);
}

struct weft__address meet_there(int fd)
{
    struct weft__address a = {.len = sizeof a.sa};
    CHECK(!getpeername(fd, (struct sockaddr *)&a.sa, &a.len), "the other side hung up: %m");
    return plain(a);
}

/* --- side A --------------------------------------------------------------------------------- */

static bool listen_on(const char *place)
{
    struct weft__address at;
    int off = 0;
    if (weft__address_parse(place, &at))
        return false;
    listener = socket(at.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return false;
    if (at.sa.ss_family == AF_INET6)
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(listener, (struct sockaddr *)&at.sa, at.len) && !listen(listener, BACKLOG))
        return true;
    weft_fail(-errno, "cannot listen on %s: %m", place);
    close(listener);
    listener = -1;
    return false;
}

static void put_hex(FILE *f, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        fprintf(f, "%02x", ((const unsigned char *)data)[i]);
}

/* The line appears whole: it is written under another name first. */
static void publish(const char *dir)
{
    struct weft__address list[MAX_PLACES], bound = meet_here(listener);
    char temporary[512], path[512], text[128];
    snprintf(temporary, sizeof temporary, "%s/meet.new", dir);
    snprintf(path, sizeof path, "%s/meet", dir);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    CHECK(f, "%s: %m", temporary);
    fprintf(f, "WEFT_TEST_MEET=");
    put_hex(f, &token, sizeof token);
    int n = weft__address_list(&bound, list, MAX_PLACES);
    for (int i = 0; i < n; i++) {
        weft__address_format(&list[i], text, sizeof text);
        fprintf(f, " %s", text);
    }
    fprintf(f, "\n");
    CHECK(!fclose(f) && !rename(temporary, path), "%s: %m", path);
}

void meet_listen(void)
{
    const char *dir = getenv("WEFT_TEST_DIR"), *place = getenv("WEFT_TEST_ADDRESS");
    CHECK(dir, "WEFT_TEST_SIDE is A, but there is no WEFT_TEST_DIR (see tests/cluster/run)");
    WEFT_OK(weft_random(&token, sizeof token));
    bool there = place && *place ? listen_on(place) : listen_on("[::]") || listen_on("0.0.0.0");
    CHECK(there, "side A: %s", weft_last_error());
    (void)program_hash(); /* which takes a while, and not of the time that a caller waits */
    publish(dir);
}

static bool is_ours(const struct greeting *g)
{
    unsigned char differs = 0;
    for (int i = 0; i < HALF; i++)
        differs |= g->shown[i] ^ token.shown_by_b[i];
    return g->magic == MAGIC && !differs;
}

int meet_accept(uint32_t number, int timeout_ms)
{
    uint64_t end = weft_now() + (uint64_t)timeout_ms * 1000000;
    while (ready(listener, POLLIN, end)) {
        struct greeting g;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (!take(fd, &g, sizeof g, sooner(end, STEP_MS)) || !is_ours(&g) || g.number != number) {
            close(fd);
            continue;
        }
        CHECK(g.program == program_hash(), "side B runs another build of this program");
        /* who could not wait for the answer is gone, and calls again */
        char heard;
        if (send(fd, token.shown_by_a, HALF, MSG_NOSIGNAL) != HALF || !take(fd, &heard, 1, end)) {
            close(fd);
            continue;
        }
        set_options(fd);
        return fd;
    }
    FAIL("side B did not call within %d ms", timeout_ms);
}

/* --- side B --------------------------------------------------------------------------------- */

/* Reads the token; returns the addresses behind it. */
static const char *invitation(void)
{
    const char *text = getenv("WEFT_TEST_MEET");
    unsigned char *bytes = (unsigned char *)&token;
    CHECK(text, "WEFT_TEST_SIDE is B, but there is no WEFT_TEST_MEET (see tests/cluster/run)");
    for (size_t i = 0; i < sizeof token; i++, text += 2) {
        unsigned byte;
        CHECK(sscanf(text, "%2x", &byte) == 1, "WEFT_TEST_MEET holds no token");
        bytes[i] = (unsigned char)byte;
    }
    return text;
}

static int dial(const struct weft__address *at, uint32_t number, uint64_t end)
{
    struct greeting g = {.magic = MAGIC, .number = number, .program = program_hash()};
    unsigned char answer[HALF];
    memcpy(g.shown, token.shown_by_b, HALF);
    int fd = socket(at->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if ((!connect(fd, (const struct sockaddr *)&at->sa, at->len) || errno == EINPROGRESS) &&
        ready(fd, POLLOUT, end) && send(fd, &g, sizeof g, MSG_NOSIGNAL) == sizeof g &&
        take(fd, answer, HALF, end) && !memcmp(answer, token.shown_by_a, HALF) &&
        send(fd, "", 1, MSG_NOSIGNAL) == 1) {
        fcntl(fd, F_SETFL, 0); /* blocking from now on */
        set_options(fd);
        met = *at;
        return fd;
    }
    close(fd);
    return -1;
}

/* Try the addresses of the list once. */
static int dial_any(const char *list, uint32_t number, uint64_t end)
{
    char text[1024];
    char *rest;
    snprintf(text, sizeof text, "%s", list);
    for (char *place = strtok_r(text, " ", &rest); place; place = strtok_r(NULL, " ", &rest)) {
        struct weft__address at;
        WEFT_OK(weft__address_parse(place, &at));
        int fd = dial(&at, number, sooner(end, STEP_MS));
        if (fd >= 0)
            return fd;
    }
    return -1;
}

int meet_dial(uint32_t number, int timeout_ms)
{
    uint64_t end = weft_now() + (uint64_t)timeout_ms * 1000000;
    const char *places = invitation();
    (void)program_hash(); /* as in meet_listen */
    for (; weft_now() < end; test_sleep_ms(100)) {
        int fd = met.len ? dial(&met, number, end) : dial_any(places, number, end);
        if (fd >= 0)
            return fd;
    }
    FAIL("side A cannot be reached at%s within %d ms", places, timeout_ms);
}
