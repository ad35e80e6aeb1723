"""Writes lake_turns.jsonl: the turns of shortest ways over frozen lakes, for a policy that imitates them first.

python examples/dialogues/lake.py
"""

import json
from pathlib import Path

from hone.text.games.grid import imitation_rows, lake_maps

if __name__ == "__main__":
    rows = imitation_rows(lake_maps(100, seed=0))
    Path("lake_turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"lake_turns.jsonl: {len(rows)} turns of 100 ways")
