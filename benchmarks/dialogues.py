"""Figures of dialogues: turns, tools, worlds that take their time, serving and early experience, on seeds that chose no
setting.

    python benchmarks/dialogues.py                          all of them
    python benchmarks/dialogues.py --only guess calculator  some
    python benchmarks/dialogues.py --quick                  one seed of each, made short: decides nothing

A figure is a module of `benchmarks/dialogue_figures/`. Every row is the mean over seeds with a 95% bootstrap interval,
the worst seed by name where there is a bar, and the bar. Ends with one JSON line per row, and rewrites the tables of
its figures in `benchmarks/RESULTS.md`.
"""

from demonstrate import run_demonstrations

if __name__ == "__main__":
    run_demonstrations("dialogue_figures", "benchmarks/dialogues.py")
