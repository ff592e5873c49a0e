/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's life: opened, introduced, up, lost, closed.
 *
 *     active                         passive
 *     connect, HELLO + segment  -->  finds the link by its token, maps the segment,
 *                               <--  ANSWER: whether it can copy from the active's memory
 *     tries the same, CONFIRM   -->
 *
 * Each end is then ready, and up once its link_connect has returned 0.
 */
#include "local.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For a peer to be out of our memory, from when nobody is let in any more. A step takes 100 us or so: who is inside for longer is
 * stopped or means harm. */
#define LEAVE_NS 1000000000u

/* --- open and close ------------------------------------------------------------------------- */

/* Poll may have to look at every link at once. Grows here, so that activating never fails. */
static int reserve_active(struct local_nic *nic)
{
    if (nic->nlinks < nic->active_cap)
        return 0;
    uint32_t cap = nic->active_cap ? 2 * nic->active_cap : 16;
    struct local_link **active = realloc(nic->active, cap * sizeof(struct local_link *));
    if (!active)
        return -ENOMEM;
    nic->active = active;
    nic->active_cap = cap;
    return 0;
}

static void init_link(struct local_link *link, struct local_nic *nic, enum weft_role role)
{
    link->base.nic = &nic->base;
    link->source = (struct local_source){LOCAL_LINK, -1};
    link->role = role;
    link->active_at = LOCAL_NOT_ACTIVE;
    link->fence = link->share.slot = link->help.slot = LOCAL_NO_SLOT;
    for (uint16_t i = 0; i < LOCAL_DEPTH; i++) {
        link->free_slots[link->nfree++] = (uint16_t)(LOCAL_DEPTH - 1 - i);
        link->slots[i].state = LOCAL_SLOT_FREE;
    }
}

int local_link_open(struct weft_nic *base, const struct weft_link_opts *opts,
                    struct weft_link **out)
{
    struct local_nic *nic = (struct local_nic *)base;
    struct local_link *link = calloc(1, sizeof *link);
    int rc = -ENOMEM;
    if (!link)
        goto err;
    link->slots = malloc(LOCAL_DEPTH * sizeof *link->slots);
    link->jobs = malloc(LOCAL_DEPTH * sizeof *link->jobs);
    if (!link->slots || !link->jobs || reserve_active(nic))
        goto err_link;
    rc = weft_random(&link->token, sizeof link->token);
    if (!rc)
        rc = weft_random(&link->probe, sizeof link->probe);
    if (rc)
        goto err_link;
    init_link(link, nic, opts->role);
    link->keyed = opts->key != NULL;
    if (opts->key)
        memcpy(link->key, opts->key, sizeof link->key);
    nic->nlinks++;
    if (link->role == WEFT_ROLE_PASSIVE) {
        link->next_waiting = nic->waiting;
        nic->waiting = link;
    }
    *out = &link->base;
    return 0;

err_link:
    free(link->jobs);
    free(link->slots);
    free(link);
err:
    return rc == -ENOMEM ? weft_fail(rc, "local: no memory for a link") : rc;
}

static void stop_waiting(struct local_nic *nic, struct local_link *link)
{
    struct local_link **at = &nic->waiting;
    while (*at && *at != link)
        at = &(*at)->next_waiting;
    if (*at)
        *at = link->next_waiting;
}

/* The peer may be in the middle of a copy from or to our memory. */
static void empty(struct local_link *link)
{
    local_link_recall(&link->base, true);
    while (!local_link_recalled(&link->base)) {
        if (weft_now() - link->shut_at > LEAVE_NS) {
            weft_log(WEFT_LOG_WARN, "local", "peer %d does not finish its copy", (int)link->pid);
            return;
        }
        sched_yield();
    }
}

void local_link_close(struct weft_link *base)
{
    struct local_link *link = (struct local_link *)base;
    struct local_nic *nic = (struct local_nic *)base->nic;
    empty(link);
    local_serve_free(link);
    stop_waiting(nic, link);
    local_link_deactivate(link);
    local_unwatch(nic, &link->source);
    if (link->segment)
        local_segment_put(link->segment);
    nic->nlinks--;
    explicit_bzero(link->key, sizeof link->key);
    local_passed_close(link);
    free(link->jobs);
    free(link->slots);
    free(link);
}

void local_link_activate(struct local_link *link)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    link->busy_at = nic->now;
    if (link->active_at != LOCAL_NOT_ACTIVE)
        return;
    local_ring_awake(&link->rx);
    link->active_at = nic->nactive;
    nic->active[nic->nactive++] = link;
}

void local_link_deactivate(struct local_link *link)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    if (link->active_at == LOCAL_NOT_ACTIVE)
        return;
    struct local_link *last = nic->active[--nic->nactive];
    nic->active[link->active_at] = last;
    last->active_at = link->active_at;
    link->active_at = LOCAL_NOT_ACTIVE;
}

