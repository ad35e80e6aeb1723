"""`hone eval` and `hone sample`: a checkpoint judged, and a checkpoint heard.

Belongs here: finding the checkpoint that is meant, and laying out what `hone.evaluate.checkpoint` found. Does not:
how a policy is judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.cli.commands import Call, number
from hone.cli.looking import find_run
from hone.cli.progress import figure
from hone.cli.screen import Screen, standard_screen


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
    from hone.evaluate import checkpoint  # noqa: PLC0415 - torch takes seconds, and `hone --help` should not

    screen = standard_screen()
    seed = int(number(call.text("seed"), "--seed", least=0))
    if call.command == "eval":
        problems = int(number(call.text("problems"), "--problems", least=1))
        asked = _asked(call, seed)
        scores = checkpoint.evaluate(asked.policy, run=asked.run, problems=problems, seed=seed, device=asked.device)
        show_scores(screen, scores)
        return 0
    count = int(number(call.text("count"), "--count", least=1))
    temperature = number(call.text("temperature"), "--temperature", least=0, whole=False)
    asked = _asked(call, seed)
    answers = checkpoint.sample(
        asked.policy,
        run=asked.run,
        prompt=call.text("prompt") or None,
        count=count,
        temperature=temperature,
        seed=seed,
        device=asked.device,
    )
    show_answers(screen, answers)
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


def show_answers(screen: Screen, answers: Sequence[tuple[str, str, float | None]]) -> None:
    rows = [
        (prompt.strip(), answer.strip(), "-" if score is None else figure(score)) for prompt, answer, score in answers
    ]
    screen.table(("prompt", "answer", "score"), rows)
