/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences in buffers: what does not fit is left out in whole words. */
#include "util.h"

#include <stdarg.h>
#include <stdio.h>

#define LONGEST 40 /* word that is left out whole: of a path what fits is told */

static const char dots[] = " ...";

/* It fills its buffer, and there is more of it. */
static size_t cut(char *text, size_t size)
{
    if (size <= sizeof dots)
        return size - 1;
    size_t most = size - sizeof dots, at = most, least = most > LONGEST ? most - LONGEST : 0;
    while (at > least && text[at] != ' ')
        at--;
    if (at == 0 || text[at] != ' ') /* one long word, but no part of a character */
        for (at = most; at > 0 && (text[at] & 0xc0) == 0x80;)
            at--;
    memcpy(text + at, dots, sizeof dots);
    return at + sizeof dots - 1;
}

size_t weft__text_vadd(char *text, size_t size, size_t used, const char *fmt, va_list args)
{
    int n = vsnprintf(text + used, size - used, fmt, args);
    if (n < 0) {
        text[used] = 0;
        return used;
    }
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
