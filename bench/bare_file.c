/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What writing new files alone costs: a ring of blocks written to files one after the other, in one
 * thread, as examples/weights writes what it has read. Prints a line of JSON.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "bare.h"

/* As examples/weights: bytes of a block, blocks in flight; and the files that bench/p2p pulls. */
#define BLOCK ((uint64_t)4 << 20)
#define RING (16 * BLOCK)
#define FILES 8
#define FILE_BYTES ((uint64_t)256 << 20)

static int files[FILES];

/* Make the files, without names. */
static void open_files(const char *folder)
{
    for (int i = 0; i < FILES; i++) {
        files[i] = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (files[i] < 0 || ftruncate(files[i], (off_t)FILE_BYTES))
            bare_die(folder);
    }
}

static void write_file(int fd, const uint8_t *ring)
{
    for (uint64_t at = 0; at < FILE_BYTES; at += BLOCK)
        if (pwrite(fd, ring + at % RING, BLOCK, (off_t)at) != (ssize_t)BLOCK)
            bare_die("write");
}

/* Bytes of a file that are not those of the ring. */
static uint64_t wrong_in(int fd, uint8_t *memory)
{
    uint64_t wrong = 0;
    for (uint64_t at = 0; at < FILE_BYTES; at += RING) {
        for (uint64_t got = 0; got < RING; got += BLOCK)
            if (pread(fd, memory + got, BLOCK, (off_t)(at + got)) != (ssize_t)BLOCK)
                bare_die("read");
        wrong += bare_wrong(memory, RING);
    }
    return wrong;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("Usage: bare_file FOLDER\n", stderr);
        return 2;
    }
    uint8_t *ring = bare_memory(RING, true, true), *back = bare_memory(RING, false, true);
    open_files(argv[1]);
    double start = bare_now_s(), cpu = bare_cpu_s();
    for (int i = 0; i < FILES; i++)
        write_file(files[i], ring);
    double seconds = bare_now_s() - start, gb = (double)FILES * (double)FILE_BYTES / 1e9;
    cpu = bare_cpu_s() - cpu;
    uint64_t wrong = 0;
    for (int i = 0; i < FILES; i++)
        wrong += wrong_in(files[i], back);
    printf("{\"GBps\": %.4f, \"cpu_s_per_GB\": %.4f, \"verified\": %s}\n", gb / seconds, cpu / gb,
           wrong ? "false" : "true");
    return wrong != 0;
}
