/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences in buffers: what does not fit is left out in whole words. */
#include "util.h"

#include <stdarg.h>
#include <stdio.h>

static const char dots[] = " ...";

static bool is_cut(const char *text, size_t used)
{
    return used >= sizeof dots - 1 && !strcmp(text + used - (sizeof dots - 1), dots);
}

/* It fills its buffer, and there is more of it. */
static size_t cut(char *text, size_t size)
{
    if (size <= sizeof dots)
        return size - 1;
    size_t most = size - sizeof dots, at = most;
    while (at > 0 && text[at] != ' ')
        at--;
    if (at == 0) /* one long word */
        at = most;
    memcpy(text + at, dots, sizeof dots);
    return at + sizeof dots - 1;
}

size_t weft__text_vadd(char *text, size_t size, size_t used, const char *fmt, va_list args)
{
    if (is_cut(text, used))
        return used;
    int n = vsnprintf(text + used, size - used, fmt, args);
    if (n < 0)
        return used;
    return (size_t)n < size - used ? used + (size_t)n : cut(text, size);
}

size_t weft__text_add(char *text, size_t size, size_t used, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    size_t len = weft__text_vadd(text, size, used, fmt, args);
    va_end(args);
    return len;
}
