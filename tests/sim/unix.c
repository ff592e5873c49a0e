/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the local transport uses of the kernel: unix sockets that keep packets apart and pass
 * descriptors, memory files, and copies between processes. All processes of the simulation are one
 * real process, so a mapping is the memory itself and a copy is a copy; another fiber may have its
 * turn in the middle of it.
 */
#include "wrap.h"

#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/un.h>

#define PACKET_MOST 256
#define QUEUE 48
#define MAX_SOCKETS 4096

struct packet {
    uint8_t bytes[PACKET_MOST];
    size_t len;
    struct sim_file *passed;
};

struct sim_packet {
    struct sim_packet *peer;
    int host, pid;
    bool open, listening, shut;
    bool lost; /* the peer closed with packets of ours unread */
    char name[sizeof(struct sockaddr_un)];
    socklen_t name_len;
    struct packet queue[QUEUE];
    int nqueue;
    struct sim_packet *callers[QUEUE];
    int ncallers;
};

struct memory {
    void *base;
    size_t len;
    int id, refs, seals;
};

static struct sim_packet *sockets[MAX_SOCKETS];
static struct memory *memories[MAX_SOCKETS];
static int nsockets, nmemories;

/* --- sockets ------------------------------------------------------------------------------- */

struct sim_packet *sim_packet_new(void)
{
    SIM_CHECK(nsockets < MAX_SOCKETS, "the simulation has too many unix sockets");
    struct sim_packet *p = sim_alloc(sizeof *p);
    p->host = sim_host_of_self();
    p->pid = sim_self()->pid;
    p->open = true;
    sockets[nsockets++] = p;
    return p;
}

int sim_packet_bind(struct sim_file *file, const struct sockaddr *addr, socklen_t len)
{
    struct sim_packet *p = file->object;
    memcpy(p->name, addr, len);
    p->name_len = len;
    p->listening = true;
    return 0;
}

int sim_packet_connect(struct sim_file *file, const struct sockaddr *addr, socklen_t len)
{
    struct sim_packet *p = file->object, *to = NULL;
    for (int i = 0; i < nsockets; i++) {
        struct sim_packet *at = sockets[i];
        if (at->open && at->listening && at->host == p->host && at->name_len == len &&
            !memcmp(at->name, addr, len))
            to = at;
    }
    if (!to || to->ncallers == QUEUE) {
        errno = to ? EAGAIN : ECONNREFUSED;
        return -1;
    }
    struct sim_packet *other = sim_packet_new();
    other->host = to->host;
    other->pid = to->pid;
    other->peer = p;
    p->peer = other;
    to->callers[to->ncallers++] = other;
    sim_changed();
    return 0;
}

int sim_packet_accept(void *listener)
{
    struct sim_packet *l = listener;
    if (!l->ncallers) {
        errno = EAGAIN;
        return -1;
    }
    int fd = sim_fd_new(sim_file_new(SIM_PACKET, l->callers[0]));
    if (fd >= 0)
        memmove(l->callers, l->callers + 1, (size_t)--l->ncallers * sizeof *l->callers);
    return fd;
}

uint32_t sim_packet_events(const void *object)
{
    const struct sim_packet *p = object;
    if (p->listening)
        return p->ncallers ? EPOLLIN : 0;
    bool over = p->shut || !p->peer || !p->peer->open || p->peer->shut;
    uint32_t events = p->nqueue || over || p->lost ? EPOLLIN : 0;
    if (over)
        events |= EPOLLRDHUP | EPOLLHUP;
    if (p->lost)
        events |= EPOLLERR;
    if (!over && p->peer->nqueue < QUEUE)
        events |= EPOLLOUT;
    return events;
}

void sim_packet_close(void *object)
{
    struct sim_packet *p = object;
    p->open = false;
    if (p->peer && p->nqueue)
        p->peer->lost = true;
    for (int i = 0; i < p->nqueue; i++)
        if (p->queue[i].passed)
            sim_file_put(p->queue[i].passed);
    p->nqueue = 0;
    while (p->ncallers)
        sim_packet_close(p->callers[--p->ncallers]);
    sim_changed();
}

