/* SPDX-License-Identifier: Apache-2.0 */
/* What must be in memory and what must have arrived, and whether it is and has. */
#include "soak.h"

/* --- notes ------------------------------------------------------------------------------------- */

void note_fill(unsigned char *at, const struct note *note)
{
    for (size_t i = 0; i < sizeof *note / sizeof(uint64_t); i++) {
        uint64_t word;
        memcpy(&word, (const char *)note + i * sizeof word, sizeof word);
        test_set_word(at + i * sizeof word, word);
    }
    test_fill(at + sizeof *note, note->len - sizeof *note, note->seed, sizeof *note);
}

struct note note_check(const void *data, size_t len)
{
    struct note note;
    CHECK(len >= NOTE_MIN, "a message of %zu bytes came that nobody sent", len);
    for (size_t i = 0; i < sizeof note / sizeof(uint64_t); i++) {
        uint64_t word = test_get_word((const char *)data + i * sizeof word);
        memcpy((char *)&note + i * sizeof word, &word, sizeof word);
    }
    CHECK(note.magic == NOTE_MAGIC && note.slot < SLOTS && note.worker < WORKERS &&
              note.seq < MAX_SEQ && note.box <= BOXES,
          "a message came that nobody sent");
    CHECK(note.len == len, "message %u came with %zu bytes, not %u", note.seq, len, note.len);
    int64_t at = test_differs((const char *)data + sizeof note, len - sizeof note, note.seed,
                              sizeof note);
    CHECK(at < 0, "byte %" PRId64 " of message %u of %zu bytes is wrong", at, note.seq, len);
    return note;
}

/* --- hosted memory ----------------------------------------------------------------------------- */

static void host_register(struct side *side, struct hosted *hosted, struct weft_remote *remote)
{
    WEFT_OK(weft_mem_reg(side->endpoint, hosted->mem.at, hosted->mem.len, NULL, &hosted->handle));
    WEFT_OK(weft_mem_advertise(hosted->handle, hosted->mem.at, hosted->mem.len, remote));
}

/* Of the thread sanitizer. */
void AnnotateBenignRaceSized(const char *file, int line, const volatile void *mem, size_t size,
                             const char *text) __attribute__((weak));

/* Two lanes may serve the same bytes one after the other; that the second access comes after the
 * first one follows from what the other process did in between. All else stays under its eyes. */
void shared_memory(const struct test_mem *mem)
{
    if (AnnotateBenignRaceSized)
        AnnotateBenignRaceSized(__FILE__, __LINE__, mem->base, mem->size, "memory for peers");
}

void host_open(struct side *side, struct hosted *hosted, struct weft_remote *remote)
{
    test_mem_open(&hosted->mem, HOSTED, 0);
    shared_memory(&hosted->mem);
    host_register(side, hosted, remote);
}

void host_renew(struct side *side, int slot, int worker)
{
    struct hosted *hosted = &side->hosted[slot][worker];
    struct account *a = &side->ledger->account[side->me][slot][worker];
    atomic_fetch_add(&a->generation, 1);
    int rc = weft_mem_dereg(hosted->handle);
    CHECK(rc == 0, "dereg: %s", weft_last_error());
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_dereg(hosted->handle));
    host_register(side, hosted, &a->remote);
    atomic_fetch_add(&a->generation, 1);
    count(side, TOTAL_REGS, 1);
}

/* --- what a worker writes ---------------------------------------------------------------------- */

void account_wrote(struct account *a, size_t at, size_t len, uint64_t seed, uint64_t offset)
{
    test_fill(a->bytes + at, len, seed, offset);
    memset(a->known + at, 1, len);
}

void account_unknown(struct account *a, size_t at, size_t len)
{
    memset(a->known + at, 0, len);
}

TEST_UNSEEN int64_t account_differs(const struct account *a, const void *data, size_t at,
                                    size_t len)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++)
        if (a->known[at + i] && a->bytes[at + i] != p[i])
            return (int64_t)i;
    return -1;
}

/* The additions of a set (as bits) of those that are unknown. */
static uint64_t sum_of(const struct account *a, uint32_t set)
{
    uint64_t sum = 0;
    for (int i = 0; i < a->nmaybe; i++)
        sum += set >> i & 1 ? a->maybe[i] : 0;
    return sum;
}

