/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tcp nic among strangers: side B of a healthy pair also has a link whose peer is a bare socket
 * of the test. What that one does must cost no one else.
 */
#ifndef WEFT_TESTS_UNIT_TCP_STRANGER_H
#define WEFT_TESTS_UNIT_TCP_STRANGER_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/tcp/tcp_wire.h"

#define KEY 0xfeedfacecafebeefull
#define READ_KEY 77
#define LEN 8192
#define DEPTH 64

struct stranger {
    struct pair pair;
    struct weft_link *link; /* its peer is us */
    uint8_t address[WEFT_LINK_ADDRESS_MAX];
    int fd[2];
    uint8_t *mem; /* LEN bytes at B under KEY, readable under READ_KEY */
    uint8_t healthy[64];
    struct weft_mem_handle handles[3];
};

int stranger_dial(const struct stranger *s);
void stranger_say(int fd, const void *data, size_t len);
/* Poll B until len bytes have come. */
void stranger_hear(struct stranger *s, int fd, void *data, size_t len);
/* Poll B until it has hung up. */
void stranger_hear_end(struct stranger *s, int fd);
struct tcp_hello stranger_hello_for(const struct stranger *s, uint8_t index);
void stranger_say_hello(int fd, struct tcp_hello hello);
/* What link_connect says in the end. */
int stranger_finish_connect(struct stranger *s);
/* Both sockets of the link become ours. */
void stranger_join(struct stranger *s);
void stranger_open_link(struct stranger *s);
/* One more link of the nic, beside that of the fixture; its peer is us, too. */
struct stranger_link {
    struct weft_link *link;
    int fd[2];
};
struct stranger_link stranger_join_another(struct stranger *s);
/* Fixtures: outside, or with the link up. */
int stranger_setup(void **state);
int stranger_setup_joined(void **state);
/* One of these, with a setting that holds for the nics of the fixture. */
int stranger_setup_with(int (*setup)(void **state), void **state, const char *name, const char *value);
void stranger_close_link(struct stranger *s);
/* The other link of the nic works. */
void stranger_check_healthy(struct stranger *s);
int stranger_teardown(void **state);
void stranger_await_down(struct stranger *s, int status);
size_t stranger_encode(uint8_t *bytes, struct tcp_frame frame);
void stranger_say_frame(int fd, struct tcp_frame frame);
/* Skips acknowledgements. */
struct tcp_frame stranger_hear_type(struct stranger *s, int fd, uint8_t type);
/* A WRITE to mem. */
struct tcp_frame stranger_write_of(const struct stranger *s, uint8_t type, uint32_t len);

#endif
