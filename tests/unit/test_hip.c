/* SPDX-License-Identifier: Apache-2.0 */
/* What programs see of gpu/hip beside its memory: the thread's device and last error, over the double of AMD's runtime. */
#include "contract/duo.h"

#include <dlfcn.h>

#include "gpu/hip/hip_api.h"
#include "gpu/vendor/vendor_result.h"
#include "weft/gpu.h"

#define DECLARE(member, symbol, parameters) int symbol parameters;
HIP_FUNCTIONS(DECLARE)
#undef DECLARE

extern const struct weft_gpu_backend weft_gpu_hip;

#define OPS weft_gpu_hip.ops
#define LEN ((size_t)4096)

static int device(void)
{
    int at = -1;
    assert_int_equal(hipGetDevice(&at), VENDOR_OK);
    return at;
}

static void the_threads_device_stays(void **state)
{
    (void)state;
    struct weft_gpu *gpu;
    uint8_t handle[WEFT_GPU_IPC_BYTES], bytes[LEN] = {0};
    void *addr, *dev;
    int fd;
    assert_int_equal(OPS->probe(), 4);
    WEFT_OK(OPS->open(1, &gpu));
    assert_int_equal(device(), 0);
    WEFT_OK(OPS->alloc(gpu, LEN, &addr));
    struct weft_gpu_range range;
    assert_int_equal(OPS->query(addr, &range), 1);
    assert_int_equal(range.ordinal, 1); /* and not the thread's */
    assert_int_equal(hipSetDevice(1), VENDOR_OK);
    WEFT_OK(OPS->copy(gpu, addr, bytes, LEN, NULL));
    assert_int_equal(device(), 1);
    assert_int_equal(hipSetDevice(0), VENDOR_OK);
    WEFT_OK(OPS->copy(gpu, addr, bytes, LEN, NULL));
    WEFT_OK(OPS->ipc_export(gpu, addr, LEN, handle, &fd));
    assert_int_equal(OPS->host_map(gpu, bytes, LEN, &dev), 0);
    OPS->host_unmap(gpu, bytes);
    assert_int_equal(device(), 0);
    OPS->free(gpu, addr);
    OPS->close(gpu);
    assert_int_equal(device(), 0);
}

/* A program asks for it after it has launched a kernel. */
static void the_threads_last_error_is_its_own(void **state)
{
    (void)state;
    struct weft_gpu *gpu;
    struct weft_gpu_range range;
    struct weft_gpu_device what;
    struct weft_gpu_job *job;
    uint8_t handle[WEFT_GPU_IPC_BYTES] = {0}, bytes[LEN] = {0};
    void *addr, *dev;
    int fd;
    assert_int_equal(OPS->probe(), 4);
    hipGetLastError();
    WEFT_OK(OPS->open(0, &gpu));
    assert_int_equal(OPS->query(bytes, &range), 0);
    assert_int_equal(hipGetLastError(), VENDOR_OK);
    assert_true(OPS->describe(7, &what) < 0);
    assert_int_equal(hipGetLastError(), VENDOR_OK);
    WEFT_FAILS(-ENOMEM, OPS->alloc(gpu, (uint64_t)1 << 50, &addr));
    assert_int_equal(hipGetLastError(), VENDOR_OK);
    assert_true(OPS->ipc_open(gpu, handle, -1, 1, &addr) < 0);
    assert_int_equal(hipGetLastError(), VENDOR_OK);
    assert_true(OPS->ipc_export(gpu, bytes, 1, handle, &fd) < 0);
    assert_int_equal(hipGetLastError(), VENDOR_OK);
    assert_int_equal(OPS->host_map(gpu, bytes, LEN, &dev), 0);
    assert_int_equal(OPS->host_map(gpu, bytes, LEN, &dev), 1);
    OPS->host_unmap(gpu, bytes);
    assert_int_equal(hipGetLastError(), VENDOR_OK);
    WEFT_OK(OPS->alloc(gpu, LEN, &addr));
    const struct weft_gpu_copy one = {addr, bytes, LEN};
    WEFT_OK(OPS->copy_start(gpu, &one, 1, 0, &job));
    while (OPS->copy_done(gpu, job) == 0) /* not done yet is an error to the runtime */
        assert_int_equal(hipGetLastError(), VENDOR_OK);
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

/* The list begins with another one, which is not the process's. */
static void the_runtime_is_the_processs_own(void **state)
{
    (void)state;
    assert_int_equal(OPS->present(), 1);
    assert_int_equal(OPS->probe(), 4);
    assert_null(dlopen(getenv("FAKE_HIP_OTHER"), RTLD_LAZY | RTLD_NOLOAD));
}

static void what_devices_are(void **state)
{
    (void)state;
    struct weft_gpu_device what;
    WEFT_OK(OPS->describe(3, &what));
    assert_string_equal(what.pci, "0001:1a:00.0"); /* the runtime says 1A */
    assert_int_equal(what.wave, 64);
    assert_int_equal(OPS->link(0, 0), WEFT_GPU_LINK_SELF);
    assert_int_equal(OPS->link(0, 1), WEFT_GPU_LINK_FABRIC);
    assert_true(OPS->link(0, 4) < 0);
    assert_true(OPS->link(-1, 0) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_threads_device_stays),
        cmocka_unit_test(the_threads_last_error_is_its_own),
        cmocka_unit_test(the_runtime_is_the_processs_own),
        cmocka_unit_test(what_devices_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
