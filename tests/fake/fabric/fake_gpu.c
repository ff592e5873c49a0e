/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_gpu.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_RANGES 16
#define MR_DMABUF ((uint64_t)1 << 40)

/* As from libfabric 1.20 on: fi_mr(3). */
struct dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base_addr;
};

struct range {
    uint8_t *addr, *bytes;
    size_t len;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[MOST_RANGES];
static struct fake_fabric_registration last;

static struct range *range_of(const void *addr)
{
    for (int i = 0; i < MOST_RANGES; i++)
        if (ranges[i].bytes && (const uint8_t *)addr >= ranges[i].addr &&
            (const uint8_t *)addr < ranges[i].addr + ranges[i].len)
            return &ranges[i];
    return NULL;
}

void fake_fabric_gpu(void *addr, size_t len, void *bytes)
{
    pthread_mutex_lock(&lock);
    struct range *range = range_of(addr);
    for (int i = 0; i < MOST_RANGES && !range; i++)
        if (!ranges[i].bytes)
            range = &ranges[i];
    if (range)
        *range = (struct range){addr, bytes, len};
    pthread_mutex_unlock(&lock);
}

void fake_fabric_registered(struct fake_fabric_registration *out)
{
    pthread_mutex_lock(&lock);
    *out = last;
    pthread_mutex_unlock(&lock);
}

void *fake_gpu_bytes(void *addr)
{
    pthread_mutex_lock(&lock);
    const struct range *range = range_of(addr);
    void *bytes = range ? range->bytes + ((uint8_t *)addr - range->addr) : NULL;
    pthread_mutex_unlock(&lock);
    return bytes;
}

const char *fake_gpu_registers(const struct fi_mr_attr *attr, uint64_t flags, void **bytes,
                               size_t *len)
{
    const struct dmabuf *dmabuf = (const void *)attr->mr_iov;
    bool is_dmabuf = flags & MR_DMABUF;
    if (attr->iface != FI_HMEM_CUDA && attr->iface != FI_HMEM_ROCR)
        return "memory of a GPU of no vendor's";
    if (attr->iov_count != 1 || flags & ~MR_DMABUF)
        return "a registration of several pieces, or with unknown flags";
    if (is_dmabuf && lseek(dmabuf->fd, 0, SEEK_END) < (off_t)(dmabuf->offset + dmabuf->len))
        return "a dma-buf that is none, or shorter than is said";
    void *addr = is_dmabuf ? (uint8_t *)dmabuf->base_addr + dmabuf->offset : attr->mr_iov->iov_base;
    *bytes = fake_gpu_bytes(addr);
    *len = is_dmabuf ? dmabuf->len : attr->mr_iov->iov_len;
    if (!*bytes)
        return "memory of a GPU that is none";
    pthread_mutex_lock(&lock);
    last = (struct fake_fabric_registration){last.count + 1, (int)attr->iface, attr->device.reserved,
                                             is_dmabuf};
    pthread_mutex_unlock(&lock);
    return NULL;
}
