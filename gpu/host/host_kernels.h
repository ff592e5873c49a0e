/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the host. */
#ifndef WEFT_HOST_KERNELS_H
#define WEFT_HOST_KERNELS_H

#include "weft/gpu.h"

weft_gpu_launch_fn host_launch;

#endif
