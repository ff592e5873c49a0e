/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints on the transport under test, and conns between them: what endpoint_*.c run on.
 *
 * Host A is the test's own. Host B is in the same process, or in one of its own (duo->peer); a test
 * names a host, and duo_call runs a function there. Handles are numbers that mean something on
 * their host only. Endpoints have a progress thread each, so hosts may block.
 */
#ifndef WEFT_TEST_DUO_H
#define WEFT_TEST_DUO_H

#include "sides.h"

#define MAX_CONNS 16
#define MAX_PIECES 48 /* of an operation posted by duo_post on the other process */

enum who { A, B };

struct host {
    weft_endpoint_t endpoint;
    weft_conn_t conns[MAX_CONNS]; /* the i-th of A is the peer of the i-th of B */
    int nconns;
    struct host_area {
        struct test_mem mem;
        weft_mem_t handle;
    } *areas;
    int nareas;
};

struct duo {
    struct host a, b; /* b: unless it is another process */
    struct test_peer peer;
    weft_conn_t conn; /* A's first conn */
};

/* Registered memory of a host. */
struct area {
    enum who who;
    int id;
    char *addr;
    size_t len;
    weft_mem_t mem;
    struct weft_remote remote;
};

/* cmocka fixtures: two endpoints with one conn, initiated by A; *state is the duo. */
int duo_setup(void **state);
int duo_setup_processes(void **state);
int duo_teardown(void **state);
/* For tests that kill host B: does not wait for it. */
int duo_teardown_alone(void **state);
#define DUO_MAIN(name, tests)                                                                     \
    test_sides_main(name, tests, ARRAY_LEN(tests), duo_setup_processes)
#define IN_ONE(test) cmocka_unit_test_setup_teardown(test, duo_setup, duo_teardown)
#define IN_TWO(test)                                                                              \
    {                                                                                             \
        #test " (two processes)", test, duo_setup_processes, duo_teardown, NULL                   \
    }
#define IN_BOTH(test) IN_ONE(test), IN_TWO(test)
#define KILLED(test)                                                                              \
    cmocka_unit_test_setup_teardown(test, duo_setup_processes, duo_teardown_alone)

/* Options of an endpoint of the run: transport and fault, one progress thread. */
struct weft_endpoint_opts duo_opts(void);
/* The same, at an address of this host that no other program of these tests has, if they run here side by side: who looks for a
 * port that was given back finds nobody, and is not found by others who do. */
struct weft_endpoint_opts duo_apart(void);
/* Such an endpoint. */
weft_endpoint_t duo_endpoint(void);
/* Both ends of a new conn between two endpoints of this process. */
void duo_join(weft_endpoint_t from, weft_endpoint_t to, weft_conn_t *conn, weft_conn_t *other);
/* The same between endpoints that may have no threads: they are driven here until it is up. */
void duo_join_both_driven(weft_endpoint_t from, weft_endpoint_t to, weft_conn_t *conn, weft_conn_t *other);
/* The initiator's end of such a one. */
weft_conn_t duo_join_driven(weft_endpoint_t from, weft_endpoint_t to);
/* An endpoint that only callers drive, on this transport, which accepts more than a transport takes while nobody does. */
weft_endpoint_t duo_undriven(const char *transport);
/* Post so much to it that it cannot all leave. */
void duo_clog(weft_conn_t conn);

typedef void duo_fn(struct host *host, void *arg);
void duo_call(struct duo *d, enum who who, duo_fn *fn, void *arg, size_t size);
/* One more conn, from A to B. Returns its number on both hosts. */
int duo_connect(struct duo *d);

struct area duo_area(struct duo *d, enum who who, size_t len, size_t misalign, uint32_t access);
void duo_fill(struct duo *d, struct area area, uint64_t seed);
void duo_check(struct duo *d, struct area area, uint64_t offset, uint64_t len, uint64_t seed);
void duo_check_zero(struct duo *d, struct area area, uint64_t offset, uint64_t len);
uint64_t duo_word(struct duo *d, struct area area, uint64_t offset);
void duo_set_word(struct duo *d, struct area area, uint64_t offset, uint64_t value);
struct weft_local area_local(struct area area, size_t offset, size_t len);

/* Post on conn number `conn` of a host. Arrays of the xfer may be the caller's. */
weft_op_t duo_post(struct duo *d, enum who who, int conn, const struct weft_xfer *xfer);
weft_op_t duo_send(struct duo *d, enum who who, int conn, struct area area, size_t offset,
                   size_t len);
weft_op_t duo_recv(struct duo *d, enum who who, int conn, struct area area, size_t offset,
                   size_t len);
/* Wait for an operation, which must end with this code. */
struct weft_op_status duo_wait(struct duo *d, enum who who, weft_op_t op, int want);
/* The next notification of a host: this many bytes of this pattern, by conn number `conn`. */
void duo_notif(struct duo *d, enum who who, int conn, size_t len, uint64_t seed);
/* There is none. */
void duo_no_notif(struct duo *d, enum who who);

/* Metadata of an endpoint that listens at 127.0.0.2, as if it did so at 127.0.0.1, too, which comes first. Returns its length. */
size_t duo_metadata_of_two(weft_endpoint_t endpoint, char bytes[WEFT_METADATA_MAX]);
/* A socket that listens on the loopback, at any port, and says nothing. */
int duo_listener(int *port);

#endif
