/* SPDX-License-Identifier: Apache-2.0 */
/* What a process holds between two rounds, when it has closed everything: always the same. */
#include "soak.h"

#include "util.h"

/* The first rounds fill pools that are kept: of operations, handles, names. */
#define WARM_UP 3
/* Pools may still grow a little in a round that is busier than all before. */
#define ALLOCATED_SLACK ((size_t)256 << 10)
/* The allocator gives back pages as it likes. */
#define RESIDENT_SLACK ((size_t)64 << 20)
#define HANDLE_CHUNK 256 /* of core/handle.c */

/* A sanitizer keeps what was freed. */
#ifdef WEFT_SANITIZED
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static size_t resident(void)
{
    size_t size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%zu %zu", &size, &pages) == 2, "/proc/self/statm: %m");
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Handles are given out in turn: how many until the first comes again. */
static uint32_t free_handles(void)
{
    uint32_t first = 0, n = 0;
    for (;; n++) {
        uint64_t handle = weft__handle_open(WEFT__MEM, &first, NULL);
        uint32_t slot = weft__handle_slot(handle);
        CHECK(handle && weft__handle_shut(handle, WEFT__MEM), "a handle could not be made");
        weft__handle_drain(handle, 0);
        if (n == 0)
            first = slot;
        else if (slot == first)
            return n;
    }
}

void leak_check(uint32_t rounds)
{
    static size_t most, most_resident;
    static int fds;
    uint32_t handles = free_handles();
    CHECK(handles % HANDLE_CHUNK == 0, "%u handles are left open",
          HANDLE_CHUNK - handles % HANDLE_CHUNK);
    if (rounds <= WARM_UP) {
        most = test_allocated();
        most_resident = resident();
        fds = test_count_fds();
        return;
    }
    CHECK(test_count_fds() == fds, "%d descriptors are open, %d were", test_count_fds(), fds);
    CHECK(test_allocated() <= most + ALLOCATED_SLACK, "%zu bytes are allocated, %zu were",
          test_allocated(), most);
    if (!SANITIZED)
        CHECK(resident() <= most_resident + RESIDENT_SLACK, "%zu bytes are resident, %zu were",
              resident(), most_resident);
}
