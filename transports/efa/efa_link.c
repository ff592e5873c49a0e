/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's life. Joining, once core has carried the addresses:
 *
 *     passive  HELLO ->
 *     active            <- HELLO
 *     passive  UP ->
 *
 * The passive end begins: core calls it last, so the other knows its address. With a key, each HELLO carries a code of
 * both addresses, which are new each time, of who says it and of where its memory is reached.
 *
 * Closing, with what is under way: BYE tells the peer to end it, and it answers QUIET. Who does not soon loses it: the
 * endpoints that touch this side's memory are opened anew (efa_ep.c). BYE says how many messages there were, and the
 * link goes down at the peer when all of them have been taken.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "efa.h"

#define JOIN_NS 5000000000u /* for the peer to answer; core allows WEFT_CONNECT_TIMEOUT in all */
#define LEAVE_NS 1000000000u /* for the last messages of a peer that has said goodbye */
#define CLOSE_NS 2000000u    /* link_close waits for what is under way */
#define MOVED_NS 20000000u   /* for reqs to a target that is no more to fail by themselves */

/* --- numbers --------------------------------------------------------------------------------------------- */

struct efa_link *efa_link_find(const struct efa_nic *nic, uint32_t number)
{
    return number < nic->nnumbers ? nic->by_number[number] : NULL;
}

static int more_numbers(struct efa_nic *nic)
{
    uint32_t n = nic->nnumbers ? 2 * nic->nnumbers : 64;
    struct efa_link **by_number = realloc(nic->by_number, n * sizeof(struct efa_link *));
    if (!by_number)
        return weft_fail(-ENOMEM, "efa %s: no memory for a link", nic->name);
    memset(by_number + nic->nnumbers, 0, (n - nic->nnumbers) * sizeof(struct efa_link *));
    nic->by_number = by_number;
    nic->nnumbers = n;
    return 0;
}

/* In turns: what is still on its way for a link that is gone finds nobody for as long as possible. */
static int number(struct efa_nic *nic, struct efa_link *link)
{
    if (nic->nlinks >= EFA_MAX_LINKS)
        return weft_fail(WEFT_ELIMIT, "efa %s: %u links are open", nic->name, EFA_MAX_LINKS);
    if (nic->nlinks >= nic->nnumbers / 2 && nic->nnumbers < EFA_MAX_LINKS) {
        int rc = more_numbers(nic);
        if (rc)
            return rc;
    }
    do
        nic->next_number = (nic->next_number + 1) % nic->nnumbers;
    while (nic->by_number[nic->next_number]);
    link->number = nic->next_number;
    nic->by_number[link->number] = link;
    nic->nlinks++;
    return 0;
}

/* --- begin ----------------------------------------------------------------------------------------------- */

