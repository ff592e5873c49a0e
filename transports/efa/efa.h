/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efa: libfabric's reliable datagram endpoints (FI_EP_RDM). Made for Amazon's EFA, whose packets overtake each
 * other; any provider that has messages and RMA will do. Structs first, then the functions of each file.
 *
 * A nic has three endpoints, however many peers it has. *message*: all messages, in and out, from slots of the nic.
 * *work*: WRITEs and READs of this side go out from here. *target*: those of peers arrive here. The user's memory is
 * touched through the last two only, so closing one of them is how a nic lets go of memory at once: what was under
 * way from work for other links is posted again, and peers are told where the new target is (efa_ep.c).
 *
 * No wrong key ever reaches the provider, since what comes then differs from one to the other (an error, a connection
 * that breaks, silence). Keys are core's; before the first use of one the link asks the peer what is behind it, and
 * keeps the answer, a *region*. The peer remembers whom it told, a *lease*, and takes leases back before the memory
 * goes (efa_mem.c, efa_region.c).
 *
 * Life of a WRITE: post makes an *op* of it, the op finds its region and goes to the link's list of short or of long
 * ones; from there chunks of it go out as *reqs*. A completion ends a req, its last req the op, and poll hands it out.
 */
#ifndef WEFT_EFA_H
#define WEFT_EFA_H

#include <stdbool.h>

#include "efa_lib.h"
#include "efa_wire.h"
#include "weft/list.h"
#include "weft/transport.h"

#define EFA_DEPTH 256 /* most cmds of a link between post and completion */
/* An eager message of core (WEFT_EAGER is 8 KiB by default) with its head. */
#define EFA_MAX_SEND 8704
#define EFA_MAX_INLINE 256
#define EFA_MAX_IOV 64
#define EFA_MAX_PIECES 8                   /* of one req */
#define EFA_MAX_MSG ((uint64_t)1 << 46)    /* more than a process can map */
#define EFA_SHORT 65536                    /* what is longer lets others pass */
#define EFA_WINDOW 4                       /* chunks of long ops of a link under way */
#define EFA_BATCH 32                       /* completions that are read at once */
#define EFA_SLAB 32                        /* slots that a pool adds at a time */
#define EFA_MAX_LINKS 65536                /* of a nic: what efa_tag has bits for */
#define EFA_IMMS 64                        /* immediates of a link under way */
#define EFA_IMM_SEEN 256                   /* numbers from the oldest under way to the newest: those that the peer remembers */
#define EFA_SEEN 1024                      /* most credits; messages of a link that may overtake each other */
#define EFA_REGIONS 1024                   /* of the peer's memory that a link remembers */
#define EFA_NOTES 4096                     /* messages of the transport that may wait for a credit */
#define EFA_INJECTED 8                     /* messages of a link in a row whose fate nobody reports */
#define EFA_TRIES 4                        /* times that a req fails where the peer's memory is before its op does */

struct efa_nic;
struct efa_link;
struct efa_op;
struct efa_region;

/* --- what completions lead back to ---------------------------------------------------------------------- */

enum efa_call_kind { EFA_CALL_RECV, EFA_CALL_SEND, EFA_CALL_REQ };

/* First member of what is handed to libfabric, which keeps notes in `context`. */
struct efa_call {
    struct fi_context2 context;
    uint8_t kind; /* enum efa_call_kind */
};

/* --- slots of registered memory ------------------------------------------------------------------------- */

struct efa_slot {
    struct efa_call call;
    struct weft_list in; /* of the pool's free ones; of a link's notes; of arrivals; of those that comps point to */
    struct efa_pool *pool;
    struct efa_link *link; /* whose message it is; NULL: of none any more */
    struct efa_name *to;   /* sent: kept until the completion */
    struct efa_process *process; /* last words: to whom */
    void *data;
    void *desc;
    uint32_t len;
};

struct efa_slab {
    struct efa_slab *next;
    struct fid_mr *mr;
    void *data;
    struct efa_slot slots[EFA_SLAB];
};

struct efa_pool {
    struct efa_nic *nic;
    struct efa_slab *slabs;
    struct weft_list free;
    uint32_t size; /* bytes of a slot */
};

/* --- peers ---------------------------------------------------------------------------------------------- */

