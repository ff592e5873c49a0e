/* SPDX-License-Identifier: Apache-2.0 */
#include "bag.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/transport.h"

#define PIDFD 4 /* SCM_PIDFD of Linux 6.5: the sender, if the socket's maker wanted it */

/* The bytes of a packet. */
struct packet {
    uint8_t id[BAG_ID_BYTES];
    uint64_t number[BAG_MOST];
};

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int) * BAG_MOST)];
};

int bag_open(int *bag, int *mouth)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
        return weft_fail(-errno, "cannot make a socket for descriptors: %m");
    *bag = ends[0];
    *mouth = ends[1];
    return 0;
}

int bag_put(int mouth, const struct bag_handful *handful)
{
    struct packet packet = {{0}, {0}};
    union control control;
    const size_t fds = handful->n * sizeof *handful->fd;
    memcpy(packet.id, handful->id, sizeof packet.id);
    memcpy(packet.number, handful->number, handful->n * sizeof *handful->number);
    memset(&control, 0, sizeof control);
    control.head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), handful->fd, fds);
    struct iovec iov = {&packet, sizeof packet.id + handful->n * sizeof *packet.number};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = CMSG_SPACE(fds)};
    if (sendmsg(mouth, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 0;
    if (errno == ETOOMANYREFS)
        return weft_fail(-errno, "too many descriptors are on their way to processes (ulimit -n)");
    if (errno == EAGAIN)
        return weft_fail(WEFT_ELIMIT,
                         "more descriptors than a socket takes (net.core.wmem_default)");
    return weft_fail(-errno, "cannot pass descriptors: %m");
}

/* More than was asked for may come: the socket was another process's. */
static void take_control(struct msghdr *msg, struct bag_handful *handful)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        bool rights = c->cmsg_type == SCM_RIGHTS;
        if (c->cmsg_level != SOL_SOCKET || (!rights && c->cmsg_type != PIDFD))
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (rights && handful->n < BAG_MOST)
                handful->fd[handful->n++] = fd;
            else
                close(fd);
        }
    }
}

int bag_take(int bag, struct bag_handful *handful)
{
    struct packet packet;
    union control control;
    struct iovec iov = {&packet, sizeof packet};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    handful->n = 0;
    ssize_t len = recvmsg(bag, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (len < 0)
        return weft_fail(-errno, "cannot take descriptors: %m");
    take_control(&msg, handful); /* an empty packet may bring some, too */
    size_t want = sizeof packet.id + handful->n * sizeof *packet.number;
    if (msg.msg_flags & MSG_CTRUNC || !handful->n || (size_t)len != want) {
        bag_drop(handful, 0);
        return weft_fail(msg.msg_flags & MSG_CTRUNC ? -EMFILE : WEFT_EPROTO,
                         msg.msg_flags & MSG_CTRUNC ? "no descriptor is left for what was passed"
                                                    : "what was passed is not what it should be");
    }
    memcpy(handful->id, packet.id, sizeof packet.id);
    memcpy(handful->number, packet.number, handful->n * sizeof *packet.number);
    return 0;
}

void bag_drop(struct bag_handful *handful, uint32_t first)
{
    for (uint32_t i = first; i < handful->n; i++)
        close(handful->fd[i]);
    handful->n = 0;
}
