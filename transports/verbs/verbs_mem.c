/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. The device checks keys, bounds and access; this list is for the questions that a
 * device does not answer: what was wrong, and operations of no bytes.
 *
 * A device may take less at once than a user registers, and say so (max_mr_size) or not: Soft-RoCE takes less
 * than 2 GiB, says that there is no limit, and then ENOMEM. Such memory is registered in parts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

#define WHOLE 63       /* log2 of the length of a part: there is but one */
#define LEAST_TRIED 26 /* shorter ones are not tried to find out what a device takes */

/* Where drivers that let a nic reach a GPU's memory by its address show themselves. */
static const char *const peer_memory[] = {
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
};

/* A driver that knows dma-bufs calls this descriptor a bad one; one that does not, says so first. */
static bool takes_dmabuf(const struct verbs_nic *nic)
{
    if (!nic->lib->reg_dmabuf_mr)
        return false;
    struct ibv_mr *mr = nic->lib->reg_dmabuf_mr(nic->pd, 0, 4096, 0, -1, 0);
    if (mr)
        nic->lib->dereg_mr(mr);
    return mr || errno == EBADF;
}

uint32_t verbs_mem_kinds(const struct verbs_nic *nic)
{
    uint32_t kinds = WEFT_MEM_HOST | (takes_dmabuf(nic) ? WEFT_MEM_DMABUF : 0u);
    for (size_t i = 0; i < sizeof peer_memory / sizeof *peer_memory; i++)
        if (access(peer_memory[i], F_OK) == 0)
            kinds |= WEFT_MEM_PEER;
    return kinds;
}

/*
 * Relaxed ordering lets writes of the device to memory overtake each other: much faster on some
 * machines. It is safe where the bytes are announced by a completion of this nic, which overtakes
 * nothing: for what only this side's READs write. Peers' WRITEs may be announced by another nic, or by
 * a word that the peer adds to; WEFT_VERBS_RELAXED=2 says that they are not.
 */
static bool may_relax(const struct verbs_nic *nic, uint32_t access)
{
    return nic->lib->reg_mr_iova2 &&
           (nic->relaxed == 2 ||
            (nic->relaxed == 1 && !(access & (WEFT_ACCESS_WRITE | WEFT_ACCESS_ATOMIC))));
}

static unsigned flags_of(const struct verbs_nic *nic, uint32_t access)
{
    unsigned flags = IBV_ACCESS_LOCAL_WRITE;
    if (access & WEFT_ACCESS_READ)
        flags |= IBV_ACCESS_REMOTE_READ;
    if (access & WEFT_ACCESS_WRITE)
        flags |= IBV_ACCESS_REMOTE_WRITE;
    if (access & WEFT_ACCESS_ATOMIC)
        flags |= IBV_ACCESS_REMOTE_ATOMIC;
    return may_relax(nic, access) ? flags | IBV_ACCESS_RELAXED_ORDERING : flags;
}

/* --- one registration ---------------------------------------------------------------------------------- */

static struct ibv_mr *reg(const struct verbs_nic *nic, const struct weft_mem_range *range,
                          uint64_t offset, uint64_t len, unsigned flags)
{
    uint8_t *addr = (uint8_t *)range->addr + offset;
    if (range->kind == WEFT_MEM_DMABUF)
        return nic->lib->reg_dmabuf_mr(nic->pd, range->dmabuf_offset + offset, len,
                                       (uintptr_t)addr, range->dmabuf_fd, (int)flags);
    if (flags & IBV_ACCESS_RELAXED_ORDERING)
        return nic->lib->reg_mr_iova2(nic->pd, addr, len, (uintptr_t)addr, flags);
    return nic->lib->reg_mr(nic->pd, addr, len, (int)flags);
}

