/* SPDX-License-Identifier: Apache-2.0 */
/* AMD's runtime, opened when it is first needed. */
#include <stdatomic.h>

#include "hip_gpu.h"

static int fill(void *opened);

static struct weft_library library = WEFT_LIBRARY(.whose = "gpu hip",
                                                  .setting = "WEFT_HIP_LIBRARY",
                                                  .package = "AMD's HIP runtime", .fill = fill);
struct hip_api hip_table;
static atomic_bool loaded;

static int fill(void *opened)
{
    int version = 0;
    int rc = weft_library_find(&library, opened, "hipGetErrorString", &hip_table.error_text);
#define HIP_FIND(member, symbol, parameters)                                                      \
    if (rc == 0)                                                                                  \
        rc = weft_library_find(&library, opened, #symbol, &hip_table.member);
    HIP_FUNCTIONS(HIP_FIND)
#undef HIP_FIND
    if (rc)
        return rc;
#define HIP_FIND(member, symbol, parameters) vendor_find(opened, #symbol, &hip_table.member);
    HIP_OPTIONAL_FUNCTIONS(HIP_FIND)
#undef HIP_FIND
    int result = hip_told(hip_table.init(0));
    if (result == 0)
        result = hip_told(hip_table.version(&version));
    if (result == VENDOR_ENODEVICE || result == VENDOR_EDEVICE) /* the latter: Debian's */
        return hip_fail(result, "there is no GPU of AMD's");
    if (result)
        return hip_fail(result, "cannot start the runtime");
    hip_table.numbers = version < HIP_VERSION_6 ? &hip_numbers_5 : &hip_numbers_6;
    atomic_store(&loaded, true);
    return 0;
}

const struct hip_api *hip_api(void)
{
    return weft_library_open(&library) ? NULL : &hip_table;
}

const struct hip_api *hip_api_quick(void)
{
    return atomic_load_explicit(&loaded, memory_order_acquire) ? &hip_table : hip_api();
}

bool hip_present(void)
{
    return weft_library_present(&library);
}

int hip_fail(int result, const char *what)
{
    return vendor_fail(&hip_vendor, result, what);
}

int hip_told(int result)
{
    if (result)
        hip_table.last_error();
    return result;
}
