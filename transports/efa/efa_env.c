/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words for libraries that read nothing but the environment of the process.
 *
 * setenv() moves the list of variables, and frees the old one under any thread that is in getenv() then, of the application's
 * too. Here a longer copy takes the list's place, and the old one stays, so that who reads goes on reading. Only an
 * application that changes its environment itself, in another thread, while its first endpoint is opened, may lose that change:
 * as with any getenv() beside a setenv(), POSIX leaves that open.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "efa.h"

extern char **environ;

/* A list that was put in place here. None is freed: there may be a reader. */
struct list {
    struct list *older;
    char *added;
    char *words[];
};

static struct weft_static_lock lock = WEFT_STATIC_LOCK();
static struct list *newest;

static char *word_of(const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 2;
    char *word = malloc(size);
    if (word)
        snprintf(word, size, "%s=%s", name, value);
    return word;
}

static void append(const char *name, const char *value)
{
    char **old = environ;
    size_t n = 0;
    while (old && old[n])
        n++;
    struct list *longer = malloc(sizeof *longer + (n + 2) * sizeof *longer->words);
    char *word = word_of(name, value);
    if (!longer || !word) {
        free(longer);
        free(word);
        return; /* the library does without, as it would where nobody says this */
    }
    if (n)
        memcpy(longer->words, old, n * sizeof *old);
    longer->words[n] = word;
    longer->words[n + 1] = NULL;
    longer->added = word;
    longer->older = newest;
    newest = longer;
    __atomic_store_n(&environ, longer->words, __ATOMIC_RELEASE);
}

void efa_env_default(const char *name, const char *value)
{
    weft_static_lock(&lock);
    if (!getenv(name))
        append(name, value);
    weft_static_unlock(&lock);
}
