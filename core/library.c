/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of vendors, found at run time: one that is not there is a reason, not an error of ours. */
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "util.h"
#include "weft/transport.h"

/* The next of a list of files, separated by commas, to `file` of so many bytes; false: there is none. */
static bool next_file(const char **list, char *file, size_t size)
{
    while (**list) {
        const char *at = *list, *end = strchrnul(at, ',');
        size_t len = (size_t)(end - at);
        *list = *end ? end + 1 : end;
        if (len == 0 || len >= size)
            continue;
        memcpy(file, at, len);
        file[len] = 0;
        return true;
    }
    return false;
}

/* --- is it there? ----------------------------------------------------------------------------------- */

static int count_loads(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    *(uint64_t *)out = info->dlpi_adds + (info->dlpi_subs << 32);
    return 1;
}

uint64_t weft__loads(void)
{
    uint64_t loads = 0;
    dl_iterate_phdr(count_loads, &loads); /* it counts itself, and ends at the first file: 16 ns */
    return loads;
}

static bool is_loaded(const char *files)
{
    char file[256];
    void *opened = NULL;
    while (!opened && next_file(&files, file, sizeof file))
        opened = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    if (opened)
        dlclose(opened);
    return opened;
}

/* FNV-1a of the setting, which may change, and of what is loaded. */
static uint64_t circumstances(const char *files)
{
    uint64_t loads = weft__loads(), hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = files; *c; c++)
        hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
    return (hash ^ loads) * UINT64_C(0x100000001b3);
}

/* Not there, or of no use. */
static void remember(struct weft_library *library, const char *files)
{
    __atomic_store_n(&library->absent, circumstances(files), __ATOMIC_RELAXED);
}

/* It is asked for with each registration, each name that is not there takes some 10 us to find out, and a library that
 * finds no device milliseconds: so that is remembered until something is loaded. */
int weft_library_present(struct weft_library *library)
{
    const char *files = weft_config_str(library->setting);
    if (__atomic_load_n(&library->absent, __ATOMIC_RELAXED) == circumstances(files))
        return 0;
    if (is_loaded(files))
        return 1;
    remember(library, files);
    return 0;
}

/* --- opening it ------------------------------------------------------------------------------------- */

/* One file: 0; WEFT_ENODEV and *opened false: it could not be opened; else what `fill` says of it. */
static int load_file(struct weft_library *library, const char *file, int flags, bool *opened)
{
    dlerror();
    void *handle = dlopen(file, flags);
    *opened = handle;
    if (!handle) {
        const char *why = dlerror();
        return weft_fail(WEFT_ENODEV, "%s: %s (%s)", library->whose, why ? why : file,
                         library->package);
    }
    return library->fill(
        handle); /* a runtime that has begun is not unloaded: not all do that well */
}

/* What the process has already, and nothing else then: two of them in one process would not know of each other. Else the first
 * that can be used; if none can, one that is broken says more than one that is not there. */
static int load(struct weft_library *library, const char *files)
{
    char file[256], why[256] = "";
    const char *at = files;
    int rc = WEFT_ENODEV;
    bool opened = false;
    while (rc && !opened && next_file(&at, file, sizeof file))
        rc = load_file(library, file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, &opened);
    if (opened)
        return rc;
    for (at = files; rc && next_file(&at, file, sizeof file);) {
        rc = load_file(library, file, RTLD_NOW | RTLD_LOCAL, &opened);
        const char *text = rc ? weft_last_error() : "";
        if (rc && (!*why || (strstr(why, "No such file") && !strstr(text, "No such file"))))
            snprintf(why, sizeof why, "%s", text);
    }
    if (rc == 0)
        return 0;
    if (*why && strstr(why, "No such file"))
        return weft_fail(WEFT_ENODEV, "%s; %s would name another file", why, library->setting);
    return *why ? weft_fail(WEFT_ENODEV, "%s", why)
                : weft_fail(WEFT_ENODEV, "%s: %s names no file (%s)", library->whose,
                            library->setting, library->package);
}

int weft_library_open(struct weft_library *library)
{
    const char *files = weft_config_str(library->setting);
    int rc = 0;
    weft_static_lock(&library->lock);
    if (strlen(files) >= sizeof library->loaded)
        rc = weft_fail(WEFT_ENODEV, "%s: %s is too long", library->whose, library->setting);
    else if (*library->loaded && strcmp(library->loaded, files) != 0)
        rc = weft_fail(WEFT_ENODEV, "%s: %s is in use already, not %s", library->whose,
                       library->loaded, files);
    else if (!*library->loaded)
        rc = load(library, files);
    if (rc == 0 && *files) { /* its first character last: a child of fork may have some of it */
        strcpy(library->loaded + 1, files + 1);
        *library->loaded = *files;
    }
    if (rc && !*library->loaded)
        remember(library, files);
    weft_static_unlock(&library->lock);
    return rc;
}

int weft_library_find(const struct weft_library *library, void *opened, const char *symbol,
                      void *slot)
{
    void *found = dlsym(opened, symbol);
    memcpy(slot, &found, sizeof found);
    return found ? 0 : weft_fail(WEFT_ENODEV, "%s: the file that %s names lacks %s", library->whose,
                                 library->setting, symbol);
}
