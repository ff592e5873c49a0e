/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over the files of its corpus, in builds without libFuzzer: each input that
 * once was interesting, or once was a bug, is a regression test there.
 *
 *   fuzz_TARGET PATH...      a path is a file or a folder of files
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int nfiles;

/* In a block of just its size: a read past the end is one past the block. */
static void replay_file(const char *path, size_t size)
{
    uint8_t *data = malloc(size ? size : 1);
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(data && file);
    FUZZ_CHECK(fread(data, 1, size, file) == size);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    nfiles++;
}

static void replay(const char *path)
{
    struct stat st;
    if (stat(path, &st)) {
        perror(path);
        exit(2);
    }
    if (!S_ISDIR(st.st_mode)) {
        replay_file(path, (size_t)st.st_size);
        return;
    }
    struct dirent **list;
    int n = scandir(path, &list, NULL, alphasort);
    FUZZ_OK(n);
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, list[i]->d_name);
        if (list[i]->d_name[0] != '.')
            replay(name);
        free(list[i]);
    }
    free(list);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("%d inputs\n", nfiles);
    return nfiles ? 0 : 2; /* a corpus that is not there is no success */
}
