/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors, and the files that are not sockets: epoll, eventfd, timerfd, and what is opened by
 * name. A number is never given twice, so a descriptor that is used after close is found at once.
 */
#include "wrap.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FIRST_FD 1000
#define MAX_FDS 16384

struct sim_watch {
    struct sim_watch *next;
    struct sim_file *file;
    int fd;
    struct epoll_event event;
    uint64_t told; /* EPOLLET: edges of the file that were told of */
};

static struct {
    struct sim_file *file; /* NULL: closed */
    struct sim_proc *proc;
} fds[MAX_FDS];
static int nfds;

/* --- descriptors --------------------------------------------------------------------------- */

struct sim_file *sim_file_new(enum sim_kind kind, void *object)
{
    struct sim_file *file = sim_alloc(sizeof *file);
    *file = (struct sim_file){.kind = kind, .object = object};
    return file;
}

int sim_fd_new(struct sim_file *file)
{
    struct sim_proc *proc = sim_self();
    SIM_CHECK(proc, "a descriptor for no process");
    if (proc->nfds >= proc->fd_limit) {
        sim_trace("no descriptor", proc->nfds, 0, 0);
        errno = EMFILE;
        return -1;
    }
    SIM_CHECK(nfds < MAX_FDS, "the simulation has too many descriptors");
    fds[nfds].file = file;
    fds[nfds].proc = proc;
    proc->nfds++;
    file->refs++;
    return FIRST_FD + nfds++;
}

bool sim_is_fd(int fd)
{
    return fd >= FIRST_FD && fd < FIRST_FD + nfds;
}

struct sim_file *sim_fd(int fd, int kind)
{
    SIM_CHECK(sim_is_fd(fd) && fds[fd - FIRST_FD].file, "descriptor %d is used, but not open", fd);
    SIM_CHECK(fds[fd - FIRST_FD].proc == sim_self(), "descriptor %d is of another process", fd);
    struct sim_file *file = fds[fd - FIRST_FD].file;
    SIM_CHECK(kind < 0 || file->kind == (enum sim_kind)kind, "descriptor %d is of kind %d, not %d",
              fd, (int)file->kind, kind);
    return file;
}

/* epoll forgets a file that is gone. */
static void unwatch(const struct sim_file *file)
{
    for (int i = 0; i < nfds; i++) {
        if (!fds[i].file || fds[i].file->kind != SIM_EPOLL)
            continue;
        struct sim_watch **at = &fds[i].file->watches;
        while (*at)
            if ((*at)->file == file)
                *at = (*at)->next;
            else
                at = &(*at)->next;
    }
}

void sim_file_put(struct sim_file *file)
{
    if (--file->refs)
        return;
    unwatch(file);
    if (file->kind == SIM_STREAM)
        sim_stream_close(file->object);
    else if (file->kind == SIM_LISTENER)
        sim_listener_close(file->object);
    else if (file->kind == SIM_PACKET)
        sim_packet_close(file->object);
    else if (file->kind == SIM_MEMORY)
        sim_memory_put(file->object);
    sim_changed();
}

static void close_at(int i)
{
    struct sim_file *file = fds[i].file;
    fds[i].file = NULL;
    fds[i].proc->nfds--;
    sim_file_put(file);
}

int __wrap_close(int fd)
{
    sim_fd(fd, -1);
    sim_trace("close", fd, 0, 0);
    close_at(fd - FIRST_FD);
    sim_step();
    return 0;
}

void sim_close_all(struct sim_proc *proc)
{
    for (int i = 0; i < nfds; i++)
        if (fds[i].file && fds[i].proc == proc)
            close_at(i);
}

/* --- readiness ----------------------------------------------------------------------------- */

static uint64_t edges_of(const struct sim_file *file)
{
    SIM_CHECK(file->kind == SIM_STREAM, "edges of a file that is no stream");
    return sim_stream_edges(file->object);
}

