/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports of ofi_rxd, which no other endpoint of this host had lately.
 *
 * ofi_rxd (1.17 to 2.7) keeps what it knows of an address until its own endpoint is closed, whatever is taken out of the
 * address vector. Who gets the port of an endpoint that is gone is taken for that one by those that knew it, so that no link
 * to it comes up; and it gets what they send once more, which ends its process (rxd_cq.c: what rxd_peer finds for a packet of
 * an unknown peer is not looked at).
 *
 * Linux gives ports out at random: of 200 that come and go, two are the same in every other run. So they are taken in the
 * order of the clock, one for each millisecond, of those that Linux would give out: another process comes to the same one
 * when it has gone round them all, after 28 s of the usual 28232. What this process had, it remembers.
 */
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "efa.h"

#define TICK_NS 1000000u
#define MOST_TAKEN 256 /* in a row, by others; then it is any that Linux has */

static struct weft_static_lock lock = WEFT_STATIC_LOCK(.foreign = 0);
static uint32_t low, count; /* the ports that Linux gives out; count 0: not known yet */
static uint8_t had[(UINT16_MAX + 1) / 8]; /* a bit each */
static uint32_t nhad;

static void learn_range(void)
{
    unsigned from = 0, to = 0;
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    int n = f ? fscanf(f, "%u %u", &from, &to) : 0;
    if (f)
        fclose(f);
    if (n != 2 || from == 0 || from > to || to > UINT16_MAX) {
        from = 32768; /* what Linux begins with */
        to = 60999;
    }
    low = from;
    count = to - from + 1;
}

static bool take(uint32_t port)
{
    uint8_t bit = (uint8_t)(1u << port % 8);
    if (nhad > count / 2) {
        memset(had, 0, sizeof had);
        nhad = 0;
    }
    if (had[port / 8] & bit)
        return false;
    had[port / 8] |= bit;
    nhad++;
    return true;
}

static uint32_t next_port(void)
{
    weft_static_lock(&lock);
    if (count == 0)
        learn_range();
    uint64_t at = weft_now() / TICK_NS;
    while (!take(low + (uint32_t)(at % count)))
        at++;
    weft_static_unlock(&lock);
    return low + (uint32_t)(at % count);
}

/* Two processes that look at one port at once would both find it free, and ofi_rxd keeps a descriptor for good for each
 * endpoint that it cannot bind. So who looks has a name that nobody else can have meanwhile: an abstract one of a socket,
 * which like ports belongs to the network namespace. -1: somebody else has it, or there is no descriptor. */
static int hold(uint32_t port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "weft-udp-%u", port);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool is_free(const struct sockaddr *own, socklen_t len)
{
    int fd = socket(own->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is = fd >= 0 && bind(fd, own, len) == 0;
    if (fd >= 0)
        close(fd);
    return is;
}

static in_port_t *port_in(void *own)
{
    switch (((struct sockaddr *)own)->sa_family) {
    case AF_INET:
        return &((struct sockaddr_in *)own)->sin_port;
    case AF_INET6:
        return &((struct sockaddr_in6 *)own)->sin6_port;
    default:
        return NULL;
    }
}

int efa_port_hold(struct fi_info *info)
{
    in_port_t *port = NULL;
    if (info->src_addr && strstr(info->fabric_attr->prov_name, "ofi_rxd"))
        port = port_in(info->src_addr);
    for (int i = 0; port && i < MOST_TAKEN; i++) {
        uint32_t next = next_port();
        int held = hold(next);
        *port = htons((uint16_t)next);
        if (held >= 0 && is_free(info->src_addr, (socklen_t)info->src_addrlen))
            return held;
        efa_port_release(held);
    }
    if (port)
        *port = 0;
    return -1;
}

void efa_port_release(int held)
{
    if (held >= 0)
        close(held);
}
