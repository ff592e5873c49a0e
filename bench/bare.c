/* SPDX-License-Identifier: Apache-2.0 */
/* What the bare programs share. */
#include "bare.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "../tools/pages.h"

void bare_die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

double bare_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double bare_cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* 2^64 / golden ratio: consecutive words differ in their high and low bytes. */
static uint64_t word_at(uint64_t i)
{
    return (i + 1) * 0x9E3779B97F4A7C15u;
}

uint8_t *bare_memory(uint64_t bytes, bool filled, bool huge)
{
    uint64_t words = (bytes + 7) / 8;
    uint64_t *memory = pages_new(words * 8, huge);
    if (!memory)
        bare_die("memory");
    for (uint64_t i = 0; i < words; i++)
        memory[i] = filled ? word_at(i) : ~word_at(i);
    return (uint8_t *)memory;
}

uint64_t bare_wrong(const uint8_t *memory, uint64_t bytes)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < bytes; i++)
        wrong += memory[i] != (uint8_t)(word_at(i / 8) >> (8 * (i % 8)));
    return wrong;
}

uint64_t bare_number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    const char *units = "KMG", *unit = *end ? strchr(units, *end) : NULL;
    if (end == text || (*end && (!unit || end[1])))
        return 0;
    return unit ? value << (10 * (unit - units + 1)) : value;
}
