/* SPDX-License-Identifier: Apache-2.0 */
/* Protection domains and registered memory. */
#include "fake.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The macros of verbs.h stand before the functions of these names. */
#undef ibv_reg_mr

#define BUCKETS 4096
#define KNOWN_ACCESS                                                                              \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                  \
     IBV_ACCESS_REMOTE_ATOMIC)
#define WRITING_ACCESS                                                                            \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

static struct fake_mr *by_lkey[BUCKETS], *by_rkey[BUCKETS];
static uint32_t key_count;

/* --- protection domains --------------------------------------------------------------------- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *pub)
{
    struct fake_pd *pd = NULL;
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err)
        err = context->device->fatal ? EIO : (pd = calloc(1, sizeof *pd)) ? 0 : ENOMEM;
    if (!err) {
        pd->pub.context = pub;
        fake__object_make(&pd->object, FAKE_PD, context);
    }
    fake__unlock();
    if (err)
        errno = err;
    return err ? NULL : &pd->pub;
}

int ibv_dealloc_pd(struct ibv_pd *pub)
{
    fake__lock();
    struct fake_pd *pd = FAKE_OF(fake_pd, object, FAKE_PD, pub, __func__);
    int err = pd ? 0 : EINVAL;
    if (pd && pd->users) {
        fake__fault("ibv_dealloc_pd: %d objects are left in the domain", pd->users);
        err = EBUSY;
    }
    if (!err)
        fake__object_retire(&pd->object, pd);
    fake__unlock();
    return err;
}

/* --- keys ----------------------------------------------------------------------------------- */

/* One to one, so that no key comes back before all others have been used; looks random. */
static uint32_t new_key(void)
{
    uint32_t key;
    do {
        key = ++key_count;
        key = (key ^ (key >> 16)) * 0x7feb352du;
        key = (key ^ (key >> 15)) * 0x846ca68bu;
        key ^= key >> 16;
    } while (!key);
    return key;
}

static void enlist(struct fake_mr *mr)
{
    struct fake_mr **l = &by_lkey[mr->pub.lkey % BUCKETS], **r = &by_rkey[mr->pub.rkey % BUCKETS];
    mr->next_lkey = *l;
    mr->next_rkey = *r;
    *l = *r = mr;
}

static void unlist(struct fake_mr *mr)
{
    struct fake_mr **l = &by_lkey[mr->pub.lkey % BUCKETS], **r = &by_rkey[mr->pub.rkey % BUCKETS];
    while (*l != mr)
        l = &(*l)->next_lkey;
    while (*r != mr)
        r = &(*r)->next_rkey;
    *l = mr->next_lkey;
    *r = mr->next_rkey;
}

static uint8_t *locate(const struct fake_mr *mr, const struct fake_pd *pd, uint64_t addr,
                       uint64_t len, unsigned int access)
{
    uint64_t offset = addr - mr->iova;
    if (mr->pd != pd || (mr->access & access) != access)
        return NULL;
    if (addr < mr->iova || offset > mr->pub.length || len > mr->pub.length - offset)
        return NULL;
    return mr->at + offset;
}

uint8_t *fake__mr_local(const struct fake_pd *pd, uint32_t lkey, uint64_t addr, uint64_t len,
                        unsigned int access)
{
    for (struct fake_mr *mr = by_lkey[lkey % BUCKETS]; mr; mr = mr->next_lkey)
        if (mr->pub.lkey == lkey)
            return locate(mr, pd, addr, len, access);
    return NULL;
}

uint8_t *fake__mr_remote(const struct fake_pd *pd, uint32_t rkey, uint64_t addr, uint64_t len,
                         unsigned int access)
{
    for (struct fake_mr *mr = by_rkey[rkey % BUCKETS]; mr; mr = mr->next_rkey)
        if (mr->pub.rkey == rkey)
            return locate(mr, pd, addr, len, access);
    return NULL;
}

void fake__mr_abandon(const struct fake_context *context)
{
    for (int i = 0; i < BUCKETS; i++) {
        for (struct fake_mr *mr = by_lkey[i], *next; mr; mr = next) {
            next = mr->next_lkey;
            if (mr->object.context == context) {
                unlist(mr);
                fake__object_lost(&mr->object);
            }
        }
    }
}

/* --- registration --------------------------------------------------------------------------- */

/* Is all of it mapped, and may be written if it has to be? The kernel pins the pages. */
static int check_mapped(const void *addr, size_t length, bool writing)
{
    uintptr_t at = (uintptr_t)addr, end = at + length;
    char line[512], *next;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return 0;
    while (at < end && fgets(line, sizeof line, maps)) {
        uintptr_t from = strtoul(line, &next, 16), to = *next == '-' ? strtoul(next + 1, &next, 16) : 0;
        if (to <= at)
            continue;
        if (from > at || next[1] != 'r' || (writing && next[2] != 'w')) /* FROM-TO rwxp ... */
            break;
        at = to;
    }
    fclose(maps);
    return at >= end ? 0 : EFAULT;
}

