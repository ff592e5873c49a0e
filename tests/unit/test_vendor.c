/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/cuda, or gpu/hip (WEFT_TEST_GPU), when the vendor's library lacks something, or fails: over the double of NVIDIA's driver,
 * which reads its settings whenever it is started, and that of AMD's runtime over it. */
#include "contract/duo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/vendor/vendor.h"
#include "weft/gpu.h"

extern const struct weft_gpu_backend weft_gpu_cuda, weft_gpu_hip;
int cuInit(unsigned flags);
int fake_cuda_asked(void);
int fake_cuda_graphs(void);
int fake_cuda_graph_launches(void);
int fake_cuda_launches(void);
int fake_cuda_modules(void);
int fake_cuda_pinned(void);
int fake_cuda_streams(void);
int fake_cuda_retained(void);
int fake_cuda_odd(void);

static const struct subject {
    const struct weft_gpu_backend *backend;
    const char *setting, *kernels, *package, *lacks;
} subjects[] = {{&weft_gpu_cuda, "WEFT_CUDA_LIBRARY", "WEFT_CUDA_KERNELS", "NVIDIA's driver",
                 "lacks cuInit"},
                {&weft_gpu_hip, "WEFT_HIP_LIBRARY", "WEFT_HIP_KERNELS", "AMD's HIP runtime",
                 "lacks hip"}};
static const struct subject *subject;

#define OPS subject->backend->ops

/* The driver is there already: only the double's settings change. */
static struct weft_gpu *open_with(const char *settings)
{
    struct weft_gpu *gpu;
    setenv("FAKE_CUDA", settings, 1);
    WEFT_OK(OPS->probe());
    assert_int_equal(cuInit(0), 0);
    WEFT_OK(OPS->open(0, &gpu));
    return gpu;
}

/* First: a driver that was started stays so. */
static void a_machine_without_gpus_says_so(void **state)
{
    (void)state;
    const struct {
        const char *library, *settings, *says;
    } cases[] = {{"there-is-none.so", "", subject->package},
                 {"libc.so.6", "", subject->lacks},
                 {",there-is-none.so,,libc.so.6,", "", subject->lacks},
                 {"there-is-none.so,fstab,nor-this", "", "there-is-none.so"},
                 {",", "", "names no file"},
                 {NULL, "init=34", "stub"},
                 {NULL, "init=100", "no CUDA-capable device"}};
    int any;
    struct weft_gpu_range range;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        weft_config_set(subject->setting, cases[i].library);
        setenv("FAKE_CUDA", cases[i].settings, 1);
        assert_int_equal(OPS->probe(), 0);
        CHECK(strstr(weft_last_error(), cases[i].says), "'%s'", weft_last_error());
        struct weft_gpu *gpu;
        WEFT_FAILS(WEFT_ENODEV, OPS->open(0, &gpu));
        assert_int_equal(OPS->query(&any, &range), 0);
    }
    weft_config_set(subject->setting, NULL);
}

/* By the application, or by another registration: whoever was first lets go of it. */
static void the_hosts_memory_is_mapped_once(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("");
    static uint8_t bytes[8192];
    void *first, *again;
    assert_int_equal(OPS->host_map(gpu, bytes, sizeof bytes, &first), 0);
    assert_int_equal(OPS->host_map(gpu, bytes, sizeof bytes, &again), 1);
    assert_ptr_equal(first, again);
    assert_int_equal(OPS->host_map(gpu, bytes + 100, 1000, &again), 1); /* a part of it */
    assert_ptr_equal((uint8_t *)first + 100, again);
    OPS->host_unmap(gpu, bytes);
    assert_int_equal(OPS->host_map(gpu, bytes, 4096, &first), 0); /* now only a part is */
    assert_true(OPS->host_map(gpu, bytes, sizeof bytes, &again) < 0);
    assert_true(OPS->host_map(gpu, bytes + 4000, 1000, &again) < 0);
    OPS->host_unmap(gpu, bytes);
    assert_int_equal(OPS->host_map(gpu, bytes, sizeof bytes, &again), 0);
    OPS->host_unmap(gpu, bytes);
    OPS->close(gpu);
}

