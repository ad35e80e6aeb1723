"""Reward functions: loading one by its reference, its form by its signature, its return value as numbers.

Runs in a worker process (the trainer only calls `check_reference`). Imports nothing heavy: workers start often.

Three forms are known, by the names of the parameters:
    f(prompts=, completions=, **columns) -> list of scores             a batch, by name, as TRL calls it; may be async
    f(prompt=, completion=, **columns) -> score                        one sample, by name; may be async
    f(data_source, solution_str, ground_truth, extra_info=None)        one sample, as verl calls it; score or {"score"}
A score is a float, None, or a list of floats, one for each assistant turn. A function gets the columns that it names,
or all with `**kwargs`; `messages` and `tokens` are the whole conversation's, for functions that name them.
"""

import decimal
import inspect
import math
import numbers
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args, get_origin

from hone.core.errors import ConfigError, UserCodeError, did_you_mean
from hone.process import user_files

_KIND = "reward function"
FunctionForm: TypeAlias = Literal["batch", "sample", "verl"]
OptionalScore: TypeAlias = float | list[float] | None

BUILTIN_FUNCTIONS = {
    "exact_match": "hone.rewards.functions:exact_match",
    "math_answer": "hone.rewards.math_answer:math_answer",
    "reasoning_gym": "hone.rewards.task_scorer:reasoning_gym",
    "code_tests": "hone.rewards.code_tests:code_tests",
    "visible_code_tests": "hone.rewards.code_tests:visible_code_tests",
}
_BATCH = ("prompts", "completions")
_SAMPLE = ("prompt", "completion")
_VERL = ("solution_str", "ground_truth")
_VERL_DEFAULTS = {"data_source": "", "extra_info": None}


_HOOKS = ("log_extra", "log_metric", "trainer_state")
"""TRL's hooks; `trainer_state` is None."""


@dataclass(frozen=True, slots=True)
class _RewardLog:
    """What functions record beside their scores, until it is taken: `log_metric(name, value)` of a call, and
    `log_extra(name, values)` of each of its completions, as TRL passes them."""

    metrics: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    extra: dict[str, list[object]] = field(default_factory=dict[str, list[object]])

    def log_metric(self, name: str, value: Any) -> None:  # noqa: ANN401 - a number, array or tensor
        """Record a figure of the call."""
        self.metrics.setdefault(str(name), []).append(float(value))

    def log_extra(self, name: str, values: Sequence[object]) -> None:
        """Record a value of each completion."""
        plain = _plain(values)
        self.extra[str(name)] = list(cast("Sequence[object]", plain))

    def take(self, count: int) -> dict[str, list[float]]:
        """Sum over `count` completions and number of completions, by name: those of a metric's mean, and of the finite
        numbers of an extra. Empties the log."""
        figures = {name: [count * sum(own) / len(own), float(count)] for name, own in self.metrics.items()}
        for name, values in self.extra.items():
            known = [float(value) for value in map(_plain, values) if isinstance(value, numbers.Real)]
            known = [value for value in known if math.isfinite(value)]
            if known:
                figures[name] = [math.fsum(known), float(len(known))]
        self.metrics.clear()
        self.extra.clear()
        return figures


