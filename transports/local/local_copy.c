/* SPDX-License-Identifier: Apache-2.0 */
/* Copies: from and to the initiator's memory, and between iovs and flat memory. */
#include "local.h"

#include <errno.h>
#include <string.h>

bool local_copy_probe(const struct local_link *link, uint64_t addr, uint64_t value)
{
    uint64_t seen = ~value;
    struct iovec ours = {&seen, sizeof seen}, theirs = {(void *)(uintptr_t)addr, sizeof seen};
    return process_vm_readv(link->pid, &ours, 1, &theirs, 1, 0) == sizeof seen && seen == value;
}

/* The part [offset, offset + len) of an iov. Returns the number of pieces. */
static uint32_t cut(const struct iovec *iov, uint32_t niov, uint64_t offset, uint64_t len,
                    struct iovec *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < niov && len; i++) {
        if (offset >= iov[i].iov_len) {
            offset -= iov[i].iov_len;
            continue;
        }
        uint64_t part = iov[i].iov_len - offset;
        part = part < len ? part : len;
        out[n++] = (struct iovec){(char *)iov[i].iov_base + offset, part};
        len -= part;
        offset = 0;
    }
    return n;
}

ssize_t local_move(const struct local_link *link, void *ours, const struct iovec *theirs,
                   uint32_t n, bool out)
{
    struct iovec mine = {ours, 0};
    for (uint32_t i = 0; i < n; i++)
        mine.iov_len += theirs[i].iov_len;
    if (!link->same_process) {
        ssize_t moved = out ? process_vm_writev(link->pid, &mine, 1, theirs, n, 0)
                            : process_vm_readv(link->pid, &mine, 1, theirs, n, 0);
        return moved < 0 ? -errno : moved;
    }
    char *at = ours;
    for (uint32_t i = 0; i < n; at += theirs[i++].iov_len)
        memmove(out ? theirs[i].iov_base : at, out ? at : theirs[i].iov_base, theirs[i].iov_len);
    return at - (char *)ours;
}

ssize_t local_copy(struct local_link *link, const struct local_job *job, void *ours, uint64_t len)
{
    struct iovec theirs[LOCAL_MAX_IOV];
    uint32_t n = cut(job->iov, job->niov, job->done, len, theirs);
    return local_move(link, ours, theirs, n, job->op == WEFT_OP_READ);
}

void local_gather(void *dst, const struct weft_iov_local *iov, uint64_t offset, uint64_t len)
{
    char *to = dst;
    for (; len; iov++) {
        if (offset >= iov->len) {
            offset -= iov->len;
            continue;
        }
        uint64_t part = iov->len - offset < len ? iov->len - offset : len;
        memcpy(to, (const char *)iov->addr + offset, part);
        to += part;
        len -= part;
        offset = 0;
    }
}

void local_scatter(const struct weft_iov_local *iov, uint64_t offset, const void *src,
                   uint64_t len)
{
    const char *from = src;
    for (; len; iov++) {
        if (offset >= iov->len) {
            offset -= iov->len;
            continue;
        }
        uint64_t part = iov->len - offset < len ? iov->len - offset : len;
        memcpy((char *)iov->addr + offset, from, part);
        from += part;
        len -= part;
        offset = 0;
    }
}
