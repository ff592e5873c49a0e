/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long copy that both ends make: the target from the front, the initiator, which waits for it in
 * any case, from the back. A copy by the kernel is slower than memcpy, since it looks up and pins
 * each page; two processors make up for it.
 *
 * The copy is cut into units of LOCAL_STEP. A word in shared memory, of the target, says how many
 * of them each end has taken, and whether the initiator is inside one; each end takes a unit by
 * compare-and-swap. So the target never waits for an initiator that does not look at its ring: what
 * that one has not taken, the target takes. Neither trusts the word: each has its own counts, and a
 * wrong word can only spoil the copy that both agreed to make.
 */
#include "local.h"

#include <string.h>

/* The word: busy, tag (15 bits), units taken from the front and from the back (24 bits each). */
#define BUSY ((uint64_t)1 << 63)
#define TAG_SHIFT 48
#define TAG_MASK 0x7fffu
#define FRONT_SHIFT 24
#define UNITS_MASK 0xffffffu
_Static_assert(LOCAL_MAX_MSG / LOCAL_STEP <= UNITS_MASK, "units of the longest copy fit");

static struct local_nic *nic_of(const struct local_link *link)
{
    return (struct local_nic *)link->base.nic;
}

static uint32_t front_of(uint64_t word)
{
    return (uint32_t)(word >> FRONT_SHIFT) & UNITS_MASK;
}

static uint32_t back_of(uint64_t word)
{
    return (uint32_t)word & UNITS_MASK;
}

static uint32_t tag_of(uint64_t word)
{
    return (uint32_t)(word >> TAG_SHIFT) & TAG_MASK;
}

static uint32_t units_of(uint64_t len)
{
    return (uint32_t)((len + LOCAL_STEP - 1) / LOCAL_STEP);
}

/* --- the target ------------------------------------------------------------------------------ */

/* acquire: what the initiator copied is there; pairs with leave */
static uint64_t load(const struct local_share *share)
{
    return atomic_load_explicit(share->word, memory_order_acquire);
}

/* Is it what we and an honest initiator have made of it? */
static bool sound(const struct local_share *share, uint64_t word)
{
    return tag_of(word) == share->tag && front_of(word) == share->front &&
           back_of(word) <= share->units - share->front;
}

void local_share_offer(struct local_link *link, uint16_t slot)
{
    struct local_share *share = &link->share;
    const struct local_job *job = &link->jobs[slot];
    if (share->slot != LOCAL_NO_SLOT || link->shut_at || !link->direct_out || !nic_of(link)->share ||
        job->niov != 1 || job->len - job->done < LOCAL_SHARE_MIN || job->done % LOCAL_STEP ||
        load(share) & BUSY)
        return;
    struct local_offer *offer = local_ring_reserve(&link->tx, sizeof *offer, LOCAL_OFFER, 0, slot);
    if (!offer)
        return; /* it is not needed */
    uint32_t tag = (share->tag + 1) & TAG_MASK;
    *offer = (struct local_offer){.addr = job->addr, .tag = tag};
    share->slot = slot;
    share->tag = tag;
    share->units = units_of(job->len);
    share->front = units_of(job->done);
    atomic_store_explicit(
        share->word, (uint64_t)share->tag << TAG_SHIFT | (uint64_t)share->front << FRONT_SHIFT,
        memory_order_release);
    share->key = job->key;
    if (share->listed)
        return;
    share->listed = true;
    share->next = nic_of(link)->sharing;
    nic_of(link)->sharing = link;
}

enum local_share_turn local_share_take(struct local_link *link)
{
    struct local_share *share = &link->share;
    uint64_t word = load(share);
    do {
        if (!sound(share, word)) {
            link->tx.broken = true; /* whoever writes such a word writes anything */
            return LOCAL_SHARE_WAIT;
        }
        if (share->front + back_of(word) == share->units)
            return word & BUSY ? LOCAL_SHARE_WAIT : LOCAL_SHARE_OVER;
    } while (!atomic_compare_exchange_weak_explicit(share->word, &word,
                                                    word + ((uint64_t)1 << FRONT_SHIFT),
                                                    memory_order_acquire, memory_order_acquire));
    share->front++;
    return LOCAL_SHARE_MINE;
}

bool local_share_ready(const struct local_link *link)
{
    const struct local_share *share = &link->share;
    uint64_t word = load(share);
    return share->waiting && !(word & BUSY && share->front + back_of(word) >= share->units);
}

/* May the initiator be in a unit? A process that was killed in one has left it when its socket is
 * closed. */
static bool inside(const struct local_link *link)
{
    return load(&link->share) & BUSY && !local_peer_gone(link->source.fd);
}

static void unlist(struct local_link *link)
{
    struct local_link **at = &nic_of(link)->sharing;
    while (*at && *at != link)
        at = &(*at)->share.next;
    if (*at)
        *at = link->share.next;
    link->share.listed = false;
}

void local_share_end(struct local_link *link)
{
    struct local_share *share = &link->share;
    if (share->slot == LOCAL_NO_SLOT)
        return;
    /* another tag: there is nothing to take. acquire, and in one order with enter: the initiator
     * has seen it, or is seen to be busy */
    uint64_t word = load(share), none = (uint64_t)((share->tag + 1) & TAG_MASK) << TAG_SHIFT;
    while (!atomic_compare_exchange_weak_explicit(share->word, &word, none | (word & BUSY),
                                                  memory_order_acq_rel, memory_order_acquire))
        ;
    share->tag = tag_of(none);
    share->slot = LOCAL_NO_SLOT;
    share->waiting = false;
    if (!inside(link))
        unlist(link);
}

