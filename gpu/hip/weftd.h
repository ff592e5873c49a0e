/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' words, for hipcc and clang: GPUs whose waves have 64 lanes (CDNA). docs/gpu.md says what each means. */
#ifndef WEFTD_H
#define WEFTD_H

#include <hip/hip_runtime.h>
#include <stdint.h>

#define WEFTD_KERNEL(name, type, most)                                                            \
    extern "C" __global__ void __launch_bounds__(most) name(const type args)
#define WEFTD_FUNCTION static __device__ __forceinline__
#define WEFTD_LANES 64
#define WEFTD_UNROLL _Pragma("unroll")

typedef uint4 weftd_vec16;

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__)
#error "waves of 32 lanes (RDNA) are not supported"
#endif

#include "kernels/grid.h"

#endif
