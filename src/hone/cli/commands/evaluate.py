"""`hone eval` and `hone sample`: a checkpoint judged, and a checkpoint heard.

Belongs here: finding the checkpoint that is meant, and laying out what `hone.evaluate.checkpoint` found. Does not:
how a policy is judged.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hone.cli.commands.perturb import show_robustness, wanted_changes
from hone.cli.commands.show import find_run
from hone.cli.options import Call, number
from hone.cli.terminal.progress import figure
from hone.cli.terminal.screen import Screen, standard_screen
from hone.cli.terminal.streaming import AnswerStream
from hone.core.errors import ConfigError, DataError
from hone.core.generation import GenerationStats
from hone.recipes.registry import load_recipe, recipe_names
from hone.report.run_page import write_report
from hone.store.robustness import ROBUSTNESS, write_robustness
from hone.train.config import RunConfig
from hone.train.job import Examination

if TYPE_CHECKING:
    from hone.evaluate.checkpoint import Examined


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What both commands need."""

    policy: Path
    """A model folder: config, weights and tokenizer."""
    run: Path | None
    """The run that it came from, whose config says what it was trained on; None for a folder of its own."""
    seed: int
    device: str


def run(call: Call) -> int:
    screen = standard_screen()
    seed = int(number(call.text("seed"), "--seed", least=0))
    if call.command == "eval":
        return _eval(call, screen, seed)
    return _sample(call, screen, seed)


def _eval(call: Call, screen: Screen, seed: int) -> int:
    from hone.evaluate import checkpoint  # noqa: PLC0415 - torch takes seconds, and `hone --help` should not

    problems = int(number(call.text("problems"), "--problems", least=1))
    if call.texts("perturb"):
        return judge_perturbed(call, screen, problems=problems, seed=seed)
    asked = _asked(call, seed)
    if call.text("server"):
        found = checkpoint.examine_server(
            asked.policy,
            run=asked.run,
            url=call.text("server"),
            model=call.text("model"),
            problems=problems,
            seed=seed,
        )
    else:
        found = examined(asked, problems=problems)
    show_scores(screen, found.scores)
    for note in found.notes:
        screen.line(f"note: {note}")
    if found.generated is not None:
        screen.line()
        if found.generated.note:
            screen.line(found.generated.note)
        screen.rows(generation_rows(found.generated.runner, found.generated.stats))
    return 0


def examined(asked: Asked, *, problems: int) -> "Examined":
    """The policy judged as its recipe says, or else by its mode. Raises as `checkpoint.examine`."""
    from hone.evaluate import checkpoint  # noqa: PLC0415 - as above

    if asked.run is not None and checkpoint.is_control(asked.policy):
        config = checkpoint.tree_of(asked.run)
        name = config.get("recipe")
        entry = load_recipe(name) if isinstance(name, str) and name in recipe_names() else None
        if entry is not None and entry.examine is not None:
            wanted = Examination(policy=asked.policy, episodes=problems, seed=asked.seed)
            return checkpoint.Examined(scores=entry.examine(read_again(entry.config, config, asked.run), wanted))
    return checkpoint.examine(asked.policy, run=asked.run, problems=problems, seed=asked.seed, device=asked.device)


def read_again(kind: type[RunConfig], config: Mapping[str, object], run: Path) -> RunConfig:
    """The config of a run that is there. Raises DataError where this version of hone cannot read it."""
    try:
        return kind.model_validate(config)
    except ValidationError as error:
        raise DataError(f"{run}: the config of the run cannot be read: {error}") from None


def judge_perturbed(call: Call, screen: Screen, *, problems: int, seed: int) -> int:
    """The policy as it was and in worse worlds, as a table; kept with its run, and in its report."""
    from hone.evaluate import checkpoint  # noqa: PLC0415 - as above
    from hone.evaluate.control.robustness import robustness  # noqa: PLC0415 - as above

    if call.text("server"):
        raise ConfigError("--perturb is for control policies and --server for questions: leave one of them out")
    asked = _asked(call, seed)
    changes = wanted_changes(call.texts("perturb"))
    if asked.run is None or not (asked.policy / "policy.json").is_file():
        raise ConfigError(f"{asked.policy}: --perturb is for a control policy that is in its run, and this is none")
    config = checkpoint.tree_of(asked.run)
    rows = robustness(asked.policy, changes, config=config, episodes=problems, seed=seed, tell=screen.line)
    show_robustness(screen, rows)
    write_robustness(asked.run, rows)
    screen.line(f"kept in {asked.run / ROBUSTNESS}, drawn in {write_report(asked.run)}")
    return 0