void local_share_withdraw(struct local_link *link)
{
    bool waiting = link->share.waiting;
    uint16_t slot = link->share.slot;
    local_share_end(link);
    if (waiting) /* alone, or to find that the key is gone */
        local_serve_resume(link, slot);
}

bool local_share_entered(const struct local_link *link)
{
    return link->share.listed && inside(link);
}

bool local_share_revoke(struct local_nic *nic, uint64_t key)
{
    bool busy = false;
    for (struct local_link *link = nic->sharing, *next; link; link = next) {
        next = link->share.next;
        if (link->share.key != key)
            continue;
        local_share_withdraw(link);
        if (inside(link))
            busy = true;
        else
            unlist(link);
    }
    return busy;
}

void local_share_close(struct local_link *link)
{
    local_share_end(link);
    if (link->share.listed)
        unlist(link);
}

/* --- the initiator --------------------------------------------------------------------------- */

int local_help_offered(struct local_link *link, uint16_t number, const uint8_t *body, uint64_t len)
{
    struct local_offer offer;
    if (number >= LOCAL_DEPTH || len != sizeof offer)
        return WEFT_EPROTO;
    local_ring_read(&offer, body, sizeof offer);
    const struct local_slot *slot = &link->slots[number];
    if (slot->state != LOCAL_SLOT_POSTED || slot->how != LOCAL_DIRECT || slot->niov != 1 ||
        slot->len < LOCAL_SHARE_MIN || offer.tag > TAG_MASK)
        return WEFT_EPROTO;
    if (!link->direct_in || !nic_of(link)->share)
        return 0;
    link->help = (struct local_help){.slot = number,
                                     .tag = offer.tag,
                                     .addr = offer.addr,
                                     .units = units_of(slot->len),
                                     .left = units_of(slot->len),
                                     .tell = link->help.tell};
    return 0;
}

void local_help_drop(struct local_link *link, uint16_t number)
{
    if (link->help.slot == number)
        link->help.slot = LOCAL_NO_SLOT;
}

/* Take a unit, counted from the back. False: there is none. */
static bool enter(const struct local_link *link, uint32_t *unit)
{
    const struct local_help *help = &link->help;
    uint64_t word = atomic_load_explicit(link->help_word, memory_order_relaxed);
    do {
        if (word & BUSY || tag_of(word) != help->tag || !help->left ||
            front_of(word) + back_of(word) >= help->units)
            return false;
        *unit = back_of(word);
        /* acquire: pairs with local_share_end; who looks after it sees us busy */
    } while (!atomic_compare_exchange_weak_explicit(link->help_word, &word, (word | BUSY) + 1,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return true;
}

/* Out of the unit; one that was not copied goes back to the target, which may have better luck. */
static void leave(const struct local_link *link, bool copied)
{
    uint64_t word = atomic_load_explicit(link->help_word, memory_order_relaxed), out;
    do {
        bool back = !copied && tag_of(word) == link->help.tag && back_of(word);
        out = (word & ~BUSY) - (back ? 1 : 0);
        /* release: the bytes are there; pairs with load */
    } while (!atomic_compare_exchange_weak_explicit(link->help_word, &word, out,
                                                    memory_order_release, memory_order_relaxed));
}

/* Copy the unit of which `unit` are behind it. */
static bool copy_unit(struct local_link *link, uint32_t unit)
{
    const struct local_help *help = &link->help;
    const struct local_slot *slot = &link->slots[help->slot];
    uint64_t at = (uint64_t)(help->units - 1 - unit) * LOCAL_STEP, left = slot->len - at;
    uint64_t end = at + (left < LOCAL_STEP ? left : LOCAL_STEP);
    /* its pid may be another's by now */
    if (!link->same_process && local_peer_gone(link->source.fd))
        return false;
    while (at < end) {
        void *ours = (char *)slot->iov->addr + at;
        struct iovec theirs = {(void *)(uintptr_t)(help->addr + at), end - at};
        ssize_t moved = local_move(link, ours, &theirs, 1,
                                   slot->op == WEFT_OP_WRITE || slot->op == WEFT_OP_WRITE_IMM);
        if (moved <= 0)
            return false;
        at += (uint64_t)moved;
    }
    return true;
}

/* The target may sleep until we are out: an entry wakes it. False: no room for it. */
static bool tell(struct local_link *link)
{
    link->help.tell = !local_ring_reserve(&link->tx, 0, LOCAL_HELPED, 0, 0);
    return !link->help.tell;
}

/* Copy a unit. False: there is none left for us. */
static bool help_once(struct local_link *link)
{
    uint32_t unit;
    if (!enter(link, &unit))
        return false;
    bool copied = copy_unit(link, unit);
    leave(link, copied);
    link->help.left--;
    nic_of(link)->budget -= LOCAL_STEP;
    return copied;
}

/* Small operations are under way. A fence is none: it waits for what is long, too. */
static bool small(const struct local_link *link)
{
    return link->nsmall > (link->fence != LOCAL_NO_SLOT);
}

bool local_help_ready(const struct local_link *link)
{
    return link->help.slot != LOCAL_NO_SLOT && !small(link);
}

void local_help_progress(struct local_link *link)
{
    struct local_help *help = &link->help;
    /* One in a poll, and none while small operations are under way: their answers are looked for.
     * The target goes on without us. */
    if (help->slot != LOCAL_NO_SLOT && (small(link) || help_once(link)))
        return;
    if (help->slot != LOCAL_NO_SLOT)
        help->tell = help->tell || help->left < help->units;
    help->slot = LOCAL_NO_SLOT;
    if (help->tell && !tell(link))
        link->starved = true;
}
