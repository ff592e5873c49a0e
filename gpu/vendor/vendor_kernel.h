/* SPDX-License-Identifier: Apache-2.0 */
/* Weft's kernels on a vendor's GPU. All but vendor_launch are called in the context. */
#ifndef WEFT_VENDOR_KERNEL_H
#define WEFT_VENDOR_KERNEL_H

#include "kernels/copy.h"
#include "vendor.h"

/* Copies by one launch instead of an engine's: from so many ranges on, as long as this on average, on so many blocks.
 * An engine takes some 2 us for each, in which NVLink carries 800 KiB; 32 blocks of 256 fill it as well as more do. */
#define VENDOR_KERNEL_LEAST 4
#define VENDOR_KERNEL_LONGEST (512u << 10)
#define VENDOR_KERNEL_BLOCKS 32
#define VENDOR_KERNEL_THREADS 256

/* What of the image the device can run; there may be none. Else the library's result, and the device has none. */
int vendor_kernels_load(struct vendor_gpu *gpu);
/* A graph for each way that kernels are launched on, if the library has such and words tell of the end; a way without one has plain
 * launches. */
void vendor_graphs_make(struct vendor_gpu *gpu);
void vendor_graphs_unmake(struct vendor_gpu *gpu);
void vendor_kernels_unload(struct vendor_gpu *gpu);
/* Are these copies for the kernel? */
bool vendor_kernel_fits(const struct vendor_gpu *gpu, const struct weft_gpu_copy *list, int n,
                        uint32_t flags);
/* Queued on the way's stream, all of them. The gpu's lock held. The library's result. */
int vendor_kernel_copy(struct vendor_gpu *gpu, const struct weft_gpu_copy *list, int n, int way);

#endif
