/* SPDX-License-Identifier: Apache-2.0 */
/* weft_perf: measures what Weft moves. Both sides, the table, the JSON. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "perf_args.h"
#include "perf_fail.h"
#include "perf_idle.h"
#include "perf_session.h"

/* The other process of --local has nothing left to do when this side is done; when this side has
 * failed, it may be waiting for a connection that will not come. */
#define CHILD_END_MS 10000
#define CHILD_FAILED_MS 1000

struct output {
    const struct perf_args *args;
    FILE *table;
    cJSON *json, *results;
    char transport[16];
    bool wrong;
};

/* What makes one run comparable with another. */
static void add_options(cJSON *json, const struct perf_args *args)
{
    cJSON_AddStringToObject(json, "version", weft_version());
    cJSON_AddNumberToObject(json, "depth", args->depth);
    cJSON_AddNumberToObject(json, "threads", args->threads);
    cJSON_AddNumberToObject(json, "conns", args->conns);
    cJSON_AddNumberToObject(json, "progress_threads", args->progress_threads);
    cJSON_AddBoolToObject(json, "bidir", args->bidir);
    cJSON_AddBoolToObject(json, "small_pages", args->mem.small_pages);
    cJSON_AddBoolToObject(json, "same_memory", args->same);
    cJSON_AddBoolToObject(json, "injected", args->inject);
}

static void begin(const struct weft_conn_info *path, const char *mem, bool away, void *user)
{
    struct output *out = user;
    char size[SIZE_TEXT_MAX];
    cJSON_AddStringToObject(out->json, "path", path->path);
    cJSON_AddStringToObject(out->json, "mem", mem);
    cJSON_AddBoolToObject(out->json, "away", away);
    const char *backend = NULL;
    /* of this side's memory only: to ask for another's would start a driver that this process does not use */
    if (perf_place_backend(&out->args->mem, &backend) == 0 && backend)
        cJSON_AddStringToObject(out->json, "gpu_backend", backend);
    snprintf(out->transport, sizeof out->transport, "%s", path->transport);
    fprintf(out->table, "%s over %s, %s memory", perf_test_name(out->args->test), path->path, mem);
    if (backend)
        fprintf(out->table, " (%s)", backend);
    fprintf(out->table, ", %" PRIu32 " thread%s", out->args->threads,
            out->args->threads > 1 ? "s" : "");
    if (out->args->conns > 1)
        fprintf(out->table, " of %" PRIu32 " conns", out->args->conns);
    if (out->args->behind)
        fprintf(out->table, ", behind %s", size_format(out->args->behind, size));
    if (out->args->mem.small_pages)
        fputs(", small pages", out->table);
    if (out->args->same)
        fputs(", all from one place to one", out->table);
    if (away)
        fputs(", the target away", out->table);
    fputs(out->args->bidir ? ", both directions\n" : "\n", out->table);
    if (path->why[0])
        fprintf(out->table, "path: %s\n", path->why);
    fprintf(out->table, "%10s %6s %6s %11s %10s %10s %11s %11s %9s  %s\n", "bytes", "iovs", "depth", "iters",
            "GB/s", "Mops", "p50 us", "p99 us", "CPU s/GB", "path");
    fflush(out->table);
}

static void report_idle(const struct perf_idle_result *r, void *user)
{
    struct output *out = user;
    cJSON *idle = cJSON_AddObjectToObject(out->json, "idle");
    cJSON_AddNumberToObject(idle, "conns", r->conns);
    cJSON_AddNumberToObject(idle, "seconds", r->seconds);
    cJSON_AddNumberToObject(idle, "connect_s", r->connect_s);
    cJSON_AddNumberToObject(idle, "KiB_per_conn", r->kib);
    cJSON_AddNumberToObject(idle, "KiB_per_conn_target", r->peer_kib);
    cJSON_AddNumberToObject(idle, "cpu_ms", r->cpu_ms);
    cJSON_AddNumberToObject(idle, "cpu_ms_without", r->cpu_without_ms);
    fprintf(out->table,
            "idle: %" PRIu32
            " conns up in %.2f s, %.1f KiB each (target %.1f KiB); CPU in %" PRIu32
            " s: %.1f ms, without them %.1f ms\n",
            r->conns, r->connect_s, r->kib, r->peer_kib, r->seconds, r->cpu_ms, r->cpu_without_ms);
}

