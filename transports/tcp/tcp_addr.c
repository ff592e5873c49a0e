/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses: where a nic listens, what a link's peer is told of that, and where to dial. */
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

int tcp_addr_parse(const char *host, struct sockaddr_storage *addr, socklen_t *len)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *info;
    int rc = getaddrinfo(host ? host : "127.0.0.1", "0", &hints, &info);
    if (rc != 0)
        return weft_fail(-EINVAL, "tcp: cannot listen on '%s': %s", host, gai_strerror(rc));
    memcpy(addr, info->ai_addr, info->ai_addrlen);
    *len = info->ai_addrlen;
    freeaddrinfo(info);
    return 0;
}

/* IPv4 in IPv6 becomes IPv4; returns the family as in a link's address, 0 if it is neither. */
static uint8_t host_get(const struct sockaddr_storage *addr, uint8_t host[16])
{
    memset(host, 0, 16);
    if (addr->ss_family == AF_INET) {
        memcpy(host, &((const struct sockaddr_in *)addr)->sin_addr, 4);
        return 4;
    }
    if (addr->ss_family != AF_INET6)
        return 0;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
    bool mapped = IN6_IS_ADDR_V4MAPPED(in6);
    memcpy(host, mapped ? in6->s6_addr + 12 : in6->s6_addr, mapped ? 4 : 16);
    return mapped ? 4 : 6;
}

bool tcp_addr_is_ours(const struct sockaddr_storage *addr)
{
    struct sockaddr_storage from = {0}, to = *addr;
    socklen_t len = sizeof(from);
    uint8_t from_host[16], to_host[16];
    int fd = socket(addr->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    ((struct sockaddr_in *)&to)->sin_port = htons(
        9); /* any; where sin6_port is, too. Nothing is sent */
    bool routed = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
                  getsockname(fd, (struct sockaddr *)&from, &len) == 0;
    close(fd);
    uint8_t family = host_get(&to, to_host);
    return routed && family && host_get(&from, from_host) == family &&
           memcmp(from_host, to_host, sizeof(to_host)) == 0;
}

static bool host_is_any(uint8_t family, const uint8_t host[16])
{
    static const uint8_t zero[16];
    return memcmp(host, zero, family == 4 ? 4 : 16) == 0;
}

static bool host_is_loopback(uint8_t family, const uint8_t host[16])
{
    return family == 4 ? host[0] == 127 : memcmp(host, &in6addr_loopback, 16) == 0;
}

socklen_t tcp_addr_target(const struct tcp_link *link, const uint8_t *blob,
                          struct sockaddr_storage *addr)
{
    uint8_t family = blob[7], host[16];
    struct sockaddr_in *in4 = (struct sockaddr_in *)addr;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)addr;
    memcpy(host, blob + 16, 16);
    if (host_is_any(family, host) || host_is_loopback(family, host)) {
        uint8_t met_host[16], met = host_get(&link->peer, met_host);
        if (met) {
            family = met;
            memcpy(host, met_host, 16);
        } else if (host_is_any(family, host)) {
            memcpy(host, family == 4 ? (const void *)"\x7f\0\0\1" : &in6addr_loopback,
                   family == 4 ? 4 : 16);
        }
    }
    memset(addr, 0, sizeof(*addr));
    in4->sin_port = htons(tcp_get16(blob + 8));
    if (family == 4) {
        in4->sin_family = AF_INET;
        memcpy(&in4->sin_addr, host, 4);
        return sizeof(*in4);
    }
    in6->sin6_family = AF_INET6;
    memcpy(&in6->sin6_addr, host, 16);
    if (link->peer.ss_family == AF_INET6)
        in6->sin6_scope_id = ((const struct sockaddr_in6 *)&link->peer)->sin6_scope_id;
    return sizeof(*in6);
}

int tcp_link_address(struct weft_link *base, void *buf, size_t cap)
{
    struct tcp_link *link = (struct tcp_link *)base;
    struct tcp_nic *nic = tcp_nic_of(link);
    uint8_t *blob = buf;
    if (cap < TCP_ADDRESS_SIZE)
        return weft_fail(-EINVAL, "tcp: an address needs %d bytes", TCP_ADDRESS_SIZE);
    memset(blob, 0, TCP_ADDRESS_SIZE);
    tcp_put32(blob, TCP_MAGIC);
    blob[4] = TCP_VERSION;
    if (link->role == WEFT_ROLE_ACTIVE)
        return TCP_ADDRESS_SIZE;
    blob[5] = 1;
    blob[6] = (uint8_t)link->nsocks;
    blob[7] = host_get(&nic->bound, blob + 16);
    tcp_put16(blob + 8, ntohs(((const struct sockaddr_in *)&nic->bound)->sin_port));
    memcpy(blob + 32, link->token, TCP_TOKEN);
    return TCP_ADDRESS_SIZE;
}

int tcp_addr_check(const struct tcp_link *link, const uint8_t *blob, size_t len)
{
    if (len < 6 || tcp_get32(blob) != TCP_MAGIC)
        return weft_fail(WEFT_EPROTO, "tcp: the peer's address is malformed");
    if (blob[4] != TCP_VERSION)
        return weft_fail(WEFT_EVERSION, "tcp: the peer speaks version %u, this is %u", blob[4],
                         TCP_VERSION);
    bool active = link->role == WEFT_ROLE_ACTIVE;
    if (len != TCP_ADDRESS_SIZE || blob[5] != (active ? 1 : 0))
        return weft_fail(WEFT_EPROTO, "tcp: the peer's address is malformed");
    if (active && (blob[6] == 0 || blob[6] > TCP_MAX_SOCKETS || (blob[7] != 4 && blob[7] != 6) ||
                   tcp_get16(blob + 8) == 0))
        return weft_fail(WEFT_EPROTO, "tcp: the peer's address names no place");
    return 0;
}
