/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end: names of endpoints, and processes of this host.
 *
 * A reliable datagram endpoint learns of a peer's death when it wants something, some providers never (shm). A process
 * of this host, in this process namespace, is watched through a pidfd.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "efa.h"

/* --- names ----------------------------------------------------------------------------------------------- */

bool efa_name_sound(const struct efa_nic *nic, const void *bytes, uint16_t len)
{
    const struct efa_target *own = &nic->where;
    struct sockaddr ours, theirs;
    switch (nic->info->addr_format) {
    case FI_SOCKADDR:
    case FI_SOCKADDR_IN:
    case FI_SOCKADDR_IN6:
        if (len != own->len || len < sizeof ours)
            return false;
        memcpy(&ours, own->name, sizeof ours);
        memcpy(&theirs, bytes, sizeof theirs);
        return ours.sa_family == theirs.sa_family;
    case FI_ADDR_STR:
        return len > 0 && len <= EFA_MAX_NAME && ((const char *)bytes)[len - 1] == '\0' &&
               strlen(bytes) == len - 1u;
    default:
        return len == own->len;
    }
}

static struct efa_name *name_new(struct efa_nic *nic, const void *bytes, uint16_t len)
{
    /* libfabric takes addresses at the size of the format, whatever the length */
    struct efa_name *name = calloc(1, sizeof *name);
    if (!name)
        return NULL;
    memcpy(name->bytes, bytes, len);
    name->len = len;
    name->most = UINT32_MAX;
    int n = fi_av_insert(nic->av, name->bytes, 1, &name->addr, 0, NULL);
    if (n != 1) {
        efa_fail(nic, n < 0 ? n : -FI_EINVAL, "an address that a peer gave is refused");
        free(name);
        return NULL;
    }
    name->next = nic->names;
    nic->names = name;
    return name;
}

struct efa_name *efa_name_get(struct efa_nic *nic, const void *bytes, uint16_t len)
{
    struct efa_name *name = nic->names;
    while (name && (name->len != len || memcmp(name->bytes, bytes, len) != 0))
        name = name->next;
    if (!name)
        name = name_new(nic, bytes, len);
    return name ? efa_name_keep(name) : NULL;
}

void efa_name_put(struct efa_nic *nic, struct efa_name *name)
{
    if (!name || --name->refs > 0)
        return;
    struct efa_name **at = &nic->names;
    while (*at != name)
        at = &(*at)->next;
    *at = name->next;
    fi_av_remove(nic->av, &name->addr, 1, 0);
    free(name);
}

/* --- processes ------------------------------------------------------------------------------------------- */

/* When a process started, in ticks after boot: tells it from a later one of the same number. 0: it cannot be looked at, as where
 * /proc hides the processes of others, or no descriptor is left. */
static uint64_t start_of(uint32_t pid)
{
    char path[64], line[1024];
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        fclose(f);
    line[n] = '\0';
    /* the 22nd field; the second one, in parentheses, may contain anything */
    char *at = strrchr(line, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at || sscanf(at, "%llu", &started) != 1)
        return 0;
    return started;
}

static uint64_t namespace_of_this(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

void efa_process_describe(struct efa_nic *nic)
{
    weft_boot_id(nic->boot);
    nic->pidns = namespace_of_this();
    nic->started = start_of((uint32_t)getpid());
}

static bool is_here(const struct efa_nic *nic, const struct efa_address *peer)
{
    static const uint8_t unknown[16];
    return nic->pidns && peer->pidns == nic->pidns && peer->pid != (uint32_t)getpid() &&
           memcmp(nic->boot, unknown, sizeof unknown) != 0 &&
           memcmp(nic->boot, peer->boot, sizeof unknown) == 0;
}

/* Has the number gone to another process since? */
static bool is_another(const struct efa_address *peer)
{
    uint64_t started = start_of(peer->pid);
    return started && peer->started && started != peer->started;
}

static struct efa_process *process_new(struct efa_nic *nic, const struct efa_address *peer)
{
    struct efa_process *process = calloc(1, sizeof *process);
    struct epoll_event event = {.events = EPOLLIN};
    if (!process)
        return NULL;
    process->pid = peer->pid;
    process->started = peer->started;
    process->fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    process->dead = process->fd < 0 ? errno == ESRCH : is_another(peer);
    if ((process->fd < 0 && errno != ESRCH) ||
        (process->fd >= 0 && epoll_ctl(nic->epoll_fd, EPOLL_CTL_ADD, process->fd, &event) < 0)) {
        weft_log(WEFT_LOG_WARN, "efa", "%s: process %u cannot be watched: %m", nic->name,
                 peer->pid);
        if (process->fd >= 0)
            close(process->fd);
        free(process);
        return NULL;
    }
    process->next = nic->processes;
    nic->processes = process;
    return process;
}

int efa_process_watch(struct efa_nic *nic, const struct efa_address *peer, struct efa_process **out)
{
    struct efa_process *process = nic->processes;
    *out = NULL;
    if (!is_here(nic, peer))
        return 0;
    while (process && (process->pid != peer->pid || process->started != peer->started))
        process = process->next;
    if (!process)
        process = process_new(nic, peer);
    if (!process)
        return 0;
    process->refs++;
    *out = process;
    return process->dead ? WEFT_ELINK : 0;
}

void efa_process_put(struct efa_nic *nic, struct efa_process *process)
{
    if (!process || --process->refs > 0)
        return;
    struct efa_process **at = &nic->processes;
    while (*at != process)
        at = &(*at)->next;
    *at = process->next;
    if (process->fd >= 0)
        close(process->fd);
    free(process);
}

bool efa_process_alive(const struct efa_process *process)
{
    struct pollfd p = {.fd = process ? process->fd : -1, .events = POLLIN};
    return !process || (!process->dead && poll(&p, 1, 0) != 1);
}

static void tell_links(struct efa_nic *nic, const struct efa_process *process)
{
    for (struct weft_list *at = nic->links.next, *next; at != &nic->links; at = next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, in);
        next = at->next;
        if (link->process == process)
            efa_link_fail(link, WEFT_ELINK, "efa %s: the peer's process %u has ended", nic->name,
                          process->pid);
    }
}

void efa_process_look(struct efa_nic *nic)
{
    for (struct efa_process *process = nic->processes; process; process = process->next) {
        if (process->dead || efa_process_alive(process))
            continue;
        process->dead = true;
        epoll_ctl(nic->epoll_fd, EPOLL_CTL_DEL, process->fd, NULL); /* it stays readable, and a child may have it, too */
        close(process->fd); /* now: who refers to the process may do so for long */
        process->fd = -1;
        tell_links(nic, process);
    }
}
