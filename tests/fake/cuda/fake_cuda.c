/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for machines without a GPU. Device memory is reserved addresses that cannot be touched, and bytes that lie
 * somewhere else: a program that takes one for the host's memory ends. README.md has its settings.
 */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu/cuda/cuda_api.h"
#include "gpu/kernels/copy.h"
#include "gpu/vendor/vendor_result.h"

#define ALIGN 512 /* as the driver's */
#define MOST 4096 /* allocations */
#define PAGE 4096u

#pragma GCC visibility push(default)
#define DECLARE(member, symbol, parameters) int symbol parameters;
CUDA_FUNCTIONS(DECLARE)
CUDA_GRAPH_FUNCTIONS(DECLARE)
/* which tests ask for */
int cuMemGetInfo_v2(size_t *bytes, size_t *total);
int cuCtxEnablePeerAccess(cuda_ctx_t peer, unsigned flags);
int cuMemCreate(uint64_t *handle, size_t len, const struct cuda_segment_prop *prop,
                uint64_t flags);
int cuStreamBeginCapture_v2(cuda_stream_t stream, int mode);
int cuStreamEndCapture(cuda_stream_t stream, void **graph);
#undef DECLARE
#pragma GCC visibility pop

/* What the driver says, by numbers that cuda_api.h has no need of. */
enum {
    NO_CONTEXT = 201,
    NO_BINARY = 209,
    NOT_FOUND = 500,
    NOT_REGISTERED = 713,
    LOST = 719,
    CAPTURED = 900,
    BROKEN = 901
};

/* Physical memory, which is mapped where the program wants it. */
struct segment {
    size_t len;
    int fd, device, refs;
    bool exports;
};

struct alloc {
    uint8_t *addr, *bytes; /* of the device; where the bytes are. NULL: a free place */
    size_t len, mapped;
    int fd, device;
    struct segment *segment; /* mapped by the program, or NULL */
    unsigned allowed;        /* then: the devices that may touch it, as bits */
};

struct settings {
    unsigned devices, init, dmabuf, lost_after, delay, pins, peers, ipc, kernels, foreign, shift,
        bytes, words, graphs, streams;
    size_t memory;
    const struct settings *older;
};
static const struct settings preset = {.devices = 1,
                                       .dmabuf = 1,
                                       .delay = 2,
                                       .pins = 64,
                                       .peers = 2,
                                       .ipc = 2,
                                       .kernels = 1,
                                       .bytes = 1,
                                       .words = 1,
                                       .graphs = 2,
                                       .streams = UINT_MAX,
                                       .memory = (size_t)1 << 30};
/* Read at any time, also while the driver is started again. */
static _Atomic(const struct settings *) set = &preset;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(int) started; /* by this process */
static struct alloc allocs[MOST];
static int allocs_end; /* none from here on is in use */
static size_t used;
static unsigned copies, launches, asked, mixed;
static bool faulted; /* a kernel has touched what its device does not reach: nothing goes on */
static int retained[8];
static _Atomic(unsigned) streams, odd;
static struct pin {
    uint8_t *host; /* NULL: a free place */
    size_t len;
    unsigned shift;
    bool words; /* were written there */
} pinned[64];
static __thread long current[16]; /* devices + 1 */
static __thread unsigned depth;

/* --- captures: nothing is captured, but a call that could wait for what is breaks it --------------------------- */

static _Atomic(cuda_stream_t) captured; /* NULL: none is under way, else it is for all threads */
static atomic_bool broken;
static __thread int mode; /* 0: the thread is told of all captures */

int cuThreadExchangeStreamCaptureMode(int *other)
{
    int before = mode;
    if (*other < 0 || *other > VENDOR_CAPTURE_RELAXED)
        return VENDOR_EINVAL;
    mode = *other;
    *other = before;
    return VENDOR_OK;
}

int cuStreamBeginCapture_v2(cuda_stream_t stream, int for_whom)
{
    if (for_whom || !stream || captured)
        return VENDOR_EINVAL;
    broken = false;
    captured = stream;
    return VENDOR_OK;
}

int cuStreamEndCapture(cuda_stream_t stream, void **graph)
{
    if (!stream || stream != captured)
        return VENDOR_EINVAL;
    captured = NULL;
    *graph = NULL;
    return broken ? BROKEN : VENDOR_OK;
}

/* Seen with the driver 580: queries, what waits, what makes or frees memory, cuGraphInstantiate. */
static bool breaks_capture(void)
{
    bool breaks = captured && mode == 0;
    if (breaks)
        broken = true;
    return breaks;
}

static void read_settings(void)
{
    struct settings now = preset;
    char *copy = strdup(getenv("FAKE_CUDA") ? getenv("FAKE_CUDA") : ""), *save = NULL;
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        unsigned long long value = strchr(item, '=') ? strtoull(strchr(item, '=') + 1, NULL, 0) : 0;
        if (!strncmp(item, "devices=", 8))
            now.devices = (unsigned)value;
        else if (!strncmp(item, "init=", 5))
            now.init = (unsigned)value;
        else if (!strncmp(item, "dmabuf=", 7))
            now.dmabuf = (unsigned)value;
        else if (!strncmp(item, "memory=", 7))
            now.memory = value;
        else if (!strncmp(item, "delay=", 6))
            now.delay = (unsigned)value;
        else if (!strncmp(item, "pins=", 5))
            now.pins = (unsigned)value;
        else if (!strncmp(item, "peers=", 6))
            now.peers = (unsigned)value;
        else if (!strncmp(item, "ipc=", 4))
            now.ipc = (unsigned)value;
        else if (!strncmp(item, "kernels=", 8))
            now.kernels = (unsigned)value;
        else if (!strncmp(item, "foreign=", 8))
            now.foreign = (unsigned)value;
        else if (!strncmp(item, "shift=", 6))
            now.shift = (unsigned)value;
        else if (!strncmp(item, "bytes=", 6))
            now.bytes = (unsigned)value;
        else if (!strncmp(item, "words=", 6))
            now.words = (unsigned)value;
        else if (!strncmp(item, "graphs=", 7))
            now.graphs = (unsigned)value;
        else if (!strncmp(item, "streams=", 8))
            now.streams = (unsigned)value;
        else if (!strncmp(item, "lost=", 5))
            now.lost_after = (unsigned)value;
        else
            fprintf(stderr, "fake cuda: there is no setting %s\n", item);
    }
    free(copy);
    struct settings *next = malloc(sizeof *next);
    now.older = set;
    *next = now;
    set = next;
}

