/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for fuzzing: its memory is addresses that cannot be touched, its copies end, and fail, as the target says. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "stub.h"
#include "weft/gpu.h"

struct stub_gpu_script stub_gpu_script;

static struct weft_gpu gpu;
static uint8_t bytes[STUB_GPU_BYTES];
static uint8_t peer_bytes[STUB_PEER_BYTES];
static uint8_t *addresses, *peer_addresses;
static int pinned, mapped;

struct weft_gpu_job {
    const struct weft_gpu_copy *list;
    int n, later;
};

uint8_t *stub_gpu_memory(void)
{
    if (!addresses)
        addresses = mmap(NULL, STUB_GPU_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FUZZ_CHECK(addresses != MAP_FAILED);
    return addresses;
}

uint8_t *stub_gpu_bytes(void)
{
    return bytes;
}

int stub_gpu_pinned(void)
{
    return pinned;
}

int stub_gpu_mapped(void)
{
    return mapped;
}

static bool is_peers(const void *at)
{
    return peer_addresses && (uintptr_t)at - (uintptr_t)peer_addresses < STUB_PEER_BYTES;
}

static bool owns(const void *at)
{
    return addresses && (uintptr_t)at - (uintptr_t)addresses < STUB_GPU_BYTES;
}

/* Where len bytes at an address of either kind are. */
static uint8_t *place(const void *at, uint64_t len)
{
    if (is_peers(at)) {
        FUZZ_CHECK(mapped && len <= STUB_PEER_BYTES - ((uintptr_t)at - (uintptr_t)peer_addresses));
        return peer_bytes + ((uintptr_t)at - (uintptr_t)peer_addresses);
    }
    if (!owns(at))
        return (uint8_t *)(uintptr_t)at;
    FUZZ_CHECK(len <= STUB_GPU_BYTES - ((uintptr_t)at - (uintptr_t)addresses));
    return bytes + ((uintptr_t)at - (uintptr_t)addresses);
}

static int stub_probe(void)
{
    return 1;
}

static int stub_open(int ordinal, struct weft_gpu **out)
{
    FUZZ_CHECK(ordinal == 0);
    *out = &gpu;
    return 0;
}

static void stub_close(struct weft_gpu *closed)
{
    FUZZ_CHECK(closed == &gpu);
}

static int stub_alloc(struct weft_gpu *on, uint64_t len, void **addr)
{
    (void)on, (void)len, (void)addr;
    return -ENOMEM;
}

static void stub_free(struct weft_gpu *on, void *addr)
{
    (void)on, (void)addr;
}

static int stub_query(const void *addr, struct weft_gpu_range *range)
{
    if (is_peers(addr)) {
        *range = (struct weft_gpu_range){
            .base = peer_addresses, .len = STUB_PEER_BYTES, .kind = WEFT_MEM_PEER};
        return 1;
    }
    if (!owns(addr))
        return 0;
    *range = (struct weft_gpu_range){
        .base = addresses, .len = STUB_GPU_BYTES, .kind = WEFT_MEM_PEER};
    return 1;
}

static int stub_copy(struct weft_gpu *on, void *dst, const void *src, uint64_t len, void *stream)
{
    FUZZ_CHECK(on == &gpu && !stream &&
               (owns(dst) || owns(src) || is_peers(dst) || is_peers(src)));
    memmove(place(dst, len), place(src, len), len);
    return 0;
}

static int stub_launch(struct weft_gpu *on, const struct weft_gpu_launch *what)
{
    (void)on, (void)what;
    return WEFT_EUNSUPPORTED;
}

static int stub_host_map(struct weft_gpu *on, void *host, uint64_t len, void **dev)
{
    (void)on, (void)len;
    if (stub_gpu_script.pin_fails)
        return weft_fail(-ENOMEM, "the stub pins nothing");
    pinned++;
    *dev = host;
    return 0;
}

static void stub_host_unmap(struct weft_gpu *on, void *host)
{
    (void)on, (void)host;
    pinned--;
}

static int stub_describe(int ordinal, struct weft_gpu_device *device)
{
    FUZZ_CHECK(ordinal == 0);
    *device = (struct weft_gpu_device){.name = "stub", .pci = "0000:01:00.0"};
    return 0;
}

static int stub_ipc_export(struct weft_gpu *on, void *addr, uint64_t len, void *handle, int *fd)
{
    FUZZ_CHECK(on == &gpu && owns(addr) && len);
    if (stub_gpu_script.ipc_fails)
        return weft_fail(WEFT_EUNSUPPORTED, "the stub exports nothing");
    memset(handle, 0x11, WEFT_GPU_IPC_BYTES);
    *fd = stub_gpu_script.ipc_passes ? dup(2) : -1;
    return 0;
}

/* The first two bytes of a handle say where in the peer's memory. */
static int stub_ipc_open(struct weft_gpu *on, const void *handle, int fd, uint64_t len,
                         void **addr)
{
    uint16_t offset;
    FUZZ_CHECK(on == &gpu && (fd == -1 || fcntl(fd, F_GETFD) >= 0));
    memcpy(&offset, handle, sizeof offset);
    if (stub_gpu_script.ipc_fails || offset >= STUB_PEER_BYTES || len > (uint64_t)(STUB_PEER_BYTES - offset))
        return weft_fail(-EIO, "the stub opens nothing");
    if (!peer_addresses)
        peer_addresses = mmap(NULL, STUB_PEER_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                              0);
    FUZZ_CHECK(peer_addresses != MAP_FAILED);
    mapped++;
    *addr = peer_addresses + offset;
    return 0;
}

static void stub_ipc_close(struct weft_gpu *on, void *addr)
{
    FUZZ_CHECK(on == &gpu && is_peers(addr) && mapped > 0);
    mapped--;
}

static int stub_copy_start(struct weft_gpu *on, const struct weft_gpu_copy *list, int n,
                           uint32_t flags, struct weft_gpu_job **job)
{
    (void)flags;
    FUZZ_CHECK(on == &gpu && n > 0);
    if (stub_gpu_script.start_fails)
        return weft_fail(-EIO, "the stub starts nothing");
    *job = calloc(1, sizeof **job);
    FUZZ_CHECK(*job);
    **job = (struct weft_gpu_job){list, n, stub_gpu_script.later};
    return 0;
}

static int stub_copy_done(struct weft_gpu *on, struct weft_gpu_job *job)
{
    bool fails = stub_gpu_script.done_fails;
    if (job->later > 0 && stub_gpu_script.later) {
        job->later--;
        return 0;
    }
    for (int i = 0; !fails && i < job->n; i++)
        stub_copy(on, job->list[i].dst, job->list[i].src, job->list[i].len, NULL);
    free(job);
    return fails ? weft_fail(-EIO, "the stub copies nothing") : 1;
}

static const struct weft_gpu_ops ops = {
    .probe = stub_probe,
    .open = stub_open,
    .close = stub_close,
    .alloc = stub_alloc,
    .free = stub_free,
    .query = stub_query,
    .copy = stub_copy,
    .launch = stub_launch,
    .host_map = stub_host_map,
    .host_unmap = stub_host_unmap,
    .copy_start = stub_copy_start,
    .copy_done = stub_copy_done,
    .describe = stub_describe,
    .ipc_export = stub_ipc_export,
    .ipc_open = stub_ipc_open,
    .ipc_close = stub_ipc_close,
};

const struct weft_gpu_backend weft_gpu_stub = {
    .abi = WEFT_ABI, .name = "stub", .summary = "for fuzzing", .ops = &ops};