static void add_json(struct output *out, const struct perf_result *r)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddNumberToObject(row, "bytes", (double)r->bytes);
    cJSON_AddNumberToObject(row, "iovs", r->iovs);
    cJSON_AddNumberToObject(row, "depth", r->depth);
    cJSON_AddNumberToObject(row, "iters", (double)r->iters);
    cJSON_AddNumberToObject(row, "GBps", r->gbps);
    cJSON_AddNumberToObject(row, "Mops", r->mops);
    cJSON_AddNumberToObject(row, "p50_us", r->p50_us);
    cJSON_AddNumberToObject(row, "p99_us", r->p99_us);
    if (r->cpu_s_per_gb < 0)
        cJSON_AddNullToObject(row, "cpu_s_per_GB");
    else
        cJSON_AddNumberToObject(row, "cpu_s_per_GB", r->cpu_s_per_gb);
    if (r->verified < 0)
        cJSON_AddNullToObject(row, "verified");
    else
        cJSON_AddBoolToObject(row, "verified", r->verified);
    if (r->behind_gbps > 0)
        cJSON_AddNumberToObject(row, "behind_GBps", r->behind_gbps);
    cJSON_AddBoolToObject(row, "mapped", r->mapped);
    cJSON_AddItemToArray(out->results, row);
}

static void report(const struct perf_result *r, void *user)
{
    struct output *out = user;
    char size[SIZE_TEXT_MAX], cpu[32] = "-";
    if (r->cpu_s_per_gb >= 0)
        snprintf(cpu, sizeof cpu, "%.3f", r->cpu_s_per_gb);
    fprintf(out->table, "%10s %6" PRIu32 " %6" PRIu32 " %11" PRIu64 " %10.4f %10.4f %11.2f %11.2f %9s  %s%s%s\n",
            size_format(r->bytes, size), r->iovs, r->depth, r->iters, r->gbps, r->mops, r->p50_us, r->p99_us,
            cpu, out->transport, r->mapped ? ", mapped" : "", r->verified == 0 ? "  WRONG DATA" : "");
    fflush(out->table);
    add_json(out, r);
    out->wrong |= r->verified == 0;
}

static int initiate(const struct perf_args *args, const void *metadata, size_t len)
{
    struct output out = {.args = args,
                         .table = args->json && !strcmp(args->json, "-") ? stderr : stdout,
                         .json = cJSON_CreateObject()};
    struct perf_sink sink = {.begin = begin, .idle = report_idle, .report = report, .user = &out};
    cJSON_AddStringToObject(out.json, "test", perf_test_name(args->test));
    add_options(out.json, args);
    out.results = cJSON_CreateArray();
    int rc = perf_initiator(args, metadata, len, &sink);
    cJSON_AddItemToObject(out.json, "results", out.results);
    if (rc == 0 && args->json)
        rc = json_write(args->json, out.json);
    if (out.wrong)
        message("not every byte arrived as it was sent");
    cJSON_Delete(out.json);
    return rc || out.wrong ? EXIT_FAILED : EXIT_OK;
}

static int serve(const struct perf_args *args, int metadata_fd)
{
    return perf_target(args, metadata_fd) == 1 ? EXIT_OK : EXIT_FAILED;
}

/* Exit status of the other process; it is killed if it does not end by itself. */
static int reap(pid_t child, bool failed)
{
    int status = 0;
    uint64_t deadline = now_ns() + (failed ? CHILD_FAILED_MS : CHILD_END_MS) * 1000000ull;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now_ns() > deadline) {
            if (!failed)
                message("the target does not end");
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return EXIT_FAILED;
        }
        usleep(1000);
    }
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    message("the target was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return EXIT_FAILED;
}

static int child_main(const struct perf_args *args, int fd, pid_t parent)
{
    message_name("weft_perf target");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return EXIT_FAILED; /* it died before prctl */
    return serve(args, fd);
}

/* Both sides here. The processes part before either has opened anything of Weft. */
static int run_local(const struct perf_args *args)
{
    int fds[2];
    if (pipe(fds)) {
        message("pipe: %s", strerror(errno));
        return EXIT_FAILED;
    }
    pid_t parent = getpid(), child = fork();
    if (child < 0) {
        message("fork: %s", strerror(errno));
        return EXIT_FAILED;
    }
    if (child == 0) {
        struct perf_args theirs = *args;
        theirs.mem = args->target_mem;
        close(fds[0]);
        exit(child_main(&theirs, fds[1], parent));
    }
    close(fds[1]);
    uint8_t metadata[WEFT_METADATA_MAX];
    /* one write of less than PIPE_BUF; 0 bytes: the target has failed and said why */
    ssize_t len = read(fds[0], metadata, sizeof metadata);
    close(fds[0]);
    int status = len > 0 ? initiate(args, metadata, (size_t)len) : EXIT_FAILED;
    int other = reap(child, status != EXIT_OK);
    return status ? status : other;
}

int main(int argc, char **argv)
{
    struct perf_args args;
    message_name("weft_perf");
    int end = perf_args_parse(argc, argv, &args);
    if (end)
        return end - 1;
    if (args.secret_file && secret_file_set(args.secret_file))
        return EXIT_USAGE;
    if (args.json && json_may_write(args.json))
        return EXIT_FAILED;
    message_strangers();
    perf_catch_signals();
    if (args.conns > 1)
        perf_idle_descriptors();
    switch (args.role) {
    case PERF_LOCAL:
        return run_local(&args);
    case PERF_LISTEN:
        return serve(&args, -1);
    default:
        return initiate(&args, NULL, 0);
    }
}
