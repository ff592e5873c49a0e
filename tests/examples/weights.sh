#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One case of examples/weights over one transport, with so many threads a kind:
# weights.sh CASE TRANSPORT THREADS WEIGHTS PROGRAMS
#   tree     a tree of odd files arrives whole; pulling again moves nothing
#   memory   neither side takes more memory for a file that is larger by far
#   server   the server is killed in the middle and comes back: the same pull completes; with other files: it fails
#   client   the client is killed in the middle: the next pull moves only what is missing
#   corrupt  a byte of an unfinished, and one of a finished file changes, or they grow: both are fetched again; not two at once
#   modes    into memory; unchecked; with SHA-256: each finds what it is there to find
#   changed  files change under the server, are cut short, go, become links: the pull says so of each and fails
#   away     there is no server: the pull fails in the time it was given; it comes back before its manifest was read
#   secret   the server has another secret: the pull fails at once
#   busy     a server that is out of windows is asked again
#   hostile  servers that lie: nothing is written outside the destination, every pull fails
#   stranger clients that break the rules: each loses its conn, others are served
#   killed   clients are killed while windows are open for them: all of those are closed
#   stopped  the server is stopped while it opens windows: it ends well, and the pull with the next one
#   files    one file, and more files than threads; the two sides with other numbers of threads
#   threads  numbers of threads, and other values, that there are not: refused with a sentence
# PROGRAMS is the folder of weights_hostile and weights_stranger.
set -u
case=$1 transport=$2 threads=$3 weights=$4 programs=$5
work=$(mktemp -d "${TMPDIR:-/tmp}/weights.XXXXXX") || exit 1
src=$work/src dst=$work/dst report=$work/report
MIB=1048576
PIECE=$((4 * MIB))
LINES_OF_LOG=20
# A sanitizer's verdict must not look like a failure that a case expects.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:exitcode=99" UBSAN_OPTIONS="exitcode=99"
server=0

cleanup() {
    [ "$server" -ne 0 ] && kill -9 "$server"
    wait
    rm -rf "$work"
} 2>/dev/null
trap cleanup EXIT

