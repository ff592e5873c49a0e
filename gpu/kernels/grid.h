/* SPDX-License-Identifier: Apache-2.0 */
/* Where a thread is, for compilers that have CUDA's words for it: gpu/cuda/weftd.h and gpu/hip/weftd.h, which say how many lanes a wave
 * has (WEFTD_LANES). */
#ifndef WEFT_KERNELS_GRID_H
#define WEFT_KERNELS_GRID_H

WEFTD_FUNCTION uint32_t weftd_lanes(void)
{
    return WEFTD_LANES;
}

WEFTD_FUNCTION uint32_t weftd_lane(void)
{
    return threadIdx.x % WEFTD_LANES;
}

WEFTD_FUNCTION uint32_t weftd_wave(void)
{
    return (blockIdx.x * blockDim.x + threadIdx.x) / WEFTD_LANES;
}

WEFTD_FUNCTION uint32_t weftd_waves(void)
{
    return gridDim.x * blockDim.x / WEFTD_LANES;
}

#endif
