"""`hone eval` and `hone sample`: the scores and the answers of a checkpoint.

Belongs here: finding the checkpoint, and the layout of the results. `hone.evaluate.checkpoint` evaluates.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hone.cli.commands.fetch import PREFIX, fetch_model
from hone.cli.commands.perturb import parse_perturbations, show_robustness
from hone.cli.commands.show import find_run
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.errors import ConfigError, DataError
from hone.core.generation import GenerationStats
from hone.process.hub import hub_folder, is_hub_name
from hone.recipes.registry import is_recipe, load_recipe
from hone.run.job import EvaluationRequest, RunConfig
from hone.run.report.run_page import write_report
from hone.run.saved_config import config_tree
from hone.run.store.checkpoints import verify_policy
from hone.run.store.records import ROBUSTNESS, SEARCH, SearchRecord, frontier, write_robustness
from hone.text.evaluate.evaluation_request import OWN_SEARCH, OWN_TASK, EvaluationTask, SearchOptions

if TYPE_CHECKING:
    from hone.evaluate.checkpoint import PolicyEvaluation
from dataclasses import field

from rich.console import Console
from rich.text import Text

from hone.cli.terminal.screen import printable
from hone.run.store.evaluations import AnswerRow

# ------------------------------------------------------------------------------------------------------------- dialogue


STYLES = {"policy": "bold cyan", "environment": "yellow"}
NAMES = {"policy": "policy", "environment": "world"}
_WIDTH = max(map(len, NAMES.values())) + 2


@dataclass(frozen=True, slots=True)
class TerminalPlayer:
    """Takes part in a dialogue (`hone.text.evaluate.play`) by a person's terminal."""

    screen: TerminalScreen

    def show(self, speaker: str, text: str) -> None:
        """Print a turn."""
        _show_turn(self.screen, NAMES.get(speaker, speaker), text, style=STYLES.get(speaker, "dim"))

    def reply(self, suggestion: str | None) -> str | None:
        """Read a line from the person; None at the end of input."""
        if suggestion is not None:
            _show_turn(self.screen, "", f"(the world itself: {suggestion.strip() or 'it ends'})", style="dim italic")
        self.screen.console.print(Text(f"{'you':<{_WIDTH}}", style="bold"), end="")
        try:
            return input()
        except EOFError:
            self.screen.line()
            return None


def show_dialogues(screen: TerminalScreen, dialogues: Sequence[AnswerRow]) -> None:
    """Print dialogues one below the other, each with a line on its end."""
    for place, one in enumerate(dialogues, start=1):
        screen.title(f"{place}/{len(dialogues)}")
        _show_turn(screen, "prompt", one.prompt, style="dim")
        for speaker, text in one.turns:
            _show_turn(screen, NAMES[speaker], text, style=STYLES[speaker])
        screen.console.print(ending(one), soft_wrap=True)
        screen.line()


def _show_turn(screen: TerminalScreen, name: str, text: str, *, style: str) -> None:
    """Print one turn under its speaker's name; further lines are indented."""
    for place, line in enumerate(printable(text).strip("\n").split("\n")):
        head = f"{name if place == 0 else '':<{_WIDTH}}"
        screen.console.print(Text.assemble((head, "dim"), (line, style)), soft_wrap=True)


def ending(dialogue: AnswerRow) -> Text:
    """The line on a dialogue's end: stop reason, score and fault."""
    score = "no score" if dialogue.score is None else f"score {compact_number(dialogue.score)}"
    turns = sum(speaker == "policy" for speaker, _ in dialogue.turns)
    words = [f"stop: {dialogue.stop}"] if dialogue.stop else []
    words += [score, f"{turns} turn{'s' if turns != 1 else ''}"]
    parts = [f"{'':<{_WIDTH}}", (", ".join(words), "dim")]
    parts += [(f", fault: {printable(dialogue.fault)}", "red")] if dialogue.fault else []
    return Text.assemble(*parts)


# ------------------------------------------------------------------------------------------------------------ streaming


