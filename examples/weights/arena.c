/* SPDX-License-Identifier: Apache-2.0 */
/* Where the server maps pieces of its files: slots of one range, so that a fault in it is known. */
#include "weights.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *arena;

uint8_t *arena_slot(int slot)
{
    return arena + (size_t)slot * PIECE;
}

/* Put nothing at an address. */
static int blank(void *at, size_t len)
{
    void *p = mmap(at, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                   0);
    return p == MAP_FAILED ? -errno : 0;
}

void arena_blank(int slot)
{
    blank(arena_slot(slot), PIECE);
}

/*
 * A file that was cut short under our mapping: readers get zeros, which its digest gives away, and
 * the next window of it is refused. Anywhere else the fault is a bug and ends the process. It is
 * the thread that reads which runs this, whichever that is.
 */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    uint8_t *at = info->si_addr;
    if (at >= arena && at < arena + SLOTS * PIECE) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        if (blank(at - (uintptr_t)at % page, page) == 0)
            return;
    }
    signal(sig, SIG_DFL);
}

int arena_open(void)
{
    arena = mmap(NULL, SLOTS * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0);
    if (arena == MAP_FAILED)
        return -errno;
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    return sigaction(SIGBUS, &action, NULL) ? -errno : 0;
}
