/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"
#include "helpers.h"

#include <dlfcn.h>

#include "gpu/cuda/cuda_api.h"
#include "weft/transport.h"

#define MOST 256

/* What cuda_api.h declares, of this driver. */
static struct cuda_api api;
static int (*create)(uint64_t *, size_t, const struct cuda_segment_prop *, uint64_t);

static struct {
    cuda_addr addr; /* 0: a free place */
    size_t len, segment;
} ranges[MOST];

void *test_driver(const char *symbol)
{
    static void *driver;
    if (!driver)
        driver = dlopen(weft_config_str("WEFT_CUDA_LIBRARY"), RTLD_NOW);
    return driver ? dlsym(driver, symbol) : NULL;
}

static void find_all(void)
{
#define FIND(member, symbol, parameters) *(void **)&api.member = test_driver(#symbol);
    CUDA_FUNCTIONS(FIND)
#undef FIND
    *(void **)&create = test_driver("cuMemCreate");
    CHECK(create && api.init && api.init(0) == 0, "there is no driver with segments");
}

#define DO(call)                                                                                  \
    do {                                                                                          \
        int result_ = (call);                                                                     \
        CHECK(result_ == 0, "%s: %d", #call, result_);                                            \
    } while (0)

void *test_segments_alloc(int device, size_t len, size_t segment)
{
    const struct cuda_segment_prop prop = {.type = CUDA_SEGMENT_PINNED,
                                           .handles = CUDA_SEGMENT_FD,
                                           .at_kind = CUDA_AT_DEVICE,
                                           .at_device = device};
    const struct cuda_access access = {CUDA_AT_DEVICE, device, CUDA_READ_WRITE};
    int i = 0;
    if (!create)
        find_all();
    while (i < MOST && ranges[i].addr)
        i++;
    CHECK(i < MOST, "too many ranges of segments");
    len = (len + segment - 1) / segment * segment;
    ranges[i].len = len;
    ranges[i].segment = segment;
    DO(api.range_reserve(&ranges[i].addr, len, 0, 0, 0));
    for (size_t at = 0; at < len; at += segment) {
        uint64_t handle;
        DO(create(&handle, segment, &prop, 0));
        DO(api.range_map(ranges[i].addr + at, segment, 0, handle, 0));
        DO(api.segment_release(handle)); /* what is mapped stays */
    }
    DO(api.range_allow(ranges[i].addr, len, &access, 1));
    return (void *)(uintptr_t)ranges[i].addr;
}

void test_segments_free(void *addr)
{
    int i = 0;
    while (i < MOST && ranges[i].addr != (uintptr_t)addr)
        i++;
    CHECK(addr && i < MOST, "%p is no range of segments", addr);
    for (size_t at = 0; at < ranges[i].len; at += ranges[i].segment)
        DO(api.range_unmap(ranges[i].addr + at, ranges[i].segment));
    DO(api.range_free(ranges[i].addr, ranges[i].len));
    ranges[i].addr = 0;
}
