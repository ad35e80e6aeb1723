"""Turns to imitate, and sums, as files that the pipelines read: `python examples/dialogues/players.py` writes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.text.games import calculator, guess


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(folder: Path = Path()) -> None:
    """Write the turns of both games, and the sums to practise and to be judged on."""
    sums = calculator.sum_rows(4300, seed=7)
    write(folder / "guess_turns.jsonl", guess.imitation_rows(4000, seed=7))
    write(folder / "calculator_turns.jsonl", calculator.imitation_rows(sums[1300:], seed=7))
    write(folder / "sums_to_practise.jsonl", sums[:1000])
    write(folder / "sums_held_out.jsonl", sums[1000:1300])


if __name__ == "__main__":
    main()
