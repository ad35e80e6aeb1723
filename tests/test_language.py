"""The words of the glossary: no module brings back a name that the field calls otherwise.

A practitioner searches for the standard term. The left column holds names that hone once used; the right column says
what papers and other libraries call the thing (docs/reference/glossary.md).
"""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from syntax_nodes import statements

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hone"

CLASSES = {
    "Outlook": "TokenLogprobs", "Likeliest": "TopKTokens", "Kept": "SamplingMask", "Hearer": "StreamListener",
    "Aloud": "StreamingEngine", "Growing": "IncrementalDetokenizer", "Ask": "GenerateRequest",
    "Told": "GenerateResponse", "Wire": "ServerProtocol", "Writing": "PartialCompletion", "UnderWay": "InFlight",
    "Given": "ScoreRequest", "Fill": "PrefillGroup", "Strayed": "WithState", "Remembering": "WithState",
    "Ahead": "AsyncSource", "Refill": "DynamicSampling", "Whole": "WholeEpisodes", "Recollection": "PrioritizedBuffer",
    "Lived": "EpisodeStats", "Explorer": "ScheduledExplorer", "Judge": "Scorer", "PoolJudge": "RewardScorer",
    "Verdict": "EvaluationResult", "Examination": "EvaluationRequest", "TextExam": "TextEvaluation",
    "Judgement": "ScoreBatch", "Method": "TextMethod", "Entry": "RecipeSpec", "Order": "RunRequest",
    "Trial": "GradientProbe", "FixedPrice": "FixedKlCoef", "AdaptivePrice": "AdaptiveKlCoef",
}  # fmt: skip
"""Class names, and the field's."""

FUNCTIONS = {
    "foresee": "predict_values", "as_paid": "reward_as_advantage", "hear": "on_micro_batch",
    "climb": "ddpg_actor_backward", "climb_softly": "sac_actor_backward", "double_of": "shrunken_copy",
    "best_by_slow": "argmax_target", "priced": "with_kl_reward", "slow_.*": "target_...",
}  # fmt: skip
"""Names of functions and methods (regular expressions), and the field's."""

PHRASES = {
    "whoever acted": "the behaviour policy", "lived through": "trajectories, experience",
    "slow copy": "target network", "slow copies": "target networks", "turn of the loop": "iteration",
    "turns of the loop": "iterations", "steps of the world": "environment steps",
    "step of the world": "environment step", "praised or blamed": "advantages and value targets",
    "not one that comes along": "not built in", "going on from": "resuming from", "it went away": "unreachable",
}  # fmt: skip
"""Phrases of docstrings, comments and messages, and the field's terms."""

WORD = re.compile(r"[A-Z][a-z0-9]*|[a-z]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or function of the source: facts, not syntax trees, which would stay in memory."""

    file: str
    line: int
    name: str
    is_class: bool
    at_top: bool
    docstring: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@cache
def definitions() -> tuple[Definition, ...]:
    """Every class and function of the source."""
    found: list[Definition] = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree, file = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(SOURCE).as_posix()
        top = set(map(id, tree.body))
        found += (
            Definition(
                file, node.lineno, node.name, isinstance(node, ast.ClassDef), id(node) in top,
                ast.get_docstring(node) or "",
            )
            for node in statements(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        )  # fmt: skip
    return tuple(found)


def test_no_definition_brings_back_a_name_that_the_field_calls_otherwise() -> None:
    found = [
        f"{one}: the field calls it {better}"
        for one in definitions()
        for name, better in (CLASSES if one.is_class else FUNCTIONS).items()
        if re.fullmatch(name, one.name)
    ]
    assert found == []


def test_no_sentence_brings_back_a_phrase_that_the_field_words_otherwise() -> None:
    found = [
        f"{path.relative_to(SOURCE).as_posix()}: {phrase!r}: {better}"
        for path in sorted(SOURCE.rglob("*.py"))
        for phrase, better in PHRASES.items()
        if phrase in " ".join(path.read_text(encoding="utf-8").lower().split())
    ]
    assert found == []


def test_docstrings_stand_alone() -> None:
    assert [str(one) for one in definitions() if one.docstring.startswith("Of ")] == []


def test_every_public_function_and_class_has_a_docstring() -> None:
    public = (one for one in definitions() if one.at_top and not one.name.startswith("_"))
    assert [str(one) for one in public if not one.docstring] == []


def test_a_class_name_is_defined_once_and_says_what_it_names() -> None:
    names = Counter(one.name for one in definitions() if one.is_class and not one.file.startswith("recipes/"))
    twice = [name for name, count in names.items() if count > 1]
    one_word = [name for name in names if len(WORD.findall(name.strip("_"))) == 1]
    assert len(twice) <= 0.005 * len(names), twice
    assert len(one_word) <= 0.2 * len(names), one_word
