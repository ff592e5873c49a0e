/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this build and this machine offer: transports, their devices, GPU backends.
 *
 * An application does not need this header to move data; weft_info and schedulers do. All
 * functions may be called from any thread; nothing here opens a device for good.
 */
#ifndef WEFT_FABRIC_H
#define WEFT_FABRIC_H

#include "weft/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operations of the transport interface: opcodes of struct weft_cmd and bits of an op mask. */
enum weft_op {
    WEFT_OP_SEND,      /* message into the peer's receive pool */
    WEFT_OP_RECV,      /* only completes: a message has arrived */
    WEFT_OP_WRITE,     /* local memory to remote memory */
    WEFT_OP_WRITE_IMM, /* the same, and a 32-bit immediate for the peer once the data is there */
    WEFT_OP_READ,      /* remote memory to local memory */
    WEFT_OP_ADD64,     /* add to an aligned remote 64-bit word, the old value comes back */
    WEFT_OP_FENCE,     /* what comes after is delivered after what came before */
    WEFT_OP_LINK_DOWN, /* only completes: the link is dead */
    WEFT_OP_COUNT
};
#define WEFT_OP_BIT(op) (1u << (op))

/* Name of an operation ("write"), static storage. */
WEFT_API const char *weft_op_name(enum weft_op op);

/* Kinds of memory, as bits. */
#define WEFT_MEM_HOST 1u   /* ordinary process memory */
#define WEFT_MEM_DMABUF 2u /* device memory named by a dma-buf file descriptor */
#define WEFT_MEM_PEER 4u   /* device memory named by its address (peer memory) */

/*
 * What a nic promises. Everything above a transport adapts to these, never to a transport's name.
 */
enum weft_order {
    WEFT_ORDER_NONE, /* cmds of a link may be delivered and completed in any order */
    WEFT_ORDER_LINK  /* delivered and completed in the order they were posted */
};

enum weft_done {
    WEFT_DONE_SENT,     /* a completed cmd's local memory may be reused; that is all */
    WEFT_DONE_DELIVERED /* a completed cmd's data is in the target's memory */
};

struct weft_nic_attr {
    uint32_t ops;            /* WEFT_OP_BIT of the operations it executes itself */
    uint32_t mem_kinds;      /* WEFT_MEM_* it can register */
    uint8_t order;           /* enum weft_order */
    uint8_t done;            /* enum weft_done: what completion of WRITE and SEND means */
    uint8_t imm_bits;        /* bits of an immediate that arrive: 32, or 0 without WRITE_IMM */
    uint8_t local_reg;       /* local memory of cmds must be registered with this nic */
    uint8_t chosen_keys;     /* takes the key core chose for a mem, instead of making its own */
    uint8_t add_global;      /* ADD64 is atomic with additions of processors and other nics, too */
    uint8_t target_progress; /* one-sided ops advance only while the target polls its nic */
    uint8_t peer_death;      /* reports WEFT_OP_LINK_DOWN by itself when an idle peer dies */
    uint8_t enters; /* has link_enter: core may copy from and to a peer's memory by itself */
    uint8_t rx_scatter;      /* received payload comes as fragments of a pool (see rx_release) */
    uint8_t software;        /* threads of this host's kernel play it: who polls in vain offers them his processor */
    uint8_t quick_poll;      /* a poll in vain looks at memory, and asks no kernel: the next one may follow at once */
    uint32_t max_inline;     /* bytes that WEFT_CMD_INLINE can take */
    uint32_t max_send;       /* longest SEND; at least 4096 */
    uint32_t max_iov;        /* most local pieces of one cmd; at least 4 */
    uint32_t tx_depth;       /* most cmds of one link between post and completion */
    uint64_t max_msg;        /* longest WRITE or READ */
};

struct weft_transport_info {
    char name[16];
    char summary[96];
    int usable;       /* at least one device can be opened */
    char reason[192]; /* if not usable: why, in words */
    int priority;     /* higher is preferred when several reach the peer */
    int ndevices;
    int from_module; /* loaded from a file of WEFT_MODULE_PATH */
};

/* How far a device is from what an endpoint is to be near to (weft_endpoint_opts.near), by PCIe from a
 * GPU, by NUMA from memory or a thread. Further on the list is farther; what is unknown counts as
 * farthest. */
