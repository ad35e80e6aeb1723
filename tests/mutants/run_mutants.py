"""Mutation test of the losses and of credit: small faults are planted one by one, and a test has to fail for each.

    make mutants                                        credit and objectives, an hour or two on two cores
    python tests/mutants/run_mutants.py --folders estimators
    python tests/mutants/run_mutants.py --again         only survivors of the last run that are not listed

mutmut plants the faults and runs the tests that cover them; `mutation_operators.py` adds the faults that are typical of
losses. Exit code 1: a survivor that is not in `survivors.toml`, an entry there that is no survivor any more, or a share
of killed mutants below 97%.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from equivalents import Survivor, listed_survivors
from verdicts import WORK, judge, verdicts
from working_copy import clear, prepare

FOLDERS = ("credit", "objectives")
LEAST_SHARE = 0.97
DRIVER = Path(__file__).with_name("mutmut_driver.py")


def run(names: Sequence[str], workers: int) -> int:
    """Run mutmut in the working copy, for all mutants without a verdict or for `names`; returns its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, str(DRIVER), str(workers), *names]
    return subprocess.run(command, cwd=WORK, env=environment, check=False).returncode


def unlisted_survivors() -> list[str]:
    """Mutants that survived the last run and are not in `survivors.toml`."""
    listed = listed_survivors()
    found = (judge(path, codes).survivors for path, codes in verdicts().items())
    return [name for survivors in found for name, survivor in survivors.items() if survivor not in listed]


def report(folders: Sequence[str]) -> int:
    """Print the table and what fails; returns the exit code."""
    listed = {one: why for one, why in listed_survivors().items() if one.function.partition(".")[0] in folders}
    found: collections.Counter[str] = collections.Counter()
    survivors: list[Survivor] = []
    print(f"{'module':38} {'mutants':>8} {'killed':>8} {'timeouts':>8} {'same':>8} {'survive':>8}")
    for path, codes in verdicts().items():
        one = judge(path, codes)
        name = path.removeprefix("src/hone/")
        print(
            f"{name:38} {len(codes):8} {one.killed:8} {one.timeouts:8} {one.equivalent:8} {len(one.survivors):8}"
            + (f"  {one.unchecked} not tried" if one.unchecked else "")
        )
        survivors += one.survivors.values()
        found.update(
            mutants=len(codes), killed=one.killed, timeouts=one.timeouts, same=one.equivalent, left=one.unchecked
        )
    share = found["killed"] / max(1, found["mutants"] - found["same"] - found["left"])
    unlisted = [one for one in survivors if one not in listed]
    stale = [] if found["left"] else [one for one in listed if one not in survivors]
    print(
        f"\n{found['mutants']} mutants, {found['killed']} killed ({found['timeouts']} by a timeout), {found['same']} "
        f"the same by rule, {len(survivors)} survive ({len(survivors) - len(unlisted)} listed): "
        f"{share:.2%} killed of those that are not the same; {found['left']} were not tried"
    )
    for one in unlisted:
        print(f"\n[[survivor]]\nfunction = {json.dumps(one.function)}")
        print(
            f"was = {json.dumps(one.was, ensure_ascii=False)}\nbecomes = {json.dumps(one.becomes, ensure_ascii=False)}"
        )
        print('reason = ""')
    for one in stale:
        print(f"\nsurvivors.toml: no survivor any more, take it out: {one.function}: {one.becomes}")
    if unlisted:
        print(f"\n{len(unlisted)} survivors: write tests that kill them, or list them with a reason in survivors.toml")
    return int(bool(unlisted or stale or found["left"]) or share < LEAST_SHARE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), help="folders of src/hone and of tests")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--again", action="store_true", help="try the survivors that are not listed again, by today's tests"
    )
    parser.add_argument("--anew", action="store_true", help="forget all verdicts; otherwise only changes are tried")
    parser.add_argument("--report", action="store_true", help="only print the verdicts of the last run")
    options = parser.parse_args()
    if options.anew:
        clear()
    if not options.report:
        prepare(options.folders)
        if options.again and not (names := unlisted_survivors()):
            print("no survivor of the last run is left to try")
        elif code := run(names if options.again else [], options.workers):
            return code
    return report(options.folders)


if __name__ == "__main__":
    sys.exit(main())
