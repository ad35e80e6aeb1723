"""Fresh seeds of the lab: the share of seeds in which each claim of each experiment holds.

    python benchmarks/lab_seeds.py                     24 seeds (3000 to 3023) of every experiment, an hour on one core
    python benchmarks/lab_seeds.py --only passk mismatch    these only, and the other rows stay
    python benchmarks/lab_seeds.py --seeds 4           the first four: less evidence

Experiments run at full size, on seeds that chose no bound. After each experiment its row of the table in
`benchmarks/RESULTS.md` is rewritten, and the other rows stay. A row holds the number of seeds, the share of them in
which the verdict holds, and the claim that fails most often or, where none fails, has the least margin. An experiment
below 95% of its seeds claims too much. Exit code 1 if there is one.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tables import HERE, processor

from hone.lab.finding import ExperimentResult
from hone.lab.registry import experiment_names, load_experiment

FIRST_SEED, SEEDS, ENOUGH = 3000, 24, 0.95
PAGE = HERE / "RESULTS.md"
BEGIN, END = "<!-- lab-seeds:begin -->", "<!-- lab-seeds:end -->"
HEADER = ("experiment", "seeds", "verdict holds", "weakest claim", "it holds", "its least margin", "CPU s")


@dataclass(frozen=True, kw_only=True)
class ClaimShare:
    """A claim over seeds."""

    says: str
    holds: int
    """Seeds in which the claim holds."""
    least_margin: float


def claim_shares(results: Sequence[ExperimentResult]) -> list[ClaimShare]:
    """Every claim of an experiment over its results, the weakest first."""
    columns = zip(*(result.claims for result in results), strict=True)
    shares = [
        ClaimShare(
            says=column[0].says,
            holds=sum(claim.holds for claim in column),
            least_margin=min(claim.margin for claim in column),
        )
        for column in columns
    ]
    return sorted(shares, key=lambda share: (share.holds, share.least_margin))


def run_seeds(name: str, seeds: range) -> tuple[list[ExperimentResult], float]:
    """Results of an experiment on each seed, and the mean CPU seconds of one."""
    experiment, began_s = load_experiment(name), time.process_time()
    results = [experiment.run(seed) for seed in seeds]
    return results, (time.process_time() - began_s) / len(seeds)


def row_of(name: str, results: Sequence[ExperimentResult], seconds: float) -> tuple[str, ...]:
    """Row of one experiment."""
    count, weakest = len(results), claim_shares(results)[0]
    held = sum(result.holds for result in results)
    shares = f"{held} of {count}", weakest.says.replace("|", "\\|"), f"{weakest.holds} of {count}"
    return (name, str(count), *shares, f"{weakest.least_margin:.2f}", f"{seconds:.1f}")


def rows_there(page: str) -> dict[str, tuple[str, ...]]:
    """Rows of the table in the page, by experiment."""
    if BEGIN not in page:
        return {}
    lines = page.split(BEGIN)[1].split(END)[0].splitlines()
    cells = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines if line.startswith("| ")]
    return {row[0]: row for row in cells[1:] if row[0] in experiment_names()}


def write_row(row: tuple[str, ...]) -> None:
    """Put the row into the table of `RESULTS.md`, in the order of the names."""
    page = PAGE.read_text(encoding="utf-8")
    rows = rows_there(page) | {row[0]: row}
    lines = ["| " + " | ".join(each) + " |" for each in (HEADER, *(rows[name] for name in sorted(rows)))]
    lines.insert(1, "|---" * len(HEADER) + "|")
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n## Fresh seeds of the lab (`benchmarks/lab_seeds.py`)\n\n{BEGIN}\n{END}\n"
    before, rest = page.split(BEGIN, 1)
    told = f"{processor()}, one thread; torch {torch.__version__}; seeds from {FIRST_SEED}."
    text = "\n".join([told, "", *lines])
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Share of fresh seeds in which the lab's claims hold.")
    parser.add_argument("--only", nargs="+", choices=experiment_names(), default=experiment_names(), metavar="NAME")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds")
    parser.add_argument("--dry", action="store_true", help="print, and leave RESULTS.md alone")
    parser.add_argument("--quick", action="store_true", help="one seed of one experiment, printed: decides nothing")
    asked = parser.parse_args()
    if asked.quick:
        asked.only, asked.seeds, asked.dry = asked.only[:1], 1, True
    torch.set_num_threads(1)
    weak: list[str] = []
    for name in asked.only:
        results, seconds = run_seeds(name, range(asked.first, asked.first + asked.seeds))
        row = row_of(name, results, seconds)
        for share in claim_shares(results):
            print(
                f"{name}: {share.holds} of {len(results)}, least margin {share.least_margin:+.2f}: {share.says}",
                flush=True,
            )
        if not asked.dry:
            write_row(row)
        if sum(result.holds for result in results) < ENOUGH * len(results):
            weak.append(name)
    print(f"below {ENOUGH:.0%} of {asked.seeds} seeds: {', '.join(weak) or 'none'}")
    return 1 if weak and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
