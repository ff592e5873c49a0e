/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: a level per subsystem from WEFT_LOG, to standard error or to the caller's function. */
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct weft_static_lock sink_lock = WEFT_STATIC_LOCK();
static weft_log_fn *sink;
static void *sink_user;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void weft_log_set(weft_log_fn *fn, void *user)
{
    weft_static_lock(&sink_lock);
    sink = fn;
    sink_user = user;
    weft_static_unlock(&sink_lock);
}

static int level_of(const char *text, size_t len)
{
    for (int i = 0; i < 4; i++)
        if (strlen(level_names[i]) == len && !memcmp(level_names[i], text, len))
            return i;
    return -1;
}

/* "warn,tcp:debug": a bare level is for all subsystems, the last match counts. */
static int threshold(const char *spec, const char *subsystem)
{
    int level = WEFT_LOG_WARN;
    while (*spec) {
        size_t len = strcspn(spec, ",");
        const char *colon = memchr(spec, ':', len);
        size_t name_len = colon ? (size_t)(colon - spec) : 0;
        const char *text = colon ? colon + 1 : spec;
        int parsed = level_of(text, len - (size_t)(text - spec));
        if (parsed >= 0 &&
            (!colon || (strlen(subsystem) == name_len && !memcmp(spec, subsystem, name_len))))
            level = parsed;
        spec += len + (spec[len] == ',');
    }
    return level;
}

bool weft__log_spec_valid(const char *spec)
{
    while (*spec) {
        size_t len = strcspn(spec, ",");
        const char *colon = memchr(spec, ':', len);
        const char *text = colon ? colon + 1 : spec;
        if (level_of(text, len - (size_t)(text - spec)) < 0)
            return false;
        spec += len + (spec[len] == ',');
    }
    return true;
}

int weft_log_on(enum weft_log_level level, const char *subsystem)
{
    return (int)level <= threshold(weft_config_str("WEFT_LOG"), subsystem);
}

void weft_log(enum weft_log_level level, const char *subsystem, const char *fmt, ...)
{
    if (!weft_log_on(level, subsystem))
        return;
    int saved = errno;
    char line[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);

    weft_static_lock(&sink_lock);
    weft_log_fn *fn = sink;
    void *user = sink_user;
    weft_static_unlock(&sink_lock);
    if (fn)
        fn(level, subsystem, line, user);
    else
        fprintf(stderr, "weft[%d] %s %s: %s\n", (int)getpid(), level_names[level], subsystem,
                line);
    errno = saved;
}
