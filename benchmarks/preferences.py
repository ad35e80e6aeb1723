"""Demonstrations of reward models, preferences, search, critics, adapters and experts, on seeds that chose no setting.

    python benchmarks/preferences.py                        all of them
    python benchmarks/preferences.py --only dpo beam        some
    python benchmarks/preferences.py --quick                one seed of each, made short: decides nothing

A demonstration is a module of `benchmarks/demonstrations/`. Every figure is a row: the mean over seeds with a 95%
bootstrap interval, the worst seed by name where there is a bar, and the bar. Ends with one JSON line per row, and
rewrites the tables of its demonstrations in `benchmarks/RESULTS.md`.
"""

from demonstrate import run_demonstrations

if __name__ == "__main__":
    run_demonstrations("demonstrations", "benchmarks/preferences.py")
