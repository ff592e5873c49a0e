/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver, opened when it is first needed. */
#include <stdatomic.h>

#include "cuda_gpu.h"

static int fill(void *opened);

static struct weft_library library = WEFT_LIBRARY(.whose = "gpu cuda",
                                                  .setting = "WEFT_CUDA_LIBRARY",
                                                  .package = "NVIDIA's driver", .fill = fill);
struct cuda_api cuda_table;
static atomic_bool loaded;

static int fill(void *opened)
{
    int rc = 0;
#define CUDA_FIND(member, symbol, parameters)                                                     \
    if (rc == 0)                                                                                  \
        rc = weft_library_find(&library, opened, #symbol, &cuda_table.member);
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    if (rc)
        return rc;
#define CUDA_FIND(member, symbol, parameters) vendor_find(opened, #symbol, &cuda_table.member);
    CUDA_GRAPH_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    int result = cuda_table.init(0); /* makes no context */
    if (result)
        return cuda_fail(result, "cannot start the driver");
    atomic_store(&loaded, true);
    return 0;
}

const struct cuda_api *cuda_api(void)
{
    return weft_library_open(&library) ? NULL : &cuda_table;
}

const struct cuda_api *cuda_api_quick(void)
{
    return atomic_load_explicit(&loaded, memory_order_acquire) ? &cuda_table : cuda_api();
}

bool cuda_present(void)
{
    return weft_library_present(&library);
}

int cuda_fail(int result, const char *what)
{
    return vendor_fail(&cuda_vendor, result, what);
}
