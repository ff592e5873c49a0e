/* SPDX-License-Identifier: Apache-2.0 */
/* libfabric, found at run time: a library that is not there is a reason, not an error of ours. */
#include "efa_lib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "weft/transport.h"

#define NAME_MAX_LEN 256
#define OLDEST FI_VERSION(1, 17)
#define NEWEST FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION) /* whose headers this was built with */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct efa_lib table;
static char loaded[NAME_MAX_LEN]; /* the file that the table is of */

static int find(void *file, const char *name, void *slot)
{
    void *symbol = dlsym(file, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol ? 0 : weft_fail(WEFT_ENODEV, "efa: the library lacks %s", name);
}

static int fill(void *file, const char *name, struct efa_lib *lib)
{
    int rc = 0;
#define EFA_FIND(name)                                                                            \
    if (rc == 0)                                                                                  \
        rc = find(file, "fi_" #name, &lib->name);
    EFA_SYMBOLS(EFA_FIND)
#undef EFA_FIND
    if (rc)
        return rc;
    lib->api = lib->version() < NEWEST ? lib->version() : NEWEST;
    if (lib->api < OLDEST)
        return weft_fail(WEFT_ENODEV, "efa: %s is libfabric %u.%u, 1.17 or later is needed", name,
                         FI_MAJOR(lib->api), FI_MINOR(lib->api));
    return 0;
}

static int load(const char *name)
{
    struct efa_lib lib;
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!file)
        return weft_fail(WEFT_ENODEV, "efa: %s (package libfabric1 or AWS's EFA installer)",
                         dlerror());
    int rc = fill(file, name, &lib);
    if (rc) {
        dlclose(file);
        return rc;
    }
    table = lib;
    strcpy(loaded, name);
    return 0;
}

const struct efa_lib *efa_lib(void)
{
    const char *name = weft_config_str("WEFT_EFA_LIBRARY");
    const struct efa_lib *lib = NULL;
    pthread_mutex_lock(&lock);
    if (strlen(name) >= sizeof loaded)
        weft_fail(WEFT_ENODEV, "efa: WEFT_EFA_LIBRARY is too long");
    else if (*loaded && strcmp(loaded, name) != 0)
        weft_fail(WEFT_ENODEV, "efa: %s is in use already, not %s", loaded, name);
    else if (*loaded || load(name) == 0)
        lib = &table;
    pthread_mutex_unlock(&lock);
    return lib;
}
