/* SPDX-License-Identifier: Apache-2.0 */
/* weft_info: what this build and this machine offer, and which settings are in force. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "info.h"
#include "weft.h"

static const char usage_text[] =
    "Usage: weft_info [OPTION]...\n"
    "\n"
    "Lists the transports and GPU backends of this build, whether they can be used here,\n"
    "and if not, why.\n"
    "\n"
    "  -v, --verbose  devices with what they promise, and unusable ones\n"
    "  -c, --config   settings: name, value, where it comes from, help\n"
    "      --json     all of it as JSON\n"
    "      --secret-file FILE\n"
    "                 first: would an endpoint take this file as its shared secret?\n"
    "  -V, --version\n"
    "  -h, --help\n"
    "\n"
    "Exit status: 0; 1 if no transport, a setting or the secret cannot be used; 2 if an argument "
    "is wrong.\n";

enum { OPT_JSON = 256, OPT_SECRET_FILE };

static const struct option options[] = {
    {"verbose", no_argument, NULL, 'v'},
    {"config", no_argument, NULL, 'c'},
    {"json", no_argument, NULL, OPT_JSON},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {"secret-file", required_argument, NULL, OPT_SECRET_FILE},
    {NULL, 0, NULL, 0},
};

static void print_attributes(const char *transport, const char *device)
{
    struct info_attr list[INFO_MAX_ATTRS];
    int n = info_attrs(transport, device, list);
    if (n < 0)
        printf("      attributes: %s\n", weft_last_error());
    for (int i = 0; i < n; i++)
        printf("      %-16s %s\n", list[i].name, list[i].text);
}

static void print_devices(const char *transport, bool verbose)
{
    struct weft_device_info d;
    for (int j = 0; weft_device_info(transport, j, &d) == 0; j++) {
        if (!d.usable && !verbose)
            continue;
        char text[INFO_TEXT_MAX];
        printf("    %-14s %s\n", d.name, info_device(&d, text));
        if (!d.rail)
            printf("      not %s: %s\n", d.usable ? "used" : "usable", d.reason);
        if (d.usable && verbose)
            print_attributes(transport, d.name);
    }
}

static int usable_devices(const char *transport)
{
    struct weft_device_info d;
    int n = 0;
    for (int j = 0; weft_device_info(transport, j, &d) == 0; j++)
        n += d.usable != 0;
    return n;
}

static int print_transports(bool verbose)
{
    struct weft_transport_info t;
    int usable = 0;
    printf("transports\n");
    for (int i = 0; weft_transport_info(i, &t) == 0; i++) {
        printf("  %-10s %s  %s%s\n", t.name, t.usable ? "yes" : "no ", t.summary,
               t.from_module ? " (module)" : "");
        if (!t.usable)
            printf("    not usable: %s\n", t.reason);
        if (t.usable && verbose)
            printf("    priority %d, %d of %d devices usable\n", t.priority, usable_devices(t.name), t.ndevices);
        print_devices(t.name, verbose);
        usable += t.usable;
    }
    return usable;
}

static void print_topology(void)
{
    struct weft_topology_info t;
    if (weft_topology_info(&t) == 0)
        printf("distances\n  %s %s\n\n",
               t.known ? "from" : "not known:", t.known ? t.near : t.reason);
}

static void print_nearest(const struct weft_gpu_device_info *gpu)
{
    struct weft_transport_info t;
    struct weft_device_info d;
    for (int i = 0; weft_transport_info(i, &t) == 0; i++)
        if (info_nearest(t.name, gpu, &d) == 0)
            printf("      nearest     %s %s, %s\n", t.name, d.name, info_distance(d.distance));
}

/* How its memory moves over each transport. */
static void print_ways(const char *backend, int j)
{
    struct weft_transport_info t;
    for (int i = 0; weft_transport_info(i, &t) == 0; i++) {
        char why[192];
        int way = info_gpu_way(backend, j, &t, why, sizeof why);
        printf("      %-11s %s%s%s\n", t.name, info_way(way), *why ? ": " : "", why);
    }
}

/* By what each reaches the memory of each. */
static void print_links(const struct weft_gpu_info *g)
{
    printf("    links");
    for (int j = 0; j < g->ndevices; j++)
        printf(" %-11d", j);
    printf("\n");
    for (int i = 0; i < g->ndevices; i++) {
        printf("    %-5d", i);
        for (int j = 0; j < g->ndevices; j++)
            printf(" %-11s", info_link(weft_gpu_link(g->name, i, j)));
        printf("\n");
    }
}