/* Which of the unknown additions make the word this? Values are random: no two sets are equal. */
static uint32_t explain(const struct account *a, uint64_t word)
{
    uint64_t base = atomic_load(&a->word);
    for (uint32_t set = 0; set < 1u << a->nmaybe; set++)
        if (base + sum_of(a, set) == word)
            return set;
    FAIL("a word is %" PRIu64 ", it must be %" PRIu64 " and any of %d additions", word, base,
         a->nmaybe);
}

void account_added(struct account *a, uint64_t before, uint64_t value)
{
    uint32_t set = explain(a, before);
    int kept = 0;
    for (int i = 0; i < a->nmaybe; i++)
        if (!(set >> i & 1))
            a->maybe[kept++] = a->maybe[i];
    a->nmaybe = kept;
    atomic_store(&a->word, before + value);
}

/* --- what arrives ------------------------------------------------------------------------------ */

void notif_received(struct side *side, const struct weft_notif *notif)
{
    struct note note = note_check(notif->data, notif->len);
    struct account *a = &side->ledger->account[side->me][note.slot][note.worker];
    uint32_t *last = &side->last_notif[note.slot][note.worker];
    uint32_t *epoch = &side->last_epoch[note.slot][note.worker];
    CHECK(atomic_fetch_add(&a->notifs.received[note.seq], 1) == 0,
          "notification %u of slot %u, worker %u came twice", note.seq, note.slot, note.worker);
    CHECK(!note.plain || *epoch != note.epoch || note.seq > *last,
          "notification %u of slot %u, worker %u came after %u", note.seq, note.slot, note.worker,
          *last);
    if (note.plain) {
        *last = note.seq;
        *epoch = note.epoch;
    }
    count(side, TOTAL_NOTIFS, 1);
    if (!note.box)
        return;
    const unsigned char *box = side->hosted[note.slot][note.worker].mem.at + AREA +
                               (size_t)(note.box - 1) * BOX;
    int64_t at = test_differs(box, note.box_len, note.seed, 0);
    CHECK(at < 0, "notification %u came before byte %" PRId64 " of %u of its data", note.seq, at,
          note.box_len);
    atomic_store(&a->box_busy[note.box - 1], 0);
}

static int64_t lost(const struct stream *stream)
{
    for (uint32_t i = 0; i < MAX_SEQ; i++)
        if (atomic_load(&stream->sent[i]) == SENT_DONE && !atomic_load(&stream->received[i]))
            return i;
    return -1;
}

bool notifs_complete(const struct side *side)
{
    for (int s = 0; s < SLOTS; s++)
        for (int w = 0; w < WORKERS; w++)
            if (lost(&side->ledger->account[side->me][s][w].notifs) >= 0)
                return false;
    return true;
}

static void check_stream(const struct stream *stream, const char *what, int slot)
{
    int64_t seq = lost(stream);
    CHECK(seq < 0, "%s %" PRId64 " of slot %d was lost", what, seq, slot);
    for (uint32_t i = 0; i < MAX_SEQ; i++)
        CHECK(atomic_load(&stream->received[i]) <= (atomic_load(&stream->sent[i]) != SENT_NOT),
              "%s %u of slot %d came, which was not sent", what, i, slot);
    uint32_t here = atomic_load(&stream->received_short), there = atomic_load(&stream->sent_short);
    uint32_t unknown = atomic_load(&stream->unknown);
    CHECK(here >= there && here <= there + unknown,
          "slot %d: %u receives were too short, and %u sends (%u unknown)", slot, here, there,
          unknown);
}

static void check_hosted(struct side *side, int slot, int worker)
{
    const struct account *a = &side->ledger->account[side->me][slot][worker];
    const struct hosted *hosted = &side->hosted[slot][worker];
    test_mem_check_guards(&hosted->mem);
    int64_t at = account_differs(a, hosted->mem.at, 0, AREA);
    CHECK(at < 0, "slot %d, worker %d: byte %" PRId64 " of its area is wrong", slot, worker, at);
    explain(a, test_get_word(hosted->mem.at + WORD_AT));
    check_stream(&a->notifs, "notification", slot);
}

void side_check(struct side *side)
{
    struct ledger *ledger = side->ledger;
    for (int s = 0; s < SLOTS; s++) {
        for (int w = 0; w < WORKERS; w++)
            check_hosted(side, s, w);
        check_stream(&ledger->messages[side->me][s], "message", s);
    }
    uint64_t word = test_get_word(side->hot.mem.at), sum = atomic_load(&ledger->hot_sum[side->me]);
    CHECK(word >= sum && word <= sum + atomic_load(&ledger->hot_maybe[side->me]),
          "%" PRIu64 " additions of 1 made a word %" PRIu64, sum, word);
}
