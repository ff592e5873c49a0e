#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C code in pages is quoted from files that are built and run.
#   quotes.sh PAGE...        fails if a quote differs from its file, or C code is not a quote
#   quotes.sh --fix PAGE...  writes the quotes anew
# In a page, a line `<!-- quote FILE NAME -->` stands before the code block; FILE is relative to
# the page. In the file, the lines between `/* quote NAME */` and `/* end */` are meant, less the
# indentation of the first of these two.
set -eu
fix=0
[ "${1:-}" = --fix ] && fix=1 && shift

# Print a page with its quotes as they should be.
render() {
    awk -v dir="$(dirname "$1")" '
        function quote(file, name,    line, on, pad, n) {
            while ((getline line < (dir "/" file)) > 0) {
                if (on && line ~ /^ *\/\* end \*\/$/)
                    break
                if (on) {
                    sub("^" pad, "", line)
                    print line
                    n++
                } else if (line ~ ("^ */\\* quote " name " \\*/$")) {
                    on = 1
                    pad = line
                    sub(/\/.*/, "", pad)
                }
            }
            close(dir "/" file)
            if (!n)
                print "NO SUCH QUOTE: " file " " name
        }
        /^<!-- quote / { file = $3; name = $4 }
        skip && /^```$/ { skip = 0 }
        !skip { print }
        /^```c$/ {
            if (name == "")
                print "NOT A QUOTE"
            else
                quote(file, name)
            name = ""
            skip = 1
        }' "$1"
}

status=0
new=$(mktemp)
trap 'rm -f "$new"' EXIT
for page in "$@"; do
    render "$page" >"$new"
    if [ $fix -eq 1 ]; then
        cat "$new" >"$page"
    elif ! diff -u "$page" "$new"; then
        echo "$page: a quote differs from its file: docs/quotes.sh --fix $page"
        status=1
    fi
done
exit $status