static void print_gpu_devices(const struct weft_gpu_info *g)
{
    struct weft_gpu_device_info d;
    char text[INFO_TEXT_MAX];
    for (int j = 0; j < g->ndevices; j++) {
        if (weft_gpu_device_info(g->name, j, &d)) {
            printf("    %-3d %s\n", j, weft_last_error());
            continue;
        }
        printf("    %-3d %s\n", j, info_gpu(&d, text));
        print_nearest(&d);
        print_ways(g->name, j);
    }
    if (g->ndevices > 1)
        print_links(g);
}

static void print_gpus(bool verbose)
{
    struct weft_gpu_info g;
    printf("GPU backends\n");
    for (int i = 0; weft_gpu_info(i, &g) == 0; i++) {
        printf("  %-10s %s  %s%s\n", g.name, g.usable ? "yes" : "no ", g.summary,
               g.from_module ? " (module)" : "");
        if (!g.usable)
            printf("    not usable: %s\n", g.reason);
        else if (strcmp(g.name, "host") || verbose)
            print_gpu_devices(&g);
    }
}

/* One that does nothing else, where WEFT_LISTEN says: a port that is taken may well be a program's with the same
 * settings. `what` opens none if it does not. */
static int try_endpoint(const char *what)
{
    weft_endpoint_t endpoint;
    int rc = weft_endpoint_open(
        WEFT_OPTS(weft_endpoint_opts, .progress_threads = WEFT_PROGRESS_CALLER), &endpoint);
    if (rc == -EADDRINUSE)
        return 0;
    if (rc == 0)
        return weft_endpoint_close(endpoint);
    message("no endpoint %s: %s", what, weft_last_error());
    return rc;
}

/* Settings of the environment that no endpoint opens with, each told. Returns how many. */
static int check_config(void)
{
    struct weft_config_item item;
    int wrong = 0;
    for (int i = 0; weft_config_get(i, &item) == 0; i++) {
        if (item.source != WEFT_FROM_ENVIRONMENT)
            continue;
        if (weft_config_set(item.name, item.value)) {
            message("no endpoint opens: %s", weft_last_error());
            wrong++;
        }
        weft_config_set(item.name, NULL);
    }
    return wrong ? wrong : try_endpoint("opens") != 0;
}

static void print_config(void)
{
    struct weft_config_item item;
    for (int i = 0; weft_config_get(i, &item) == 0; i++) {
        printf("%s=%s  (%s, %s", item.name, item.value, item.type, info_source(item.source));
        if (item.source != WEFT_FROM_DEFAULT)
            printf("; default %s", item.preset[0] ? item.preset : "empty");
        printf(")\n    %s\n", item.help);
    }
}

static int print_json(void)
{
    cJSON *all = info_json();
    int rc = all ? json_write("-", all) : -1;
    cJSON_Delete(all);
    return rc;
}

static int count_usable(void)
{
    struct weft_transport_info t;
    int usable = 0;
    for (int i = 0; weft_transport_info(i, &t) == 0; i++)
        usable += t.usable;
    return usable;
}

static int print_text(bool config, bool verbose)
{
    int rc = EXIT_OK;
    if (config) {
        print_config();
    } else {
        printf("weft %s\n\n", weft_version());
        rc = print_transports(verbose) ? EXIT_OK : EXIT_FAILED;
        printf("\n");
        print_topology();
        print_gpus(verbose);
    }
    errno = 0; /* ferror knows of an earlier failure only that there was one */
    if (fflush(stdout) == 0 && !ferror(stdout))
        return rc;
    message("cannot write: %s", errno ? strerror(errno) : "output was lost");
    return EXIT_FAILED;
}

static int print_all(bool config, bool json, bool verbose)
{
    if (json)
        return print_json() || !count_usable() ? EXIT_FAILED : EXIT_OK;
    return print_text(config, verbose);
}

int main(int argc, char **argv)
{
    const char *secret_file = NULL;
    bool config = false, json = false, verbose = false;
    int option;
    message_name("weft_info");
    while ((option = getopt_long(argc, argv, "vcVh", options, NULL)) != -1) {
        switch (option) {
        case 'v':
            verbose = true;
            break;
        case 'c':
            config = true;
            break;
        case OPT_JSON:
            json = true;
            break;
        case OPT_SECRET_FILE:
            secret_file = optarg;
            break;
        case 'V':
            printf("weft_info %s\n", weft_version());
            return EXIT_OK;
        case 'h':
            fputs(usage_text, stdout);
            return EXIT_OK;
        default:
            message("try 'weft_info --help'"); /* getopt has said what is wrong */
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        message("unexpected argument: %s", argv[optind]);
        message("try 'weft_info --help'");
        return EXIT_USAGE;
    }
    if (secret_file && secret_file_set(secret_file))
        return EXIT_USAGE;
    if (secret_file && try_endpoint("with this secret"))
        return EXIT_FAILED;
    int rc = print_all(config, json, verbose);
    message_strangers();
    return check_config() > 0 ? EXIT_FAILED : rc;
}
