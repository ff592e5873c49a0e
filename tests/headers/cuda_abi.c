/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/cuda/cuda_api.h has NVIDIA's interface under names of its own: compiled beside cuda.h, where that is, to see that both say the
 * same. The functions: that they are declared under these
 * names, which have their version in them. */
#include <cuda.h>

#include "gpu/cuda/cuda_api.h"
#include "gpu/vendor/vendor_result.h"

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)

EQUAL(VENDOR_OK, CUDA_SUCCESS);
EQUAL(VENDOR_EINVAL, CUDA_ERROR_INVALID_VALUE);
EQUAL(VENDOR_ENOMEM, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(CUDA_DEVICE_WARP, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
EQUAL(CUDA_DEVICE_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
EQUAL(CUDA_DEVICE_NUMBER, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
EQUAL(CUDA_DEVICE_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
EQUAL(CUDA_P2P_ATOMIC, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
EQUAL(VENDOR_ESTARTED, CUDA_ERROR_NOT_INITIALIZED);
EQUAL(VENDOR_EENDED, CUDA_ERROR_DEINITIALIZED);
EQUAL(VENDOR_ESTUB, CUDA_ERROR_STUB_LIBRARY);
EQUAL(VENDOR_EUNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE);
EQUAL(VENDOR_ENODEVICE, CUDA_ERROR_NO_DEVICE);
EQUAL(VENDOR_EDEVICE, CUDA_ERROR_INVALID_DEVICE);
EQUAL(VENDOR_ENOCONTEXT, CUDA_ERROR_INVALID_CONTEXT);
EQUAL(VENDOR_EBUSY, CUDA_ERROR_NOT_READY);
EQUAL(VENDOR_EREGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
EQUAL(VENDOR_EUNSUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
EQUAL(CUDA_OF_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
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
EQUAL(VENDOR_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
EQUAL(sizeof(int), sizeof(CUstreamCaptureMode));
EQUAL(CUDA_HANDLE_DMABUF, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
EQUAL(CUDA_SEGMENT_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
EQUAL(CUDA_SEGMENT_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
EQUAL(CUDA_AT_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
EQUAL(CUDA_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
EQUAL(sizeof(struct cuda_access), sizeof(CUmemAccessDesc));
EQUAL(offsetof(struct cuda_access, device), offsetof(CUmemAccessDesc, location.id));
EQUAL(offsetof(struct cuda_access, may), offsetof(CUmemAccessDesc, flags));
EQUAL(sizeof(struct cuda_segment_prop), sizeof(CUmemAllocationProp));
EQUAL(offsetof(struct cuda_segment_prop, handles),
      offsetof(CUmemAllocationProp, requestedHandleTypes));
EQUAL(offsetof(struct cuda_segment_prop, at_device), offsetof(CUmemAllocationProp, location.id));
EQUAL(sizeof(struct cuda_kernel_node), sizeof(CUDA_KERNEL_NODE_PARAMS));
EQUAL(offsetof(struct cuda_kernel_node, threads), offsetof(CUDA_KERNEL_NODE_PARAMS, blockDimX));
EQUAL(offsetof(struct cuda_kernel_node, args), offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams));
EQUAL(offsetof(struct cuda_kernel_node, ctx), offsetof(CUDA_KERNEL_NODE_PARAMS, ctx));
EQUAL(sizeof(uint64_t), sizeof(CUmemGenericAllocationHandle));
EQUAL(CUDA_IPC_BYTES, CU_IPC_HANDLE_SIZE);
EQUAL(sizeof(struct cuda_ipc), sizeof(CUipcMemHandle));
EQUAL(sizeof(cuda_addr), sizeof(CUdeviceptr));
EQUAL(sizeof(int), sizeof(CUresult));
EQUAL(sizeof(int), sizeof(CUdevice));
EQUAL(sizeof(int), sizeof(CUpointer_attribute));

/* Declared, or this does not compile. */
const void *const names[] = {
#define NAME(member, symbol, parameters) (const void *)symbol,
    CUDA_FUNCTIONS(NAME) CUDA_GRAPH_FUNCTIONS(NAME)
#undef NAME
};