@dataclass(slots=True, kw_only=True)
class AnswerStream:
    """Prints the first unfinished answer as it grows, and holds back the text of later ones."""

    console: Console
    _prompts: Sequence[str] = ()
    _pending_text: list[str] = field(default_factory=list[str])
    _ended: list[bool] = field(default_factory=list[bool])
    _current: int = -1

    def on_prompts(self, prompts: Sequence[str]) -> None:
        """Start with the first of `prompts`."""
        self._prompts = prompts
        self._pending_text, self._ended = [""] * len(prompts), [False] * len(prompts)
        self._begin(0)

    def on_text(self, answer: int, text: str) -> None:
        """Add text to an answer."""
        if answer == self._current:
            self._write(text)
        else:
            self._pending_text[answer] += text

    def on_end(self, answer: int, text: str) -> None:
        """End an answer; if it is the one on screen, print the next ones."""
        self.on_text(answer, text)
        self._ended[answer] = True
        while 0 <= self._current < len(self._prompts) and self._ended[self._current]:
            self._write("\n\n")
            self._begin(self._current + 1)

    def close(self) -> None:
        """End the current line."""
        if 0 <= self._current < len(self._prompts):
            self._write("\n")
        self._current = -1

    def _begin(self, answer: int) -> None:
        self._current = answer
        if answer < len(self._prompts):
            self._write(f"{answer + 1}/{len(self._prompts)}  {self._prompts[answer].strip()}\n", style="bold")
            self._write(self._pending_text[answer])

    def _write(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style=style), end="", soft_wrap=True)


# ------------------------------------------------------------------------------------------------------------- evaluate


_POLICY_FILES = ("config.json", "adapter_config.json", "policy.json")
"""Files that make a folder that of a model, of an adapter, or of a control policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTarget:
    """Checkpoint and settings of an evaluation or of samples."""

    policy: Path
    """A model folder: config, weights and tokenizer."""
    run: Path | None
    """Run of the checkpoint, with the config of its task; None for a model folder outside a run."""
    seed: int
    device: str
    task: EvaluationTask = OWN_TASK
    """Problems and rewards in place of the run's own."""
    search: SearchOptions = OWN_SEARCH
    """Searches beside the run's own."""


def run(call: CommandCall) -> int:
    """Evaluate or sample a checkpoint; returns the exit code."""
    screen = standard_screen()
    seed = int(parse_number(call.text("seed"), "--seed", least=0))
    if call.command == "eval":
        return _eval(call, screen, seed)
    return _sample(call, screen, seed)


def _eval(call: CommandCall, screen: TerminalScreen, seed: int) -> int:
    from hone.evaluate import checkpoint  # noqa: PLC0415 - torch takes seconds, and `hone --help` should not

    problems = int(parse_number(call.text("problems"), "--problems", least=1))
    if call.texts("perturb"):
        return _evaluate_perturbed(call, screen, problems=problems, seed=seed)
    target = replace(
        _policy_target(call, seed),
        search=SearchOptions(
            plans=tuple(call.texts("search")),
            scorer=call.text("scorer"),
            step=call.text("step").encode().decode("unicode_escape"),
            answer=call.text("answer"),
        ),
    )
    if call.text("server"):
        if target.search != OWN_SEARCH:
            raise ConfigError("--search draws many answers from a model folder, and --server asks a server once")
        evaluation = checkpoint.evaluate_server(
            target.policy,
            run=target.run,
            url=call.text("server"),
            model=call.text("model"),
            problems=problems,
            seed=seed,
            task=target.task,
        )
    else:
        evaluation = evaluate_policy(target, problems=problems)
    _show_scores(screen, evaluation.scores)
    for note in evaluation.notes:
        screen.line(f"note: {note}")
    if evaluation.search is not None:
        _show_search(screen, evaluation.search)
        if target.run is not None:
            SEARCH.write(target.run, evaluation.search)
            screen.line(f"saved in {target.run / SEARCH.name}, report in {write_report(target.run)}")
    if evaluation.generation is not None:
        screen.line()
        if evaluation.generation.note:
            screen.line(evaluation.generation.note)
        screen.rows(generation_rows(evaluation.generation.runner, evaluation.generation.stats))
    return 0


