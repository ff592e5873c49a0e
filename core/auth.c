/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared secret: where it comes from, how two endpoints prove to each other that they have it,
 * and the codes that frames carry from then on.
 *
 *     active                                    passive
 *     CHALLENGE (nonce, whom it looks for)  -->
 *                                          <--  CHALLENGE (nonce, the same)
 *     PROOF                                 -->  checks it
 *     checks it                            <--  PROOF
 *
 * A proof is the code, under the secret, of its side's name and all that was said. These frames
 * have fixed sizes and are all that is read of a stranger: the endpoint knows of no peer before its
 * proof has been checked. DENY, with a reason in a byte, ends it. Then HELLO and the rest, each
 * frame followed by a code under a key of this conversation, this direction and its number in it.
 *
 * It authenticates the handshake and who joins the links. It does not encrypt, and nothing of it is
 * in the data stream afterwards.
 *
 * The boot lock is held in every function that has a boot.
 */
#include "auth.h"
#include "boot.h"
#include "endpoint.h"
#include "handshake.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A refused stranger is worth a line, a thousand of them are not worth a thousand. */
#define REFUSAL_LOG_NS 10000000000u

#define LABEL 16 /* bytes of what a code is for: no code of one use is one of another */

/* --- the secret ------------------------------------------------------------------------------- */

/* A file that others may not read, or change. Returns bytes read, or a code. */
static int read_file(const char *path, char *buf, size_t cap)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    if (fd < 0)
        return weft_fail(WEFT_ECONFIG, "WEFT_SECRET_FILE: cannot open '%s': %m", path);
    int rc = 0;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        rc = weft_fail(WEFT_ECONFIG, "WEFT_SECRET_FILE: '%s' is not a regular file", path);
    else if (st.st_mode & (S_IRWXO | S_IWGRP))
        rc = weft_fail(WEFT_ECONFIG,
                       "WEFT_SECRET_FILE: '%s' has mode %03o: others may read it, or the group "
                       "write it (chmod 600)",
                       path, st.st_mode & 0777u);
    size_t len = 0;
    for (ssize_t n = 1; rc == 0 && n && len < cap; len += (size_t)n) {
        n = read(fd, buf + len, cap - len);
        if (n < 0)
            rc = weft_fail(WEFT_ECONFIG, "WEFT_SECRET_FILE: cannot read '%s': %m", path);
    }
    close(fd);
    return rc ? rc : (int)len;
}

/* An editor ends the line. That is not part of the secret. */
static int secret_from_file(const char *path, char *buf, size_t cap, size_t *len)
{
    int n = read_file(path, buf, cap);
    if (n < 0)
        return n;
    n -= n > 0 && buf[n - 1] == '\n';
    if (n < WEFT_SECRET_MIN || n > WEFT_SECRET_MAX)
        return weft_fail(
            WEFT_ECONFIG, "WEFT_SECRET_FILE: '%s' has %s%d bytes, a secret has %d to %d", path,
            n > WEFT_SECRET_MAX ? "more than " : "", n > WEFT_SECRET_MAX ? WEFT_SECRET_MAX : n,
            WEFT_SECRET_MIN, WEFT_SECRET_MAX);
    *len = (size_t)n;
    return 0;
}

int weft__auth_open(struct weft__endpoint *ep, const void *secret, size_t len)
{
    static const uint8_t purpose[WEFT_MAC] = "weft shared secret 1";
    char file[WEFT_SECRET_MAX + 2]; /* a newline, and a byte to see that it is too long */
    const char *path = weft_config_str("WEFT_SECRET_FILE");
    if (!secret && len)
        return weft_fail(-EINVAL, "weft_endpoint_opts.secret is NULL, its length %zu", len);
    if (secret && (len < WEFT_SECRET_MIN || len > WEFT_SECRET_MAX))
        return weft_fail(-EINVAL, "weft_endpoint_opts.secret has %zu bytes, not %d to %d", len,
                         WEFT_SECRET_MIN, WEFT_SECRET_MAX);
    if (!secret && !*path)
        return 0;
    int rc = weft__mac_load();
    if (rc == 0 && !secret)
        rc = secret_from_file(path, file, sizeof file, &len);
    if (rc == 0)
        rc = weft_mac(purpose, secret ? secret : file, len, ep->auth_key);
    explicit_bzero(file, sizeof file);
    ep->secured = rc == 0;
    return rc;
}

/* --- codes ------------------------------------------------------------------------------------ */

#define SAID (LABEL + 2 + 2 * WEFT__NONCE + 16)

/* What a code is for, and all that was said in the challenges. */
static void recall(const struct weft__auth *auth, const char *label, uint8_t said[SAID])
{
    struct weft__writer w = {said + LABEL, said + SAID, false};
    memset(said, 0, LABEL);
    memcpy(said, label, strlen(label));
    weft__put_u16(&w, WEFT__BOOT_VERSION);
    weft__put(&w, auth->nonce, sizeof auth->nonce);
    weft__put(&w, auth->uuid, sizeof auth->uuid);
}

