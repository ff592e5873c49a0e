/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver, opened when it is first needed. */
#include <errno.h>
#include <stdatomic.h>

#include "cuda_gpu.h"

static int fill(void *opened);

static struct weft_library library = WEFT_LIBRARY(.whose = "gpu cuda", .setting = "WEFT_CUDA_LIBRARY",
                                                  .package = "NVIDIA's driver", .fill = fill);
static struct cuda_api table;
static atomic_bool loaded;

static int fill(void *opened)
{
    int rc = 0;
#define CUDA_FIND(member, symbol, parameters)                                                     \
    if (rc == 0)                                                                                  \
        rc = weft_library_find(&library, opened, #symbol, &table.member);
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    if (rc)
        return rc;
    int result = table.init(0); /* makes no context */
    if (result)
        return cuda_fail(result, "cannot start the driver");
    atomic_store(&loaded, true);
    return 0;
}

const struct cuda_api *cuda_api(void)
{
    return weft_library_open(&library) ? NULL : &table;
}

const struct cuda_api *cuda_api_quick(void)
{
    return atomic_load_explicit(&loaded, memory_order_acquire) ? &table : cuda_api();
}

bool cuda_present(void)
{
    return weft_library_present(&library);
}

static int code_of(int result)
{
    switch (result) {
    case CUDA_EINVAL:
        return -EINVAL;
    case CUDA_ENOMEM:
        return -ENOMEM;
    case CUDA_ESTUB:
    case CUDA_EUNAVAILABLE:
    case CUDA_ENODEVICE:
    case CUDA_EDEVICE:
        return WEFT_ENODEV;
    case CUDA_EUNSUPPORTED:
        return WEFT_EUNSUPPORTED;
    default:
        return -EIO;
    }
}

int cuda_fail(int result, const char *what)
{
    const char *text = NULL;
    if (table.error_text(result, &text) || !text)
        text = "unknown to the driver";
    return weft_fail(code_of(result), "gpu cuda: %s: %s (%d)", what, text, result);
}
