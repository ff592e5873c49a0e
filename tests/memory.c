/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte patterns, and memory with guards: the host's, or a GPU's, which is copied to look at it.
 */
#include "driver.h"
#include "helpers.h"

#include <pthread.h>
#include <sys/mman.h>

#include "weft/gpu.h"

#define PAGE 4096
#define GUARD_SEED 0x67756172ull
#define CHUNK ((size_t)256 << 10) /* of a GPU's memory, that is looked at at once */
#define MOST_GPUS 16
#define MOST_APART 256

/* --- what no processor reaches ---------------------------------------------------------------- */

/* recursive: a test that fails leaves it locked, and the next one goes on */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct weft_gpu *gpus[MOST_GPUS];
static struct test_mem apart[MOST_APART]; /* base NULL: a free place */
static int napart;

/* With the lock held. */
static struct weft_gpu *gpu_open(int ordinal)
{
    const struct weft_gpu_backend *backend = weft_gpu_find(test_gpu());
    CHECK(backend, "there is no GPU backend %s", test_gpu());
    CHECK(ordinal < MOST_GPUS, "GPU %d is one too many", ordinal);
    if (!gpus[ordinal])
        WEFT_OK(backend->ops->open(ordinal, &gpus[ordinal]));
    return gpus[ordinal];
}

/* The GPU whose memory it is, or NULL. */
static struct weft_gpu *gpu_of(const void *at)
{
    struct weft_gpu *gpu = NULL;
    if (!__atomic_load_n(&napart, __ATOMIC_ACQUIRE))
        return NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_APART && !gpu; i++)
        if (apart[i].base && (const unsigned char *)at - apart[i].base >= 0 &&
            (const unsigned char *)at < apart[i].base + apart[i].size)
            gpu = gpus[apart[i].gpu - 1];
    pthread_mutex_unlock(&lock);
    return gpu;
}

static void copy(struct weft_gpu *gpu, void *to, const void *from, size_t len)
{
    if (len)
        WEFT_OK(weft_gpu_find(test_gpu())->ops->copy(gpu, to, from, len, NULL));
}

size_t test_segment(void)
{
    return (size_t)strtoull(test_env("WEFT_TEST_SEGMENT", "0"), NULL, 0);
}

static unsigned char *remember(struct test_mem mem)
{
    pthread_mutex_lock(&lock);
    void *base = NULL;
    struct weft_gpu *gpu = gpu_open(mem.gpu - 1);
    if (test_segment())
        base = test_segments_alloc(mem.gpu - 1, mem.size, test_segment());
    else
        WEFT_OK(weft_gpu_find(test_gpu())->ops->alloc(gpu, mem.size, &base));
    int i = 0;
    while (i < MOST_APART && apart[i].base)
        i++;
    CHECK(i < MOST_APART, "too much memory of GPUs");
    mem.base = base;
    apart[i] = mem;
    __atomic_fetch_add(&napart, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return base;
}

static void forget(const struct test_mem *mem)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_APART; i++)
        if (apart[i].base == mem->base) {
            if (test_segment())
                test_segments_free(mem->base);
            else
                weft_gpu_find(test_gpu())->ops->free(gpus[mem->gpu - 1], mem->base);
            apart[i].base = NULL;
            __atomic_fetch_sub(&napart, 1, __ATOMIC_RELEASE);
        }
    pthread_mutex_unlock(&lock);
}

int test_memory(int side)
{
    const char *kinds = test_env("WEFT_TEST_MEMORY", "host"), *second = strchr(kinds, ',');
    const char *kind = side && second ? second + 1 : kinds;
    int ordinal = -1;
    CHECK(!strncmp(kind, "host", 4) || sscanf(kind, "gpu%d", &ordinal) == 1,
          "WEFT_TEST_MEMORY is '%s': not host, gpu0, ..., nor two of them with a comma", kinds);
    return ordinal;
}

/* --- patterns --------------------------------------------------------------------------------- */