static uint32_t checksum(const struct efa_address *a)
{
    struct efa_address copy = *a;
    const uint8_t *bytes = (const uint8_t *)&copy;
    uint32_t sum = 2166136261u; /* FNV-1a, 32 bits */
    copy.check = 0;
    for (size_t i = 0; i < sizeof copy; i++)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

static int describe_own(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_address *own = &link->own;
    size_t size = sizeof own->name;
    *own = (struct efa_address){.magic = htole32(EFA_MAGIC),
                                .version = EFA_VERSION,
                                .flags = link->keyed ? EFA_ADDRESS_KEYED : 0,
                                .credits = htole16((uint16_t)link->own_window),
                                .link = htole32(link->number),
                                .pidns = htole64(nic->pidns),
                                .started = htole64(nic->started),
                                .pid = htole32((uint32_t)getpid()),
                                .format = htole16((uint16_t)nic->info->addr_format)};
    memcpy(own->boot, nic->boot, sizeof own->boot);
    snprintf(own->provider, sizeof own->provider, "%s", nic->info->fabric_attr->prov_name);
    int rc = weft_random(&own->token, sizeof own->token);
    if (rc)
        return rc;
    rc = fi_getname(&nic->message.ep->fid, own->name, &size);
    if (rc)
        return efa_fail(nic, rc, "cannot tell its address");
    own->len = htole16((uint16_t)size);
    own->check = htole32(checksum(own));
    return 0;
}

static void link_init(struct efa_link *link)
{
    struct weft_list *lists[] = {&link->in,    &link->busy,    &link->notes,   &link->posted,
                                &link->sends, &link->untaken, &link->early,   &link->telling,
                                &link->asked, &link->fetches, &link->ops,     &link->fenced,
                                &link->bulk,  &link->shorts,  &link->regions, &link->stale,
                                &link->leases};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        weft_list_init(lists[i]);
}

int efa_link_open(struct weft_nic *base, const struct weft_link_opts *opts, struct weft_link **out)
{
    struct efa_nic *nic = (struct efa_nic *)base;
    struct efa_link *link = calloc(1, sizeof *link);
    if (!link)
        return weft_fail(-ENOMEM, "efa %s: no memory for a link", nic->name);
    link->base.nic = base;
    link->role = (uint8_t)opts->role;
    link->own_window = nic->credits;
    link->keyed = opts->key != NULL;
    if (link->keyed)
        memcpy(link->key, opts->key, WEFT_MAC);
    link_init(link);
    int rc = nic->lost ? weft_fail(nic->lost, "efa %s: the device is lost", nic->name)
                       : number(nic, link);
    if (rc) {
        free(link);
        return rc;
    }
    weft_list_push(&nic->links, &link->in);
    nic->recvs_want += link->own_window;
    rc = describe_own(link);
    if (rc) {
        efa_link_close(&link->base);
        return rc;
    }
    efa_msg_receive(nic);
    *out = &link->base;
    return 0;
}

int efa_link_address(struct weft_link *base, void *buf, size_t cap)
{
    const struct efa_link *link = (struct efa_link *)base;
    if (cap < sizeof link->own)
        return weft_fail(-EMSGSIZE, "efa: an address takes %zu bytes", sizeof link->own);
    memcpy(buf, &link->own, sizeof link->own);
    return (int)sizeof link->own;
}

/* --- the peer's address ---------------------------------------------------------------------------------- */

static int malformed(const struct efa_link *link)
{
    return weft_fail(WEFT_EPROTO, "efa %s: malformed address of a link", efa_nic_of(link)->name);
}

static bool is_zero(const uint8_t *at, size_t n)
{
    while (n > 0 && at[n - 1] == 0)
        n--;
    return n == 0;
}

static int read_address(struct efa_link *link, const void *addr, size_t len)
{
    const struct efa_nic *nic = efa_nic_of(link);
    const char *provider = nic->info->fabric_attr->prov_name;
    struct efa_address a;
    if (len < offsetof(struct efa_address, flags))
        return malformed(link);
    memset(&a, 0, sizeof a);
    memcpy(&a, addr, len < sizeof a ? len : sizeof a);
    if (le32toh(a.magic) != EFA_MAGIC)
        return malformed(link);
    if (a.version != EFA_VERSION)
        return weft_fail(WEFT_EVERSION, "efa %s: the peer's transport has version %u, this one %u",
                         nic->name, a.version, EFA_VERSION);
    if (len != sizeof a || le32toh(a.check) != checksum(&a) || a.flags & ~EFA_ADDRESS_KEYED ||
        a.provider[sizeof a.provider - 1] || le16toh(a.credits) < 1 ||
        le16toh(a.credits) > EFA_SEEN || le16toh(a.len) > sizeof a.name ||
        !is_zero(a.name + le16toh(a.len), sizeof a.name - le16toh(a.len)))
        return malformed(link);
    if (strcmp(a.provider, provider) != 0)
        return weft_fail(WEFT_ENOPATH, "efa %s: this end uses libfabric's provider %s, the other %s",
                         nic->name, provider, a.provider);
    if (le16toh(a.format) != nic->info->addr_format ||
        !efa_name_sound(nic, a.name, le16toh(a.len)))
        return malformed(link);
    if (!(a.flags & EFA_ADDRESS_KEYED) != !link->keyed)
        return weft_fail(WEFT_EAUTH, "efa %s: only one end has a key for this link", nic->name);
    link->peer = a;
    return 0;
}

/* What the proof of a key is the code of. */
struct proof {
    char what[16];
    struct efa_address passive, active;
    struct efa_target target;
    uint8_t of;
};

static void fill_proof(const struct efa_link *link, enum weft_role of,
                       const struct efa_target *target, struct proof *proof)
{
    bool active = link->role == WEFT_ROLE_ACTIVE;
    memset(proof, 0, sizeof *proof);
    memcpy(proof->what, "weft efa join", sizeof "weft efa join");
    proof->passive = active ? link->peer : link->own;
    proof->active = active ? link->own : link->peer;
    proof->target = *target;
    proof->of = (uint8_t)of;
}

/* --- joining --------------------------------------------------------------------------------------------- */

static void wait_until(struct efa_link *link, uint64_t deadline)
{
    struct efa_nic *nic = efa_nic_of(link);
    nic->nwaiting += (link->deadline == 0 && deadline) - (link->deadline && deadline == 0);
    link->deadline = deadline;
}

static void send_hello(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_hello hello = {.target = nic->where};
    struct proof proof;
    int rc = 0;
    hello.target.epoch = htole32(nic->where.epoch);
    hello.target.len = htole16(nic->where.len);
    fill_proof(link, link->role, &hello.target, &proof);
    if (link->keyed)
        rc = weft_mac(link->key, &proof, sizeof proof, hello.mac);
    if (rc) {
        efa_link_fail(link, rc, "%s", weft_last_error());
        return;
    }
    link->hello_sent = true;
    efa_msg_note(link, EFA_HELLO, &hello, sizeof hello);
}

static void link_up(struct efa_link *link)
{
    link->state = EFA_LINK_UP;
    wait_until(link, 0);
    efa_msg_early(link);
}

static void read_hello(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    enum weft_role other = link->role == WEFT_ROLE_ACTIVE ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
    struct proof proof;
    fill_proof(link, other, &link->hello.target, &proof);
    if (link->keyed && weft_mac_check(link->key, &proof, sizeof proof, link->hello.mac)) {
        efa_link_fail(link, WEFT_EAUTH, "efa %s: the peer's end of the link has another key",
                      nic->name);
        return;
    }
    efa_link_on_target(link, &link->hello.target);
    if (link->state >= EFA_LINK_DOWN)
        return;
    if (link->role == WEFT_ROLE_ACTIVE) {
        send_hello(link);
        return;
    }
    efa_msg_note(link, EFA_UP, NULL, 0);
    link_up(link);
}

void efa_link_on_hello(struct efa_link *link, const struct efa_hello *hello)
{
    if (link->hello_seen || link->state > EFA_LINK_JOINING) {
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer joins twice", efa_nic_of(link)->name);
        return;
    }
    link->hello = *hello;
    link->hello_seen = true;
    if (link->state == EFA_LINK_JOINING)
        read_hello(link);
}

void efa_link_on_up(struct efa_link *link)
{
    if (link->role == WEFT_ROLE_ACTIVE && link->state == EFA_LINK_JOINING && link->hello_sent)
        link_up(link);
    else
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer is up at a wrong time",
                      efa_nic_of(link)->name);
}

