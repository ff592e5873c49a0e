/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's life. Joining, once core has carried the addresses:
 *
 *     passive  control queue pair ready, HELLO ->
 *     active                                   <- HELLO, its data queue pairs are ready
 *     passive  its data queue pairs are ready, UP ->
 *
 * The passive end begins: core calls it last, so the other's queue pair is there to hear it. With a key,
 * each HELLO carries a code of both addresses, which are new each time, and who was heard first.
 *
 * Closing: data queue pairs are destroyed at once, with them all use of the user's memory. The control
 * queue pair stays, in nic->closed, until the peer's device has acknowledged the goodbye.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define JOIN_NS 5000000000u /* for the peer to answer; core allows WEFT_CONNECT_TIMEOUT in all */
#define BYE_NS 1000000000u  /* for a goodbye to be acknowledged */
#define LAST_NS 100000000u  /* for the device to say that no receive is in use any more */
#define ASK_NS 500000000u   /* between looks at a peer that is waited for */
#define QPN_MAX 0xffffffu
#define LEAST_ROOM 64 /* completions that a link has to find room for, beside its receives */

/* --- lists ---------------------------------------------------------------------------------------------- */

static void list_add(struct verbs_link **list, struct verbs_link *link)
{
    link->prev = NULL;
    link->next = *list;
    if (link->next)
        link->next->prev = link;
    *list = link;
}

static void list_remove(struct verbs_link **list, struct verbs_link *link)
{
    if (link->prev)
        link->prev->next = link->next;
    else
        *list = link->next;
    if (link->next)
        link->next->prev = link->prev;
}

static struct verbs_link **bucket(const struct verbs_nic *nic, uint32_t qpn)
{
    return &nic->by_qpn[qpn % VERBS_BUCKETS];
}

struct verbs_link *verbs_link_find(const struct verbs_nic *nic, uint32_t qpn)
{
    struct verbs_link *link = *bucket(nic, qpn);
    while (link && link->control.qp->qp_num != qpn)
        link = link->qpn_next;
    return link;
}

static void leave_bucket(struct verbs_link *link)
{
    struct verbs_link **at = bucket(verbs_nic_of(link), link->control.qp->qp_num);
    while (*at != link)
        at = &(*at)->qpn_next;
    *at = link->qpn_next;
}

static void leave_busy(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_link **at = &nic->busy;
    if (!link->busy)
        return;
    while (*at != link)
        at = &(*at)->busy_next;
    *at = link->busy_next;
    if (nic->busy_tail == &link->busy_next)
        nic->busy_tail = at;
    link->busy = false;
}

/* --- begin ---------------------------------------------------------------------------------------------- */

static int open_qps(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    int rc = verbs_qp_open(&link->control, link, 0);
    if (rc)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < nic->ndata; i++) {
        rc = verbs_qp_open(&link->data[i], link, (uint8_t)(1 + i));
        link->ndata += rc == 0;
    }
    return rc;
}

static void close_data(struct verbs_link *link)
{
    for (uint32_t i = 0; i < link->ndata; i++)
        verbs_qp_close(&link->data[i]);
}

static void describe_own(struct verbs_link *link)
{
    const struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_address *own = &link->own;
    *own = (struct verbs_address){.magic = htole32(VERBS_MAGIC),
                                  .version = VERBS_VERSION,
                                  .flags = link->keyed ? VERBS_ADDRESS_KEYED : 0,
                                  .link_layer = nic->layer,
                                  .mtu = nic->mtu,
                                  .lid = htole16(nic->lid),
                                  .ndata = (uint8_t)link->ndata,
                                  .reads = nic->reads_in,
                                  .credits = htole16((uint16_t)link->window),
                                  .imms = htole16((uint16_t)nic->imms)};
    memcpy(own->gid, nic->gid.raw, sizeof own->gid);
    for (uint32_t i = 0; i <= link->ndata; i++) {
        const struct verbs_qp *qp = i ? &link->data[i - 1] : &link->control;
        own->qpn[i] = htole32(qp->qp->qp_num);
        own->psn[i] = htole32(qp->psn);
    }
}

