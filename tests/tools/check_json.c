/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is this what the manual pages promise?
 *   check_json perf FILE TEST TRANSPORT MEM RESULTS   results that were verified, and how many;
 *                                                     what --idle and --behind add, if there
 *   check_json info FILE                              everything of weft_info --json
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE (1 << 20)

static void require(int cond, const char *what, const char *detail)
{
    if (cond)
        return;
    fprintf(stderr, "check_json: %s: %s\n", what, detail);
    exit(1);
}

static cJSON *load(const char *path)
{
    static char text[MAX_FILE];
    FILE *file = fopen(path, "r");
    require(file != NULL, "cannot open", path);
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[len] = '\0';
    cJSON *json = cJSON_ParseWithOpts(text, NULL, 1);
    require(json != NULL, "not JSON", path);
    return json;
}

static const cJSON *member(const cJSON *object, const char *name, int (*is)(const cJSON *))
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    require(value && is(value), "missing or of another type", name);
    return value;
}

static void require_text(const cJSON *object, const char *name, const char *text)
{
    const char *got = member(object, name, cJSON_IsString)->valuestring;
    require(!strcmp(got, text), name, got);
}

static void require_positive(const cJSON *object, const char *name)
{
    require(member(object, name, cJSON_IsNumber)->valuedouble > 0, "not positive", name);
}

static void check_result(const cJSON *r)
{
    static const char *const positive[] = {"bytes", "iovs",   "depth",  "iters",       "GBps",
                                           "Mops",  "p50_us", "p99_us", "cpu_s_per_GB"};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        require_positive(r, positive[i]);
    double depth = member(r, "depth", cJSON_IsNumber)->valuedouble;
    double most = 268435456 / member(r, "bytes", cJSON_IsNumber)->valuedouble;
    most /= member(r, "iovs", cJSON_IsNumber)->valuedouble;
    require(depth == 1 || depth <= most, "more than 256 MiB", "depth");
    require(cJSON_IsTrue(member(r, "verified", cJSON_IsBool)), "is false", "verified");
    const int behind = cJSON_HasObjectItem(r, "behind_GBps");
    if (behind)
        require_positive(r, "behind_GBps");
    member(r, "mapped", cJSON_IsBool);
    require(cJSON_GetArraySize(r) == 11 + behind, "other members in", "results[]");
    double p50 = member(r, "p50_us", cJSON_IsNumber)->valuedouble;
    require(member(r, "p99_us", cJSON_IsNumber)->valuedouble >= p50, "below p50_us", "p99_us");
}

static void check_idle(const cJSON *idle)
{
    static const char *const positive[] = {"conns", "seconds", "connect_s"};
    static const char *const numbers[] = {"KiB_per_conn", "KiB_per_conn_target", "cpu_ms",
                                          "cpu_ms_without"};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        require_positive(idle, positive[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        member(idle, numbers[i], cJSON_IsNumber);
    require(cJSON_GetArraySize(idle) == 7, "other members in", "idle");
}

static void check_perf(const cJSON *json, char **want)
{
    require_text(json, "test", want[0]);
    const char *path = member(json, "path", cJSON_IsString)->valuestring;
    require(!strncmp(path, want[1], strlen(want[1])), "path", path);
    require_text(json, "mem", want[2]);
    const int idle = cJSON_HasObjectItem(json, "idle");
    if (idle)
        check_idle(member(json, "idle", cJSON_IsObject));
    require(*member(json, "version", cJSON_IsString)->valuestring != 0, "empty", "version");
    static const char *const counts[] = {"depth", "threads", "conns"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        require_positive(json, counts[i]);
    member(json, "progress_threads", cJSON_IsNumber);
    member(json, "away", cJSON_IsBool);
    member(json, "bidir", cJSON_IsBool);
    member(json, "small_pages", cJSON_IsBool);
    member(json, "same_memory", cJSON_IsBool);
    member(json, "injected", cJSON_IsBool);
    const int whose = cJSON_HasObjectItem(json, "gpu_backend");
    if (whose)
        member(json, "gpu_backend", cJSON_IsString);
    require(whose || strncmp(want[2], "gpu", 3) != 0, "lacks", "gpu_backend"); /* of this side's GPU */
    require(cJSON_GetArraySize(json) == 14 + idle + whose, "other members in", "the object");
    const cJSON *r, *results = member(json, "results", cJSON_IsArray);
    require(cJSON_GetArraySize(results) == atoi(want[3]), "number of results is not", want[3]);
    cJSON_ArrayForEach(r, results) check_result(r);
}

static void check_entries(const cJSON *list)
{
    const cJSON *e;
    require(cJSON_GetArraySize(list) > 0, "empty", list->string);
    cJSON_ArrayForEach(e, list)
    {
        member(e, "name", cJSON_IsString);
        member(e, "summary", cJSON_IsString);
        const char *reason = member(e, "reason", cJSON_IsString)->valuestring;
        int usable = cJSON_IsTrue(member(e, "usable", cJSON_IsBool));
        require(usable || *reason, "unusable without a reason", list->string);
    }
}

static void check_devices(const cJSON *transport)
{
    const cJSON *d;
    cJSON_ArrayForEach(d, member(transport, "devices", cJSON_IsArray))
    {
        if (!cJSON_IsTrue(member(d, "usable", cJSON_IsBool)))
            continue;
        const cJSON *a = member(d, "attributes", cJSON_IsObject);
        require(cJSON_GetArraySize(member(a, "ops", cJSON_IsArray)) > 0, "empty", "ops");
        require_positive(a, "max_msg");
        require_positive(a, "tx_depth");
    }
}

static void check_gpus(const cJSON *backend)
{
    const cJSON *d, *t;
    cJSON_ArrayForEach(d, member(backend, "devices", cJSON_IsArray))
    {
        member(d, "name", cJSON_IsString);
        require(cJSON_GetArraySize(member(d, "links", cJSON_IsArray)) ==
                    cJSON_GetArraySize(member(backend, "devices", cJSON_IsArray)),
                "not one for each device", "links");
        cJSON_ArrayForEach(t, member(d, "transports", cJSON_IsArray))
        {
            const char *way = member(t, "way", cJSON_IsString)->valuestring;
            const char *reason = member(t, "reason", cJSON_IsString)->valuestring;
            require(!strcmp(way, "direct") == !*reason, "direct with a reason, or not without",
                    reason);
        }
    }
}

static void check_info(const cJSON *json)
{
    const cJSON *t, *s;
    member(json, "version", cJSON_IsString);
    const cJSON *transports = member(json, "transports", cJSON_IsArray);
    check_entries(transports);
    cJSON_ArrayForEach(t, transports) check_devices(t);
    const cJSON *gpus = member(json, "gpus", cJSON_IsArray);
    check_entries(gpus);
    cJSON_ArrayForEach(t, gpus) check_gpus(t);
    cJSON_ArrayForEach(s, member(json, "settings", cJSON_IsArray))
    {
        static const char *const texts[] = {"name", "type", "value", "default", "source", "help"};
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            member(s, texts[i], cJSON_IsString);
    }
}

int main(int argc, char **argv)
{
    require(argc == 7 || argc == 3, "wrong number of arguments", argv[0]);
    cJSON *json = load(argv[2]);
    if (!strcmp(argv[1], "perf") && argc == 7)
        check_perf(json, argv + 3);
    else
        check_info(json);
    cJSON_Delete(json);
    return 0;
}
