/* SPDX-License-Identifier: Apache-2.0 */
/* What the bare programs share: time, memory whose bytes follow from their place, numbers. */
#ifndef WEFT_BENCH_BARE_H
#define WEFT_BENCH_BARE_H

#include <stdbool.h>
#include <stdint.h>

/* As in weft_perf: bytes in flight, operations in flight, and how long a measurement takes. */
#define BARE_WINDOW ((uint64_t)256 << 20)
#define BARE_DEPTH 64
#define BARE_GOAL_S 1.0

/* Say why, with errno's text, and exit. */
void bare_die(const char *what) __attribute__((noreturn));
double bare_now_s(void);
/* Processor seconds of this process. */
double bare_cpu_s(void);
/* Memory of which every page is there. filled: with what belongs; else with what differs in every
 * byte. huge: in huge pages, as that of weft_perf. */
uint8_t *bare_memory(uint64_t bytes, bool filled, bool huge);
/* Bytes that are not what belongs. */
uint64_t bare_wrong(const uint8_t *memory, uint64_t bytes);
/* "64K" -> 65536; 0: it is no number. */
uint64_t bare_number(const char *text);

#endif