fail() {
    echo "FAILED $case.$transport.$threads: $*"
    for log in "$work"/*.log "$report"; do
        [ -f "$log" ] && { echo "--- $log"; tail -n $LINES_OF_LOG "$log"; }
    done
    exit 1
}

random_file() { # name bytes
    mkdir -p "$(dirname "$src/$1")"
    head -c "$2" /dev/urandom >"$src/$1" || fail "cannot make $1"
}

# Start a program that says where it listens in the last word of its first line; sets address.
start() {
    : >"$work/server.out" # what the last one said is not for us
    "$@" >"$work/server.out" 2>>"$work/server.log" &
    server=$!
    for _ in $(seq 200); do
        address=$(sed -n '1s/.* //p' "$work/server.out")
        [ -n "$address" ] && return
        kill -0 "$server" 2>/dev/null || fail "the server ended"
        sleep 0.05
    done
    fail "the server does not say where it listens"
}

serve() { # address
    start "$weights" serve "$src" --listen "$1" --transport "$transport" --threads "$threads" --idle 0
}

stop_server() { # signal
    kill "-$1" "$server"
    wait "$server" 2>/dev/null
    server=0
} 2>/dev/null # bash tells of killed children

# Stop it as a user does: it ends well, as a sanitizer sees it, too.
end_server() {
    kill -TERM "$server"
    wait "$server" || fail "the server that was stopped: status $?"
    server=0
}

# Start a pull; sets client. The log grows with each pull, the report is new.
start_pull() { # options
    "$weights" pull "$address" "$dst" --transport "$transport" --threads "$threads" \
        --no-compare "$@" >"$report" 2>>"$work/pull.log" &
    client=$!
}

pull() { # options
    start_pull "$@"
    wait "$client"
}

# A pull that must fail by itself, not by a signal or a sanitizer.
pull_fails() { # what options
    what=$1
    shift
    pull "$@"
    status=$?
    [ $status -eq 1 ] || fail "$what: status $status"
}

# A number of the report: bytes moved, or bytes that were here.
moved() { sed -n 's/^moved *\([0-9]*\) bytes.*/\1/p' "$report"; }
here() { sed -n 's/.*; \([0-9]*\) bytes were here$/\1/p' "$report"; }
size_of_src() { find "$src" -type f -printf '%s\n' | awk '{n += $1} END {print n + 0}'; }

same() { diff -r "$src" "$dst" >"$work/diff.log" || fail "the files differ"; }

# Wait until at least this many bytes of the destination are in place.
wait_for_bytes() { # bytes
    for _ in $(seq 400); do
        at=$(du -sB1 "$dst" 2>/dev/null | cut -f1)
        [ "${at:-0}" -ge "$1" ] && return
        sleep 0.05
    done
    fail "the pull does not advance"
}

case_tree() {
    mkdir -p "$src/deep/er/and deeper" "$src/empty dir/gone"
    random_file zero 0
    random_file one 1
    random_file page 4096
    random_file odd $((MIB + 3))
    random_file exact $PIECE
    random_file "deep/er/and deeper/three pieces" $((2 * PIECE + 17))
    random_file "deep/naïve — файл 文件.bin" 70000
    random_file "-dash" 5
    for i in $(seq 300); do echo "file $i" >"$src/deep/er/small $i"; done
    ln -s /etc/passwd "$src/link"
    : >"$src/begun.part"
    : >"$src/$(printf 'l%.0s' $(seq 251))" # with .part behind it no name of a file any more
    : >"$src/$(printf 'steers\033[2J')"
    serve 127.0.0.1:0
    for name in link begun.part lll 'steers?\[2J'; do
        grep -q "not served.*$name" "$work/server.log" || fail "$name is not named"
    done
    grep -q "$(printf '\033')" "$work/server.log" && fail "a name steers the terminal"
    pull || fail "pull: status $?"
    rm "$src/link" "$src/begun.part" "$src/lll"* "$src/steers"*
    rmdir -p "$src/empty dir/gone" 2>/dev/null
    same
    [ "$(moved)" -eq "$(size_of_src)" ] || fail "moved $(moved) of $(size_of_src) bytes"
    find "$dst" -name '*.part' | grep -q . && fail "an unfinished file is left"
    pull || fail "second pull: status $?"
    [ "$(moved)" -eq 0 ] || fail "the second pull moved $(moved) bytes"
    [ "$(here)" -eq "$(size_of_src)" ] || fail "$(here) bytes were here, of $(size_of_src)"
    "$weights" pull "$address" "$work/other" --transport "$transport" --threads "$threads" >"$report" || fail "compare"
    grep -q '^cat .* GB/s' "$report" || fail "no comparison with cat"
    for name in one one.part; do # a link in the destination is not followed
        rm -f "$dst/one"
        echo mine >"$work/mine"
        ln -s "$work/mine" "$dst/$name"
        pull || [ $? -eq 1 ] || fail "pull over a link $name: status $?"
        [ "$(cat "$work/mine")" = mine ] || fail "a link $name was followed"
        rm -f "$dst/$name"
    done
    end_server
}

case_server() {
    random_file big $((6 * PIECE + 1))
    random_file second $((2 * PIECE))
    serve 127.0.0.1:0
    start_pull --limit 16 --depth 4 --retry 20
    wait_for_bytes $((2 * PIECE))
    stop_server 9
    sleep 0.5
    serve "$address"
    wait $client || fail "pull: status $?"
    grep -q 'connected again' "$work/pull.log" || fail "the server was not lost in between"
    same
    rm -rf "$dst"
    start_pull --limit 16 --depth 4 --retry 20
    wait_for_bytes $((2 * PIECE))
    stop_server 9
    flip "$src/second" 5
    serve "$address"
    wait $client && fail "a pull of two servers' files"
    grep -q 'came back with other files' "$work/pull.log" || fail "other files: not said"
    end_server
}

case_client() {
    random_file big $((8 * PIECE))
    serve 127.0.0.1:0
    start_pull --limit 8 --depth 2
    wait_for_bytes $((4 * PIECE))
    kill -9 $client
    wait $client 2>/dev/null
    [ -e "$dst/big" ] && fail "an unfinished file has its final name"
    pull || fail "pull: status $?"
    same
    [ "$(here)" -ge $((2 * PIECE)) ] || fail "only $(here) bytes were kept"
    [ $(($(here) + $(moved))) -eq $((8 * PIECE)) ] || fail "moved $(moved), kept $(here)"
    end_server
}

# Change one byte: file offset.
flip() {
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

case_corrupt() {
    random_file a $((5 * PIECE))
    random_file b 100000
    serve 127.0.0.1:0
    pull || fail "pull: status $?"
    mv "$dst/a" "$dst/a.part"
    flip "$dst/a.part" $((3 * PIECE + 77))
    flip "$dst/b" 50000
    pull || fail "second pull: status $?"
    same
    [ "$(moved)" -eq $((PIECE + 100000)) ] || fail "moved $(moved) bytes"
    mv "$dst/a" "$dst/a.part" # both are longer than they should be
    echo more >>"$dst/a.part"
    echo more >>"$dst/b"
    pull || fail "third pull: status $?"
    same
    exec 9<"$dst"
    flock -n 9 || fail "a pull that has ended holds its lock"
    pull_fails "a pull into what another one writes to"
    grep -q 'another pull is writing there' "$work/pull.log" || fail "another pull: not said"
    exec 9<&-
    end_server
}

case_modes() {
    random_file a $((PIECE + 5))
    random_file b 100000
    random_file none 0
    serve 127.0.0.1:0
    "$weights" pull "$address" --memory --transport "$transport" --threads "$threads" >"$report" || fail "into memory"
    [ "$(moved)" -eq "$(size_of_src)" ] || fail "moved $(moved) bytes into memory"
    pull --no-check || fail "unchecked: status $?"
    same
    rm -rf "$dst"
    pull --verify || fail "verified: status $?"
    grep -q '^verified SHA-256 of every file' "$report" || fail "SHA-256 was not compared"
    same
    pull --verify || fail "verified, nothing to move: status $?"
    end_server
    rm -rf "$dst"
    start "$programs/weights_hostile" wrong "$transport"
    "$weights" pull "$address" --memory --transport "$transport" --threads "$threads" \
        2>"$work/pull.log" &&
        fail "wrong bytes in memory"
    grep -q 'arrived wrong again and again' "$work/pull.log" || fail "memory: not said"
    pull --no-check || fail "unchecked and wrong: status $?"
    stop_server 9
    rm -rf "$dst"
    start "$programs/weights_hostile" sha "$transport"
    pull_fails "a wrong SHA-256" --verify
    grep -q 'SHA-256 is wrong' "$work/pull.log" || fail "verified: not said"
    find "$dst" -type f ! -name '*.part' | grep -q . && fail "verified: a file was finished"
    true
}

case_changed() {
    random_file changed 100000
    random_file cut $((3 * PIECE))
    random_file good 100000
    random_file gone 100
    random_file link 100
    random_file dir/file 100
    serve 127.0.0.1:0
    flip "$src/changed" 5
    truncate -s $PIECE "$src/cut"
    rm "$src/gone"
    mv "$src/link" "$work/linked" && ln -s "$work/linked" "$src/link"
    rm -r "$src/dir" && : >"$src/dir"
    pull_fails "pull of a changed file"
    grep -q '^weights: changed: changed on the server' "$work/pull.log" || fail "not said"
    for file in cut gone link dir/file; do
        grep -q "^weights: $file: changed on the server" "$work/pull.log" || fail "$file: not said"
    done
    cmp "$src/good" "$dst/good" || fail "good"
    [ -e "$dst/changed" ] && fail "a file that changed has its final name"
    kill -0 "$server" || fail "the server ended"
    end_server
    rm "$src/link" "$src/dir"
    rm -rf "$dst"/gone* "$dst"/link* "$dst"/dir "$dst"/cut*
    serve "$address"
    pull || fail "pull from a server that knows the change: status $?"
    same
    end_server
}

case_away() {
    serve 127.0.0.1:0
    end_server
    start_ms=$(date +%s%3N)
    dst=$work/new pull_fails "pull without a server" --retry 3
    [ ! -e "$work/new" ] || fail "a folder is left of a pull without a server"
    took_ms=$(($(date +%s%3N) - start_ms))
    [ $took_ms -ge 3000 ] || fail "it was tried for $took_ms ms"
    [ $took_ms -le 18000 ] || fail "it took $took_ms ms"
    mkdir -p "$dst"
    pull_fails "pull without a server into a folder that is there" --retry 0
    [ -d "$dst" ] || fail "a folder that was there is gone"
    [ "$transport" != tcp ] || killed_before_the_manifest # over local it is there at once
}

# It is not too late to try again.
killed_before_the_manifest() {
    random_file good 100000
    start "$programs/weights_hostile" stops "$transport"
    start_pull --retry 20
    for _ in $(seq 200); do
        grep -q '^State:.*T' "/proc/$server/status" && break
        sleep 0.05
    done
    grep -q '^State:.*T' "/proc/$server/status" || fail "nobody read the manifest"
    stop_server 9
    serve "$address"
    wait "$client" || fail "pull from the server that came back: status $?"
    same
    end_server
}

# A secret that is wrong stays wrong: nobody waits for it to become right.
case_secret() {
    head -c 32 /dev/urandom >"$work/secret" && chmod 600 "$work/secret"
    serve 127.0.0.1:0
    start_s=$SECONDS
    export WEFT_SECRET_FILE=$work/secret
    pull_fails "pull with a secret from a server that has none" --retry 60
    unset WEFT_SECRET_FILE
    [ $((SECONDS - start_s)) -le 30 ] || fail "it was tried for $((SECONDS - start_s)) s"
    grep -q secret "$work/pull.log" || fail "does not say why"
    end_server
}

case_hostile() {
    names='malformed, or names a file'
    while IFS=: read -r lie words; do
        : >"$work/pull.log"
        start "$programs/weights_hostile" "$lie" "$transport"
        pull_fails "$lie" --retry 0
        stop_server 9
        grep -q "$words" "$work/pull.log" || fail "$lie: does not say '$words'"
        [ -e "$work/evil" ] && fail "$lie: written outside the destination"
        find "$dst" -type f ! -name '*.part' | grep -q . && fail "$lie: a file was finished"
    done <<END
climb:$names
absolute:$names
dot:$names
control:$names
huge:more than is accepted
short:cannot read the manifest
mute:does not answer
gone:went before it answered
wrong:arrived wrong again and again
garbage:not a weights server
window:without getting anything: giving up
END
    true
}

# Most resident memory, in KiB, that a process has had; the last value while it lived.
most_memory() { # pid
    sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$1/status" 2>/dev/null
}

# Serve and pull one sparse file; sets memory to what the larger of the two processes took.
memory_for() { # MiB
    local seen theirs
    rm -rf "$src" "$dst"
    mkdir -p "$src"
    truncate -s "$1M" "$src/sparse" || fail "cannot make a sparse file"
    serve 127.0.0.1:0
    start_pull --depth 2
    while seen=$(most_memory "$client") && [ -n "$seen" ]; do
        memory=$seen
        sleep 0.02
    done
    wait "$client" || fail "pull: status $?"
    same
    theirs=$(most_memory "$server")
    [ "$theirs" -gt "$memory" ] && memory=$theirs
    end_server
}

case_memory() {
    local small
    memory_for 16
    small=$memory
    memory_for 192
    [ "$memory" -lt $((small + 48 * 1024)) ] || fail "$memory KiB for 192 MiB, $small for 16 MiB"
}

case_busy() {
    start "$programs/weights_hostile" busy "$transport"
    pull || fail "pull: status $?"
    [ "$(moved)" -eq 100000 ] || fail "moved $(moved) bytes"
}

case_stranger() {
    random_file a 100000
    serve 127.0.0.1:0
    "$programs/weights_stranger" "$address" "$transport" 2>>"$work/pull.log" || fail "stranger"
    nothing_held
    pull || fail "pull: status $?"
    same
    nothing_held
    end_server
}

# KiB of the server's memory for windows, which is a mapping of 1 GiB: those that were written to.
held() {
    awk '/^Size:/ { arena = $2 >= 1048576 && $2 < 1310720 } /^Rss:/ && arena { n += $2 } END { print n + 0 }' \
        "/proc/$server/smaps" 2>/dev/null
}

# The server has no window open: without clients it gives their memory back, once all are closed.
nothing_held() {
    kill -0 "$server" || fail "the server is gone"
    for _ in $(seq 200); do
        [ "$(held)" -eq 0 ] && return
        sleep 0.05
    done
    fail "windows stay open: $(held) KiB"
}

# Start a pull, and wait until the server has a window open for it.
start_held() { # options
    for _ in $(seq 20); do
        start_pull "$@"
        while kill -0 "$client" 2>/dev/null; do
            [ "$(held)" -gt 0 ] && return
        done
        wait "$client" || fail "pull: status $?"
        rm -rf "$dst"
        nothing_held
    done
    fail "no window is seen before the pull is over"
}

case_killed() {
    for i in $(seq 6); do random_file "file $i" $((5 * PIECE + i)); done
    serve 127.0.0.1:0
    for _ in $(seq 6); do
        start_held --depth 64
        kill -9 $client
        wait $client 2>/dev/null
        rm -rf "$dst"
        nothing_held # of this one, before the next
    done
    pull || fail "pull: status $?"
    same
    nothing_held
    end_server
}

case_stopped() {
    for i in $(seq 6); do random_file "file $i" $((5 * PIECE + i)); done
    serve 127.0.0.1:0
    for _ in $(seq 3); do
        start_held --depth 64 --retry 20
        end_server
        serve "$address"
        wait $client || fail "pull: status $?"
        same
        nothing_held
        rm -rf "$dst"
    done
    end_server
}

# Both sides with so many threads: of serve, of pull.
pull_with() { # threads threads
    threads=$1
    serve 127.0.0.1:0
    threads=$2
    pull || fail "pull $2 from $1: status $?"
    same
    [ "$(moved)" -eq "$(size_of_src)" ] || fail "pull $2 from $1: moved $(moved) bytes"
    nothing_held
    end_server
    rm -rf "$dst"
}

case_files() {
    local n=$threads
    random_file one $((9 * PIECE + 1))
    pull_with "$n" "$n"
    for i in $(seq 7); do random_file "file $i" $((i * MIB + i)); done
    pull_with "$n" "$n"
    pull_with 8 "$n"
    pull_with "$n" 2
    [ "$n" = 1 ] || no_descriptors
}

# What has no descriptor for a file has none for the others: one sentence, not one for each. How many the rest of a pull
# takes depends on the transport and on who is first, so the most that are too few are looked for.
no_descriptors() {
    for i in $(seq 40); do random_file "small $i" 100; done
    serve 127.0.0.1:0
    local few=20 enough=80 n said=0
    while [ $((enough - few)) -gt 1 ]; do
        n=$(((few + enough) / 2))
        rm -rf "$dst"
        : >"$work/pull.log"
        if (ulimit -n "$n" && pull --retry 0); then
            enough=$n
            continue
        fi
        few=$n
        [ "$(grep -c 'Too many open files$' "$work/pull.log")" -le 1 ] || fail "$n descriptors: said for each file"
        grep -q '^weights: small .*Too many open files$' "$work/pull.log" && said=1
    done
    [ "$enough" -lt 80 ] || fail "80 descriptors are too few"
    [ $said = 1 ] || fail "no number of descriptors was too few for a file alone"
    pull || fail "pull with descriptors: status $?"
    same
    end_server
}

# A command line that is refused: so, and nothing is begun.
refused() { # arguments
    timeout 10 "$weights" "$@" >"$report" 2>"$work/refused.log"
    status=$?
    [ $status -eq 2 ] || fail "$*: status $status"
    grep -q -e "$sentence" "$work/refused.log" || fail "$*: not said"
}

case_threads() {
    sentence='--threads takes a whole number from 1 to 8'
    for n in 0 9 x 1.5 -1 '' 99999999999; do
        refused serve "$src" --threads "$n"
        refused pull 127.0.0.1:1 "$dst" --threads "$n"
        [ -e "$dst" ] && fail "--threads '$n': the pull began"
    done
    for option in 'depth 0' 'limit -1' 'retry x'; do
        sentence="--${option% *} takes"
        refused pull 127.0.0.1:1 "$dst" "--${option% *}" "${option#* }"
    done
    sentence='--idle takes'
    refused serve "$src" --idle -1
    "$weights" pull --help | grep -q -e --depth || fail "pull --help"
}

mkdir -p "$src"
declare -F "case_$case" >/dev/null || fail "there is no such case"
"case_$case"
grep -lE 'Sanitizer|runtime error:' "$work"/*.log && fail "a sanitizer complains"
echo "ok $case.$transport.$threads"
