/* SPDX-License-Identifier: Apache-2.0 */
/* Accepting while descriptors last: weft_listener. */
#include "weft/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAUSE_NS 100000000u

static int spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int watch(struct weft_listener *l, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = l->tag};
    return epoll_ctl(l->epoll, op, l->fd, &event) ? -errno : 0;
}

int weft_listener_open(struct weft_listener *l, int fd, int epoll, void *tag)
{
    *l = (struct weft_listener){.fd = fd, .spare = -1, .epoll = epoll, .tag = tag};
    int rc = watch(l, EPOLL_CTL_ADD, EPOLLIN);
    if (rc) {
        *l = WEFT_LISTENER_NONE;
        return rc;
    }
    l->spare = spare();
    return 0;
}

void weft_listener_close(struct weft_listener *l)
{
    if (l->fd >= 0) { /* closing is not enough: a child of this process may hold the socket open */
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->fd, NULL);
        close(l->fd);
    }
    if (l->spare >= 0)
        close(l->spare);
    *l = WEFT_LISTENER_NONE;
}

/* Take a caller with the spare and hang up. Another thread may be faster and take the spare's place:
 * then nothing can be done but not to look. */
static void refuse(struct weft_listener *l, const char *name)
{
    bool had = l->spare >= 0;
    if (had)
        close(l->spare);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    bool out = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (fd >= 0)
        close(fd);
    l->spare = spare();
    if (out) {
        watch(l, EPOLL_CTL_MOD, 0);
        l->resume = weft_now() + PAUSE_NS;
    }
    if (had)
        weft_log(WEFT_LOG_WARN, name, "listener: a caller %s: out of descriptors",
                 out ? "has to wait" : "was refused");
}

int weft_listener_accept(struct weft_listener *l, struct sockaddr_storage *from, const char *name)
{
    struct sockaddr_storage any;
    socklen_t len = sizeof any;
    if (!from)
        from = &any;
    *from = (struct sockaddr_storage){0};
    int fd = accept4(l->fd, (struct sockaddr *)from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        refuse(l, name);
    else if (fd >= 0 && l->spare < 0)
        l->spare = spare();
    return fd;
}

void weft_listener_look(struct weft_listener *l)
{
    if (!l->resume || weft_now() < l->resume)
        return;
    l->resume = 0;
    if (l->spare < 0)
        l->spare = spare();
    watch(l, EPOLL_CTL_MOD, EPOLLIN);
}
