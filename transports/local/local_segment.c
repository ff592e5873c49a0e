/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory of a link, and the gates in it.
 *
 * The active end makes the segment, sealed so that no one can shrink it under the other's feet,
 * and passes its descriptor over the socket. Segments of a process are in one table: the second
 * end, if it is in the same process, finds the first one's mapping there and uses it.
 */
#include "local.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

_Static_assert(sizeof(struct local_segment_head) <= LOCAL_SEGMENT_HEAD, "head fits its page");

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A gate's word: shut, turn (31 bits), who is inside since an odd turn and since an even one (16 bits each). */
#define GATE_SHUT ((uint64_t)1 << 63)
#define GATE_TURN_SHIFT 32
#define GATE_TURN_MASK 0x7fffffffu
#define GATE_INSIDE_MASK 0xffffu

static void forget_segments(void);
static struct weft_static_lock segments_lock = WEFT_STATIC_LOCK(.in_child = forget_segments);
/* Inodes of memory files are numbers in a row, so their low bits are the hash. Ten thousand links
 * have a handful in each bucket, and the table is touched where it is used only. */
#define BUCKETS 4096
static struct local_segment *segments[BUCKETS];

/* A child has none of them (MADV_DONTFORK), and a number of a file comes round again. */
static void forget_segments(void)
{
    for (int i = 0; i < BUCKETS; i++)
        if (segments[i]) /* a table that was not used is not touched */
            segments[i] = NULL;
}

static struct local_segment **bucket_of(ino_t ino)
{
    return &segments[ino % BUCKETS];
}

static uint64_t segment_bytes(uint64_t ring_size)
{
    return LOCAL_SEGMENT_HEAD + 2 * ring_size;
}

static int map(int fd, const struct stat *st, uint64_t ring_size, struct local_segment **out)
{
    struct local_segment *segment = malloc(sizeof *segment);
    if (!segment)
        return weft_fail(-ENOMEM, "local: no memory for a segment");
    void *base = mmap(NULL, segment_bytes(ring_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int rc = weft_fail(-errno, "local: cannot map a segment of %" PRIu64 " bytes: %m",
                           segment_bytes(ring_size));
        free(segment);
        return rc;
    }
    /* a child would keep the memory of dead links */
    madvise(base, segment_bytes(ring_size), MADV_DONTFORK);
    *segment = (struct local_segment){
        .refs = 1, .dev = st->st_dev, .ino = st->st_ino, .ring_size = ring_size, .base = base};
    *out = segment;
    return 0;
}

/* Find the mapping of this file, or make it. */
static int get(int fd, uint64_t ring_size, struct local_segment **out)
{
    struct stat st;
    if (fstat(fd, &st))
        return weft_fail(-errno, "local: cannot look at a segment: %m");
    if ((uint64_t)st.st_size != segment_bytes(ring_size))
        return weft_fail(WEFT_EPROTO, "local: a segment has %" PRId64 " bytes, not %" PRIu64,
                         (int64_t)st.st_size, segment_bytes(ring_size));
    int rc = 0;
    weft_static_lock(&segments_lock);
    struct local_segment **bucket = bucket_of(st.st_ino), *segment = *bucket;
    while (segment && (segment->ino != st.st_ino || segment->dev != st.st_dev))
        segment = segment->next;
    if (segment) {
        segment->refs++;
    } else {
        rc = map(fd, &st, ring_size, &segment);
        if (!rc) {
            segment->next = *bucket;
            *bucket = segment;
        }
    }
    weft_static_unlock(&segments_lock);
    if (!rc)
        *out = segment;
    return rc;
}

/* ftruncate beyond the limit on the size of files is a signal, which ends the process. */
static bool too_large(uint64_t bytes)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur;
}

