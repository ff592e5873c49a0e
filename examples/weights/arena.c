/* SPDX-License-Identifier: Apache-2.0 */
/* Where the server has the pieces that are read from it: slots of one range, which take memory when they are first written to. */
#include "weights.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static uint8_t *arena;

uint8_t *arena_slot(int slot)
{
    return arena + (size_t)slot * PIECE;
}

void arena_forget(void)
{
    madvise(arena, SLOTS * PIECE, MADV_DONTNEED);
}

int arena_open(void)
{
    arena = mmap(NULL, SLOTS * PIECE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        int rc = -errno;
        say("no room for windows, %d MiB of addresses: %s", (int)(SLOTS * PIECE >> 20), strerror(-rc));
        return rc;
    }
    madvise(arena, SLOTS * PIECE, MADV_HUGEPAGE); /* only faster */
    return 0;
}
