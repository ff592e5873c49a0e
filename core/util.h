/* SPDX-License-Identifier: Apache-2.0 */
/* The tools of core, which know nothing of endpoints: settings, handles, encoding, addresses. Not
 * installed. */
#ifndef WEFT_UTIL_H
#define WEFT_UTIL_H

#include <endian.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include "weft/transport.h"

/* For what a small operation does not come by: kept out of its functions, which then have fewer
 * registers to save. */
#define WEFT__APART __attribute__((noinline))
/* And the opposite: what every small operation comes by, and a compiler would call. Above all what lies below a system call: a processor
 * that has been in the kernel may have forgotten where its callers were, and finds each of them late (docs/profile.md). */
#define WEFT__INLINE __attribute__((always_inline))

#define WEFT__CACHE_LINE 64 /* bytes: what threads of their own write to does not share one */

#define WEFT__ARRAY_LEN(a) (sizeof(a) / sizeof *(a))

/* --- config.c ------------------------------------------------------------------------------ */

/* The environment as it is now is what settings are from here on. For who was called, not for a thread of Weft's. */
void weft__config_read(void);
/* The same, and 0, or WEFT_ECONFIG with a sentence naming the first setting that does not parse. */
int weft__config_check(void);

/* Copy a caller's options struct over a zeroed one of ours. Refuses a struct that is larger than
 * ours where the part we do not know is not zero. */
int weft__opts_copy(void *ours, size_t our_size, const void *theirs, const char *what);

/* --- env.c --------------------------------------------------------------------------------- */

/* Where the text of a variable is kept, or NULL. */
typedef _Atomic(const char *) weft__env_slot;

/* The same text, for good: one for all that are equal. NULL: no memory. */
const char *weft__text_keep(const char *value);
/* What the environment says now; without memory the slot stays as it is. For who was called, not for a thread of Weft's. */
void weft__env_read(weft__env_slot *slot, const char *name);
/* What it said when it was read. */
const char *weft__env(const weft__env_slot *slot, const char *name);

/* --- log.c --- */

/* Is this a value of WEFT_LOG? */
bool weft__log_spec_valid(const char *spec);

/* --- mac.c --------------------------------------------------------------------------------- */

/* Open libcrypto, unless it is open. WEFT_EUNSUPPORTED with a sentence if there is none. */
int weft__mac_load(void);

/* --- text.c -------------------------------------------------------------------------------- */

/* Append to a sentence of `used` bytes in a buffer of `size`, the zero byte included. What does not fit is left out from
 * a word on, and " ..." stands for it; to such a one nothing is appended. Returns its length. */