void sim_packet_shutdown(struct sim_packet *p)
{
    p->shut = true;
}

int sim_packet_pid(const struct sim_packet *p)
{
    return p->peer ? p->peer->pid : 0;
}

ssize_t sim_packet_send(struct sim_packet *p, const struct iovec *iov, size_t niov, int pass)
{
    struct sim_packet *to = p->peer;
    int error = 0;
    if (p->shut || !to || !to->open || to->shut)
        error = p->lost ? ECONNRESET : EPIPE;
    else if (to->nqueue == QUEUE)
        error = EAGAIN;
    if (error) {
        errno = error;
        return -1;
    }
    struct packet *packet = &to->queue[to->nqueue++];
    *packet = (struct packet){0};
    for (size_t i = 0; i < niov; i++) {
        SIM_CHECK(packet->len + iov[i].iov_len <= PACKET_MOST, "a packet of too many bytes");
        memcpy(packet->bytes + packet->len, iov[i].iov_base, iov[i].iov_len);
        packet->len += iov[i].iov_len;
    }
    if (pass >= 0) {
        packet->passed = sim_fd(pass, -1);
        packet->passed->refs++;
    }
    sim_changed();
    return (ssize_t)packet->len;
}

static void give_passed(struct packet *packet, struct msghdr *msg)
{
    struct cmsghdr *c = msg->msg_controllen ? CMSG_FIRSTHDR(msg) : NULL;
    if (packet->passed && c) {
        int fd = sim_fd_new(packet->passed);
        if (fd >= 0) {
            *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd),
                                  .cmsg_level = SOL_SOCKET,
                                  .cmsg_type = SCM_RIGHTS};
            memcpy(CMSG_DATA(c), &fd, sizeof fd);
        } else {
            c = NULL; /* no room for it: the kernel drops it */
            msg->msg_flags |= MSG_CTRUNC;
        }
    } else {
        c = NULL;
    }
    if (!c)
        msg->msg_controllen = 0;
    if (packet->passed)
        sim_file_put(packet->passed);
}

ssize_t sim_packet_recv(struct sim_packet *p, struct msghdr *msg)
{
    msg->msg_flags = 0;
    if (!p->nqueue) {
        bool over = p->shut || !p->peer || !p->peer->open || p->peer->shut;
        errno = p->lost ? ECONNRESET : EAGAIN;
        bool fails = p->lost || !over;
        p->lost = false;
        msg->msg_controllen = 0; /* as the kernel has it at the end, too */
        return fails ? -1 : 0;
    }
    struct packet packet = p->queue[0];
    memmove(p->queue, p->queue + 1, (size_t)--p->nqueue * sizeof *p->queue);
    size_t n = packet.len < msg->msg_iov->iov_len ? packet.len : msg->msg_iov->iov_len;
    memcpy(msg->msg_iov->iov_base, packet.bytes, n);
    if (n < packet.len)
        msg->msg_flags |= MSG_TRUNC;
    give_passed(&packet, msg);
    sim_changed();
    return (ssize_t)n;
}

/* --- memory files -------------------------------------------------------------------------- */

int __wrap_memfd_create(const char *name, unsigned flags)
{
    (void)name;
    (void)flags;
    SIM_CHECK(nmemories < MAX_SOCKETS, "the simulation has too many memory files");
    struct memory *m = sim_alloc(sizeof *m);
    m->id = nmemories;
    m->refs = 1;
    int fd = sim_fd_new(sim_file_new(SIM_MEMORY, m));
    if (fd >= 0)
        memories[nmemories++] = m;
    return fd;
}

int __wrap_ftruncate(int fd, off_t len)
{
    struct memory *m = sim_fd(fd, SIM_MEMORY)->object;
    m->len = (size_t)len;
    return 0;
}