/* An endpoint somewhere, known to libfabric. Shared by the links that lead there. */
struct efa_name {
    struct efa_name *next;
    uint32_t refs;
    uint32_t nflying;   /* reqs to it that libfabric has */
    uint32_t most;      /* that many when it last took no more; UINT32_MAX: it takes all */
    uint32_t rest;      /* polls from then on before it is tried with more */
    uint64_t most_poll; /* number of that poll */
    fi_addr_t addr;
    uint16_t len;
    uint8_t bytes[EFA_MAX_NAME];
};

/* A process of this host, watched for its end. */
struct efa_process {
    struct efa_process *next;
    uint32_t refs, pid;
    uint64_t started;
    int fd;
    bool dead;
    bool heard; /* a message of it came since it was last looked at */
    uint64_t ended; /* number of the poll that saw an operation end which it had a hand in */
};

/* --- memory --------------------------------------------------------------------------------------------- */

/* That a link was told of a mem. */
struct efa_lease {
    struct weft_list of_mem, of_link;
    struct efa_mem *mem;
    struct efa_link *link;
    uint32_t id; /* the peer's, of its last question */
};

struct efa_mem {
    struct efa_mem *next; /* in nic->mems, by key */
    struct fid_mr *mr;    /* NULL: closed, or not to be closed */
    bool stuck;           /* the provider does not let go of it */
    void *desc;
    struct weft_mem_range range;
    uint64_t rkey, base;
    struct weft_list leases, fetches;
    uint64_t deadline; /* mem_dereg was called: for leases to come back by themselves; 0: it was not */
};

/* A READ of the peer by messages: what of it is to be sent. */
struct efa_fetch {
    struct weft_list in, of_mem; /* link->fetches, mem->fetches */
    struct efa_link *link;
    uint32_t id; /* the peer's */
    const uint8_t *from;
    uint64_t len, done;
};

enum efa_region_state {
    EFA_REGION_ASKED,
    EFA_REGION_KNOWN,
    EFA_REGION_STALE, /* out of the table: taken back, or in doubt; until what is under way has ended */
    EFA_REGION_NONE   /* out of the table: the answer was that there is none */
};

/* What is behind a key of the peer. */
struct efa_region {
    struct efa_region *next; /* of the link's table */
    struct weft_list in;      /* link->regions: last used last */
    struct efa_link *link;
    uint8_t state; /* enum efa_region_state */
    bool owed;     /* the peer waits to hear that it is given back */
    bool recalled; /* asked: taken back before the answer was here */
    uint32_t id;
    uint32_t users;      /* reqs, also those that are to be posted again: it stays as long as it has any */
    uint64_t deadline;   /* taken back: when work is opened anew, so that they end; 0: none */
    int32_t status;      /* none: why */
    struct weft_list ops; /* that wait for the answer */
    uint64_t key, addr, len, rkey, base;
    uint32_t access, epoch;
};

/* --- work ----------------------------------------------------------------------------------------------- */

struct efa_op {
    struct weft_list in;  /* where it waits, or nic->done */
    struct weft_list all; /* link->ops */
    struct efa_link *link;
    uint8_t op;                /* enum weft_op */
    bool numbered;             /* WRITE_IMM: has imm_seq, and counts in link->nimms */
    bool announced;            /* WRITE_IMM: its late message is queued */
    bool longer;               /* counts in nic->nlong */
    uint16_t niov, imm_seq;
    uint32_t imm;
    uint32_t nreqs; /* under way, or to be posted again */
    uint32_t nmsgs; /* to be sent, or that the peer has not taken or answered */
    uint32_t seq;   /* of the message that waits to be taken */
    uint32_t id;    /* ADD64, and READ by messages */
    int32_t status;
    const char *why; /* of a bad status */
    uint64_t remote_addr, remote_key, len, ctx, value;
    uint64_t posted; /* bytes in reqs so far */
    uint64_t fetched; /* bytes that came by messages */
    struct efa_slot *slot; /* inline: where the payload is */
    struct fid_mr **loans; /* of pieces that the user has not registered, where local memory has to be */
    const struct weft_iov_local *iov; /* NULL: the payload is `one` */
    struct weft_iov_local one;
};

/* One operation of libfabric. */
struct efa_req {
    struct efa_call call;
    struct weft_list in; /* nic->flying; nic->again: to be posted once more; nic->free_reqs */
    struct efa_op *op;
    struct efa_region *region;
    uint64_t offset, len;
    struct efa_name *target; /* where it went, while libfabric has it: its address stays so long */
    uint32_t epoch; /* of its region, when it last failed */
    uint8_t tries;  /* that failed with it */
    bool imm;       /* carries the immediate, or the tag of one */
    bool bulk;      /* counts in link->nbulk */
};

