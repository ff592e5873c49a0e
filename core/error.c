/* SPDX-License-Identifier: Apache-2.0 */
/* Error codes, their texts, and the sentence of the last failure in each thread. */
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];
static _Thread_local char errno_text[128];

struct err_entry {
    int code;
    enum weft_scope scope;
    const char *name;
    const char *text;
};

static const struct err_entry entries[] = {
#define ERR_ENTRY(name, value, scope, text) {value, WEFT_SCOPE_##scope, #name, text},
    WEFT_ERR_MAP(ERR_ENTRY)
#undef ERR_ENTRY
};

static const struct err_entry *find(int code)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (entries[i].code == code)
            return &entries[i];
    return NULL;
}

const char *weft_strerror(int code)
{
    if (code >= 0)
        return "ok";
    const struct err_entry *entry = find(code);
    if (entry)
        return entry->text;
    /* the GNU strerror_r: may return its own static text instead of filling the buffer */
    return strerror_r((int)-(unsigned)code, errno_text, sizeof errno_text);
}

const char *weft_err_name(int code)
{
    if (code >= 0)
        return "ok";
    const struct err_entry *entry = find(code);
    return entry ? entry->name : "errno";
}

enum weft_scope weft_err_scope(int code)
{
    if (code >= 0)
        return WEFT_SCOPE_NONE;
    const struct err_entry *entry = find(code);
    return entry ? entry->scope : WEFT_SCOPE_OP;
}

const char *weft_last_error(void)
{
    return last_error;
}

int weft_fail(int code, const char *fmt, ...)
{
    int saved = errno;
    char line[sizeof last_error];
    va_list args;
    va_start(args, fmt);
    weft__text_vadd(line, sizeof line, 0, fmt, args); /* an argument may be last_error itself */
    va_end(args);
    memcpy(last_error, line, sizeof line);
    errno = saved;
    return code;
}

const char *weft_version(void)
{
    return WEFT_VERSION_STRING;
}
