/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes of a run that is spread over two hosts find each other.
 *
 * Side A listens and writes one line into the folder WEFT_TEST_DIR, file "meet": a token and the
 * addresses at which it can be reached. tests/cluster/ carries the line to side B, where it is the
 * environment variable WEFT_TEST_MEET. B shows one half of the token, A answers with the other,
 * and a byte of B says that it has heard that: whoever else calls, or is called by mistake, is hung up on, and who hung
 * up is waited for again. Every wait here has a deadline.
 */
#ifndef WEFT_TEST_MEET_H
#define WEFT_TEST_MEET_H

#include <stdint.h>

#include "util.h"

/* Who calls: 0 is side B's agent, n its n-th child. */
#define MEET_AGENT 0u

/* Side A: listen where WEFT_TEST_ADDRESS says (default: all addresses), and publish it. */
void meet_listen(void);
/* Side A: the connection of this caller. Fails the test after so many milliseconds. */
int meet_accept(uint32_t number, int timeout_ms);
/* Side B: connect to A as this caller. */
int meet_dial(uint32_t number, int timeout_ms);

/* The two ends of a connection, IPv4 as IPv4. */
struct weft__address meet_here(int fd);
struct weft__address meet_there(int fd);

#endif
