/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments for other processes: all that a range touches go, each as a descriptor with its length, into a bag, and are mapped side
 * by side at the other end. What is open there is known by its id, since a bag is emptied once.
 */
#include "bag.h"
#include "vendor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(VENDOR_ID_BYTES == BAG_ID_BYTES, "an id is an id");

/* --- shared -------------------------------------------------------------------------------------- */

bool vendor_segments_has(const struct vendor *vendor, uintptr_t addr)
{
    const struct vendor_segments *ops = vendor->segments;
    uint64_t segment;
    bool has = ops && ops->retain(&segment, addr) == 0;
    if (has)
        ops->release(segment);
    return has;
}

static int share_one(const struct vendor_segments *ops, uintptr_t addr, int *fd)
{
    uint64_t segment;
    int result = ops->retain(&segment, addr);
    if (result)
        return result;
    result = ops->to_fd(fd, segment);
    ops->release(segment);
    return result;
}

/* Up to BAG_MOST of them, from *at on, to the end of the range. */
static int fill(const struct vendor_gpu *gpu, uintptr_t *at, uintptr_t end,
                struct bag_handful *handful)
{
    const struct vendor *vendor = gpu->vendor;
    int result = 0;
    for (handful->n = 0; *at < end && handful->n < BAG_MOST && result == 0;) {
        uintptr_t base;
        size_t len;
        result = vendor->range(*at, &base, &len);
        if (result == 0 && base + len <= *at)
            result = VENDOR_EINVAL;
        if (result == 0)
            result = share_one(vendor->segments, base, &handful->fd[handful->n]);
        if (result == 0) {
            handful->number[handful->n++] = len;
            *at = base + len;
        }
    }
    return result ? vendor_fail(vendor, result, "cannot share what the program has mapped") : 0;
}

static int share_all(const struct vendor_gpu *gpu, uintptr_t start, uintptr_t end, int mouth,
                     struct vendor_shared *shared)
{
    struct bag_handful handful;
    uintptr_t at = start;
    memcpy(handful.id, shared->id, sizeof handful.id);
    while (at < end) {
        int rc = fill(gpu, &at, end, &handful);
        if (rc == 0)
            rc = bag_put(mouth, &handful);
        bag_drop(&handful, 0);
        if (rc)
            return rc;
    }
    shared->bytes = at - start;
    return 0;
}

