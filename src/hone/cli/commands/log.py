"""`hone log`: a decision log judged, joined into a view, exported, or erased from."""

import json
import math
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast, get_args
from urllib.parse import unquote

from pydantic import ValidationError

from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.core.strict_json import Json
from hone.decide.gateway.feature_opening import stores_with
from hone.decide.joins.audit import LogAudit, audit_log
from hone.decide.joins.columns import RecordColumns, distinct_texts, log_columns
from hone.decide.joins.join import build_view
from hone.decide.joins.page import write_log_page
from hone.decide.joins.parquet import LargeJoin, freeze_view, is_frozen_view, read_frozen_view, view_bytes
from hone.decide.joins.view import DecisionView, JoinConfig, JoinRule, ViewSummary
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog, log_name
from hone.decide.log.retention import DECISIONS, erase_unit, retain
from hone.run.store.durable import replace_file
from hone.run.store.records import record_json

_TABLE_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedTenant:
    """One tenant's verdict and view; no view where the records cannot be joined."""

    audit: LogAudit
    view: DecisionView | None


def run(call: CommandCall) -> int:
    """Judge a log and do what the options ask for; 3 if an estimate from it would be wrong."""
    join, as_of_s = join_of(call), moment_of(call.text("as_of"))
    source = call.text("file")
    if is_frozen_view(Path(source)):
        folder = Path(source)
        view = read_frozen_view(folder)
        if call.switch("json"):
            print(json.dumps(_view_json(view), indent=1))
            return 0
        screen = standard_screen()
        screen.title(f"{folder}: a frozen view, as it was made")
        _show_view(screen, view)
        return 0
    if Path(source).is_dir():
        return _join_files(call, Path(source), join, as_of_s)
    if "://" not in source and not Path(source).is_file():
        raise DataError(f"{source}: there is no such log; paths are relative to the working directory, {Path.cwd()}")
    shown = log_name(source)
    with closing(open_decision_log(source)) as log:
        if unit := call.text("erase"):
            return _erase(log, shown, unit, call)
        if before := call.text("retain"):
            archive = call.text("archive")
            if not archive:
                raise ConfigError(f"--retain {before} needs --archive DIR: the folder that older records move to")
            report = retain(log, Path(archive), before_s=moment_of(before, "--retain"))
            standard_screen().line(f"moved {report.retired} records to {archive}, {len(report.files)} files written")
            return 0
        columns = log_columns(log, tenant=call.text("tenant") or None)
        schemas = [names.split(",") for names in call.texts("features")]
        judged = [
            _JudgedTenant(
                audit=audit_log(columns, tenant=name, progress=log.watermarks(), schemas=schemas),
                view=_view_or_none(columns, as_of_s, join, name, call.text("schema")),
            )
            for name in _tenants(columns, shown, call.text("tenant"))
        ]
    _show(call, shown, judged)
    if any(call.text(name) for name in ("view", "export", "report")):
        if len(judged) > 1:
            names = ", ".join(one.audit.tenant for one in judged[:5])
            raise ConfigError(f"--view, --export and --report are of one tenant; choose one by --tenant: {names}")
        _write(call, judged[0], columns, as_of_s, join)
    return DataError.exit_code if any(one.audit.verdict == "refuse" for one in judged) else 0


def _tenants(columns: RecordColumns, source: str, asked: str) -> list[str]:
    names = sorted(
        {name for table in (columns.decisions, columns.outcomes) for name in distinct_texts(table, "tenant")}
    )
    if asked and asked not in names:
        raise DataError(f"{source} has no records of tenant {asked!r}")
    if not names:
        raise DataError(f"{source} holds no records")
    return [asked] if asked else names


# ---------------------------------------------------------------------------------------------- work


def _view_or_none(
    columns: RecordColumns, as_of_s: float, join: JoinConfig, tenant: str, schema: str
) -> DecisionView | None:
    """The view; None where the records cannot be joined, for the reasons that the audit tells."""
    try:
        return build_view(columns, as_of_s=as_of_s, join=join, tenant=tenant, schema=schema or None)
    except DataError:
        return None