/* What epoll would tell of a file now. */
static uint32_t watch_events(const struct sim_watch *w)
{
    if (w->event.events & EPOLLET && w->told == edges_of(w->file))
        return 0;
    return sim_file_events(w->file) & (w->event.events | EPOLLERR | EPOLLHUP);
}

static bool epoll_ready(const struct sim_file *file)
{
    for (const struct sim_watch *w = file->watches; w; w = w->next)
        if (watch_events(w))
            return true;
    return false;
}

uint32_t sim_file_events(const struct sim_file *file)
{
    switch (file->kind) {
    case SIM_STREAM:
        return sim_stream_events(file->object);
    case SIM_LISTENER:
        return sim_listener_events(file->object);
    case SIM_PACKET:
        return sim_packet_events(file->object);
    case SIM_EPOLL:
        return epoll_ready(file) ? EPOLLIN : 0;
    case SIM_COUNTER:
        return (file->count ? EPOLLIN : 0) | EPOLLOUT;
    case SIM_TIMER:
        return file->count && file->count <= sim.now ? EPOLLIN : 0;
    case SIM_MEMORY:
    case SIM_PIPE:
    case SIM_TEXT:
        return EPOLLIN | EPOLLOUT;
    }
    return 0;
}

/* --- epoll --------------------------------------------------------------------------------- */

int __wrap_epoll_create1(int flags)
{
    (void)flags;
    return sim_fd_new(sim_file_new(SIM_EPOLL, NULL));
}

int __wrap_epoll_ctl(int fd, int op, int target, struct epoll_event *event)
{
    struct sim_file *epoll = sim_fd(fd, SIM_EPOLL), *file = sim_fd(target, -1);
    struct sim_watch **at = &epoll->watches;
    while (*at && (*at)->fd != target)
        at = &(*at)->next;
    sim_trace("epoll_ctl", target, op, event ? event->events : 0);
    if ((op == EPOLL_CTL_ADD) == (*at != NULL)) {
        errno = *at ? EEXIST : ENOENT;
        return -1;
    }
    if (op == EPOLL_CTL_ADD) {
        *at = sim_alloc(sizeof **at);
        **at = (struct sim_watch){.file = file, .fd = target};
    }
    if (op == EPOLL_CTL_DEL)
        *at = (*at)->next;
    else
        (*at)->event = *event;
    if (op != EPOLL_CTL_DEL && event->events & EPOLLET)
        (*at)->told = edges_of(file) - 1; /* looked at anew */
    sim_changed();
    sim_step();
    return 0;
}

/* Begins anywhere in the list: no one may count on an order. */
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout)
{
    struct sim_file *epoll = sim_fd(fd, SIM_EPOLL);
    uint32_t count = 0;
    int n = 0;
    SIM_CHECK(timeout == 0, "the simulation has no epoll_wait that waits");
    sim_step();
    for (struct sim_watch *w = epoll->watches; w; w = w->next)
        count++;
    uint32_t skip = count ? sim_pick(count) : 0;
    for (int round = 0; round < 2; round++) {
        uint32_t i = 0;
        for (struct sim_watch *w = epoll->watches; w && n < max; w = w->next, i++) {
            if ((i >= skip) != (round == 0))
                continue;
            uint32_t now = watch_events(w);
            if (w->event.events & EPOLLET)
                w->told = edges_of(w->file);
            if (now)
                events[n++] = (struct epoll_event){.events = now, .data = w->event.data};
        }
    }
    if (n)
        sim_trace("epoll_wait", fd, n, 0);
    return n;
}

/* --- poll ---------------------------------------------------------------------------------- */

struct poll_wait {
    struct pollfd *fds;
    struct sim_file *files[32];
    nfds_t n;
};

static int poll_count(struct poll_wait *w)
{
    int n = 0;
    for (nfds_t i = 0; i < w->n; i++) {
        /* the bits of poll and of epoll are the same */
        uint32_t wanted = (uint32_t)w->fds[i].events | EPOLLERR | EPOLLHUP;
        w->fds[i].revents = (short)(sim_file_events(w->files[i]) & wanted);
        n += w->fds[i].revents != 0;
    }
    return n;
}