int cuInit(unsigned flags)
{
    read_settings();
    if (flags)
        return VENDOR_EINVAL;
    if (set->init)
        return (int)set->init;
    if (started && started != getpid())
        return VENDOR_ESTARTED;
    started = getpid();
    return set->devices ? VENDOR_OK : VENDOR_ENODEVICE;
}

int cuGetErrorString(int result, const char **text)
{
    static const struct {
        int result;
        const char *text;
    } known[] = {{VENDOR_ENODEVICE, "no CUDA-capable device is detected"},
                 {VENDOR_ENOMEM, "out of memory"},
                 {VENDOR_EINVAL, "invalid argument"},
                 {VENDOR_ESTUB, "stub library"},
                 {VENDOR_EUNSUPPORTED, "operation not supported"},
                 {LOST, "unspecified launch failure"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].result == result) {
            *text = known[i].text;
            return VENDOR_OK;
        }
    return VENDOR_EINVAL;
}

/* --- devices and contexts -------------------------------------------------------------------------------- */

int cuDeviceGetCount(int *n)
{
    if (started != getpid())
        return VENDOR_ESTARTED;
    *n = (int)set->devices;
    return VENDOR_OK;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= (int)set->devices)
        return VENDOR_EDEVICE;
    *device = ordinal;
    return VENDOR_OK;
}

static bool is_device(int device)
{
    return device >= 0 && device < (int)set->devices;
}

int cuDeviceGetName(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "Double %d", device);
    return is_device(device) ? VENDOR_OK : VENDOR_EDEVICE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = set->memory;
    return is_device(device) ? VENDOR_OK : VENDOR_EDEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == CUDA_DEVICE_WARP     ? 32
             : attribute == CUDA_DEVICE_BUS    ? 0x17 + device
             : attribute == CUDA_DEVICE_DOMAIN ? 1
                                               : 0;
    return is_device(device) ? VENDOR_OK : VENDOR_EDEVICE;
}

int cuDeviceCanAccessPeer(int *can, int device, int other)
{
    *can = set->peers > 0;
    return is_device(device) && is_device(other) ? VENDOR_OK : VENDOR_EDEVICE;
}

int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int other)
{
    *value = attribute == CUDA_P2P_ATOMIC && set->peers > 1;
    return is_device(device) && is_device(other) ? VENDOR_OK : VENDOR_EDEVICE;
}

int cuDevicePrimaryCtxRetain(cuda_ctx_t *ctx, int device)
{
    __atomic_fetch_add(&retained[device], 1, __ATOMIC_SEQ_CST);
    *ctx = (cuda_ctx_t)(intptr_t)(device + 1);
    return VENDOR_OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return __atomic_fetch_sub(&retained[device], 1, __ATOMIC_SEQ_CST) > 0 ? VENDOR_OK : NO_CONTEXT;
}

int cuCtxPushCurrent_v2(cuda_ctx_t ctx)
{
    if (depth == sizeof current / sizeof *current || !ctx)
        return NO_CONTEXT;
    current[depth++] = (long)(intptr_t)ctx;
    return VENDOR_OK;
}

int cuCtxPopCurrent_v2(cuda_ctx_t *ctx)
{
    if (!depth)
        return NO_CONTEXT;
    *ctx = (cuda_ctx_t)(intptr_t)current[--depth];
    return VENDOR_OK;
}

/* The device whose context is the thread's; below 0: none. */
static int device_of(void)
{
    return depth ? (int)current[depth - 1] - 1 : -1;
}

/* --- memory ---------------------------------------------------------------------------------------------- */

/* With the lock held. */
static struct alloc *alloc_of(cuda_addr addr)
{
    for (int i = 0; i < allocs_end; i++)
        if (allocs[i].bytes && addr - (uintptr_t)allocs[i].addr < allocs[i].len)
            return &allocs[i];
    return NULL;
}

/* One that is not in use, or NULL. */
static struct alloc *unused(void)
{
    for (int i = 0; i < MOST; i++)
        if (!allocs[i].bytes) {
            allocs_end = i < allocs_end ? allocs_end : i + 1;
            return &allocs[i];
        }
    return NULL;
}

static int map(struct alloc *alloc, size_t len)
{
    alloc->mapped = (len + PAGE - 1) / PAGE * PAGE;
    void *bytes = mmap(NULL, alloc->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, alloc->fd, 0);
    void *addr = mmap(NULL, alloc->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED || addr == MAP_FAILED)
        return VENDOR_ENOMEM;
    alloc->bytes = bytes;
    alloc->addr = addr;
    alloc->len = len;
    return VENDOR_OK;
}

static int make(struct alloc *alloc, size_t len)
{
    alloc->fd = memfd_create("gpu", MFD_CLOEXEC);
    if (alloc->fd < 0 || ftruncate(alloc->fd, (off_t)((len + PAGE - 1) / PAGE * PAGE)) || map(alloc, len))
        return VENDOR_ENOMEM;
    memset(alloc->bytes, 0xa5, alloc->mapped);
    return VENDOR_OK;
}

