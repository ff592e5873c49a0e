/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two local nics introduce themselves: packets and descriptors that come to a nic's unix
 * socket, to a passive link, and to an active one that has dialed; and the addresses of links; of links
 * with a key and without.
 *
 * Checked: nothing comes of a link that was never up; one with a key comes up only when all that
 * its peer has to say came with the right proof.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transports/local/local.h"

#define STEPS 24
#define FDS 8
#define COMPS 4
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

extern const struct weft_transport weft_transport_local;
static const struct weft_transport_ops *ops;
static struct local_nic *nic, *other; /* whose socket an active link dials */

struct run {
    struct fuzz_in in;
    struct weft_link *link;
    bool active, keyed, up;
    bool proven[LOCAL_PACKET_CONFIRM + 1]; /* such a packet has come with the right proof */
    struct local_address address;          /* the peer's, as core carried it */
    struct local_id token;                 /* of the link */
    int fds[FDS];
    int nfds;
};

static struct local_nic *open_nic(void)
{
    struct weft_nic *base;
    struct weft_nic_opts opts = {.device = "local"};
    FUZZ_OK(ops->open(&opts, &base));
    return (struct local_nic *)base;
}

static void set_up(void)
{
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_config_set("WEFT_LOCAL_RING", "16K"));
    ops = weft_transport_local.ops;
    nic = open_nic();
    other = open_nic();
}

static void poll_nic(struct run *run)
{
    struct weft_comp comps[COMPS];
    ops->wait_fd(&nic->base); /* so that it looks at its sockets at once */
    int n = ops->poll(&nic->base, comps, COMPS);
    FUZZ_CHECK(n == 0 || run->up);
}

/* Memory as a peer passes it, right in most inputs. */
static int make_memory(struct fuzz_in *in, uint64_t ring)
{
    uint8_t how = fuzz_u8(in);
    if (how >= 240)
        return -1;
    if (how >= 232)
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_OK(fd);
    uint64_t size = LOCAL_SEGMENT_HEAD + 2 * (ring & 0xffffff);
    FUZZ_OK(ftruncate(fd, (off_t)(how >= 224 ? size / 2 : size)));
    FUZZ_OK(fcntl(fd, F_ADD_SEALS, how >= 216 ? F_SEAL_SHRINK : SEALS));
    return fd;
}

static void say_packet(struct run *run)
{
    struct fuzz_in *in = &run->in;
    if (!run->nfds)
        return;
    uint8_t nth = (uint8_t)fuzz_pick(in, (uint32_t)run->nfds);
    uint64_t ring = fuzz_near(in, LOCAL_RING_MIN << fuzz_pick(in, 2));
    struct local_packet packet = {.version = LOCAL_VERSION,
                                  .type = 1 + fuzz_pick(in, 3),
                                  .to = run->token,
                                  .from = run->address.token,
                                  .ring_size = ring,
                                  .probe_addr = fuzz_u16(in),
                                  .direct = fuzz_u8(in)};
    bool right = run->keyed &&
                 fuzz_prove(in, &packet, offsetof(struct local_packet, proof), packet.proof);
    struct local_packet sound = packet;
    fuzz_damage(in, (uint8_t *)&packet, sizeof packet);
    if (right && memcmp(&packet, &sound, sizeof packet) == 0)
        run->proven[packet.type] = true;
    int memory = packet.type == LOCAL_PACKET_HELLO ? make_memory(in, ring) : -1;
    local_packet_send(run->fds[nth], &packet, memory);
    if (memory >= 0)
        close(memory);
}

static bool all_proven(const struct run *run)
{
    return run->active ? run->proven[LOCAL_PACKET_ANSWER]
                       : run->proven[LOCAL_PACKET_HELLO] && run->proven[LOCAL_PACKET_CONFIRM];
}

static void connect_link(struct run *run, bool damaged)
{
    struct local_address address = run->address;
    size_t len = sizeof address;
    if (damaged)
        len = fuzz_damage(&run->in, (uint8_t *)&address, len);
    int rc = ops->link_connect(run->link, &address, len);
    FUZZ_CHECK(rc <= 0);
    FUZZ_CHECK(rc < 0 || run->up || !run->keyed || all_proven(run));
    run->up = run->up || rc == 0;
    int fd = accept4(other->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && run->nfds < FDS)
        run->fds[run->nfds++] = fd;
    else if (fd >= 0)
        close(fd);
}

/* The descriptor of an honest hello that came over this connection is closed unread. */
static void hear(struct run *run)
{
    struct local_packet packet;
    int passed;
    for (int i = 0; i < run->nfds; i++) {
        passed = -1;
        local_packet_recv(run->fds[i], &packet, &passed);
        if (passed >= 0)
            close(passed);
    }
}

static void step(struct run *run)
{
    uint8_t what = fuzz_u8(&run->in);
    const uint8_t *span;
    if (what < 96) {
        say_packet(run);
    } else if (what < 128 && run->nfds < FDS) {
        if (local_dial(&nic->socket_id, &run->fds[run->nfds]) == 0)
            run->nfds++;
    } else if (what < 192) {
        connect_link(run, what >= 176);
    } else if (what < 208 && run->nfds) {
        size_t len = fuzz_span(&run->in, fuzz_u8(&run->in), &span);
        send(run->fds[what % run->nfds], span, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (what < 216 && run->nfds) {
        shutdown(run->fds[what % run->nfds], SHUT_RDWR);
    }
    poll_nic(run);
    hear(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run run = {.in = {data, data + size}};
    struct local_address mine;
    if (!nic)
        set_up();
    uint8_t how = fuzz_u8(&run.in);
    struct weft_link_opts opts = {.role = how & 1 ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE,
                                  .key = how & 128 ? fuzz_link_key() : NULL};
    run.active = how & 1;
    run.keyed = opts.key;
    FUZZ_OK(ops->link_open(&nic->base, &opts, &run.link));
    FUZZ_CHECK(ops->link_address(run.link, &mine, WEFT_LINK_ADDRESS_MAX) == sizeof mine);
    run.token = mine.token;
    run.address = mine;
    run.address.socket = other->socket_id;
    memset(&run.address.token, 0x55, sizeof run.address.token);
    for (int i = 0; i < STEPS && fuzz_more(&run.in); i++)
        step(&run);
    for (int i = 0; i < run.nfds; i++)
        close(run.fds[i]);
    run.up = true; /* so that a LINK_DOWN is right */
    for (int i = 0; i < 3; i++)
        poll_nic(&run);
    ops->link_close(run.link);
    FUZZ_CHECK(!nic->nlinks && !nic->waiting && !nic->nactive);
    return 0;
}
