#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/lib/table.py makes of samples: only those of one state of the machine are compared."""
import os
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from lib import table  # noqa: E402

FAST, SLOW = 3.9, 5.7


def samples(**programs):
    """Of one row: each program's (value, state) in order of the rounds; None: that round failed."""
    out = table.Samples(None)
    for who, got in programs.items():
        for number, sample in enumerate(got):
            if sample:
                out.add("row", who, (sample[0], None), 0, sample[1], number)
    return out


def goal(sense=">=", factor=0.95, others=("peer",)):
    return table.Goal("goal", ("row", "weft"), sense, factor, [("row", o) for o in others])


class Ratios(unittest.TestCase):
    def judged(self, got, *expected, **how):
        self.assertEqual([v[1:] for v in goal(**how).judge(got)], list(expected))

    def test_of_one_state(self):
        self.judged(samples(weft=[(10, FAST), (12, FAST), (11, FAST)], peer=[(10, FAST)] * 3),
                    ("1.10 x", True))

    def test_a_state_varies_a_little(self):
        got = samples(weft=[(10, FAST), (12, 4.1), (11, 3.8)], peer=[(10, 4.2), (10, FAST), (10, 4)])
        self.judged(got, ("1.10 x", True))
        self.assertEqual(len(got.states()), 1)

    def test_samples_of_two_states_do_not_meet(self):
        self.judged(samples(weft=[(10, FAST), (3, SLOW)], peer=[(4, SLOW), (8, FAST)]),
                    ("1.25 x", True), ("0.75 x", False))

    def test_one_odd_sample_is_no_state(self):
        some = [(10, FAST)] * 10 + [(5, SLOW)] * 10
        got = samples(weft=some, peer=[(10, FAST)] * 10 + [(10, SLOW)] * 10 + [(1, 14.0)])
        self.judged(got, ("1.00 x", True), ("0.50 x", False))
        self.assertEqual(got.states(), [FAST, SLOW])

    def test_a_state_that_only_one_of_them_had_says_nothing(self):
        self.judged(samples(weft=[(10, FAST), (3, SLOW)], peer=[(9, FAST), (8, FAST)]),
                    ("1.11 x", True))
        self.judged(samples(weft=[(3, SLOW)], peer=[(9, FAST)]))

    def test_a_state_that_changed_counts_nowhere(self):
        got = samples(weft=[(10, FAST), (1, None), (1, None)], peer=[(10, FAST), (100, None)])
        self.judged(got, ("1.00 x", True))
        self.judged(got, ("10.00", True), others=(), factor=5)

    def test_the_nearest_round_is_taken(self):
        self.judged(samples(weft=[(1, SLOW), (10, FAST)], peer=[(50, FAST), (10, FAST), (1, SLOW)]),
                    ("1.00 x", True), ("1.00 x", True))

    def test_of_two_rounds_as_near_neither_is_preferred(self):
        self.judged(samples(weft=[None, (10, FAST)], peer=[(5, FAST), None, (15, FAST)]),
                    ("1.00 x", True))

    def test_a_round_that_failed_moves_no_other(self):
        self.judged(samples(weft=[(10, FAST), (20, FAST), (30, FAST)],
                            peer=[None, (20, FAST), (30, FAST)]), ("1.00 x", True))

    def test_against_the_best_of_several(self):
        got = samples(weft=[(10, FAST)], peer=[(9, FAST)], other=[(20, FAST)], slow=[(99, SLOW)])
        self.judged(got, ("0.50 x", False), others=("peer", "other", "absent"))
        self.judged(got, others=("peer", "slow"))

    def test_a_rival_that_failed_may_have_been_the_best(self):
        got = samples(weft=[(10, FAST)], peer=[(2, FAST)])
        self.judged(got, ("5.00 x", True), others=("peer", "failed"))
        got.want("row", "failed")
        self.judged(got, others=("peer", "failed"))

    def test_without_a_probe_all_are_alike(self):
        self.judged(samples(weft=[(10, 0), (20, 0)], peer=[(10, 0), (10, 0)]), ("1.50 x", True))

    def test_numbers(self):
        got = samples(weft=[(7.5, FAST), (4, SLOW), (4.2, SLOW)])
        self.judged(got, ("7.50", True), ("4.10", False), factor=5, others=())
        self.judged(got, ("7.50", False), ("4.10", True), factor=5, others=(), sense="<=")


class Taking(unittest.TestCase):
    def take(self, *states, others=()):
        """As if the probes told these states, and the meters these shares of others (afterwards none)."""
        told, shares, runs = iter(states), iter(others), []

        class Meter:
            def others(self):
                return next(shares, 0)

        def run():
            runs.append(len(runs))
            return table_sample(len(runs))

        with unittest.mock.patch.object(table.proc, "Meter", Meter):
            sample, _, state = table.take(run, lambda: next(told))
        return sample[0], state, len(runs)

    def test_once_where_nothing_changes(self):
        self.assertEqual(self.take(FAST, FAST), (1, FAST, 1))

    def test_again_where_the_state_changed(self):
        self.assertEqual(self.take(FAST, SLOW, SLOW, SLOW), (2, SLOW, 2))

    def test_again_where_others_were_at_work(self):
        self.assertEqual(self.take(*[FAST] * 6, others=[0.5, 0.2, 0.05]), (3, FAST, 3))

    def test_and_then_it_is_of_none(self):
        self.assertEqual(self.take(*[FAST, SLOW] * table.TRIES)[1:], (None, table.TRIES))


