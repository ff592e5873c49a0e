/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is measured, and the bytes in it. */
#include "perf_mem.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "pages.h"
#include "perf_fail.h"
#include "weft/gpu.h"

/* Contents are made and checked in pieces that stay in the first-level cache. */
#define CHUNK 16384u
/* 2^64 / golden ratio, odd: consecutive multiples differ in their high and low bytes. */
#define GOLDEN 0x9E3779B97F4A7C15ull

int perf_layout_make(uint64_t bytes, uint32_t iovs, uint32_t depth, bool same, struct perf_layout *layout)
{
    uint64_t stride, slot;
    if (__builtin_add_overflow(bytes, 2 * PERF_ALIGN - 1, &stride))
        return -1;
    stride = (stride - PERF_ALIGN) / PERF_ALIGN * PERF_ALIGN;
    if (stride == 0 || iovs > 1)
        stride += PERF_ALIGN; /* a gap: pieces of a vector do not touch */
    if (__builtin_mul_overflow(stride, iovs, &slot) || slot > INT64_MAX)
        return -1;
    uint64_t fit = PERF_WINDOW / slot;
    uint32_t slots = fit < depth && !same ? (uint32_t)fit : depth;
    *layout = (struct perf_layout){
        .bytes = bytes, .iovs = iovs, .slots = slots ? slots : 1, .same = same, .stride = stride};
    return 0;
}

/* "auto" is the host's where there is no GPU: that is not what was asked for. */
static const struct weft_gpu_backend *find_backend(const struct perf_place *place)
{
    const struct weft_gpu_backend *backend = weft_gpu_find(place->backend);
    const char *setting = getenv("WEFT_GPU");
    bool named = place->backend ? strcmp(place->backend, "auto") != 0 : setting && !strcmp(setting, "host");
    if (backend && !named && !strcmp(backend->name, "host")) {
        perf_fail("there is no GPU that can be used: weft_info says why (--gpu-backend host does without)");
        return NULL;
    }
    if (!backend)
        perf_fail("cannot use GPUs: %s", weft_last_error());
    return backend;
}

int perf_place_backend(const struct perf_place *place, const char **name)
{
    bool needed = place->gpu || place->backend;
    const struct weft_gpu_backend *backend = needed ? find_backend(place) : NULL;
    *name = backend ? backend->name : NULL;
    return needed && !backend ? -1 : 0;
}

static int open_gpu(struct perf_region *region, const struct perf_place *place)
{
    const struct weft_gpu_backend *backend = find_backend(place);
    if (!backend)
        return -1;
    if (backend->ops->open(place->ordinal, &region->gpu))
        return perf_fail("cannot open GPU %d: %s", place->ordinal, weft_last_error());
    void *addr;
    if (backend->ops->alloc(region->gpu, region->len, &addr)) {
        backend->ops->close(region->gpu);
        region->gpu = NULL;
        return perf_fail("cannot allocate %" PRIu64 " bytes of GPU memory: %s", region->len,
                         weft_last_error());
    }
    region->addr = addr;
    return 0;
}

static int open_host(struct perf_region *region, bool small_pages)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (region->len > memory / 2) /* the other side may run here too */
        return perf_fail("%" PRIu64 " bytes are more than half of this host's memory",
                         region->len);
    void *addr = pages_new(region->len, !small_pages);
    if (!addr)
        return perf_fail("cannot allocate %" PRIu64 " bytes: %m", region->len);
    region->addr = addr;
    return 0;
}

int perf_region_open(struct perf_region *region, weft_endpoint_t endpoint, uint64_t len,
                     const struct perf_place *place)
{
    *region = (struct perf_region){.len = len};
    if (place->gpu ? open_gpu(region, place) : open_host(region, place->small_pages))
        return -1;
    if (weft_mem_reg(endpoint, region->addr, len, NULL, &region->mem) < 0)
        return perf_fail("cannot register %" PRIu64 " bytes: %s", len, weft_last_error());
    return 0;
}

void perf_region_close(struct perf_region *region)
{
    if (region->gpu) {
        const struct weft_gpu_ops *ops = region->gpu->backend->ops;
        ops->free(region->gpu, region->addr);
        ops->close(region->gpu);
    } else if (region->addr) {
        munmap(region->addr, region->len);
    }
    *region = (struct perf_region){0};
}

static int region_put(const struct perf_region *region, uint64_t offset, const void *data,
                      size_t len)
{
    if (!region->gpu)
        memcpy(region->addr + offset, data, len);
    else if (region->gpu->backend->ops->copy(region->gpu, region->addr + offset, data, len, NULL))
        return perf_fail("cannot copy to the GPU: %s", weft_last_error());
    return 0;
}

