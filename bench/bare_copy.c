/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What memcpy alone can do: a ring of slots copied to another one, slot by slot, in one thread, as
 * weft_perf writes from one to the other; a floor for the transport local. Prints a line of JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bare.h"

static void copy(uint8_t *to, const uint8_t *from, uint64_t size, uint64_t slots, uint64_t iters)
{
    for (uint64_t i = 0; i < iters; i++)
        memcpy(to + i % slots * size, from + i % slots * size, size);
}

int main(int argc, char **argv)
{
    uint64_t size = argc == 3 && !strcmp(argv[1], "-s") ? bare_number(argv[2]) : 0;
    if (size == 0 || size > BARE_WINDOW) {
        fputs("Usage: bare_copy -s SIZE\n", stderr);
        return 2;
    }
    uint64_t slots = BARE_WINDOW / size < BARE_DEPTH ? BARE_WINDOW / size : BARE_DEPTH;
    uint8_t *from = bare_memory(size * slots, true, true),
            *to = bare_memory(size * slots, false, true);
    double start = bare_now_s();
    copy(to, from, size, slots, slots); /* warm, and how long it takes */
    double once = bare_now_s() - start;
    uint64_t iters = slots + (uint64_t)(BARE_GOAL_S / once * (double)slots);
    double cpu = bare_cpu_s();
    start = bare_now_s();
    copy(to, from, size, slots, iters);
    double seconds = bare_now_s() - start, bytes = (double)iters * (double)size;
    cpu = bare_cpu_s() - cpu;
    uint64_t wrong = bare_wrong(to, size * slots);
    printf("{\"GBps\": %.4f, \"cpu_s_per_GB\": %.4f, \"iters\": %" PRIu64 ", \"verified\": %s}\n",
           bytes / seconds / 1e9, cpu / (bytes / 1e9), iters, wrong ? "false" : "true");
    return wrong != 0;
}
