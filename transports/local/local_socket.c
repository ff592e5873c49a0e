/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unix sockets: a nic listens on one with a random abstract name, each link is connected over
 * one. They keep packets apart (SOCK_SEQPACKET), so a packet is read whole or is wrong.
 */
#include "local.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024
/* Events that one look takes; epoll gives the others their turn next time. */
#define EVENTS_PER_LOOK 32
/* Wake-ups taken at once; an honest peer sends one for each time we sleep. */
#define WAKES_PER_LOOK 16

/* "\0weft-local-<32 hex digits>": no file, and gone when the socket is. */
static socklen_t make_name(const struct local_id *id, struct sockaddr_un *name)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t len = 1 + (size_t)sprintf(name->sun_path + 1, "weft-local-");
    for (size_t i = 0; i < sizeof id->bytes; i++)
        len += (size_t)sprintf(name->sun_path + len, "%02x", id->bytes[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static int make_socket(int *fd)
{
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *fd < 0 ? weft_fail(-errno, "local: cannot make a socket: %m") : 0;
}

int local_listen(struct local_nic *nic)
{
    struct sockaddr_un name;
    int fd, rc = weft_random(&nic->socket_id, sizeof nic->socket_id);
    if (!rc)
        rc = make_socket(&fd);
    if (rc)
        return rc;
    socklen_t len = make_name(&nic->socket_id, &name);
    if (bind(fd, (struct sockaddr *)&name, len) || listen(fd, BACKLOG))
        rc = -errno;
    else
        rc = weft_listener_open(&nic->listener, fd, nic->epoll, &nic->listener_source);
    if (rc) {
        weft_fail(rc, "local: cannot listen: %m");
        close(fd);
    }
    return rc;
}

int local_dial(const struct local_id *socket_id, int *out)
{
    struct sockaddr_un name;
    int fd, rc = make_socket(&fd);
    if (rc)
        return rc;
    socklen_t len = make_name(socket_id, &name);
    if (!connect(fd, (struct sockaddr *)&name, len)) {
        *out = fd;
        return 0;
    }
    if (errno == EAGAIN)
        rc = WEFT_EAGAIN;
    else
        rc = weft_fail(errno == ECONNREFUSED ? WEFT_ENOPATH : -errno,
                       "local: cannot reach the peer's nic (is it in another network "
                       "namespace?): %m");
    close(fd);
    return rc;
}

/* 0, or why not. pass: a descriptor that goes along, or -1. */
static int send_bytes(int fd, const void *bytes, size_t len, int pass)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof pass)];
    } control;
    struct iovec iov = {(void *)bytes, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass >= 0) {
        memset(&control, 0, sizeof control);
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof pass), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &pass, sizeof pass);
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
    }
    if (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return weft_fail(errno == EPIPE || errno == ECONNRESET ? WEFT_EPEER : -errno,
                         "local: cannot send to the peer: %m");
    return 0;
}

int local_packet_send(int fd, const struct local_packet *packet, int pass)
{
    return send_bytes(fd, packet, sizeof *packet, pass);
}

/* The first descriptor that came along; others are not wanted. */
static int take_passed(struct msghdr *msg)
{
    int kept = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (kept < 0)
                kept = fd;
            else
                close(fd);
        }
    }
    return kept;
}

/* The bytes of a packet, and what was passed with it. Returns recvmsg's. */
static ssize_t recv_bytes(int fd, struct msghdr *msg, void *bytes, size_t len, int *passed)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {bytes, len};
    *msg = (struct msghdr){.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *passed = n < 0 ? -1 : take_passed(msg); /* an empty packet may bring one, too */
    if (n >= 0 && *passed < 0 && msg->msg_flags & MSG_CTRUNC)
        *passed = LOCAL_NO_ROOM;
    return n;
}

int local_packet_recv(int fd, struct local_packet *packet, int *passed)
{
    struct msghdr msg;
    ssize_t n = recv_bytes(fd, &msg, packet, sizeof *packet, passed);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return WEFT_EAGAIN;
    if ((size_t)n == sizeof *packet && !(msg.msg_flags & MSG_TRUNC))
        return 0;
    if (*passed >= 0)
        close(*passed);
    *passed = -1;
    if (n <= 0)
        return weft_fail(WEFT_EPEER, "local: peer has closed the connection");
    return weft_fail(WEFT_EPROTO, "local: peer sent a packet of %zd bytes", n);
}

