# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# nap SECONDS: sleep without a process. To start one takes a tenth of a second of the processor where it is emulated
# (tests/vm), and who looks ten times a second took it from the tests.
exec {nap_fd}<> <(:)
nap()
{
    read -rt "$1" -u "$nap_fd" || true
}