/* What begins here. own: it is of this process's own. */
static int drop(cuda_addr addr, bool own)
{
    int rc = VENDOR_EINVAL;
    pthread_mutex_lock(&lock);
    struct alloc *alloc = alloc_of(addr);
    if (alloc && (uintptr_t)alloc->addr == addr && !alloc->segment) {
        munmap(alloc->addr, alloc->mapped);
        munmap(alloc->bytes, alloc->mapped);
        close(alloc->fd);
        used -= own ? alloc->len : 0;
        *alloc = (struct alloc){0};
        rc = VENDOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemAlloc_v2(cuda_addr *addr, size_t len)
{
    if (breaks_capture())
        return CAPTURED;
    int device = device_of(), rc = VENDOR_ENOMEM;
    if (device < 0)
        return NO_CONTEXT;
    pthread_mutex_lock(&lock);
    struct alloc *alloc = len <= set->memory - used ? unused() : NULL;
    if (alloc) {
        alloc->device = device;
        rc = make(alloc, len);
    }
    if (rc == VENDOR_OK) {
        used += len;
        *addr = (uintptr_t)alloc->addr;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Weft needs no such access: its copies are the driver's, and it maps by handles. For programs that do (bench/bare_cuda.c). */
int cuCtxEnablePeerAccess(cuda_ctx_t peer, unsigned flags)
{
    enum { UNREACHED = 217 };
    if (device_of() < 0)
        return NO_CONTEXT;
    return flags || !peer ? VENDOR_EINVAL : set->peers ? VENDOR_OK : UNREACHED;
}

/* What this process has of them, and has mapped. */
int cuMemGetInfo_v2(size_t *bytes, size_t *total)
{
    pthread_mutex_lock(&lock);
    *total = set->memory;
    *bytes = set->memory;
    for (int i = 0; i < allocs_end; i++) /* what nothing is mapped to is not counted */
        *bytes -= allocs[i].bytes ? allocs[i].len : 0;
    pthread_mutex_unlock(&lock);
    return device_of() < 0 ? NO_CONTEXT : VENDOR_OK;
}

int cuMemFree_v2(cuda_addr addr)
{
    if (breaks_capture())
        return CAPTURED;
    return drop(addr, true);
}

int cuMemGetAddressRange_v2(cuda_addr *base, size_t *size, cuda_addr addr)
{
    pthread_mutex_lock(&lock);
    const struct alloc *alloc = alloc_of(addr);
    if (alloc) {
        *base = (uintptr_t)alloc->addr;
        *size = alloc->len;
    }
    pthread_mutex_unlock(&lock);
    return alloc ? VENDOR_OK : VENDOR_EINVAL;
}

static struct pin *pin_of(const uint8_t *host, size_t len);

/* Of an address that it does not know all are 0, as the driver has it. */
int cuPointerGetAttributes(unsigned n, int *attributes, void **values, cuda_addr addr)
{
    if (started != getpid())
        return VENDOR_ESTARTED;
    pthread_mutex_lock(&lock);
    const struct alloc *alloc = alloc_of(addr);
    const struct pin *pin = alloc ? NULL : pin_of((const uint8_t *)(uintptr_t)addr, 1);
    for (unsigned i = 0; i < n; i++)
        switch (attributes[i]) {
        case CUDA_OF_TYPE:
            *(unsigned *)values[i] = alloc ? CUDA_TYPE_DEVICE : pin ? CUDA_TYPE_HOST : 0;
            break;
        case CUDA_OF_CONTEXT:
            *(intptr_t *)values[i] = alloc && !alloc->segment
                                         ? alloc->device + 1 + (set->foreign ? 100 : 0)
                                         : 0;
            break;
        case CUDA_OF_MANAGED:
            *(unsigned *)values[i] = 0;
            break;
        case CUDA_OF_ORDINAL:
            *(int *)values[i] = alloc ? alloc->device : -2;
            break;
        case CUDA_OF_BASE:
            *(cuda_addr *)values[i] = (uintptr_t)(alloc ? alloc->addr : pin ? pin->host : NULL);
            break;
        case CUDA_OF_SIZE:
            *(size_t *)values[i] = alloc ? alloc->len : pin ? pin->len : 0;
            break;
        default:
            break;
        }
    pthread_mutex_unlock(&lock);
    return VENDOR_OK;
}

int cuMemGetHandleForAddressRange(void *handle, cuda_addr addr, size_t len, int kind, uint64_t flags)
{
    int rc = VENDOR_EINVAL;
    if (!set->dmabuf)
        return VENDOR_EUNSUPPORTED;
    pthread_mutex_lock(&lock);
    const struct alloc *alloc = alloc_of(addr);
    if (alloc && kind == CUDA_HANDLE_DMABUF && flags == 0 && addr % PAGE == 0 && len % PAGE == 0 &&
        addr == (uintptr_t)alloc->addr && len <= alloc->mapped) {
        *(int *)handle = dup(alloc->fd);
        rc = VENDOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Where the bytes of len from here are; an address that is no device's is the host's. With the lock held. */
static uint8_t *bytes_of(cuda_addr addr, size_t len)
{
    const struct alloc *alloc = alloc_of(addr);
    if (!alloc)
        return (uint8_t *)(uintptr_t)addr;
    size_t at = addr - (uintptr_t)alloc->addr;
    return len <= alloc->len - at ? alloc->bytes + at : NULL;
}

/* May the device copy all of it? With the lock held. */
static bool is_good(cuda_addr addr, size_t len, int device)
{
    const struct alloc *alloc = alloc_of(addr);
    while (alloc && alloc->segment && (alloc->allowed >> device & 1) &&
           len > alloc->len - (addr - (uintptr_t)alloc->addr)) {
        size_t here = alloc->len -
                      (addr - (uintptr_t)alloc->addr); /* it goes on in the next one */
        addr += here;
        len -= here;
        alloc = alloc_of(addr);
        if (!alloc || !alloc->segment)
            return false;
    }
    return bytes_of(addr, len) && (!alloc || !alloc->segment || alloc->allowed >> device & 1);
}

/* With the lock held. */
static void move_bytes(cuda_addr dst, cuda_addr src, size_t len)
{
    while (len && set->bytes) {
        const struct alloc *to = alloc_of(dst), *from = alloc_of(src);
        size_t n = len, most = to ? to->len - (dst - (uintptr_t)to->addr) : len;
        n = n < most ? n : most;
        most = from ? from->len - (src - (uintptr_t)from->addr) : len;
        n = n < most ? n : most;
        memmove(bytes_of(dst, n), bytes_of(src, n), n);
        dst += n;
        src += n;
        len -= n;
    }
}

/* --- streams: what is queued happens when somebody asks for it, and not at the first time ------------------- */

struct queued {
    struct queued *next;
    cuda_addr dst, src;
    size_t len;
    struct cuda_event *event; /* instead of a copy */
    _Atomic(uint32_t) *word;  /* the same: it gets this value */
    uint32_t value;
};

struct cuda_stream {
    struct queued *head, **tail;
    int device;
    unsigned words;           /* that are queued */
    unsigned beats;           /* since the first of them was (worker) */
    struct cuda_stream *next; /* of those that words were queued on */
    bool listed;
    enum { NOWHERE, AMONG_DEVICES, FROM_HOST, TO_HOST, BOTH_HOST } goes; /* the last long copy on it */
};

struct cuda_event {
    struct cuda_stream *stream; /* it stands there; NULL: it has been reached */
    unsigned asked;
};

/* CU_STREAM_LEGACY is the default one of the context, CU_STREAM_PER_THREAD the thread's own there. With the lock held. */
static struct cuda_stream *stream_of(cuda_stream_t stream)
{
    static struct cuda_stream legacy[8];
    static __thread struct cuda_stream own[8];
    if ((intptr_t)stream != 1 && (intptr_t)stream != 2)
        return stream;
    int device = device_of() < 0 ? 0 : device_of();
    stream = (intptr_t)stream == 1 ? &legacy[device] : &own[device];
    if (!stream->tail)
        *stream = (struct cuda_stream){.tail = &stream->head, .device = device};
    return stream;
}

int cuStreamGetCtx(cuda_stream_t stream, cuda_ctx_t *ctx)
{
    if ((intptr_t)stream <= 2 && device_of() < 0)
        return NO_CONTEXT;
    pthread_mutex_lock(&lock);
    *ctx = (cuda_ctx_t)(intptr_t)(stream_of(stream)->device + 1);
    pthread_mutex_unlock(&lock);
    return VENDOR_OK;
}

int cuCtxGetDevice(int *device)
{
    if (device_of() < 0)
        return NO_CONTEXT;
    *device = device_of();
    return VENDOR_OK;
}

static bool lost(void)
{
    return faulted || (set->lost_after && copies >= set->lost_after);
}

int cuStreamCreate(cuda_stream_t *out, unsigned flags)
{
    if (device_of() < 0)
        return NO_CONTEXT;
    struct cuda_stream *stream = streams < set->streams ? calloc(1, sizeof *stream) : NULL;
    if (!stream)
        return VENDOR_ENOMEM;
    streams++;
    odd += flags != CUDA_STREAM_ALONE;
    stream->tail = &stream->head;
    stream->device = device_of();
    *out = stream;
    return VENDOR_OK;
}

static unsigned words; /* queued on all streams */

/* Up to this event, or all. With the lock held. */
static void run(struct cuda_stream *stream, const struct cuda_event *upto)
{
    for (struct queued *q; (q = stream->head);) {
        struct cuda_event *event = q->event;
        stream->head = q->next;
        if (!stream->head)
            stream->tail = &stream->head;
        if (event) {
            event->stream = NULL;
        } else if (q->word) {
            stream->words--;
            words--;
            if (!lost())
                atomic_store(q->word, q->value);
        } else if (q->len) {
            copies++;
            if (is_good(q->dst, q->len, stream->device) &&
                is_good(q->src, q->len, stream->device) && !lost())
                move_bytes(q->dst, q->src, q->len);
        }
        free(q);
        if (event && event == upto)
            return;
    }
}

static int queue(cuda_stream_t on, struct queued what)
{
    struct cuda_stream *stream = stream_of(on);
    struct queued *q = malloc(sizeof *q);
    if (!q)
        return VENDOR_ENOMEM;
    *q = what;
    *stream->tail = q;
    stream->tail = &q->next;
    return VENDOR_OK;
}

/* --- words: nobody asks for them, so what is before them happens by itself ------------------------------------- */

static struct cuda_stream *listed;
static pthread_cond_t some = PTHREAD_COND_INITIALIZER;

/* Every few microseconds while there are any; as often as `delay` says it lets what is queued wait. */
static void *worker(void *none)
{
    (void)none;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (words == 0)
            pthread_cond_wait(&some, &lock);
        for (struct cuda_stream *stream = listed; stream; stream = stream->next)
            if (stream->words && stream->beats++ >= set->delay) {
                run(stream, NULL);
                stream->beats = 0;
            }
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

/* With the lock held. */
static int work(struct cuda_stream *stream, struct pin *pin)
{
    static int working; /* in this process */
    pthread_t thread;
    if (working != getpid() && pthread_create(&thread, NULL, worker, NULL))
        return VENDOR_ENOMEM;
    if (working != getpid())
        pthread_detach(thread);
    working = getpid();
    if (!stream->listed) {
        stream->next = listed;
        listed = stream;
    }
    stream->listed = true;
    stream->words++;
    words++;
    pin->words = true;
    pthread_cond_signal(&some);
    return VENDOR_OK;
}

/* What the device has there. With the lock held. */
static struct pin *pin_at(cuda_addr addr)
{
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        if (pinned[i].host && addr - pinned[i].shift - (uintptr_t)pinned[i].host < pinned[i].len)
            return &pinned[i];
    return NULL;
}

int cuStreamWriteValue32_v2(cuda_stream_t on, cuda_addr word, uint32_t value, unsigned flags)
{
    if (device_of() < 0)
        return NO_CONTEXT;
    pthread_mutex_lock(&lock);
    struct pin *pin = pin_at(word);
    int rc = !set->words                        ? VENDOR_EUNSUPPORTED
             : flags || word % 4 || !on || !pin ? VENDOR_EINVAL
                                                : work(stream_of(on), pin);
    if (rc == VENDOR_OK)
        rc = queue(on, (struct queued){.word = (_Atomic(uint32_t) *)(uintptr_t)(word - pin->shift),
                                       .value = value});
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuStreamQuery(cuda_stream_t stream)
{
    if (breaks_capture())
        return CAPTURED;
    if (device_of() < 0)
        return NO_CONTEXT;
    pthread_mutex_lock(&lock);
    struct cuda_stream *of = stream_of(stream);
    if (lost()) /* who is told so frees what it was to copy: it is not for the day when a test mends the device */
        run(of, NULL);
    else if (of->head && !of->words && of->beats++ >= set->delay) { /* no word lets it happen by itself */
        run(of, NULL);
        of->beats = 0;
    }
    int rc = lost() ? LOST : of->head ? VENDOR_EBUSY : VENDOR_OK;
    asked++;
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuStreamDestroy_v2(cuda_stream_t stream)
{
    pthread_mutex_lock(&lock);
    run(stream, NULL);
    struct cuda_stream **at = &listed;
    while (*at && *at != stream)
        at = &(*at)->next;
    if (*at)
        *at = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    streams--;
    return VENDOR_OK;
}

int cuStreamSynchronize(cuda_stream_t stream)
{
    if (breaks_capture())
        return CAPTURED;
    pthread_mutex_lock(&lock);
    run(stream_of(stream), NULL);
    int rc = lost() ? LOST : VENDOR_OK;
    pthread_mutex_unlock(&lock);
    return rc;
}

#define LONG_BYTES ((size_t)64 << 10)

/* A copy of LONG_BYTES or more goes another way than the one before it on its stream. With the lock held. */
static void note_way(struct cuda_stream *stream, cuda_addr dst, cuda_addr src)
{
    bool to = !alloc_of(dst), from = !alloc_of(src);
    int goes = to && from ? BOTH_HOST : to ? TO_HOST : from ? FROM_HOST : AMONG_DEVICES;
    mixed += stream->goes != NOWHERE && (int)stream->goes != goes;
    stream->goes = goes;
}

int cuMemcpyAsync(cuda_addr dst, cuda_addr src, size_t len, cuda_stream_t stream)
{
    if (device_of() < 0 || !stream)
        return NO_CONTEXT;
    pthread_mutex_lock(&lock);
    int rc = VENDOR_EINVAL;
    int device = device_of();
    if (is_good(dst, len, device) && is_good(src, len, device))
        rc = queue(stream, (struct queued){.dst = dst, .src = src, .len = len});
    if (rc == VENDOR_OK && len >= LONG_BYTES)
        note_way(stream_of(stream), dst, src);
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuEventCreate(cuda_event_t *event, unsigned flags)
{
    if (device_of() < 0)
        return NO_CONTEXT;
    odd += flags != CUDA_EVENT_NO_TIMES;
    *event = calloc(1, sizeof **event);
    return *event ? VENDOR_OK : VENDOR_ENOMEM;
}

/* One that was not reached stays behind as nothing. */
int cuEventDestroy_v2(cuda_event_t event)
{
    pthread_mutex_lock(&lock);
    for (struct queued *q = event->stream ? event->stream->head : NULL; q; q = q->next)
        if (q->event == event)
            q->event = NULL;
    pthread_mutex_unlock(&lock);
    free(event);
    return VENDOR_OK;
}

int cuEventRecord(cuda_event_t event, cuda_stream_t stream)
{
    pthread_mutex_lock(&lock);
    event->stream = stream_of(stream);
    event->asked = 0;
    int rc = queue(stream, (struct queued){.event = event});
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuEventQuery(cuda_event_t event)
{
    if (breaks_capture())
        return CAPTURED;
    pthread_mutex_lock(&lock);
    int rc = VENDOR_OK;
    if (event->stream && event->asked++ < set->delay && !lost())
        rc = VENDOR_EBUSY;
    else if (event->stream)
        run(event->stream, event);
    if (rc == VENDOR_OK && lost())
        rc = LOST;
    asked++;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* --- the host's memory ----------------------------------------------------------------------------------- */

/* That shares a byte with these. */
static struct pin *pin_of(const uint8_t *host, size_t len)
{
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        if (pinned[i].host && host < pinned[i].host + pinned[i].len && pinned[i].host < host + len)
            return &pinned[i];
    return NULL;
}

int cuMemHostRegister_v2(void *host, size_t len, unsigned flags)
{
    if (breaks_capture())
        return CAPTURED;
    if (device_of() < 0)
        return NO_CONTEXT;
    odd += flags != (CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    pthread_mutex_lock(&lock);
    int rc = pin_of(host, len) ? VENDOR_EREGISTERED : VENDOR_ENOMEM;
    for (size_t i = 0; i < set->pins && rc == VENDOR_ENOMEM; i++)
        if (!pinned[i].host) {
            pinned[i] = (struct pin){host, len, set->shift, false};
            rc = VENDOR_OK;
        }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemHostUnregister(void *host)
{
    pthread_mutex_lock(&lock);
    struct pin *pin = pin_of(host, 1);
    int rc = pin && pin->host == host ? VENDOR_OK : NOT_REGISTERED;
    if (rc == VENDOR_OK)
        *pin = (struct pin){0};
    pthread_mutex_unlock(&lock);
    return rc;
}

__attribute__((visibility("default"))) int fake_cuda_pinned(void);
__attribute__((visibility("default"))) int fake_cuda_streams(void);
__attribute__((visibility("default"))) int fake_cuda_retained(void);
__attribute__((visibility("default"))) int fake_cuda_odd(void);

int fake_cuda_streams(void)
{
    return (int)streams;
}

int fake_cuda_retained(void)
{
    int n = 0;
    for (size_t i = 0; i < sizeof retained / sizeof *retained; i++)
        n += __atomic_load_n(&retained[i], __ATOMIC_SEQ_CST);
    return n;
}

int fake_cuda_odd(void)
{
    return (int)odd;
}

int fake_cuda_pinned(void)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        n += pinned[i].host && !pinned[i].words;
    pthread_mutex_unlock(&lock);
    return n;
}

int cuMemHostGetDevicePointer_v2(cuda_addr *addr, void *host, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    const struct pin *pin = pin_of(host, 1);
    *addr = (uintptr_t)host + (pin ? pin->shift : set->shift);
    pthread_mutex_unlock(&lock);
    return VENDOR_OK;
}

/* --- kernels: what weft_copy would do is queued as copies ------------------------------------------------- */

static int the_module, the_kernel;
static _Atomic(int) modules;

int cuModuleLoadData(void **module, const void *image)
{
    if (breaks_capture())
        return CAPTURED;
    int rc = device_of() < 0 ? NO_CONTEXT : image && set->kernels ? VENDOR_OK : NO_BINARY;
    *module = rc ? NULL : &the_module;
    modules += rc == VENDOR_OK;
    return rc;
}

int cuModuleUnload(void *module)
{
    if (module != &the_module)
        return VENDOR_EINVAL;
    modules--;
    return VENDOR_OK;
}

int cuModuleGetFunction(void **kernel, void *module, const char *name)
{
    *kernel = &the_kernel;
    return module == &the_module && strcmp(name, WEFT_COPY_KERNEL) == 0 ? VENDOR_OK : NOT_FOUND;
}

/* By kernels of this device: its own memory, what was mapped in its context, pinned memory of the host. With the lock held. */
static bool is_reached(cuda_addr addr, size_t len, int device)
{
    const struct alloc *alloc = alloc_of(addr);
    if (alloc && alloc->segment)
        return is_good(addr, len, device);
    if (alloc)
        return !set->foreign && len <= alloc->len - (addr - (uintptr_t)alloc->addr) &&
               alloc->device ==
                   device; /* that of the context in which it was mapped, if it is another process's */
    const uint8_t *host = (const uint8_t *)(uintptr_t)addr;
    const struct pin *pin = pin_of(host, len);
    return pin && !pin->shift && pin->host <= host && host + len <= pin->host + pin->len;
}

/* With the lock held. */
static int queue_copies(const struct weft_copy_args *args, cuda_stream_t stream, int device)
{
    uint32_t chunk = 0;
    int rc = VENDOR_OK;
    for (uint32_t i = 0; i < args->n && rc == VENDOR_OK; i++) {
        uint64_t len = args->range[i].len;
        faulted |= args->chunk[i] != chunk || !len ||
                   !is_reached(args->range[i].dst, len, device) ||
                   !is_reached(args->range[i].src, len, device);
        if (faulted)
            return VENDOR_OK; /* which is heard of later */
        chunk += (uint32_t)((len + WEFT_COPY_CHUNK - 1) / WEFT_COPY_CHUNK);
        rc = queue(stream, (struct queued){
                               .dst = args->range[i].dst, .src = args->range[i].src, .len = len});
    }
    faulted |= chunk != args->chunks;
    return rc;
}

int cuLaunchKernel(void *kernel, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty,
                   unsigned tz, unsigned shared, cuda_stream_t stream, void **args, void **extra)
{
    if (kernel != &the_kernel || !bx || by != 1 || bz != 1 || !tx || tx % 32 ||
        tx > WEFT_COPY_THREADS || ty != 1 || tz != 1 || shared || extra)
        return VENDOR_EINVAL;
    if (device_of() < 0)
        return NO_CONTEXT;
    pthread_mutex_lock(&lock);
    launches++;
    int rc = queue_copies(args[0], stream, device_of());
    pthread_mutex_unlock(&lock);
    return rc;
}

/* --- graphs, of one kernel each --------------------------------------------------------------------------- */

struct cuda_graph {
    struct cuda_kernel_node node;
    struct weft_copy_args args; /* a copy, as the driver's */
    const struct cuda_graph *of; /* what it was made from, if it is to be launched */
};
static unsigned graphs, graph_launches;

int cuGraphCreate(void **out, unsigned flags)
{
    if (flags)
        return VENDOR_EINVAL;
    if (device_of() < 0)
        return NO_CONTEXT;
    *out = set->graphs ? calloc(1, sizeof(struct cuda_graph)) : NULL;
    pthread_mutex_lock(&lock);
    graphs += *out != NULL;
    pthread_mutex_unlock(&lock);
    return *out ? VENDOR_OK : VENDOR_ENOMEM;
}

int cuGraphDestroy(void *graph)
{
    pthread_mutex_lock(&lock);
    graphs--;
    pthread_mutex_unlock(&lock);
    free(graph);
    return VENDOR_OK;
}

static int set_node(struct cuda_graph *graph, const struct cuda_kernel_node *node)
{
    if (node->kernel != &the_kernel || node->library_kernel || node->ctx)
        return VENDOR_EINVAL;
    graph->node = *node;
    memcpy(&graph->args, node->args[0], sizeof graph->args);
    return VENDOR_OK;
}

int cuGraphAddKernelNode_v2(void **out, void *graph, void *const *behind, size_t n,
                            const struct cuda_kernel_node *node)
{
    *out = graph; /* it has no other */
    return behind || n ? VENDOR_EINVAL : set_node(graph, node);
}

int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags)
{
    if (breaks_capture())
        return CAPTURED;
    int rc = flags ? VENDOR_EINVAL : cuGraphCreate(out, 0);
    if (rc == VENDOR_OK) {
        memcpy(*out, graph, sizeof(struct cuda_graph));
        ((struct cuda_graph *)*out)->of = graph;
    }
    return rc;
}

int cuGraphExecDestroy(void *exec)
{
    return cuGraphDestroy(exec);
}

int cuGraphUpload(void *exec, cuda_stream_t stream)
{
    return exec && stream ? VENDOR_OK : VENDOR_EINVAL;
}

int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const struct cuda_kernel_node *what)
{
    struct cuda_graph *graph = exec;
    return graph->of == node ? set_node(graph, what) : VENDOR_EINVAL;
}

int cuGraphLaunch(void *exec, cuda_stream_t stream)
{
    struct cuda_graph *graph = exec;
    const struct cuda_kernel_node *node = &graph->node;
    void *args[] = {&graph->args};
    if (set->graphs < 2)
        return VENDOR_EUNSUPPORTED;
    pthread_mutex_lock(&lock);
    graph_launches++;
    pthread_mutex_unlock(&lock);
    return cuLaunchKernel(node->kernel, node->blocks[0], node->blocks[1], node->blocks[2],
                          node->threads[0], node->threads[1], node->threads[2], node->shared_bytes,
                          stream, args, node->extra);
}

static int count(const unsigned *of)
{
    pthread_mutex_lock(&lock);
    int n = (int)*of;
    pthread_mutex_unlock(&lock);
    return n;
}

__attribute__((visibility("default"))) int fake_cuda_graphs(void);
__attribute__((visibility("default"))) int fake_cuda_graph_launches(void);

/* That are there now, and what was made of them to be launched. */
int fake_cuda_graphs(void)
{
    return count(&graphs);
}

/* Among fake_cuda_launches. */
int fake_cuda_graph_launches(void)
{
    return count(&graph_launches);
}

/* --- what tests ask for ------------------------------------------------------------------------------------ */

__attribute__((visibility("default"))) int fake_cuda_asked(void);
__attribute__((visibility("default"))) int fake_cuda_launches(void);
__attribute__((visibility("default"))) int fake_cuda_mixed(void);
__attribute__((visibility("default"))) int fake_cuda_modules(void);

/* Whether an event or a stream is done. */
int fake_cuda_asked(void)
{
    return count(&asked);
}

/* How often a stream had a long copy, and then one to or from elsewhere. */
int fake_cuda_mixed(void)
{
    return count(&mixed);
}

/* That are loaded now. */
int fake_cuda_modules(void)
{
    return modules;
}

int fake_cuda_launches(void)
{
    return count(&launches);
}

/* --- other processes -------------------------------------------------------------------------------------- */

struct shared {
    uint64_t magic;
    int pid, fd;
    size_t len;
};
#define MAGIC 0x0077656674677075u

int cuIpcGetMemHandle(struct cuda_ipc *handle, cuda_addr addr)
{
    int rc = VENDOR_EINVAL;
    pthread_mutex_lock(&lock);
    const struct alloc *alloc = alloc_of(addr);
    if (!set->ipc)
        rc = VENDOR_EUNSUPPORTED;
    else if (alloc && addr == (uintptr_t)alloc->addr && !alloc->segment) {
        struct shared shared = {.magic = MAGIC, .pid = getpid(), .fd = alloc->fd, .len = alloc->len};
        memset(handle, 0, sizeof *handle);
        memcpy(handle->bytes, &shared, sizeof shared);
        rc = VENDOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* The driver refuses to open what this process has exported. */
int cuIpcOpenMemHandle_v2(cuda_addr *addr, struct cuda_ipc handle, unsigned flags)
{
    struct shared shared;
    char path[64];
    int rc = VENDOR_EINVAL, device = device_of();
    memcpy(&shared, handle.bytes, sizeof shared);
    if (shared.magic != MAGIC || flags != CUDA_IPC_PEERS)
        return VENDOR_EINVAL;
    if (device < 0 || shared.pid == getpid())
        return NO_CONTEXT;
    if (set->ipc < 2)
        return VENDOR_EUNSUPPORTED;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.fd);
    pthread_mutex_lock(&lock);
    struct alloc *alloc = unused();
    if (alloc) {
        alloc->device = device;
        alloc->fd = open(path, O_RDWR | O_CLOEXEC);
        rc = alloc->fd < 0 ? VENDOR_EINVAL : map(alloc, shared.len);
    }
    if (rc == VENDOR_OK)
        *addr = (uintptr_t)alloc->addr;
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuIpcCloseMemHandle(cuda_addr addr)
{
    return drop(addr, false);
}

/* --- what a program maps by itself ------------------------------------------------------------------------ */

static struct segment *segment_of(uint64_t handle)
{
    return (struct segment *)(uintptr_t)handle;
}

/* With the lock held. */
static void segment_put(struct segment *segment)
{
    if (--segment->refs)
        return;
    close(segment->fd);
    free(segment);
}

/* Takes the descriptor. */
static struct segment *segment_make(int fd, size_t len, int device, bool exports)
{
    struct segment *segment = fd < 0 ? NULL : malloc(sizeof *segment);
    if (segment)
        *segment = (struct segment){
            .len = len, .fd = fd, .device = device, .refs = 1, .exports = exports};
    else if (fd >= 0)
        close(fd);
    return segment;
}

int cuMemCreate(uint64_t *handle, size_t len, const struct cuda_segment_prop *prop, uint64_t flags)
{
    char name[32];
    int device = prop->at_device;
    if (!len || len % PAGE || flags || prop->type != CUDA_SEGMENT_PINNED ||
        prop->at_kind != CUDA_AT_DEVICE || !is_device(device))
        return VENDOR_EINVAL;
    snprintf(name, sizeof name, "segment-%d", device); /* who imports it reads that */
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)len)) {
        close(fd);
        fd = -1;
    }
    struct segment *segment = segment_make(fd, len, device, prop->handles & CUDA_SEGMENT_FD);
    *handle = (uintptr_t)segment;
    return segment ? VENDOR_OK : VENDOR_ENOMEM;
}

int cuMemRelease(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    segment_put(segment_of(handle));
    pthread_mutex_unlock(&lock);
    return VENDOR_OK;
}

int cuMemRetainAllocationHandle(uint64_t *handle, void *addr)
{
    pthread_mutex_lock(&lock);
    const struct alloc *alloc = alloc_of((uintptr_t)addr);
    struct segment *segment = alloc ? alloc->segment : NULL;
    if (segment)
        segment->refs++;
    *handle = (uintptr_t)segment;
    pthread_mutex_unlock(&lock);
    return segment ? VENDOR_OK : VENDOR_EINVAL;
}

int cuMemExportToShareableHandle(void *out, uint64_t handle, int kind, uint64_t flags)
{
    const struct segment *segment = segment_of(handle);
    if (kind != CUDA_SEGMENT_FD || flags || !segment->exports || !set->ipc)
        return VENDOR_EINVAL;
    int fd = fcntl(segment->fd, F_DUPFD_CLOEXEC, 0);
    *(int *)out = fd;
    return fd < 0 ? VENDOR_ENOMEM : VENDOR_OK;
}

int cuMemImportFromShareableHandle(uint64_t *handle, void *in, int kind)
{
    char path[64], name[64] = "";
    struct stat stat;
    int fd = (int)(intptr_t)in, device = -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, name, sizeof name - 1);
    if (kind != CUDA_SEGMENT_FD || n < 0 || sscanf(name, "/memfd:segment-%d", &device) != 1 ||
        !is_device(device) || fstat(fd, &stat) || set->ipc < 2)
        return VENDOR_EINVAL;
    struct segment *segment = segment_make(fcntl(fd, F_DUPFD_CLOEXEC, 0), (size_t)stat.st_size,
                                           device, true);
    *handle = (uintptr_t)segment;
    return segment ? VENDOR_OK : VENDOR_ENOMEM;
}

int cuMemAddressReserve(cuda_addr *addr, size_t len, size_t alignment, cuda_addr at,
                        uint64_t flags)
{
    if (!len || len % PAGE || alignment || at || flags)
        return VENDOR_EINVAL;
    void *made = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *addr = made == MAP_FAILED ? 0 : (uintptr_t)made;
    return made == MAP_FAILED ? VENDOR_ENOMEM : VENDOR_OK;
}

int cuMemAddressFree(cuda_addr addr, size_t len)
{
    int rc = VENDOR_OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < allocs_end && rc == VENDOR_OK; i++)
        if (allocs[i].bytes && (uintptr_t)allocs[i].addr - addr < len)
            rc = VENDOR_EINVAL; /* something is mapped there */
    pthread_mutex_unlock(&lock);
    return rc ? rc : munmap((void *)(uintptr_t)addr, len) ? VENDOR_EINVAL : VENDOR_OK;
}

int cuMemMap(cuda_addr addr, size_t len, size_t offset, uint64_t handle, uint64_t flags)
{
    struct segment *segment = segment_of(handle);
    int rc = VENDOR_ENOMEM;
    if (offset || flags || addr % PAGE || !len || len % PAGE || len > segment->len)
        return VENDOR_EINVAL;
    pthread_mutex_lock(&lock);
    struct alloc *alloc = unused();
    void *bytes = alloc ? mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0) : MAP_FAILED;
    if (bytes != MAP_FAILED) {
        segment->refs++;
        *alloc = (struct alloc){.addr = (uint8_t *)(uintptr_t)addr,
                                .bytes = bytes,
                                .len = len,
                                .mapped = len,
                                .fd = -1,
                                .device = segment->device,
                                .segment = segment};
        rc = VENDOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemUnmap(cuda_addr addr, size_t len)
{
    pthread_mutex_lock(&lock);
    struct alloc *alloc = alloc_of(addr);
    bool is = alloc && alloc->segment && (uintptr_t)alloc->addr == addr && alloc->len == len;
    if (is) {
        munmap(alloc->bytes, alloc->mapped);
        segment_put(alloc->segment);
        *alloc = (struct alloc){0};
    }
    pthread_mutex_unlock(&lock);
    return is ? VENDOR_OK : VENDOR_EINVAL;
}

int cuMemSetAccess(cuda_addr addr, size_t len, const struct cuda_access *access, size_t n)
{
    size_t reached = 0;
    if (n != 1 || access->kind != CUDA_AT_DEVICE || !is_device(access->device) ||
        access->may != CUDA_READ_WRITE)
        return VENDOR_EINVAL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < allocs_end; i++)
        if (allocs[i].segment && (uintptr_t)allocs[i].addr - addr < len) {
            allocs[i].allowed |= 1u << access->device;
            reached += allocs[i].len;
        }
    pthread_mutex_unlock(&lock);
    return reached == len ? VENDOR_OK : VENDOR_EINVAL;
}
