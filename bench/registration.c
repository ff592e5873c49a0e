/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs to make memory known to the nics of an endpoint, and to take that back: medians, by
 * size. The memory is touched before, and a byte goes into each end of it afterwards.
 *
 *     registration TRANSPORT [MOST-BYTES]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "weft.h"

#define ROUNDS 9
#define LEAST 4096
#define TIMEOUT_MS 20000

static void need(int64_t rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "registration: %s: %s\n", what, weft_last_error());
    exit(1);
}

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *list)
{
    qsort(list, ROUNDS, sizeof *list, by_value);
    return list[ROUNDS / 2];
}

/* Is it there for the peer? */
static void check(weft_conn_t conn, weft_mem_t mem, char *at, size_t len, char value)
{
    struct weft_remote remote;
    need(weft_mem_advertise(mem, at, len, &remote), "advertise");
    need(weft_write(conn, &value, 1, &remote, 0, TIMEOUT_MS), "write");
    need(weft_write(conn, &value, 1, &remote, len - 1, TIMEOUT_MS), "write");
    if (at[0] != value || at[len - 1] != value) {
        fprintf(stderr, "registration: the bytes are not there\n");
        exit(1);
    }
}

static void measure(weft_endpoint_t endpoint, weft_conn_t conn, size_t len)
{
    double reg[ROUNDS], dereg[ROUNDS];
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("registration: mmap");
        exit(1);
    }
    memset(at, 1, len);
    for (int i = 0; i < ROUNDS; i++) {
        weft_mem_t mem;
        double begin = now_us();
        need(weft_mem_reg(endpoint, at, len, NULL, &mem), "register");
        reg[i] = now_us() - begin;
        check(conn, mem, at, len, (char)(i + 2));
        begin = now_us();
        need(weft_mem_dereg(mem), "deregister");
        dereg[i] = now_us() - begin;
    }
    munmap(at, len);
    double us = median(reg);
    printf("| %zu KiB | %.1f us | %.1f us | %.1f us |\n", len >> 10, us, median(dereg),
           us / ((double)len / (1 << 20)));
}

int main(int argc, char **argv)
{
    size_t most = argc > 2 ? strtoull(argv[2], NULL, 0) : (size_t)1 << 28;
    if (argc < 2 || most < LEAST) {
        fprintf(stderr, "usage: registration TRANSPORT [MOST-BYTES]\n");
        return 2;
    }
    weft_endpoint_t near, far;
    weft_conn_t conn;
    char metadata[WEFT_METADATA_MAX];
    need(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = argv[1]), &near), "open");
    need(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = argv[1]), &far), "open");
    int len = weft_endpoint_metadata(far, metadata, sizeof metadata);
    need(len, "metadata");
    need(weft_endpoint_connect(near, metadata, (size_t)len, NULL, &conn), "connect");
    printf("| memory | register | take back | register, a MiB |\n|---|---|---|---|\n");
    for (size_t size = LEAST; size <= most; size *= 16)
        measure(far, conn, size);
    need(weft_endpoint_close(near), "close");
    need(weft_endpoint_close(far), "close");
    return 0;
}
