/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs_lib.h"

#include "weft/transport.h"

static int fill(void *opened);

static struct weft_library library = WEFT_LIBRARY(.whose = "verbs", .setting = "WEFT_VERBS_LIBRARY",
                                                  .package = "package libibverbs1 or rdma-core",
                                                  .fill = fill);
static struct verbs_lib table;

static int fill(void *opened)
{
    int rc = 0;
    /* of newer versions */
    weft_library_find(&library, opened, "_ibv_query_gid_table", &table.query_gid_table);
#define VERBS_TRY(name) weft_library_find(&library, opened, "ibv_" #name, &table.name);
    VERBS_OPTIONAL_SYMBOLS(VERBS_TRY)
#undef VERBS_TRY
#define VERBS_FIND(name)                                                                          \
    if (rc == 0)                                                                                  \
        rc = weft_library_find(&library, opened, "ibv_" #name, &table.name);
    VERBS_SYMBOLS(VERBS_FIND)
#undef VERBS_FIND
    return rc;
}

const struct verbs_lib *verbs_lib(void)
{
    return weft_library_open(&library) ? NULL : &table;
}