size_t weft__text_add(char *text, size_t size, size_t used, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
size_t weft__text_vadd(char *text, size_t size, size_t used, const char *fmt, va_list args)
    __attribute__((format(printf, 4, 0)));

/* --- handle.c ------------------------------------------------------------------------------ */

enum weft__kind { WEFT__ENDPOINT = 1, WEFT__CONN, WEFT__MEM, WEFT__OP };

/* 4 bits kind, 28 bits slot, 32 bits generation. */
static inline uint64_t weft__handle_make(enum weft__kind kind, uint32_t slot, uint32_t generation)
{
    return (uint64_t)kind << 60 | (uint64_t)slot << 32 | generation;
}

static inline uint32_t weft__handle_slot(uint64_t handle)
{
    return (uint32_t)(handle >> 32) & 0x0fffffffu;
}

static inline bool weft__handle_is(uint64_t handle, enum weft__kind kind)
{
    return handle >> 60 == (uint64_t)kind;
}

/* Give obj a handle; 0 when out of memory. owner: whose lock handle_shut is called under, if it
 * always is, for handle_peek; else NULL. */
uint64_t weft__handle_open(enum weft__kind kind, void *obj, void *owner);
/* The object, kept alive until put; NULL and a sentence if the handle is stale or foreign. */
void *weft__handle_get(uint64_t handle, enum weft__kind kind);
void weft__handle_put(uint64_t handle);
/* The object for a caller that holds its owner's lock, and uses it no longer than that. */
void *weft__handle_peek(uint64_t handle, enum weft__kind kind, const void *owner);
/* Make the handle stale. True for exactly one of several callers. */
bool weft__handle_shut(uint64_t handle, enum weft__kind kind);
/* After shut: wait until no one but `mine` holders is left, then free the slot. */
void weft__handle_drain(uint64_t handle, uint32_t mine);
/* After shut: free the slot if no one is using the object; false if someone is. */
bool weft__handle_try_drain(uint64_t handle);

/* --- wire.c -------------------------------------------------------------------------------- */

/* Little-endian writer into a fixed buffer; `bad` latches when it would overflow. */
struct weft__writer {
    uint8_t *at, *end;
    bool bad;
};
void weft__put(struct weft__writer *w, const void *data, size_t len);
void weft__put_u8(struct weft__writer *w, uint8_t v);
void weft__put_u16(struct weft__writer *w, uint16_t v);
void weft__put_u32(struct weft__writer *w, uint32_t v);
void weft__put_u64(struct weft__writer *w, uint64_t v);
/* u16 length, then the bytes */
void weft__put_text(struct weft__writer *w, const char *text);

/* Reader of untrusted bytes; `bad` latches at the first read past the end, which gives zeros. */
struct weft__reader {
    const uint8_t *at, *end;
    bool bad;
};
void weft__get(struct weft__reader *r, void *data, size_t len);
/* Bytes in place, NULL when there are fewer. */
const void *weft__get_span(struct weft__reader *r, size_t len);
uint8_t weft__get_u8(struct weft__reader *r);
uint16_t weft__get_u16(struct weft__reader *r);
uint32_t weft__get_u32(struct weft__reader *r);
uint64_t weft__get_u64(struct weft__reader *r);
/* Into a buffer of cap bytes, always terminated; bad if longer, or if it holds a zero byte. */
void weft__get_text(struct weft__reader *r, char *text, size_t cap);

/* Numbers at fixed places. */
static inline uint32_t weft__le32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return le32toh(v);
}

static inline uint64_t weft__le64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return le64toh(v);
}

/* --- mapping.c ----------------------------------------------------------------------------- */

/* What the kernel is asked by, for this process alone, or -1: it does not tell what may be written (Linux 6.11 and newer do).
 * The caller closes it. */
int weft__mapping_open(void);
/* 0, or -EFAULT with a sentence: memory of the host is not all mapped, or not all of it so that it may be read, or written,
 * where it is to be, as far as the kernel tells. */
int weft__mapping_check(int fd, const void *addr, uint64_t len, bool read, bool written);

/* --- library.c ----------------------------------------------------------------------------- */

/* Another number whenever a file was loaded into the process, or unloaded. */
uint64_t weft__loads(void);

/* --- host.c -------------------------------------------------------------------------------- */

/* What tells one host from another: the kernel's boot id, and the network namespace, within which
 * the addresses of same-host transports are known. */
struct weft__host {
    uint8_t boot_id[16];
    uint64_t netns;
};
void weft__host_self(struct weft__host *host);
bool weft__host_same(const struct weft__host *a, const struct weft__host *b);

/* --- address.c ----------------------------------------------------------------------------- */

struct weft__address {
    struct sockaddr_storage sa;
    socklen_t len;
};
/* "HOST:PORT", "HOST", ":PORT", "[V6]:PORT"; no host: any address. Names are resolved. */
int weft__address_parse(const char *text, struct weft__address *out);
/* Of somebody else: "HOST:PORT" or "[V6]:PORT", and no other form. */
int weft__address_parse_peer(const char *text, struct weft__address *out);
void weft__address_format(const struct weft__address *a, char *text, size_t cap);
/* Host part only, numeric. */
void weft__address_host(const struct weft__address *a, char *text, size_t cap);
uint16_t weft__address_port(const struct weft__address *a);
void weft__address_set_port(struct weft__address *a, uint16_t port);
bool weft__address_is_any(const struct weft__address *a);
bool weft__address_is_loopback(const struct weft__address *a);
/* Addresses under which an endpoint bound to `bound` can be reached, best first. */
int weft__address_list(const struct weft__address *bound, struct weft__address *list, int max);

#endif
