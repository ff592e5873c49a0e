/* SPDX-License-Identifier: Apache-2.0 */
/* How the host's memory is mapped. The kernel is asked: no page is touched, and no file changes by it. */
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Linux 6.11 and newer, by their linux/fs.h (PROCMAP_QUERY), which older systems build without. */
struct map_query {
    uint64_t size, query_flags, query_addr;
    uint64_t start, end, flags, page_size, offset, inode;
    uint32_t dev_major, dev_minor, name_size, build_id_size;
    uint64_t name_addr, build_id_addr;
};
#define QUERY_MAP _IOWR('f', 17, struct map_query)
#define READABLE 1u /* of flags */
#define WRITABLE 2u

/* MS_ASYNC makes the kernel look and do nothing (msync(2): ENOMEM). */
static bool mapped(const void *addr, uint64_t len)
{
    uintptr_t start = (uintptr_t)addr & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    uintptr_t all = (uintptr_t)addr + len - start;
    bool most = all <= PTRDIFF_MAX; /* of what is longer the kernel rounds the length up to 0 */
    return most && (msync((void *)start, all, MS_ASYNC) == 0 || errno != ENOMEM);
}

int weft__mapping_open(void)
{
    struct map_query query = {.size = sizeof query, .query_addr = (uintptr_t)&query};
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, QUERY_MAP, &query) == 0)
        return fd;
    close(fd);
    weft_log(WEFT_LOG_DEBUG, "memory", "this kernel does not tell whether memory may be written");
    return -1;
}

/* Where what has not all of these flags begins; 0: nowhere, as far as the kernel tells. */
static uintptr_t first_without(uint64_t flags, int fd, const void *addr, uint64_t len)
{
    uintptr_t at = (uintptr_t)addr, end = at + len;
    while (fd >= 0 && at < end) {
        struct map_query query = {.size = sizeof query, .query_addr = at};
        if (ioctl(fd, QUERY_MAP, &query) || query.end <= at)
            return 0;
        if (flags & ~query.flags)
            return at;
        at = query.end;
    }
    return 0;
}

int weft__mapping_check(int fd, const void *addr, uint64_t len, bool read, bool written)
{
    if (!mapped(addr, len))
        return weft_fail(-EFAULT, "%llu bytes at %p are not all mapped", (unsigned long long)len, addr);
    uintptr_t at = first_without((read ? READABLE : 0) | (written ? WRITABLE : 0), fd, addr, len);
    if (!at)
        return 0;
    if (read && first_without(READABLE, fd, (void *)at, 1))
        return weft_fail(-EFAULT, "%llu bytes at %p cannot be read from %p on: mapped without PROT_READ, or a GPU's memory",
                         (unsigned long long)len, addr, (void *)at);
    return weft_fail(-EFAULT,
                     "%llu bytes at %p are for peers to write, and mapped read-only from %p on: WEFT_READ alone registers such memory",
                     (unsigned long long)len, addr, (void *)at);
}
