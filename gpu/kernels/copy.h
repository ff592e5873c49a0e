/* SPDX-License-Identifier: Apache-2.0 */
/* weft_copy: many ranges in one launch. What the host hands to the kernel, in gpu/kernels/copy.cu. */
#ifndef WEFT_KERNELS_COPY_H
#define WEFT_KERNELS_COPY_H

#include <stdint.h>

#define WEFT_COPY_KERNEL "weft_copy"
#define WEFT_COPY_MOST 128 /* ranges: arguments have 4 KiB in all */
#define WEFT_COPY_CHUNK                                                                           \
    4096u /* bytes of a range that one wave copies at a time; the last one of a range has fewer */
#define WEFT_COPY_THREADS 512 /* of a block, at most; a multiple of 64 */

/* Ranges may have any alignment and length but 0, and do not overlap. chunk[i] is the number of range i's first chunk,
 * counted over all of them from 0; `chunks` is how many there are. */
struct weft_copy_args {
    uint32_t n, chunks;
    struct {
        uint64_t dst, src, len; /* addresses that the device reaches */
    } range[WEFT_COPY_MOST];
    uint32_t chunk[WEFT_COPY_MOST];
};

#endif