/* The next part. Returns its length; 0: errno says why not. */
static uint64_t reg_part(const struct verbs_nic *nic, struct verbs_mem *mem, uint64_t offset)
{
    const struct weft_mem_range *range = &mem->range;
    struct verbs_part *part = &mem->parts[mem->nparts];
    uint64_t len = verbs_part_left(mem->shift, (uintptr_t)range->addr + offset);
    unsigned flags = flags_of(nic, range->access);
    if (len > range->len - offset)
        len = range->len - offset;
    part->mr = reg(nic, range, offset, len, flags);
    /* pages that may only be read are fine for what only reads them */
    if (!part->mr && errno == EFAULT && !(range->access & ~WEFT_ACCESS_READ))
        part->mr = reg(nic, range, offset, len, flags & ~(unsigned)IBV_ACCESS_LOCAL_WRITE);
    if (!part->mr)
        return 0;
    part->lkey = part->mr->lkey;
    part->rkey = part->mr->rkey;
    mem->nparts++;
    return len;
}

/* False: some of it is still there, in use or not let go by the device, whatever it says: peers may reach it. */
static bool unreg(const struct verbs_nic *nic, struct verbs_mem *mem)
{
    bool gone = true;
    for (uint32_t i = 0; i < mem->nparts; i++) {
        struct verbs_part *part = &mem->parts[i];
        int rc = part->mr ? nic->lib->dereg_mr(part->mr) : 0;
        if (rc == 0) {
            part->mr = NULL;
            continue;
        }
        gone = false;
        if (rc != EBUSY && !mem->stuck)
            weft_log(WEFT_LOG_WARN, "verbs", "%s: cannot deregister memory at %p: %s", nic->name,
                     mem->range.addr, strerror(rc));
        mem->stuck |= rc != EBUSY; /* said once */
    }
    return gone;
}

/* --- in parts ------------------------------------------------------------------------------------------- */

/* In parts that end at multiples of 2^shift: all, or none. NULL: errno says why; *took: not for the length of a
 * part, since one as long was taken. */
static struct verbs_mem *try(const struct verbs_nic *nic, const struct weft_mem_range *range,
                             uint8_t shift, bool *took)
{
    uint64_t count = range->len ? verbs_part_count(shift, (uintptr_t)range->addr, range->len) : 1;
    uint64_t done = 0, len = 0;
    *took = false;
    if (shift < VERBS_LEAST_PART || count > VERBS_MAX_PARTS) {
        errno = EMSGSIZE;
        return NULL;
    }
    struct verbs_mem *mem = calloc(1, sizeof *mem + count * sizeof *mem->parts);
    if (!mem)
        return NULL;
    mem->range = *range;
    mem->shift = shift;
    for (; mem->nparts < count; done += len) {
        len = reg_part(nic, mem, done);
        if (len == 0) {
            int err = errno;
            unreg(nic, mem);
            free(mem);
            errno = err;
            return NULL;
        }
        *took = *took || len >> shift;
    }
    mem->lkey = mem->parts[0].lkey;
    mem->rkey = mem->parts[0].rkey;
    return mem;
}

static uint8_t log2_of(uint64_t n)
{
    uint8_t log = 0;
    while (n >>= 1)
        log++;
    return log;
}

/* As a whole if the device may take it, else in the longest parts that it takes. What works is tried first from
 * then on. */
static struct verbs_mem *reg_mem(struct verbs_nic *nic, const struct weft_mem_range *range)
{
    uint8_t shift = range->len <= nic->mr_max ? WHOLE : log2_of(nic->mr_max);
    bool took;
    struct verbs_mem *mem = try(nic, range, shift, &took);
    while (!mem && errno == ENOMEM && !took) {
        shift = shift == WHOLE ? log2_of(range->len - 1) : (uint8_t)(shift - 1);
        if (shift < LEAST_TRIED)
            return NULL;
        mem = try(nic, range, shift, &took);
        if (mem)
            nic->mr_max = (uint64_t)1 << shift;
    }
    return mem;
}

static const char *hint(const struct weft_mem_range *range, int err)
{
    if (err == EMSGSIZE)
        return " (the device takes too little at once)";
    if (err == ENOMEM)
        return " (is the limit of locked memory, ulimit -l, large enough?)";
    if (err == EFAULT && range->kind == WEFT_MEM_PEER)
        return " (is nvidia_peermem, or the amdgpu driver's peer memory, loaded?)";
    if (err == EFAULT)
        return " (is all of it mapped, and writable if peers may write?)";
    return "";
}

