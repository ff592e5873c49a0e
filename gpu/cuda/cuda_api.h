/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of NVIDIA's driver (libcuda.so.1) is called: its binary interface, under names of our own, so that Weft is built
 * where no header of NVIDIA's is. Source: the CUDA driver API reference, 11.7 and later; tests/headers/cuda_abi.c
 * compares it with cuda.h where that is.
 */
#ifndef WEFT_CUDA_API_H
#define WEFT_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t cuda_addr; /* CUdeviceptr */
typedef struct cuda_ctx *cuda_ctx_t;
typedef struct cuda_stream *cuda_stream_t;
typedef struct cuda_event *cuda_event_t;

#define CUDA_IPC_BYTES 64

struct cuda_ipc {
    char bytes[CUDA_IPC_BYTES];
};

/* CUdevice_attribute, CUdevice_P2PAttribute */
enum {
    CUDA_DEVICE_WARP = 10,
    CUDA_DEVICE_BUS = 33,
    CUDA_DEVICE_NUMBER = 34,
    CUDA_DEVICE_DOMAIN = 50
};
enum { CUDA_P2P_ATOMIC = 3 };
/* CUpointer_attribute */
enum {
    CUDA_OF_CONTEXT = 1,
    CUDA_OF_TYPE = 2,
    CUDA_OF_MANAGED = 8,
    CUDA_OF_ORDINAL = 9,
    CUDA_OF_BASE = 11,
    CUDA_OF_SIZE = 12
};
/* CUmemorytype */
enum { CUDA_TYPE_HOST = 1, CUDA_TYPE_DEVICE = 2 };
/* Flags of streams, of events, of host memory, of mapped memory of other processes; a kind of handle. */
enum { CUDA_STREAM_ALONE = 1 };
enum { CUDA_EVENT_NO_TIMES = 2 };
enum { CUDA_HOST_PORTABLE = 1, CUDA_HOST_MAPPED = 2 };
enum { CUDA_IPC_PEERS = 1 };
enum { CUDA_HANDLE_DMABUF = 1 };
/* CUmemAllocationHandleType, CUmemLocationType, CUmemAccess_flags */
enum { CUDA_SEGMENT_FD = 1, CUDA_AT_DEVICE = 1, CUDA_READ_WRITE = 3 };

/* CUmemAccessDesc: who may do what with a range */
struct cuda_access {
    int kind, device;
    int may;
};

/* CUDA_KERNEL_NODE_PARAMS_v2 */
struct cuda_kernel_node {
    void *kernel;
    unsigned blocks[3], threads[3];
    unsigned shared_bytes;
    void **args, **extra;
    void *library_kernel; /* if there is no kernel */
    cuda_ctx_t ctx;
};

/* CUmemAllocationProp: of cuMemCreate, which tests call */
struct cuda_segment_prop {
    int type, handles; /* CUDA_SEGMENT_PINNED; the kinds that it can be exported as */
    int at_kind, at_device;
    void *windows;
    unsigned char flags[8];
};
enum { CUDA_SEGMENT_PINNED = 1 };

