/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport interface: what a folder under transports/ implements.
 *
 * A transport moves the bytes of one link and knows nothing of other links, of conns or of
 * endpoints. Striping, failing over, emulating operations a nic lacks, and two-sided matching are
 * written once, in core, over any transport. Each sentence under a function type below is a test
 * in tests/contract/.
 *
 * Objects. probe finds devices; open makes a *nic* of one; a nic owns registered memory and
 * links; a link joins it to one nic of a peer. Operations are data: post takes an array of cmds,
 * poll returns an array of comps.
 *
 * Threads. Core calls all functions of one nic, its mems and its links from one thread at a time
 * (it holds the nic's lock). Different nics are driven by different threads at once: nothing
 * mutable may be shared between nics without its own lock.
 *
 * Time. Nothing here blocks, except probe and open, which may take up to a second.
 *
 * Completions. A cmd that post accepted ends in exactly one comp, in any order unless attr.order
 * says otherwise, until its link dies or is closed. When a link dies, poll returns one comp with
 * op WEFT_OP_LINK_DOWN for it and none after it for that link: core, which knows what it posted,
 * ends or re-sends the rest. After link_close no comp names the link and no memory of its cmds is
 * touched again. Nothing is retried by core on a link that is up: a comp with a bad status is the
 * answer.
 *
 * Strangers. Whatever comes from the peer is checked before it is used: lengths, opcodes, keys,
 * bounds, access. A peer that breaks the protocol loses its link with WEFT_EPROTO, and no one
 * else notices. A one-sided operation whose key, range or access is wrong touches no memory and
 * completes at the initiator with WEFT_EKEY, WEFT_EBOUNDS or WEFT_EACCESS; the link stays up.
 *
 * Errors. A function that fails returns a negative code and says why with weft_fail(). Transports
 * never abort, exit, or print, and leave the process's signals alone.
 */
#ifndef WEFT_TRANSPORT_H
#define WEFT_TRANSPORT_H

#include <pthread.h>
#include <sys/socket.h>

#include "weft/base.h"
#include "weft/fabric.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header's structs. A backend built for another one is refused. */
#define WEFT_ABI 11

struct weft_transport;

/* First member of a transport's own nic struct. Filled by open. */
struct weft_nic {
    const struct weft_transport *transport;
    struct weft_nic_attr attr; /* constant after open */
    /* A hint that post and poll may leave: what is under way is long, so that a thread that waits
     * for more had better sleep than spin. WEFT_CMD_PATIENT ones do not count. 0 where it is not known. */
    uint8_t bulk;
};

/* First member of a transport's own link struct. Filled by link_open, but for user, and own. */
struct weft_link {
    struct weft_nic *nic;
    void *user; /* core's; the transport leaves it alone */
    int own; /* attr.enters; once it is connected: 1: the peer is in this process, and not only says so */
};

struct weft_nic_opts {
    const char *device;    /* name from probe; never NULL */
    const char *bind_host; /* numeric address to listen on; NULL: loopback only */
    const char *gpu;       /* backend whose memory may be registered, too ("cuda", "hip"); NULL: none */
    int lane;              /* 0, 1, ...: how many nics of this device were opened before */
};

/* What a mem may be used for by peers. Local use is always allowed. */
#define WEFT_ACCESS_READ 1u
#define WEFT_ACCESS_WRITE 2u
#define WEFT_ACCESS_ATOMIC 4u

struct weft_mem_range {
    void *addr;
    uint64_t len;    /* never 0 */
    uint32_t access; /* WEFT_ACCESS_* */
    uint32_t kind;   /* one WEFT_MEM_* bit */
    int dmabuf_fd;   /* WEFT_MEM_DMABUF only, else -1 */
    uint64_t dmabuf_offset;
    int ordinal;  /* memory of a GPU: which one of weft_nic_opts.gpu's */
    uint64_t key; /* attr.chosen_keys: the random key under which peers name it */
};

struct weft_mem_handle {
    void *mem;     /* the transport's; goes into cmds and to mem_dereg */
    uint64_t rkey; /* what peers put into cmd.remote_key */
};

enum weft_role { WEFT_ROLE_ACTIVE, WEFT_ROLE_PASSIVE };

struct weft_link_opts {
    enum weft_role role; /* of the two ends of a link exactly one is active */
    /* Active: the address at which the peer's endpoint was reached, passive: where it came from;
     * NULL when the endpoints met in some other way. */
    const struct sockaddr *peer;
    socklen_t peer_len;
    /* WEFT_MAC bytes that the two ends know and no one else, for the call only; NULL: whoever has the
     * link's address may join it. Only an end with the same key is joined, and nothing that was
     * recorded when a link was joined joins another: what either end says carries a weft_mac code.
     * What travels afterwards carries none. */
    const uint8_t *key;
};

struct weft_iov_local {
    void *addr;
    uint64_t len;
    void *mem; /* handle of the registered memory; NULL when attr.local_reg is 0, and for SEND,
                  whose payload a transport copies if it has to */
};

#define WEFT_CMD_INLINE 1u /* payload (host memory) is copied before post returns; <= attr.max_inline */
#define WEFT_CMD_MORE 2u   /* another cmd follows at once: sending may wait for it */
#define WEFT_CMD_PATIENT 4u /* SEND: a step of something long, for which nothing has to hurry */
#define WEFT_CMD_QUIET 8u /* nobody waits for its comp: polls that return others may leave it to a later one, for a while */

struct weft_cmd {
    uint8_t op;           /* enum weft_op: SEND WRITE WRITE_IMM READ ADD64 FENCE */
    uint8_t flags;        /* WEFT_CMD_* */
    uint16_t niov;        /* 0: the payload is `one`; else iov[0..niov) */
    uint32_t imm;         /* WRITE_IMM */
    uint64_t remote_addr; /* address at the peer (WRITE WRITE_IMM READ ADD64) */
    uint64_t remote_key;
    uint64_t value; /* ADD64: what to add */
    uint64_t len;   /* payload bytes, the sum over the iov; 0 is legal for all but ADD64 (8) */
    uint64_t ctx;   /* comes back in the comp */
    union {
        struct weft_iov_local one;
        const struct weft_iov_local *iov; /* array stays valid until the comp */
    };
};

struct weft_comp {
    uint64_t ctx; /* of the cmd; 0 for RECV, arrivals of an immediate, LINK_DOWN */
    struct weft_link *link;
    uint8_t op;       /* of the cmd; RECV: a SEND of the peer arrived; WRITE_IMM with ctx 0: an
                       immediate of the peer arrived; LINK_DOWN */
    int32_t status;   /* 0, or a WEFT_E / -errno code. LINK_DOWN: why */
    uint32_t imm;     /* arrived immediate */
    uint64_t value;   /* ADD64: the word before the addition */
    uint64_t len;     /* bytes moved; RECV: length of the message; an immediate that arrived: of the part that it came
                       with, since a long operation may come in several, the last of them of no bytes */
    const void *data; /* RECV: the message; valid until the next poll of the nic, or, where
                         attr.rx_scatter, until rx_release. LINK_DOWN, and a bad status: why, as
                         a sentence (const char *), or NULL; valid until link_close */
};

/*
 * probe: list the devices of this transport.
 * Called:  from any thread, at any time; also without any hardware or vendor library.
 * Owns:    fills list[0..min(count, max)); list may be NULL when max is 0.
 * Returns: number of devices that exist, also those beyond max and those marked unusable with
 *          their reason; 0 with weft_fail-style reason in weft_last_error if there is none; or a
 *          negative code.
 */
typedef int weft_probe_fn(struct weft_device_info *list, int max);

/*
 * open: make a nic of a device.
 * Owns:    *nic is the caller's until close. opts is borrowed for the call.
 * Returns: 0; WEFT_ENODEV for a name that probe does not list; else a negative code.
 */
typedef int weft_open_fn(const struct weft_nic_opts *opts, struct weft_nic **nic);

/*
 * close: give a nic back. Its links and mems are closed before.
 */
typedef void weft_close_fn(struct weft_nic *nic);

/*
 * mem_reg: make memory reachable for peers under handle->rkey, and usable in this nic's cmds.
 * Owns:    the memory stays the caller's and must stay mapped until mem_dereg.
 * Returns: 0 and a filled handle, or a negative code and nothing registered.
 *          The same range may be registered many times, with different keys and access.
 */
typedef int weft_mem_reg_fn(struct weft_nic *nic, const struct weft_mem_range *range,
                            struct weft_mem_handle *handle);

/*
 * mem_dereg: end a registration.
 * Returns: 0: from now on no peer's operation touches the memory through this handle, and its key
 *          is unknown (a READ that is being answered ends at the peer with WEFT_EKEY); or
 *          WEFT_EAGAIN: part of the memory is still being read or written for a peer, or peers have yet
 *          to say that it is not, or the device does not let go of it; poll and call again (questions
 *          about it are refused from the first call on).
 */
typedef int weft_mem_dereg_fn(struct weft_nic *nic, void *mem);

/*
 * link_open: begin a link. It carries nothing until it is connected.
 * Owns:    *link is the caller's until link_close.
 */
typedef int weft_link_open_fn(struct weft_nic *nic, const struct weft_link_opts *opts,
                              struct weft_link **link);

/*
 * link_address: what the peer's link_connect needs, as bytes that core carries there.
 * Called:  after link_open, once; the active end also gets the passive end's address before it
 *          is asked for its own (core: passive opens, active opens, active connects, passive
 *          connects).
 * Returns: length written, at most cap (cap is at least WEFT_LINK_ADDRESS_MAX), or a code.
 */
#define WEFT_LINK_ADDRESS_MAX 512
typedef int weft_link_address_fn(struct weft_link *link, void *buf, size_t cap);

/*
 * link_connect: join a link to the peer's link with this address.
 * Called:  with the same address again and again, with poll in between, until it does not return
 *          WEFT_EAGAIN. Untrusted input: the address is checked.
 * Returns: 0 connected; WEFT_EAGAIN in progress; WEFT_EPROTO malformed address; WEFT_EVERSION;
 *          else a negative code: this transport does not reach this peer (core tries the next).
 */
typedef int weft_link_connect_fn(struct weft_link *link, const void *addr, size_t len);

/*
 * link_close: end a link, in any state. The peer's end sees WEFT_OP_LINK_DOWN.
 *          Everything that completed at this end has been delivered in the sense of attr.done, and what was a SEND
 *          the peer's poll has handed out, or will before its LINK_DOWN; what had not completed is dropped without a comp.
 */
typedef void weft_link_close_fn(struct weft_link *link);

/*
 * link_enter, link_leave, link_recall, link_recalled (optional, all of them; transports of one host): for what an end
 * copies from or to the peer's memory by itself, past the transport (a mapping of a GPU's memory). The peer's link_close
 * waits for who is inside; and it takes memory back in turns, which begin with 0: who enters in a turn that is over
 * does not get in.
 * Threads: enter and leave may be called by any thread, while the link is connected and not being closed here.
 *
 * link_enter:    1: inside, until link_leave with the same turn; 0: the turn is over, or the peer closes the link.
 * link_recall:   the next turn of this end's memory begins; the one before has been recalled. Returns its number.
 *                In any state of the link, as link_recalled. `last`: no turn begins, and nobody gets in any more, nor
 *                does the transport itself for the peer; link_close is what comes next, and waits for nobody who has
 *                had a second to leave since.
 * link_recalled: 1: nobody is inside who entered before this turn, or after the last one at all; or the peer is gone. Else 0:
 *                call again.
 * Default: there is none (attr.enters is 0).
 *
 * link_pass, link_take (optional, both; with attr.enters): a descriptor for the peer, with a number.
 *
 * link_pass: fd stays the caller's. 0; or a code, and none is passed.
 * link_take: the one that the peer has passed with this number: the caller's. WEFT_EAGAIN: there is none, or not yet. Of 64
 *            that nobody has taken the oldest is closed.
 * Default: WEFT_EUNSUPPORTED.
 */
typedef int weft_link_enter_fn(struct weft_link *link, uint32_t turn);
typedef void weft_link_leave_fn(struct weft_link *link, uint32_t turn);
typedef uint32_t weft_link_recall_fn(struct weft_link *link, int last);
typedef int weft_link_recalled_fn(struct weft_link *link);
typedef int weft_link_pass_fn(struct weft_link *link, uint64_t number, int fd);
typedef int weft_link_take_fn(struct weft_link *link, uint64_t number, int *fd);

/*
 * post: hand up to n cmds to a connected link.
 * Owns:    cmds stay the caller's; payload memory is the transport's until the comp (or until
 *          post returns, with WEFT_CMD_INLINE).
 * Returns: number accepted, 0..n, in order (fewer than n: poll, then post the rest), or a
 *          negative code if the first one can never be accepted on this link (WEFT_EUNSUPPORTED,
 *          -EINVAL, WEFT_ELINK on a dead link): then none was. Transmission may be put off to
 *          the next poll while earlier cmds of the link are in flight.
 */
typedef int weft_post_fn(struct weft_link *link, const struct weft_cmd *cmds, int n);

/*
 * poll: make progress on all links of a nic and collect what ended.
 * Returns: number of comps written, 0..max; or a negative code if the nic is lost.
 *          One call does a bounded amount of work (about 1 MiB, or 100 us).
 */
typedef int weft_poll_fn(struct weft_nic *nic, struct weft_comp *comps, int max);

/*
 * wait_fd: prepare to sleep.
 * Returns: a file descriptor that becomes readable when poll has something to do (and stays so
 *          until poll did it), the same for the life of the nic; or WEFT_EAGAIN: there is work
 *          already, poll first.
 * Default: WEFT_EUNSUPPORTED: core polls every millisecond.
 */
typedef int weft_wait_fd_fn(struct weft_nic *nic);

/*
 * rx_release: give received fragments back to the pool (attr.rx_scatter only).
 * Default: nothing to release.
 */
typedef void weft_rx_release_fn(struct weft_nic *nic, const struct weft_comp *comp);

/*
 * extension: a function or object that only this transport has, by name.
 * Returns: NULL if there is none of that name. Default: NULL.
 */
typedef void *weft_extension_fn(const char *name);

/* What a decorator's extension(WEFT_EXTENSION_WRAP) returns: open a nic of another transport,
 * wrapped. The spec is the decorator's own language. */
#define WEFT_EXTENSION_WRAP "wrap"
typedef int weft_wrap_fn(const struct weft_transport *inner, const char *spec,
                         const struct weft_nic_opts *opts, struct weft_nic **nic);

struct weft_transport_ops {
    /* required */
    weft_probe_fn *probe;
    weft_open_fn *open;
    weft_close_fn *close;
    weft_mem_reg_fn *mem_reg;
    weft_mem_dereg_fn *mem_dereg;
    weft_link_open_fn *link_open;
    weft_link_address_fn *link_address;
    weft_link_connect_fn *link_connect;
    weft_link_close_fn *link_close;
    weft_post_fn *post;
    weft_poll_fn *poll;
    /* optional, with the default named above */
    weft_link_enter_fn *link_enter;
    weft_link_leave_fn *link_leave;
    weft_link_recall_fn *link_recall;
    weft_link_recalled_fn *link_recalled;
    weft_link_pass_fn *link_pass;
    weft_link_take_fn *link_take;
    weft_wait_fd_fn *wait_fd;
    weft_rx_release_fn *rx_release;
    weft_extension_fn *extension;
};

struct weft_transport {
    uint32_t abi; /* WEFT_ABI */
    const char *name;
    const char *summary;
    int priority;  /* local 1000, then by speed: verbs 500, efa 400, tcpx 300, tcp 100 */
    int same_host; /* reaches only peers on this host: core does not try it for others */
    int by_processor; /* who calls post and poll moves the bytes: several nics, each with a thread, move more */
    const struct weft_transport_ops *ops;
};

/* A module (weft_<name>.so in WEFT_MODULE_PATH) exports this function under this name. */
typedef const struct weft_transport *weft_module_transport_fn(void);
#define WEFT_MODULE_TRANSPORT "weft_module_transport"

/* --- what core offers to transports and GPU backends ------------------------------------- */

/* Remember a sentence for weft_last_error and return code: `return weft_fail(-EINVAL, "...")`. */
WEFT_API int weft_fail(int code, const char *fmt, ...) WEFT_PRINTF(2, 3) WEFT_COLD;

/* Settings of the one table in core/config.c. An unknown name gives 0 / "" and an error log. */
WEFT_API int64_t weft_config_int(const char *name);
WEFT_API const char *weft_config_str(const char *name);

/*
 * Is a device chosen by a string setting that is a list, as WEFT_VERBS_DEVICES is? "a,b" are the only ones, "^c" is not
 * one. It goes by any of n names. 1 or 0. In *met, which begins as 0, it notes which of the first 64 items were one of them.
 */
WEFT_API int weft_config_selects(const char *setting, const char *const *names, int n, uint64_t *met);
/* For a probe: the items that are not in `met`, each as a device (with its ^) that cannot be used and why, behind the n of the
 * list, which has room for max. hint: what lists the devices. How many there are then, as probe returns it. */
WEFT_API int weft_config_unmet(const char *setting, uint64_t met, const char *hint,
                               struct weft_device_info *list, int max, int n);

/*
 * A lock of static storage, which a child of fork finds open whoever had it, and what it guards whole: a fork waits until
 * it has all of them (core/fork.c). `foreign`: code of others runs under it, which may itself fork: for that one no fork
 * waits, and in a child it is new; what it guards is to be good at any moment, or made anew by in_child. `in_child`, or
 * NULL: called in the child, where nobody else has the lock.
 */
struct weft_static_lock {
    pthread_mutex_t mutex;
    int foreign;
    void (*in_child)(void);
    int is_known; /* by __atomic functions: C++ reads this, too */
    struct weft_static_lock *next;
};
#define WEFT_STATIC_LOCK(...) {.mutex = PTHREAD_MUTEX_INITIALIZER, __VA_ARGS__}
WEFT_API void weft_static_lock(struct weft_static_lock *lock);
WEFT_API void weft_static_unlock(struct weft_static_lock *lock);

/*
 * A vendor's library, opened when it is first needed and never closed, so that pointers into it stay good. Static
 * storage; only what follows `fill` changes.
 */
struct weft_library {
    const char *whose;   /* transport or GPU backend, for messages */
    const char *setting; /* of core/config.c: the library's file, or several, separated by commas: the first
                          * that this process has, else the first that there is */
    const char *package; /* that has it, for messages */
    int (*fill)(
        void *opened); /* finds the functions; what it refuses is asked again, and stays loaded */
    struct weft_static_lock lock;
    uint64_t absent; /* what was so when it was looked for last, and was not there */
    char loaded[256];
};
#define WEFT_LIBRARY(...) {.lock = WEFT_STATIC_LOCK(.foreign = 1), __VA_ARGS__}

/* 1: it is in this process already, whoever has loaded it; else 0, and 0 while it was refused and nothing was loaded since. */
WEFT_API int weft_library_present(struct weft_library *library);
/* 0 once `fill` has succeeded; WEFT_ENODEV: no such file, or another one is in use. Any thread. */
WEFT_API int weft_library_open(struct weft_library *library);
/* To *slot, as large as a pointer, the address of a symbol; NULL and WEFT_ENODEV: there is none. */
WEFT_API int weft_library_find(const struct weft_library *library, void *opened,
                               const char *symbol, void *slot);

/* Nanoseconds of CLOCK_MONOTONIC. */
WEFT_API uint64_t weft_now(void);

/* Who polls in vain lets the other thread of this processor core, and the bus, have a moment: some 15 to 50 ns on x86. */
static inline void weft_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* The same for so long, a few microseconds at most: who would look again at once takes away what the other side is about to write. Not
 * longer than 100 looks at the clock, which may stand still (tests/sim). */
static inline void weft_rest(uint64_t ns)
{
    const uint64_t until = weft_now() + ns;
    for (int i = 0; i < 100 && weft_now() < until; i++)
        weft_relax();
}

/* What tells this boot of this kernel from all others; zeros if it cannot be known. */
WEFT_API void weft_boot_id(uint8_t id[16]);

/* Fill buf from the operating system's random source. Returns 0 or a negative code. */
WEFT_API int weft_random(void *buf, size_t len);

/*
 * HMAC-SHA-256, for the keys of links (weft_link_opts.key). weft_mac_check takes as long for a wrong
 * code as for the right one. Both return 0; WEFT_EUNSUPPORTED: this build or machine has no
 * libcrypto, then core gives out no keys either; weft_mac_check: WEFT_EAUTH if the code is wrong.
 */
#define WEFT_MAC 32 /* bytes of a key, and of a code */
WEFT_API int weft_mac(const uint8_t key[WEFT_MAC], const void *data, size_t len,
                      uint8_t mac[WEFT_MAC]);
WEFT_API int weft_mac_check(const uint8_t key[WEFT_MAC], const void *data, size_t len,
                            const uint8_t mac[WEFT_MAC]);

/*
 * Callers that have not said who they are, where only so many may wait: who makes room for one more.
 * One of those from the place from which most wait; of these one that has said the least, and then the
 * one that came first. So a crowd pushes out its own, and who speaks outlives who is silent.
 */
struct weft_stranger {
    uint64_t since; /* when it came: a time, or a number that grows */
    uint8_t place;  /* where from: weft_stranger_from, or weft_stranger_place of any name */
    uint8_t known;  /* how much it has said: 0 nothing, and there was time for it */
};
WEFT_API uint8_t weft_stranger_from(const struct sockaddr_storage *addr);
WEFT_API uint8_t weft_stranger_place(const void *name, size_t len);
/* Index in the list, -1 if it is empty. */
WEFT_API int weft_stranger_choose(const struct weft_stranger *list, int n);

/*
 * A listening socket for as long as descriptors last. One is kept in reserve, with which a caller who
 * cannot be served is refused, so that he learns at once and the socket does not stay readable. If
 * another thread was faster and took that one too, the socket is not watched for 0.1 s (resume).
 */
struct weft_listener {
    int fd, spare, epoll;
    void *tag;       /* data.ptr of its events */
    uint64_t resume; /* when it is watched again; 0: it is */
};
#define WEFT_LISTENER_NONE ((struct weft_listener){.fd = -1, .spare = -1, .epoll = -1})
/* fd listens, and is taken if this returns 0: it is watched by epoll for EPOLLIN. Else -errno. */
WEFT_API int weft_listener_open(struct weft_listener *l, int fd, int epoll, void *tag);
WEFT_API void weft_listener_close(struct weft_listener *l);
/* A descriptor that does not block, or -1: there is nobody, or the caller was refused or has to wait.
 * from may be NULL; name is for the log. */
WEFT_API int weft_listener_accept(struct weft_listener *l, struct sockaddr_storage *from,
                                  const char *name);
/* To be called from time to time while resume is set. */
WEFT_API void weft_listener_look(struct weft_listener *l);

/* Can a nic with these attributes ever accept this cmd? 0; WEFT_EUNSUPPORTED: not this operation;
 * -EINVAL: a length or a number of pieces is wrong. Looks at no payload. */
WEFT_API int weft_cmd_check(const struct weft_nic_attr *attr, const struct weft_cmd *cmd);

/* Log one line: lower case, object first, no newline. Keeps errno. */
WEFT_API void weft_log(enum weft_log_level level, const char *subsystem, const char *fmt, ...)
    WEFT_PRINTF(3, 4) WEFT_COLD;
/* True if a line of this level would be written: guards expensive arguments. */
WEFT_API int weft_log_on(enum weft_log_level level, const char *subsystem);

#ifdef __cplusplus
}
#endif
#endif