def _sample(call: Call, screen: Screen, seed: int) -> int:
    from hone.evaluate import checkpoint  # noqa: PLC0415 - as above

    count = int(number(call.text("count"), "--count", least=1))
    temperature = number(call.text("temperature"), "--temperature", least=0, whole=False)
    asked = _asked(call, seed)
    wanted = checkpoint.Wanted(
        run=asked.run,
        prompt=call.text("prompt") or None,
        count=count,
        temperature=temperature,
        seed=seed,
        device=asked.device,
    )
    if not sys.stdout.isatty():
        show_answers(screen, checkpoint.answers(asked.policy, wanted))
        return 0
    stream = AnswerStream(console=screen.console)
    try:
        answers = checkpoint.answers(asked.policy, wanted, stream)
    finally:
        stream.close()
    scored = [(str(place), score) for place, (_, _, score) in enumerate(answers, start=1)]
    if any(score is not None for _, score in scored):
        screen.table(("answer", "score"), [(place, _score(score)) for place, score in scored])
    return 0


def _asked(call: Call, seed: int) -> Asked:
    policy, owner = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    return Asked(policy=policy, run=owner, seed=seed, device=call.text("device"))


def find_policy(text: str, runs: Path) -> tuple[Path, Path | None]:
    """The model folder that is meant, and its run: a model folder, a checkpoint's folder, or a run (its newest one).

    Raises DataError with the nearest name.
    """
    path = Path(text)
    for folder in (path, path / "policy"):
        a_policy = (folder / "config.json").is_file() or (folder / "policy.json").is_file()
        if a_policy and not (folder / "manifest.json").is_file():
            above = folder.absolute().parents  # runs/NAME/checkpoints/step_00000010/policy; or anywhere, once shipped
            owner = above[2] if len(above) > 2 else None
            return folder, owner if owner is not None and (owner / "manifest.json").is_file() else None
    found = find_run(text, runs)
    return found.checkpoints().newest_whole().policy_folder, found.path


def show_scores(screen: Screen, scores: Mapping[str, float]) -> None:
    screen.rows([(name, figure(value)) for name, value in scores.items()])


def generation_rows(runner: str, stats: GenerationStats) -> list[tuple[str, str, str]]:
    """How answers were written: figure, value, what it means."""
    spent = stats.seconds_s or 1.0
    decode_s, rest_s = stats.runner_s - stats.prefill_s, stats.seconds_s - stats.runner_s
    shares = f"prefill {stats.prefill_s / spent:.0%}, decode {decode_s / spent:.0%}, bookkeeping {rest_s / spent:.0%}"
    before = stats.cached_tokens + stats.prefill_tokens
    return [
        ("runner", runner, ""),
        ("tokens/s", figure(stats.tokens_per_s), f"{stats.tokens:,} drawn in {stats.seconds_s:.2f} s"),
        ("time", shares, "of the passes over the model, by tokens; and what is none"),
        ("slots", f"{stats.occupancy:.0%} in use", f"of {stats.slots}, over {stats.steps:,} passes"),
        ("tail", f"{stats.tail_idle:.0%} idle", "of slot time, waiting for the longest answers"),
        ("KV pages", f"{stats.page_occupancy:.0%} in use", f"of {stats.pages:,}"),
        ("prefix cache", f"{stats.prefix_hits:.0%} hits", f"of {before:,} tokens before answers"),
    ]


def show_answers(screen: Screen, answers: Sequence[tuple[str, str, float | None]]) -> None:
    rows = [(prompt.strip(), answer.strip(), _score(score)) for prompt, answer, score in answers]
    screen.table(("prompt", "answer", "score"), rows)


def _score(score: float | None) -> str:
    return "-" if score is None else figure(score)