enum efa_link_state {
    EFA_LINK_NEW,
    EFA_LINK_JOINING,
    EFA_LINK_UP,
    EFA_LINK_DOWN,
    EFA_LINK_CLOSING /* link_close has begun: nothing of it is handed out or posted again */
};

/* Half of an immediate, of which the other half is on its way (4 bytes of data: the tag or the message). */
struct efa_half {
    struct efa_half *next;
    struct efa_imm_msg msg;
    bool message; /* this half is the message, not the tag */
};

#define EFA_BUCKETS 256 /* of a link's regions, of a nic's mems */

struct efa_link {
    struct weft_link base;
    struct weft_list in;   /* nic->links */
    struct weft_list busy; /* nic->busy, or none */
    uint8_t state, role;
    bool keyed;
    bool hello_sent, hello_seen;
    bool down_due;
    bool leaving;     /* the peer said goodbye; its last messages are on their way */
    bool quiet;       /* the peer has said that nothing of its is under way */
    bool bye_heard, quiet_told;
    bool tell;        /* that messages were taken */
    bool stays, asked_to_stay; /* the peer is to stay awake; this side is */
    uint32_t stay_out, stay_in; /* numbers of the last words on that */
    bool look_at_work; /* since `moved` reqs should have ended: the target that they went to is no more */
    uint64_t moved;
    int status;
    char why[160];
    uint8_t key[WEFT_MAC];
    uint32_t number; /* in nic->by_number */
    uint64_t deadline; /* joining: when to give up; leaving: when to stop waiting for messages */
    struct efa_address own, peer;
    struct efa_hello hello; /* that came before link_connect */
    struct efa_name *to;    /* the peer's message endpoint */
    struct efa_process *process;
    /* where the peer's memory is */
    struct efa_name *target;
    uint32_t epoch;
    bool epoch_known;
    /* messages out */
    uint32_t window;  /* that the peer gives */
    uint32_t ninjected; /* in a row */
    uint64_t unsure;  /* since when messages are out whose fate nobody reports; 0: none */
    uint32_t seq, acked;
    struct weft_list notes;  /* slots of the transport's own, to be posted */
    struct weft_list posted; /* slots that libfabric has */
    uint32_t nnotes;
    struct weft_list sends; /* ops that become messages */
    struct weft_list untaken; /* ops whose message the peer has not taken, in order */
    /* messages in */
    uint32_t taken, told; /* all before `taken` were; told: what the peer knows of it */
    struct weft_list telling; /* nic->telling, or none */
    uint64_t untold_poll;    /* number of the poll that took the first of them */
    uint32_t own_window;
    uint64_t seen[EFA_SEEN / 64]; /* bit n: the message of seq % EFA_SEEN was taken */
    uint32_t last; /* leaving: messages that the peer has sent in all */
    struct weft_list early; /* messages that came before the link was up */
    uint32_t nearly;        /* how many: no more than own_window */
    /* immediates */
    uint16_t imm_seq; /* of the next one out */
    uint16_t imm_oldest; /* all before have ended */
    uint32_t nimms; /* out, not ended */
    uint64_t imm_out[EFA_IMM_SEEN / 64]; /* bit n: number % EFA_IMM_SEEN is out */
    uint16_t imm_next; /* the newest that has arrived, and one; some before it never do: their WRITE has failed */
    uint64_t imm_seen[EFA_IMM_SEEN / 64]; /* bit n: of the last so many before it, number % EFA_IMM_SEEN has */
    struct efa_half *halves;
    uint32_t nhalves;
    struct weft_list asked; /* ops that the peer answers by a message */
    struct weft_list fetches; /* of the peer */
    uint32_t nfetches;
    /* cmds */
    uint32_t nposted; /* whose comp is not handed out */
    uint32_t nopen;   /* not ended */
    uint32_t nbulk;   /* reqs of long ops */
    uint32_t nflying; /* reqs that libfabric has */
    struct weft_list ops, fenced, shorts, bulk;
    /* the peer's memory */
    struct efa_region *table[EFA_BUCKETS];
    struct weft_list regions, stale; /* in the table, last used last; out of it, with users */
    uint32_t nregions, next_id;
    struct weft_list leases;
};

