/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of weft_perf. */
#include "perf_args.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "weft.h"

#define END(status) (1 + (status))

static const char *const test_names[PERF_TESTS] = {"write", "read", "send", "notify", "add", "rw"};

/* Measured when --sizes is not given: small, page, socket buffer, cache, memory. Notifications are
 * small things. */
#define DEFAULT_SIZES "8,64,1K,8K,64K,1M,8M,64M"
#define DEFAULT_NOTIFY_SIZES "8,64,1K,8K,64K"
#define ADD_SIZES "8"

static const char usage_text[] =
    "Usage: weft_perf write|read|rw|send|notify|add --local [OPTION]...\n"
    "       weft_perf TEST --listen [HOST|PORT|HOST:PORT] [OPTION]...    on one side, then\n"
    "       weft_perf TEST --connect HOST[:PORT] [OPTION]...             on the other\n"
    "\n"
    "Measures what Weft moves, and checks that it arrived. rw writes and reads at once, half of the\n"
    "operations in flight each (--depth is even); GB/s are of both together.\n"
    "\n"
    "      --local               run both sides here, in two processes\n"
    "      --listen [HOST|PORT|HOST:PORT] be the target (all interfaces, IPv4, unless HOST is given)\n"
    "      --connect HOST[:PORT] be the initiator: its options decide what is measured\n"
    "  -t, --transport LIST      use only these transports, best first\n"
    "  -s, --sizes LIST          bytes: 8,4K,1M..64M (A..B doubles)\n"
    "  -n, --iters N             operations per size (default: about a second)\n"
    "  -d, --depth N             operations in flight (default 64, at most 256 MiB;\n"
    "                            1 measures latency, for send as a ping-pong)\n"
    "  -i, --iovs N              pieces of each operation, each of the size measured\n"
    "  -T, --threads N           threads, each with an endpoint and a conn of its own\n"
    "  -c, --conns N             conns of each thread, which operations take in turns\n"
    "      --behind SIZE         while one operation of SIZE is under way on the same conn\n"
    "      --idle SECONDS        first, what idle conns cost: memory, processor time\n"
    "  -b, --bidir               both sides initiate\n"
    "  -m, --mem host|gpu        memory of this side (default host); with --local\n"
    "                            two are the initiator's and the target's: gpu,host\n"
    "  -g, --gpu N               the GPU whose memory it is; two with --local: 0,1.\n"
    "                            Without --mem: --mem gpu\n"
    "      --gpu-backend NAME    whose GPUs (default: WEFT_GPU, or the first with a GPU);\n"
    "                            a side with host memory copies by the peer's GPU with it\n"
    "      --same-memory         operations in flight go from one place to one, as those of perftest\n"
    "                            and fabtests do, and not each from its own to its own (write, read)\n"
    "      --inject              short messages without a handle, as peers' programs send them (send\n"
    "                            --depth 1, up to 216 bytes: the answer says that one has come)\n"
    "      --small-pages         host memory of this side (--local: of both) without huge pages\n"
    "      --secret-file FILE    the secret that both sides share\n"
    "  -p, --progress-threads N  let N threads of the endpoint move the bytes (default: this one)\n"
    "      --away                the target (of --local, or this one) sleeps while it is written to or\n"
    "                            read, as a program that computes: its progress threads are alone\n"
    "      --verify, --no-verify check every byte outside the timing (default: yes)\n"
    "      --timeout SECONDS     longest time for one size (default 300)\n"
    "  -j, --json FILE           results as JSON, - for standard output\n"
    "  -V, --version\n"
    "  -h, --help\n";

enum {
    OPT_LOCAL = 256,
    OPT_LISTEN,
    OPT_CONNECT,
    OPT_VERIFY,
    OPT_NO_VERIFY,
    OPT_TIMEOUT,
    OPT_BEHIND,
    OPT_IDLE,
    OPT_SECRET_FILE,
    OPT_GPU_BACKEND,
    OPT_SAME_MEMORY,
    OPT_INJECT,
    OPT_SMALL_PAGES,
    OPT_AWAY
};