static int region_get(const struct perf_region *region, uint64_t offset, void *data, size_t len)
{
    if (!region->gpu)
        memcpy(data, region->addr + offset, len);
    else if (region->gpu->backend->ops->copy(region->gpu, data, region->addr + offset, len, NULL))
        return perf_fail("cannot copy from the GPU: %s", weft_last_error());
    return 0;
}

/* Spreads what is close together (splitmix64). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* len bytes of a piece from offset `at` (a multiple of CHUNK) on: no two words are the same. */
static void pattern(uint64_t words[CHUNK / 8], uint64_t seed, uint64_t piece, uint64_t at,
                    size_t len, bool blank)
{
    uint64_t base = mix(seed + mix(piece + 1)), flip = blank ? UINT64_MAX : 0;
    for (uint64_t i = 0; i < (len + 7) / 8; i++)
        words[i] = htole64((base + (at / 8 + i) * GOLDEN) ^ flip);
}

static size_t chunk_len(uint64_t left)
{
    return left < CHUNK ? (size_t)left : CHUNK;
}

int perf_region_fill(const struct perf_region *region, const struct perf_layout *layout,
                     uint64_t seed, enum perf_contents contents)
{
    uint64_t words[CHUNK / 8];
    uint64_t pieces = (uint64_t)perf_layout_places(layout) * layout->iovs;
    for (uint64_t p = 0; p < pieces; p++) {
        bool blank = !(contents & (p / layout->iovs % 2 ? PERF_ODD : PERF_EVEN));
        for (uint64_t done = 0; done < layout->bytes; done += CHUNK) {
            size_t len = chunk_len(layout->bytes - done);
            pattern(words, seed, p, done, len, blank);
            if (region_put(region, p * layout->stride + done, words, len))
                return -1;
        }
    }
    return 0;
}

/* Index of the first wrong byte; len if all are right. */
static size_t first_wrong(const uint8_t *got, const void *want, size_t len)
{
    const uint8_t *bytes = want;
    size_t i = 0;
    if (memcmp(got, bytes, len) == 0)
        return len;
    while (got[i] == bytes[i])
        i++;
    return i;
}

int perf_region_check(const struct perf_region *region, const struct perf_layout *layout,
                      uint64_t seed, uint32_t n)
{
    uint64_t words[CHUNK / 8];
    uint8_t got[CHUNK];
    uint32_t places = perf_layout_places(layout);
    uint64_t pieces = (uint64_t)(n < places ? n : places) * layout->iovs;
    for (uint64_t p = 0; p < pieces; p++) {
        for (uint64_t done = 0; done < layout->bytes; done += CHUNK) {
            size_t len = chunk_len(layout->bytes - done);
            pattern(words, seed, p, done, len, false);
            if (region_get(region, p * layout->stride + done, got, len))
                return -1;
            size_t wrong = first_wrong(got, words, len);
            if (wrong == len)
                continue;
            message("wrong data: operation %" PRIu64 " in flight, piece %" PRIu64 ", byte %" PRIu64
                    " of %" PRIu64,
                    p / layout->iovs, p % layout->iovs, done + wrong, layout->bytes);
            return 0;
        }
    }
    return 1;
}

bool perf_bytes_check(const void *data, uint64_t len, uint64_t seed, uint32_t slot)
{
    uint64_t words[CHUNK / 8];
    for (uint64_t done = 0; done < len; done += CHUNK) {
        size_t part = chunk_len(len - done);
        pattern(words, seed, slot, done, part, false);
        if (memcmp((const uint8_t *)data + done, words, part) != 0)
            return false;
    }
    return true;
}

uint64_t perf_add_start(uint64_t seed, uint32_t slot)
{
    return mix(seed + 2 * (uint64_t)slot);
}

uint64_t perf_add_value(uint64_t seed, uint32_t slot)
{
    return mix(seed + 2 * (uint64_t)slot + 1) | 1; /* never 0: an addition shows */
}

int perf_word_get(const struct perf_region *region, const struct perf_layout *layout,
                  uint32_t slot, uint64_t *word)
{
    return region_get(region, perf_layout_offset(layout, slot, 0), word, sizeof *word);
}

int perf_word_put(const struct perf_region *region, const struct perf_layout *layout,
                  uint32_t slot, uint64_t word)
{
    return region_put(region, perf_layout_offset(layout, slot, 0), &word, sizeof word);
}
