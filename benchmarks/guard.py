#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says whether a change has made any benchmark slower, by comparing two builds of the benchmarks.

    benchmarks/guard.py OLD NEW               two programs adamant_benchmark, of before and after the change
    benchmarks/guard.py --self-test PROGRAM   one against itself: there must be no difference
    benchmarks/guard.py --check-statistics    the verdict on simulated times, whose answer is known
    benchmarks/guard.py OLD NEW -- --quick    what follows -- goes to the programs; without it, --quick does

Exit status: 0 nothing is slower, 1 something is, 2 it could not be found out.

How it decides. A row is run by both programs, one right after the other, in random order: a pair, and the ratio of its
times is one value. What is judged is the time over that of the row's own limit, which the same run has measured, so
that a machine that gets slower for a while slows down both; and the time itself, because a limit uses the library's
threads. A row differs if one of the two does and the median of the other does not say the opposite. Neither is taken
to be normally distributed: the range that holds the median is that of the sign test.

First each row gets a few pairs, all rows in turn. Rows that seem to differ at all get more of them, and only these new
ones count: a row is slower if the range of their median lies above 1 and the median itself by 3 %. The confidence of
the ranges is corrected for how many there are (Bonferroni), so that a comparison without any difference ends in an
alarm one time in twenty at most.
"""

import argparse
import json
import math
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

from tables import base_name

# Those that say the most for their time; run the others after changing what they measure.
DEFAULT_ROWS = r"^(big_shards|reductions|rollback|small_shards/(call|adjacent)|offload_step/whole|hand_over/request)/"
MEASURES = ("over the limit", "time")


class CannotRun(Exception):
    pass


# --------------------------------------------------------------------------------------------------------- statistics


def range_of_median(values, confidence):
    """Holds the median of what the values are a sample of; infinite where there are too few of them to say so.

    Each value lies below the true median with probability 1/2: between the order statistics that this leaves.
    """
    ordered, n = sorted(values), len(values)
    outside, skipped = 0.0, -1
    for k in range(n // 2):
        outside += 2 * math.comb(n, k) / 2**n
        if 1 - outside < confidence:
            break
        skipped = k
    return (ordered[skipped], ordered[n - 1 - skipped]) if skipped >= 0 else (0.0, math.inf)


def too_few(count, confidence):
    return not math.isfinite(range_of_median([1.0] * max(count, 1), confidence)[1])


def differs(values, confidence, effect):
    """-1 below 1, 1 above, 0 not beyond noise."""
    low, high = range_of_median(values, confidence)
    median = statistics.median(values)
    if low > 1 and median >= 1 + effect:
        return 1
    if high < 1 and median <= 1 / (1 + effect):
        return -1
    return 0


def compare(rows, pair, options, tell=lambda text: None):
    """pair(row) is a value for each measure. Returns {row: {measure: values}} for all, the same for those that were
    looked at again, and the confidence that goes with the latter."""
    first = {row: {m: [] for m in MEASURES} for row in rows}
    for i in range(options.pairs):
        tell(f"pair {i + 1} of {options.pairs}, {len(rows)} rows")
        for row in random.sample(rows, len(rows)):
            for measure, value in pair(row).items():
                first[row][measure].append(value)
    suspects = [row for row in rows
                if any(values and differs(values, 0.8, options.effect / 2) for values in first[row].values())]
    again = {row: {m: [] for m in MEASURES} for row in suspects}
    for i in range(options.more_pairs if suspects else 0):
        tell(f"pair {i + 1} of {options.more_pairs}, {len(suspects)} rows that seem to differ")
        for row in random.sample(suspects, len(suspects)):
            for measure, value in pair(row).items():
                again[row][measure].append(value)
    return first, again, 1 - (1 - options.confidence) / max(1, len(suspects) * len(MEASURES))


def verdicts(first, again, confidence, options):
    """{row: (-1 faster, 0, 1 slower)}: by one measure, unless the median of another says the opposite. If only the
    limit has changed, such as its hand-over to threads, the time stays."""
    found = {}
    for row in first:
        measured = [values for values in again.get(row, {}).values() if values]
        each = [differs(values, confidence, options.effect) for values in measured]
        medians = [statistics.median(values) for values in measured]
        found[row] = (1 if 1 in each and min(medians) > 1 else -1 if -1 in each and max(medians) < 1 else 0)
    return found


# ------------------------------------------------------------------------------------------------------------ running


def call(program, arguments):
    try:
        done = subprocess.run([str(program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise CannotRun(f"{program}: {error.strerror}") from error
    if done.returncode not in (0, 1):  # 1: a row was skipped, and says why
        raise CannotRun(f"{program} failed with status {done.returncode}: {' '.join(arguments)}\n"
                        + (done.stderr or done.stdout).strip()[-1000:])
    return done.stdout


def rows_of(program, arguments, wanted):
    """{name: the name that this program's filter knows it by}"""
    listed = call(program, [*arguments, "--benchmark_list_tests=true"]).split()
    return {base_name(name): name for name in listed if re.search(wanted, name)}


def times(program, arguments, name):
    output = call(program, [*arguments, f"--benchmark_filter=^{re.escape(name)}$", "--benchmark_format=json"])
    try:
        row = json.loads(output)["benchmarks"][0]
        if row.get("error_occurred"):
            raise CannotRun(f"{program} skipped {name}: {row['error_message']}")
        found = {"time": row["time_us"]}
    except (ValueError, LookupError) as error:
        raise CannotRun(f"{program} reports nothing to compare for {name}: {error!r}") from error
    if "ratio" in row:
        found["over the limit"] = row["ratio"]
    if not all(value > 0 for value in found.values()):
        raise CannotRun(f"{program} reports a time of 0 for {name}")
    return found


def real_pair(old, new, arguments, names):
    def pair(row):
        sides = [("old", old), ("new", new)]
        random.shuffle(sides)
        got = {side: times(program, arguments, names[side][row]) for side, program in sides}
        return {m: got["new"][m] / got["old"][m] for m in got["new"] if m in got["old"]}
    return pair


def describe(values, confidence):
    low, high = range_of_median(values, confidence)
    median = statistics.median(values)
    return f"{median:.3f} ({low:.3f} to {high:.3f})" if math.isfinite(high) else f"{median:.3f}"


def print_rows(first, again, confidence, found):
    width = max(len(row) for row in first)
    print(f"\n{'row':{width}}  " + "".join(f"{'new/old, ' + m:28}" for m in MEASURES) + "verdict")
    for row, values in first.items():
        looked_again = row in again
        cells = "".join(f"{describe(v, confidence if looked_again else 0.8) if v else '-':28}"
                        for v in (again if looked_again else first)[row].values())
        verdict = {1: "SLOWER", -1: "faster", 0: "no difference beyond noise"}[found[row]]
        print(f"{row:{width}}  {cells}{verdict}" + (", looked at again" if looked_again and not found[row] else ""))


def guard(old, new, arguments, options):
    names = {"old": rows_of(old, arguments, options.filter), "new": rows_of(new, arguments, options.filter)}
    rows = [row for row in names["old"] if row in names["new"]]
    for side in names:
        for row in names[side].keys() - set(rows):
            print(f"only in the {side} one, so not compared: {row}")
    if not rows:
        raise CannotRun(f"there is no row that both programs have and that --filter={options.filter} takes")
    start = time.monotonic()

    def tell(text):
        print(f"{time.monotonic() - start:6.0f} s: {text}", file=sys.stderr)

    first, again, confidence = compare(rows, real_pair(old, new, arguments, names), options, tell)
    if again and too_few(options.more_pairs, confidence):
        raise CannotRun(f"--more-pairs={options.more_pairs} are too few to judge {len(again)} rows with a confidence "
                        f"of {options.confidence}")
    found = verdicts(first, again, confidence, options)
    print_rows(first, again, confidence, found)
    slower = sum(1 for v in found.values() if v == 1)
    print(f"\n{len(rows)} rows: {slower} slower, {sum(1 for v in found.values() if v == -1)} faster; "
          f"{len(again)} were looked at again")
    return 1 if slower else 0


# --------------------------------------------------------------------------------------------------------------- tests


def check_statistics(options):
    """Whether the verdict is right on a machine that drifts and interrupts, where one row in thirty is 5 % slower."""
    assert range_of_median([1, 2, 3, 4, 5, 6, 7, 8, 9], 0.95) == (2, 8)
    assert range_of_median([5, 1, 4, 2, 3], 0.9) == (1, 5)
    assert range_of_median([1, 2, 3], 0.95) == (0.0, math.inf)
    rows = [f"row {i}" for i in range(30)]
    comparisons = 100

    def simulate(slow_down):
        drift = [1.0]

        def pair(row):
            def run(factor):
                drift[0] *= math.exp(random.gauss(0, 0.02))
                interruption = random.choice([1.0] * 19 + [1.3])
                limit = drift[0] * math.exp(random.gauss(0, 0.01))
                step = drift[0] * factor * interruption * math.exp(random.gauss(0, 0.01))
                return {"over the limit": step / limit, "time": step}
            factors = [1.0, slow_down if row == rows[0] else 1.0]
            order = random.sample((0, 1), 2)
            got = {side: run(factors[side]) for side in order}
            return {m: got[1][m] / got[0][m] for m in MEASURES}
        first, again, confidence = compare(rows, pair, options)
        return verdicts(first, again, confidence, options)

    alarms = sum(1 in simulate(1.0).values() for _ in range(comparisons))
    after = [simulate(1.05) for _ in range(comparisons)]
    finds = sum(v[rows[0]] == 1 for v in after)
    wrong = sum(any(v[row] == 1 for row in rows[1:]) for v in after)
    improvements = sum(simulate(1 / 1.05)[rows[0]] == -1 for _ in range(comparisons))
    print(f"of {comparisons} comparisons of {len(rows)} rows each: without a difference {alarms} alarms; with one row "
          f"5 % slower it was found {finds} times, and another row blamed {wrong} times; 5 % faster was found "
          f"{improvements} times")
    good = max(alarms, wrong) <= 0.05 * comparisons and min(finds, improvements) >= 0.9 * comparisons
    print("as it should be" if good else "NOT as it should be")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=pathlib.Path)
    parser.add_argument("new", nargs="?", type=pathlib.Path)
    parser.add_argument("--self-test", type=pathlib.Path, metavar="PROGRAM")
    parser.add_argument("--check-statistics", action="store_true")
    parser.add_argument("--filter", default=DEFAULT_ROWS, metavar="REGEX", help="rows (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=9, help="of each row (default: %(default)s)")
    parser.add_argument("--more-pairs", type=int, default=30, help="of suspects (default: %(default)s)")
    parser.add_argument("--effect", type=float, default=0.03, help="least that counts (default: %(default)s)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the whole answer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the orders (default: %(default)s)")
    own, arguments = sys.argv[1:], ["--quick"]
    if "--" in own:
        own, arguments = own[: own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    try:
        re.compile(options.filter)
    except re.error as error:
        parser.error(f"--filter is '{options.filter}', which is not a regular expression: {error}")
    if not 0 < options.confidence < 1:
        parser.error(f"--confidence is {options.confidence}, but must be between 0 and 1")
    if not 0 < options.effect < math.inf:
        parser.error(f"--effect is {options.effect}, but must be above 0")
    if too_few(options.pairs, 0.8) or too_few(options.more_pairs, options.confidence):
        parser.error(f"--pairs is {options.pairs} and --more-pairs {options.more_pairs}, which are too few for any "
                     "verdict")
    random.seed(options.seed)
    if options.check_statistics:
        return check_statistics(options)
    old, new = (options.self_test, options.self_test) if options.self_test else (options.old, options.new)
    if old is None or new is None:
        parser.error("give two programs, or --self-test and one, or --check-statistics")
    try:
        return guard(old.resolve(), new.resolve(), arguments, options)
    except CannotRun as error:
        print(f"guard.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