class Turns(unittest.TestCase):
    def test_in_turns_and_numbered_within_their_round(self):
        calls = []
        rows = [table.Row("often", "GB/s", {who: lambda who=who: calls.append(who) or table_sample(1.0)
                                            for who in ("weft", "peer")}, turns=2),
                table.Row("once", "GB/s", {"weft": lambda: calls.append("once") or table_sample(1.0)}, once=True)]
        got = table.Samples(None)
        meter = unittest.mock.Mock()
        meter.return_value.others.return_value = 0  # whatever runs beside this test
        with unittest.mock.patch.object(table.proc, "Meter", meter):
            table.measure(rows, 2, got)
        self.assertEqual(calls, ["weft", "peer"] * 2 + ["once"] + ["weft", "peer"] * 2)
        self.assertEqual([r for _, r in got.values(("often", "peer"), 0)], [0, 0.5, 1, 1.5])

    def test_what_is_measured_together_has_one_state(self):
        values = iter(range(100))
        row = table.Row("row", "us", dict.fromkeys(("plain", "weft")), turns=2,
                        together=lambda: [table_sample(next(values)), table_sample(next(values))])
        got, states = table.Samples(None), iter((5, 5, 7, 7))
        meter = unittest.mock.Mock()
        meter.return_value.others.return_value = 0
        with unittest.mock.patch.object(table.proc, "Meter", meter):
            table.measure([row], 1, got, lambda: next(states))
        self.assertEqual(got.rows["row"], {"plain": [[0, None, 0, 5, 0], [2, None, 0, 7, 0.5]],
                                           "weft": [[1, None, 0, 5, 0], [3, None, 0, 7, 0.5]]})


def table_sample(value):
    return (value, None)


class Lines(unittest.TestCase):
    def test_both_states_are_shown(self):
        rows = [table.Row("row", "GB/s", {"weft": None, "peer": None, "absent": None})]
        got = samples(weft=[(10, FAST), (3, SLOW)], peer=[(10, FAST), (4, SLOW)])
        lines = table.markdown(rows, [goal()], got)
        self.assertIn("| row | weft | 10.00 / 3.00 GB/s | 3.00 | 10.00 |  |", lines)
        self.assertIn("| row | absent | no sample | | | |", lines)
        self.assertIn("| goal | 1.00 x fast / 0.75 x slow | met / **missed** |", lines)
        lines = table.markdown(rows, [goal(factor=0.5)], got)
        self.assertIn("| goal | 1.00 x fast / 0.75 x slow | met |", lines)

    def test_the_state_is_named_where_there_is_one_figure(self):
        got = samples(weft=[(3, SLOW)], peer=[(10, FAST), (4, SLOW)])
        self.assertIn("| goal | 0.75 x slow | **missed** |", table.markdown([], [goal()], got))

    def test_numbers_need_no_state(self):
        rows = [table.Row("row", "KiB", {"weft": None})]
        got = samples(weft=[(7, None), (5, None), (9, None)])
        lines = table.markdown(rows, [goal("<=", 8, others=())], got)
        self.assertIn("| row | weft | 7.00 KiB | 5.00 | 9.00 |  |", lines)
        self.assertIn("| goal | 7.00 | met |", lines)
        got = samples(weft=[(7, FAST), (50, None)], peer=[(1, FAST)])
        self.assertIn("| goal | 7.00 | met |", table.markdown(rows, [goal("<=", 8, others=())], got))

    def test_a_goal_does_not_vanish(self):
        got = samples(weft=[(10, None)], peer=[(10, FAST)])
        self.assertIn("| goal | nothing of the same state to compare with | **missed** |", table.markdown([], [goal()], got))
        self.assertEqual(table.markdown([], [goal()], samples(other=[(1, FAST)]))[-1], "|---|---|---|")
        elsewhere = table.Goal("goal", ("row", "weft"), ">=", 1, [("another row", "peer")])  # of a part that was not asked for
        lines = table.markdown([], [elsewhere], samples(weft=[(10, FAST)]))
        self.assertIn("| goal | the others were not to be measured |  |", lines)

    def test_what_failed_is_missed_and_ends_the_run(self):
        def fail():
            raise table.proc.Failed("no pull")
        got = samples(peer=[(10, FAST)])
        with unittest.mock.patch.object(table.proc, "Meter"), unittest.mock.patch("sys.stderr"):
            table.measure([table.Row("row", "GB/s", {"weft": fail})], 1, got)
            self.assertIn("| goal | not measured | **missed** |", table.markdown([], [goal()], got))
            with self.assertRaises(SystemExit) as end:
                table.check(got)
        self.assertIn("row, weft", str(end.exception))
        table.check(samples(weft=[(3, FAST)]))

    def test_one_state_has_no_name(self):
        got = samples(weft=[(3, FAST)], peer=[(4, FAST)])
        self.assertIn("| goal | 0.75 x | **missed** |", table.markdown([], [goal()], got))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
