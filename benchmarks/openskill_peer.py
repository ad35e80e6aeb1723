"""The peer's side of decision_systems/players.py: run by the peer's own Python, with a file of games and a form.

Prints one JSON line: log-losses of the predictions before each game, after the first 1,000, one for each list of games.
"""

import importlib.metadata
import json
import math
import sys
from pathlib import Path

from openskill.models import PlackettLuce, ThurstoneMostellerFull


def log_loss(model, games):  # noqa: ANN001, ANN201 - the peer's own environment
    """Mean loss of one list of games."""
    ratings, loss = [model.rating() for _ in range(90)], []
    for number, (one, other, won) in enumerate(games):
        teams = [[ratings[player] for player in team] for team in (one, other)]
        if number >= 1000:
            p = model.predict_win(teams)[0]
            loss.append(-math.log(p if won else 1 - p))
        rated = model.rate(teams, ranks=[0, 1] if won else [1, 0])
        for player, rating in zip(one + other, rated[0] + rated[1], strict=True):
            ratings[player] = rating
    return sum(loss) / len(loss)


def main() -> None:
    """Rate every list of games."""
    model = (PlackettLuce if sys.argv[2] == "logistic" else ThurstoneMostellerFull)()
    losses = [log_loss(model, games) for games in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    version = f"openskill {importlib.metadata.version('openskill')}"
    print(json.dumps({"version": version, "losses": losses}))


if __name__ == "__main__":
    main()