/* --- nic ------------------------------------------------------------------------------------------------ */

/* A message or an immediate that poll has not handed out. */
struct efa_arrival {
    struct efa_arrival *next;
    struct efa_link *link; /* NULL: gone */
    uint32_t imm;
    uint64_t len;
};

/* An endpoint and its completions, which come and go together. */
struct efa_end {
    struct fid_ep *ep;
    struct fid_cq *cq;
    int fd; /* of the queue; -1: the provider has none */
};

struct efa_nic {
    struct weft_nic base;
    const struct efa_lib *lib;
    char name[32];
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct efa_end message, work, target;
    struct efa_target where; /* the target endpoint */
    int epoll_fd, timer_fd;
    /* limits and settings */
    uint64_t chunk;
    uint32_t max_pieces, credits, recvs_most, depth;
    uint32_t inject; /* longest message that libfabric takes over at once */
    uint32_t flying_most; /* reqs that libfabric has at once */
    uint64_t fetch_below; /* READs shorter than this go by messages: 0 none, UINT64_MAX all */
    bool wide; /* 64 bits of data arrive with a WRITE, not 32 */
    bool virt; /* remote memory is named by address, not by offset */
    bool late_imms; /* an immediate goes by a message, when its WRITE has ended */
    bool pick_keys; /* the provider takes keys, instead of making them */
    uint64_t key_mask;
    /* slots */
    struct efa_pool smalls, larges;
    struct weft_list lent; /* received messages that comps of the last poll point to */
    struct weft_list back; /* received, to be posted again */
    uint32_t nrecvs, recvs_want;
    /* peers */
    struct efa_name *names;
    struct efa_process *processes;
    uint64_t pidns, started;
    uint8_t boot[16];
    struct efa_link **by_number;
    uint32_t nnumbers, next_number;
    struct weft_list links, busy;
    uint32_t nlinks;
    /* memory */
    struct efa_mem *mems[EFA_BUCKETS];
    /* work */
    uint32_t nflying;
    struct weft_list flying, again, free_reqs, free_ops;
    struct weft_list done;     /* ops to hand out */
    struct weft_list arrivals; /* slots to hand out */
    struct efa_arrival *imms, **imms_tail;
    struct weft_list last;    /* slots with last words of links that are gone, to be posted */
    struct weft_list telling; /* links */
    uint32_t stuck; /* polls in a row, while something is under way, that brought nothing */
    uint32_t ndown;
    uint32_t nstays, nstaying; /* links that want this side awake; whose peers this side wants awake */
    uint32_t nwaiting; /* links, regions and mems with a deadline */
    uint32_t nleases;
    bool leased;       /* there were some when target was read last, or something came for them */
    uint32_t nlast;    /* last words that libfabric has */
    uint32_t nlong;    /* long ops */
    uint64_t looked;   /* when deadlines were last looked at */
    uint64_t polls;
    bool full;      /* libfabric had no room for what goes once more */
    bool put_off;   /* the last poll had messages, and left what had ended or was to be posted to the next one */
    bool waited;    /* wait_fd was called since the last poll */
    bool fresh;     /* this poll has read its queues, a moment ago */
    enum fi_hmem_iface iface; /* of the GPUs whose memory the device reaches; FI_HMEM_SYSTEM: none */
    bool wakes;     /* what arrives wakes who sleeps, if the provider can */
    bool buries;    /* endpoints are not closed, but buried (efa_quirk.c) */
    int lost;
};

static inline struct efa_nic *efa_nic_of(const struct efa_link *link)
{
    return (struct efa_nic *)link->base.nic;
}

static inline struct efa_name *efa_name_keep(struct efa_name *name)
{
    name->refs++;
    return name;
}

extern const struct weft_transport weft_transport_efa;

/* --- efa_device.c --- */

int efa_probe(struct weft_device_info *list, int max);
/* What libfabric says of a device as an endpoint bound to `host` would have it, with memory of GPUs if asked; for the
 * caller to free. WEFT_ENODEV: there is none such. */
int efa_device_info(const struct efa_lib *lib, const char *device, const char *host, bool gpu,
                    struct fi_info **info);

/* --- efa_ep.c: the endpoints of a nic --- */