int verbs_mem_reg(struct weft_nic *base, const struct weft_mem_range *range,
                  struct weft_mem_handle *handle)
{
    struct verbs_nic *nic = (struct verbs_nic *)base;
    if (!(base->attr.mem_kinds & range->kind) || (range->kind & (range->kind - 1)))
        return weft_fail(WEFT_EUNSUPPORTED, "verbs %s: cannot register memory of kind %u",
                         nic->name, range->kind);
    struct verbs_mem *mem = reg_mem(nic, range);
    if (!mem) {
        int err = errno;
        return weft_fail(-err, "verbs %s: cannot register %llu bytes at %p: %s%s", nic->name,
                         (unsigned long long)range->len, range->addr, strerror(err),
                         hint(range, err));
    }
    mem->next = nic->mems;
    if (mem->next)
        mem->next->prev = mem;
    nic->mems = mem;
    handle->mem = mem;
    handle->rkey = mem->rkey;
    if (mem->nparts > 1)
        verbs_count_parted(nic, 1);
    return 0;
}

struct verbs_mem *verbs_mem_lend(struct verbs_nic *nic, void *addr, uint64_t len)
{
    const struct weft_mem_range range = {.addr = addr, .len = len, .kind = WEFT_MEM_HOST};
    return reg_mem(nic, &range);
}

void verbs_mem_take_back(const struct verbs_nic *nic, struct verbs_mem *mem)
{
    unreg(nic, mem);
    free(mem);
}

int verbs_mem_dereg(struct weft_nic *base, void *handle)
{
    struct verbs_nic *nic = (struct verbs_nic *)base;
    struct verbs_mem *mem = handle;
    if (!unreg(nic, mem))
        return WEFT_EAGAIN;
    if (mem->nparts > 1)
        verbs_count_parted(nic, -1);
    if (mem->prev)
        mem->prev->next = mem->next;
    else
        nic->mems = mem->next;
    if (mem->next)
        mem->next->prev = mem->prev;
    free(mem);
    return 0;
}

uint32_t verbs_mem_lkey(const struct verbs_mem *mem, uint64_t addr, uint64_t *len)
{
    uint64_t base = (uintptr_t)mem->range.addr, part = (addr >> mem->shift) - (base >> mem->shift);
    uint64_t left = verbs_part_left(mem->shift, addr);
    if (mem->nparts == 1 || part >= mem->nparts) /* beyond: the device refuses it */
        return mem->lkey;
    if (*len > left && part + 1 < mem->nparts)
        *len = left;
    return mem->parts[part].lkey;
}

static bool is_beyond_first(const struct verbs_mem *mem, const struct verbs_question *question)
{
    uint64_t base = (uintptr_t)mem->range.addr;
    return question->len > 0 &&
           question->addr + question->len - base > verbs_part_left(mem->shift, base);
}

/* --- what peers may ----------------------------------------------------------------------------------- */

int verbs_mem_judge(const struct verbs_nic *nic, const struct verbs_question *question,
                    const struct verbs_mem **beyond)
{
    static const uint32_t needs[WEFT_OP_COUNT] = {[WEFT_OP_WRITE] = WEFT_ACCESS_WRITE,
                                                  [WEFT_OP_WRITE_IMM] = WEFT_ACCESS_WRITE,
                                                  [WEFT_OP_READ] = WEFT_ACCESS_READ,
                                                  [WEFT_OP_ADD64] = WEFT_ACCESS_ATOMIC};
    const struct verbs_mem *mem = nic->mems;
    while (mem && mem->rkey != question->rkey)
        mem = mem->next;
    if (!mem)
        return WEFT_EKEY;
    uint64_t base = (uintptr_t)mem->range.addr, len = mem->range.len;
    if (question->addr < base || question->addr - base > len ||
        question->len > len - (question->addr - base))
        return WEFT_EBOUNDS;
    if (question->op >= WEFT_OP_COUNT || !needs[question->op] ||
        !(mem->range.access & needs[question->op]))
        return WEFT_EACCESS;
    if (beyond && mem->nparts > 1 && is_beyond_first(mem, question))
        *beyond = mem;
    return 0;
}
