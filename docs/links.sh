#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# links.sh [DIR]: every link of a document in the tree (or folder) to a file of the tree leads to one.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

rc=0 n=0
while IFS=: read -r document link; do
    n=$((n + 1))
    link=${link#](} && link=${link%)} && link=${link%%#*}
    [ -z "$link" ] || [ -e "$(dirname "$document")/$link" ] || { echo "$document: there is no $link" && rc=1; }
done < <(find . -name '*.md' -not -path './build/*' -not -path './.*' -print0 |
    xargs -0 grep -HoE '\]\([^) ]+\)' | grep -vE '\]\([a-z]+:')
echo "$n links"
[ "$n" -gt $(($# ? 20 : 50)) ] && exit $rc # else it has looked at the wrong place
