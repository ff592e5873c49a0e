/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host for what is measured: bench's plain programs have the same. A program that
 * moves much has it in huge pages where it can: whoever lends, pins or translates pages does that
 * once for 2 MiB instead of 512 times.
 */
#ifndef WEFT_TOOLS_PAGES_H
#define WEFT_TOOLS_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* len bytes of zeros, every page of them there; in huge pages if asked for and if the kernel has
 * them (madvise(2): MADV_HUGEPAGE), else in small ones even where all memory is in huge ones.
 * Ends with munmap(2). Returns NULL with errno. */
void *pages_new(uint64_t len, bool huge);

#endif
