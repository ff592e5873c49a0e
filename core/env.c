/* SPDX-License-Identifier: Apache-2.0 */
/* The environment, and texts that are never freed. Nothing else in the library calls getenv. */
#include "util.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct text {
    struct text *next;
    char text[];
};

static struct weft_static_lock lock = WEFT_STATIC_LOCK();
static struct text *texts; /* one of each */

/* The lock is held. */
static const char *find(const char *value)
{
    for (const struct text *t = texts; t; t = t->next)
        if (!strcmp(t->text, value))
            return t->text;
    return NULL;
}

static const char *add(const char *value)
{
    size_t size = strlen(value) + 1;
    struct text *t = malloc(sizeof *t + size);
    if (!t)
        return NULL;
    memcpy(t->text, value, size);
    t->next = texts;
    texts = t;
    return t->text;
}

const char *weft__text_keep(const char *value)
{
    weft_static_lock(&lock);
    const char *kept = find(value);
    if (!kept)
        kept = add(value);
    weft_static_unlock(&lock);
    return kept;
}

void weft__env_read(weft__env_slot *slot, const char *name)
{
    const char *value = getenv(name), *kept = value ? weft__text_keep(value) : NULL;
    if (!value || kept)
        atomic_store_explicit(slot, kept, memory_order_release);
}

const char *weft__env(const weft__env_slot *slot, const char *name)
{
    (void)name; /* which tests/sim goes by, whose processes are one */
    /* the text is there; pairs with the release of who stored it */
    return atomic_load_explicit(slot, memory_order_acquire);
}
