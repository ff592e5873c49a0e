/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of copies as a number in the host's memory that the device writes behind them: to look for it is a load, where an event is
 * a call of the library, about 1 us on an H200 and under its locks, and to write it is 1 us less than to record an event and ask
 * until it is reached (bench/results/2026-11-23-gpu.md). That a device is lost no number tells, so the library is asked now and then.
 */
#include "vendor.h"

#include <sys/mman.h>

#define ASK 1024          /* of so many looks in vain one asks the library: about a millisecond */
#define TRY_NS 100000000u /* for the first word to come */
#define FIRST (UINT32_MAX - 8) /* of a way: numbers wrap early, so that it is seen */
#define BYTES (VENDOR_WAYS * sizeof(struct vendor_word))

static uint32_t value_of(const struct vendor_word *word)
{
    /* acquire: what was copied before it is there */
    return atomic_load_explicit(&word->value, memory_order_acquire);
}

/* One for each way, to see whether it comes. Returns for how many it did. */
static int try_all(struct vendor_gpu *gpu, const struct vendor_word *words)
{
    uint64_t deadline = weft_now() + TRY_NS;
    int taken = 0, come = 0;
    while (taken < VENDOR_WAYS &&
           gpu->vendor->word_write(gpu->ways[taken].stream,
                                   gpu->words_at + (uintptr_t)taken * sizeof *words, FIRST) == 0)
        gpu->ways[taken++].written = FIRST;
    while (come < taken && weft_now() < deadline)
        come += value_of(&words[come]) == FIRST;
    return come;
}

void vendor_words_make(struct vendor_gpu *gpu)
{
    const struct vendor *vendor = gpu->vendor;
    if (!vendor->word_write)
        return;
    /* shared: to a child of this process its parent's words are of no use, but a copy of the page could be the parent's */
    void *page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    if (vendor->host_register(page, BYTES)) {
        munmap(page, BYTES);
        return;
    }
    gpu->words_page = page;
    if (vendor->host_addr(page, &gpu->words_at) == 0 && try_all(gpu, page) == VENDOR_WAYS)
        gpu->words = page;
    else
        weft_log(WEFT_LOG_INFO, "gpu", "%s: device %d: events tell of the end of copies",
                 gpu->base.backend->name, gpu->base.ordinal);
    if (!gpu->words)
        vendor_words_unmake(gpu);
}

/* The device may still write one of them. */
static bool any_due(const struct vendor_gpu *gpu)
{
    for (int i = 0; i < VENDOR_WAYS; i++)
        if (gpu->vendor->stream_query(gpu->ways[i].stream) == VENDOR_EBUSY)
            return true;
    return false;
}

void vendor_words_unmake(struct vendor_gpu *gpu)
{
    if (!gpu->words_page || any_due(gpu)) /* then the page stays, until the process ends */
        return;
    gpu->vendor->host_unregister(gpu->words_page);
    munmap(gpu->words_page, BYTES);
    gpu->words_page = NULL;
}

int vendor_word_write(struct vendor_gpu *gpu, struct weft_gpu_job *job)
{
    struct vendor_way *way = &gpu->ways[job->way];
    uintptr_t at = gpu->words_at + (uintptr_t)job->way * sizeof *gpu->words;
    int result = gpu->vendor->word_write(way->stream, at, way->written + 1);
    if (result == 0)
        job->word = ++way->written;
    return result;
}

bool vendor_word_idle(const struct vendor_gpu *gpu, int way)
{
    return gpu->words && value_of(&gpu->words[way]) == gpu->ways[way].written;
}

/* Numbers of a way go up by one, and wrap. */
static bool has_come(const struct vendor_gpu *gpu, const struct weft_gpu_job *job)
{
    return (int32_t)(value_of(&gpu->words[job->way]) - job->word) >= 0;
}

int vendor_word_query(struct vendor_gpu *gpu, struct weft_gpu_job *job)
{
    const struct vendor *vendor = gpu->vendor;
    if (has_come(gpu, job))
        return VENDOR_OK;
    if (++job->asked % ASK)
        return VENDOR_EBUSY;
    int result = vendor_try_enter(gpu);
    if (result)
        return result;
    result = vendor->stream_query(gpu->ways[job->way].stream);
    vendor_leave(gpu);
    return result;
}