def _write(call: CommandCall, judged: _JudgedTenant, columns: RecordColumns, as_of_s: float, join: JoinConfig) -> None:
    """Write what `--view`, `--export` and `--report` name. Raises DataError where the records cannot be joined."""
    schema = call.text("schema") or None
    view = judged.view or build_view(columns, as_of_s=as_of_s, join=join, tenant=judged.audit.tenant, schema=schema)
    screen = None if call.switch("json") else standard_screen()
    if folder := call.text("view"):
        digest = freeze_view(view, Path(folder))
        _tell(screen, f"view in {folder}: {len(view.table)} decisions, sha256 {digest[:16]}")
    if file := call.text("export"):
        replace_file(Path(file), view_bytes(view))
        _tell(screen, f"{file}: {len(view.table)} decisions")
    if file := call.text("report"):
        write_log_page(Path(file), view, judged.audit)
        _tell(screen, f"page in {file}")


def _join_files(call: CommandCall, folder: Path, join: JoinConfig, as_of_s: float) -> int:
    """Join the parquet files of an exported log by DuckDB into the file of `--export`."""
    file = call.text("export")
    tenants = sorted(unquote(path.name) for path in folder.iterdir() if any(path.glob(f"*/{DECISIONS}")))
    if not tenants:
        raise DataError(f"{folder} is neither a frozen view nor the export of a log: no */*/{DECISIONS} in it")
    if not file:
        raise ConfigError(f"{folder} is the export of a log: name the joined file by --export")
    if len(tenants) > 1 and not call.text("tenant"):
        raise ConfigError(f"{folder} has {len(tenants)} tenants; choose one by --tenant: {', '.join(tenants[:5])}")
    schema, name = call.text("schema") or None, call.text("tenant") or tenants[0]
    job = LargeJoin(folder=folder, tenant=name, as_of_s=as_of_s, join=join, schema=schema)
    counts = job.write(Path(file))
    if call.switch("json"):
        print(json.dumps({"export": file, "tenant": name, "counts": record_json(counts)}, indent=1))
        return 0
    standard_screen().line(
        f"{file}: {counts.decisions:,} decisions, {counts.joined:,} joined, {counts.defaulted:,} by default, "
        f"{counts.censored:,} open; {counts.late:,} outcomes late, {counts.orphans:,} orphans"
    )
    return 0


def _erase(log: DecisionLog, source: str, unit: str, call: CommandCall) -> int:
    tenant, tenants = call.text("tenant"), sorted({one.tenant for one in log.watermarks()})
    if not tenant and len(tenants) > 1:
        raise ConfigError(f"--erase {unit}: {source} has {len(tenants)} tenants; name one by --tenant")
    if not tenants:
        raise DataError(f"{source} holds no records")
    name = tenant or tenants[0]
    if name not in tenants:
        raise DataError(f"{source} has no records of tenant {name!r}")
    if "://" not in source and (stores := stores_with(Path(source).parent, name, unit)):
        raise DataError(
            f"{', '.join(stores)} beside {source} holds stored features of unit {unit} of tenant {name}; nothing was "
            f"erased: `hone service FILE.toml --erase {unit}` erases both"
        )
    archive, screen = call.text("archive"), standard_screen()
    if archive:
        if not Path(archive).is_dir():
            raise DataError(f"--archive {archive}: there is no such folder")
        report = erase_unit(log, Path(archive), name, unit)
        screen.line(f"erased {report.from_files} records of unit {unit} of tenant {name} from {archive}")
        erased = report.from_log
    else:
        erased = log.erase(name, unit)
    screen.line(f"erased {erased} records of unit {unit} of tenant {name}; views made before still hold them")
    screen.line("a feature store elsewhere is untouched: `hone service FILE.toml --erase UNIT` erases from it, too")
    return 0


# ---------------------------------------------------------------------------------------------- figures


def _show(call: CommandCall, source: str, judged: Sequence[_JudgedTenant]) -> None:
    if call.switch("json"):
        tenants = [
            {
                **record_json(one.audit),
                "words": one.audit.words,
                "view": None if one.view is None else _view_json(one.view),
            }
            for one in judged
        ]
        print(json.dumps({"log": source, "tenants": tenants}, indent=1))
        return
    screen = standard_screen()
    for one in judged:
        tenant = f", tenant {one.audit.tenant}" if len(judged) > 1 else ""
        screen.title(f"{source}{tenant} is {one.audit.words}")
        for fault in one.audit.faults:
            screen.line(f"  {'wrong' if fault.verdict == 'refuse' else 'note'}: {fault.words}")
        if one.view is not None:
            _show_view(screen, one.view)


