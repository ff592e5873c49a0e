/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network for fuzz targets: what the code under test takes for TCP sockets are socket pairs, so
 * no port is used, nothing leaves the process, and connecting costs no time. The linker sends its
 * calls here (--wrap).
 */
#include "fuzz.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTENERS 4
#define SOCKETS 64 /* at once */
#define PORT 4711  /* of every listener that asked for none */

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __real_bind(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t len);
int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __real_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __real_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __real_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *addr, socklen_t *len);
int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);

/* A socket of the code under test and the other end of its pair. */
struct pair {
    int fd, far;
};

/* A listener becomes readable by a byte for each connection that waits. */
struct listener {
    struct pair pair;
    struct sockaddr_storage name;
    socklen_t name_len;
    int waiting[SOCKETS];
    int nwaiting;
};

static struct pair fresh[SOCKETS]; /* not bound, not connected */
static int nfresh;
static struct listener listeners[LISTENERS];
static int nlisteners;
static int taken[SOCKETS]; /* far ends of what was connected */
static int ntaken;
static bool refusing;

/* --- what targets call ---------------------------------------------------------------------- */

int fuzz_net_dial(int n)
{
    int sv[2];
    FUZZ_CHECK(n < nlisteners);
    struct listener *l = &listeners[n];
    FUZZ_CHECK(l->nwaiting < SOCKETS);
    FUZZ_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
    l->waiting[l->nwaiting++] = sv[0];
    FUZZ_CHECK(send(l->pair.far, "", 1, 0) == 1);
    return sv[1];
}

int fuzz_net_take(void)
{
    if (!ntaken)
        return -1;
    int fd = taken[0];
    memmove(taken, taken + 1, (size_t)--ntaken * sizeof *taken);
    return fd;
}

void fuzz_net_refuse(bool refuse)
{
    refusing = refuse;
}

void fuzz_net_reset(void)
{
    while (nfresh)
        close(fresh[--nfresh].far);
    while (ntaken)
        close(taken[--ntaken]);
}

bool fuzz_net_drain(int fd)
{
    char bytes[65536];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && errno == EAGAIN;
}

/* --- what the code under test calls --------------------------------------------------------- */

int __wrap_socket(int domain, int type, int protocol)
{
    int sv[2], flags = type & (SOCK_NONBLOCK | SOCK_CLOEXEC);
    bool stream = (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM; /* the others are asked where an address is */
    if (!stream || (domain != AF_INET && domain != AF_INET6))
        return __real_socket(domain, type, protocol);
    if (nfresh == SOCKETS || socketpair(AF_UNIX, SOCK_STREAM | flags, 0, sv))
        return -1;
    fresh[nfresh++] = (struct pair){sv[0], sv[1]};
    return sv[0];
}

/* The latest: an earlier one of the same number was closed. Out of the list. */
static bool take_fresh(int fd, struct pair *pair)
{
    for (int i = nfresh; i-- > 0;) {
        if (fresh[i].fd != fd)
            continue;
        *pair = fresh[i];
        fresh[i] = fresh[--nfresh];
        return true;
    }
    return false;
}

static struct listener *find_listener(int fd)
{
    for (int i = 0; i < nlisteners; i++)
        if (listeners[i].pair.fd == fd)
            return &listeners[i];
    return NULL;
}

int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t len)
{
    struct pair pair;
    if (!take_fresh(fd, &pair))
        return __real_bind(fd, addr, len);
    FUZZ_CHECK(nlisteners < LISTENERS && len <= sizeof listeners->name);
    struct listener *l = &listeners[nlisteners++];
    *l = (struct listener){.pair = pair, .name_len = len};
    memcpy(&l->name, addr, len);
    if (!((struct sockaddr_in *)&l->name)->sin_port) /* in the same place for IPv6 */
        ((struct sockaddr_in *)&l->name)->sin_port = htons(PORT);
    return 0;
}

int __wrap_listen(int fd, int backlog)
{
    return find_listener(fd) ? 0 : __real_listen(fd, backlog);
}

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    struct pair pair;
    if (!take_fresh(fd, &pair))
        return __real_connect(fd, addr, len);
    if (refusing || ntaken == SOCKETS) {
        close(pair.far);
        errno = ECONNREFUSED;
        return -1;
    }
    taken[ntaken++] = pair.far;
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    char byte;
    struct listener *l = find_listener(fd);
    if (!l)
        return __real_accept4(fd, addr, len, flags);
    if (recv(fd, &byte, 1, MSG_DONTWAIT) != 1)
        return -1; /* EAGAIN */
    int got = l->waiting[0];
    memmove(l->waiting, l->waiting + 1, (size_t)--l->nwaiting * sizeof *l->waiting);
    return got;
}

int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
    const struct listener *l = find_listener(fd);
    if (!l)
        return __real_getsockname(fd, addr, len);
    memcpy(addr, &l->name, *len < l->name_len ? *len : l->name_len);
    *len = l->name_len;
    return 0;
}

/* Every peer calls from here. */
int __wrap_getpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
    struct sockaddr_in peer = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)fd;
    memcpy(addr, &peer, *len < sizeof peer ? *len : sizeof peer);
    *len = sizeof peer;
    return 0;
}

/* No name is looked up. */
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    struct addrinfo numeric = *hints;
    numeric.ai_flags |= AI_NUMERICHOST;
    return __real_getaddrinfo(node, service, &numeric, found);
}
