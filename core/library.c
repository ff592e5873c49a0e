/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of vendors, found at run time: one that is not there is a reason, not an error of ours. */
#include <dlfcn.h>
#include <string.h>

#include "weft/transport.h"

static int load(struct weft_library *library, const char *file)
{
    void *opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!opened)
        return weft_fail(WEFT_ENODEV, "%s: %s (%s)", library->whose, dlerror(), library->package);
    int rc = library->fill(opened);
    if (rc) {
        dlclose(opened);
        return rc;
    }
    strcpy(library->loaded, file);
    return 0;
}

int weft_library_present(const struct weft_library *library)
{
    void *opened = dlopen(weft_config_str(library->setting), RTLD_LAZY | RTLD_NOLOAD);
    if (opened)
        dlclose(opened);
    return opened != NULL;
}

int weft_library_open(struct weft_library *library)
{
    const char *file = weft_config_str(library->setting);
    int rc = 0;
    pthread_mutex_lock(&library->lock);
    if (strlen(file) >= sizeof library->loaded)
        rc = weft_fail(WEFT_ENODEV, "%s: %s is too long", library->whose, library->setting);
    else if (*library->loaded && strcmp(library->loaded, file) != 0)
        rc = weft_fail(WEFT_ENODEV, "%s: %s is in use already, not %s", library->whose,
                       library->loaded, file);
    else if (!*library->loaded)
        rc = load(library, file);
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