int local_segment_create(uint64_t ring_size, struct local_segment **segment, int *out)
{
    if (too_large(segment_bytes(ring_size)))
        return weft_fail(-EFBIG,
                         "local: %" PRIu64 " bytes of shared memory are more than a file of this "
                         "process may have (ulimit -f)",
                         segment_bytes(ring_size));
    int fd = memfd_create("weft-local", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return weft_fail(-errno, "local: cannot make shared memory: %m");
    int rc = 0;
    if (ftruncate(fd, (off_t)segment_bytes(ring_size)) || fcntl(fd, F_ADD_SEALS, SEALS))
        rc = weft_fail(-errno, "local: cannot make %" PRIu64 " bytes of shared memory: %m",
                       segment_bytes(ring_size));
    if (!rc)
        rc = get(fd, ring_size, segment);
    if (rc)
        close(fd);
    else
        *out = fd;
    return rc;
}

int local_segment_open(int fd, uint64_t ring_size, struct local_segment **segment)
{
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (ring_size < LOCAL_RING_MIN || ring_size > LOCAL_RING_MAX || ring_size & (ring_size - 1))
        return weft_fail(WEFT_EPROTO, "local: peer's ring has %" PRIu64 " bytes", ring_size);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return weft_fail(WEFT_EPROTO, "local: peer's shared memory is not sealed");
    /* huge pages could be missing when touched, which is a signal */
    if (fstatfs(fd, &fs) || fs.f_type != TMPFS_MAGIC)
        return weft_fail(WEFT_EPROTO, "local: peer's shared memory is not of pages");
    return get(fd, ring_size, segment);
}

void local_segment_put(struct local_segment *segment)
{
    weft_static_lock(&segments_lock);
    if (--segment->refs == 0) {
        struct local_segment **at = bucket_of(segment->ino);
        while (*at != segment)
            at = &(*at)->next;
        *at = segment->next;
        munmap(segment->base, segment_bytes(segment->ring_size));
        free(segment);
    }
    weft_static_unlock(&segments_lock);
}

void local_segment_attach(struct local_segment *segment, struct local_link *link)
{
    struct local_segment_head *head = (struct local_segment_head *)segment->base;
    uint64_t size = segment->ring_size;
    int mine = link->role == WEFT_ROLE_ACTIVE ? 0 : 1, peer = 1 - mine;
    uint8_t *rings = segment->base + LOCAL_SEGMENT_HEAD;
    local_ring_tx_init(&link->tx, &head->ring[mine], rings + (uint64_t)mine * size, size);
    local_ring_rx_init(&link->rx, &head->ring[peer], rings + (uint64_t)peer * size, size);
    link->gate_mine = &head->gate[mine];
    link->gate_peer = &head->gate[peer];
    link->share.word = &head->share[mine].word;
    link->help_word = &head->share[peer].word;
    link->segment = segment;
}

static uint32_t turn_of(uint64_t word)
{
    return (uint32_t)(word >> GATE_TURN_SHIFT) & GATE_TURN_MASK;
}

static unsigned shift_of(uint32_t turn)
{
    return turn & 1 ? 16 : 0;
}

static uint64_t inside(uint64_t word, uint32_t turn)
{
    return word >> shift_of(turn) & GATE_INSIDE_MASK;
}

static bool enter(struct local_gate *gate, uint64_t word, uint32_t turn)
{
    do {
        if (word & GATE_SHUT || turn_of(word) != turn || inside(word, turn) == GATE_INSIDE_MASK)
            return false;
        /* acquire: what comes after is not done before; pairs with shut and recall */
    } while (!atomic_compare_exchange_weak_explicit(&gate->word, &word,
                                                    word + ((uint64_t)1 << shift_of(turn)),
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

bool local_gate_enter(struct local_gate *gate, uint32_t turn)
{
    return enter(gate, atomic_load_explicit(&gate->word, memory_order_relaxed), turn);
}

bool local_gate_enter_now(struct local_gate *gate, uint32_t *turn)
{
    uint64_t word;
    do {
        word = atomic_load_explicit(&gate->word, memory_order_relaxed);
        *turn = turn_of(word);
        if (word & GATE_SHUT || inside(word, *turn) == GATE_INSIDE_MASK)
            return false;
    } while (!enter(gate, word, *turn)); /* the next turn has begun */
    return true;
}

void local_gate_leave(struct local_gate *gate, uint32_t turn)
{
    /* release: the copy is over; pairs with the loads in shut and recalled */
    atomic_fetch_sub_explicit(&gate->word, (uint64_t)1 << shift_of(turn), memory_order_release);
}

/* The process at the other end has ended, so that neither it nor a device does anything more for it. Its socket closes
 * before that, and also when it takes the link for lost. */
static bool ended(const struct local_link *link)
{
    if (!local_peer_gone(link->source.fd))
        return false;
    if (link->same_process)
        return false; /* it leaves by itself */
    int fd = link->pid > 0 ? (int)syscall(SYS_pidfd_open, link->pid, 0) : -1;
    if (fd < 0)
        return link->pid <= 0 ||
               errno != EMFILE; /* nobody has this number, or it is not known who */
    struct pollfd look = {.fd = fd, .events = POLLIN};
    bool over = poll(&look, 1, 0) > 0;
    close(fd);
    return over;
}

uint32_t local_gate_recall(struct local_gate *gate)
{
    uint64_t word = atomic_load_explicit(&gate->word, memory_order_relaxed), next;
    uint32_t turn;
    do {
        turn = (turn_of(word) + 1) & GATE_TURN_MASK;
        next = (word & ~((uint64_t)GATE_TURN_MASK << GATE_TURN_SHIFT)) | (uint64_t)turn
                                                                             << GATE_TURN_SHIFT;
        /* acq_rel: pairs with enter, which sees the new turn or is seen inside */
    } while (!atomic_compare_exchange_weak_explicit(&gate->word, &word, next, memory_order_acq_rel,
                                                    memory_order_relaxed));
    return turn;
}

bool local_gate_recalled(const struct local_link *link)
{
    uint64_t word = atomic_load_explicit(&link->gate_mine->word, memory_order_acquire);
    bool entered = inside(word, turn_of(word) + 1) || (link->shut_at && inside(word, turn_of(word)));
    return !entered || ended(link);
}

void local_gate_shut(struct local_link *link)
{
    atomic_fetch_or_explicit(&link->gate_mine->word, GATE_SHUT, memory_order_acq_rel);
    if (!link->shut_at)
        link->shut_at = weft_now();
}

/* --- for core ------------------------------------------------------------------------------- */

int local_link_enter(struct weft_link *base, uint32_t turn)
{
    struct local_link *link = (struct local_link *)base;
    return link->segment && local_gate_enter(link->gate_peer, turn);
}

void local_link_leave(struct weft_link *base, uint32_t turn)
{
    struct local_link *link = (struct local_link *)base;
    local_gate_leave(link->gate_peer, turn);
}

uint32_t local_link_recall(struct weft_link *base, int last)
{
    struct local_link *link = (struct local_link *)base;
    if (!link->segment) /* nobody has been let in yet */
        return 0;
    if (!last)
        return local_gate_recall(link->gate_mine);
    local_gate_shut(link);
    local_share_withdraw(link);
    return turn_of(atomic_load_explicit(&link->gate_mine->word, memory_order_relaxed));
}

int local_link_recalled(struct weft_link *base)
{
    const struct local_link *link = (const struct local_link *)base;
    return !link->segment || (local_gate_recalled(link) && !(link->shut_at && local_share_entered(link)));
}
