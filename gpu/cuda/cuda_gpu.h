/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: what gpu/vendor does not do for it. */
#ifndef WEFT_CUDA_GPU_H
#define WEFT_CUDA_GPU_H

#include "cuda_api.h"
#include "vendor.h"

extern const struct weft_gpu_backend weft_gpu_cuda;
extern const struct vendor cuda_vendor;

/* Weft's kernels, where there was a compiler for them. */
#ifdef WEFT_CUDA_KERNELS
extern const unsigned char weft_cuda_kernels[];
#define CUDA_IMAGE weft_cuda_kernels
#else
#define CUDA_IMAGE NULL
#endif

/* --- cuda_lib.c --- */

/* Filled when the driver was found. */
extern struct cuda_api cuda_table;
/* The driver, initialised; or NULL and why not in weft_last_error. Any thread. */
const struct cuda_api *cuda_api(void);
/* It is in this process already, whoever has loaded it. */
bool cuda_present(void);
/* The same as the first, which never changes once it was there, and asks no more than that. */
const struct cuda_api *cuda_api_quick(void);
/* A sentence and a code for what the driver says: `what` failed. */
int cuda_fail(int result, const char *what);

/* --- cuda_vendor.c --- */

/* Is this the context in which this backend uses the device? */
bool cuda_is_primary(const struct cuda_ctx *ctx, int ordinal);

/* --- cuda_graph.c: for the table of gpu/vendor --- */

int cuda_graph_make(void **graph, void *kernel, uint32_t threads, const void *args, void *stream);
int cuda_graph_launch(void *graph, uint32_t blocks, const void *args, void *stream);
void cuda_graph_unmake(void *graph);

/* --- cuda_query.c --- */

weft_gpu_query_fn cuda_query;
weft_gpu_stream_gpu_fn cuda_stream_gpu;

#endif
