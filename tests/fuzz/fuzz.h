/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every fuzz target stands on: an input that is read as a list of choices, checks, a network
 * that is not there (net.c), and a transport whose every comp the target decides (stub.c).
 *
 * A target defines LLVMFuzzerTestOneInput. libFuzzer calls it in a build with WEFT_BUILD_FUZZERS;
 * in all others replay.c does, with the files of the target's corpus. What a target does depends on
 * the input alone, and it leaves nothing behind for the next one.
 */
#ifndef WEFT_FUZZ_H
#define WEFT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process: libFuzzer keeps the input, ctest sees the failure. */
#define FUZZ_CHECK(cond)                                                                          \
    do {                                                                                          \
        if (!(cond))                                                                              \
            fuzz_fail(#cond, __FILE__, __LINE__);                                                 \
    } while (0)
_Noreturn void fuzz_fail(const char *what, const char *file, int line);
/* A call that the target needs to succeed. */
#define FUZZ_OK(call) FUZZ_CHECK((call) >= 0)

/* --- the input: zeros once it is used up ---------------------------------------------------- */

struct fuzz_in {
    const uint8_t *at, *end;
};

bool fuzz_more(const struct fuzz_in *in);
uint8_t fuzz_u8(struct fuzz_in *in);
uint16_t fuzz_u16(struct fuzz_in *in);
uint32_t fuzz_u32(struct fuzz_in *in);
uint64_t fuzz_u64(struct fuzz_in *in);
/* Below n. */
uint32_t fuzz_pick(struct fuzz_in *in, uint32_t n);
/* Mostly what is right, sometimes just beside it, sometimes anything. */
uint64_t fuzz_near(struct fuzz_in *in, uint64_t right);
/* Up to len bytes of the input, where they lie; how many. */
size_t fuzz_span(struct fuzz_in *in, size_t len, const uint8_t **span);
void fuzz_bytes(struct fuzz_in *in, void *buf, size_t len);
/* A text of the rest of the input, terminated; malloc, as long as it is. */
char *fuzz_text(struct fuzz_in *in);
/* Damage a finished frame as the input says: a byte changed, or the end cut off. Its new length. */
size_t fuzz_damage(struct fuzz_in *in, uint8_t *frame, size_t len);

/* --- links with a key ------------------------------------------------------------------------ */

/* The key of such links. NULL: this build has none. */
const uint8_t *fuzz_link_key(void);
/* The code of what is said, mostly under that key. True: it is. */
bool fuzz_prove(struct fuzz_in *in, const void *said, size_t len, uint8_t proof[WEFT_MAC]);

/* --- net.c: TCP sockets that lead to the target --------------------------------------------- */

/* A connection to the n-th listener that the code under test has opened, ours to write to. */
int fuzz_net_dial(int listener);
/* The far end of the oldest connection that the code under test has made, -1: none. */
int fuzz_net_take(void);
/* From now on its connects fail. */
void fuzz_net_refuse(bool refuse);
/* Forget all connections that nobody took. */
void fuzz_net_reset(void);
/* Read and throw away what is there. False: the other end has closed. */
bool fuzz_net_drain(int fd);

#endif