int efa_ep_open_all(struct efa_nic *nic);
/* What there is of them; they can be opened again. */
void efa_ep_close_all(struct efa_nic *nic);
/* Let go of the memory of what is under way: reqs of links that are gone end, all others are posted again. */
int efa_ep_reset_work(struct efa_nic *nic);
/* Nothing of any peer is under way to this nic's memory afterwards. Peers are told where it is from now on. */
int efa_ep_reset_target(struct efa_nic *nic);
/* A sentence for a negative code of libfabric. */
int efa_fail(const struct efa_nic *nic, int rc, const char *what);

/* --- efa_env.c: the environment of the process --- */

/* NAME=value from now on, for libraries that read nothing else, unless the environment has the name. Threads that read the
 * environment meanwhile are safe, which they are not beside setenv(). Any thread. */
void efa_env_default(const char *name, const char *value);

/* --- efa_quirk.c: what single providers need --- */

/* Before libfabric is first asked for providers. */
void efa_quirk_prepare(void);
/* True: what a nic opens is to be buried, not closed; then efa_quirk_end when the nic goes. Any thread. */
bool efa_quirk_begin(const struct fi_info *info);
/* nic->flying_most, chunk and fetch_below, as the provider needs them. */
void efa_quirk_limit(struct efa_nic *nic);
/* Does data that comes with a WRITE always come? */
bool efa_quirk_data(const struct fi_info *info);
/* Does it look at its queues without system calls? */
bool efa_quirk_polls(const struct fi_info *info);
/* May something be handed to libfabric for this process? */
bool efa_quirk_reachable(const struct efa_nic *nic, struct efa_process *process);
void efa_quirk_bury(struct fid *fid);
void efa_quirk_end(void);

/* --- efa_port.c: ports that no other one had lately --- */

/* The port that the next endpoint of info is to have, if its provider is one for which it matters: free, another one at each
 * call, and nobody else's until it is released, which is when the endpoint has it; 0, whichever Linux has, where none is found.
 * Any thread. */
int efa_port_hold(struct fi_info *info);
void efa_port_release(int held);

/* --- efa_pool.c --- */

void efa_pool_init(struct efa_pool *pool, struct efa_nic *nic, uint32_t size);
void efa_pool_fini(struct efa_pool *pool);
/* NULL: no memory. */
struct efa_slot *efa_slot_get(struct efa_pool *pool);
void efa_slot_put(struct efa_slot *slot);

/* --- efa_peer.c --- */

/* Where the end of a link is; NULL: refused, or no memory. */
struct efa_name *efa_name_get(struct efa_nic *nic, const void *bytes, uint16_t len);
void efa_name_put(struct efa_nic *nic, struct efa_name *name);
bool efa_name_sound(const struct efa_nic *nic, const void *bytes, uint16_t len);
/* Who this process is, for efa_process_watch at the other end. */
void efa_process_describe(struct efa_nic *nic);
/* 0; WEFT_ELINK: it is dead. *process NULL: it cannot be watched from here. */
int efa_process_watch(struct efa_nic *nic, const struct efa_address *peer, struct efa_process **process);
void efa_process_put(struct efa_nic *nic, struct efa_process *process);
/* NULL, and what is not sure, is alive. */
bool efa_process_alive(const struct efa_process *process);
/* Links to processes that have died go down. */
void efa_process_look(struct efa_nic *nic);

/* --- efa_mem.c: this side's memory --- */

int efa_mem_reg(struct weft_nic *base, const struct weft_mem_range *range,
                struct weft_mem_handle *handle);
int efa_mem_dereg(struct weft_nic *base, void *mem);
/* Register with libfabric, under a key of its own making or a random one. access: FI_SEND ... FI_REMOTE_WRITE. */
int efa_mr_reg(struct efa_nic *nic, void *addr, uint64_t len, uint64_t access, struct fid_mr **mr);
uint32_t efa_mem_kinds(const struct efa_nic *nic);
/* Questions of a peer, and what it gives back. */
void efa_mem_lookup(struct efa_link *link, const struct efa_lookup_msg *msg);
void efa_mem_returned(struct efa_link *link, uint32_t id);
void efa_mem_add(struct efa_link *link, const struct efa_add_msg *msg);
/* By core's key; NULL: none. */
struct efa_mem *efa_mem_find(struct efa_nic *nic, uint64_t key);
/* The link is gone. */
void efa_mem_forget(struct efa_link *link);
/* Does the peer hold leases that no reset has ended? */
bool efa_mem_leased(const struct efa_link *link);
/* The target is another one. */
void efa_mem_clean(struct efa_nic *nic);
/* What the peer says, which has to be 0 or an error. */
static inline int efa_status_of(int32_t wire)
{
    int status = (int32_t)le32toh((uint32_t)wire);
    return status > 0 ? WEFT_EPROTO : status;
}
/* May a peer do this? 0 or a WEFT_E code. */
int efa_judge(uint64_t addr, uint64_t len, uint32_t access, uint8_t op, uint64_t at,
              uint64_t bytes);