void local_link_lost(struct local_link *link, int status)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    stop_waiting(nic, link);
    local_unwatch(nic, &link->source);
    link->status = status;
    if (link->state < LOCAL_UP) {
        link->state = LOCAL_DOWN;
        return;
    }
    link->state = LOCAL_ENDING;
    /* what a peer that has died had published before is as good as any; what a peer that breaks
     * the rules has published is not */
    local_ring_freeze(&link->rx, status == WEFT_EPEER);
    local_link_activate(link);
}

/* --- address -------------------------------------------------------------------------------- */

int local_link_address(struct weft_link *base, void *buf, size_t cap)
{
    const struct local_link *link = (const struct local_link *)base;
    const struct local_nic *nic = (const struct local_nic *)base->nic;
    struct local_address address = {.version = LOCAL_VERSION,
                                    .boot = nic->boot_id,
                                    .socket = nic->socket_id,
                                    .token = link->token,
                                    .ring_size = nic->ring_size};
    _Static_assert(sizeof address <= WEFT_LINK_ADDRESS_MAX, "address fits");
    if (cap < sizeof address)
        return weft_fail(-EINVAL, "local: an address needs %zu bytes", sizeof address);
    memcpy(buf, &address, sizeof address);
    return sizeof address;
}

static int check_address(const struct local_nic *nic, struct local_address *address,
                         const void *buf, size_t len)
{
    if (len < sizeof address->version)
        return weft_fail(WEFT_EPROTO, "local: an address of %zu bytes", len);
    memcpy(&address->version, buf, sizeof address->version);
    if (address->version != LOCAL_VERSION)
        return weft_fail(WEFT_EVERSION, "local: peer speaks version %" PRIu32 ", not %d",
                         address->version, LOCAL_VERSION);
    if (len != sizeof *address)
        return weft_fail(WEFT_EPROTO, "local: an address of %zu bytes", len);
    memcpy(address, buf, sizeof *address);
    uint64_t size = address->ring_size;
    if (size < LOCAL_RING_MIN || size > LOCAL_RING_MAX || size & (size - 1))
        return weft_fail(WEFT_EPROTO, "local: peer wants a ring of %" PRIu64 " bytes", size);
    if (!local_id_equal(&nic->boot_id, &address->boot))
        return weft_fail(WEFT_ENOPATH, "local: peer runs on another host");
    return 0;
}

/* --- packets --------------------------------------------------------------------------------- */

#define PROVEN offsetof(struct local_packet, proof)

static int send_packet(const struct local_link *link, struct local_packet *packet, int pass)
{
    int rc = link->keyed ? weft_mac(link->key, packet, PROVEN, packet->proof) : 0;
    return rc ? rc : local_packet_send(link->source.fd, packet, pass);
}

/* Has who sent this the link's key? */
static bool proven(const struct local_link *link, const struct local_packet *packet)
{
    static const uint8_t none[WEFT_MAC];
    return link->keyed ? weft_mac_check(link->key, packet, PROVEN, packet->proof) == 0
                       : memcmp(packet->proof, none, sizeof none) == 0;
}

/* --- handshake ------------------------------------------------------------------------------ */

static struct local_packet make_packet(const struct local_link *link, uint32_t type)
{
    return (struct local_packet){.version = LOCAL_VERSION,
                                 .type = type,
                                 .to = link->peer_token,
                                 .from = link->token,
                                 .probe_addr = (uintptr_t)&link->probe,
                                 .probe_value = link->probe,
                                 .direct = link->direct_in};
}

/* Who is at the other end, and can we copy from and to its memory? The kernel tells the pid, not
 * the peer. */
static void know_peer(struct local_link *link, const struct local_packet *packet)
{
    const struct local_nic *nic = (const struct local_nic *)link->base.nic;
    link->pid = local_peer_pid(link->source.fd);
    link->same_process = link->pid == getpid();
    link->base.own = link->same_process;
    link->direct_in = nic->direct && (link->same_process ||
                                      (link->pid > 0 && local_copy_probe(link, packet->probe_addr,
                                                                         packet->probe_value)));
}

/* Active: connect and introduce ourselves. */
static int begin(struct local_link *link, const struct local_address *address)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    struct local_segment *segment;
    int memfd, fd, rc = local_dial(&address->socket, &fd);
    if (rc)
        return rc;
    link->source.fd = fd;
    uint64_t size = address->ring_size > nic->ring_size ? address->ring_size : nic->ring_size;
    rc = local_segment_create(size, &segment, &memfd);
    if (rc)
        return rc;
    local_segment_attach(segment, link);
    link->peer_token = address->token;
    struct local_packet hello = make_packet(link, LOCAL_PACKET_HELLO);
    hello.ring_size = size;
    rc = send_packet(link, &hello, memfd);
    close(memfd);
    if (!rc)
        rc = local_watch(nic, &link->source);
    if (!rc)
        link->state = LOCAL_HELLO;
    return rc;
}