static int derive(const uint8_t key[WEFT_MAC], const char *label, const struct weft__auth *auth,
                  uint8_t out[WEFT_MAC])
{
    uint8_t said[SAID];
    recall(auth, label, said);
    return weft_mac(key, said, sizeof said, out);
}

static const char *const proof_label[] = {
    [WEFT_ROLE_ACTIVE] = "weft active", [WEFT_ROLE_PASSIVE] = "weft passive"};

int weft__auth_proof(const uint8_t key[WEFT_MAC], const struct weft__auth *auth,
                     enum weft_role role, uint8_t proof[WEFT_MAC])
{
    return derive(key, proof_label[role], auth, proof);
}

static int check_proof(const uint8_t key[WEFT_MAC], const struct weft__auth *auth,
                       enum weft_role role, const uint8_t proof[WEFT_MAC])
{
    uint8_t said[SAID];
    recall(auth, proof_label[role], said);
    return weft_mac_check(key, said, sizeof said, proof);
}

int weft__auth_seal(const uint8_t key[WEFT_MAC], struct weft__auth *auth)
{
    uint8_t *to_passive = auth->frame_key[WEFT_ROLE_ACTIVE];
    uint8_t *to_active = auth->frame_key[WEFT_ROLE_PASSIVE];
    int rc = derive(key, "weft session", auth, auth->session);
    if (rc == 0)
        rc = derive(auth->session, "weft to passive", auth, to_passive);
    if (rc == 0)
        rc = derive(auth->session, "weft to active", auth, to_active);
    if (rc == 0)
        auth->state = WEFT__AUTH_SEALED;
    return rc;
}

/* Key of the next frame of a direction. */
static int next_key(struct weft__auth *auth, enum weft_role from, uint8_t key[WEFT_MAC])
{
    uint8_t number[8];
    struct weft__writer w = {number, number + sizeof number, false};
    weft__put_u64(&w, auth->frames[from]++);
    return weft_mac(auth->frame_key[from], number, sizeof number, key);
}

int weft__auth_sign(struct weft__auth *auth, enum weft_role from, const void *frame, size_t len,
                    uint8_t mac[WEFT_MAC])
{
    uint8_t key[WEFT_MAC];
    int rc = next_key(auth, from, key);
    return rc ? rc : weft_mac(key, frame, len, mac);
}

int weft__auth_check(struct weft__auth *auth, enum weft_role from, const void *frame, size_t len,
                     const uint8_t mac[WEFT_MAC])
{
    uint8_t key[WEFT_MAC];
    int rc = next_key(auth, from, key);
    return rc ? rc : weft_mac_check(key, frame, len, mac);
}

int weft__auth_link_key(const struct weft__auth *auth, const char *transport, uint8_t attempt,
                        uint8_t index, uint8_t key[WEFT_MAC])
{
    uint8_t what[LABEL + 16 + 2] = "weft link";
    size_t len = strlen(transport);
    memcpy(what + LABEL, transport, len < 16 ? len : 16);
    what[LABEL + 16] = attempt;
    what[LABEL + 17] = index;
    return weft_mac(auth->session, what, sizeof what, key);
}

/* --- the conversation ------------------------------------------------------------------------- */

enum deny { DENY_NO_SECRET = 1, DENY_WRONG_PROOF, DENY_OTHER_ENDPOINT };

static size_t body_of(uint16_t type)
{
    return type == WEFT__CHALLENGE ? WEFT__NONCE + 16 : type == WEFT__PROOF ? WEFT_MAC : 1;
}

static void send_challenge(struct weft__boot *boot)
{
    uint8_t body[WEFT__NONCE + 16];
    struct weft__auth *auth = &boot->auth;
    uint8_t *mine = auth->nonce[boot->active ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE];
    int rc = weft_random(mine, WEFT__NONCE);
    if (rc) {
        weft__boot_fail(boot, rc, "%s", weft_last_error());
        return;
    }
    memcpy(body, mine, WEFT__NONCE);
    memcpy(body + WEFT__NONCE, auth->uuid, sizeof auth->uuid);
    weft__boot_send(boot, WEFT__CHALLENGE, body, sizeof body);
}

static void send_proof(struct weft__boot *boot)
{
    uint8_t proof[WEFT_MAC];
    int rc = weft__auth_proof(boot->ep->auth_key, &boot->auth,
                              boot->active ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE, proof);
    if (rc)
        weft__boot_fail(boot, rc, "%s", weft_last_error());
    else
        weft__boot_send(boot, WEFT__PROOF, proof, sizeof proof);
}