static struct verbs_link *link_new(struct verbs_nic *nic, const struct weft_link_opts *opts)
{
    struct verbs_link *link = calloc(1, sizeof *link);
    if (link)
        link->data = calloc(nic->ndata, sizeof *link->data);
    if (!link || !link->data) {
        free(link);
        return NULL;
    }
    link->base.nic = &nic->base;
    link->role = (uint8_t)opts->role;
    link->window = nic->credits;
    link->notes_tail = &link->notes;
    link->bulk.tail = &link->bulk.head;
    link->imms.tail = &link->imms.head;
    link->sends.tail = &link->sends.head;
    link->keyed = opts->key != NULL;
    if (link->keyed)
        memcpy(link->key, opts->key, WEFT_MAC);
    return link;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Room in the completion queue for the receives of another link: it posts them when it is connected. */
static uint32_t room_for(const struct verbs_nic *nic)
{
    uint32_t own = nic->credits + VERBS_SPARE_RECVS;
    if (nic->srq)
        own = least(nic->srq_want + own, nic->srq_most) - least(nic->srq_want, nic->srq_most);
    return own + nic->imms;
}

void verbs_link_posted(struct verbs_link *link)
{
    verbs_nic_of(link)->cq_kept -= link->kept;
    link->kept = 0;
}

int verbs_link_open(struct weft_nic *base, const struct weft_link_opts *opts,
                    struct weft_link **out)
{
    struct verbs_nic *nic = (struct verbs_nic *)base;
    if (nic->lost)
        return weft_fail(WEFT_ENODEV, "verbs %s: the device is gone", nic->name);
    if (nic->port_lost)
        return weft_fail(WEFT_ELINK, "verbs %s: the port is down", nic->name);
    if (nic->cq_room - nic->cq_kept < (int64_t)(room_for(nic) + LEAST_ROOM))
        return weft_fail(WEFT_ELIMIT,
                         "verbs %s: its completion queue has no room for another link", nic->name);
    struct verbs_link *link = link_new(nic, opts);
    if (!link)
        return weft_fail(-ENOMEM, "verbs %s: no memory for a link", nic->name);
    int rc = open_qps(link);
    if (rc == 0)
        rc = weft_random(link->own.nonce, sizeof link->own.nonce);
    if (rc) {
        close_data(link);
        verbs_qp_close(&link->control);
        free(link->data);
        free(link);
        return rc;
    }
    uint8_t nonce[VERBS_NONCE];
    memcpy(nonce, link->own.nonce, sizeof nonce);
    describe_own(link);
    memcpy(link->own.nonce, nonce, sizeof nonce);
    list_add(&nic->links, link);
    struct verbs_link **at = bucket(nic, link->control.qp->qp_num);
    link->qpn_next = *at;
    *at = link;
    link->kept = room_for(nic);
    nic->cq_kept += link->kept;
    nic->srq_want += link->window + VERBS_SPARE_RECVS;
    *out = &link->base;
    return 0;
}

int verbs_link_address(struct weft_link *base, void *buf, size_t cap)
{
    const struct verbs_link *link = (struct verbs_link *)base;
    if (cap < sizeof link->own)
        return weft_fail(-EMSGSIZE, "verbs: an address takes %zu bytes", sizeof link->own);
    memcpy(buf, &link->own, sizeof link->own);
    return (int)sizeof link->own;
}

/* --- the peer's address ------------------------------------------------------------------------------- */

static int malformed(const struct verbs_link *link)
{
    return weft_fail(WEFT_EPROTO, "verbs %s: malformed address of a link",
                     verbs_nic_of(link)->name);
}

static bool numbers_are_sound(const struct verbs_address *a)
{
    for (int i = 0; i <= VERBS_MAX_DATA; i++) {
        bool used = i <= a->ndata;
        if (used ? a->qpn[i] == 0 || a->qpn[i] > QPN_MAX || a->psn[i] > QPN_MAX
                 : a->qpn[i] || a->psn[i])
            return false;
    }
    return a->ndata >= 1 && a->ndata <= VERBS_MAX_DATA && a->mtu >= IBV_MTU_256 &&
           a->mtu <= IBV_MTU_4096 && a->credits >= 1 && a->credits <= VERBS_IMM_TAKEN_MAX &&
           a->imms >= 1;
}

static int read_address(struct verbs_link *link, const void *addr, size_t len)
{
    const struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_address a;
    if (len < offsetof(struct verbs_address, flags))
        return malformed(link);
    memset(&a, 0, sizeof a);
    memcpy(&a, addr, len < sizeof a ? len : sizeof a);
    if (le32toh(a.magic) != VERBS_MAGIC)
        return malformed(link);
    if (a.version != VERBS_VERSION)
        return weft_fail(WEFT_EVERSION,
                         "verbs %s: the peer's transport has version %u, this one %u", nic->name,
                         a.version, VERBS_VERSION);
    a.lid = le16toh(a.lid);
    a.credits = le16toh(a.credits);
    a.imms = le16toh(a.imms);
    for (int i = 0; i <= VERBS_MAX_DATA; i++) {
        a.qpn[i] = le32toh(a.qpn[i]);
        a.psn[i] = le32toh(a.psn[i]);
    }
    if (len != sizeof a || a.flags & ~VERBS_ADDRESS_KEYED || !numbers_are_sound(&a) ||
        (a.link_layer != VERBS_ETHERNET && a.link_layer != VERBS_INFINIBAND))
        return malformed(link);
    if (a.link_layer != nic->layer)
        return weft_fail(WEFT_ENOPATH, "verbs %s: one end is on InfiniBand, the other on Ethernet",
                         nic->name);
    if (!(a.flags & VERBS_ADDRESS_KEYED) != !link->keyed)
        return weft_fail(WEFT_EAUTH, "verbs %s: only one end has a key for this link", nic->name);
    link->peer = a;
    return 0;
}

/* What the proof of a key is the code of: both addresses, and whose proof it is. */
struct proof {
    char what[16];
    struct verbs_address passive, active;
    uint8_t of;
};

static void fill_proof(const struct verbs_link *link, enum weft_role of, struct proof *proof)
{
    struct verbs_address peer = link->peer;
    bool active = link->role == WEFT_ROLE_ACTIVE;
    peer.lid = htole16(peer.lid);
    peer.credits = htole16(peer.credits);
    peer.imms = htole16(peer.imms);
    for (int i = 0; i <= VERBS_MAX_DATA; i++) {
        peer.qpn[i] = htole32(peer.qpn[i]);
        peer.psn[i] = htole32(peer.psn[i]);
    }
    memset(proof, 0, sizeof *proof);
    memcpy(proof->what, "weft verbs join", sizeof "weft verbs join");
    proof->passive = active ? peer : link->own;
    proof->active = active ? link->own : peer;
    proof->of = (uint8_t)of;
}

int verbs_link_proof(const struct verbs_link *link, enum weft_role of, uint8_t mac[WEFT_MAC])
{
    struct proof proof;
    fill_proof(link, of, &proof);
    return weft_mac(link->key, &proof, sizeof proof, mac);
}

int verbs_link_check(const struct verbs_link *link, enum weft_role of, const uint8_t mac[WEFT_MAC])
{
    struct proof proof;
    fill_proof(link, of, &proof);
    return weft_mac_check(link->key, &proof, sizeof proof, mac);
}

/* --- joining ------------------------------------------------------------------------------------------- */

static int begin_joining(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_hello hello = {{0}};
    int rc = 0;
    /* the data queue pairs that both ends have */
    while (link->ndata > link->peer.ndata)
        verbs_qp_close(&link->data[--link->ndata]);
    link->credits = link->peer.credits;
    for (uint32_t i = 0; i <= link->ndata; i++) {
        struct verbs_qp *qp = i ? &link->data[i - 1] : &link->control;
        qp->peer_qpn = link->peer.qpn[i];
        qp->peer_psn = link->peer.psn[i];
    }
    if (link->keyed && link->role == WEFT_ROLE_PASSIVE)
        rc = verbs_link_proof(link, WEFT_ROLE_PASSIVE, hello.mac);
    if (rc == 0)
        rc = verbs_qp_connect(&link->control);
    if (rc)
        return rc;
    link->state = VERBS_LINK_JOINING;
    link->deadline = weft_now() + JOIN_NS;
    nic->nwaiting++;
    if (link->role == WEFT_ROLE_PASSIVE)
        verbs_control_note(link, VERBS_HELLO, &hello, sizeof hello);
    return 0;
}

int verbs_link_connect(struct weft_link *base, const void *addr, size_t len)
{
    struct verbs_link *link = (struct verbs_link *)base;
    if (link->state == VERBS_LINK_NEW) {
        int rc = read_address(link, addr, len);
        if (rc == 0)
            rc = begin_joining(link);
        if (rc)
            return rc;
    }
    if (link->state == VERBS_LINK_UP)
        return 0;
    return link->state == VERBS_LINK_JOINING ? WEFT_EAGAIN
                                             : weft_fail(link->status, "%s", link->why);
}

static void stop_waiting(struct verbs_link *link)
{
    verbs_nic_of(link)->nwaiting -= link->deadline != 0;
    link->deadline = 0;
}

void verbs_link_ask(struct verbs_link *link)
{
    if (link->ask_at)
        return;
    link->ask_at = weft_now() + ASK_NS;
    verbs_nic_of(link)->nwaiting++;
}

static void stop_asking(struct verbs_link *link)
{
    verbs_nic_of(link)->nwaiting -= link->ask_at != 0;
    link->ask_at = 0;
}

static bool is_waiting(const struct verbs_link *link)
{
    const struct verbs_qp *first = &link->data[0];
    bool any = link->credits == 0 || first->imms_out - first->imms_heard >= link->peer.imms;
    for (int i = 0; i < VERBS_CHECKS; i++)
        any |= link->checks[i].op != NULL;
    return any;
}

/* A request of no bytes, which the peer's device answers for as long as the program lives. */
static void look_after_peer(struct verbs_link *link, uint64_t now)
{
    struct verbs_qp *first = &link->data[0];
    if (link->ask_at == 0 || now < link->ask_at)
        return;
    stop_asking(link);
    if (link->state != VERBS_LINK_UP || !is_waiting(link))
        return;
    if (first->flying == 0 && first->state == VERBS_QP_LIVE)
        verbs_post_nothing(first);
    verbs_link_ask(link);
}

void verbs_link_up(struct verbs_link *link)
{
    link->state = VERBS_LINK_UP;
    stop_waiting(link);
}

/* --- the end ------------------------------------------------------------------------------------------- */

void verbs_link_fail(struct verbs_link *link, int status, const char *fmt, ...)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    va_list args;
    if (link->state == VERBS_LINK_CLOSED)
        verbs_link_finish(link);
    if (link->state >= VERBS_LINK_DOWN)
        return;
    va_start(args, fmt);
    vsnprintf(link->why, sizeof link->why, fmt, args);
    va_end(args);
    weft_log(WEFT_LOG_INFO, "verbs", "link down: %s", link->why);
    link->down_due = link->state == VERBS_LINK_UP;
    nic->ndown += link->down_due;
    link->status = status;
    stop_waiting(link);
    stop_asking(link);
    link->state = VERBS_LINK_DOWN;
    for (uint32_t i = 0; i < link->ndata; i++)
        verbs_qp_fail(&link->data[i]);
}

