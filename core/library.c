/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of vendors, found at run time: one that is not there is a reason, not an error of ours. */
#include <dlfcn.h>
#include <string.h>

#include "weft/transport.h"

/* The first of a list of files, separated by commas, that can be opened like this; or NULL, and dlerror is of the last. */
static void *open_first(const char *files, int flags)
{
    char file[sizeof((struct weft_library *)0)->loaded];
    void *opened = NULL;
    for (const char *at = files, *end; !opened && *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, ',');
        if ((size_t)(end - at) >= sizeof file)
            continue;
        memcpy(file, at, (size_t)(end - at));
        file[end - at] = 0;
        opened = dlopen(file, flags);
    }
    return opened;
}

/* What the process has already comes first: two of them in one process would not know of each other. */
static int load(struct weft_library *library, const char *files)
{
    void *opened = open_first(files, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!opened)
        opened = open_first(files, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        const char *why = dlerror();
        return weft_fail(WEFT_ENODEV, "%s: %s (%s)", library->whose,
                         why ? why : "no file is named", library->package);
    }
    int rc = library->fill(opened);
    if (rc) {
        dlclose(opened);
        return rc;
    }
    strcpy(library->loaded, files);
    return 0;
}

int weft_library_present(const struct weft_library *library)
{
    void *opened = open_first(weft_config_str(library->setting), RTLD_LAZY | RTLD_NOLOAD);
    if (opened)
        dlclose(opened);
    return opened != NULL;
}

int weft_library_open(struct weft_library *library)
{
    const char *files = weft_config_str(library->setting);
    int rc = 0;
    pthread_mutex_lock(&library->lock);
    if (strlen(files) >= sizeof library->loaded)
        rc = weft_fail(WEFT_ENODEV, "%s: %s is too long", library->whose, library->setting);
    else if (*library->loaded && strcmp(library->loaded, files) != 0)
        rc = weft_fail(WEFT_ENODEV, "%s: %s is in use already, not %s", library->whose,
                       library->loaded, files);
    else if (!*library->loaded)
        rc = load(library, files);
    pthread_mutex_unlock(&library->lock);
    return rc;
}

int weft_library_find(const struct weft_library *library, void *opened, const char *symbol,
                      void *slot)
{
    void *found = dlsym(opened, symbol);
    memcpy(slot, &found, sizeof found);
    return found ? 0 : weft_fail(WEFT_ENODEV, "%s: the library lacks %s", library->whose, symbol);
}