/* Finaliser of splitmix64: every bit of the input reaches every byte of the output. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t test_random(uint64_t *state)
{
    return mix(*state += 0x9e3779b97f4a7c15ull);
}

/* Word i: mixed anew for every run of 64, and steps of an odd number in between, which are cheap: much of what a test of
 * long operations does is to make patterns and to compare them. */
enum { RUN = 64 };
#define STEP 0x9e3779b97f4a7c15ull

static uint64_t word_of(uint64_t seed, uint64_t i)
{
    return mix(seed * 0x9e3779b97f4a7c15ull + i / RUN) + i % RUN * STEP;
}

/* Of len bytes from word i on: the words up to the end of its run. */
static size_t words_of_run(size_t len, uint64_t i)
{
    size_t left = RUN - i % RUN;
    return len / 8 < left ? len / 8 : left;
}

static unsigned char byte_of(uint64_t seed, uint64_t i)
{
    return (unsigned char)(word_of(seed, i / 8) >> i % 8 * 8);
}

/* Words at any address: accesses of the compiler, not calls of memcpy, which the sanitizer sees. */
typedef uint64_t __attribute__((aligned(1), may_alias)) any_word;

static TEST_UNSEEN void fill(void *at, size_t len, uint64_t seed, uint64_t offset)
{
    volatile unsigned char *p = at;
    for (; len && offset % 8; len--)
        *p++ = byte_of(seed, offset++);
    while (len >= 8) {
        size_t n = words_of_run(len, offset / 8);
        uint64_t word = word_of(seed, offset / 8);
        offset += n * 8;
        len -= n * 8;
        for (; n; n--, p += 8, word += STEP)
            *(volatile any_word *)p = word;
    }
    for (; len; len--)
        *p++ = byte_of(seed, offset++);
}

static TEST_UNSEEN void zero(void *at, size_t len)
{
    volatile unsigned char *p = at;
    for (; len >= 8; len -= 8, p += 8)
        *(volatile any_word *)p = 0;
    for (; len; len--)
        *p++ = 0;
}

static TEST_UNSEEN int64_t nonzero(const void *at, size_t len)
{
    const unsigned char *p = at;
    size_t i = 0;
    while (len - i >= 8 && !*(const any_word *)(p + i))
        i += 8;
    for (; i < len; i++)
        if (p[i])
            return (int64_t)i;
    return -1;
}

/* How many bytes are as they should be, of whole words from one that begins at offset. */
static TEST_UNSEEN size_t same_words(const unsigned char *p, size_t len, uint64_t seed, uint64_t offset)
{
    size_t same = 0;
    while (len - same >= 8) {
        size_t n = words_of_run(len - same, (offset + same) / 8);
        uint64_t word = word_of(seed, (offset + same) / 8);
        for (; n; n--, same += 8, word += STEP)
            if (*(const any_word *)(p + same) != word)
                return same;
    }
    return same;
}

static TEST_UNSEEN int64_t differs(const void *at, size_t len, uint64_t seed, uint64_t offset)
{
    const unsigned char *p = at;
    for (size_t i = 0; i < len; i++) {
        if ((offset + i) % 8 == 0)
            i += same_words(p + i, len - i, seed, offset + i);
        if (i < len && p[i] != byte_of(seed, offset + i))
            return (int64_t)i;
    }
    return -1;
}

/* --- wherever it is --------------------------------------------------------------------------- */

static TEST_UNSEEN uint64_t get_word(const void *at)
{
    return *(const any_word *)at;
}

uint64_t test_get_word(const void *at)
{
    struct weft_gpu *gpu = gpu_of(at);
    uint64_t word;
    if (!gpu)
        return get_word(at);
    copy(gpu, &word, at, sizeof word);
    return word;
}

static TEST_UNSEEN void set_word(void *at, uint64_t value)
{
    *(any_word *)at = value;
}

void test_set_word(void *at, uint64_t value)
{
    struct weft_gpu *gpu = gpu_of(at);
    if (gpu)
        copy(gpu, at, &value, sizeof value);
    else
        set_word(at, value);
}