static void devices_are_counted(void **state)
{
    (void)state;
    struct weft_gpu *gpu, *other;
    struct weft_gpu_range range;
    void *addr;
    setenv("FAKE_CUDA", "devices=3", 1);
    assert_int_equal(OPS->probe(), 3);
    WEFT_OK(OPS->open(2, &gpu));
    WEFT_FAILS(WEFT_ENODEV, OPS->open(3, &other));
    WEFT_OK(OPS->alloc(gpu, 100, &addr));
    assert_int_equal(OPS->query(addr, &range), 1);
    assert_int_equal(range.ordinal, 2);
    assert_int_equal(range.kind, WEFT_MEM_PEER);
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

static void no_room(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("memory=65536");
    void *first, *second;
    WEFT_OK(OPS->alloc(gpu, 60000, &first));
    WEFT_FAILS(-ENOMEM, OPS->alloc(gpu, 6000, &second));
    CHECK(strstr(weft_last_error(), "6000"), "'%s'", weft_last_error());
    OPS->free(gpu, first);
    WEFT_OK(OPS->alloc(gpu, 6000, &second));
    OPS->free(gpu, second);
    OPS->close(gpu);
}

static void a_device_that_is_lost(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("");
    char bytes[64] = {1}, back[64] = {0};
    void *addr;
    WEFT_OK(OPS->alloc(gpu, sizeof bytes, &addr));
    WEFT_OK(OPS->copy(gpu, addr, bytes, sizeof bytes, NULL));
    setenv("FAKE_CUDA", "lost=1", 1);
    assert_int_equal(cuInit(0), 0);
    WEFT_FAILS(-EIO, OPS->copy(gpu, back, addr, sizeof back, NULL));
    CHECK(strstr(weft_last_error(), "launch failure"), "'%s'", weft_last_error());
    assert_int_equal(back[0], 0);
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

/* What copy_done says once it is not 0; the caller looks for it for 10 s. Where the library need not be
 * asked, one look in a thousand does: with a sleep between them, none. */
static int end_of_at(struct weft_gpu *gpu, struct weft_gpu_job *job, unsigned sleep_us)
{
    uint64_t deadline = weft_now() + 10 * UINT64_C(1000000000);
    int rc;
    while ((rc = OPS->copy_done(gpu, job)) == 0 && weft_now() < deadline)
        usleep(sleep_us);
    return rc;
}

static int end_of(struct weft_gpu *gpu, struct weft_gpu_job *job)
{
    return end_of_at(gpu, job, 0);
}

static void a_device_that_is_lost_during_a_copy(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("lost=0");
    char bytes[64] = {1};
    void *addr;
    struct weft_gpu_job *job = NULL;
    WEFT_OK(OPS->alloc(gpu, sizeof bytes, &addr));
    const struct weft_gpu_copy list[] = {{addr, bytes, 32}, {(char *)addr + 40, bytes, 64}};
    WEFT_FAILS(-EINVAL, OPS->copy_start(gpu, list, 2, 0, &job)); /* the second does not fit */
    assert_null(job);
    setenv("FAKE_CUDA", "lost=0,delay=1000000", 1);
    assert_int_equal(cuInit(0), 0);
    WEFT_OK(OPS->copy_start(gpu, list, 1, 0, &job));
    assert_int_equal(OPS->copy_done(gpu, job), 0);
    setenv("FAKE_CUDA", "lost=1,delay=1000000", 1);
    assert_int_equal(cuInit(0), 0);
    WEFT_FAILS(-EIO, end_of(gpu, job));
    CHECK(strstr(weft_last_error(), "launch failure"), "'%s'", weft_last_error());
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

/* `n` copies of `len` bytes each; how many launches that took. */
static int launches_of(struct weft_gpu *gpu, int n, uint64_t len, uint32_t flags)
{
    struct weft_gpu_copy list[300];
    struct weft_gpu_job *job = NULL;
    uint8_t *from, *to;
    int before = fake_cuda_launches();
    char *bytes = malloc((size_t)n * len), *back = malloc((size_t)n * len);
    WEFT_OK(OPS->alloc(gpu, (uint64_t)n * len, (void **)&from));
    WEFT_OK(OPS->alloc(gpu, (uint64_t)n * len, (void **)&to));
    test_fill(bytes, (size_t)n * len, 1, 0);
    WEFT_OK(OPS->copy(gpu, from, bytes, (uint64_t)n * len, NULL));
    for (uint64_t i = 0; i < (uint64_t)n; i++)
        list[i] = (struct weft_gpu_copy){to + i * len, from + i * len, len};
    WEFT_OK(OPS->copy_start(gpu, list, n, flags, &job));
    assert_int_equal(end_of(gpu, job), 1);
    WEFT_OK(OPS->copy(gpu, back, to, (uint64_t)n * len, NULL));
    assert_memory_equal(back, bytes, (size_t)n * len);
    OPS->free(gpu, from);
    OPS->free(gpu, to);
    free(bytes);
    free(back);
    return fake_cuda_launches() - before;
}

static void what_is_many_and_short_is_one_launch(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("lost=0");
    assert_int_equal(fake_cuda_modules(), 1);
    assert_int_equal(launches_of(gpu, 128, 1000, WEFT_GPU_REACHED), 1);
    assert_int_equal(launches_of(gpu, 300, 1000, WEFT_GPU_REACHED), 3);
    assert_int_equal(launches_of(gpu, 128, 1000, 0), 0); /* it may be where kernels fault */
    assert_int_equal(launches_of(gpu, 2, 1000, WEFT_GPU_REACHED), 0);
    assert_int_equal(launches_of(gpu, 8, 1 << 20, WEFT_GPU_REACHED), 0);
    OPS->close(gpu);
    gpu = open_with("kernels=0"); /* none for this device */
    assert_int_equal(launches_of(gpu, 128, 1000, WEFT_GPU_REACHED), 0);
    OPS->close(gpu);
    weft_config_set(subject->kernels, "there-is-no-such-file");
    gpu = open_with("kernels=1");
    assert_int_equal(launches_of(gpu, 128, 1000, WEFT_GPU_REACHED), 0);
    OPS->close(gpu);
    weft_config_set(subject->kernels, NULL);
    assert_int_equal(fake_cuda_modules(), 0);
}

static int ways_of(enum vendor_route route)
{
    return vendor_first_way(route + 1) - vendor_first_way(route);
}

/* The first launch on a way that has nothing else to do is a graph's, where the driver has such; what it does not do a plain one
 * does. */
static void a_launch_alone_is_a_graph(void **state)
{
    (void)state;
    const int each = 2; /* the graph, and what is launched of it */
    const int brief = ways_of(VENDOR_SHORT), all = brief + ways_of(VENDOR_BY_KERNEL);
    const bool cuda = strcmp(test_gpu(), "cuda") == 0;
    struct weft_gpu *gpu = open_with("");
    int ways = cuda ? all : 0, before = fake_cuda_graph_launches();
    assert_int_equal(fake_cuda_graphs(), ways * each);
    for (int i = 0; i < 3 * all; i++) /* long ones and short ones, each time other addresses */
        assert_int_equal(launches_of(gpu, 100 + i % 29, i % 2 ? 5000 : 100, WEFT_GPU_REACHED), 1);
    assert_int_equal(launches_of(gpu, 300, 1000, WEFT_GPU_REACHED), 3);
    assert_int_equal(fake_cuda_graph_launches() - before, cuda ? 3 * all + 1 : 0);
    OPS->close(gpu);
    assert_int_equal(fake_cuda_graphs(), 0);

    static const char *const lacks[] = {"graphs=0", "words=0", "kernels=0"};
    for (size_t i = 0; i < 3; i++) {
        gpu = open_with(lacks[i]);
        before = fake_cuda_graph_launches();
        assert_int_equal(fake_cuda_graphs(), 0);
        assert_int_equal(launches_of(gpu, 100, 5000, WEFT_GPU_REACHED), i < 2);
        assert_int_equal(fake_cuda_graph_launches(), before);
        OPS->close(gpu);
    }

    gpu = open_with("graphs=1");
    for (int i = 1; i <= 2 * all; i++) { /* each is given up when it fails */
        assert_int_equal(launches_of(gpu, 100, 5000, WEFT_GPU_REACHED), 1);
        if (cuda)
            assert_int_equal(fake_cuda_graphs(), each * (all - i < brief ? brief : all - i));
    }
    OPS->close(gpu);
    assert_int_equal(fake_cuda_graphs(), 0);
}

static void a_launch_behind_another_is_none(void **state)
{
    (void)state;
    if (strcmp(test_gpu(), "cuda") != 0)
        return;
    struct weft_gpu *gpu = open_with("");
    enum { N = 12 };
    struct weft_gpu_job *jobs[N];
    uint8_t *addr;
    const uint64_t len = VENDOR_BRIEF;
    struct weft_gpu_copy list[8]; /* enough for a kernel */
    int before = fake_cuda_graph_launches(), all = fake_cuda_launches();
    WEFT_OK(OPS->alloc(gpu, 2 * len * ARRAY_LEN(list), (void **)&addr));
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        list[i] = (struct weft_gpu_copy){addr + 2 * i * len, addr + (2 * i + 1) * len, len};
    setenv("FAKE_CUDA", "delay=1000000", 1); /* nothing is done */
    assert_int_equal(cuInit(0), 0);
    for (size_t i = 0; i < ARRAY_LEN(jobs); i++)
        WEFT_OK(OPS->copy_start(gpu, list, ARRAY_LEN(list), WEFT_GPU_REACHED, &jobs[i]));
    assert_int_equal(fake_cuda_launches() - all, ARRAY_LEN(jobs));
    assert_int_equal(fake_cuda_graph_launches() - before, ways_of(VENDOR_BY_KERNEL));
    setenv("FAKE_CUDA", "", 1);
    assert_int_equal(cuInit(0), 0);
    for (size_t i = 0; i < ARRAY_LEN(jobs); i++)
        assert_int_equal(end_of(gpu, jobs[i]), 1);
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

/* The driver writes a word behind copies, which needs no asking; AMD's runtime is asked. So is a driver that writes none. */
static void who_hears_of_the_end(void **state)
{
    (void)state;
    const bool cuda = strcmp(test_gpu(), "cuda") == 0;
    for (int words = 0; words < 2; words++) {
        struct weft_gpu *gpu = open_with(words ? "words=1" : "words=0");
        struct weft_gpu_job *jobs[40];
        uint8_t bytes[40], back[40] = {0}, *addr;
        test_fill(bytes, sizeof bytes, words + 1, 0);
        WEFT_OK(OPS->alloc(gpu, sizeof bytes, (void **)&addr));
        WEFT_OK(OPS->copy(gpu, addr, bytes, sizeof bytes, NULL));
        assert_int_equal(fake_cuda_pinned(), 0); /* but for words */
        for (size_t i = 0; i < 40; i++)
            WEFT_OK(OPS->copy_start(gpu, &(struct weft_gpu_copy){back + i, addr + i, 1}, 1, 0,
                                    &jobs[i]));
        int asked = fake_cuda_asked();
        for (size_t i = 40; i-- > 0;) /* those of a way in the wrong order */
            assert_int_equal(end_of_at(gpu, jobs[i], 1000), 1);
        assert_int_equal(fake_cuda_asked() == asked, cuda && words);
        assert_memory_equal(back, bytes, sizeof back);
        OPS->free(gpu, addr);
        OPS->close(gpu);
    }
}

/* The device is busy when it is opened, and may be when it is closed: its words are written later. */
static void words_that_come_late(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        struct weft_gpu *gpu = open_with("delay=1000000");
        struct weft_gpu_job *job;
        uint8_t bytes[40], back[40] = {0}, *addr;
        test_fill(bytes, sizeof bytes, 7, 0);
        if (copies) {
            setenv("FAKE_CUDA", "delay=2", 1);
            assert_int_equal(cuInit(0), 0);
            WEFT_OK(OPS->alloc(gpu, sizeof bytes, (void **)&addr));
            WEFT_OK(OPS->copy(gpu, addr, bytes, sizeof bytes, NULL));
            int asked = fake_cuda_asked();
            WEFT_OK(OPS->copy_start(gpu, &(struct weft_gpu_copy){back, addr, 40}, 1, 0, &job));
            assert_int_equal(end_of(gpu, job), 1);
            assert_true(fake_cuda_asked() > asked);
            assert_memory_equal(back, bytes, sizeof back);
            OPS->free(gpu, addr);
        }
        OPS->close(gpu);
    }
}

/* What is short, what a kernel copies, and what goes from and to where; all streams of a route in turn. */
static void each_route_has_streams_of_its_own(void **state)
{
    (void)state;
    enum { MANY = 40, TURNS = 8 };
    static const struct {
        uint32_t flags;
        int n; /* copies that are 64 KiB together, less what is missing */
        unsigned missing;
        enum vendor_route route;
    } cases[] = {{0, 2, 0, VENDOR_AMONG},
                 {WEFT_GPU_FROM_HOST, 2, 0, VENDOR_FROM_HOST},
                 {WEFT_GPU_TO_HOST, 2, 0, VENDOR_TO_HOST},
                 {WEFT_GPU_REACHED, 2, 0, VENDOR_AMONG}, /* too few for a kernel */
                 {0, MANY, 0, VENDOR_AMONG},
                 {WEFT_GPU_REACHED, MANY, 0, VENDOR_BY_KERNEL},
                 {WEFT_GPU_REACHED | WEFT_GPU_TO_HOST, MANY, 0, VENDOR_BY_KERNEL},
                 {WEFT_GPU_REACHED | WEFT_GPU_FROM_HOST, MANY, 0, VENDOR_BY_KERNEL},
                 {WEFT_GPU_REACHED, MANY, 1, VENDOR_SHORT},
                 {WEFT_GPU_FROM_HOST, 2, 1, VENDOR_SHORT},
                 {WEFT_GPU_TO_HOST, 2, 1, VENDOR_SHORT},
                 {0, 2, 1, VENDOR_SHORT}};
    _Static_assert(ARRAY_LEN(cases) % 2 == 0, "or streams of all routes in one turn would seem to be in turns of each");
    struct weft_gpu *gpu = open_with("");
    char *addr;
    unsigned used[VENDOR_WAYS] = {0}, jobs[VENDOR_ROUTES] = {0};
    WEFT_OK(OPS->alloc(gpu, 2 * VENDOR_BRIEF, (void **)&addr));
    for (size_t i = 0; i < TURNS * ARRAY_LEN(cases); i++) {
        size_t which = i % ARRAY_LEN(cases), n = (size_t)cases[which].n;
        struct weft_gpu_copy list[MANY];
        uint64_t each = VENDOR_BRIEF / n, rest = VENDOR_BRIEF - each * n;
        for (size_t k = 0; k < n; k++)
            list[k] = (struct weft_gpu_copy){addr + k * each, addr + VENDOR_BRIEF + k * each, each};
        list[n - 1].len += rest - cases[which].missing;
        struct weft_gpu_job *job;
        WEFT_OK(OPS->copy_start(gpu, list, (int)n, cases[which].flags, &job));
        assert_in_range(job->way, vendor_first_way(cases[which].route),
                        vendor_first_way(cases[which].route + 1) - 1);
        used[job->way]++;
        jobs[cases[which].route]++;
        assert_int_equal(end_of(gpu, job), 1);
    }
    for (enum vendor_route route = 0; route < VENDOR_ROUTES; route++)
        for (int way = vendor_first_way(route); way < vendor_first_way(route + 1); way++)
            assert_int_equal(used[way], jobs[route] / (unsigned)ways_of(route));
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

/* Nothing of it is under way: the memory is the caller's again. */
static void a_start_that_fails_midway(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("delay=100");
    uint8_t bytes[64], back[64] = {0}, then[64];
    struct weft_gpu_job *job = NULL;
    uint8_t *addr;
    test_fill(bytes, sizeof bytes, 1, 0);
    WEFT_OK(OPS->alloc(gpu, sizeof bytes, (void **)&addr));
    WEFT_OK(OPS->copy(gpu, addr, bytes, sizeof bytes, NULL));
    const struct weft_gpu_copy list[] = {{back, addr, 32}, {back, addr + 40, 64}};
    for (int way = 0; way < 8; way++) /* more than there are streams */
        WEFT_FAILS(-EINVAL, OPS->copy_start(gpu, list, 2, 0, &job));
    memcpy(then, back, sizeof back);
    OPS->free(gpu, addr);
    OPS->close(gpu); /* what is left on its streams happens now, in the double */
    assert_memory_equal(back, then, sizeof back);
}

/* What another context has: an engine copies it. */
static void whose_context_it_is(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("foreign=0");
    struct weft_gpu_range range;
    void *addr;
    WEFT_OK(OPS->alloc(gpu, 100, &addr));
    assert_int_equal(OPS->query(addr, &range), 1);
    assert_int_equal(range.reached, 1);
    setenv("FAKE_CUDA", "foreign=1", 1);
    assert_int_equal(cuInit(0), 0);
    assert_int_equal(OPS->query(addr, &range), 1);
    assert_int_equal(range.reached, strcmp(test_gpu(), "hip") == 0); /* which has no contexts */
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

static void dmabufs(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("lost=0");
    char *addr;
    int fd = -1;
    uint64_t offset = 0;
    WEFT_OK(OPS->alloc(gpu, 8192, (void **)&addr));
    char bytes[8192];
    test_fill(bytes, sizeof bytes, 3, 0);
    WEFT_OK(OPS->copy(gpu, addr, bytes, sizeof bytes, NULL));
    WEFT_OK(OPS->export_dmabuf(gpu, addr + 100, 8092, &fd, &offset));
    assert_int_equal(offset, 100);
    char *map = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    assert_memory_equal(map + offset, bytes + 100, 8092);
    munmap(map, 8192);
    close(fd);
    setenv("FAKE_CUDA", "dmabuf=0", 1);
    assert_int_equal(cuInit(0), 0);
    WEFT_FAILS(WEFT_EUNSUPPORTED, OPS->export_dmabuf(gpu, addr, 8192, &fd, &offset));
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

static void shared_memory_that_cannot_be_opened(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("dmabuf=1");
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    void *addr, *other;
    int fd;
    WEFT_OK(OPS->alloc(gpu, 8192, &addr));
    WEFT_OK(OPS->ipc_export(gpu, (char *)addr + 8, 8, handle, &fd));
    WEFT_FAILS(-EIO, OPS->ipc_open(gpu, handle, -1, 8, &other)); /* by who exported it */
    WEFT_FAILS(-EINVAL, OPS->ipc_export(gpu, &handle, 1, handle, &fd));
    OPS->free(gpu, addr);
    OPS->close(gpu);
}

/* AMD's runtime keeps contexts of its own. */
static int contexts(void)
{
    return subject->backend == &weft_gpu_cuda ? fake_cuda_retained() : 0;
}

/* Streams and contexts, also where there is no room for all of them. */
static void what_is_made_is_given_back(void **state)
{
    (void)state;
    int streams = fake_cuda_streams(), held = contexts(), most = streams, failed = 0;
    for (int rc = -1; rc && failed < 64; most++) {
        char settings[32];
        struct weft_gpu *gpu;
        snprintf(settings, sizeof settings, "streams=%d", most);
        setenv("FAKE_CUDA", settings, 1);
        assert_int_equal(cuInit(0), 0);
        rc = OPS->open(0, &gpu);
        if (rc == 0) {
            assert_int_equal(fake_cuda_streams(), most);
            OPS->close(gpu);
        }
        failed += rc != 0;
        assert_int_equal(fake_cuda_streams(), streams);
        assert_int_equal(contexts(), held);
    }
    assert_int_equal(failed, 1 + VENDOR_WAYS);
}

/* Of all that these tests have made: see tests/fake/cuda/README.md. */
static void nothing_is_odd(void **state)
{
    (void)state;
    assert_int_equal(fake_cuda_odd(), 0);
}

/* The setting of a library that is in use cannot be changed, and nobody asks it again. */
static void the_driver_stays(void **state)
{
    (void)state;
    struct weft_gpu *gpu = open_with("dmabuf=1");
    void *addr;
    weft_config_set(subject->setting, "another.so");
    WEFT_OK(OPS->alloc(gpu, 100, &addr));
    OPS->free(gpu, addr);
    OPS->close(gpu);
    weft_config_set(subject->setting, NULL);
}

int main(void)
{
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        if (strcmp(subjects[i].backend->name, test_gpu()) == 0)
            subject = &subjects[i];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_gpus_says_so),
        cmocka_unit_test(devices_are_counted),
        cmocka_unit_test(the_hosts_memory_is_mapped_once),
        cmocka_unit_test(no_room),
        cmocka_unit_test(a_device_that_is_lost),
        cmocka_unit_test(a_device_that_is_lost_during_a_copy),
        cmocka_unit_test(what_is_many_and_short_is_one_launch),
        cmocka_unit_test(a_launch_alone_is_a_graph),
        cmocka_unit_test(a_launch_behind_another_is_none),
        cmocka_unit_test(who_hears_of_the_end),
        cmocka_unit_test(words_that_come_late),
        cmocka_unit_test(each_route_has_streams_of_its_own),
        cmocka_unit_test(a_start_that_fails_midway),
        cmocka_unit_test(whose_context_it_is),
        cmocka_unit_test(dmabufs),
        cmocka_unit_test(shared_memory_that_cannot_be_opened),
        cmocka_unit_test(what_is_made_is_given_back),
        cmocka_unit_test(the_driver_stays),
        cmocka_unit_test(nothing_is_odd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
