"""Contents of the pages about one run or several: figures of the report, of evaluations and of comparisons.

Belongs here: putting together what other modules compute. No figure has a second definition here.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from hone.config.resolve import format_value
from hone.core.clock import Clock
from hone.core.errors import DataError, HoneError
from hone.core.strict_json import Json
from hone.estimators.means import mean_interval, paired_difference
from hone.run.report.timeline import Timeline, is_loop_part, step_timeline
from hone.run.report.timing_section import bottleneck_line, step_waits
from hone.run.saved_config import config_tree
from hone.run.store.animation import frame_count, read_episode
from hone.run.store.checkpoints import step_name
from hone.run.store.durable import read_json
from hone.run.store.evaluations import EVALUATIONS, SIDE_BY_SIDE, AnswerRow, read_evaluations
from hone.run.store.evaluations import FOLDER as ANSWERS
from hone.run.store.events import read_events
from hone.run.store.histograms import read_histograms
from hone.run.store.manifest import read_config, read_manifest
from hone.run.store.metrics import CLOCK_PREFIX, MetricColumns
from hone.run.store.records import (
    LEARNING,
    MEMORY,
    SEARCH,
    SPEED,
    memory_line,
    parse_record,
    read_map,
    read_robustness,
    speed_line,
)
from hone.web.columns import BLOCK, RunColumns
from hone.web.families import chart_families, describe, family_of
from hone.web.rollouts import RolloutReader, flips
from hone.web.runs import RunRow, last_lines, plain

_LOG_LINES: Final = 200
_MOST_HEAT: Final = 240
_MOST_FLIPS: Final = 200
_HEALTH: Final = {
    "reward/zero_variance_groups": "groups that teach nothing",
    "reward/missing": "missing rewards",
    "episodes/truncated": "truncated",
    "policy/clip_fraction": "clipped tokens",
    "policy/entropy_nats": "entropy",
    "mismatch/mean": "mismatch",
    "value/explained_variance": "explained variance",
}
"""Metrics of the health strip, and their caption."""


# ------------------------------------------------------------------------------------------------------------- run page


def run_view(folder: Path, row: RunRow, columns: RunColumns, rollouts: RolloutReader) -> dict[str, Any]:
    """Everything of the run page but the curves."""
    manifest, config = read_manifest(folder / "manifest.json"), read_config(folder / "config.json")
    events = read_events(folder)
    constants = _constants(columns)
    charts = chart_families(columns.names, lambda name: name not in constants)
    problems = [*events.faults]
    kept = {str(step): kind for step, kind in rollouts.steps(folder).items()}
    evaluated = [step for step, _ in _answer_files(folder)]
    has_world = any((folder / name).exists() for name in ("episode.json", "map.json", "robustness.json"))
    content = {
        "preferences": any(one.endswith("/margin_nats") for one in columns.names) and "answers" in kept.values(),
        "rollouts": bool(kept),
        "evaluation": bool(evaluated) or any((folder / name).exists() for name in (EVALUATIONS, SEARCH.name)),
        "world": has_world or "episodes" in kept.values(), "lanes": columns.rows > 0,
        "data": "answers" in kept.values() or not kept,
    }  # fmt: skip
    if columns.damaged:
        problems.append(f"metrics.jsonl: {columns.damaged} damaged lines are left out")
    return {
        "row": plain(asdict(row)),
        "diagnosis": "" if (cause := row.diagnosis) is None else cause.sentence,
        "rows": columns.generation * 10**9 + columns.rows,
        "health": _health(columns),
        "families": {family: [asdict(one) for one in own] for family, own in charts.items()},
        "constants": [
            {"name": name, "value": plain(value), "family": family_of(name), "unit": unit, "meaning": meaning}
            for name, value in constants.items()
            for unit, meaning in [describe(name)]
        ],
        "events": [asdict(one) for one in events.events],
        "timelines": _timelines(columns, config),
        "histograms": sorted(read_histograms(folder)),
        "rollouts": kept,
        "evaluations": evaluated,
        "without": [name for name, there in content.items() if not there],
        "has_report": (folder / "report.html").exists(),
        "config": [
            {"key": key, "value": format_value(one.value), "origin": one.origin} for key, one in config.items()
        ],
        "changes": [{"step": one.after_step, "words": one.change} for one in manifest.changes],
        "about": {
            "machine": manifest.metadata.machine,
            "versions": {"hone": manifest.metadata.hone_version, **manifest.metadata.versions},
            "created_at": manifest.created_at,
        },
        "findings": _safe(lambda: LEARNING.read(folder) or [], [], problems),
        "problems": problems,
        "log": last_lines(folder / "log.txt", _LOG_LINES),
    }  # fmt: skip


def _safe(work: Any, otherwise: Any, problems: list[str]) -> Any:  # noqa: ANN401 - whatever a reader gives
    """Result of a reader; a damaged file becomes a line among the problems."""
    try:
        return work()
    except HoneError as error:
        problems += error.messages
        return otherwise


def _constants(columns: RunColumns) -> dict[str, float]:
    """Metrics with one value at all steps, and those without any."""
    result: dict[str, float] = {}
    for name in columns.names:
        blocks = columns.blocks(name)
        rest = np.asarray(columns.column(name)[len(blocks.least) * BLOCK :])
        rest = rest[np.isfinite(rest)]
        least = np.concatenate([blocks.least[np.isfinite(blocks.least)], rest])
        greatest = np.concatenate([blocks.greatest[np.isfinite(blocks.greatest)], rest])
        if not len(least):
            result[name] = math.nan
        elif columns.rows > 1 and least.min() == greatest.max():
            result[name] = float(least[0])
    return result


def _health(columns: RunColumns) -> list[dict[str, Any]]:
    """Figures of the strip: the newest value, and the one of the run's first tenth for comparison."""
    result: list[dict[str, Any]] = []
    for name, caption in _HEALTH.items():
        if name not in columns.names:
            continue
        values = np.asarray(columns.column(name)[-50:])
        known = values[np.isfinite(values)]
        begin = np.asarray(columns.column(name)[: max(1, min(200, columns.rows // 10))])
        begin = begin[np.isfinite(begin)]
        result.append(
            {
                "metric": name,
                "caption": caption,
                "value": plain(known[-1]) if len(known) else None,
                "start": plain(begin.mean()) if len(begin) else None,
                "unit": describe(name)[0],
            }
        )
    return result


def _timelines(columns: RunColumns, keys: Container[str]) -> list[dict[str, Any]]:
    """The mean step, the last, the median and the slowest one, each with its sentence."""
    if not columns.rows:
        return []
    names = [name for name in columns.names if name.startswith(CLOCK_PREFIX)]
    # Sums of whole blocks are known: a million lines are not read again.
    sums = {
        name: np.array([blocks.total.sum() + np.nansum(columns.column(name)[len(blocks.total) * BLOCK :])])
        for name in names
        for blocks in [columns.blocks(name)]
    }
    whole = step_timeline(MetricColumns(columns.steps[-1:], sums))
    if whole is None:
        return []
    shown: list[tuple[str, Timeline]] = [(f"mean of {whole.steps:,} steps", whole)]
    loop = [name for name in names if is_loop_part(name)]
    total = np.zeros(columns.rows)
    for name in loop:
        total += np.nan_to_num(columns.column(name))
    steps = columns.steps
    spacing = np.diff(steps, prepend=0)
    order = np.argsort(total / np.maximum(spacing, 1))
    for words, place in (
        ("last", len(total) - 1),
        ("median", int(order[len(order) // 2])),
        ("slowest", int(order[-1])),
    ):
        values = {name: np.asarray(columns.column(name)[place : place + 1]) for name in names}
        one = step_timeline(MetricColumns(np.maximum(spacing[place : place + 1], 1), values))
        if one is not None:
            shown.append((f"{words}: step {int(steps[place]):,}", one))
    return [
        {
            "title": title,
            "step_s": one.step_s,
            "loop": [asdict(span) for span in one.loop],
            "collect_parts": [asdict(span) for span in one.collect_parts],
            "overlapping": [asdict(span) for span in one.overlapping],
            "bottleneck": bottleneck_line(one, keys),
            "waits": [asdict(wait) for wait in step_waits(one)],
        }
        for title, one in shown
    ]


# ---------------------------------------------------------------------------------------------------- histograms, lanes


def histogram_view(folder: Path, name: str) -> dict[str, Any]:
    """A heat map: counts of values in common buckets `[steps][buckets]`, at most 240 columns. Raises DataError."""
    known = read_histograms(folder)
    if name not in known:
        raise DataError(f"no histogram of {name!r:.60}; there are {', '.join(known) or 'none'}")
    steps, rows = known[name]
    low, high = min(one.low for one in rows), max(one.high for one in rows)
    buckets = 32
    edges = np.linspace(low, high, buckets + 1) if high > low else np.array([low, low + 1.0])
    groups = np.array_split(np.arange(len(rows)), min(len(rows), _MOST_HEAT))
    heat: list[list[float]] = []
    for places in groups:
        total = np.zeros(len(edges) - 1)
        for place in places.tolist():
            one = rows[place]
            middle = (one.edges[:-1] + one.edges[1:]) / 2
            weights = one.counts.astype(np.float64) / max(1, int(one.counts.sum()))
            total += np.histogram(middle, edges, weights=weights)[0]
        heat.append((total / max(1, len(places))).round(5).tolist())
    return {
        "name": name,
        "steps": [int(steps[places[-1]]) for places in groups],
        "low": low,
        "high": float(edges[-1]),
        "heat": heat,
    }


def lanes_view(folder: Path, columns: RunColumns, rollouts: RolloutReader, step: int) -> dict[str, Any]:
    """Lanes of one step: the parts of the loop, and the time of every answer of its file. Raises DataError."""
    place = int(np.searchsorted(columns.steps, step))
    if place >= columns.rows:
        raise DataError(f"step {step} has no line of metrics yet")
    names = [name for name in columns.names if name.startswith(CLOCK_PREFIX)]
    values = {name: np.asarray(columns.column(name)[place : place + 1]) for name in names}
    spacing = int(columns.steps[place]) - (int(columns.steps[place - 1]) if place else 0)
    timeline = step_timeline(MetricColumns(np.array([max(1, spacing)]), values))
    answers: list[dict[str, Any]] = []
    if rollouts.steps(folder).get(step) == "answers":
        page = rollouts.table(folder, step, chip="", text="", page=0)
        pages = -(-page["selected"] // page["page_rows"])
        rows = [*page["rows"]]
        for number in range(1, min(pages, 8)):
            rows += rollouts.table(folder, step, chip="", text="", page=number)["rows"]
        answers = [
            {
                key: one[key]
                for key in (
                    "row",
                    "group",
                    "sample",
                    "seconds",
                    "world_seconds",
                    "calls",
                    "tokens",
                    "score",
                    "finish",
                    "version",
                )
            }
            for one in rows
            if one["seconds"] is not None
        ]
    return {
        "step": int(columns.steps[place]),
        "timeline": None if timeline is None else {
            "step_s": timeline.step_s,
            "loop": [asdict(span) for span in timeline.loop],
            "collect_parts": [asdict(span) for span in timeline.collect_parts],
            "overlapping": [asdict(span) for span in timeline.overlapping],
        },
        "answers": sorted(answers, key=lambda one: (one["group"], one["sample"])),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- evaluation


def _answer_files(folder: Path) -> list[tuple[int, Path]]:
    files = sorted((folder / ANSWERS).glob("step_*.json"))
    return [(int(path.stem.removeprefix("step_")), path) for path in files]


def _answers(path: Path) -> list[AnswerRow]:
    return parse_record(list[AnswerRow], read_json(path), path)


def evaluation_view(folder: Path, columns: RunColumns, before: int | None, after: int | None) -> dict[str, Any]:
    """Scores per checkpoint, and the flips between two evaluations: those that were lost first. Raises DataError."""
    scores = _checkpoint_scores(columns)
    evaluations, paired = read_evaluations(folder)
    files = dict(_answer_files(folder))
    steps = list(files)
    result: dict[str, Any] = {
        "scores": scores,
        "evaluations": [plain(asdict(one)) for one in evaluations],
        "paired": [plain(asdict(one)) for one in paired],
        "steps": steps,
        "search": None if (search := SEARCH.read(folder)) is None else plain(asdict(search)),
        "side_by_side": [plain(asdict(one)) for one in SIDE_BY_SIDE.read(folder) or []],
        "flips": None,
    }
    if not steps:
        return result
    first = steps[0] if before is None else before
    last = steps[-1] if after is None else after
    for step in (first, last):
        if step not in files:
            raise DataError(
                f"no answers of an evaluation after step {step}; there are those of {', '.join(map(str, steps))}"
            )
    old, new = _answers(files[first]), _answers(files[last])
    result["flips"] = _flip_view(old, new) | {"before": first, "after": last}
    return result


def _flip_view(old: Sequence[AnswerRow], new: Sequence[AnswerRow]) -> dict[str, Any]:
    known = {(one.id, one.prompt): one.score for one in old if one.score is not None}
    common = [
        (one, known[one.id, one.prompt], one.score)
        for one in new
        if one.score is not None and (one.id, one.prompt) in known
    ]
    tags = sorted({one.tag for one, _, _ in common})
    return {
        **_flip_figures([pair for _, *pair in common]),
        "rows": [
            {"id": one.id, "prompt": one.prompt, "reference": one.reference, "before": one.answer, "after": two.answer,
             "before_score": one.score, "after_score": two.score, "tag": two.tag}
            for one, two in flips(old, new)[:_MOST_FLIPS]
        ],
        "tags": [] if len(tags) < 2 else [
            {"tag": tag, **_flip_figures([pair for one, *pair in common if one.tag == tag])} for tag in tags
        ],
    }  # fmt: skip


def _flip_figures(scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Flips of questions with scores before and after, their paired test, and both means."""
    if not scores:
        return {"common": 0, "lost": 0, "gained": 0, "test": None}
    before, after = np.array(scores, np.float64).T
    means = [plain(asdict(mean_interval(one))) for one in (before, after)]
    return {
        "common": len(scores),
        "lost": int((after < before).sum()),
        "gained": int((after > before).sum()),
        "test": plain(asdict(paired_difference(before, after))),
        "before_mean": means[0],
        "after_mean": means[1],
    }


def _checkpoint_scores(columns: RunColumns) -> list[dict[str, Any]]:
    if "eval/score" not in columns.names:
        return []
    steps, names = columns.steps, ("eval/score", "eval/low", "eval/high")
    rows = np.flatnonzero(np.isfinite(columns.column("eval/score")))
    others = [name for name in columns.names if name.startswith("eval/pass@") or name.startswith("eval/maj@")]
    return [
        {
            "step": int(steps[place]),
            **{
                name.removeprefix("eval/"): plain(columns.column(name)[place]) if name in columns.names else None
                for name in (*names, *others)
            },
        }
        for place in rows.tolist()
    ]


# --------------------------------------------------------------------------------------------------- comparison, system


def compare_view(folders: Sequence[Path], root: Path, metric: str) -> dict[str, Any]:
    """The comparison of `hone compare` with all its warnings, and each run's settings that differ. Raises DataError."""
    from hone.evaluate.comparison import compare, differing_settings  # noqa: PLC0415 - gymnasium takes a second

    comparison = compare([str(folder) for folder in folders], root=root, metric=metric)
    configs: list[Mapping[str, Json]] = []
    for folder in folders:
        configs.append({key: one.value for key, one in read_config(folder / "config.json").items()})
    differing = differing_settings(configs, shared_only=False)
    return {
        **comparison.to_json(),
        "profiles": {
            group.name: None if group.profile is None else group.profile.to_json() for group in comparison.groups
        },
        "differences": [
            {"run": folder.name, "settings": dict(one)} for folder, one in zip(folders, differing, strict=True)
        ],
    }


def system_view(folder: Path, columns: RunColumns) -> dict[str, Any]:
    """Memory planned and measured, speed, and the metrics of the engine and the machine."""
    problems: list[str] = []
    memory = _safe(lambda: MEMORY.read(folder), None, problems)
    rate = _safe(lambda: SPEED.read(folder), None, problems)
    names = ["learner/flops", "time/update_s"]
    constants = _constants(columns)
    charts = chart_families(columns.names, lambda name: name not in constants)
    return {
        "memory": None if memory is None else {
            **plain(asdict(memory)), "taken_bytes": memory.taken_bytes, "words": memory_line(memory)
        },
        "speed": speed_line(columns.metric_columns(names), rate),
        "matmul": None if rate is None else plain(asdict(rate)),
        "families": {
            family: [asdict(one) for one in charts[family]] for family in ("Throughput", "Memory") if family in charts
        },
        "problems": problems,
    }  # fmt: skip


def world_view(folder: Path, rollouts: RolloutReader) -> dict[str, Any]:
    """An episode's animation, the map of the policy, robustness, and steps with recorded episodes."""
    problems: list[str] = []
    recorded = _safe(lambda: read_episode(folder), None, problems)
    grid = _safe(lambda: read_map(folder), None, problems)
    robust = _safe(lambda: read_robustness(folder), [], problems)
    about, png = recorded if recorded is not None else (None, None)
    return {
        "episode": None if about is None else {**plain(asdict(about)), "frames": frame_count(png) if png else 0},
        "map": None if grid is None else plain(asdict(grid)),
        "robustness": [plain(asdict(one)) for one in robust],
        "steps": [step for step, kind in rollouts.steps(folder).items() if kind == "episodes"],
        "problems": problems,
    }


def lab_view(root: Path) -> list[dict[str, Any]]:
    """Findings of the lab below the folder of runs: verdict, margin, command."""
    result: list[dict[str, Any]] = []
    for path in sorted({*root.glob("*/finding.json"), *root.glob("lab/*/finding.json")}):
        try:
            finding = read_json(path)
        except DataError:
            continue
        if not isinstance(finding, dict) or path.resolve().parts[: len(root.resolve().parts)] != root.resolve().parts:
            continue
        name = str(finding.get("experiment", path.parent.name))
        result.append(
            {
                "name": name,
                "verdict": finding.get("verdict"),
                "holds": finding.get("holds"),
                "margin": finding.get("margin"),
                "claims": finding.get("claims"),
                "table": finding.get("table"),
                "seed": finding.get("seed"),
                "command": f"hone lab run {name} --seed {finding.get('seed', 0)}",
            }
        )
    return result


# ------------------------------------------------------------------------------------------------------ decisions, data


def decisions_view(service_file: Path, clock: Clock) -> dict[str, Any]:
    """A service of decisions: its log's summary by tenant, its versions and its rollouts. Raises HoneError."""
    from contextlib import closing  # noqa: PLC0415

    from hone.decide.gateway.opening import log_address, read_service_file, service_folder  # noqa: PLC0415 - one page
    from hone.decide.joins.audit import audit_log  # noqa: PLC0415
    from hone.decide.joins.columns import distinct_texts, log_columns  # noqa: PLC0415
    from hone.decide.joins.join import build_view  # noqa: PLC0415
    from hone.decide.log.opening import open_decision_log  # noqa: PLC0415

    config = read_service_file(service_file).config
    folder = service_folder(service_file, config)
    address = log_address(folder, config.log)
    if "://" not in address and not Path(address).is_file():
        raise DataError(f"{address}: the service has no log yet")
    tenants: list[dict[str, Any]] = []
    with closing(open_decision_log(address)) as log:
        columns = log_columns(log)
        for name in distinct_texts(columns.decisions, "tenant"):
            audit = audit_log(columns, tenant=name, progress=log.watermarks())
            entry: dict[str, Any] = {"tenant": name, "verdict": audit.verdict, "words": audit.words}
            try:
                view = build_view(columns, as_of_s=clock.now_s(), join=config.join, tenant=name)
                entry["summary"] = plain(asdict(view.summary()))
            except DataError as error:
                entry["summary"], entry["fault"] = None, "; ".join(error.messages)
            tenants.append(entry)
    return {
        "service": folder.name,
        "policy": config.policy.kind,
        "tenants": tenants,
        **_versions(folder / config.rollout.registry, folder.name),
    }


def _versions(place: Path, service: str) -> dict[str, Any]:
    from hone.decide.registry import open_registry  # noqa: PLC0415 - one page
    from hone.decide.rollout.history import read_history  # noqa: PLC0415

    if not (place / "registry.db").is_file():
        return {"versions": [], "rollouts": []}
    registry = open_registry(place)
    live = registry.live(service)
    return {
        "versions": [
            {"id": one.id, "stage": registry.stage(service, one.id), "live": one.id == live,
             "evidence": [plain(asdict(row)) for row in registry.evidence(one.id)]}
            for one in registry.versions()
        ],
        "rollouts": [
            {"name": name, **read_history(registry, service, name).json()} for name in registry.rollouts(service)
        ],
    }  # fmt: skip


def data_view(folder: Path, count: int) -> dict[str, Any]:
    """First rows of a run's training data as tokens: context, trained and end, as `hone show --tokens` prints them; or
    the reason why that cannot be done here, as for data that is made while it trains."""
    from hone.text.show_tokens import rows_of_tables  # noqa: PLC0415 - torch

    try:
        shown = rows_of_tables(config_tree(folder), folder / "config.json", count)
    except HoneError as error:
        return {"rows": [], "notes": [], "fault": "; ".join(error.messages)}
    return {
        "rows": [{"title": title, "spans": [asdict(span) for span in spans]} for title, spans in shown.rows],
        "notes": list(shown.notes),
        "fault": "",
    }


# ---------------------------------------------------------------------------------------------------------------- chat


def chat_steps(folder: Path) -> list[int]:
    """Steps whose checkpoints hold a language model."""
    policies = [path.parent for path in (folder / "checkpoints").glob("step_*/policy/tokenizer.json")]
    return sorted(int(path.parent.name.removeprefix("step_")) for path in policies if (path / "config.json").exists())


def chat_answers(folder: Path, steps: Sequence[int], text: str, *, temperature: float) -> list[dict[str, Any]]:
    """Answers of checkpoints to one message, drawn as `hone sample --prompt` draws them. Raises DataError."""
    from hone.evaluate.checkpoint import SampleRequest, sample_answers  # noqa: PLC0415 - torch

    known = chat_steps(folder)
    for step in steps:
        if step not in known:
            raise DataError(
                f"no language model is kept of step {step}; there are {', '.join(map(str, known)) or 'none'}"
            )
    wanted = SampleRequest(run=folder, prompt=text, count=1, temperature=temperature, seed=0, device="cpu")
    policies = [folder / "checkpoints" / step_name(step) / "policy" for step in steps]
    return [
        {"step": step, "text": sample_answers(policy, wanted)[0][1]}
        for step, policy in zip(steps, policies, strict=True)
    ]