/* What is done with bytes, chunk by chunk in a copy of the host's; -1, or where one stops it. */
struct work {
    enum { FILL, ZERO, NONZERO, DIFFERS } what;
    uint64_t seed, offset;
};

static int64_t do_here(void *at, size_t len, const struct work *work, uint64_t done)
{
    if (work->what == NONZERO)
        return nonzero(at, len);
    if (work->what == DIFFERS)
        return differs(at, len, work->seed, work->offset + done);
    if (work->what == FILL)
        fill(at, len, work->seed, work->offset + done);
    else
        zero(at, len);
    return -1;
}

static int64_t do_all(void *at, size_t len, struct work work)
{
    struct weft_gpu *gpu = gpu_of(at);
    bool writes = work.what == FILL || work.what == ZERO;
    int64_t found = -1;
    if (!gpu)
        return do_here(at, len, &work, 0);
    char *here = malloc(CHUNK);
    CHECK(here, "no memory");
    for (size_t done = 0, n; done < len && found < 0; done += n) {
        char *there = (char *)at + done;
        n = len - done < CHUNK ? len - done : CHUNK;
        if (!writes)
            copy(gpu, here, there, n);
        found = do_here(here, n, &work, done);
        found += found < 0 ? 0 : (int64_t)done;
        if (writes)
            copy(gpu, there, here, n);
    }
    free(here);
    return found;
}

void test_fill(void *at, size_t len, uint64_t seed, uint64_t offset)
{
    do_all(at, len, (struct work){FILL, seed, offset});
}

void test_zero(void *at, size_t len)
{
    do_all(at, len, (struct work){ZERO, 0, 0});
}

int64_t test_nonzero(const void *at, size_t len)
{
    return do_all((void *)at, len, (struct work){NONZERO, 0, 0});
}

int64_t test_differs(const void *at, size_t len, uint64_t seed, uint64_t offset)
{
    return do_all((void *)at, len, (struct work){DIFFERS, seed, offset});
}

/* --- memory with guards ----------------------------------------------------------------------- */

void test_mem_open_on(struct test_mem *mem, size_t len, size_t misalign, int gpu)
{
    *mem = (struct test_mem){.len = len, .gpu = 1 + gpu};
    mem->size = (TEST_GUARD * 2 + misalign + len + 2 * PAGE) / PAGE * PAGE;
    if (gpu >= 0) {
        mem->base = remember(*mem);
        test_zero(mem->base, mem->size);
    } else { /* mapped: free() would look to the sanitizer like one more access */
        mem->base = mmap(NULL, mem->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                         0);
        CHECK(mem->base != MAP_FAILED, "no memory for a buffer of %zu bytes: %m", len);
        madvise(mem->base, mem->size, MADV_HUGEPAGE); /* fewer faults, where there is such */
    }
    mem->at = mem->base + TEST_GUARD + misalign;
    test_fill(mem->at - TEST_GUARD, TEST_GUARD, GUARD_SEED, 0);
    test_fill(mem->at + len, TEST_GUARD, GUARD_SEED + 1, 0);
}

void test_mem_open(struct test_mem *mem, size_t len, size_t misalign)
{
    test_mem_open_on(mem, len, misalign, -1);
}

void test_mem_check_guards(const struct test_mem *mem)
{
    int64_t at = test_differs(mem->at - TEST_GUARD, TEST_GUARD, GUARD_SEED, 0);
    CHECK(at < 0, "byte %" PRId64 " before a buffer was overwritten", TEST_GUARD - at);
    at = test_differs(mem->at + mem->len, TEST_GUARD, GUARD_SEED + 1, 0);
    CHECK(at < 0, "byte %" PRId64 " after a buffer of %zu was overwritten", at, mem->len);
}

void test_mem_close(struct test_mem *mem)
{
    test_mem_check_guards(mem);
    if (mem->gpu)
        forget(mem);
    else
        munmap(mem->base, mem->size);
    mem->base = NULL;
}
