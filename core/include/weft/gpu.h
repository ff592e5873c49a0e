/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU interface: what a folder under gpu/ implements.
 *
 * gpu/host implements it on plain process memory, so everything above it runs on a machine that
 * has no GPU; gpu/cuda and gpu/hip implement it over the vendors' libraries, opened with dlopen.
 *
 * Threads: every function may be called from any thread; a context serves many threads at once.
 * Errors: a negative code and a sentence (weft_fail in weft/transport.h). Nothing aborts.
 */
#ifndef WEFT_GPU_H
#define WEFT_GPU_H

#include "weft/base.h"
#include "weft/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An opened device. First member of a backend's own struct. */
struct weft_gpu {
    const struct weft_gpu_backend *backend;
    int ordinal;
};

/* Where an address lives. */
struct weft_gpu_range {
    void *base;    /* start of the allocation that contains it */
    uint64_t len;  /* of that allocation */
    uint32_t kind; /* WEFT_MEM_*: how a nic would register it */
    int ordinal;   /* device that owns it, -1: host memory */
    int reached; /* 1: a context of the backend on that device reaches it with kernels; known once there is one */
};

#define WEFT_GPU_IPC_BYTES 128

/*
 * probe: count devices.
 * Returns: number of usable devices; 0 with the reason in weft_last_error; or a negative code.
 *          Makes no context and leaves no memory allocated on any device.
 */
typedef int weft_gpu_probe_fn(void);

/*
 * present (optional): 1: this process uses such GPUs, so that asking for them costs nothing; else 0. It does not
 * load a vendor's library. Default: 0.
 */
typedef int weft_gpu_present_fn(void);

/*
 * describe, link (optional): what a device is, and how one reaches another's memory (enum weft_gpu_link, or a code).
 * Make no context. Default: its number; WEFT_GPU_LINK_NONE.
 */
struct weft_gpu_device {
    char name[64];
    char pci[16];   /* "0000:3b:00.0", or "" */
    uint64_t bytes; /* of its memory, 0 unknown */
    uint32_t wave;  /* threads that go in step, 0 unknown */
};
typedef int weft_gpu_describe_fn(int ordinal, struct weft_gpu_device *device);
typedef int weft_gpu_link_fn(int from, int to);

/* open: make a context on one device (0 <= ordinal < probe()). Returns 0 or a code. */
typedef int weft_gpu_open_fn(int ordinal, struct weft_gpu **gpu);
/* close: give it back; its allocations and mappings are freed before. Marks that were not reached end. */
typedef void weft_gpu_close_fn(struct weft_gpu *gpu);

/* alloc: device memory, at least 256-byte aligned, len > 0. Returns 0, -ENOMEM or a code. */
typedef int weft_gpu_alloc_fn(struct weft_gpu *gpu, uint64_t len, void **addr);
/* free: give device memory back. NULL is allowed. */
typedef void weft_gpu_free_fn(struct weft_gpu *gpu, void *addr);

/*
 * query: does this backend own the memory at addr?
 * Returns: 1 and a filled range if device or backend-managed memory, 0 if it is not known to this
 *          backend (plain host memory), or a negative code.
 */
typedef int weft_gpu_query_fn(const void *addr, struct weft_gpu_range *range);

/*
 * copy: move len bytes between any two of host and device memory.
 * Returns: 0 when the bytes are there (stream NULL), or when the copy is queued on the caller's
 *          stream (non-NULL, the vendor's stream handle); or a code.
 */
typedef int weft_gpu_copy_fn(struct weft_gpu *gpu, void *dst, const void *src, uint64_t len,
                             void *stream);

/*
 * copy_start (optional): begin copies, in any order and at once, and do not wait. Host memory that is not
 * mapped (host_map) may be read before it returns.
 * flags: WEFT_GPU_REACHED, the device's own kernels reach all of it at these addresses: its own memory of which query says
 *        so (`reached`), what ipc_open of this context has mapped, and host memory whose host_map of any context gave the same address. A backend may copy
 *        with one kernel what is many and short.
 *        WEFT_GPU_FROM_HOST or WEFT_GPU_TO_HOST: every source, or every destination, is memory of the host. It says where the bytes
 *        go, nothing else: a backend may keep apart what a device copies both ways at once.
 * Owns:    the list is the caller's when it returns; the memory is the backend's until copy_done says so.
 * Returns: 0 and *job, NULL if all is done; or a code, with nothing under way.
 * Default: copies as `copy` without a stream does.
 */
struct weft_gpu_copy {
    void *dst;
    const void *src;
    uint64_t len;
};
struct weft_gpu_job; /* the backend's */
enum { WEFT_GPU_REACHED = 1, WEFT_GPU_FROM_HOST = 2, WEFT_GPU_TO_HOST = 4 };
typedef int weft_gpu_copy_start_fn(struct weft_gpu *gpu, const struct weft_gpu_copy *list, int n,
                                   uint32_t flags, struct weft_gpu_job **job);
/* copy_done (with copy_start): 1: all bytes are there; 0: not yet; or a code: the device failed and touches
 * the memory no more. The job is gone unless it is 0. Does not wait. */
