"""`hone play`: a dialogue of a person with a trained policy, in the terminal."""

from pathlib import Path
from typing import get_args

from hone.cli.commands.evaluate import TerminalPlayer, ending, find_policy
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, did_you_mean


def run(call: CommandCall) -> int:
    """Lead one dialogue; returns the exit code."""
    from hone.text.evaluate.play import PlayRequest, PlaySide, play_dialogue  # noqa: PLC0415 - torch takes seconds

    screen, side = standard_screen(), call.text("side")
    sides: dict[str, PlaySide] = {one: one for one in get_args(PlaySide)}
    if side not in sides:
        raise ConfigError(
            f"--side {side}: a person takes the side of the world or of the user{did_you_mean(side, list(sides))}"
        )
    policy, owner = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    wanted = PlayRequest(
        policy=policy,
        run=owner,
        world=call.text("world"),
        side=sides[side],
        seed=int(parse_number(call.text("seed"), "--seed", least=0)),
        temperature=parse_number(call.text("temperature"), "--temperature", least=0, whole=False),
        device=call.text("device"),
    )
    ends = "an empty line is the world's own answer, " if side == "world" else ""
    screen.line(f"you are the {side}: {ends}Ctrl-D ends the dialogue")
    screen.console.print(ending(play_dialogue(wanted, TerminalPlayer(screen))))
    return 0