def evaluate_policy(target: PolicyTarget, *, problems: int) -> "PolicyEvaluation":
    """Evaluate as the recipe does, or else the policy's mode. Raises as `checkpoint.evaluate_checkpoint`."""
    from hone.evaluate import checkpoint  # noqa: PLC0415 - as above

    if target.run is not None:
        config = config_tree(target.run)
        name = config.get("recipe")
        entry = load_recipe(name) if isinstance(name, str) and is_recipe(name) else None
        if entry is not None and entry.evaluate is not None:
            notes: list[str] = []
            wanted = EvaluationRequest(
                policy=target.policy,
                episodes=problems,
                seed=target.seed,
                device=target.device,
                task=target.task.task,
                warn=notes.append,
            )
            scores = entry.evaluate(_parse_run_config(entry.config, config, target.run), wanted)
            return checkpoint.PolicyEvaluation(scores=scores, notes=notes)
    return checkpoint.evaluate_checkpoint(
        target.policy,
        run=target.run,
        problems=problems,
        seed=target.seed,
        device=target.device,
        task=target.task,
        search=target.search,
    )


def _parse_run_config(kind: type[RunConfig], config: Mapping[str, object], run: Path) -> RunConfig:
    """Parse the config of a saved run. Raises DataError if this version of hone cannot read it."""
    try:
        return kind.model_validate(config)
    except ValidationError as error:
        raise DataError(f"{run}: the config of the run cannot be read: {error}") from None


def _evaluate_perturbed(call: CommandCall, screen: TerminalScreen, *, problems: int, seed: int) -> int:
    """Evaluate the policy without and with perturbations; printed, saved with its run and added to its report."""
    from hone.control.evaluate.robustness import evaluate_robustness  # noqa: PLC0415 - as above

    if call.text("server"):
        raise ConfigError("--perturb is for control policies and --server for language models: leave one of them out")
    target = _policy_target(call, seed)
    changes = parse_perturbations(call.texts("perturb"))
    if target.run is None or not (target.policy / "policy.json").is_file():
        raise ConfigError(f"{target.policy}: --perturb needs a control policy inside its run folder")
    config = config_tree(target.run)
    rows = evaluate_robustness(target.policy, changes, config=config, episodes=problems, seed=seed, warn=screen.line)
    show_robustness(screen, rows)
    write_robustness(target.run, rows)
    screen.line(f"saved in {target.run / ROBUSTNESS}, report in {write_report(target.run)}")
    return 0


def _sample(call: CommandCall, screen: TerminalScreen, seed: int) -> int:
    from hone.evaluate import checkpoint  # noqa: PLC0415 - as above

    count = int(parse_number(call.text("count"), "--count", least=1))
    temperature = parse_number(call.text("temperature"), "--temperature", least=0, whole=False)
    asked = _policy_target(call, seed)
    wanted = checkpoint.SampleRequest(
        run=asked.run,
        prompt=call.text("prompt") or None,
        raw=call.switch("raw"),
        count=count,
        temperature=temperature,
        seed=seed,
        device=asked.device,
        task=asked.task,
    )
    if call.switch("dialogue"):
        show_dialogues(screen, checkpoint.sample_dialogues(asked.policy, wanted))
        return 0
    if not sys.stdout.isatty():
        answers = checkpoint.sample_answers(asked.policy, wanted)
        rows = [(prompt.strip(), answer.strip(), _score(score)) for prompt, answer, score in answers]
        screen.table(("prompt", "answer", "score"), rows)
        return 0
    stream = AnswerStream(console=screen.console)
    try:
        answers = checkpoint.sample_answers(asked.policy, wanted, stream)
    finally:
        stream.close()
    scored = [(str(place), score) for place, (_, _, score) in enumerate(answers, start=1)]
    if any(score is not None for _, score in scored):
        screen.table(("answer", "score"), [(place, _score(score)) for place, score in scored])
    return 0


def _policy_target(call: CommandCall, seed: int) -> PolicyTarget:
    policy, owner = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    limit = call.text("max_tokens")
    task = EvaluationTask(
        task=call.text("task"),
        rewards=tuple(call.texts("rewards")),
        max_tokens=int(parse_number(limit, "--max-tokens", least=1)) if limit else None,
    )
    return PolicyTarget(policy=policy, run=owner, seed=seed, device=call.text("device"), task=task)