/* --- efa_fetch.c: READ by messages --- */

void efa_fetch_asked(struct efa_link *link, const struct efa_fetch_msg *msg);
/* The next bytes, into a message's body of at most `room` bytes, behind their struct efa_data_msg. Returns how many. */
uint32_t efa_fetch_fill(const struct efa_fetch *fetch, void *body, uint32_t room);
/* That message is on its way; the last one ends the fetch. */
void efa_fetch_sent(struct efa_fetch *fetch, uint32_t n);
void efa_fetch_data(struct efa_link *link, const struct efa_data_msg *msg, const void *bytes,
                    size_t n);
/* The memory goes, the link goes. */
void efa_fetch_drop_mem(struct efa_mem *mem);
void efa_fetch_drop(struct efa_link *link);

/* --- efa_gpu.c: memory of GPUs --- */

/* libfabric's name for the memory of a backend; FI_HMEM_SYSTEM: it has none. */
enum fi_hmem_iface efa_gpu_iface(const char *gpu);
/* WEFT_MEM_*, besides the host's. */
uint32_t efa_gpu_kinds(const struct efa_nic *nic);
/* Before the endpoint is enabled. Not 0: the provider would copy such memory through the host's. */
int efa_gpu_require(struct fid_ep *ep);
/* Register; 0 or libfabric's code. */
int efa_gpu_reg(const struct efa_nic *nic, const struct weft_mem_range *range, uint64_t access,
                uint64_t key, struct fid_mr **mr);

/* --- efa_region.c: the peer's --- */

/* What the op may use now; NULL: it waits for the answer, or it has ended. */
struct efa_region *efa_region_of(struct efa_op *op);
void efa_region_answer(struct efa_link *link, const struct efa_answer_msg *msg);
void efa_region_revoke(struct efa_link *link, uint64_t key, uint32_t id);
/* What is behind this key, asked for if it is not known. Good until something else is done, or as long as it has users;
 * NULL: no memory, and the link has failed. */
struct efa_region *efa_region_get(struct efa_link *link, uint64_t key);
/* In words. */
const char *efa_refusal(int status);
/* A user less. */
void efa_region_leave(struct efa_region *region);
/* What is known may be wrong: the next one asks again. */
void efa_region_doubt(struct efa_region *region);
void efa_region_drop_all(struct efa_link *link);
void efa_region_tick(struct efa_link *link, uint64_t now);

/* --- efa_link.c --- */

int efa_link_open(struct weft_nic *base, const struct weft_link_opts *opts,
                  struct weft_link **out);
int efa_link_address(struct weft_link *base, void *buf, size_t cap);
int efa_link_connect(struct weft_link *base, const void *addr, size_t len);
void efa_link_close(struct weft_link *base);
void efa_link_fail(struct efa_link *link, int status, const char *fmt, ...)
    WEFT_PRINTF(3, 4) WEFT_COLD;
void efa_link_on_hello(struct efa_link *link, const struct efa_hello *hello);
void efa_link_on_up(struct efa_link *link);
void efa_link_on_target(struct efa_link *link, const struct efa_target *target);
void efa_link_on_bye(struct efa_link *link, uint32_t last);
/* Has the last message of a peer that leaves come? */
void efa_link_leave(struct efa_link *link);
/* The peer, who wants to know, hears when nothing is under way any more. */
void efa_link_quiet(struct efa_link *link);
struct efa_link *efa_link_find(const struct efa_nic *nic, uint32_t number);
/* Of a nic that cannot be woken, from time to time: peers stay awake while something is under way to them. */
void efa_link_stays(struct efa_nic *nic, bool stay);
void efa_link_on_stay(struct efa_link *link, const struct efa_stay_msg *msg);
void efa_link_tick(struct efa_nic *nic, uint64_t now);
/* There is something to post. */
void efa_busy(struct efa_link *link);

/* --- efa_msg.c --- */