void local_wake(struct local_link *link)
{
    /* a full socket holds wake-ups enough, and a dead peer is seen by poll */
    char byte = 0;
    if (send(link->source.fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
        weft_log(WEFT_LOG_DEBUG, "local", "cannot wake the peer: %m");
}

/* The one at this place is somebody else's. */
static void forget(struct local_link *link, int at)
{
    link->npassed--;
    memmove(link->passed + at, link->passed + at + 1,
            (size_t)(link->npassed - at) * sizeof *link->passed);
}

static void keep(struct local_link *link, uint64_t number, int fd)
{
    if (link->npassed == LOCAL_PASSED) {
        if (link->passed[0].fd >= 0)
            close(link->passed[0].fd);
        forget(link, 0);
    }
    link->passed[link->npassed++] = (struct local_passed){number, fd};
}

/* A wake-up is a byte; what comes with a descriptor is its number. */
bool local_wakes_take(struct local_link *link)
{
    char bytes[sizeof(struct local_packet)];
    struct msghdr msg;
    uint64_t number;
    int passed;
    for (int i = 0; i < WAKES_PER_LOOK; i++) {
        ssize_t n = recv_bytes(link->source.fd, &msg, bytes, sizeof bytes, &passed);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == sizeof number && passed != -1) {
            memcpy(&number, bytes, sizeof number);
            keep(link, number, passed);
        } else if (passed >= 0) {
            close(passed);
        }
        if (n == 0)
            return false;
    }
    return true;
}

int local_link_pass(struct weft_link *base, uint64_t number, int fd)
{
    const struct local_link *link = (const struct local_link *)base;
    if (link->state != LOCAL_UP)
        return weft_fail(WEFT_ELINK, "local: the link is not there");
    return send_bytes(link->source.fd, &number, sizeof number, fd);
}

int local_link_take(struct weft_link *base, uint64_t number, int *fd)
{
    struct local_link *link = (struct local_link *)base;
    int at = 0;
    while (at < link->npassed && link->passed[at].number != number)
        at++;
    if (at == link->npassed) /* reading it here would take a wake-up from who sleeps */
        return link->state == LOCAL_UP ? WEFT_EAGAIN
                                       : weft_fail(WEFT_ELINK, "local: the link is not there");
    int passed = link->passed[at].fd;
    forget(link, at);
    if (passed < 0)
        return weft_fail(-EMFILE, "local: no descriptor is left for what the peer passes");
    *fd = passed;
    return 0;
}

void local_passed_close(struct local_link *link)
{
    while (link->npassed)
        if (link->passed[--link->npassed].fd >= 0)
            close(link->passed[link->npassed].fd);
}

pid_t local_peer_pid(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) ? 0 : cred.pid;
}

bool local_peer_gone(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};
    return fd < 0 || (poll(&look, 1, 0) > 0 && look.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

int local_watch(struct local_nic *nic, struct local_source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    if (epoll_ctl(nic->epoll, EPOLL_CTL_ADD, source->fd, &event))
        return weft_fail(-errno, "local: cannot watch a socket: %m");
    return 0;
}

void local_ignore(struct local_nic *nic, const struct local_source *source)
{
    epoll_ctl(nic->epoll, EPOLL_CTL_DEL, source->fd, NULL);
}

void local_unwatch(struct local_nic *nic, struct local_source *source)
{
    if (source->fd < 0)
        return;
    /* closing is not enough: a child of this process may hold the socket open */
    local_ignore(nic, source);
    shutdown(source->fd, SHUT_RDWR);
    close(source->fd);
    source->fd = -1;
}

int local_hand_over(struct local_nic *nic, struct local_source *from, struct local_source *to)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = to};
    if (epoll_ctl(nic->epoll, EPOLL_CTL_MOD, from->fd, &event))
        return weft_fail(-errno, "local: cannot watch a socket: %m");
    to->fd = from->fd;
    from->fd = -1;
    return 0;
}

/* A free guest, or one that is thrown out: of the user who has sent most. */
static struct local_guest *seat(struct local_nic *nic)
{
    struct weft_stranger list[LOCAL_GUESTS];
    for (int i = 0; i < LOCAL_GUESTS; i++) {
        struct local_guest *guest = &nic->guests[i];
        if (guest->source.fd < 0)
            return guest;
        list[i] = (struct weft_stranger){.since = guest->number, .place = guest->place};
    }
    struct local_guest *guest = &nic->guests[weft_stranger_choose(list, LOCAL_GUESTS)];
    local_unwatch(nic, &guest->source);
    return guest;
}

static uint8_t user_of(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len)
               ? 0
               : weft_stranger_place(&cred.uid, sizeof cred.uid);
}

static void accept_guest(struct local_nic *nic)
{
    int fd = weft_listener_accept(&nic->listener, NULL, "local");
    if (fd < 0)
        return;
    struct local_guest *guest = seat(nic);
    guest->source.fd = fd;
    guest->number = nic->guest_number++;
    guest->place = user_of(fd);
    if (local_watch(nic, &guest->source))
        local_unwatch(nic, &guest->source);
}

void local_sockets_progress(struct local_nic *nic)
{
    struct epoll_event event;
    weft_listener_look(&nic->listener);
    /* one at a time: an event may close the source of another */
    for (int i = 0; i < EVENTS_PER_LOOK && epoll_wait(nic->epoll, &event, 1, 0) == 1; i++) {
        struct local_source *source = event.data.ptr;
        if (source->kind == LOCAL_LISTENER)
            accept_guest(nic);
        else if (source->kind == LOCAL_GUEST)
            local_link_hello(nic, (struct local_guest *)source);
        else
            local_link_event(
                (struct local_link *)((char *)source - offsetof(struct local_link, source)));
    }
}