static const struct option options[] = {
    {"local", no_argument, NULL, OPT_LOCAL},
    {"listen", optional_argument, NULL, OPT_LISTEN},
    {"connect", required_argument, NULL, OPT_CONNECT},
    {"transport", required_argument, NULL, 't'},
    {"sizes", required_argument, NULL, 's'},
    {"iters", required_argument, NULL, 'n'},
    {"depth", required_argument, NULL, 'd'},
    {"iovs", required_argument, NULL, 'i'},
    {"threads", required_argument, NULL, 'T'},
    {"conns", required_argument, NULL, 'c'},
    {"behind", required_argument, NULL, OPT_BEHIND},
    {"idle", required_argument, NULL, OPT_IDLE},
    {"bidir", no_argument, NULL, 'b'},
    {"mem", required_argument, NULL, 'm'},
    {"gpu", required_argument, NULL, 'g'},
    {"gpu-backend", required_argument, NULL, OPT_GPU_BACKEND},
    {"same-memory", no_argument, NULL, OPT_SAME_MEMORY},
    {"inject", no_argument, NULL, OPT_INJECT},
    {"small-pages", no_argument, NULL, OPT_SMALL_PAGES},
    {"progress-threads", required_argument, NULL, 'p'},
    {"away", no_argument, NULL, OPT_AWAY},
    {"secret-file", required_argument, NULL, OPT_SECRET_FILE},
    {"verify", no_argument, NULL, OPT_VERIFY},
    {"no-verify", no_argument, NULL, OPT_NO_VERIFY},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"json", required_argument, NULL, 'j'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

const char *perf_test_name(enum perf_test test)
{
    return test_names[test];
}

static int test_find(const char *name)
{
    for (int i = 0; i < PERF_TESTS; i++)
        if (!strcmp(test_names[i], name))
            return i;
    return -1;
}

static int usage_error(const char *what, const char *value)
{
    message(value ? "%s: %s" : "%s", what, value);
    message("try 'weft_perf --help'");
    return END(EXIT_USAGE);
}

/* A host or host and port as typed -> with port. "[V6]" and "V6" are hosts without one. */
static int set_role(struct perf_args *args, enum perf_role role, const char *address)
{
    if (args->role != PERF_NO_ROLE)
        return usage_error("give one of --local, --listen, --connect", NULL);
    args->role = role;
    const char *text = address ? address : "";
    const char *bracket = strrchr(text, ']'), *colon = strrchr(text, ':');
    bool bare_v6 = !bracket && colon && strchr(text, ':') != colon;
    bool has_port = colon && !bare_v6 && (!bracket || colon > bracket);
    char port[8] = "";
    if (!has_port)
        snprintf(port, sizeof port, ":%d", PERF_PORT);
    int n = snprintf(args->address, sizeof args->address, "%s%s%s%s", bare_v6 ? "[" : "", text,
                     bare_v6 ? "]" : "", port);
    if ((size_t)n >= sizeof args->address)
        return usage_error("address is too long", address);
    return 0;
}

/* --listen takes the next word as its address if that is neither an option nor a test. A number is a port. */
static int set_listen(struct perf_args *args, int argc, char **argv)
{
    const char *address = optarg;
    if (!address && optind < argc && argv[optind][0] != '-' && test_find(argv[optind]) < 0)
        address = argv[optind++];
    char port[8];
    if (address && *address && strspn(address, "0123456789") == strlen(address) && strlen(address) < sizeof port - 1) {
        snprintf(port, sizeof port, ":%s", address);
        address = port;
    }
    return set_role(args, PERF_LISTEN, address);
}

static int set_number(const char *name, long long least, long long most, uint32_t *out)
{
    long long value;
    if (number_parse(optarg, least, most, &value)) {
        message("%s '%s': a number from %lld to %lld is needed", name, optarg, least, most);
        return END(EXIT_USAGE);
    }
    *out = (uint32_t)value;
    return 0;
}

static int set_sizes(struct perf_args *args, const char *text)
{
    args->nsizes = size_list_parse(text, args->sizes, PERF_MAX_SIZES);
    return args->nsizes < 0 ? usage_error("--sizes is not a list of sizes", text) : 0;
}

static int set_behind(struct perf_args *args)
{
    if (size_parse(optarg, strlen(optarg), &args->behind) || args->behind == 0)
        return usage_error("--behind is not a size", optarg);
    return 0;
}

/* Of a list of one or two words the i-th; the last stands for those that are missing. */
static void word_of(const char *list, int i, char *word, size_t size)
{
    const char *comma = strchr(list, ',');
    const char *at = i && comma ? comma + 1 : list;
    int n = comma && !i ? (int)(comma - list) : (int)strlen(at);
    snprintf(word, size, "%.*s", n, n < (int)size ? at : "too long");
}

static int set_mem(struct perf_args *args)
{
    struct perf_place *places[] = {&args->mem, &args->target_mem};
    args->both = args->both || strchr(optarg, ',');
    for (int i = 0; i < 2; i++) {
        char word[8];
        word_of(optarg, i, word, sizeof word);
        places[i]->gpu = !strcmp(word, "gpu");
        if (!places[i]->gpu && strcmp(word, "host"))
            return usage_error("--mem is neither host nor gpu", optarg);
    }
    args->mem_said = true;
    return 0;
}

static int set_gpu(struct perf_args *args)
{
    struct perf_place *places[] = {&args->mem, &args->target_mem};
    args->both = args->both || strchr(optarg, ',');
    for (int i = 0; i < 2; i++) {
        char word[16];
        long long value;
        word_of(optarg, i, word, sizeof word);
        if (number_parse(word, 0, PERF_MAX_GPU, &value))
            return usage_error("--gpu is not the number of a GPU, or two of them", optarg);
        places[i]->ordinal = (int)value;
    }
    args->gpu_said = true;
    return 0;
}

static int set_counts(int option, struct perf_args *args)
{
    uint32_t value = 0;
    int rc = 0;
    switch (option) {
    case 'n':
        rc = set_number("--iters", 1, UINT32_MAX, &value);
        args->iters = value;
        return rc;
    case 'd':
        return set_number("--depth", 1, PERF_MAX_DEPTH, &args->depth);
    case 'i':
        return set_number("--iovs", 1, PERF_MAX_IOVS, &args->iovs);
    case 'T':
        return set_number("--threads", 1, PERF_MAX_THREADS, &args->threads);
    case 'c':
        return set_number("--conns", 1, PERF_MAX_CONNS, &args->conns);
    case OPT_IDLE:
        return set_number("--idle", 1, PERF_MAX_IDLE_S, &args->idle_s);
    case 'p':
        rc = set_number("--progress-threads", 0, PERF_MAX_THREADS, &value);
        args->progress_threads = (int)value;
        return rc;
    case OPT_TIMEOUT:
        rc = set_number("--timeout", 1, 86400, &value);
        args->timeout_s = (int)value;
        return rc;
    default:
        message("try 'weft_perf --help'"); /* getopt has said what is wrong */
        return END(EXIT_USAGE);
    }
}

static int set_option(int option, int argc, char **argv, struct perf_args *args)
{
    switch (option) {
    case OPT_LOCAL:
        return set_role(args, PERF_LOCAL, "127.0.0.1:0");
    case OPT_LISTEN:
        return set_listen(args, argc, argv);
    case OPT_CONNECT:
        return set_role(args, PERF_CONNECT, optarg);
    case 't':
        args->transport = optarg;
        return 0;
    case 's':
        return set_sizes(args, optarg);
    case OPT_BEHIND:
        return set_behind(args);
    case 'b':
        args->bidir = true;
        return 0;
    case OPT_SAME_MEMORY:
        args->same = true;
        return 0;
    case OPT_INJECT:
        args->inject = true;
        return 0;
    case OPT_SMALL_PAGES:
        args->mem.small_pages = args->target_mem.small_pages = true;
        return 0;
    case OPT_AWAY:
        args->away = true;
        return 0;
    case 'm':
        return set_mem(args);
    case 'g':
        return set_gpu(args);
    case OPT_GPU_BACKEND:
        args->mem.backend = args->target_mem.backend = optarg;
        return 0;
    case OPT_SECRET_FILE:
        args->secret_file = optarg;
        return 0;
    case OPT_VERIFY:
    case OPT_NO_VERIFY:
        args->verify = option == OPT_VERIFY;
        return 0;
    case 'j':
        args->json = optarg;
        return 0;
    case 'V':
        printf("weft_perf %s\n", weft_version());
        return END(EXIT_OK);
    case 'h':
        fputs(usage_text, stdout);
        return END(EXIT_OK);
    default:
        return set_counts(option, args);
    }
}

/* What does not go together. */
static int check(struct perf_args *args)
{
    const char *test = perf_test_name(args->test);
    if (args->role == PERF_NO_ROLE)
        return usage_error("give one of --local, --listen, --connect", NULL);
    if (args->iovs > 1 && (args->test == PERF_NOTIFY || args->test == PERF_ADD))
        return usage_error("--iovs does not apply to", test);
    if (args->gpu_said && !args->mem_said)
        args->mem.gpu = args->target_mem.gpu = true;
    if (args->mem.backend && !args->mem.gpu && !args->target_mem.gpu && args->role == PERF_LOCAL)
        return usage_error("--local --gpu-backend goes with --mem gpu or --gpu of a side", NULL);
    if (args->both && args->role != PERF_LOCAL)
        return usage_error("--mem and --gpu have two values with --local only", NULL);
    if ((args->mem.gpu || args->target_mem.gpu) && args->test == PERF_NOTIFY)
        return usage_error("--mem gpu does not apply to", test);
    if (args->test == PERF_RW && (args->depth % 2 || args->iters == 1))
        return usage_error("rw has as many writes as reads in flight: --depth is even, and --iters is not 1", NULL);
    if (args->bidir && args->test == PERF_SEND && args->depth == 1)
        return usage_error("send --depth 1 is a ping-pong: --bidir does not apply", NULL);
    if (args->conns > 1 && (args->bidir || args->test == PERF_SEND || args->test == PERF_NOTIFY))
        return usage_error("--conns does not apply to --bidir, send and notify", NULL);
    if (args->behind && (args->bidir || (args->test != PERF_WRITE && args->test != PERF_READ)))
        return usage_error("--behind applies to write and read one way", NULL);
    if (args->json && args->role == PERF_LISTEN)
        return usage_error("--json is for the side that connects, which measures", NULL);
    if (args->same && args->test != PERF_WRITE && args->test != PERF_READ)
        return usage_error("--same-memory applies to write and read", NULL);
    if (args->inject && (args->mem.gpu || args->target_mem.gpu))
        return usage_error("--inject does not apply to --mem gpu", NULL);
    if (args->inject && (args->test != PERF_SEND || args->depth != 1))
        return usage_error("--inject applies to send --depth 1: else nothing says that a message has come", NULL);
    if (args->away && (args->bidir || args->role == PERF_CONNECT ||
                       (args->test != PERF_WRITE && args->test != PERF_READ)))
        return usage_error("--away is for the side that listens, of write and read one way", NULL);
    if (args->away && !args->progress_threads)
        return usage_error("--away needs --progress-threads: nobody would move the bytes", NULL);
    if (args->idle_s && args->threads > 1)
        return usage_error("--idle does not apply to --threads", NULL);
    for (int i = 0; args->test == PERF_ADD && i < args->nsizes; i++)
        if (args->sizes[i] != sizeof(uint64_t))
            return usage_error("add moves 8 bytes: --sizes does not apply", NULL);
    if (args->nsizes)
        return 0;
    return set_sizes(args, args->test == PERF_ADD      ? ADD_SIZES
                           : args->test == PERF_NOTIFY ? DEFAULT_NOTIFY_SIZES
                                                       : DEFAULT_SIZES);
}

int perf_args_parse(int argc, char **argv, struct perf_args *args)
{
    *args = (struct perf_args){.depth = PERF_DEFAULT_DEPTH,
                               .iovs = 1,
                               .threads = 1,
                               .conns = 1,
                               .timeout_s = PERF_DEFAULT_TIMEOUT_S,
                               .verify = true};
    int option;
    while ((option = getopt_long(argc, argv, "t:s:n:d:i:T:c:bm:g:p:j:Vh", options, NULL)) != -1) {
        int rc = set_option(option, argc, argv, args);
        if (rc)
            return rc;
    }
    if (optind >= argc)
        return usage_error("name a test: write, read, rw, send, notify or add", NULL);
    int test = test_find(argv[optind]);
    if (test < 0)
        return usage_error("there is no test named", argv[optind]);
    if (optind + 1 < argc)
        return usage_error("one test at a time; unexpected", argv[optind + 1]);
    args->test = (enum perf_test)test;
    return check(args);
}
