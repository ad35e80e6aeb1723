"""`hone ratings FILE`: the players of a file of ratings, and their ratings fitted anew to all their games."""

import json
from contextlib import closing
from pathlib import Path
from typing import Final

from hone.cli.commands.log import moment_of
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError
from hone.decide.match.rating_store import RatingStore
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
        fitted = store.fitted(since_s=moment_of(since, "--since") if since else 0.0) if fits else dict[str, Rating]()
        if writes:
            store.replace(fitted)
        system = repr(store.system)
    players.sort(key=lambda player: (-fitted.get(player.name, player.rating).mean, player.name))
    if call.switch("json"):
        rows = [
            {"player": one.name, "games": one.games, "rating": one.rating._asdict(),
             **({"fitted": fitted[one.name]._asdict()} if one.name in fitted else {})}
            for one in players
        ]  # fmt: skip
        print(json.dumps({"system": system, "players": rows, "written": writes}, indent=1))
        return 0
    screen = standard_screen()
    screen.title(f"{call.text('file')}: {len(players)} players, rated by {system}")
    cells = [
        [one.name, f"{one.games:,}", f"{one.rating.mean:.2f} ± {one.rating.deviation:.2f}",
         *([f"{fit.mean:.2f} ± {fit.deviation:.2f}" if (fit := fitted.get(one.name)) else "-"] if fits else [])]
        for one in players[:_ROWS]
    ]  # fmt: skip
    screen.table(["player", "games", "rating", *(["fitted"] if fits else [])], cells)
    if len(players) > _ROWS:
        screen.line(f"and {len(players) - _ROWS} more players; --json has all")
    if fits:
        words = "the file has them now" if writes else "the file stays as it was; --write puts them there"
        screen.line(f"fitted {len(fitted)} ratings to all games at once; {words}")
    return 0