/* XX(member, symbol, parameters): all of them return a CUresult (vendor_result.h). */
#define CUDA_FUNCTIONS(XX)                                                                        \
    XX(init, cuInit, (unsigned))                                                                  \
    XX(error_text, cuGetErrorString, (int, const char **))                                        \
    XX(device_count, cuDeviceGetCount, (int *))                                                   \
    XX(device_get, cuDeviceGet, (int *, int))                                                     \
    XX(device_name, cuDeviceGetName, (char *, int, int))                                          \
    XX(device_bytes, cuDeviceTotalMem_v2, (size_t *, int))                                        \
    XX(device_attribute, cuDeviceGetAttribute, (int *, int, int))                                 \
    XX(device_peer, cuDeviceCanAccessPeer, (int *, int, int))                                     \
    XX(device_p2p, cuDeviceGetP2PAttribute, (int *, int, int, int))                               \
    XX(ctx_retain, cuDevicePrimaryCtxRetain, (cuda_ctx_t *, int))                                 \
    XX(ctx_release, cuDevicePrimaryCtxRelease_v2, (int))                                          \
    XX(ctx_push, cuCtxPushCurrent_v2, (cuda_ctx_t))                                               \
    XX(ctx_pop, cuCtxPopCurrent_v2, (cuda_ctx_t *))                                               \
    XX(ctx_device, cuCtxGetDevice, (int *))                                                       \
    XX(capture_mode, cuThreadExchangeStreamCaptureMode, (int *))                                  \
    XX(stream_ctx, cuStreamGetCtx, (cuda_stream_t, cuda_ctx_t *))                                 \
    XX(stream_create, cuStreamCreate, (cuda_stream_t *, unsigned))                                \
    XX(stream_destroy, cuStreamDestroy_v2, (cuda_stream_t))                                       \
    XX(stream_wait, cuStreamSynchronize, (cuda_stream_t))                                         \
    XX(stream_query, cuStreamQuery, (cuda_stream_t))                                              \
    XX(word_write, cuStreamWriteValue32_v2, (cuda_stream_t, cuda_addr, uint32_t, unsigned))       \
    XX(event_create, cuEventCreate, (cuda_event_t *, unsigned))                                   \
    XX(event_destroy, cuEventDestroy_v2, (cuda_event_t))                                          \
    XX(event_record, cuEventRecord, (cuda_event_t, cuda_stream_t))                                \
    XX(event_query, cuEventQuery, (cuda_event_t))                                                 \
    XX(mem_alloc, cuMemAlloc_v2, (cuda_addr *, size_t))                                           \
    XX(mem_free, cuMemFree_v2, (cuda_addr))                                                       \
    XX(mem_range, cuMemGetAddressRange_v2, (cuda_addr *, size_t *, cuda_addr))                    \
    XX(mem_attributes, cuPointerGetAttributes, (unsigned, int *, void **, cuda_addr))             \
    XX(mem_handle, cuMemGetHandleForAddressRange, (void *, cuda_addr, size_t, int, uint64_t))     \
    XX(copy, cuMemcpyAsync, (cuda_addr, cuda_addr, size_t, cuda_stream_t))                        \
    XX(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned))                           \
    XX(host_unregister, cuMemHostUnregister, (void *))                                            \
    XX(host_addr, cuMemHostGetDevicePointer_v2, (cuda_addr *, void *, unsigned))                  \
    XX(module_load, cuModuleLoadData, (void **, const void *))                                    \
    XX(module_unload, cuModuleUnload, (void *))                                                   \
    XX(module_kernel, cuModuleGetFunction, (void **, void *, const char *))                       \
    XX(launch, cuLaunchKernel,                                                                    \
       (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,             \
        cuda_stream_t, void **, void **))                                                         \
    XX(ipc_get, cuIpcGetMemHandle, (struct cuda_ipc *, cuda_addr))                                \
    XX(ipc_open, cuIpcOpenMemHandle_v2, (cuda_addr *, struct cuda_ipc, unsigned))                 \
    XX(ipc_close, cuIpcCloseMemHandle, (cuda_addr))                                               \
    XX(segment_retain, cuMemRetainAllocationHandle, (uint64_t *, void *))                         \
    XX(segment_release, cuMemRelease, (uint64_t))                                                 \
    XX(segment_export, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t))           \
    XX(segment_import, cuMemImportFromShareableHandle, (uint64_t *, void *, int))                 \
    XX(range_reserve, cuMemAddressReserve, (cuda_addr *, size_t, size_t, cuda_addr, uint64_t))    \
    XX(range_free, cuMemAddressFree, (cuda_addr, size_t))                                         \
    XX(range_map, cuMemMap, (cuda_addr, size_t, size_t, uint64_t, uint64_t))                      \
    XX(range_unmap, cuMemUnmap, (cuda_addr, size_t))                                              \
    XX(range_allow, cuMemSetAccess, (cuda_addr, size_t, const struct cuda_access *, size_t))

/* The same; what a driver may lack: they are of 12.0. */
#define CUDA_GRAPH_FUNCTIONS(XX)                                                                  \
    XX(graph_create, cuGraphCreate, (void **, unsigned))                                          \
    XX(graph_destroy, cuGraphDestroy, (void *))                                                   \
    XX(graph_add_kernel, cuGraphAddKernelNode_v2,                                                 \
       (void **, void *, void *const *, size_t, const struct cuda_kernel_node *))                 \
    XX(graph_instantiate, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))     \
    XX(exec_destroy, cuGraphExecDestroy, (void *))                                                \
    XX(exec_upload, cuGraphUpload, (void *, cuda_stream_t))                                       \
    XX(exec_set_kernel, cuGraphExecKernelNodeSetParams_v2,                                        \
       (void *, void *, const struct cuda_kernel_node *))                                         \
    XX(exec_launch, cuGraphLaunch, (void *, cuda_stream_t))

struct cuda_api {
#define CUDA_MEMBER(member, symbol, parameters) int(*member) parameters;
    CUDA_FUNCTIONS(CUDA_MEMBER)
    CUDA_GRAPH_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

#endif
