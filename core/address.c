/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses as text and back. */
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Split into host and port, both terminated. "" where there is none. */
static int split(const char *text, char *host, size_t host_cap, const char **port)
{
    const char *end;
    *port = "";
    if (*text == '[') {
        text++;
        end = strchr(text, ']');
        if (!end || (end[1] && end[1] != ':'))
            return -EINVAL;
        if (end[1])
            *port = end + 2;
    } else {
        end = strrchr(text, ':');
        if (end && strchr(text, ':') == end)
            *port = end + 1;
        else
            end = text + strlen(text); /* no colon, or a bare IPv6 address */
    }
    size_t len = (size_t)(end - text);
    if (len >= host_cap)
        return -EINVAL;
    memcpy(host, text, len);
    host[len] = 0;
    return 0;
}

static int parse_port(const char *text, uint16_t *port)
{
    char *end;
    if (!*text) {
        *port = 0;
        return 0;
    }
    unsigned long value = strtoul(text, &end, 10);
    if (*end || *text < '0' || *text > '9' || value > 65535)
        return -EINVAL;
    *port = (uint16_t)value;
    return 0;
}

/* whole: both parts are needed, and no name is looked up without a port to ask at. */
static int parse(const char *text, bool whole, struct weft__address *out)
{
    char host[256];
    const char *port_text;
    uint16_t port = 0;
    if (split(text, host, sizeof host, &port_text))
        return weft_fail(-EINVAL, "'%s' is not HOST:PORT", text);
    if (parse_port(port_text, &port))
        return weft_fail(-EINVAL, "'%s' is not HOST:PORT: a port is 0 to 65535", text);
    if (!*host && !*port_text) /* a variable that is not set, perhaps: that is not to open all interfaces */
        return weft_fail(-EINVAL, "'%s' is no address: neither a host nor a port", text);
    if (whole && (!*host || !port))
        return weft_fail(-EINVAL, "'%s' does not name a host and a port", text);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *all, *found;
    int rc = getaddrinfo(*host ? host : NULL, *host ? NULL : "0", &hints, &all);
    if (rc)
        return weft_fail(-EINVAL, "cannot resolve host '%s': %s", host, gai_strerror(rc));
    found = all;
    while (found && found->ai_family != AF_INET) /* which is what the default listens on */
        found = found->ai_next;
    if (!found)
        found = all;
    memset(out, 0, sizeof *out);
    memcpy(&out->sa, found->ai_addr, found->ai_addrlen);
    out->len = found->ai_addrlen;
    freeaddrinfo(all);
    weft__address_set_port(out, port);
    return 0;
}

int weft__address_parse(const char *text, struct weft__address *out)
{
    return parse(text, false, out);
}

int weft__address_parse_peer(const char *text, struct weft__address *out)
{
    int rc = parse(text, true, out);
    if (rc == 0 && weft__address_is_any(out))
        rc = weft_fail(-EINVAL, "'%s' does not name a host and a port", text);
    return rc;
}

void weft__address_host(const struct weft__address *a, char *text, size_t cap)
{
    if (getnameinfo((const struct sockaddr *)&a->sa, a->len, text, (socklen_t)cap, NULL, 0,
                    NI_NUMERICHOST))
        snprintf(text, cap, "?");
}

void weft__address_format(const struct weft__address *a, char *text, size_t cap)
{
    char host[INET6_ADDRSTRLEN + 32];
    weft__address_host(a, host, sizeof host);
    snprintf(text, cap, a->sa.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host,
             weft__address_port(a));
}

uint16_t weft__address_port(const struct weft__address *a)
{
    if (a->sa.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)&a->sa)->sin6_port);
    return ntohs(((const struct sockaddr_in *)&a->sa)->sin_port);
}

void weft__address_set_port(struct weft__address *a, uint16_t port)
{
    if (a->sa.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&a->sa)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&a->sa)->sin_port = htons(port);
}

bool weft__address_is_any(const struct weft__address *a)
{
    if (a->sa.ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);
    return ((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr == htonl(INADDR_ANY);
}

bool weft__address_is_loopback(const struct weft__address *a)
{
    if (a->sa.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static bool usable(const struct ifaddrs *i, int family, bool loopback)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !!(i->ifa_flags & IFF_LOOPBACK) != loopback)
        return false;
    if (i->ifa_addr->sa_family == AF_INET)
        return true;
    /* link-local IPv6 addresses mean nothing on another host */
    return i->ifa_addr->sa_family == AF_INET6 && family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr);
}

int weft__address_list(const struct weft__address *bound, struct weft__address *list, int max)
{
    if (!weft__address_is_any(bound)) {
        if (max > 0)
            list[0] = *bound;
        return max > 0;
    }
    struct ifaddrs *all;
    int n = 0;
    if (getifaddrs(&all))
        return 0;
    for (int loopback = 0; loopback < 2; loopback++) {
        for (struct ifaddrs *i = all; i && n < max; i = i->ifa_next) {
            if (!usable(i, bound->sa.ss_family, loopback))
                continue;
            memset(&list[n], 0, sizeof list[n]);
            list[n].len = i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                            : sizeof(struct sockaddr_in6);
            memcpy(&list[n].sa, i->ifa_addr, list[n].len);
            weft__address_set_port(&list[n++], weft__address_port(bound));
        }
    }
    freeifaddrs(all);
    return n;
}