/* Queue a message of the transport itself. */
void efa_msg_note(struct efa_link *link, enum efa_kind kind, const void *body, uint32_t len);
/* BYE or QUIET, which go also when the link is gone. */
void efa_msg_last(struct efa_link *link, enum efa_kind kind);
void efa_msg_last_again(struct efa_nic *nic);
/* End what the peer has taken: the link is up. */
void efa_msg_end_taken(struct efa_link *link);
/* The same, and post what credits and room allow. */
void efa_msg_flush(struct efa_link *link);
/* Post a SEND now, before all else: 1; 0 it has to wait; or the link has failed. Its number is link->seq - 1 then. */
int efa_msg_send(struct efa_link *link, const struct weft_cmd *cmd);
/* Post as many receives as the links want. */
void efa_msg_receive(struct efa_nic *nic);
/* Counts that peers wait for: all, or those that are due. */
void efa_msg_tell(struct efa_nic *nic, bool all);
/* The link is up: what came early is taken. */
void efa_msg_early(struct efa_link *link);
void efa_msg_arrived(struct efa_nic *nic, struct efa_slot *slot, size_t len);
void efa_msg_sent(struct efa_nic *nic, struct efa_slot *slot, int error, const char *why);
/* Messages whose fate nobody reports have not been acknowledged for long: one is sent whose fate is reported. */
void efa_msg_tick(struct efa_link *link, uint64_t now);
/* The user has it. */
void efa_msg_taken(struct efa_link *link, uint32_t seq);
void efa_msg_take_back(struct efa_nic *nic);
void efa_msg_drop(struct efa_link *link);

/* --- efa_imm.c: immediates --- */

void efa_imm_tagged(struct efa_nic *nic, uint64_t data, size_t len);
void efa_imm_message(struct efa_link *link, const struct efa_imm_msg *msg);
/* A WRITE_IMM goes out with the next number, if the peer remembers as far back as the oldest that is out; it has ended. */
bool efa_imm_has_room(const struct efa_link *link);
void efa_imm_out(struct efa_op *op);
void efa_imm_ended(struct efa_op *op);
void efa_imm_drop(struct efa_link *link);

/* --- efa_op.c --- */

int efa_post(struct weft_link *base, const struct weft_cmd *cmds, int n);
/* On to the list of what can be posted. */
void efa_op_ready(struct efa_op *op);
void efa_op_fail(struct efa_op *op, int status, const char *why);
/* A message of it was taken or answered. */
void efa_op_message_done(struct efa_op *op);
void efa_op_pump(struct efa_link *link);
/* That waits for the answer to this question; NULL: none. */
struct efa_op *efa_op_asked(struct efa_link *link, uint32_t id, enum weft_op kind);
void efa_op_added(struct efa_link *link, const struct efa_added_msg *msg);
/* It is over if nothing of it is under way, or left to do. */
void efa_op_settle(struct efa_op *op);
/* All of the link, but what libfabric has; and then that, too. */
void efa_op_drop(struct efa_link *link);
void efa_op_drop_rest(struct efa_link *link);
void efa_op_free(struct efa_op *op);
/* The pieces of its payload. */
const struct weft_iov_local *efa_op_pieces(const struct efa_op *op, uint32_t *n);
/* n pieces, into as many bytes. */
void efa_gather(const struct weft_iov_local *pieces, uint32_t n, void *to);
/* The payload, into as many bytes. */
void efa_op_gather(const struct efa_op *op, void *to);
/* n bytes of it, which are within it. */
void efa_op_scatter(const struct efa_op *op, uint64_t offset, const void *from, size_t n);

/* --- efa_req.c: operations of libfabric --- */

/* The next one of an op that has more to post. False: there is no room. */
bool efa_req_next(struct efa_op *op, bool bulk);
/* What waits behind all others: those that go once more. */
void efa_req_again(struct efa_nic *nic);
/* libfabric has it no more. */
void efa_req_back(struct efa_req *req);
void efa_req_done(struct efa_req *req, int error, const char *why);
/* Those of the link that would go once more do not. */
void efa_req_drop(struct efa_link *link);

/* --- efa_poll.c --- */

int efa_poll(struct weft_nic *base, struct weft_comp *comps, int max);
int efa_wait_fd(struct weft_nic *base);
/* Read completions, without handing anything out. Returns how many. */
int efa_progress(struct efa_nic *nic);
/* Read all that one endpoint has. */
void efa_drain(struct efa_nic *nic, const struct efa_end *end);

#endif
