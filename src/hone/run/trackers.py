"""Trackers: programs that show runs, TensorBoard, Weights & Biases, MLflow and trackio.

Belongs here: one class for each. A tracker is made, called and ended in one thread, `tracking.py`'s, and may raise
whatever its library raises: the run goes on, and the same rows are sent again later. The file of the metrics stays the
truth; a tracker is asked for the last step that it has, so that a resumed run writes no step twice.

One of your own is a class with these methods, named in `[[track]]` as `to = "file.py:Class"`.
"""

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hone.run.store.rollouts import SampleRow

EndState: TypeAlias = Literal["finished", "stopped", "failed"]


class MetricRow(NamedTuple):
    """One line of `metrics.jsonl`, under the names that the tracker shows."""

    step: int
    at_s: float
    """Wall clock when the line was written, in seconds since 1970; 0 in runs of earlier versions."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a tracker shows."""

    folder: Path
    name: str
    identity: str
    """Letters and digits that no other run has; a resumed run keeps them."""
    project: str
    place: str
    """Where the tracker keeps its data, `place` of the config; empty: its own default."""
    settings: Mapping[str, Any]
    """Every dotted key of the config with its value."""


class Tracker(ABC):
    """A program that shows runs."""

    @abstractmethod
    def start(self, run: TrackedRun) -> int | None:
        """Begin a run, or go on with it. Returns the last step that the tracker has (0: none), or None where it cannot
        say: then the run's own note of what was sent counts."""

    @abstractmethod
    def log(self, rows: Sequence[MetricRow]) -> None:
        """Add rows, whose steps grow from call to call."""

    @abstractmethod
    def samples(self, step: int, at_s: float, rows: Sequence[SampleRow]) -> None:
        """Show answers of `step`, after its metrics, if it has any; nothing in a tracker without tables."""

    def conclude(self, step: int, at_s: float, cause: str) -> None:  # noqa: B027 - a tracker may have no place for it
        """Show the cause of the alarms that are raised after `step`, in place of an earlier one, if it has a place for
        it: called where the cause has changed."""

    @abstractmethod
    def finish(self, state: EndState) -> None:
        """End the run and wait until everything is written."""


SHOWN_SAMPLES: Final = 32
"""Answers of a step that a tracker gets; `rollouts/` of the run has all."""
_SAMPLE_COLUMNS: Final = ("prompt", "completion", "score", "advantage", "status", "tokens", "finish")


def _cells(rows: Sequence[SampleRow]) -> list[list[Any]]:
    return [[row[name] for name in _SAMPLE_COLUMNS] for row in map(asdict, rows[:SHOWN_SAMPLES])]


def _package(name: str) -> Any:  # noqa: ANN401 - without its types: most installations have none of these packages
    return importlib.import_module(name)


class TensorBoardTracker(Tracker):
    """Event files of TensorBoard, by the package `tensorboard` alone, in `place` or the run's `tensorboard/`."""

    def start(self, run: TrackedRun) -> int:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415 - an extra
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        folder = Path(run.place) / run.name if run.place else run.folder / "tensorboard"
        last = 0
        for path in sorted(folder.glob("events.out.tfevents.*")):
            for event in EventFileLoader(str(path)).Load():  # a torn last record, of a killed process, ends the file
                last = max(last, event.step)
        self._writer = EventFileWriter(str(folder), max_queue_size=1_000)  # its thread need not wake for every ten
        if last == 0:
            self._write_text("config", 0, 0.0, f"```json\n{json.dumps(dict(run.settings), indent=1)}\n```")
            self._writer.flush()
        return last

    def log(self, rows: Sequence[MetricRow]) -> None:
        value_of = _package("tensorboard.compat.proto.summary_pb2").Summary.Value
        for row in rows:
            values = [value_of(tag=name, simple_value=value) for name, value in row.metrics.items()]
            self._add(row.step, row.at_s, values)
        self._writer.flush()

    def samples(self, step: int, at_s: float, rows: Sequence[SampleRow]) -> None:
        lines = ["| " + " | ".join(_SAMPLE_COLUMNS) + " |", "|---" * len(_SAMPLE_COLUMNS) + "|"]
        for cells in _cells(rows):
            texts = ["" if cell is None else str(cell) for cell in cells]
            escaped = (text.replace("|", "\\|").replace("\n", "<br>") for text in texts)
            lines.append("| " + " | ".join(escaped) + " |")
        self._write_text("samples", step, at_s, "\n".join(lines))
        self._writer.flush()

    def conclude(self, step: int, at_s: float, cause: str) -> None:
        self._write_text("cause", step, at_s, cause)
        self._writer.flush()

    def finish(self, state: EndState) -> None:  # noqa: ARG002 - event files have no state
        self._writer.close()

    def _write_text(self, tag: str, step: int, at_s: float, text: str) -> None:
        messages, tensors = (
            _package("tensorboard.compat.proto.summary_pb2"),
            _package("tensorboard.compat.proto.tensor_pb2"),
        )
        shapes = _package("tensorboard.compat.proto.tensor_shape_pb2").TensorShapeProto
        shape = shapes(dim=[shapes.Dim(size=1)])
        tensor = tensors.TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
        plugin = messages.SummaryMetadata.PluginData(plugin_name="text")
        metadata = messages.SummaryMetadata(plugin_data=plugin)
        self._add(step, at_s, [messages.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])

    def _add(self, step: int, at_s: float, values: Sequence[Any]) -> None:
        summary = _package("tensorboard.compat.proto.summary_pb2").Summary(value=values)
        event = _package("tensorboard.compat.proto.event_pb2").Event(wall_time=at_s, step=step, summary=summary)
        self._writer.add_event(event)