def _view_json(view: DecisionView) -> dict[str, Json]:
    return {
        **record_json(view.summary()),
        "counts": record_json(view.counts),
        "join": cast("dict[str, Json]", view.join.model_dump()),
    }


def _show_view(screen: TerminalScreen, view: DecisionView) -> None:
    counts, figures = view.counts, view.summary()
    final, delays = counts.joined + counts.defaulted, figures.delays
    screen.line()
    screen.rows(
        [
            ("decisions", f"{counts.decisions:,} for {figures.units:,} units, {_span(figures)}"),
            ("versions", f"{len(figures.versions)}: {', '.join(figures.versions[:3])}"),
            ("probability", f"{figures.smallest_p:.4g} to {figures.largest_p:.4g} of the executed action"),
            ("rewards", f"{counts.joined:,} joined, {counts.defaulted:,} by default ({view.join.default:g}), "
             f"{counts.censored:,} open ({view.open_share:.1%})"),
            ("mean reward", f"{figures.mean_reward:.4g} of the {final:,} final ones" if final else "none is final yet"),
            ("outcomes", f"{counts.outcomes:,}, {counts.late:,} late ({figures.corrections:,} corrections), "
             f"{counts.early:,} early, {counts.orphans:,} orphans, {counts.other_kinds:,} of other kinds"
             + (f", {counts.out_of_range:,} out of range ({view.join.beyond})" if counts.out_of_range else "")),
            ("delay", f"median {delays.median_s:.4g} s, 99% {delays.p99_s:.4g} s; "
             f"{delays.within_window:.1%} within the window of {view.join.window_s:g} s"
             if math.isfinite(delays.median_s) else "no reward has come yet"),
        ]
    )  # fmt: skip
    screen.line()
    rows = [
        [one.name, f"{one.decisions:,}", f"{one.known:,}", f"{one.mean:.4g}" if one.known else "-",
         f"{one.low:.4g} to {one.high:.4g}" if math.isfinite(one.low) and math.isfinite(one.high) else "-"]
        for one in sorted(figures.actions, key=lambda one: -one.decisions)
    ]  # fmt: skip
    screen.table(["action", "executed", "final", "reward", "95% interval"], rows[:_TABLE_ROWS])
    if len(rows) > _TABLE_ROWS:
        screen.line(f"and {len(rows) - _TABLE_ROWS} more actions; --json has all")


def _span(figures: ViewSummary) -> str:
    """Times of the first and the last decision."""
    if math.isnan(figures.begin_s):
        return "no time"
    first, last = (
        datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for time in (figures.begin_s, figures.end_s)
    )
    return f"{first} to {last}"


def _tell(screen: TerminalScreen | None, words: str) -> None:
    if screen is not None:
        screen.line(words)


# --------------------------------------------------------------------------------------------------------- join options


def join_of(call: CommandCall) -> JoinConfig:
    """Rules of the join, by the options that `hone log` and `hone estimate` share. Raises ConfigError."""
    settings: dict[str, object] = {}
    if text := call.text("window"):
        settings["window_s"] = parse_number(text, "--window", least=1e-9, whole=False)
    for name in ("default", "low", "high"):
        if text := call.text(name):
            settings[name] = parse_number(text, f"--{name}", least=-math.inf, whole=False)
    if beyond := call.text("beyond"):
        if beyond not in ("refuse", "clip"):
            raise ConfigError(f"--beyond {beyond}: refuse or clip")
        settings["beyond"] = beyond
    if rule := call.text("rule"):
        if rule not in get_args(JoinRule):
            raise ConfigError(f"--rule {rule}{did_you_mean(rule, get_args(JoinRule))}")
        settings["rule"] = rule
    if kind := call.text("kind"):
        settings["kind"] = kind
    try:
        return JoinConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(*(one["msg"].removeprefix("Value error, ") for one in error.errors())) from None


def moment_of(text: str, flag: str = "--as-of") -> float:
    """Seconds since the epoch of an option's time; now, where it is empty. Raises ConfigError."""
    if not text:
        return SystemClock().now_s()
    with suppress(ValueError):  # it is no number, but may be a time
        if math.isfinite(seconds := float(text)):
            return seconds
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{flag} must be seconds since 1970 or a time as 2026-11-23T12:00:00Z, got {text!r}"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
