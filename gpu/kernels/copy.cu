/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between memories that the device reaches, many ranges in one launch: an engine's copy takes some 2 us of the
 * driver each, whatever its length. Waves take chunks of the ranges in turn. Plain C, so that all of the compilers take it.
 */
#include "kernels/copy.h"
#include "weftd.h"

#define AT_ONCE 8 /* loads under way in each lane before the first store: a far GPU is a microsecond away */

WEFTD_FUNCTION void copy_bytes(uint8_t *dst, const uint8_t *src, uint32_t n)
{
    for (uint32_t i = weftd_lane(); i < n; i += weftd_lanes())
        dst[i] = src[i];
}

/* n words, for a pointer that is aligned to them. */
#define COPY_WORDS(type, dst, src, n)                                                             \
    for (uint32_t from = 0; from < (n); from += AT_ONCE * weftd_lanes()) {                        \
        type words[AT_ONCE];                                                                      \
        uint32_t first = from + weftd_lane();                                                     \
        WEFTD_UNROLL                                                                              \
        for (uint32_t i = 0; i < AT_ONCE; i++)                                                    \
            if (first + i * weftd_lanes() < (n))                                                  \
                words[i] = ((const type *)(src))[first + i * weftd_lanes()];                      \
        WEFTD_UNROLL                                                                              \
        for (uint32_t i = 0; i < AT_ONCE; i++)                                                    \
            if (first + i * weftd_lanes() < (n))                                                  \
                ((type *)(dst))[first + i * weftd_lanes()] = words[i];                            \
    }

/* What all lanes of a wave copy: words as wide as both ends have them aligned alike, bytes before and behind. */
WEFTD_FUNCTION void copy_chunk(uint8_t *dst, const uint8_t *src, uint32_t len)
{
    uint32_t apart = (uint32_t)((uintptr_t)dst - (uintptr_t)src);
    uint32_t width = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : 1;
    uint32_t before = (uint32_t)(-(uintptr_t)dst) % width;
    if (width == 1 || before > len)
        before = len;
    copy_bytes(dst, src, before);
    dst += before;
    src += before;
    len -= before;
    if (width == 16) {
        COPY_WORDS(weftd_vec16, dst, src, len / 16)
    } else if (width == 4) {
        COPY_WORDS(uint32_t, dst, src, len / 4)
    }
    copy_bytes(dst + len / width * width, src + len / width * width, len % width);
}

/* The last range whose first chunk is not behind this one. */
WEFTD_FUNCTION uint32_t range_of(const struct weft_copy_args *args, uint32_t chunk)
{
    uint32_t low = 0, high = args->n;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (args->chunk[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

WEFTD_KERNEL(weft_copy, struct weft_copy_args, WEFT_COPY_THREADS)
{
    for (uint32_t chunk = weftd_wave(); chunk < args.chunks; chunk += weftd_waves()) {
        uint32_t i = range_of(&args, chunk);
        uint64_t offset = (uint64_t)(chunk - args.chunk[i]) * WEFT_COPY_CHUNK;
        uint64_t left = args.range[i].len - offset;
        copy_chunk((uint8_t *)(uintptr_t)(args.range[i].dst + offset),
                   (const uint8_t *)(uintptr_t)(args.range[i].src + offset),
                   left < WEFT_COPY_CHUNK ? (uint32_t)left : WEFT_COPY_CHUNK);
    }
}
