/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/cuda/cuda_api.h has NVIDIA's interface under names of its own: compiled beside cuda.h, where that is, to see that both say the
 * same. The functions: that they are declared under these
 * names, which have their version in them. */
#include <cuda.h>

#include "gpu/cuda/cuda_api.h"

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)

EQUAL(CUDA_OK, CUDA_SUCCESS);
EQUAL(CUDA_EINVAL, CUDA_ERROR_INVALID_VALUE);
EQUAL(CUDA_ENOMEM, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(CUDA_ESTUB, CUDA_ERROR_STUB_LIBRARY);
EQUAL(CUDA_EUNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE);
EQUAL(CUDA_ENODEVICE, CUDA_ERROR_NO_DEVICE);
EQUAL(CUDA_EDEVICE, CUDA_ERROR_INVALID_DEVICE);
EQUAL(CUDA_EBUSY, CUDA_ERROR_NOT_READY);
EQUAL(CUDA_EUNSUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
EQUAL(CUDA_OF_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
EQUAL(CUDA_OF_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
EQUAL(CUDA_OF_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
EQUAL(CUDA_OF_BASE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
EQUAL(CUDA_OF_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
EQUAL(CUDA_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE);
EQUAL(CUDA_STREAM_ALONE, CU_STREAM_NON_BLOCKING);
EQUAL(CUDA_EVENT_NO_TIMES, CU_EVENT_DISABLE_TIMING);
EQUAL(CUDA_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
EQUAL(CUDA_HOST_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
EQUAL(CUDA_IPC_PEERS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
EQUAL(CUDA_HANDLE_DMABUF, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
EQUAL(CUDA_IPC_BYTES, CU_IPC_HANDLE_SIZE);
EQUAL(sizeof(struct cuda_ipc), sizeof(CUipcMemHandle));
EQUAL(sizeof(cuda_addr), sizeof(CUdeviceptr));
EQUAL(sizeof(int), sizeof(CUresult));
EQUAL(sizeof(int), sizeof(CUdevice));
EQUAL(sizeof(int), sizeof(CUpointer_attribute));

/* Declared, or this does not compile. */
const void *const names[] = {
#define NAME(member, symbol, parameters) (const void *)symbol,
    CUDA_FUNCTIONS(NAME)
#undef NAME
};