int __wrap_fcntl(int fd, int cmd, ...)
{
    struct sim_file *file = sim_fd(fd, -1);
    if (file->kind == SIM_PIPE) /* F_SETPIPE_SZ */
        return 1 << 20;
    struct memory *m = sim_fd(fd, SIM_MEMORY)->object;
    va_list args;
    va_start(args, cmd);
    if (cmd == F_ADD_SEALS)
        m->seals |= va_arg(args, int);
    va_end(args);
    return cmd == F_GET_SEALS ? m->seals : 0;
}

int __wrap_fstat(int fd, struct stat *st)
{
    const struct memory *m = sim_fd(fd, SIM_MEMORY)->object;
    memset(st, 0, sizeof *st);
    st->st_ino = (ino_t)m->id + 1;
    st->st_size = (off_t)m->len;
    return 0;
}

int __wrap_fstatfs(int fd, struct statfs *fs)
{
    sim_fd(fd, SIM_MEMORY);
    memset(fs, 0, sizeof *fs);
    fs->f_type = TMPFS_MAGIC;
    return 0;
}

void *__real_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t len);

/* Of the file, or of the mapping: the last frees the memory. */
void sim_memory_put(void *memory)
{
    struct memory *m = memory;
    if (--m->refs == 0 && m->base)
        __real_munmap(m->base, m->len);
}

void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    if (fd < 0)
        return __real_mmap(addr, len, prot, flags, fd, offset);
    struct memory *m = sim_fd(fd, SIM_MEMORY)->object;
    SIM_CHECK(len == m->len, "a memory file of %zu bytes is mapped with %zu", m->len, len);
    if (!m->base)
        m->base = __real_mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->refs++;
    sim_step();
    return m->base;
}

int __wrap_munmap(void *addr, size_t len)
{
    for (int i = 0; i < nmemories; i++) {
        struct memory *m = memories[i];
        if (m->base != addr || m->refs <= 0)
            continue;
        SIM_CHECK(len == m->len, "an unmapping of %zu bytes, not %zu", len, m->len);
        sim_memory_put(m);
        return 0;
    }
    return __real_munmap(addr, len);
}

int __wrap_madvise(void *addr, size_t len, int advice)
{
    (void)addr;
    (void)len;
    (void)advice;
    return 0;
}

/* --- copies between processes -------------------------------------------------------------- */

static bool reachable(pid_t pid)
{
    const struct sim_proc *proc = sim_proc_of_pid(pid);
    return proc && proc->host == sim_host_of_self();
}

/* One piece here, several there, as local does it. */
static ssize_t copy(pid_t pid, const struct iovec *ours, const struct iovec *theirs,
                    unsigned long ntheirs, bool out)
{
    uint8_t *at = ours->iov_base;
    size_t left = ours->iov_len, sum = 0;
    sim_step();
    for (unsigned long i = 0; i < ntheirs && left; i++) {
        if (!reachable(pid)) {
            errno = ESRCH;
            return -1;
        }
        size_t n = theirs[i].iov_len < left ? theirs[i].iov_len : left, half = n / 2;
        uint8_t *there = theirs[i].iov_base;
        memmove(out ? there : at, out ? at : there, half);
        sim_step();
        memmove((out ? there : at) + half, (out ? at : there) + half, n - half);
        at += n;
        left -= n;
        sum += n;
    }
    sim_trace("vm copy", pid, (int64_t)sum, out);
    return (ssize_t)sum;
}

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *ours, unsigned long nours,
                                const struct iovec *theirs, unsigned long ntheirs,
                                unsigned long flags)
{
    (void)flags;
    SIM_CHECK(nours == 1, "process_vm_readv into %lu pieces", nours);
    return copy(pid, ours, theirs, ntheirs, false);
}

ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *ours, unsigned long nours,
                                 const struct iovec *theirs, unsigned long ntheirs,
                                 unsigned long flags)
{
    (void)flags;
    SIM_CHECK(nours == 1, "process_vm_writev from %lu pieces", nours);
    return copy(pid, ours, theirs, ntheirs, true);
}
