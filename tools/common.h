/* SPDX-License-Identifier: Apache-2.0 */
/* What the tools share: sizes as people write them, time, messages, JSON output. */
#ifndef WEFT_TOOLS_COMMON_H
#define WEFT_TOOLS_COMMON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit status of the tools. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define SIZE_TEXT_MAX 24

/* "8", "4K", "1M" (1024-based; K M G T) -> bytes. Returns 0 or -1. */
int size_parse(const char *text, size_t len, uint64_t *bytes);
/* 4096 -> "4K", 4097 -> "4097". Returns text. */
const char *size_format(uint64_t bytes, char text[SIZE_TEXT_MAX]);
/* "8,4K,1M..64M" (A..B doubles) -> list. Returns how many, or -1 if it is malformed, empty, or
 * longer than max. */
int size_list_parse(const char *text, uint64_t *list, int max);
/* Whole number from least to most. Returns 0 or -1. */
int number_parse(const char *text, long long least, long long most, long long *value);

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now_ns(void);
/* CPU time of this process, all threads, user and system, in nanoseconds. */
uint64_t cpu_ns(void);

/* Name that begins every message ("weft_perf"). Set it once, before threads exist. */
void message_name(const char *name);
/* One line on standard error. */
void message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Names of the environment that look like a setting and are none (nor the tests'): a slip of the pen, as a rule. */
void message_strangers(void);

/* This process's endpoints share the secret in this file. Returns 0, or -1 after a message. */
int secret_file_set(const char *path);

/* Write a JSON value to a file, "-" for standard output. Returns 0, or -1 after a message. */
int json_write(const char *path, const cJSON *json);
/* The same answer, before there is a value; what the file holds stays. */
int json_may_write(const char *path);

#endif
