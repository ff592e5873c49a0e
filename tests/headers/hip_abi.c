/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/hip/hip_api.h has AMD's interface under names of its own: compiled beside hip_runtime_api.h, where that is, to see that both
 * say the same. The functions: that they are declared under these names. */
#include <hip/hip_runtime_api.h>

#include <stddef.h>

#include "gpu/hip/hip_api.h"
#include "gpu/vendor/vendor_result.h"

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)

EQUAL(VENDOR_OK, hipSuccess);
EQUAL(VENDOR_EINVAL, hipErrorInvalidValue);
EQUAL(VENDOR_ENOMEM, hipErrorOutOfMemory);
EQUAL(VENDOR_ESTARTED, hipErrorNotInitialized);
EQUAL(VENDOR_EENDED, hipErrorDeinitialized);
EQUAL(VENDOR_ENODEVICE, hipErrorNoDevice);
EQUAL(VENDOR_EDEVICE, hipErrorInvalidDevice);
EQUAL(VENDOR_EBUSY, hipErrorNotReady);
EQUAL(VENDOR_EREGISTERED, hipErrorHostMemoryAlreadyRegistered);
EQUAL(VENDOR_EUNSUPPORTED, hipErrorNotSupported);
EQUAL(HIP_DEVICE_WARP, hipDeviceAttributeWarpSize);
EQUAL(HIP_COPY_ANY, hipMemcpyDefault);
EQUAL(VENDOR_CAPTURE_RELAXED, hipStreamCaptureModeRelaxed);
EQUAL(sizeof(int), sizeof(hipStreamCaptureMode));
EQUAL(HIP_STREAM_ALONE, hipStreamNonBlocking);
EQUAL(HIP_EVENT_NO_TIMES, hipEventDisableTiming);
EQUAL(HIP_HOST_PORTABLE, hipHostRegisterPortable);
EQUAL(HIP_HOST_MAPPED, hipHostRegisterMapped);
EQUAL(sizeof(struct hip_ipc), sizeof(hipIpcMemHandle_t));
EQUAL(sizeof(struct hip_pointer), sizeof(hipPointerAttribute_t));
EQUAL(offsetof(struct hip_pointer, managed), offsetof(hipPointerAttribute_t, isManaged));

/* What ROCm 6 has changed. */
#if HIP_VERSION < 60000000
#define NUMBER(name) HIP5_##name
#else
#define NUMBER(name) HIP6_##name
#endif
EQUAL(NUMBER(HOST), hipMemoryTypeHost);
EQUAL(NUMBER(DEVICE), hipMemoryTypeDevice);
EQUAL(NUMBER(IPC_PEERS), hipIpcMemLazyEnablePeerAccess);

/* Declared, or this does not compile. */
const void *const names[] = {
#define NAME(member, symbol, parameters) (const void *)symbol,
    HIP_FUNCTIONS(NAME)
#undef NAME
    (const void *)hipThreadExchangeStreamCaptureMode,
};
