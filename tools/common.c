/* SPDX-License-Identifier: Apache-2.0 */
/* What the tools share: sizes as people write them, time, messages, JSON output. */
#include "common.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/resource.h>
#include <time.h>

#include "weft/base.h"

#define UNITS "KMGT"
#define NS_PER_S 1000000000u
#define NS_PER_US 1000u

static const char *program = "weft";

int size_parse(const char *text, size_t len, uint64_t *bytes)
{
    uint64_t value = 0;
    size_t i = 0;
    for (; i < len && text[i] >= '0' && text[i] <= '9'; i++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return -1;
    if (i == 0)
        return -1;
    if (i < len) {
        const char *unit = strchr(UNITS, text[i] & ~0x20); /* lower case counts as upper */
        if (!unit || !*unit || i + 1 != len)
            return -1;
        int shift = 10 * (int)(unit - UNITS + 1);
        if (value > UINT64_MAX >> shift)
            return -1;
        value <<= shift;
    }
    *bytes = value;
    return 0;
}

const char *size_format(uint64_t bytes, char text[SIZE_TEXT_MAX])
{
    int unit = -1;
    while (bytes && bytes % 1024 == 0 && unit + 1 < (int)strlen(UNITS)) {
        bytes /= 1024;
        unit++;
    }
    char suffix[2] = {unit < 0 ? '\0' : UNITS[unit], '\0'};
    snprintf(text, SIZE_TEXT_MAX, "%" PRIu64 "%s", bytes, suffix);
    return text;
}

/* One item of a list: "A" or "A..B". Returns how many sizes it gave, or -1. */
static int range_parse(const char *text, size_t len, uint64_t *list, int max)
{
    uint64_t first, last;
    const char *dots = memmem(text, len, "..", 2);
    size_t first_len = dots ? (size_t)(dots - text) : len;
    if (size_parse(text, first_len, &first))
        return -1;
    last = first;
    if (dots && (size_parse(dots + 2, len - first_len - 2, &last) || first == 0 || last < first))
        return -1;
    int n = 0;
    for (uint64_t size = first; size <= last && n < max; size *= 2) {
        list[n++] = size;
        if (size == 0 || size > last / 2)
            return n;
    }
    return -1;
}

int size_list_parse(const char *text, uint64_t *list, int max)
{
    int n = 0;
    for (;;) {
        size_t len = strcspn(text, ",");
        int got = range_parse(text, len, list + n, max - n);
        if (got < 0)
            return -1;
        n += got;
        text += len;
        if (!*text)
            return n;
        text++;
    }
}

int number_parse(const char *text, long long least, long long most, long long *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < least || number > most)
        return -1;
    *value = number;
    return 0;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * NS_PER_S +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * NS_PER_US;
}

void message_name(const char *name)
{
    program = name;
}

void message(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s\n", program, line); /* one call: lines of threads do not mix */
}

int json_may_write(const char *path)
{
    struct stat is;
    /* who reads a pipe would take its end for that of the results */
    if (!strcmp(path, "-") || (stat(path, &is) == 0 && !S_ISREG(is.st_mode) && !S_ISDIR(is.st_mode)))
        return 0;
    FILE *file = fopen(path, "a");
    if (file)
        return fclose(file);
    message("cannot write %s: %s", path, strerror(errno));
    return -1;
}

int json_write(const char *path, const cJSON *json)
{
    bool to_stdout = !strcmp(path, "-");
    char *text = cJSON_Print(json);
    FILE *file = to_stdout ? stdout : fopen(path, "w");
    int rc = 0;
    if (!text || !file || fprintf(file, "%s\n", text) < 0 || fflush(file)) {
        message("cannot write %s: %s", path, text ? strerror(errno) : "no memory");
        rc = -1;
    }
    if (file && !to_stdout && fclose(file) && !rc) {
        message("cannot write %s: %s", path, strerror(errno));
        rc = -1;
    }
    cJSON_free(text);
    return rc;
}

int secret_file_set(const char *path)
{
    if (*path && weft_config_set("WEFT_SECRET_FILE", path) == 0)
        return 0;
    message("--secret-file '%s': %s", path, *path ? weft_last_error() : "names no file");
    return -1;
}

extern char **environ;

static bool is_setting(const char *name, size_t len)
{
    struct weft_config_item item;
    for (int i = 0; weft_config_get(i, &item) == 0; i++)
        if (strlen(item.name) == len && !memcmp(item.name, name, len))
            return true;
    return false;
}

void message_strangers(void)
{
    for (char **at = environ; at && *at; at++) {
        size_t len = strcspn(*at, "=");
        if (!strncmp(*at, "WEFT_", 5) && strncmp(*at, "WEFT_TEST_", 10) != 0 && !is_setting(*at, len))
            message("%.*s is in the environment, and no setting of Weft", (int)len, *at);
    }
}
