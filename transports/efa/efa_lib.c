/* SPDX-License-Identifier: Apache-2.0 */
#include "efa_lib.h"

#include "efa.h"
#include "weft/transport.h"

#define OLDEST FI_VERSION(1, 17)
/* Whatever the headers are: from 1.18 on EFA's provider lets the device WRITE and READ, and GPU memory be registered; 1.20 has
 * dma-buf. What is longer there than in older headers: struct fi_mr_attr (efa_gpu.c), struct fi_cq_err_entry (efa_poll.c). */
#define NEWEST FI_VERSION(1, 20)

static int fill(void *opened);

static struct weft_library library = WEFT_LIBRARY(.whose = "efa", .setting = "WEFT_EFA_LIBRARY",
                                                  .package = "package libfabric1, or AWS's EFA installer",
                                                  .fill = fill);
static struct efa_lib table;

static int fill(void *opened)
{
    int rc = 0;
#define EFA_FIND(name)                                                                            \
    if (rc == 0)                                                                                  \
        rc = weft_library_find(&library, opened, "fi_" #name, &table.name);
    EFA_SYMBOLS(EFA_FIND)
#undef EFA_FIND
    if (rc)
        return rc;
    table.api = table.version() < NEWEST ? table.version() : NEWEST;
    if (table.api < OLDEST)
        return weft_fail(WEFT_ENODEV, "efa: the library is libfabric %u.%u, 1.17 or later is needed",
                         FI_MAJOR(table.api), FI_MINOR(table.api));
    return 0;
}

const struct efa_lib *efa_lib(void)
{
    /* libinfinipath, which Debian's libfabric is linked with, takes the process's signals when it is loaded, SIGINT and
     * SIGTERM too, unless this is in the environment */
    efa_env_default("IPATH_NO_BACKTRACE", "1");
    return weft_library_open(&library) ? NULL : &table;
}