static int begin_joining(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    link->window = le16toh(link->peer.credits);
    struct efa_address peer = link->peer;
    peer.pidns = le64toh(peer.pidns);
    peer.started = le64toh(peer.started);
    peer.pid = le32toh(peer.pid);
    if (efa_process_watch(nic, &peer, &link->process))
        return weft_fail(WEFT_ELINK, "efa %s: the peer's process %u has ended", nic->name,
                         peer.pid);
    link->to = efa_name_get(nic, link->peer.name, le16toh(link->peer.len));
    if (!link->to)
        return WEFT_ENOPATH;
    link->state = EFA_LINK_JOINING;
    wait_until(link, weft_now() + JOIN_NS);
    if (link->role == WEFT_ROLE_PASSIVE)
        send_hello(link);
    if (link->hello_seen && link->state == EFA_LINK_JOINING)
        read_hello(link);
    return 0;
}

int efa_link_connect(struct weft_link *base, const void *addr, size_t len)
{
    struct efa_link *link = (struct efa_link *)base;
    if (link->state == EFA_LINK_NEW) {
        int rc = read_address(link, addr, len);
        if (rc == 0)
            rc = begin_joining(link);
        if (rc)
            return rc;
    }
    if (link->state == EFA_LINK_UP)
        return 0;
    return link->state == EFA_LINK_JOINING ? WEFT_EAGAIN
                                           : weft_fail(link->status, "%s", link->why);
}

