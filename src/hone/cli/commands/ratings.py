"""`hone ratings FILE`: the players of a file of ratings, and their ratings fitted anew to all their games."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from hone.cli.commands.log import moment_of
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.errors import ConfigError
from hone.decide.match.rating_store import RatedPlayer, RatingStore, suspected_smurfs
from hone.estimators.ratings import Rating

_ROWS: Final = 20
"""Players that are shown."""


def run(call: CommandCall) -> int:
    """Show the ratings, fit them anew, and write the fitted ones; returns the exit code."""
    fits, writes, since = call.switch("fit"), call.switch("write"), call.text("since")
    if not fits and (writes or since):
        raise ConfigError(f"--{'write' if writes else 'since'} goes with --fit: nothing else is written or left out")
    with closing(RatingStore.reopen(Path(call.text("file")))) as store:
        players = store.players()
        fitted = store.fitted(since_s=moment_of(since, "--since") if since else 0.0) if fits else None
        if writes and fitted is not None:
            store.replace(fitted)
        system = repr(store.system)
    smurfs = suspected_smurfs(players)
    if call.switch("json"):
        rows = [
            {"player": one.name, "games": one.games, "rating": one.rating._asdict(),
             **({"fitted": fitted[one.name]._asdict()} if fitted and one.name in fitted else {})}
            for one in players
        ]  # fmt: skip
        print(json.dumps({"system": system, "players": rows, "suspected": smurfs, "written": writes}, indent=1))
        return 0
    screen = standard_screen()
    screen.title(f"{call.text('file')}: {len(players)} players, rated by {system}")
    _show_ladder(screen, players, fitted)
    if smurfs:
        screen.line(f"suspected of playing under a new name: {', '.join(smurfs[:_ROWS])}")
    if fitted is not None:
        words = "the file has them now" if writes else "the file stays as it was; --write puts them there"
        screen.line(f"fitted {len(fitted)} ratings to all games at once; {words}")
    return 0


def _show_ladder(
    screen: TerminalScreen, players: Sequence[RatedPlayer], fitted: Mapping[str, Rating] | None
) -> None:  # fmt: skip
    """The strongest players first, by their fitted ratings where there are some."""
    best = {one.name: (fitted or {}).get(one.name, one.rating) for one in players}
    ladder = sorted(players, key=lambda one: (-best[one.name].mean, one.name))
    cells = [[one.name, f"{one.games:,}", f"{one.rating.mean:.2f} ± {one.rating.deviation:.2f}"] for one in ladder]
    if fitted is not None:
        for row, one in zip(cells, ladder, strict=True):
            fit = fitted.get(one.name)
            row.append("-" if fit is None else f"{fit.mean:.2f} ± {fit.deviation:.2f}")
    columns = ["player", "games", "rating", *([] if fitted is None else ["fitted"])]
    screen.table(columns, cells[:_ROWS])
    if len(ladder) > _ROWS:
        screen.line(f"and {len(ladder) - _ROWS} more players; --json has all")
