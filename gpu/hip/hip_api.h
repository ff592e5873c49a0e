/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of AMD's HIP runtime (libamdhip64) is called: its binary interface, under names of our own, so that Weft is built
 * where no header of AMD's is, and runs with the runtimes of ROCm 5 and 6. Source: hip_runtime_api.h of ROCm 5.2 and 6.2,
 * with which tests/headers/hip_abi.c compares it where that is.
 */
#ifndef WEFT_HIP_API_H
#define WEFT_HIP_API_H

#include <stddef.h>
#include <stdint.h>

#define HIP_IPC_BYTES 64

struct hip_ipc {
    char bytes[HIP_IPC_BYTES];
};

/* hipPointerAttribute_t */
struct hip_pointer {
    int type; /* hip_numbers */
    int device;
    void *on_device, *on_host;
    int managed;
    unsigned flags;
};

/* hipDeviceAttribute_t, hipMemcpyKind, HSA's link types */
enum { HIP_DEVICE_WARP = 87 };
enum { HIP_COPY_ANY = 4 };
enum { HIP_LINK_XGMI = 4 };
/* Flags of streams, of events, of host memory. */
enum { HIP_STREAM_ALONE = 1 };
enum { HIP_EVENT_NO_TIMES = 2 };
enum { HIP_HOST_PORTABLE = 1, HIP_HOST_MAPPED = 2 };

/* Numbers that ROCm 6 has changed: hipMemoryType, hipIpcMemLazyEnablePeerAccess. */
enum { HIP_VERSION_6 = 60000000 }; /* of hipRuntimeGetVersion */
struct hip_numbers {
    int host, device;
    unsigned ipc_peers;
};
enum { HIP5_HOST = 0, HIP5_DEVICE = 1, HIP5_IPC_PEERS = 0 };
enum { HIP6_HOST = 1, HIP6_DEVICE = 2, HIP6_IPC_PEERS = 1 };
static const struct hip_numbers hip_numbers_5 = {HIP5_HOST, HIP5_DEVICE, HIP5_IPC_PEERS};
static const struct hip_numbers hip_numbers_6 = {HIP6_HOST, HIP6_DEVICE, HIP6_IPC_PEERS};

/* XX(member, symbol, parameters): all of them return a hipError_t (vendor_result.h). */
#define HIP_FUNCTIONS(XX)                                                                         \
    XX(init, hipInit, (unsigned))                                                                 \
    XX(last_error, hipGetLastError, (void))                                                       \
    XX(version, hipRuntimeGetVersion, (int *))                                                    \
    XX(device_count, hipGetDeviceCount, (int *))                                                  \
    XX(device_name, hipDeviceGetName, (char *, int, int))                                         \
    XX(device_bytes, hipDeviceTotalMem, (size_t *, int))                                          \
    XX(device_attribute, hipDeviceGetAttribute, (int *, int, int))                                \
    XX(device_pci, hipDeviceGetPCIBusId, (char *, int, int))                                      \
    XX(device_peer, hipDeviceCanAccessPeer, (int *, int, int))                                    \
    XX(device_link, hipExtGetLinkTypeAndHopCount, (int, int, uint32_t *, uint32_t *))             \
    XX(device_set, hipSetDevice, (int))                                                           \
    XX(device_now, hipGetDevice, (int *))                                                         \
    XX(stream_create, hipStreamCreateWithFlags, (void **, unsigned))                              \
    XX(stream_destroy, hipStreamDestroy, (void *))                                                \
    XX(stream_wait, hipStreamSynchronize, (void *))                                               \
    XX(event_create, hipEventCreateWithFlags, (void **, unsigned))                                \
    XX(event_destroy, hipEventDestroy, (void *))                                                  \
    XX(event_record, hipEventRecord, (void *, void *))                                            \
    XX(event_query, hipEventQuery, (void *))                                                      \
    XX(mem_alloc, hipMalloc, (void **, size_t))                                                   \
    XX(mem_free, hipFree, (void *))                                                               \
    XX(mem_range, hipMemGetAddressRange, (void **, size_t *, void *))                             \
    XX(mem_attributes, hipPointerGetAttributes, (struct hip_pointer *, const void *))             \
    XX(copy, hipMemcpyAsync, (void *, const void *, size_t, int, void *))                         \
    XX(host_register, hipHostRegister, (void *, size_t, unsigned))                                \
    XX(host_unregister, hipHostUnregister, (void *))                                              \
    XX(host_addr, hipHostGetDevicePointer, (void **, void *, unsigned))                           \
    XX(module_load, hipModuleLoadData, (void **, const void *))                                   \
    XX(module_unload, hipModuleUnload, (void *))                                                  \
    XX(module_kernel, hipModuleGetFunction, (void **, void *, const char *))                      \
    XX(launch, hipModuleLaunchKernel,                                                             \
       (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,     \
        void **, void **))                                                                        \
    XX(ipc_get, hipIpcGetMemHandle, (struct hip_ipc *, void *))                                   \
    XX(ipc_open, hipIpcOpenMemHandle, (void **, struct hip_ipc, unsigned))                        \
    XX(ipc_close, hipIpcCloseMemHandle, (void *))

/* The same; what a runtime may lack. Results are hipError_t, a device's number, and hsa_status_t (0: success). The last is of
 * the HSA runtime, which libamdhip64 brings along. */
#define HIP_OPTIONAL_FUNCTIONS(XX)                                                                \
    XX(stream_device, hipStreamGetDevice, (void *, int *)) /* ROCm 5.6 */                         \
    XX(stream_ordinal, hipGetStreamDeviceId, (void *))                                            \
    XX(capture_mode, hipThreadExchangeStreamCaptureMode, (int *)) /* ROCm 5.2 has it */           \
    XX(dmabuf, hsa_amd_portable_export_dmabuf, (const void *, size_t, int *, uint64_t *))

struct hip_api {
    const char *(*error_text)(int); /* hipGetErrorString */
#define HIP_MEMBER(member, symbol, parameters) int(*member) parameters;
    HIP_FUNCTIONS(HIP_MEMBER)
    HIP_OPTIONAL_FUNCTIONS(HIP_MEMBER)
#undef HIP_MEMBER
    const struct hip_numbers *numbers;
};

#endif
