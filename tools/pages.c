/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

void *pages_new(uint64_t len, bool huge)
{
    void *addr =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (addr == MAP_FAILED)
        return NULL;
    madvise(addr, len, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* only faster */
    volatile uint8_t *at = addr;
    for (uint64_t i = 0, page = (uint64_t)sysconf(_SC_PAGESIZE); i < len; i += page)
        at[i] = 0;
    return addr;
}
