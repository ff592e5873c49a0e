/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libamdhip64 over NVIDIA's driver, or over the double of that: so what AMD's backend does moves real bytes on GPUs that
 * there are. README.md has what it is like.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/cuda/cuda_api.h"
#include "gpu/hip/hip_api.h"
#include "gpu/vendor/vendor_result.h"

#ifdef FAKE_HIP_OLD
#define VERSION 50221153 /* Debian's */
#else
#define VERSION 60241133
#endif
#define MOST 64 /* devices */

#pragma GCC visibility push(default)
#define DECLARE(member, symbol, parameters) int symbol parameters;
HIP_FUNCTIONS(DECLARE)
HIP_OPTIONAL_FUNCTIONS(DECLARE)
#undef DECLARE
const char *hipGetErrorString(int result);
#pragma GCC visibility pop

static struct cuda_api cuda;
static int opened; /* VENDOR_OK once it is */
static cuda_ctx_t contexts[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device, last;

static const struct hip_numbers *numbers(void)
{
    return VERSION < HIP_VERSION_6 ? &hip_numbers_5 : &hip_numbers_6;
}

/* The runtime keeps what went wrong last, be it that something is not done yet. */
static int say(int result)
{
    if (result)
        last = result;
    return result;
}

static void open_driver(void)
{
    const char *file = getenv("FAKE_HIP_CUDA") ? getenv("FAKE_HIP_CUDA") : "libcuda.so.1";
    void *driver = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    opened = driver ? VENDOR_OK : VENDOR_ENODEVICE;
#define FIND(member, symbol, parameters)                                                          \
    if (opened == VENDOR_OK) {                                                                    \
        void *found = dlsym(driver, #symbol);                                                     \
        memcpy(&cuda.member, &found, sizeof found);                                               \
        opened = found ? VENDOR_OK : VENDOR_ENODEVICE;                                            \
    }
    CUDA_FUNCTIONS(FIND)
#undef FIND
}

int hipInit(unsigned flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    return say(opened ? opened : cuda.init(flags));
}

const char *hipGetErrorString(int result)
{
    const char *text = NULL;
    if (opened || !cuda.error_text)
        return "hipErrorNoDevice";
    return cuda.error_text(result, &text) ? "hipErrorUnknown" : text;
}

int hipGetLastError(void)
{
    int result = last;
    last = VENDOR_OK;
    return result;
}

int hipRuntimeGetVersion(int *version)
{
    *version = VERSION;
    return VENDOR_OK;
}

/* --- devices ---------------------------------------------------------------------------------------------- */

int hipGetDeviceCount(int *n)
{
    *n = 0;
    int result = cuda.device_count(n);
    return say(result == VENDOR_OK && *n == 0 ? VENDOR_ENODEVICE : result);
}

static int find(int ordinal, int *out)
{
    return ordinal < 0 || ordinal >= MOST ? VENDOR_EDEVICE : cuda.device_get(out, ordinal);
}

int hipDeviceGetName(char *name, int len, int ordinal)
{
    int at, result = find(ordinal, &at);
    return say(result ? result : cuda.device_name(name, len, at));
}

int hipDeviceTotalMem(size_t *bytes, int ordinal)
{
    int at, result = find(ordinal, &at);
    return say(result ? result : cuda.device_bytes(bytes, at));
}

int hipDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    int at, result = find(ordinal, &at);
    if (result == VENDOR_OK && attribute != HIP_DEVICE_WARP)
        result = VENDOR_EINVAL;
    *value = 64;
    return say(result);
}

/* In upper case, as AMD's does. */
int hipDeviceGetPCIBusId(char *pci, int len, int ordinal)
{
    int at, domain, bus, number, result = find(ordinal, &at);
    if (result == VENDOR_OK)
        result = cuda.device_attribute(&domain, CUDA_DEVICE_DOMAIN, at);
    if (result == VENDOR_OK)
        result = cuda.device_attribute(&bus, CUDA_DEVICE_BUS, at);
    if (result == VENDOR_OK)
        result = cuda.device_attribute(&number, CUDA_DEVICE_NUMBER, at);
    if (result == VENDOR_OK &&
        snprintf(pci, (size_t)len, "%04X:%02X:%02X.0", (unsigned)domain & 0xffff,
                 (unsigned)bus & 0xff, (unsigned)number & 0xff) >= len)
        result = VENDOR_EINVAL;
    return say(result);
}

int hipDeviceCanAccessPeer(int *can, int from, int to)
{
    int a, b, result = find(from, &a);
    if (result == VENDOR_OK)
        result = find(to, &b);
    return say(result ? result : cuda.device_peer(can, a, b));
}

int hipExtGetLinkTypeAndHopCount(int from, int to, uint32_t *link, uint32_t *hops)
{
    int a, b, atomic = 0, result = find(from, &a);
    if (result == VENDOR_OK)
        result = find(to, &b);
    if (result == VENDOR_OK)
        result = cuda.device_p2p(&atomic, CUDA_P2P_ATOMIC, a, b);
    *link = atomic ? HIP_LINK_XGMI : 2;
    *hops = 1;
    return say(result);
}

/* A device's context, which is kept once it was used. */
static int context_of(int ordinal, cuda_ctx_t *out)
{
    int at, result = find(ordinal, &at);
    pthread_mutex_lock(&lock);
    if (result == VENDOR_OK && !contexts[ordinal])
        result = cuda.ctx_retain(&contexts[ordinal], at);
    *out = result ? NULL : contexts[ordinal];
    pthread_mutex_unlock(&lock);
    return result;
}

int hipSetDevice(int ordinal)
{
    int at, result = opened ? opened : find(ordinal, &at);
    if (result == VENDOR_OK)
        device = ordinal;
    return say(result);
}

int hipGetDevice(int *ordinal)
{
    *ordinal = device;
    return say(opened);
}

static int enter(void)
{
    cuda_ctx_t ctx;
    int result = context_of(device, &ctx);
    return result ? result : cuda.ctx_push(ctx);
}

static int leave(int result)
{
    cuda_ctx_t ctx;
    cuda.ctx_pop(&ctx);
    return say(result);
}

/* In the thread's device's context. */
#define DO(call)                                                                                  \
    do {                                                                                          \
        int entered = enter();                                                                    \
        return entered ? say(entered) : leave(call);                                              \
    } while (0)

/* --- streams and events ----------------------------------------------------------------------------------- */

/* The default one has no handle, and NVIDIA's handle of it is none here. */
static cuda_stream_t stream_of(void *stream)
{
    if (stream == (void *)1)
        abort();
    return stream ? stream : (cuda_stream_t)1;
}

int hipStreamCreateWithFlags(void **stream, unsigned flags)
{
    DO(cuda.stream_create((cuda_stream_t *)stream, flags));
}

int hipStreamDestroy(void *stream)
{
    DO(cuda.stream_destroy(stream));
}

int hipStreamSynchronize(void *stream)
{
    DO(cuda.stream_wait(stream_of(stream)));
}

static int device_of(cuda_stream_t stream, int *ordinal)
{
    cuda_ctx_t ctx;
    int result = cuda.stream_ctx(stream, &ctx);
    for (*ordinal = MOST; result == VENDOR_OK && --*ordinal >= 0;)
        if (contexts[*ordinal] == ctx)
            return VENDOR_OK;
    return result ? result : VENDOR_EINVAL;
}

#ifdef FAKE_HIP_OLD
int hipGetStreamDeviceId(void *stream)
{
    int ordinal;
    return device_of(stream, &ordinal) ? -1 : ordinal;
}
#else
int hipStreamGetDevice(void *stream, int *ordinal)
{
    DO(device_of(stream, ordinal));
}
#endif

#ifndef FAKE_HIP_OLD /* an older one than that may have none */
int hipThreadExchangeStreamCaptureMode(int *mode)
{
    DO(cuda.capture_mode(mode));
}
#endif

int hipEventCreateWithFlags(void **event, unsigned flags)
{
    DO(cuda.event_create((cuda_event_t *)event, flags));
}

int hipEventDestroy(void *event)
{
    DO(cuda.event_destroy(event));
}

int hipEventRecord(void *event, void *stream)
{
    DO(cuda.event_record(event, stream_of(stream)));
}

int hipEventQuery(void *event)
{
    return say(cuda.event_query(event));
}

int hipMemcpyAsync(void *dst, const void *src, size_t len, int kind, void *stream)
{
    if (kind != HIP_COPY_ANY)
        return say(VENDOR_EINVAL);
    DO(cuda.copy((uintptr_t)dst, (uintptr_t)src, len, stream_of(stream)));
}

/* --- memory ----------------------------------------------------------------------------------------------- */

int hipMalloc(void **addr, size_t len)
{
    DO(cuda.mem_alloc((cuda_addr *)addr, len));
}

int hipFree(void *addr)
{
    DO(cuda.mem_free((uintptr_t)addr));
}

struct known {
    unsigned type, managed;
    int ordinal;
    cuda_addr base;
    size_t len;
};

static int look(const void *addr, struct known *what)
{
    int attributes[] = {CUDA_OF_TYPE, CUDA_OF_MANAGED, CUDA_OF_ORDINAL, CUDA_OF_BASE,
                        CUDA_OF_SIZE};
    *what = (struct known){.ordinal = -1};
    void *values[] = {&what->type, &what->managed, &what->ordinal, &what->base, &what->len};
    return opened ? opened : cuda.mem_attributes(5, attributes, values, (uintptr_t)addr);
}

int hipMemGetAddressRange(void **base, size_t *len, void *addr)
{
    struct known what;
    int result = look(addr, &what);
    *base = (void *)(uintptr_t)what.base;
    *len = what.len;
    return say(result == VENDOR_OK && !what.base ? VENDOR_EINVAL : result);
}

/* Of an address that it does not know an older runtime has nothing to tell. */
int hipPointerGetAttributes(struct hip_pointer *out, const void *addr)
{
    struct known what;
    int result = look(addr, &what);
    memset(out, 0, sizeof *out);
    out->device = what.ordinal;
    out->managed = (int)what.managed;
    if (result == VENDOR_OK && what.type == CUDA_TYPE_DEVICE)
        out->type = numbers()->device;
    else if (result == VENDOR_OK && what.type == CUDA_TYPE_HOST)
        out->type = numbers()->host;
    else if (result == VENDOR_OK && VERSION < HIP_VERSION_6)
        result = VENDOR_EINVAL;
    return say(result);
}

/* What is pinned already is no error, and the end of one is the end of the other, as with AMD's. */
int hipHostRegister(void *host, size_t len, unsigned flags)
{
    int result = enter();
    if (result == VENDOR_OK)
        result = leave(cuda.host_register(host, len, flags));
    return say(result == VENDOR_EREGISTERED ? VENDOR_OK : result);
}

int hipHostUnregister(void *host)
{
    DO(cuda.host_unregister(host));
}

int hipHostGetDevicePointer(void **addr, void *host, unsigned flags)
{
    DO(cuda.host_addr((cuda_addr *)addr, host, flags));
}

/* --- kernels ---------------------------------------------------------------------------------------------- */

/* It has to be NVIDIA's (WEFT_HIP_KERNELS), unless their driver is a double. */
int hipModuleLoadData(void **module, const void *image)
{
    DO(cuda.module_load(module, image));
}

int hipModuleUnload(void *module)
{
    DO(cuda.module_unload(module));
}

int hipModuleGetFunction(void **kernel, void *module, const char *name)
{
    DO(cuda.module_kernel(kernel, module, name));
}

int hipModuleLaunchKernel(void *kernel, unsigned bx, unsigned by, unsigned bz, unsigned tx,
                          unsigned ty, unsigned tz, unsigned shared, void *stream, void **args,
                          void **extra)
{
    DO(cuda.launch(kernel, bx, by, bz, tx, ty, tz, shared, stream_of(stream), args, extra));
}

/* --- memory of other processes ---------------------------------------------------------------------------- */

int hipIpcGetMemHandle(struct hip_ipc *handle, void *addr)
{
    DO(cuda.ipc_get((struct cuda_ipc *)handle, (uintptr_t)addr));
}

int hipIpcOpenMemHandle(void **addr, struct hip_ipc handle, unsigned flags)
{
    struct cuda_ipc same;
    memcpy(&same, &handle, sizeof same);
    if (flags != numbers()->ipc_peers)
        return say(VENDOR_EINVAL);
    DO(cuda.ipc_open((cuda_addr *)addr, same, CUDA_IPC_PEERS));
}

int hipIpcCloseMemHandle(void *addr)
{
    DO(cuda.ipc_close((uintptr_t)addr));
}

#ifndef FAKE_HIP_OLD
/* The whole allocation, as the HSA runtime does it; not 0: of no kind that AMD's errors have. */
int hsa_amd_portable_export_dmabuf(const void *addr, size_t len, int *fd, uint64_t *offset)
{
    struct known what;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int result = look(addr, &what) ? VENDOR_EINVAL : enter();
    if (result)
        return 4096;
    *offset = (uintptr_t)addr - what.base;
    result = cuda.mem_handle(fd, what.base, (*offset + len + page - 1) / page * page,
                             CUDA_HANDLE_DMABUF, 0);
    leave(VENDOR_OK);
    return result ? 4096 : 0;
}
#endif
