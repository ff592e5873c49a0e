#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/lib/table.py makes of samples: only those of one state of the machine are compared."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from lib import table  # noqa: E402

FAST, SLOW = 3.9, 5.7


def samples(**programs):
    """Of one row: each program's (value, state) in order of the rounds."""
    out = table.Samples(None)
    for who, got in programs.items():
        for value, state in got:
            out.add("row", who, (value, None), 0, state)
    return out


def goal(sense=">=", factor=0.95, others=("peer",)):
    return table.Goal("goal", ("row", "weft"), sense, factor, [("row", o) for o in others])


class Ratios(unittest.TestCase):
    def test_of_one_state(self):
        got = samples(weft=[(10, FAST), (12, FAST), (11, FAST)], peer=[(10, FAST)] * 3)
        self.assertEqual(goal().judge(got), [("1.10 x", True)])

    def test_samples_of_two_states_do_not_meet(self):
        got = samples(weft=[(10, FAST), (3, SLOW)], peer=[(4, SLOW), (8, FAST)])
        self.assertEqual(goal().judge(got), [("1.25 x", True), ("0.75 x", False)])

    def test_a_state_that_only_one_of_them_had_says_nothing(self):
        got = samples(weft=[(10, FAST), (3, SLOW)], peer=[(9, FAST), (8, FAST)])
        self.assertEqual(goal().judge(got), [("1.11 x", True)])
        self.assertEqual(goal().judge(samples(weft=[(3, SLOW)], peer=[(9, FAST)])), [])

    def test_a_state_that_changed_counts_nowhere(self):
        got = samples(weft=[(10, FAST), (1, None)], peer=[(10, FAST), (100, None)])
        self.assertEqual(goal().judge(got), [("1.00 x", True)])

    def test_the_nearest_round_is_taken(self):
        got = samples(weft=[(1, SLOW), (10, FAST)], peer=[(50, FAST), (10, FAST), (1, SLOW)])
        self.assertEqual(goal().judge(got), [("1.00 x", True), ("1.00 x", True)])

    def test_against_the_best_of_several(self):
        got = samples(weft=[(10, FAST)], peer=[(9, FAST)], other=[(20, FAST)], slow=[(99, SLOW)])
        self.assertEqual(goal(others=("peer", "other")).judge(got), [("0.50 x", False)])

    def test_without_a_probe_all_are_alike(self):
        got = samples(weft=[(10, 0), (20, 0)], peer=[(10, 0), (10, 0)])
        self.assertEqual(goal().judge(got), [("1.50 x", True)])

    def test_numbers(self):
        got = samples(weft=[(7.5, FAST), (4, SLOW), (4.2, SLOW)])
        self.assertEqual(goal(factor=5, others=()).judge(got), [("7.50", True), ("4.10", False)])
        self.assertEqual(goal(factor=3, others=()).judge(samples(weft=[(4, FAST)])), [("4.00", True)])


class Taking(unittest.TestCase):
    def take(self, *states):
        told = iter(states)
        runs = []

        def run():
            runs.append(len(runs))
            return table_sample(len(runs))

        sample, _, state = table.take(run, lambda: next(told))
        return sample[0], state, len(runs)

    def test_once_where_nothing_changes(self):
        self.assertEqual(self.take(FAST, FAST), (1, FAST, 1))

    def test_again_where_the_state_changed(self):
        self.assertEqual(self.take(FAST, SLOW, SLOW, SLOW), (2, SLOW, 2))

    def test_and_then_it_is_of_none(self):
        self.assertEqual(self.take(*[FAST, SLOW] * table.TRIES)[1:], (None, table.TRIES))


def table_sample(value):
    return (value, None)


class Lines(unittest.TestCase):
    def test_both_states_are_shown(self):
        rows = [table.Row("row", "GB/s", {"weft": None, "peer": None, "absent": None})]
        got = samples(weft=[(10, FAST), (3, SLOW)], peer=[(10, FAST), (4, SLOW)])
        lines = table.markdown(rows, [goal()], got)
        self.assertIn("| row | weft | 10.00 / 3.00 GB/s | 3.00 | 10.00 |  |", lines)
        self.assertIn("| row | absent | no sample | | | |", lines)
        self.assertIn("| goal | 1.00 x / 0.75 x | met / **missed** |", lines)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