static bool poll_ready(void *arg)
{
    return poll_count(arg) > 0;
}

int __wrap_ppoll(struct pollfd *list, nfds_t n, const struct timespec *timeout,
                 const sigset_t *mask)
{
    (void)mask;
    struct poll_wait w = {.fds = list, .n = n};
    SIM_CHECK(n <= sizeof w.files / sizeof *w.files, "ppoll with %lu descriptors", n);
    for (nfds_t i = 0; i < n; i++)
        w.files[i] = sim_fd(list[i].fd, -1);
    sim_step();
    uint64_t ns = (uint64_t)timeout->tv_sec * SIM_S + (uint64_t)timeout->tv_nsec;
    if (!poll_count(&w) && ns)
        sim_block("ppoll", poll_ready, &w, sim.now + ns);
    int count = poll_count(&w);
    sim_trace("ppoll", count, (int64_t)ns, 0);
    return count;
}

int __wrap_poll(struct pollfd *list, nfds_t n, int timeout)
{
    struct timespec ts = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};
    return __wrap_ppoll(list, n, &ts, NULL);
}

/* --- eventfd, timerfd ---------------------------------------------------------------------- */

int __wrap_eventfd(unsigned start, int flags)
{
    (void)start;
    (void)flags;
    return sim_fd_new(sim_file_new(SIM_COUNTER, NULL));
}

int __wrap_timerfd_create(int clock, int flags)
{
    (void)clock;
    (void)flags;
    return sim_fd_new(sim_file_new(SIM_TIMER, NULL));
}

static void timer_due(void *arg)
{
    (void)arg;
    sim_changed();
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *when,
                           struct itimerspec *old)
{
    (void)flags;
    (void)old;
    struct sim_file *file = sim_fd(fd, SIM_TIMER);
    uint64_t ns = (uint64_t)when->it_value.tv_sec * SIM_S + (uint64_t)when->it_value.tv_nsec;
    file->count = ns ? sim.now + ns : 0;
    if (ns)
        sim_at(file->count, timer_due, NULL);
    sim_step();
    return 0;
}

/* --- open, read, write --------------------------------------------------------------------- */

int __wrap_open(const char *path, int flags, ...)
{
    (void)flags;
    if (!strcmp(path, "/proc/self/maps")) { /* a kernel that does not tell */
        errno = ENOENT;
        return -1;
    }
    struct sim_file *file = sim_file_new(SIM_TEXT, NULL);
    char *text = sim_alloc(64);
    if (strstr(path, "boot_id"))
        snprintf(text, 64, "00000000-0000-0000-0000-%012x\n", sim_host_of_self() + 1);
    else if (strcmp(path, "/dev/null"))
        sim_fail("the simulation has no file %s", path);
    file->text = text;
    return sim_fd_new(file);
}

ssize_t __wrap_read(int fd, void *buf, size_t len)
{
    struct sim_file *file = sim_fd(fd, -1);
    sim_step();
    if (file->kind == SIM_TEXT) {
        size_t left = strlen(file->text) - (size_t)file->count;
        len = len < left ? len : left;
        memcpy(buf, file->text + file->count, len);
        file->count += len;
        return (ssize_t)len;
    }
    bool timer = file->kind == SIM_TIMER;
    SIM_CHECK((timer || file->kind == SIM_COUNTER) && len == sizeof(uint64_t),
              "read of %zu bytes from a file of kind %d", len, (int)file->kind);
    if (!(sim_file_events(file) & EPOLLIN)) {
        errno = EAGAIN;
        return -1;
    }
    uint64_t value = timer ? 1 : file->count;
    memcpy(buf, &value, sizeof value);
    file->count = 0;
    sim_changed();
    return sizeof value;
}

ssize_t __wrap_write(int fd, const void *buf, size_t len)
{
    struct sim_file *file = sim_fd(fd, SIM_COUNTER);
    uint64_t value;
    memcpy(&value, buf, sizeof value);
    file->count += value;
    sim_changed();
    sim_step();
    return (ssize_t)len;
}