class RewardContractError(Exception):
    """The function returned a value that is no score, which the message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFunction:
    """A function ready to be called."""

    name: str
    call: Callable[..., object]
    form: FunctionForm
    columns: frozenset[str]
    """Columns that it names."""
    required_columns: frozenset[str]
    """Named columns without a default."""
    takes_any_column: bool
    """It has `**kwargs`: every column is passed."""
    options: Mapping[str, object]
    """Passed in each call."""
    text_arguments: tuple[str, ...]
    """Subset of `prompts`, `completions`, `prompt`, `completion` that it takes."""
    hooks: Mapping[str, object]
    """Its arguments in place of TRL's hooks."""
    log: _RewardLog
    """What it records beside its scores."""

    def arguments(
        self, prompts: Sequence[object], completions: Sequence[object], columns: Mapping[str, Sequence[object]]
    ) -> dict[str, object]:
        """The arguments of one call, by name. Forms `sample` and `verl` take the first sample."""
        taken = {name: values for name, values in columns.items() if self.takes_any_column or name in self.columns}
        if self.form == "batch":
            passed: dict[str, object] = {**taken}
            texts: dict[str, object] = {"prompts": list(prompts), "completions": list(completions)}
        else:
            passed = {name: values[0] for name, values in taken.items()}
            texts = {"prompt": prompts[0], "completion": completions[0]}
        if self.form == "verl":
            defaults = {name: value for name, value in _VERL_DEFAULTS.items() if name in self.columns}
            passed = {**defaults, **passed, "solution_str": completion_text(completions[0])}
        return {**passed, **{name: texts[name] for name in self.text_arguments}, **self.hooks, **self.options}

    def scores(self, result: object, count: int) -> list[tuple[OptionalScore, str]]:
        """The return value of a call as `count` scores with reasons. Raises RewardContractError. Other numbers of a
        dict with `score`, as verl's functions return them, are recorded."""
        if self.form != "batch":
            self._record_facts([_plain(result)])
            return [_sample_score(result)]
        plain = _plain(result)
        if not isinstance(plain, list | tuple):
            raise RewardContractError(
                f"returned a {type(result).__name__} for {count} completions; expected a list of numbers"
            )
        if len(plain) != count:
            raise RewardContractError(f"returned {len(plain)} values for {count} completions")
        self._record_facts(plain)
        return [_sample_score(value) for value in plain]

    def _record_facts(self, results: Sequence[object]) -> None:
        facts = [cast("dict[object, object]", one) for one in results if isinstance(one, dict)]
        for name in dict.fromkeys(str(key) for one in facts for key in one if key not in ("score", "reason")):
            self.log.log_extra(name, [one.get(name) for one in facts])

    @staticmethod
    def load(use: str, options: Mapping[str, object]) -> "LoadedFunction":
        """Import a function and find its form. Raises UserCodeError: the import raises (with the user's part of the
        traceback), no such name, an unknown form, options that it does not take, or with a value that is none of a
        Literal's."""
        reference = BUILTIN_FUNCTIONS.get(use, use)
        function, name = user_files.load_reference(reference, kind=_KIND), reference.rpartition(":")[2]
        if not callable(function):
            raise UserCodeError(f"reward function {use!r}: {name} is a {type(function).__name__}, not a function")
        return _inspect_function(use, name, function, options)


def check_reference(use: str) -> None:
    """Raises ConfigError when `use` is neither a built-in function nor a reference to one."""
    if use in BUILTIN_FUNCTIONS:
        return
    if ":" not in use:
        near = did_you_mean(use, list(BUILTIN_FUNCTIONS))
        raise ConfigError(
            f"reward function {use!r} is not built in{near} "
            "A function of your own is written path/to/file.py:name or package.module:name"
        )
    user_files.check_reference(use, kind=_KIND)


def _inspect_function(
    use: str, name: str, function: Callable[..., object], options: Mapping[str, object]
) -> LoadedFunction:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without one
        raise UserCodeError(f"reward function {use!r} has no signature; wrap it in a Python function") from None
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [key for key in options if key not in named and not takes_all]
    if unknown:
        raise UserCodeError(
            f"reward function {use!r} has no option {unknown[0]!r}{did_you_mean(unknown[0], list(named))}"
        )
    _check_choices(use, named, options)
    form = _form(frozenset(named), takes_all=takes_all)
    if form is None or any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        raise UserCodeError(
            f"reward function {use!r} takes ({', '.join(p.name for p in parameters)}); name its parameters "
            "(prompts, completions, ...) for a batch, (prompt, completion, ...) for one sample, "
            "or (data_source, solution_str, ground_truth, extra_info)"
        )
    spoken = {"batch": _BATCH, "sample": _SAMPLE, "verl": ()}[form]
    takes = frozenset(named) - {*_BATCH, *_SAMPLE, "solution_str", *_HOOKS, *options}
    needs = frozenset(key for key in takes if named[key].default is inspect.Parameter.empty)
    if form == "verl":
        needs -= _VERL_DEFAULTS.keys()
    log = _RewardLog()
    hooks = {"log_extra": log.log_extra, "log_metric": log.log_metric, "trainer_state": None}
    return LoadedFunction(
        name=name,
        call=function,
        form=form,
        columns=takes,
        required_columns=needs,
        takes_any_column=takes_all,
        options=options,
        text_arguments=tuple(key for key in spoken if takes_all or key in named),
        hooks={key: value for key, value in hooks.items() if key in named},
        log=log,
    )