int vendor_segments_share(const struct vendor_gpu *gpu, uintptr_t addr, uint64_t len,
                          struct vendor_shared *shared, uint64_t *offset, int *fd)
{
    uintptr_t start;
    size_t size;
    int mouth, result = gpu->vendor->range(addr, &start, &size);
    if (result)
        return vendor_fail(gpu->vendor, result, "cannot tell where the allocation begins");
    int rc = weft_random(shared->id, sizeof shared->id);
    if (rc == 0)
        rc = bag_open(fd, &mouth);
    if (rc)
        return rc;
    rc = share_all(gpu, start, addr + len, mouth, shared);
    close(mouth);
    *offset = addr - start;
    if (rc) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

/* --- opened -------------------------------------------------------------------------------------- */

#define MOST 16384 /* segments of a range: each takes the driver a while */

struct opened {
    struct opened *next;
    const struct vendor *vendor;
    uint8_t id[VENDOR_ID_BYTES];
    uintptr_t start;
    uint64_t bytes, mapped; /* reserved; of these, so many have a segment */
    unsigned users;
    size_t n;
    uint64_t *len; /* of each */
};

static struct weft_static_lock lock = WEFT_STATIC_LOCK(.foreign = 1);
static struct opened *all; /* of this process */

static void undo(struct opened *o)
{
    const struct vendor_segments *ops = o->vendor->segments;
    uintptr_t at = o->start;
    int result = 0;
    for (size_t i = 0; i < o->n; at += o->len[i++]) {
        int rc = ops->unmap(at, o->len[i]);
        result = result ? result : rc;
    }
    int rc = o->start ? ops->unreserve(o->start, o->bytes) : 0;
    if (result || rc)
        weft_log(WEFT_LOG_WARN, "gpu", "%s: cannot unmap another process's memory (%d)",
                 o->vendor->backend->name, result ? result : rc);
    free(o->len);
    free(o);
}

static int cannot_map(const struct opened *o, int result)
{
    return vendor_fail(o->vendor, result, "cannot map what another process has mapped");
}

static int map_one(struct opened *o, int fd, uint64_t len)
{
    const struct vendor_segments *ops = o->vendor->segments;
    uint64_t segment;
    if (!len || len > o->bytes - o->mapped)
        return weft_fail(WEFT_EPROTO, "another process's memory is longer than it says");
    int result = ops->from_fd(&segment, fd);
    if (result)
        return cannot_map(o, result);
    result = ops->map(o->start + o->mapped, len, segment);
    ops->release(segment); /* what is mapped stays */
    if (result == 0) {
        o->len[o->n++] = len;
        o->mapped += len;
    }
    return result ? cannot_map(o, result) : 0;
}

static int map_handful(struct opened *o, struct bag_handful *handful)
{
    uint64_t *more = realloc(o->len, (o->n + handful->n) * sizeof *more);
    int rc = more ? 0 : weft_fail(-ENOMEM, "no memory for a list of segments");
    o->len = more ? more : o->len;
    if (rc == 0 && memcmp(handful->id, o->id, sizeof o->id) != 0)
        rc = weft_fail(WEFT_EPROTO, "what was passed is not this handle's");
    for (uint32_t i = 0; i < handful->n && rc == 0; i++)
        rc = map_one(o, handful->fd[i], handful->number[i]);
    return rc;
}

/* All of a bag. How many there are is the peer's word. */
static int map_all(struct opened *o, int bag)
{
    int rc = 0;
    while (o->mapped < o->bytes && rc == 0) {
        if (o->n >= MOST)
            return weft_fail(WEFT_ELIMIT, "another process's memory has more than %d segments",
                             MOST);
        struct bag_handful handful;
        rc = bag_take(bag, &handful);
        if (rc == 0)
            rc = map_handful(o, &handful);
        bag_drop(&handful, 0);
    }
    return rc;
}

static struct opened *find(const struct vendor *vendor, const uint8_t *id)
{
    struct opened *o = all;
    while (o && (o->vendor != vendor || memcmp(o->id, id, sizeof o->id) != 0))
        o = o->next;
    return o;
}

static int open_new(const struct vendor_gpu *gpu, const struct vendor_shared *shared, int bag,
                    struct opened **out)
{
    struct opened *o = calloc(1, sizeof *o);
    if (!o)
        return weft_fail(-ENOMEM, "no memory for what is mapped");
    o->vendor = gpu->vendor;
    o->bytes = shared->bytes;
    memcpy(o->id, shared->id, sizeof o->id);
    int result = o->vendor->segments->reserve(&o->start, o->bytes);
    int rc = result ? cannot_map(o, result) : map_all(o, bag);
    if (rc) {
        undo(o);
        return rc;
    }
    o->next = all;
    all = o;
    *out = o;
    return 0;
}

/* One user less. */
static void put(struct opened *o)
{
    if (--o->users)
        return;
    struct opened **at = &all;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    undo(o);
}

int vendor_segments_open(const struct vendor_gpu *gpu, const struct vendor_shared *shared, int fd,
                         uintptr_t *start)
{
    int rc = 0;
    weft_static_lock(&lock);
    struct opened *o = find(gpu->vendor, shared->id);
    if (o && o->bytes != shared->bytes)
        rc = weft_fail(WEFT_EPROTO, "another process's memory has another length than before");
    else if (!o && fd < 0)
        rc = weft_fail(WEFT_EUNSUPPORTED, "no GPU of this process has mapped what was passed");
    else if (!o)
        rc = open_new(gpu, shared, fd, &o);
    if (rc == 0) {
        o->users++;
        *start = o->start;
        int result = gpu->vendor->segments->allow(gpu, o->start, o->bytes);
        if (result) {
            rc = cannot_map(o, result);
            put(o);
        }
    }
    weft_static_unlock(&lock);
    return rc;
}

bool vendor_segments_close(const struct vendor_gpu *gpu, uintptr_t addr)
{
    weft_static_lock(&lock);
    struct opened *o = all;
    while (o && (o->vendor != gpu->vendor || addr - o->start >= o->bytes))
        o = o->next;
    if (o)
        put(o);
    weft_static_unlock(&lock);
    return o;
}
