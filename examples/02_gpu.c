/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process writes blocks of a GPU's memory into scattered blocks of another one's, in one operation.
 *
 * What is about GPUs: nothing but the addresses. They are registered and named as the host's are, and how the bytes move
 * (NVLink, PCIe, through the host and a nic) is Weft's to find out. Here the memory comes from weft_gpu_find, which gives
 * what WEFT_GPU or the first GPU has, and on a machine without any a backend whose memory is the process's own; a cudaMalloc,
 * or torch's data_ptr(), is as good.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft.h"
#include "weft/gpu.h"

#define WAIT_MS 20000
#define BLOCK ((size_t)32768)
#define BLOCKS 128 /* of which the target has twice as many */

struct invitation {
    uint8_t metadata[WEFT_METADATA_MAX];
    int len;
    struct weft_remote remote;
};

static int failed(const char *what)
{
    const char *why = weft_last_error();
    fprintf(stderr, "%s: %s\n", what, *why ? why : "the other process has ended");
    return 1;
}

/* Memory of a GPU: each of the two takes another one, if there are two. */
struct memory {
    struct weft_gpu *gpu;
    char *at;
};

static int allocate(int rank, size_t len, struct memory *memory)
{
    const struct weft_gpu_backend *backend = weft_gpu_find(NULL);
    int n = backend ? backend->ops->probe() : 0;
    if (n <= 0 || backend->ops->open(rank % n, &memory->gpu) < 0 ||
        backend->ops->alloc(memory->gpu, len, (void **)&memory->at) < 0)
        return failed("memory of a GPU");
    printf("%s: %s %d of %d\n", rank ? "initiator" : "target", backend->name, rank % n, n);
    return 0;
}

static int copy(const struct memory *memory, void *to, const void *from, size_t len)
{
    return memory->gpu->backend->ops->copy(memory->gpu, to, from, len, NULL);
}

static void release(struct memory *memory)
{
    memory->gpu->backend->ops->free(memory->gpu, memory->at);
    memory->gpu->backend->ops->close(memory->gpu);
}

/* Where the target wants block i. */
static size_t place_of(size_t i)
{
    return i * 37 % BLOCKS * 2;
}

/* Is every block where it belongs? */
static int check(const struct memory *memory)
{
    static unsigned char bytes[2 * BLOCKS * BLOCK];
    int wrong = 0;
    if (copy(memory, bytes, memory->at, sizeof bytes) < 0)
        return failed("looking at it");
    for (size_t i = 0; i < BLOCKS; i++)
        for (size_t j = 0; j < BLOCK; j++)
            wrong += bytes[place_of(i) * BLOCK + j] != (unsigned char)(i + j);
    printf("%d blocks of %zu bytes: %s\n", BLOCKS, BLOCK, wrong ? "WRONG" : "right");
    return wrong != 0;
}

/* The process whose memory is written. */
static int target(int out)
{
    struct invitation invitation = {0};
    struct memory memory;
    weft_endpoint_t endpoint;
    weft_mem_t mem;
    struct weft_notif notif;
    const size_t len = 2 * BLOCKS * BLOCK;

    if (allocate(0, len, &memory))
        return 1;
    if (weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .passive_accept = 1), &endpoint) < 0 ||
        weft_mem_reg(endpoint, memory.at, len, NULL, &mem) < 0 ||
        weft_mem_advertise(mem, memory.at, len, &invitation.remote) < 0)
        return failed("target");
    invitation.len = weft_endpoint_metadata(endpoint, invitation.metadata,
                                            sizeof invitation.metadata);
    if (write(out, &invitation, sizeof invitation) != sizeof invitation)
        return failed("pipe");
    if (weft_endpoint_notif(endpoint, WAIT_MS, &notif) < 0)
        return failed("waiting for the notification");
    weft_notif_free(&notif);
    int wrong = check(&memory); /* a kernel that is launched now sees the bytes, too */
    weft_endpoint_close(endpoint);
    release(&memory);
    return wrong;
}

/* All blocks in one operation. */
static int write_blocks(weft_conn_t conn, const struct memory *memory, weft_mem_t mem,
                        const struct weft_remote *whole)
{
    static struct weft_local local[BLOCKS];
    static struct weft_remote remote[BLOCKS];
    static uint64_t offset[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        local[i] = (struct weft_local){memory->at + i * BLOCK, BLOCK, mem};
        remote[i] = *whole;
        offset[i] = place_of(i) * BLOCK;
    }
    /* with .stream it would begin after the kernels that fill the blocks, without waiting for them here */
    return weft_transfer(conn,
                         WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local,
                                   .nlocal = BLOCKS, .remote = remote, .nremote = BLOCKS,
                                   .remote_offset = offset, .notify = "done", .notify_len = 4),
                         WAIT_MS, NULL) < 0;
}

/* The process that writes. */
static int initiator(int in)
{
    static unsigned char bytes[BLOCKS * BLOCK];
    struct invitation to;
    struct memory memory;
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    weft_mem_t mem;

    if (read(in, &to, sizeof to) != sizeof to)
        return failed("pipe");
    if (allocate(1, sizeof bytes, &memory))
        return 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i / BLOCK + i % BLOCK);
    if (copy(&memory, memory.at, bytes, sizeof bytes) < 0)
        return failed("filling it");
    if (weft_endpoint_open(NULL, &endpoint) < 0 ||
        weft_mem_reg(endpoint, memory.at, sizeof bytes, NULL, &mem) < 0 ||
        weft_endpoint_connect(endpoint, to.metadata, (size_t)to.len, NULL, &conn) < 0)
        return failed("connecting");
    if (write_blocks(conn, &memory, mem, &to.remote))
        return failed("writing");
    weft_endpoint_close(endpoint);
    release(&memory);
    return 0;
}

int main(void)
{
    int ends[2], status = 1;
    if (pipe(ends))
        return 1;
    pid_t child = fork(); /* before anything of a GPU exists: its driver does not cross a fork */
    if (child < 0)
        return 1;
    if (child == 0) {
        close(ends[1]); /* the read ends if the target does without an invitation */
        return initiator(ends[0]);
    }
    int rc = target(ends[1]);
    close(ends[1]);
    waitpid(child, &status, 0);
    return rc || status;
}
