/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, found at run time: a library that is not there is a reason, not an error of ours. */
#include "verbs_lib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "weft/transport.h"

#define NAME_MAX_LEN 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct verbs_lib table;
static char loaded[NAME_MAX_LEN]; /* the file that the table is of */

static int find(void *file, const char *name, void *slot, int needed)
{
    void *symbol = dlsym(file, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol || !needed ? 0 : weft_fail(WEFT_ENODEV, "verbs: the library lacks %s", name);
}

static int fill(void *file, struct verbs_lib *lib)
{
    int rc = 0;
#define VERBS_FIND(name)                                                                          \
    if (rc == 0)                                                                                  \
        rc = find(file, "ibv_" #name, &lib->name, 1);
#define VERBS_TRY(name) find(file, "ibv_" #name, &lib->name, 0);
    VERBS_SYMBOLS(VERBS_FIND)
    VERBS_OPTIONAL_SYMBOLS(VERBS_TRY)
#undef VERBS_FIND
#undef VERBS_TRY
    find(file, "_ibv_query_gid_table", &lib->query_gid_table, 0);
    return rc;
}

static int load(const char *name)
{
    struct verbs_lib lib;
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!file)
        return weft_fail(WEFT_ENODEV, "verbs: %s (package libibverbs1 or rdma-core)", dlerror());
    int rc = fill(file, &lib);
    if (rc) {
        dlclose(file);
        return rc;
    }
    table = lib;
    strcpy(loaded, name);
    return 0;
}

const struct verbs_lib *verbs_lib(void)
{
    const char *name = weft_config_str("WEFT_VERBS_LIBRARY");
    const struct verbs_lib *lib = NULL;
    pthread_mutex_lock(&lock);
    if (strlen(name) >= sizeof loaded)
        weft_fail(WEFT_ENODEV, "verbs: WEFT_VERBS_LIBRARY is too long");
    else if (*loaded && strcmp(loaded, name) != 0)
        weft_fail(WEFT_ENODEV, "verbs: %s is in use already, not %s", loaded, name);
    else if (*loaded || load(name) == 0)
        lib = &table;
    pthread_mutex_unlock(&lock);
    return lib;
}
