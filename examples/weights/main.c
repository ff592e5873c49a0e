/* SPDX-License-Identifier: Apache-2.0 */
/* weights serve | weights pull: the command line. */
#include "weights.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 16   /* 64 MiB under way: enough for 100 Gbit/s at 5 ms */
#define RETRY_S 30 /* long enough to restart a server */
#define IDLE_S 60  /* memory that is new costs the first pull a tenth of its speed */

static const char usage[] =
    "weights serve DIR [--listen HOST:PORT] [--transport T] [--threads N] [--idle SECONDS]\n"
    "weights pull HOST:PORT DEST [--transport T] [--threads N] [--depth N]\n"
    "             [--retry SECONDS] [--limit MB/s] [--no-check] [--verify] [--no-compare]\n"
    "weights pull HOST:PORT --memory [OPTION]...      all of these but --verify\n"
    "\n"
    "serve    let others pull the files below DIR; says where it listens\n"
    "pull     fetch all files of a server into DEST, check them, resume what an earlier pull "
    "left;\n"
    "         or into memory\n"
    "\n"
    "  --listen HOST:PORT  address to accept clients at (127.0.0.1, any free port)\n"
    "  --transport T       names of transports to use, best first (all)\n"
    "  --threads N         threads for a kind of work, 1 to 8: of serve those that read files, of "
    "pull\n"
    "                      those that check and write, of both Weft's (half of the "
    "processors)\n"
    "  --idle SECONDS      without a client for so long, give the memory of pieces back (60)\n"
    "  --depth N           pieces of 4 MiB under way at a time, 1 to 64 (16)\n"
    "  --retry SECONDS     how long to try to reach a server that is away (30)\n"
    "  --limit MB/s        move at most so many million bytes a second\n"
    "  --memory            pull into memory of this process, and let go of it at the end\n"
    "  --no-check          take every piece for right that arrives\n"
    "  --verify            compare the SHA-256 of every file before it gets its name\n"
    "  --no-compare        do not move the bytes again through a plain socket to compare\n";

static int bad_usage(const char *what)
{
    fprintf(stderr, "weights: %s; weights --help says more\n", what);
    return 2;
}

/* A number from least to most, or -1. */
static double number(const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    return end != text && !*end && isfinite(value) && value >= least && value <= most ? value : -1;
}

static int threads_option(const char *value)
{
    double n = number(value, 1, THREADS_MOST);
    return n == (int)n ? (int)n : -1;
}

static int help(void)
{
    fputs(usage, stdout);
    return 0;
}

/* What is wrong with an option, unless getopt has said so. */
static int bad_option(int c)
{
    switch (c) {
    case 'T':
        return bad_usage("--threads takes a whole number from 1 to 8");
    case 'd':
        return bad_usage("--depth takes a number from 1 to 64");
    case 'i':
        return bad_usage("--idle takes seconds, from 0 to 1000000");
    case 'r':
        return bad_usage("--retry takes seconds, from 0 to 1000000");
    case 'm':
        return bad_usage("--limit takes MB/s, from 0.001 to 1000000");
    default:
        return 2;
    }
}

static int main_serve(int argc, char **argv)
{
    static const struct option options[] = {{"listen", required_argument, NULL, 'l'},
                                            {"transport", required_argument, NULL, 't'},
                                            {"threads", required_argument, NULL, 'T'},
                                            {"idle", required_argument, NULL, 'i'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct serve_opts opts = {.threads = threads_default(), .idle = IDLE_S};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'l')
            opts.listen = optarg;
        else if (c == 't')
            opts.transport = optarg;
        else if (c == 'T')
            opts.threads = threads_option(optarg);
        else if (c == 'i')
            opts.idle = number(optarg, 0, 1e6);
        else
            return c == 'h' ? help() : bad_option(c);
        if (opts.threads < 0 || opts.idle < 0)
            return bad_option(c);
    }
    if (argc - optind != 1)
        return bad_usage("serve takes one directory");
    opts.dir = argv[optind];
    return serve(&opts) ? 1 : 0;
}

/* One option of pull. 0, or -1 if its value is no good. */
static int pull_option(struct pull_opts *opts, int c, const char *value)
{
    switch (c) {
    case 't':
        opts->transport = value;
        return 0;
    case 'T':
        opts->threads = threads_option(value);
        return opts->threads < 0 ? -1 : 0;
    case 'd':
        opts->depth = (int)number(value, 1, MOST_DEPTH);
        return opts->depth < 0 ? -1 : 0;
    case 'r':
        opts->retry = (int)number(value, 0, 1e6);
        return opts->retry < 0 ? -1 : 0;
    case 'm':
        opts->limit = number(value, 1e-3, 1e6) * 1e6;
        return opts->limit < 0 ? -1 : 0;
    case 'M':
        opts->memory = 1;
        return 0;
    case 'c':
        opts->no_check = 1;
        return 0;
    case 'v':
        opts->verify = 1;
        return 0;
    case 'n':
        opts->no_compare = 1;
        return 0;
    default:
        return -1;
    }
}

static int main_pull(int argc, char **argv)
{
    static const struct option options[] = {{"transport", required_argument, NULL, 't'},
                                            {"threads", required_argument, NULL, 'T'},
                                            {"depth", required_argument, NULL, 'd'},
                                            {"retry", required_argument, NULL, 'r'},
                                            {"limit", required_argument, NULL, 'm'},
                                            {"memory", no_argument, NULL, 'M'},
                                            {"no-check", no_argument, NULL, 'c'},
                                            {"verify", no_argument, NULL, 'v'},
                                            {"no-compare", no_argument, NULL, 'n'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct pull_opts opts = {.threads = threads_default(), .depth = DEPTH, .retry = RETRY_S};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (c == 'h')
            return help();
        else if (pull_option(&opts, c, optarg))
            return bad_option(c);
    if (argc - optind != (opts.memory ? 1 : 2))
        return bad_usage("pull takes an address and a directory, or an address and --memory");
    if (opts.memory && opts.verify)
        return bad_usage("--verify is for files");
    opts.address = argv[optind];
    opts.dest = opts.memory ? NULL : argv[optind + 1];
    return pull(&opts) ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return bad_usage("say serve or pull");
    if (!strcmp(argv[1], "--help"))
        return help();
    const char *what = argv[1];
    argv[1] = argv[0]; /* the name under which getopt complains */
    if (!strcmp(what, "serve"))
        return main_serve(argc - 1, argv + 1);
    if (!strcmp(what, "pull"))
        return main_pull(argc - 1, argv + 1);
    return bad_usage("say serve or pull");
}