void verbs_link_free(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    stop_waiting(link);
    leave_busy(link);
    leave_bucket(link);
    list_remove(&nic->closed, link);
    verbs_qp_close(&link->control);
    verbs_recvs_drop(link);
    nic->srq_want -= link->window + VERBS_SPARE_RECVS;
    while (link->notes) {
        struct verbs_note *note = link->notes;
        link->notes = note->next;
        free(note);
    }
    explicit_bzero(link->key, sizeof link->key);
    free(link->data);
    free(link);
}

/* A queue pair that shares its receives may hold one: the device gives it back, and says so, when it is
 * told that the queue pair has failed. */
void verbs_link_finish(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    if (link->finishing)
        return;
    link->finishing = true;
    nic->nwaiting += link->deadline == 0;
    link->deadline = nic->srq && link->control.state != VERBS_QP_NEW ? weft_now() + LAST_NS : 1;
    verbs_qp_fail(&link->control);
}

void verbs_link_close(struct weft_link *base)
{
    struct verbs_link *link = (struct verbs_link *)base;
    struct verbs_nic *nic = verbs_nic_of(link);
    bool said = link->mute || link->control.state != VERBS_QP_LIVE;
    close_data(link);
    verbs_op_drop(link);
    verbs_keys_drop_all(link);
    verbs_link_posted(link);
    nic->ndown -= link->down_due;
    link->down_due = false;
    stop_waiting(link);
    stop_asking(link);
    list_remove(&nic->links, link);
    list_add(&nic->closed, link);
    link->state = VERBS_LINK_CLOSED;
    if (said) {
        verbs_link_finish(link);
        return;
    }
    link->deadline = weft_now() + BYE_NS;
    nic->nwaiting++;
    verbs_control_bye(link);
}

void verbs_link_tick(struct verbs_nic *nic, uint64_t now)
{
    for (struct verbs_link *link = nic->closed, *next; link; link = next) {
        next = link->next;
        if (now < link->deadline)
            continue;
        if (link->finishing)
            verbs_link_free(link);
        else
            verbs_link_finish(link);
    }
    for (struct verbs_link *link = nic->links; link; link = link->next) {
        if (link->state == VERBS_LINK_JOINING && now >= link->deadline)
            verbs_link_fail(
                link, WEFT_ELINK,
                "verbs %s: the peer's end did not answer: are both ports in one network "
                "(GID, MTU, service level)?",
                nic->name);
        look_after_peer(link, now);
        verbs_fault_tick(link, now);
    }
}
