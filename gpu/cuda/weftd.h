/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' words, for nvcc. docs/gpu.md says what each means. */
#ifndef WEFTD_H
#define WEFTD_H

#include <stdint.h>

#define WEFTD_KERNEL(name, type, most)                                                            \
    extern "C" __global__ void __launch_bounds__(most) name(const __grid_constant__ type args)
#define WEFTD_FUNCTION static __device__ __forceinline__
#define WEFTD_LANES 32
#define WEFTD_UNROLL _Pragma("unroll")

typedef uint4 weftd_vec16;

#include "kernels/grid.h"

#endif