def _check_choices(use: str, named: Mapping[str, inspect.Parameter], options: Mapping[str, object]) -> None:
    """Raises UserCodeError with all options whose parameter is annotated as a Literal that lacks their value."""
    faults: list[str] = []
    for key in options.keys() & named.keys():
        annotation: Any = named[key].annotation
        if get_origin(annotation) is Literal and options[key] not in get_args(annotation):
            choices = ", ".join(map(repr, get_args(annotation)))
            faults.append(f"reward function {use!r}: option {key} is {options[key]!r}, not one of {choices}")
    if faults:
        raise UserCodeError(*sorted(faults))


def _form(named: frozenset[str], *, takes_all: bool) -> FunctionForm | None:
    if named.issuperset(_VERL):
        return "verl"
    if "completions" in named:
        return "batch"
    if "completion" in named:
        return "sample"
    return "batch" if takes_all or "prompts" in named else None


def completion_text(completion: object) -> str:
    """A completion as text: its last message where it is a conversation."""
    if isinstance(completion, list) and completion and isinstance(completion[-1], dict):
        return str(completion[-1].get("content") or "")
    return str(completion)


def _sample_score(result: object) -> tuple[OptionalScore, str]:
    """One score and its reason. Raises RewardContractError. NaN and infinity pass: the trainer rejects them."""
    value, reason = _plain(result), ""
    if isinstance(value, dict):
        if "score" not in value:
            raise RewardContractError(f"returned a dict without 'score' (keys: {', '.join(map(str, value))})")
        reason, value = str(value.get("reason") or ""), _plain(value["score"])
    if value is None:
        return None, reason
    if isinstance(value, numbers.Real | decimal.Decimal):
        return _float(value), reason
    if isinstance(value, list | tuple):
        turns = [_float(turn) for turn in map(_plain, value) if isinstance(turn, numbers.Real | decimal.Decimal)]
        if len(turns) == len(value):
            return turns, reason
    raise RewardContractError(
        f"returned a {type(result).__name__} ({user_files.shorten(result)}) where a number or None is expected "
        "(or a list of numbers, one for each assistant turn)"
    )


def _float(value: numbers.Real | decimal.Decimal) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond float's range
        return math.inf


def _plain(value: object) -> object:
    """Arrays and tensors as Python numbers and lists; only of libraries that the function itself imported."""
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    array: Any = value
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return array.tolist()
    if torch is not None and isinstance(value, torch.Tensor):
        return array.detach().cpu().tolist()
    return value


# -------------------------------------------------------------------------------------------------------------- answers

ANSWER_TAG = r"(?s)<answer>(.*?)</answer>"
AFTER_EQUALS = r"=([^=\n]*)$"


def extract_answer(completion: str, pattern: str = "") -> str:
    """The answer in a completion, without surrounding whitespace. Without a pattern: the last line that is not blank.
    With one: its last match (the first group where it has one). No match is an empty answer: a completion without the
    required form is wrong, and so has a score."""
    if not pattern:
        return completion.strip().rpartition("\n")[2].strip()
    matches = list(re.finditer(pattern, completion))
    if not matches:
        return ""
    return (matches[-1].group(1 if matches[-1].re.groups else 0) or "").strip()


def word_key(text: str) -> str:
    """The words of a text: without case, and without punctuation at the ends."""
    text = re.sub(r"(?i)\b([ap])\.\s?m\b\.?", r"\1m", text.casefold())
    text = re.sub(r"(?<=\d)(?=[^\W\d])", " ", text)
    text = re.sub(r"\s*([:,;/-])\s*", r"\1", text)
    return " ".join(text.split()).strip(" .!\"'")


def exact_match(
    completion: object,
    answer: object,
    pattern: str = "",
    words: bool = False,  # noqa: FBT001, FBT002 - passed by name from the config's options
) -> float | dict[str, object]:
    """1.0 when the extracted answer is the column `answer`, letter for letter, else 0.0.

    With `words`, case, the number of spaces, and full stops and quotation marks at the ends do not matter. Without a
    reference the score is missing: an empty answer must not be right.
    """
    reference = "" if answer is None else str(answer).strip()
    if not reference:
        return {"score": None, "reason": "the reference answer is empty"}
    extracted = extract_answer(completion_text(completion), pattern)
    if words:
        return float(word_key(extracted) == word_key(reference))
    return float(extracted == reference)
