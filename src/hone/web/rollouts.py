"""Rollouts for the page: tables of a step's answers, one answer with its tokens, and one prompt over the steps.

Belongs here: reading few columns of many answers and many of one. `hone.run.store.rollouts` has the format. Texts are
read for the rows of a page alone, tokens for one answer; what needs every token of a step is computed once.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow has no type information of its functions)
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.run.store.evaluations import AnswerRow
from hone.run.store.rollouts import EpisodeTable, read_episodes, read_times, read_tokens, rollout_files, rollout_kind

CHIPS: Final = {
    "solved": "groups whose answers all have the best score of the step: they teach nothing",
    "failed": "groups whose answers all have one score below the best: they teach nothing either",
    "missing": "answers without a score",
    "truncated": "answers that a limit cut",
    "longest": "most tokens first",
    "clipped": "largest share of clipped tokens first",
    "mismatch": "largest difference of the engine's and the trainer's log-probability first",
    "repeats": "answers in which at least half of the 4-grams of tokens occurred before",
    "new": "answers that no answer of the file before equals",
}
"""Filters and orders of the table of answers."""
TRUNCATED: Final = ("length", "turns", "context", "max_tokens", "deadline")
PAGE_ROWS: Final = 40
_SHOWN: Final = 400
"""Characters of a text in a table."""
_FIGURES: Final = ("group", "sample", "score", "advantage", "tokens", "finish", "status", "version")
_GRAM: Final = 4

Floats = NDArray[np.float64]


# ---------------------------------------------------------------------------------------------------------------- table


class StepAnswers:
    """Answers of one file; figures of all of them, texts and tokens on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = _parquet(path)
        names = [name for name in (*_FIGURES, "tool_calls", "log_ratio") if name in file.schema_arrow.names]
        table = file.read(columns=names)
        self.has_tokens = "ids" in file.schema_arrow.names
        self.row_groups = np.cumsum([0, *(file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))])
        self.group: NDArray[np.int64] = table.column("group").to_numpy()
        self.sample: NDArray[np.int64] = table.column("sample").to_numpy()
        self.tokens: NDArray[np.int64] = table.column("tokens").to_numpy()
        self.version: NDArray[np.int64] = table.column("version").to_numpy()
        self.score: Floats = table.column("score").to_numpy().astype(np.float64)
        self.advantage: Floats = table.column("advantage").to_numpy().astype(np.float64)
        self.finish: list[str] = table.column("finish").to_pylist()
        self.status: list[str] = table.column("status").to_pylist()
        nothing: list[Any] = [None] * len(self.group)
        self.calls: list[int | None] = table.column("tool_calls").to_pylist() if "tool_calls" in names else nothing
        unknown = np.full(len(self.group), np.nan)
        self.log_ratio: Floats = (
            table.column("log_ratio").to_numpy().astype(np.float64) if "log_ratio" in names else unknown
        )
        """`[E]` nats; NaN where it is not known."""
        self.times = read_times(path, len(self.group))

    def __len__(self) -> int:
        return len(self.group)

    @cached_property
    def groups(self) -> "GroupFigures":
        """Figures of the groups."""
        ids, place = np.unique(self.group, return_inverse=True)
        known = np.isfinite(self.score)
        count = np.bincount(place, minlength=len(ids))
        scored = np.bincount(place[known], minlength=len(ids))
        low, high = np.full(len(ids), np.inf), np.full(len(ids), -np.inf)
        np.minimum.at(low, place[known], self.score[known])
        np.maximum.at(high, place[known], self.score[known])
        total = np.bincount(place[known], weights=self.score[known], minlength=len(ids))
        some = scored > 0
        return GroupFigures(
            ids=ids,
            place=place,
            count=count,
            scored=scored,
            mean=np.where(some, total / np.maximum(scored, 1), np.nan),
            spread=np.where(some, high - low, np.nan),
        )

    def _flat(self, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """A column of lists: values of all answers, whole numbers for booleans and NaN for null, and the answer of
        each `[T]`."""
        column = _parquet(self.path).read(columns=[name]).column(0).combine_chunks()
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        values = column.flatten().to_numpy(zero_copy_only=False)
        return values, np.repeat(np.arange(len(self)), lengths)

    @cached_property
    def clipped_share(self) -> Floats:
        """Share of each answer's tokens whose gradient was clipped to 0 `[E]`; NaN where it is not known."""
        if not self.has_tokens:
            return np.full(len(self), np.nan)
        values, answer = self._flat("clipped")
        known = values != None  # noqa: E711 - an array of objects where some are null
        looked = np.bincount(answer[known], minlength=len(self))
        cut = np.bincount(answer[known], weights=values[known].astype(np.float64), minlength=len(self))
        return np.where(looked > 0, cut / np.maximum(looked, 1), np.nan)

    @cached_property
    def largest_mismatch(self) -> Floats:
        """Largest |difference| of the log-probabilities of engine and trainer of each answer `[E]`, nats; NaN where it
        is not known."""
        largest = np.full(len(self), np.nan)
        if self.has_tokens:
            (logp, answer), (now, _) = self._flat("logp"), self._flat("logp_now")
            gap = np.abs(now - logp)
            known = np.isfinite(gap)
            np.fmax.at(largest, answer[known], gap[known].astype(np.float64))
        return largest

    @cached_property
    def repeated_share(self) -> Floats:
        """Share of each answer's 4-grams of tokens that occurred before in it `[E]`; NaN for fewer than two."""
        if not self.has_tokens:
            return np.full(len(self), np.nan)
        (ids, answer), (mask, _) = self._flat("ids"), self._flat("mask")
        drawn = mask.astype(bool)
        return _repeated_share(ids[drawn], answer[drawn], len(self))

    def select(self, chip: str, text: str, earlier: Path | None) -> NDArray[np.int64]:
        """Rows in the order of a chip, those that contain `text` only. Raises DataError for an unknown chip."""
        if chip not in ("", *CHIPS):
            raise DataError(f"no chip {chip!r:.40}; known: {', '.join(CHIPS)}")
        groups = self.groups
        order = np.lexsort((self.sample, self.group, -np.nan_to_num(groups.spread, nan=-1.0)[groups.place]))
        if chip in _ORDERS:
            value = _ORDERS[chip][0](self)
            order = np.argsort(-np.nan_to_num(value, nan=-1.0), kind="stable")
            kept = value >= _ORDERS[chip][1]
        else:
            kept = self._filtered(chip, earlier)
        if text:
            kept = kept & self._containing(text)
        return order[kept[order]]

    def _filtered(self, chip: str, earlier: Path | None) -> NDArray[np.bool_]:
        """Rows that a chip keeps in the order of the groups."""
        groups = self.groups
        best = np.nanmax(self.score) if np.isfinite(self.score).any() else np.nan
        equal = (groups.spread == 0) & (groups.scored == groups.count) & (groups.count > 1)
        solved = equal & (groups.mean >= best)
        match chip:
            case "solved":
                return solved[groups.place]
            case "failed":
                return (equal & ~solved)[groups.place]
            case "missing":
                return ~np.isfinite(self.score)
            case "truncated":
                return np.isin(self.finish, TRUNCATED)
            case "new":
                return self._new_since(earlier)
            case _:
                return np.ones(len(self), bool)

    def _containing(self, text: str) -> NDArray[np.bool_]:
        import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

        table = _parquet(self.path).read(columns=["prompt", "completion"])
        matches = [pc.match_substring(table.column(name), text, ignore_case=True) for name in table.column_names]
        return pc.or_(*matches).to_numpy().astype(bool)

    def _new_since(self, earlier: Path | None) -> NDArray[np.bool_]:
        if earlier is None:
            return np.ones(len(self), bool)
        names = ["prompt", "completion"]
        before = set(zip(*(column.to_pylist() for column in _parquet(earlier).read(columns=names)), strict=True))
        own = zip(*(column.to_pylist() for column in _parquet(self.path).read(columns=names)), strict=True)
        return np.array([pair not in before for pair in own], bool)

    def texts(self, rows: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Prompt and completion of some rows, read from the row groups that hold them."""
        file = _parquet(self.path)
        wanted = np.asarray(rows, np.int64)
        places = np.searchsorted(self.row_groups, wanted, side="right") - 1
        result: dict[int, tuple[str, str]] = {}
        for number in np.unique(places).tolist():
            inside = wanted[places == number]
            table = file.read_row_group(number, columns=["prompt", "completion"]).take(inside - self.row_groups[number])
            for row, prompt, completion in zip(
                inside.tolist(), table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True
            ):
                result[row] = (prompt, completion)
        return result

    def pairs(self) -> NDArray[np.int64]:
        """Rows of the chosen and of the rejected answer of each group `[P, 2]`, the smallest margin first: best and
        worst score of groups whose scores differ."""
        groups, known = self.groups, np.isfinite(self.score)
        best, worst = (np.lexsort((np.where(known, sign * self.score, np.inf), groups.place)) for sign in (-1, 1))
        ends = np.cumsum(groups.count)
        begins = ends - groups.count
        made = np.stack([best[begins], worst[begins]], axis=1)[groups.spread > 0]
        return made[np.argsort(self.log_ratio[made[:, 0]] - self.log_ratio[made[:, 1]], kind="stable")]

    def page(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Rows for the table."""
        texts, groups = self.texts(rows), self.groups
        return [
            {
                "row": row,
                "group": int(self.group[row]),
                "sample": int(self.sample[row]),
                "prompt": _cut(texts[row][0]),
                "completion": _cut(texts[row][1]),
                "score": _number(self.score[row]),
                "advantage": _number(self.advantage[row]),
                "tokens": int(self.tokens[row]),
                "finish": self.finish[row],
                "status": self.status[row],
                "version": int(self.version[row]),
                "calls": self.calls[row],
                "seconds": self.times.seconds[row],
                "world_seconds": self.times.world_seconds[row],
                "group_mean": _number(groups.mean[groups.place[row]]),
                "group_spread": _number(groups.spread[groups.place[row]]),
                "group_count": int(groups.count[groups.place[row]]),
            }
            for row in rows
        ]


_LEAST_POSITIVE: Final = 1e-30
_ORDERS: Final[Mapping[str, tuple[Callable[[StepAnswers], Floats], float]]] = {
    "longest": (lambda answers: answers.tokens.astype(np.float64), 0.0),
    "clipped": (lambda answers: answers.clipped_share, _LEAST_POSITIVE),
    "mismatch": (lambda answers: answers.largest_mismatch, _LEAST_POSITIVE),
    "repeats": (lambda answers: answers.repeated_share, 0.5),
}
"""Chips that order answers by a figure, largest first, and keep those of a least value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """Groups of answers to one prompt: `[G]` each; `place` `[E]` is the group of each answer."""

    ids: NDArray[np.int64]
    place: NDArray[np.int64]
    count: NDArray[np.int64]
    scored: NDArray[np.int64]
    mean: Floats
    spread: Floats
    """Greatest minus least score; NaN without any."""


def _repeated_share(ids: NDArray[np.int32], answer: NDArray[np.int64], count: int) -> Floats:
    """Share of each answer's 4-grams that are repetitions `[E]`; NaN for fewer than two."""
    if len(ids) < _GRAM:
        return np.full(count, np.nan)
    grams = np.zeros(len(ids) - _GRAM + 1, np.uint64)
    for place in range(_GRAM):
        part = ids[place : len(ids) - _GRAM + 1 + place].astype(np.uint64)
        grams = grams * np.uint64(0x9E3779B97F4A7C15) + part + np.uint64(1)
    same = answer[: len(grams)] == answer[_GRAM - 1 :]
    owner, grams = answer[: len(grams)][same], grams[same]
    # One number of the answer and 40 bits of the 4-gram: sorting these is several times as fast as sorting pairs.
    keys = np.sort((owner.astype(np.uint64) << np.uint64(40)) | (grams >> np.uint64(24)))
    owner = (keys >> np.uint64(40)).astype(np.int64)
    again = np.concatenate([[False], keys[1:] == keys[:-1]]) if len(keys) else keys > 0
    total = np.bincount(owner, minlength=count)
    repeated = np.bincount(owner, weights=again, minlength=count)
    return np.where(total > 1, repeated / np.maximum(total, 1), np.nan)


def _parquet(path: Path) -> Any:  # noqa: ANN401 - pyarrow has no type information
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"cannot read {path}: {error}; is it damaged?") from error


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _number(value: Any) -> float | None:  # noqa: ANN401 - a number of numpy's
    return float(value) if math.isfinite(value) else None


# --------------------------------------------------------------------------------------------------------------- reader


@dataclass(slots=True)
class RolloutReader:
    """Rollouts of runs; figures of the files that were looked at last are kept."""

    kept: int = 4
    _files: "OrderedDict[tuple[Path, int], StepAnswers]" = field(
        default_factory=OrderedDict[tuple[Path, int], StepAnswers]
    )
    _kinds: dict[tuple[Path, int], str] = field(default_factory=dict[tuple[Path, int], str])
    _tokenizers: dict[Path, Any] = field(default_factory=dict[Path, Any])

    def steps(self, run: Path) -> dict[int, str]:
        """Steps that have a file, with its kind: `answers` or `episodes`."""
        result: dict[int, str] = {}
        for step, path in rollout_files(run).items():
            key = (path, path.stat().st_mtime_ns)
            if key not in self._kinds:
                self._kinds[key] = rollout_kind(path)
            result[step] = self._kinds[key]
        return result

    def table(self, run: Path, step: int, *, chip: str, text: str, page: int) -> dict[str, Any]:
        """A page of a step's answers. Raises DataError."""
        files = rollout_files(run)
        path = _file_of(files, step)
        answers = self._answers(path)
        earlier = [at for at in files if at < step]
        rows = answers.select(chip, text, files[earlier[-1]] if earlier else None)
        shown = rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS].tolist()
        groups = answers.groups
        several = groups.count > 1
        flat = several & (groups.spread == 0)
        return {
            "step": step,
            "total": len(answers),
            "selected": len(rows),
            "page": page,
            "page_rows": PAGE_ROWS,
            "has_tokens": answers.has_tokens,
            "rows": answers.page(shown),
            "groups": len(groups.ids),
            "flat_groups": int(flat.sum()),
            "earlier": earlier[-1] if earlier else None,
        }

    def pairs(self, run: Path, step: int, page: int) -> dict[str, Any]:
        """A page of a step's pairs of a chosen and a rejected answer, with their margins. Raises DataError."""
        answers = self._answers(_file_of(rollout_files(run), step))
        pairs, ratio = answers.pairs(), answers.log_ratio
        margin = ratio[pairs[:, 0]] - ratio[pairs[:, 1]]
        known = np.isfinite(margin)
        shown = slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS)
        texts = answers.texts(pairs[shown].reshape(-1).tolist())
        return {
            "step": step,
            "selected": len(pairs),
            "page_rows": PAGE_ROWS,
            "known": int(known.sum()),
            "wrong": int((margin[known] < 0).sum()),
            "mean": _number(margin[known].mean()) if known.any() else None,
            "rows": [
                {
                    "prompt": texts[chosen][0],
                    "margin": _number(gap),
                    "answers": [
                        {
                            "row": row,
                            "text": texts[row][1],
                            "tokens": int(answers.tokens[row]),
                            "log_ratio": _number(ratio[row]),
                        }
                        for row in (chosen, rejected)
                    ],
                }
                for (chosen, rejected), gap in zip(pairs[shown].tolist(), margin[shown].tolist(), strict=True)
            ],
        }

    def answer(self, run: Path, step: int, row: int) -> dict[str, Any]:
        """One answer with its group, its turns and its tokens. Raises DataError."""
        path = _file_of(rollout_files(run), step)
        answers = self._answers(path)
        if not 0 <= row < len(answers):
            raise DataError(f"step {step} has {len(answers)} answers, and no number {row}")
        number = int(np.searchsorted(answers.row_groups, row, side="right")) - 1
        file = _parquet(path)
        wanted = ("prompt", "completion", "turns", "reference", "components")
        names = [name for name in wanted if name in file.schema_arrow.names]
        record = (
            file.read_row_group(number, columns=names).slice(row - int(answers.row_groups[number]), 1).to_pylist()[0]
        )
        same = np.flatnonzero(answers.group == answers.group[row])[:64].tolist()
        return {
            **answers.page([row])[0],
            "prompt": record["prompt"],
            "completion": record["completion"],
            "turns": record.get("turns") or [],
            "reference": record.get("reference"),
            "components": dict(record.get("components") or {}),
            "siblings": answers.page(same),
            "tokens_of": self._tokens(run, path, row),
        }

    def _tokens(self, run: Path, path: Path, row: int) -> dict[str, Any] | None:
        columns = read_tokens(path, row, 1)
        if columns is None:
            return None
        ids = columns.ids.tolist()
        pieces = self._pieces(run, ids)

        def numbers(values: NDArray[np.float32]) -> list[float | None]:
            return [round(one, 5) if math.isfinite(one) else None for one in values.astype(np.float64).tolist()]

        return {
            "ids": ids,
            "text": pieces,
            "mask": columns.mask.tolist(),
            "logp": numbers(columns.logp),
            "logp_now": numbers(columns.logp_now),
            "logp_last": numbers(columns.logp_last),
            "entropy": numbers(columns.entropy),
            "advantages": numbers(columns.advantages),
            "values": numbers(columns.values),
            "clipped": [None if one < 0 else bool(one) for one in columns.clipped.tolist()],
            "versions": [None if one < 0 else one for one in columns.versions.tolist()],
        }

    def _pieces(self, run: Path, ids: Sequence[int]) -> list[str] | None:
        """Text of each token by the tokenizer of a checkpoint; None without one."""
        files = sorted((run / "checkpoints").glob("step_*/policy/tokenizer.json"))
        if not files:
            return None
        file = files[-1]
        if file not in self._tokenizers:
            from tokenizers import Tokenizer  # noqa: PLC0415 - start-up time

            self._tokenizers = {file: Tokenizer.from_file(str(file))}
        tokenizer = self._tokenizers[file]
        special = {number for number, one in tokenizer.get_added_tokens_decoder().items() if one.special}
        return [
            f"\x02{tokenizer.id_to_token(one)}"
            if one in special
            else tokenizer.decode([one], skip_special_tokens=False)
            for one in ids
        ]

    def prompt_over_time(self, run: Path, prompt: str) -> list[dict[str, Any]]:
        """Answers to one prompt at every step that has a file with it."""
        import pyarrow.compute as pc  # noqa: PLC0415 - start-up time

        result: list[dict[str, Any]] = []
        for step, path in rollout_files(run).items():
            if rollout_kind(path) != "answers":
                continue
            table = _parquet(path).read(columns=["prompt", "completion", "score", "tokens", "finish"])
            mask = pc.equal(table.column("prompt"), prompt)
            rows = np.flatnonzero(mask.to_numpy())
            if not len(rows):
                continue
            chosen = table.take(rows).to_pylist()
            scores = np.array([np.nan if one["score"] is None else one["score"] for one in chosen], np.float64)
            known = scores[np.isfinite(scores)]
            result.append(
                {
                    "step": step,
                    "mean": float(known.mean()) if len(known) else None,
                    "answers": [
                        {"row": row, "completion": _cut(one["completion"]), "score": one["score"],
                         "tokens": one["tokens"], "finish": one["finish"]}
                        for row, one in zip(rows.tolist(), chosen, strict=True)
                    ],
                }
            )  # fmt: skip
        return result

    def episodes(self, run: Path, step: int) -> dict[str, Any]:
        """Episodes of a step of control: figures of each, and of the best, the median and the worst all decisions."""
        table = read_episodes(_file_of(rollout_files(run), step))
        count = len(table.offsets) - 1
        order = np.argsort(np.nan_to_num(table.score, nan=-np.inf), kind="stable")
        chosen = list(dict.fromkeys([int(order[-1]), int(order[count // 2]), int(order[0])])) if count else []
        return {
            "step": step,
            "episodes": [
                {"row": row, "score": _number(table.score[row]), "decisions": int(np.diff(table.offsets)[row]),
                 "end": ("terminated", "truncated", "open")[int(table.end[row])], "group": int(table.group[row])}
                for row in order[::-1][:500].tolist()
            ],
            "count": count,
            "traces": [_trace(table, row) for row in chosen],
        }  # fmt: skip

    def trace(self, run: Path, step: int, row: int) -> dict[str, Any]:
        """Every decision of one episode. Raises DataError."""
        table = read_episodes(_file_of(rollout_files(run), step))
        if not 0 <= row < len(table.offsets) - 1:
            raise DataError(f"step {step} has {len(table.offsets) - 1} episodes, and no number {row}")
        return _trace(table, row)

    def _answers(self, path: Path) -> StepAnswers:
        key = (path, path.stat().st_mtime_ns)
        if key not in self._files:
            if rollout_kind(path) != "answers":
                raise DataError(f"{path.name} holds episodes, not answers")
            self._files[key] = StepAnswers(path)
            while len(self._files) > self.kept:
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        return self._files[key]


def _file_of(files: dict[int, Path], step: int) -> Path:
    if step not in files:
        steps = ", ".join(map(str, list(files)[-5:]))
        raise DataError(f"no rollouts of step {step} are kept; the newest are of {steps or 'no step'}")
    return files[step]


def _trace(table: EpisodeTable, row: int) -> dict[str, Any]:
    begin, end = int(table.offsets[row]), int(table.offsets[row + 1])

    def numbers(values: NDArray[np.float32] | None) -> list[Any] | None:
        if values is None:
            return None
        part = values[begin:end].astype(np.float64)
        return [[_number(one) for one in each] if isinstance(each, list) else _number(each) for each in part.tolist()]

    return {
        "row": row,
        "score": _number(table.score[row]),
        "actions": numbers(table.actions),
        "rewards": numbers(table.rewards),
        "logp": numbers(table.logp),
        "advantages": numbers(table.advantages),
        "values": numbers(table.values),
        "observations": numbers(table.observations),
    }


def flips(before: Sequence[AnswerRow], after: Sequence[AnswerRow]) -> list[tuple[AnswerRow, AnswerRow]]:
    """Answers to the same questions whose scores differ, the largest loss first."""
    first = {(one.id, one.prompt): one for one in before}
    pairs = [(first[key], one) for one in after if (key := (one.id, one.prompt)) in first]
    changed = [
        (old, new) for old, new in pairs if old.score is not None and new.score is not None and old.score != new.score
    ]
    return sorted(changed, key=lambda pair: (pair[1].score or 0.0) - (pair[0].score or 0.0))
