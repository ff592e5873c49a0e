/* SPDX-License-Identifier: Apache-2.0 */
/* Words for the user: complaints and the progress bar, both on standard error. */
#include "weights.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 30
#define BAR_PERIOD 0.1 /* seconds between two drawings */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int bar_shown;

static void wipe(void)
{
    if (bar_shown)
        fputs("\r\033[K", stderr);
    bar_shown = 0;
}

void say(const char *fmt, ...)
{
    char line[2 * PATH_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    for (char *c = line; *c; c++) /* names of files may steer a terminal */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    pthread_mutex_lock(&lock);
    wipe();
    fprintf(stderr, "weights: %s\n", line);
    pthread_mutex_unlock(&lock);
}

int say_weft(int code, const char *what)
{
    const char *why = weft_last_error();
    say("%s: %s", what, *why ? why : weft_strerror(code));
    return code;
}

double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void draw(uint64_t done, uint64_t total, double rate)
{
    double part = (double)done / (double)total;
    char bar[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < (int)(part * BAR_WIDTH) ? '#' : '.';
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r\033[K[%s] %3d%%  %.2f of %.2f GB  %.2f GB/s", bar, (int)(part * 100),
            (double)done * 1e-9, (double)total * 1e-9, rate * 1e-9);
    bar_shown = 1;
}

void show_progress(uint64_t done, uint64_t total, double rate)
{
    static double last;
    double now = seconds();
    if (!isatty(STDERR_FILENO) || (total && now - last < BAR_PERIOD))
        return;
    last = now;
    pthread_mutex_lock(&lock);
    if (total)
        draw(done, total, rate);
    else
        wipe();
    pthread_mutex_unlock(&lock);
}
