/* SPDX-License-Identifier: Apache-2.0 */
/* Two nics over the fake libibverbs; see verbs_pair.h. */
#include "verbs_pair.h"

#define CTX 1000

int verbs_pair_reset(void **state)
{
    static const char *const settings[] = {"DEVICES", "GID_INDEX", "PKEY",    "MTU",          "FLAP",  "QPS", "CHUNK",
                                           "CREDITS", "RELAXED",   "TIMEOUT", "SERVICE_LEVEL", "RETRY", "TRAFFIC_CLASS"};
    char name[64];
    (void)state;
    test_begin();
    weft_config_set("WEFT_VERBS_LIBRARY", FAKE_IBVERBS);
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        snprintf(name, sizeof name, "WEFT_VERBS_%s", settings[i]);
        weft_config_set(name, NULL);
    }
    return fake_verbs_reset();
}

void verbs_pair_check_fake(void)
{
    char text[4096];
    int n = fake_verbs_faults(text, sizeof text);
    CHECK(n == 0, "%d faults:\n%s", n, text);
    CHECK(fake_verbs_objects() == 0, "%d objects are left", fake_verbs_objects());
}

void verbs_pair_open(struct verbs_pair *vp, const char *config)
{
    CHECK(!fake_verbs_configure(config), "'%s' was refused", config);
    pair_open(&vp->pair, &weft_transport_verbs, "fake0");
    pair_connect(&vp->pair);
    for (int i = 0; i < 2; i++) {
        vp->buf[i] = aligned_alloc(4096, VERBS_PAIR_BYTES);
        test_fill(vp->buf[i], VERBS_PAIR_BYTES, (uint64_t)i + 1, 0);
        vp->mem[i] = pair_reg(&vp->pair, i, vp->buf[i], VERBS_PAIR_BYTES, PAIR_ALL, 0);
    }
}

void verbs_pair_end(struct verbs_pair *vp, int side)
{
    if (vp->pair.side[side].link)
        vp->pair.ops->link_close(vp->pair.side[side].link);
    vp->pair.side[side].link = NULL;
}

void verbs_pair_close(struct verbs_pair *vp)
{
    for (int i = 0; i < 2; i++) {
        PAIR_OK(vp->pair.ops->mem_dereg(vp->pair.side[i].nic, vp->mem[i].mem));
        verbs_pair_end(vp, i);
    }
    pair_close(&vp->pair);
    for (int i = 0; i < 2; i++)
        free(vp->buf[i]);
    verbs_pair_check_fake();
}

struct weft_cmd verbs_pair_cmd(struct verbs_pair *vp, int side, enum weft_op op, size_t local,
                               size_t remote, size_t len)
{
    return (struct weft_cmd){.op = (uint8_t)op,
                             .imm = (uint32_t)remote,
                             .remote_addr = (uintptr_t)vp->buf[!side] + remote,
                             .remote_key = vp->mem[!side].rkey,
                             .value = 1,
                             .len = len,
                             .ctx = CTX + remote,
                             .one = {vp->buf[side] + local, len, vp->mem[side].mem}};
}

int verbs_pair_try(struct verbs_pair *vp, int side, const struct weft_cmd *cmds, int n)
{
    return PAIR_OK(vp->pair.ops->post(vp->pair.side[side].link, cmds, n));
}

void verbs_pair_post(struct verbs_pair *vp, int side, const struct weft_cmd *cmds, int n)
{
    uint64_t until = test_deadline();
    for (int done = 0; done < n;) {
        done += PAIR_OK(vp->pair.ops->post(vp->pair.side[side].link, cmds + done, n - done));
        if (done == n)
            return;
        pair_poll(&vp->pair, 0);
        pair_poll(&vp->pair, 1);
        CHECK(weft_now() < until, "only %d of %d cmds were accepted", done, n);
    }
}

void verbs_pair_works(struct verbs_pair *vp)
{
    const size_t at = VERBS_PAIR_BYTES - 65536;
    for (int side = 0; side < 2; side++) {
        struct weft_cmd cmd = verbs_pair_cmd(vp, side, WEFT_OP_WRITE, 64, at, 4096);
        test_fill(vp->buf[side] + 64, 4096, (uint64_t)side + 77, 0);
        int status = pair_do(&vp->pair, side, &cmd);
        CHECK(status == 0, "a write of side %d ends with %s", side, weft_err_name(status));
        CHECK(test_differs(vp->buf[!side] + at, 4096, (uint64_t)side + 77, 0) < 0,
              "the bytes of side %d are wrong", side);
    }
}

int verbs_pair_down(struct verbs_pair *vp, int side)
{
    struct weft_comp comp = pair_wait(&vp->pair, side, WEFT_OP_LINK_DOWN, 0).comp;
    CHECK(comp.data && *(const char *)comp.data, "no sentence");
    return comp.status;
}