static int check_access(unsigned int access)
{
    if (access & ~(unsigned int)(KNOWN_ACCESS | IBV_ACCESS_OPTIONAL_RANGE))
        return EOPNOTSUPP;
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(access & IBV_ACCESS_LOCAL_WRITE)) {
        fake__fault("a registration that peers write to needs IBV_ACCESS_LOCAL_WRITE");
        return EINVAL;
    }
    return 0;
}

static int check_limits(const struct fake_pd *pd, size_t length)
{
    const struct fake_context *context = pd->object.context;
    if (context->device->fatal)
        return EIO;
    if (length == 0 || length > fake__config.max_mr_size)
        return EINVAL;
    if (length > fake__config.mr_limit)
        return ENOMEM;
    return (uint64_t)context->live[FAKE_MR] < fake__config.max_mr ? 0 : ENOMEM;
}

static struct ibv_mr *make(struct fake_pd *pd, const struct fake_mr *like)
{
    struct fake_mr *mr = calloc(1, sizeof *mr);
    if (!mr) {
        errno = ENOMEM;
        return NULL;
    }
    *mr = *like;
    mr->pd = pd;
    mr->pub.context = pd->pub.context;
    mr->pub.pd = &pd->pub;
    mr->pub.lkey = new_key();
    mr->pub.rkey = new_key();
    mr->access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
    fake__object_make(&mr->object, FAKE_MR, pd->object.context);
    pd->users++;
    fake__stats.registrations++;
    if (like->access & IBV_ACCESS_RELAXED_ORDERING)
        fake__stats.relaxed++;
    enlist(mr);
    return &mr->pub;
}

static struct ibv_mr *reg(const char *call, struct ibv_pd *pub, void *addr, size_t length,
                          uint64_t iova, unsigned int access)
{
    struct ibv_mr *mr = NULL;
    fake__lock();
    struct fake_pd *pd = FAKE_OF(fake_pd, object, FAKE_PD, pub, call);
    int err = pd ? fake__plan_call(call) : EINVAL;
    if (!err)
        err = check_access(access);
    if (!err)
        err = check_limits(pd, length);
    if (!err)
        err = check_mapped(addr, length, access & WRITING_ACCESS);
    if (!err) {
        struct fake_mr like = {
            .pub = {.addr = addr, .length = length}, .at = addr, .iova = iova, .access = access};
        mr = make(pd, &like);
    }
    fake__unlock();
    if (err)
        errno = err;
    return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    if ((unsigned int)access & IBV_ACCESS_OPTIONAL_RANGE) {
        /* kernels that do not know the flag refuse it; only iova2 takes it out for them */
        errno = EINVAL;
        return NULL;
    }
    return reg(__func__, pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

#ifndef FAKE_OLD
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access)
{
    fake__lock();
    bool relaxed = fake__config.relaxed;
    fake__unlock();
    if (!relaxed)
        access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
    return reg(__func__, pd, addr, length, iova, access);
}

/* Any descriptor that can be mapped stands for a dma-buf: one of memfd_create in tests. */
static int map_dmabuf(struct fake_mr *mr, int fd, uint64_t offset, size_t length)
{
    uint64_t skip = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < 0)
        return errno == EBADF ? EBADF : EINVAL; /* which tells a driver that knows dma-bufs */
    if (offset > (uint64_t)end || length > (uint64_t)end - offset)
        return EINVAL;
    mr->mapped_len = length + skip;
    mr->mapped = mmap(NULL, mr->mapped_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      (off_t)(offset - skip));
    if (mr->mapped == MAP_FAILED)
        return errno;
    mr->at = (uint8_t *)mr->mapped + skip;
    return 0;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pub, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    struct ibv_mr *mr = NULL;
    struct fake_mr like = {.pub.length = length, .iova = iova, .access = (unsigned int)access};
    fake__lock();
    struct fake_pd *pd = FAKE_OF(fake_pd, object, FAKE_PD, pub, __func__);
    int err = pd ? fake__plan_call(__func__) : EINVAL;
    if (!err && !fake__config.dmabuf)
        err = EOPNOTSUPP;
    if (!err)
        err = check_access(like.access);
    if (!err)
        err = check_limits(pd, length);
    if (!err)
        err = map_dmabuf(&like, fd, offset, length);
    if (!err) {
        fake__stats.dmabufs++;
        mr = make(pd, &like);
    }
    fake__unlock();
    if (err)
        errno = err;
    return mr;
}
#endif

int ibv_dereg_mr(struct ibv_mr *pub)
{
    fake__lock();
    struct fake_mr *mr = FAKE_OF(fake_mr, object, FAKE_MR, pub, __func__);
    int err = mr ? fake__plan_call(__func__) : EINVAL;
    if (!err) {
        unlist(mr);
        mr->pd->users--;
        if (mr->mapped)
            munmap(mr->mapped, mr->mapped_len);
        fake__object_retire(&mr->object, mr);
    }
    fake__unlock();
    return err;
}