/* One line for many strangers. */
static void log_refusal(struct weft__boot *boot, const char *why)
{
    struct weft__endpoint *ep = boot->ep;
    struct weft__address a = {.len = sizeof a.sa};
    char text[96] = "a peer that is gone";
    uint64_t now = weft_now();
    ep->refusals++;
    if (ep->refusal_logged && now - ep->refusal_logged < REFUSAL_LOG_NS)
        return;
    if (getpeername(boot->fd, (struct sockaddr *)&a.sa, &a.len) == 0)
        weft__address_format(&a, text, sizeof text);
    weft_log(WEFT_LOG_WARN, "auth", "%s was refused: %s (%llu so far)", text, why,
             (unsigned long long)ep->refusals);
    ep->refusal_logged = now;
}

static void deny(struct weft__boot *boot, enum deny reason, int code, const char *why)
{
    uint8_t body = (uint8_t)reason;
    log_refusal(boot, why);
    weft__boot_send(boot, WEFT__DENY, &body, 1);
    weft__boot_fail(boot, code, "%s", why);
}

static void on_challenge(struct weft__boot *boot, const uint8_t *body)
{
    static const uint8_t unknown[16];
    struct weft__auth *auth = &boot->auth;
    auth->state = WEFT__AUTH_PROOF;
    memcpy(auth->nonce[boot->active ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE], body, WEFT__NONCE);
    if (boot->active && memcmp(auth->uuid, body + WEFT__NONCE, sizeof auth->uuid)) {
        weft__boot_fail(boot, WEFT_EAUTH, "what answers there answers someone else");
        return;
    }
    if (boot->active) {
        send_proof(boot);
        return;
    }
    memcpy(auth->uuid, body + WEFT__NONCE, sizeof auth->uuid);
    if (memcmp(auth->uuid, unknown, sizeof unknown) &&
        memcmp(auth->uuid, boot->ep->uuid, sizeof auth->uuid))
        deny(boot, DENY_OTHER_ENDPOINT, WEFT_EREFUSED, "it looks for another endpoint");
    else
        send_challenge(boot);
}

static void on_proof(struct weft__boot *boot, const uint8_t *proof)
{
    const uint8_t *key = boot->ep->auth_key;
    int rc = check_proof(key, &boot->auth, boot->active ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE,
                         proof);
    if (rc == WEFT_EAUTH && boot->active) {
        weft__boot_fail(boot, rc, "what answers there does not know the shared secret");
        return;
    }
    if (rc == WEFT_EAUTH) {
        deny(boot, DENY_WRONG_PROOF, rc, "it does not know the shared secret");
        return;
    }
    if (rc == 0 && !boot->active)
        send_proof(boot); /* the last frame without a code */
    if (rc == 0)
        rc = weft__auth_seal(key, &boot->auth);
    if (rc)
        weft__boot_fail(boot, rc, "%s", weft_last_error());
    else if (boot->active && boot->fd >= 0)
        weft__handshake_begin(boot);
}

static void on_deny(struct weft__boot *boot, uint8_t reason)
{
    if (reason == DENY_NO_SECRET)
        weft__boot_fail(boot, WEFT_EAUTH, "the peer has no shared secret, this endpoint has one");
    else if (reason == DENY_WRONG_PROOF)
        weft__boot_fail(boot, WEFT_EAUTH, "the peer has another shared secret");
    else if (reason == DENY_OTHER_ENDPOINT)
        weft__boot_elsewhere(boot, WEFT_EREFUSED, "%s", WEFT__OTHER_ENDPOINT);
    else
        weft__boot_fail(boot, WEFT_EPROTO, "malformed refusal");
}

void weft__auth_begin(struct weft__boot *boot)
{
    send_challenge(boot);
}

bool weft__auth_expects(struct weft__boot *boot, uint16_t type, uint32_t len)
{
    uint16_t next = boot->auth.state == WEFT__AUTH_CHALLENGE ? WEFT__CHALLENGE : WEFT__PROOF;
    bool right = type == next || (type == WEFT__DENY && boot->active);
    if (right && len == body_of(type))
        return true;
    if (type == WEFT__HELLO && !boot->active) {
        log_refusal(boot, "it has no shared secret");
        weft__handshake_reject(boot, WEFT_EAUTH, "it has a shared secret, and wants proof");
    } else {
        weft__boot_fail(boot, WEFT_EPROTO, "frame %u of %u bytes instead of a proof", type, len);
    }
    return false;
}

void weft__auth_frame(struct weft__boot *boot, uint16_t type, const uint8_t *body)
{
    if (type == WEFT__CHALLENGE)
        on_challenge(boot, body);
    else if (type == WEFT__PROOF)
        on_proof(boot, body);
    else
        on_deny(boot, *body);
}

void weft__auth_unwanted(struct weft__boot *boot)
{
    deny(boot, DENY_NO_SECRET, WEFT_EAUTH, "it has a shared secret, this endpoint has none");
}
