"""`hone distill-tree`: a decision tree that acts like a control policy, with its measures and its page."""

from pathlib import Path

from hone.cli.commands.evaluate import find_policy
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError
from hone.run.saved_config import config_tree, is_control


def run(call: CommandCall) -> int:
    """Distill a tree into a folder; returns the exit code."""
    policy, owner = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    if not is_control(policy):
        raise ConfigError(f"{policy} is a language model; a tree is distilled from a control policy")
    if owner is None:
        raise ConfigError(f"{policy} is not in a run, so its environment is unknown; name a run or its checkpoint")
    from hone.control.distill import DistillConfig, distill_tree  # noqa: PLC0415 - torch takes seconds
    from hone.control.evaluate.returns import run_environment  # noqa: PLC0415 - as above
    from hone.control.networks.decision_tree import save_tree  # noqa: PLC0415 - as above
    from hone.control.predict import open_saved_policy  # noqa: PLC0415 - as above
    from hone.control.tree_page import write_tree_page  # noqa: PLC0415 - as above

    target, screen = Path(call.text("folder") or owner / "tree"), standard_screen()
    if target.exists():
        raise ConfigError(f"{target} is there already; remove it, or name another folder")
    config = DistillConfig(
        leaves=int(parse_number(call.text("leaves"), "--leaves", least=2)),
        rounds=int(parse_number(call.text("rounds"), "--rounds", least=1)),
        episodes=int(parse_number(call.text("episodes"), "--episodes", least=1)),
        judged_episodes=int(parse_number(call.text("problems"), "--problems", least=2)),
        most_regret=parse_number(call.text("hand_over"), "--hand-over", least=0, whole=False),
        seed=int(parse_number(call.text("seed"), "--seed", least=0)),
        names=tuple(name.strip() for name in call.text("names").split(",")) if call.text("names") else (),
    )
    made = distill_tree(open_saved_policy(policy), run_environment(policy, config_tree(owner)), config, screen.line)
    save_tree(made.tree, target)
    write_tree_page(target / "tree.html", made, owner.name)
    for line in made.lines():
        screen.line(line)
    screen.line(f"saved in {target}, page in {target / 'tree.html'}")
    return 0
