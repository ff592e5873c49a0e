# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # used by those who source it
# Sourced by the commands that build on a machine on which nothing was prepared.
# Package names are those of Debian 12 and Ubuntu 24.04, which agree.

# A word is a package, or command:package where any way to get the command will do.
BUILD_PACKAGES=(cc:gcc make:make cmake:cmake pkg-config:pkg-config libc6-dev libcjson-dev libssl-dev
                libhwloc-dev libibverbs-dev libfabric-dev)
TEST_PACKAGES=(c++:g++ libcmocka-dev ip:iproute2)

# Tests at once: they wait for peers and deadlines for about as long as they compute.
TEST_JOBS=$((2 * $(nproc)))

have_package()
{
    if [[ $1 == *:* ]]; then
        command -v "${1%%:*}" >/dev/null
    else
        dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'
    fi
}

# need_packages WORD...: install what is missing, from the distribution; says so if it may not.
need_packages()
{
    local word missing=() as_root=()
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "not a Debian or Ubuntu system: what is missing is not installed; needed: $*" >&2
        return 0
    fi
    for word; do
        have_package "$word" || missing+=("${word##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "neither root nor sudo: let an administrator run" >&2
            echo "    apt-get install ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    echo "installing ${missing[*]}"
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# clang, and what its sanitizers and libFuzzer need to link and to name lines: packages of their own, which nothing asks for.
need_clang()
{
    need_packages clang:clang
    echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }' |
        clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null ||
        need_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
    need_packages llvm-symbolizer:llvm
}

# build PRESET [OPTION...]: configure and build in build/PRESET.
build()
{
    local preset=$1
    shift
    cmake --preset "$preset" "$@"
    cmake --preset "$preset" "$@" # a tree of another compiler was emptied, and lost what the preset says beside the compiler
    cmake --build --preset "$preset" --parallel "$(nproc)"
}