/* Passive: its link is found. Take the segment and answer. */
static int answer(struct local_link *link, const struct local_packet *hello, int memfd)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    struct local_segment *segment;
    if (memfd == LOCAL_NO_ROOM)
        return weft_fail(-EMFILE, "local: no descriptor is left for the peer's shared memory");
    if (memfd < 0 || hello->ring_size < nic->ring_size)
        return weft_fail(WEFT_EPROTO, "local: peer sent no shared memory, or too little");
    int rc = local_segment_open(memfd, hello->ring_size, &segment);
    if (rc)
        return rc;
    local_segment_attach(segment, link);
    link->peer_token = hello->from;
    know_peer(link, hello);
    struct local_packet packet = make_packet(link, LOCAL_PACKET_ANSWER);
    rc = send_packet(link, &packet, -1);
    if (!rc)
        link->state = LOCAL_HELLO;
    return rc;
}

/* Nothing is wrong with the peer: link_connect says what this side lacks, and core tells the peer.
 * Its end of the socket stays open until then, since hanging up would get there first, and tell
 * less; what the peer does at its end is of no interest any more. */
static void refuse(struct local_nic *nic, struct local_link *link, int status)
{
    local_ignore(nic, &link->source);
    link->state = LOCAL_DOWN;
    link->status = status;
}

static struct local_link *find_waiting(const struct local_nic *nic, const struct local_id *token)
{
    struct local_link *link = nic->waiting;
    while (link && !local_id_equal(&link->token, token))
        link = link->next_waiting;
    return link;
}

void local_link_hello(struct local_nic *nic, struct local_guest *guest)
{
    struct local_packet packet;
    int memfd, rc = local_packet_recv(guest->source.fd, &packet, &memfd);
    if (rc == WEFT_EAGAIN)
        return;
    struct local_link *link = NULL;
    if (!rc && packet.version == LOCAL_VERSION && packet.type == LOCAL_PACKET_HELLO)
        link = find_waiting(nic, &packet.to);
    if (link && proven(link, &packet)) {
        stop_waiting(nic, link);
        rc = local_hand_over(nic, &guest->source, &link->source);
        if (!rc)
            rc = answer(link, &packet, memfd);
        if (rc == WEFT_EPROTO)
            local_link_lost(link, rc);
        else if (rc)
            refuse(nic, link, rc);
    }
    local_unwatch(nic, &guest->source);
    if (memfd >= 0)
        close(memfd);
}

/* A packet of the handshake. Returns 0 with the link further, or why it is lost. */
static int handshake(struct local_link *link)
{
    struct local_packet packet;
    int passed, rc = local_packet_recv(link->source.fd, &packet, &passed);
    if (rc)
        return rc == WEFT_EAGAIN ? 0 : rc;
    if (passed >= 0)
        close(passed);
    bool active = link->role == WEFT_ROLE_ACTIVE;
    uint32_t expected = active ? LOCAL_PACKET_ANSWER : LOCAL_PACKET_CONFIRM;
    if (packet.version != LOCAL_VERSION || packet.type != expected ||
        !local_id_equal(&packet.from, &link->peer_token) ||
        !local_id_equal(&packet.to, &link->token))
        return weft_fail(WEFT_EPROTO, "local: peer sent a wrong packet in the handshake");
    if (!proven(link, &packet))
        return weft_fail(WEFT_EAUTH, "local: a packet of the handshake is not the peer's");
    const struct local_nic *nic = (const struct local_nic *)link->base.nic;
    link->direct_out = nic->direct && packet.direct == 1;
    if (active) {
        know_peer(link, &packet);
        struct local_packet confirm = make_packet(link, LOCAL_PACKET_CONFIRM);
        rc = send_packet(link, &confirm, -1);
    }
    if (!rc)
        link->state = LOCAL_READY;
    return rc;
}

void local_link_event(struct local_link *link)
{
    int rc = 0;
    if (link->state == LOCAL_HELLO)
        rc = handshake(link);
    else if (!local_wakes_take(link))
        rc = WEFT_EPEER;
    if (rc)
        local_link_lost(link, rc);
    else if (link->state == LOCAL_UP)
        local_link_activate(link);
}

int local_link_connect(struct weft_link *base, const void *addr, size_t len)
{
    struct local_link *link = (struct local_link *)base;
    struct local_address address;
    int rc = check_address((const struct local_nic *)base->nic, &address, addr, len);
    if (rc)
        return rc;
    if (link->state == LOCAL_IDLE && link->role == WEFT_ROLE_ACTIVE) {
        rc = begin(link, &address);
        if (rc && rc != WEFT_EAGAIN)
            local_link_lost(link, rc);
        return rc ? rc : WEFT_EAGAIN;
    }
    if (link->state == LOCAL_READY && !local_id_equal(&link->peer_token, &address.token))
        local_link_lost(link, weft_fail(WEFT_EPROTO, "local: another link has taken the place"));
    if (link->state == LOCAL_READY) {
        link->state = LOCAL_UP;
        local_link_activate(link);
    }
    if (link->state >= LOCAL_ENDING)
        return weft_fail(link->status, "local: the link is lost: %s", weft_strerror(link->status));
    return link->state == LOCAL_UP ? 0 : WEFT_EAGAIN;
}