/* --- where the peer's memory is -------------------------------------------------------------------------- */

void efa_link_on_target(struct efa_link *link, const struct efa_target *target)
{
    struct efa_nic *nic = efa_nic_of(link);
    uint32_t epoch = le32toh(target->epoch);
    uint16_t len = le16toh(target->len);
    if (link->epoch_known && (int32_t)(epoch - link->epoch) <= 0)
        return; /* overtaken */
    struct efa_name *name = len <= EFA_MAX_NAME && efa_name_sound(nic, target->name, len)
                                ? efa_name_get(nic, target->name, len)
                                : NULL;
    if (!name) {
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer gave a wrong address for its memory",
                      nic->name);
        return;
    }
    efa_name_put(nic, link->target);
    link->target = name;
    link->epoch = epoch;
    link->epoch_known = true;
    if (link->nflying > 0) {
        nic->nwaiting += !link->look_at_work;
        link->look_at_work = true;
        link->moved = weft_now();
    }
    efa_busy(link);
}

/* Some providers do not tell that an endpoint is gone. */
static void look_at_work(struct efa_link *link, uint64_t now)
{
    struct efa_nic *nic = efa_nic_of(link);
    bool any = false;
    if (!link->look_at_work || now - link->moved < MOVED_NS)
        return;
    link->look_at_work = false;
    nic->nwaiting--;
    for (struct weft_list *at = nic->flying.next; !any && at != &nic->flying; at = at->next) {
        const struct efa_req *req = WEFT_LIST_OF(at, struct efa_req, in);
        any = req->op->link == link && req->target != link->target;
    }
    if (any)
        efa_ep_reset_work(nic);
}

/* --- peers that cannot be woken --------------------------------------------------------------------------- */

static void tell_stay(struct efa_link *link, bool stay)
{
    struct efa_stay_msg msg = {.stay = htole32(stay), .count = htole32(++link->stay_out)};
    link->stays = stay;
    efa_nic_of(link)->nstaying += stay ? 1 : -1u;
    efa_msg_note(link, EFA_STAY, &msg, sizeof msg);
}

void efa_link_stays(struct efa_nic *nic, bool stay)
{
    for (struct weft_list *at = nic->links.next; at != &nic->links; at = at->next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, in);
        if (link->stays != stay && (link->nflying > 0) == stay && link->state == EFA_LINK_UP)
            tell_stay(link, stay);
    }
}

static void set_stay(struct efa_link *link, bool stay)
{
    efa_nic_of(link)->nstays += stay - link->asked_to_stay;
    link->asked_to_stay = stay;
}

static void end_stay(struct efa_link *link)
{
    efa_nic_of(link)->nstaying -= link->stays;
    link->stays = false;
    set_stay(link, false);
}

void efa_link_on_stay(struct efa_link *link, const struct efa_stay_msg *msg)
{
    if ((int32_t)(le32toh(msg->count) - link->stay_in) <= 0)
        return; /* overtaken */
    link->stay_in = le32toh(msg->count);
    set_stay(link, msg->stay != 0);
}

/* --- the end --------------------------------------------------------------------------------------------- */

void efa_busy(struct efa_link *link)
{
    if (weft_list_empty(&link->busy))
        weft_list_push(&efa_nic_of(link)->busy, &link->busy);
}

void efa_link_fail(struct efa_link *link, int status, const char *fmt, ...)
{
    struct efa_nic *nic = efa_nic_of(link);
    va_list args;
    if (link->state >= EFA_LINK_DOWN)
        return;
    va_start(args, fmt);
    vsnprintf(link->why, sizeof link->why, fmt, args);
    va_end(args);
    weft_log(WEFT_LOG_INFO, "efa", "link down: %s", link->why);
    if (link->state == EFA_LINK_UP)
        efa_msg_end_taken(link);
    link->down_due = link->state == EFA_LINK_UP;
    nic->ndown += link->down_due;
    link->status = status;
    link->state = EFA_LINK_DOWN;
    wait_until(link, 0);
    end_stay(link);
    efa_link_quiet(link);
}

