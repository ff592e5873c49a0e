/* SPDX-License-Identifier: Apache-2.0 */
/* The HIP backend: what gpu/vendor does not do for it. */
#ifndef WEFT_HIP_GPU_H
#define WEFT_HIP_GPU_H

#include "hip_api.h"
#include "vendor.h"
#include "weft/endpoint.h" /* WEFT_STREAM_DEFAULT */

extern const struct weft_gpu_backend weft_gpu_hip;
extern const struct vendor hip_vendor;

/* Weft's kernels, where there was a compiler for them. */
#ifdef WEFT_HIP_KERNELS
extern const unsigned char weft_hip_kernels[];
#define HIP_IMAGE weft_hip_kernels
#else
#define HIP_IMAGE NULL
#endif

/* --- hip_lib.c --- */

/* Filled when the runtime was found. */
extern struct hip_api hip_table;
/* The runtime, initialised; or NULL and why not in weft_last_error. Any thread. */
const struct hip_api *hip_api(void);
/* It is in this process already, whoever has loaded it. */
bool hip_present(void);
/* The same as the first, which never changes once it was there, and asks no more than that. */
const struct hip_api *hip_api_quick(void);
/* A sentence and a code for what the runtime says: `what` failed. */
int hip_fail(int result, const char *what);
/*
 * A result of the runtime, which keeps the last bad one for the thread: programs ask for it after they have launched a
 * kernel. Ours is none of theirs. (One of their own that they have not asked for yet goes with it.)
 */
int hip_told(int result);

/* --- hip_query.c --- */

weft_gpu_query_fn hip_query;
weft_gpu_stream_gpu_fn hip_stream_gpu;

#endif