def find_policy(text: str, runs: Path) -> tuple[Path, Path | None]:
    """Find the model folder and its run from a model folder (or a GGUF file), a checkpoint folder, a run (its newest
    checkpoint), a model of the Hub, or one of `hone fetch`, `hone:NAME`.

    Files of a checkpoint are verified. Raises DataError for damaged ones, and for an unknown run with the nearest name.
    """
    path = fetch_model(text) if text.startswith(PREFIX) else Path(text)
    if path.suffix == ".gguf" and path.is_file():
        return path, None
    verify_policy(path)
    for folder in (path, path / "policy"):
        a_policy = any((folder / name).is_file() for name in _POLICY_FILES)
        if a_policy and not (folder / "manifest.json").is_file():
            above = (
                folder.absolute().parents
            )  # runs/NAME/checkpoints/step_00000010/policy, or anywhere else after export
            owner = above[2] if len(above) > 2 else None
            return folder, owner if owner is not None and (owner / "manifest.json").is_file() else None
    if is_hub_name(text) and not (runs / text.partition("/")[0]).exists():
        return hub_folder(text), None
    run = find_run(text, runs)
    return run.checkpoints().newest_policy().policy_folder, run.path


def _show_scores(screen: TerminalScreen, scores: Mapping[str, float]) -> None:
    """Print the metrics of an evaluation."""
    screen.rows([(name, compact_number(value)) for name, value in scores.items()])


def _show_search(screen: TerminalScreen, found: SearchRecord) -> None:
    """Print accuracy by tokens: every plan of a search, with a star at those that no cheaper plan beats."""
    screen.line()
    scorer = f", scorer {found.scorer}" if found.scorer else ""
    known = f" (AUC {found.auc:.3f})" if math.isfinite(found.auc) else ""
    screen.title(f"search on {found.problems:,} problems{scorer}{known}")
    best = {one.plan for one in frontier(found.plans)}
    rows = [
        (
            one.plan + (" *" if one.plan in best else ""),
            f"{one.mean:.3f}",
            f"{one.low:.3f} to {one.high:.3f}",
            compact_number(one.drawn_tokens),
            compact_number(one.scored_tokens),
            compact_number(1000 * one.seconds),
        )
        for one in found.plans
    ]
    screen.table(("plan", "accuracy", "95% interval", "tokens drawn", "tokens scored", "ms"), rows)
    screen.line("tokens and milliseconds are for each problem; * no plan with fewer tokens is as accurate;")
    screen.line("pass:N knows the right answers: the most that selecting among N could reach")


def generation_rows(runner: str, stats: GenerationStats) -> list[tuple[str, str, str]]:
    """Rows about the generation of answers: name, value, explanation."""
    spent = stats.total_s or 1.0
    decode_s, rest_s = stats.runner_s - stats.prefill_s, stats.total_s - stats.runner_s
    shares = f"prefill {stats.prefill_s / spent:.0%}, decode {decode_s / spent:.0%}, bookkeeping {rest_s / spent:.0%}"
    before = stats.cached_tokens + stats.prefill_tokens
    return [
        ("runner", runner, ""),
        ("tokens/s", compact_number(stats.tokens_per_s), f"{stats.tokens:,} sampled in {stats.total_s:.2f} s"),
        ("time", shares, "of model passes, by tokens; bookkeeping is outside them"),
        ("slots", f"{stats.occupancy:.0%} in use", f"of {stats.slots}, over {stats.steps:,} passes"),
        ("tail", f"{stats.tail_idle:.0%} idle", "of slot time, waiting for the longest answers"),
        ("KV pages", f"{stats.page_occupancy:.0%} in use", f"of {stats.pages:,}"),
        ("prefix cache", f"{stats.prefix_hit_rate:.0%} hits", f"of {before:,} tokens before answers"),
    ]


def _score(score: float | None) -> str:
    return "-" if score is None else compact_number(score)
