/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs, where the provider lets the nic reach it (FI_HMEM). A provider may also offer to copy it through the host's memory, a
 * piece at a time with the vendor's library; that is refused (FI_HMEM_P2P_REQUIRED): core's own staging keeps several
 * pieces under way.
 */
#include <stddef.h>
#include <string.h>

#include "efa.h"

/* As libfabric's headers have them from 1.20 on, under which they are asked for whatever headers this was built with:
 * fi_mr(3). */
#define MR_DMABUF ((uint64_t)1 << 40)
#define DMABUF_API FI_VERSION(1, 20)

struct dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base_addr;
};

struct mr_attr {
    union {
        const struct iovec *iov;
        const struct dmabuf *dmabuf;
    } what;
    size_t iov_count;
    uint64_t access, offset, requested_key;
    void *context;
    size_t auth_key_size;
    uint8_t *auth_key;
    enum fi_hmem_iface iface;
    uint64_t device;
    void *hmem_data;
};
_Static_assert(offsetof(struct mr_attr, iface) == offsetof(struct fi_mr_attr, iface) &&
                   offsetof(struct mr_attr, device) == offsetof(struct fi_mr_attr, device),
               "struct fi_mr_attr has changed");

enum fi_hmem_iface efa_gpu_iface(const char *gpu)
{
    static const struct {
        const char *gpu;
        enum fi_hmem_iface iface;
    } known[] = {{"cuda", FI_HMEM_CUDA}, {"hip", FI_HMEM_ROCR}};
    for (size_t i = 0; gpu && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].gpu, gpu) == 0)
            return known[i].iface;
    return FI_HMEM_SYSTEM;
}

uint32_t efa_gpu_kinds(const struct efa_nic *nic)
{
    if (nic->iface == FI_HMEM_SYSTEM)
        return 0;
    return WEFT_MEM_PEER | (nic->lib->api >= DMABUF_API ? WEFT_MEM_DMABUF : 0u);
}

int efa_gpu_require(struct fid_ep *ep)
{
    int how = FI_HMEM_P2P_REQUIRED;
    return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &how, sizeof how);
}

int efa_gpu_reg(const struct efa_nic *nic, const struct weft_mem_range *range, uint64_t access,
                uint64_t key, struct fid_mr **mr)
{
    bool is_dmabuf = range->kind == WEFT_MEM_DMABUF;
    struct iovec iov = {range->addr, range->len};
    struct dmabuf dmabuf = {.fd = range->dmabuf_fd,
                            .offset = range->dmabuf_offset,
                            .len = range->len,
                            .base_addr = (uint8_t *)range->addr - range->dmabuf_offset};
    struct mr_attr attr = {.iov_count = 1,
                           .access = access,
                           .requested_key = key,
                           .iface = nic->iface,
                           .device = (uint32_t)range->ordinal};
    if (is_dmabuf)
        attr.what.dmabuf = &dmabuf;
    else
        attr.what.iov = &iov;
    return fi_mr_regattr(nic->domain, (const struct fi_mr_attr *)(const void *)&attr,
                         is_dmabuf ? MR_DMABUF : 0, mr);
}
