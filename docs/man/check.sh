#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh PROGRAM PAGE: what PROGRAM --help lists, options and tests, is in its manual page.
set -euo pipefail
program=$1 page=$2
help=$("$program" --help)
text=$(sed 's/\\-/-/g' "$page")
rc=0 n=0
need()
{
    n=$((n + 1))
    grep -qE -- "^\.(B|BR|BI|RB)( .*)?(\"| |^)*$1([ \",=]|$)" <<<"$text" || { echo "$page: nothing of $1" && rc=1; }
}

for option in $(grep -oE -- '^ +(-[a-zA-Z], +)?--[a-z-]+(, --[a-z-]+)?' <<<"$help" | grep -oE -- '--[a-z-]+'); do
    need "$option"
done
for test in $(sed -nE "1s/.* ([a-z]+(\|[a-z]+)+) .*/\1/p" <<<"$help" | tr '|' ' '); do
    need "$test"
done
echo "$n words of $program"
[ "$n" -gt 3 ] && exit $rc