typedef int weft_gpu_copy_done_fn(struct weft_gpu *gpu, struct weft_gpu_job *job);

/*
 * stream_gpu, mark (optional, together): whose a caller's stream is, WEFT_STREAM_DEFAULT too; and a job that has ended
 * when what is queued on the stream now has. copy_done tells, with a code if that failed. Neither waits.
 * Default: WEFT_EUNSUPPORTED.
 */
typedef int weft_gpu_stream_gpu_fn(void *stream, int *ordinal);
typedef int weft_gpu_mark_fn(struct weft_gpu *gpu, void *stream, struct weft_gpu_job **job);

/* launch: run a kernel of the built-in module by name, args as one plain struct (gpu/kernels). Done on return if stream is
 * NULL, else queued there. WEFT_EUNSUPPORTED if the backend has no kernel of that name, -EINVAL if its struct has
 * another length (0, to ask whether it is there). */
struct weft_gpu_launch {
    const char *kernel;
    const void *args;
    size_t args_len;
    uint32_t blocks, threads, shared_bytes;
    void *stream;
};
typedef int weft_gpu_launch_fn(struct weft_gpu *gpu, const struct weft_gpu_launch *launch);

/* host_map: make host memory usable by the device; *dev is the device's address of it. Returns 0; 1: it was already, by
 * somebody else, and host_unmap is not for it; or a code. */
typedef int weft_gpu_host_map_fn(struct weft_gpu *gpu, void *host, uint64_t len, void **dev);
typedef void weft_gpu_host_unmap_fn(struct weft_gpu *gpu, void *host);

/* export_dmabuf (optional): a file descriptor (the caller's to close) for a device range and the
 * offset of addr in it. Default: WEFT_EUNSUPPORTED. */
typedef int weft_gpu_export_dmabuf_fn(struct weft_gpu *gpu, void *addr, uint64_t len, int *fd,
                                      uint64_t *offset);

/*
 * ipc_export, ipc_open, ipc_close (optional, all of them): device memory for another process of this host.
 *
 * ipc_export: a handle of WEFT_GPU_IPC_BYTES with which another process maps the len bytes at addr, and what is allocated with
 *             them. *fd: -1, or a descriptor that has to get there with the handle (SCM_RIGHTS): the caller's to close, good for one process.
 * ipc_open:   map them; *addr is where the same byte is, and as many len bytes there are what was mapped. fd stays the
 *             caller's. Opened once more with the same handle, in any context, what is open already needs no descriptor.
 *             A handle that another backend has made is refused: it has to say whose it is.
 *             All of it is another process's word: WEFT_EPROTO or a code if it is not what it should be, or is shorter.
 * ipc_close:  as often as it was opened.
 * Default: WEFT_EUNSUPPORTED.
 */
typedef int weft_gpu_ipc_export_fn(struct weft_gpu *gpu, void *addr, uint64_t len, void *handle,
                                   int *fd);
typedef int weft_gpu_ipc_open_fn(struct weft_gpu *gpu, const void *handle, int fd, uint64_t len,
                                 void **addr);
typedef void weft_gpu_ipc_close_fn(struct weft_gpu *gpu, void *addr);

/* extension (optional): what only this backend has, by name. Default: NULL. */
typedef void *weft_gpu_extension_fn(const char *name);

struct weft_gpu_ops {
    /* required */
    weft_gpu_probe_fn *probe;
    weft_gpu_open_fn *open;
    weft_gpu_close_fn *close;
    weft_gpu_alloc_fn *alloc;
    weft_gpu_free_fn *free;
    weft_gpu_query_fn *query;
    weft_gpu_copy_fn *copy;
    weft_gpu_launch_fn *launch;
    weft_gpu_host_map_fn *host_map;
    weft_gpu_host_unmap_fn *host_unmap;
    /* optional */
    weft_gpu_present_fn *present;
    weft_gpu_describe_fn *describe;
    weft_gpu_link_fn *link;
    weft_gpu_copy_start_fn *copy_start;
    weft_gpu_copy_done_fn *copy_done;
    weft_gpu_stream_gpu_fn *stream_gpu;
    weft_gpu_mark_fn *mark;
    weft_gpu_export_dmabuf_fn *export_dmabuf;
    weft_gpu_ipc_export_fn *ipc_export;
    weft_gpu_ipc_open_fn *ipc_open;
    weft_gpu_ipc_close_fn *ipc_close;
    weft_gpu_extension_fn *extension;
};

struct weft_gpu_backend {
    uint32_t abi; /* WEFT_ABI */
    const char *name;
    const char *summary;
    const struct weft_gpu_ops *ops;
};

/* Backend by name, whether it has a device or not (probe); "auto": the first that has one, else "host"; NULL: what WEFT_GPU says.
 * For callers that want device memory without a vendor's library: probe, and "auto", load and start it. NULL and a
 * sentence if there is none of that name. */
WEFT_API const struct weft_gpu_backend *weft_gpu_find(const char *name);

/* A module exports this function under this name. */
typedef const struct weft_gpu_backend *weft_module_gpu_fn(void);
#define WEFT_MODULE_GPU "weft_module_gpu"

#ifdef __cplusplus
}
#endif
#endif
