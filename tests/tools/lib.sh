# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it. WEFT_PERF, WEFT_INFO and CHECK_JSON name the programs.
set -euo pipefail

work=$(mktemp -d)
# only children of this script are ended
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

fail()
{
    echo "FAIL: $*" >&2
    tail -n +1 "$work"/*.err >&2 2>/dev/null || true
    exit 1
}

# need_device TRANSPORT: this machine has one, or the test is skipped
need_device()
{
    "$WEFT_INFO" >"$work/info" || fail "weft_info exits with $?"
    grep -Eq "^  $1 +yes" "$work/info" && return
    echo "skipped: $(grep -EA1 "^  $1 +no" "$work/info" | tail -n 1)"
    exit 77
}

# status N COMMAND...: it must exit with N. Output in $work/out and $work/cmd.err.
status()
{
    local want=$1 got=0
    shift
    "$@" >"$work/out" 2>"$work/cmd.err" || got=$?
    [ "$got" = "$want" ] || fail "'$*' exited with $got, not $want"
}

# wait_for SECONDS COMMAND...: until the command succeeds
wait_for()
{
    local tries=$(($1 * 20))
    shift
    until "$@"; do
        ((tries-- > 0)) || fail "waited in vain for: $*"
        sleep 0.05
    done
}

# Start a target on a free port, with these words; sets $target and $port.
start_target()
{
    rm -f "$work/target.err" # of an earlier one: its port is not this one's
    "$WEFT_PERF" "$@" --listen 127.0.0.1:0 >"$work/target.out" 2>"$work/target.err" &
    target=$!
    wait_for 10 grep -qs 'listening on port' "$work/target.err"
    port=$(sed -n 's/.*listening on port \([0-9]*\).*/\1/p' "$work/target.err")
}

gone()
{
    ! kill -0 "$1" 2>/dev/null || grep -q 'State:.Z' "/proc/$1/status"
}

# ends_with N PID NAME: a child must end within 20 s, with this status.
ends_with()
{
    local got=0
    wait_for 20 gone "$2"
    wait "$2" 2>/dev/null || got=$?
    [ "$got" = "$1" ] || fail "$3 exits with $got, not $1"
}