class WandbTracker(Tracker):
    """Weights & Biases. `WANDB_MODE=offline` keeps the run in `place` (the run's folder) until `wandb sync`.

    Its service takes steps that grow only: a step that it has is passed over there as well.
    """

    def start(self, run: TrackedRun) -> int | None:
        wandb = _package("wandb")

        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.identity,
            resume="allow",
            config=dict(run.settings),
            dir=run.place or str(run.folder),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        return self._run.starting_step - 1 if self._run.resumed and self._run.starting_step else None

    def log(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self._run.log({**row.metrics, "_timestamp": row.at_s} if row.at_s else dict(row.metrics), step=row.step)

    def samples(self, step: int, at_s: float, rows: Sequence[SampleRow]) -> None:  # noqa: ARG002
        wandb = _package("wandb")

        self._run.log({"samples": wandb.Table(columns=list(_SAMPLE_COLUMNS), data=_cells(rows))}, step=step)

    def conclude(self, step: int, at_s: float, cause: str) -> None:  # noqa: ARG002
        self._run.summary["cause"] = cause

    def finish(self, state: EndState) -> None:
        self._run.finish(exit_code=int(state == "failed"))


class MlflowTracker(Tracker):
    """MLflow, at `place` or `MLFLOW_TRACKING_URI`; without either a SQLite file beside the run's folder.

    A server keeps artifacts where it is told to. A database has no place for them, and MLflow's own would be the
    working directory: `mlartifacts/` beside the run's folder holds those of an experiment that is made here.
    """

    _BATCH = 1_000
    """Metrics of a request, MLflow's limit."""
    _DATABASES: Final = ("sqlite", "postgresql", "mysql", "mssql")
    _STATES: Final = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def start(self, run: TrackedRun) -> int:
        mlflow, entities = _package("mlflow"), _package("mlflow.entities")
        default = "" if mlflow.environment_variables.MLFLOW_TRACKING_URI.is_set() else run.folder.parent / "mlflow.db"
        self._client = mlflow.MlflowClient(run.place or (f"sqlite:///{default.resolve()}" if default else None))
        self._folder = run.folder
        known = self._client.get_experiment_by_name(run.project)
        is_database = self._client.tracking_uri.partition(":")[0].partition("+")[0] in self._DATABASES
        artifacts = (run.folder.parent / "mlartifacts").resolve().as_uri() if is_database else None
        experiment = self._client.create_experiment(run.project, artifacts) if known is None else known.experiment_id
        same = self._client.search_runs([experiment], f"tags.`hone.run` = '{run.identity}'", max_results=1)
        if same:
            self._id = same[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            steps = [self._client.get_metric_history(self._id, name) for name in same[0].data.metrics]
            return max((point.step for history in steps for point in history), default=0)
        created = self._client.create_run(experiment, run_name=run.name, tags={"hone.run": run.identity})
        self._id = created.info.run_id
        texts = [entities.Param(key, str(value)[:6_000]) for key, value in run.settings.items()]
        for first in range(0, len(texts), 100):
            self._client.log_batch(self._id, params=texts[first : first + 100])
        return 0

    def log(self, rows: Sequence[MetricRow]) -> None:
        entities = _package("mlflow.entities")
        batch: list[Any] = []
        for row in rows:
            own = [entities.Metric(name, value, int(row.at_s * 1_000), row.step) for name, value in row.metrics.items()]
            if len(batch) + len(own) > self._BATCH:  # whole rows: a batch is written whole or not at all
                self._client.log_batch(self._id, metrics=batch)
                batch = []
            batch += own
        self._client.log_batch(self._id, metrics=batch)

    def samples(self, step: int, at_s: float, rows: Sequence[SampleRow]) -> None:  # noqa: ARG002
        table = {"columns": list(_SAMPLE_COLUMNS), "data": _cells(rows)}  # the form that its table view reads
        self._client.log_text(self._id, json.dumps(table), f"samples/step_{step:08}.json")

    def conclude(self, step: int, at_s: float, cause: str) -> None:  # noqa: ARG002
        self._client.set_tag(self._id, "hone.cause", cause)

    def finish(self, state: EndState) -> None:
        self._client.set_terminated(self._id, self._STATES[state])


class TrackioTracker(Tracker):
    """trackio, in `TRACKIO_DIR`, or at the server or Space that `place` names."""

    def start(self, run: TrackedRun) -> int:
        trackio = _package("trackio")

        server = run.place.startswith(("http://", "https://"))
        self._run = trackio.init(
            run.project,
            name=f"{run.name}-{run.identity[-8:]}",  # it knows runs by their names
            config={key: value for key, value in run.settings.items() if not key.startswith("_")},
            resume="allow",
            server_url=run.place if server else None,
            space_id=run.place if run.place and not server else None,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return self._run._next_step - 1  # no public name tells the last step of a resumed run

    def log(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self._run.log(dict(row.metrics), step=row.step)

    def samples(self, step: int, at_s: float, rows: Sequence[SampleRow]) -> None:  # noqa: ARG002
        trackio = _package("trackio")

        self._run.log({"samples": trackio.Table(columns=list(_SAMPLE_COLUMNS), data=_cells(rows))}, step=step)

    def conclude(self, step: int, at_s: float, cause: str) -> None:  # noqa: ARG002
        self._run.log({"cause": _package("trackio").Markdown(cause)}, step=step)

    def finish(self, state: EndState) -> None:  # noqa: ARG002 - its runs have no state
        self._run.finish()


TRACKERS: Final[Mapping[str, type[Tracker]]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}
