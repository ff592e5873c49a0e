/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' words, for the host's compiler: one lane after the other (host_kernels.c). docs/gpu.md says what each
 * means. */
#ifndef WEFTD_H
#define WEFTD_H

#include <stdint.h>

/* Where the lane that runs is. */
struct weftd_at {
    uint32_t block, blocks, thread, threads, lanes;
};
extern __thread struct weftd_at weftd_at;

#define WEFTD_KERNEL(name, type, most) static void name(const type args)
#define WEFTD_FUNCTION static inline
#define WEFTD_UNROLL

typedef struct {
    _Alignas(16) uint32_t x; /* as GPUs want it */
    uint32_t y, z, w;
} weftd_vec16;

WEFTD_FUNCTION uint32_t weftd_lanes(void)
{
    return weftd_at.lanes;
}

WEFTD_FUNCTION uint32_t weftd_lane(void)
{
    return weftd_at.thread % weftd_at.lanes;
}

WEFTD_FUNCTION uint32_t weftd_wave(void)
{
    return (weftd_at.block * weftd_at.threads + weftd_at.thread) / weftd_at.lanes;
}

WEFTD_FUNCTION uint32_t weftd_waves(void)
{
    return weftd_at.blocks * weftd_at.threads / weftd_at.lanes;
}

#endif