enum weft_distance {
    WEFT_DISTANCE_UNKNOWN = -1,
    WEFT_DISTANCE_SWITCH, /* below the same PCIe switch, or on the same board */
    WEFT_DISTANCE_ROOT,   /* below the same root of PCIe */
    WEFT_DISTANCE_NODE,   /* at the same NUMA node */
    WEFT_DISTANCE_SOCKET, /* at the same socket */
    WEFT_DISTANCE_FAR     /* at another one */
};

struct weft_device_info {
    char name[32];
    char summary[96];
    int usable;
    char reason[192];    /* if not usable, or usable and not used: why */
    int missing;         /* no device: a name in a list of devices (WEFT_VERBS_DEVICES) that nothing has */
    int numa;            /* NUMA node, -1 unknown */
    char pci[16];        /* "0000:3b:00.0", or "" */
    uint64_t bits_per_s; /* line rate, 0 unknown */
    /* These are not the transport's: */
    int distance; /* enum weft_distance, from WEFT_NEAR */
    int rail; /* 1, 2, ...: an endpoint opens it as one of its devices, in this order; 0: it does
                     not, and `reason` says why */
};

/* What distances are measured from. */
struct weft_topology_info {
    int known;
    char near[128];   /* WEFT_NEAR, or where this thread may run, and its NUMA nodes */
    char reason[192]; /* if no distance is known: why, in words */
};

struct weft_gpu_info {
    char name[16];
    char summary[96];
    int usable;
    char reason[192];
    int ndevices;
    int from_module;
};

struct weft_gpu_device_info {
    char name[64];
    char pci[16];   /* "0000:3b:00.0", or "" */
    int numa;       /* NUMA node, -1 unknown */
    uint64_t bytes; /* of its memory, 0 unknown */
    uint32_t wave;  /* threads that go in step: 32, 64; 0 unknown */
};

/* How a GPU reaches the memory of another one. */
enum weft_gpu_link {
    WEFT_GPU_LINK_NONE,   /* through memory of the host */
    WEFT_GPU_LINK_PCI,    /* by itself, over PCIe */
    WEFT_GPU_LINK_FABRIC, /* by itself, over a fabric of GPUs: NVLink, xGMI */
    WEFT_GPU_LINK_SELF    /* it is its own */
};

/* How an endpoint moves memory of a GPU over a transport. */
enum weft_gpu_way {
    WEFT_GPU_DIRECT = 1, /* nics reach it */
    WEFT_GPU_STAGED,     /* through pinned memory of the host */
    WEFT_GPU_MAPPED /* GPUs of another process map it (IPC) and copy; what is not mapped is staged */
};

/* i-th transport of this build. Returns 0, or -ENOENT past the end. */
WEFT_API int weft_transport_info(int i, struct weft_transport_info *info);
/* j-th device of a transport, nearest first; of equally near ones the order is the transport's.
 * Returns 0, -ENOENT past the end, WEFT_ENODEV for an unknown name. */
WEFT_API int weft_device_info(const char *transport, int j, struct weft_device_info *info);
/* Returns 0. */
WEFT_API int weft_topology_info(struct weft_topology_info *info);
/* Opens a device for a moment and tells its attributes. `device` NULL: the first usable one. */
WEFT_API int weft_device_attr(const char *transport, const char *device,
                              struct weft_nic_attr *attr);
/* i-th GPU backend of this build. Returns 0, or -ENOENT past the end. */
WEFT_API int weft_gpu_info(int i, struct weft_gpu_info *info);
/* j-th device of a GPU backend; here and below NULL is as weft_gpu_find has it. Makes no context. Returns 0, -ENOENT past
 * the end, WEFT_ENODEV for an unknown name. */
WEFT_API int weft_gpu_device_info(const char *backend, int j, struct weft_gpu_device_info *info);
/* enum weft_gpu_link, from one device of a backend to another; or a code. */
WEFT_API int weft_gpu_link(const char *backend, int from, int to);
/* Tries it, with a context and an allocation for a moment. Returns enum weft_gpu_way, and why (of `size` bytes) it is staged or mapped; or
 * a code, and why it is impossible. */
WEFT_API int weft_gpu_way(const char *backend, int j, const char *transport, char *why,
                          size_t size);

#ifdef __cplusplus
}
#endif
#endif