void efa_link_quiet(struct efa_link *link)
{
    if (!link->bye_heard || link->quiet_told || link->nflying > 0)
        return;
    link->quiet_told = true;
    efa_msg_last(link, EFA_QUIET);
}

void efa_link_leave(struct efa_link *link)
{
    if (link->leaving && link->taken == link->last)
        efa_link_fail(link, WEFT_ELINK, "efa %s: the peer has closed the link",
                      efa_nic_of(link)->name);
}

void efa_link_on_bye(struct efa_link *link, uint32_t last)
{
    link->bye_heard = true;
    link->last = last;
    if (link->state == EFA_LINK_UP) {
        link->leaving = true;
        wait_until(link, weft_now() + LEAVE_NS);
        efa_link_leave(link);
    } else if (link->state < EFA_LINK_UP) {
        efa_link_fail(link, WEFT_ELINK, "efa %s: the peer does not join", efa_nic_of(link)->name);
    } else {
        efa_link_quiet(link);
    }
}

/* What is under way ends, or is made to. */
static void let_go(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    bool dead = link->process && link->process->dead;
    uint64_t end = weft_now() + CLOSE_NS;
    while (!dead && (link->nflying > 0 || (efa_mem_leased(link) && !link->quiet)) &&
           !nic->lost && weft_now() < end) {
        efa_progress(nic);
        efa_msg_last_again(nic);
    }
    if (link->nflying > 0)
        efa_ep_reset_work(nic);
    efa_op_drop_rest(link);
    if (efa_mem_leased(link) && !link->quiet)
        efa_ep_reset_target(nic);
}

/* Last words that find no room wait for who polls next, which may be nobody for long. */
static void say_goodbye(struct efa_nic *nic)
{
    for (uint64_t end = weft_now() + CLOSE_NS;
         !weft_list_empty(&nic->last) && !nic->lost && weft_now() < end;) {
        efa_progress(nic);
        efa_msg_last_again(nic);
    }
}

void efa_link_close(struct weft_link *base)
{
    struct efa_link *link = (struct efa_link *)base;
    struct efa_nic *nic = efa_nic_of(link);
    nic->ndown -= link->down_due;
    wait_until(link, 0);
    end_stay(link);
    nic->nwaiting -= link->look_at_work;
    link->down_due = link->look_at_work = false;
    link->state = EFA_LINK_CLOSING;
    if (link->to && !link->bye_heard)
        efa_msg_last(link, EFA_BYE);
    efa_op_drop(link);
    let_go(link);
    if (link->to && !link->quiet_told)
        efa_msg_last(link, EFA_QUIET);
    say_goodbye(nic);
    efa_region_drop_all(link);
    efa_fetch_drop(link);
    efa_mem_forget(link);
    efa_imm_drop(link);
    efa_msg_drop(link);
    weft_list_remove(&link->busy);
    weft_list_remove(&link->in);
    nic->by_number[link->number] = NULL;
    nic->nlinks--;
    nic->recvs_want -= link->own_window;
    efa_name_put(nic, link->to);
    efa_name_put(nic, link->target);
    efa_process_put(nic, link->process);
    explicit_bzero(link->key, sizeof link->key);
    free(link);
}

void efa_link_tick(struct efa_nic *nic, uint64_t now)
{
    for (struct weft_list *at = nic->links.next; nic->nwaiting && at != &nic->links; at = at->next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, in);
        if (link->deadline && now >= link->deadline) {
            if (link->leaving)
                efa_link_fail(link, WEFT_ELINK, "efa %s: the peer has closed the link", nic->name);
            else
                efa_link_fail(link, WEFT_ELINK,
                              "efa %s: the peer's end did not answer: are both ends in one network, "
                              "and may their security groups exchange all traffic?",
                              nic->name);
        }
        look_at_work(link, now);
        efa_msg_tick(link, now);
        efa_region_tick(link, now);
    }
}
