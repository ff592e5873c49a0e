# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# nap SECONDS: sleep without a process, which takes a tenth of a second of the processor to start where that is emulated (tests/vm).
# Of a pipe that is open at both ends nothing comes, not even its end.
exec {nap_fd}<> <(:)
nap()
{
    read -rt "$1" -u "$nap_fd" || true
}
