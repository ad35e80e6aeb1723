"""Runs for the page, written by the run's own writers: language models with tokens, and control."""

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
from log_records import decision, outcome
from manual_clock import ManualClock

from hone.core.config import ConfigSetting
from hone.core.strict_json import Json
from hone.decide.gateway.opening import read_service_file, service_folder
from hone.decide.log.opening import open_decision_log
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import RunQueue
from hone.run.store.animation import EpisodeRecording, animated_png, write_episode
from hone.run.store.evaluations import AnswerRow, EvaluationScore, write_answers, write_evaluations
from hone.run.store.events import EventLog
from hone.run.store.folder import RunFolder, create_run
from hone.run.store.histograms import HistogramLog
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import metrics_line
from hone.run.store.records import (
    MAP,
    MEMORY,
    SEARCH,
    GridCell,
    GridSlice,
    MemoryUse,
    PerturbedScore,
    PlanScore,
    PolicyMap,
    SearchRecord,
    write_robustness,
)
from hone.run.store.rollouts import AnswerRollouts, AnswerTimes, EpisodeTable, SampleRow, TokenColumns, write_rollouts

BEGIN_S = 1_790_000_000.0
ALPHABET = "0123456789+=?"
EOS = len(ALPHABET)
ATTACK = "<img src=x onerror=\"document.title='owned'\">"
"""A completion that a page must show as text."""


def watched_clock() -> ManualClock:
    return ManualClock(BEGIN_S)


def text_metrics(step: int, steps: int, seed: int, *, good: bool) -> dict[str, float]:
    """A line of metrics of a GRPO run that learns, or whose entropy collapses."""
    random = np.random.default_rng([seed, step])
    done = step / steps
    learnt = 1 / (1 + math.exp(-9 * (done - 0.4))) if good else 0.25 + 0.1 * min(1.0, 4 * done)
    entropy = 0.9 - 0.6 * done if good else 0.9 * math.exp(-9 * done) + 0.01
    score = float(np.clip(learnt + 0.04 * random.standard_normal(), 0, 1))
    flat = float(np.clip((0.1 + 0.55 * done if good else 0.2 + 0.75 * done) + 0.04 * random.standard_normal(), 0, 1))
    seconds = {"collect": 0.9, "values": 0.0, "credit": 0.02, "update": 0.5, "publish": 0.05, "save": 0.01}
    metrics = {
        "episodes/decisions": 480.0 + 200 * done + 20 * random.standard_normal(),
        "episodes/ended": 64.0,
        "reward/mean": score,
        "reward/std": math.sqrt(score * (1 - score)),
        "episodes/truncated": 0.02 * random.random(),
        "reward/missing": 0.0,
        "reward/zero_variance_groups": flat,
        "rollout/tokens": 480.0 + 200 * done,
        "answers/tokens_mean": 6.0 + 3 * done + 0.3 * random.standard_normal(),
        "answers/tokens_longest": 12.0 + random.integers(0, 5),
        "policy/entropy_nats": max(0.001, entropy + 0.02 * random.standard_normal()),
        "policy/loss": 0.01 * random.standard_normal(),
        "policy/grad_norm": 0.6 + 0.2 * random.random() + (4.0 if step == steps // 2 else 0.0),
        "policy/clip_fraction": 0.02 + 0.02 * random.random(),
        "policy/kl_nats": 0.004 + 0.002 * random.random(),
        "mismatch/mean": 1e-6 * (1 + random.random()),
        "mismatch/ratio_ess": 0.99,
        "learner/lr": 1e-4 * (1 - done) + 1e-6,
        "learner/tokens": 2000.0,
        "learner/flops": 2e9,
        "time/at_s": BEGIN_S + 2.0 * step + (600.0 if step > steps // 2 else 0.0),
        "time/generate_s": 0.8,
        "time/generate_model_s": 0.6,
        "time/generate_prefill_s": 0.1,
        "time/generate_tail_s": 0.12,
    }
    metrics |= {f"time/{name}_s": one * (1 + 0.1 * random.random()) for name, one in seconds.items()}
    if step % max(1, steps // 5) == 0:
        metrics |= {
            "eval/score": score,
            "eval/low": max(0.0, score - 0.06),
            "eval/high": min(1.0, score + 0.06),
            "time/evaluate_s": 0.4,
        }
    metrics["time/step_s"] = sum(
        value for name, value in metrics.items() if name in {f"time/{one}_s" for one in (*seconds, "evaluate")}
    )
    return metrics


def text_rollouts(step: int, seed: int, *, groups: int = 6, samples: int = 4, skill: float = 0.5) -> AnswerRollouts:
    """Sums of two digits with tokens: right answers end, wrong ones go on."""
    random = np.random.default_rng([seed, step, 1])
    rows: list[SampleRow] = []
    ids: list[int] = []
    mask: list[bool] = []
    offsets = [0]
    for group in range(groups):
        a, b = int(random.integers(10, 90)), int(random.integers(10, 90))
        if group == 0:
            a, b = 17, 25  # a prompt that every step has
        prompt, right = f"{a}+{b}=", str(a + b)
        good = [bool(random.random() < skill) or group == 1 for _ in range(samples)]
        spread = np.std(good)
        for sample in range(samples):
            text = right if good[sample] else f"{right}+{random.integers(0, 9)}"
            finish = "stop"
            if group == groups - 1 and sample == 0:
                text = "0" * 14
                finish = "length"
            shown = ATTACK if group == 2 and sample == 0 else text
            score = None if group == 3 and sample == 1 else float(good[sample])
            advantage = None if score is None else (score - float(np.mean(good))) / (spread + 1e-6)
            answer = [ALPHABET.index(one) for one in text] + ([EOS] if finish == "stop" else [])
            start = [ALPHABET.index(one) for one in prompt]
            ids += start + answer
            mask += [False] * len(start) + [True] * len(answer)
            offsets.append(len(ids))
            rows.append(
                SampleRow(
                    step=step,
                    group=group,
                    sample=sample,
                    prompt=prompt,
                    completion=shown,
                    score=score,
                    status="scored" if score is not None else "timeout",
                    advantage=advantage,
                    tokens=len(answer),
                    finish=finish,
                    version=step - 1,
                    reference=right,
                    components={"right": score, "short": 0.1 * len(text)},
                    tool_calls=1 if group == 4 else None,
                    turns=(
                        ("policy", '{"name": "add", "arguments": {"a": 1}}'),
                        ("environment", "42"),
                        ("policy", shown),
                    )
                    if group == 4
                    else (),
                )
            )
    seconds = [0.05 * row.tokens * (4 if row.finish == "length" else 1) for row in rows]
    times = AnswerTimes(
        seconds=tuple(seconds),
        world_seconds=tuple(0.4 * took if row.turns else 0.0 for row, took in zip(rows, seconds, strict=True)),
    )
    return AnswerRollouts(rows=rows, tokens=_token_columns(ids, mask, offsets, step, random), times=times)


def _token_columns(
    ids: list[int], mask: list[bool], offsets: list[int], step: int, random: np.random.Generator
) -> TokenColumns:
    """Log-probabilities, entropies and clips of tokens, drawn by chance."""
    count = len(ids)
    drawn = np.array(mask)
    logp = np.where(drawn, -random.exponential(0.3, count), np.nan).astype(np.float32)
    now = (logp + np.where(drawn, 1e-4 * random.standard_normal(count), np.nan)).astype(np.float32)
    last = (now + np.where(drawn, 0.12 * random.standard_normal(count), np.nan)).astype(np.float32)
    nothing = np.full(count, np.nan, np.float32)
    return TokenColumns(
        offsets=np.array(offsets, np.int64),
        ids=np.array(ids, np.int32),
        mask=drawn,
        logp=logp,
        logp_now=now,
        logp_last=last,
        entropy=np.where(drawn, random.random(count), np.nan).astype(np.float32),
        clipped=np.where(drawn, (np.abs(last - now) > 0.2).astype(np.int8), -1).astype(np.int8),
        versions=np.where(drawn, step - 1, -1).astype(np.int32),
        advantages=nothing,
        values=np.where(drawn, 0.5 + 0.2 * np.tanh(random.standard_normal(count)), np.nan).astype(np.float32),
    )


def write_tokenizer(run: Path, step: int) -> None:
    """A checkpoint's tokenizer of one character a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordLevel({one: place for place, one in enumerate(ALPHABET)}, unk_token="?"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    place = run / "checkpoints" / f"step_{step:08d}" / "policy"
    place.mkdir(parents=True)
    tokenizer.save(str(place / "tokenizer.json"))


def _settings(values: dict[str, Json]) -> dict[str, ConfigSetting]:
    return {key: ConfigSetting(value=value, origin="run.toml:1") for key, value in values.items()}


def begin_run(root: Path, name: str, recipe: str, values: dict[str, Json]) -> RunFolder:
    """A run's folder with its config and manifest."""
    return create_run(
        root,
        name,
        config=_settings({"recipe": recipe, "name": name, **values}),
        metadata=RunMetadata(
            hone_version="0.3.0", recipe=recipe, machine="x86_64, 1 threads, cpu", versions={"python": "3.11"}
        ),
        clock=watched_clock(),
    )


def _write_results(path: Path, done: int, steps: int, seed: int, *, good: bool) -> None:
    """Two evaluations with their answers, and the memory that the run took."""
    for step, skill in ((steps // 2, 0.5), (done, 0.75 if good else 0.4)):
        random = np.random.default_rng([seed, step, 3])
        write_answers(
            path,
            step,
            [
                AnswerRow(
                    id=str(one),
                    prompt=f"{one}+{one}=",
                    reference=str(2 * one),
                    answer=str(2 * one) if right else f"{2 * one} or so",
                    score=float(right),
                    tag="even" if one % 2 == 0 else "odd",
                )
                for one in range(40)
                for right in [bool(random.random() < skill)]
            ],
        )
    mean = 0.75 if good else 0.35
    score = EvaluationScore(
        stage=f"step {done}", metric="score", mean=mean, low=mean - 0.15, high=round(mean + 0.1, 2), n=40
    )
    write_evaluations(path, [score])
    plans = [("pass", 1, 0.5), ("pass", 4, 0.8), ("majority", 4, 0.6)]
    SEARCH.write(
        path,
        SearchRecord(
            problems=40, scorer="", auc=math.nan,
            plans=tuple(
                PlanScore(
                    plan=f"{family}:{size}", family=family, mean=mean, low=mean - 0.1, high=mean + 0.1,
                    drawn_tokens=9.0 * size, scored_tokens=0.0, seconds=0.1 * size,
                )
                for family, size, mean in plans
            ),
        ),
    )  # fmt: skip
    MEMORY.write(
        path,
        MemoryUse(
            device="cpu",
            before_bytes=300 << 20,
            peak_bytes=420 << 20,
            planned_bytes=100 << 20,
            components={"weights": 40 << 20, "optimizer": 40 << 20, "activations": 20 << 20},
            phases={"update": 100 << 20},
        ),
    )


def write_text_run(
    root: Path,
    name: str,
    *,
    steps: int = 60,
    done: int | None = None,
    seed: int = 0,
    good: bool = True,
    lr: float = 1e-4,
) -> Path:
    """A GRPO run of `steps`, of which `done` are written (all by default)."""
    done = steps if done is None else done
    with begin_run(
        root, name, "grpo", {"seed": seed, "steps": steps, "learner.lr": lr, "task.source": "sums.jsonl"}
    ) as folder:
        path, clock = folder.path, watched_clock()
        events = EventLog(path / "events.jsonl", clock)
        events.append(0, "start", f"{steps} steps of grpo begin", {"steps": steps, "recipe": "grpo", "seed": seed})
        histograms = HistogramLog(path=path / "histograms.jsonl")
        with folder.metrics_path.open("w", encoding="utf-8") as file:
            for step in range(1, done + 1):
                clock.advance(2.0)
                metrics = text_metrics(step, steps, seed, good=good)
                file.write(metrics_line(step, metrics))
                random = np.random.default_rng([seed, step, 2])
                histograms.append(
                    step,
                    {
                        "reward": (random.random(64) < metrics["reward/mean"]).astype(float),
                        "length": random.gamma(4, 2, 64),
                        "ratio": np.exp(0.1 * random.standard_normal(64)),
                    },
                )
        histograms.write()
        for step in range(max(1, steps // 6), done + 1, max(1, steps // 6)):
            skill = text_metrics(step, steps, seed, good=good)["reward/mean"]
            write_rollouts(path / "rollouts" / f"step_{step:08d}.parquet", text_rollouts(step, seed, skill=skill))
            events.append(step, "checkpoint", f"checkpoint of step {step}", {"folder": f"step_{step:08d}"})
        if not good:
            data: dict[str, Json] = {
                "alarm": "entropy_collapse",
                "state": "raised",
                "level": "red",
                "evidence": "entropy fell to 0.02 of its start while the score stayed at 0.34",
                "try": "raise clip_high or add an entropy bonus",
            }
            events.append(steps // 3, "alarm", "entropy collapse", data)
        if done == steps:
            events.append(steps, "finish", f"finished step {steps}")
        _write_results(path, done, steps, seed, good=good)
        folder.log(f"finished step {done}" if done == steps else "step", level="INFO")
        (path / "report.html").write_text("<p>report</p>", encoding="utf-8")
        write_tokenizer(path, done)
    return path


def _write_world(path: Path, steps: int) -> None:
    """An animation, a map of a grid and scores under perturbations."""
    frames = np.full((12, 60, 90, 3), 245, np.uint8)
    for place in range(12):
        frames[place, 30:45, 5 + 6 * place : 20 + 6 * place] = (60, 110, 200)
    write_episode(path, EpisodeRecording(step=steps, score=500.0, steps=12), animated_png(frames, frame_s=0.05))
    cells = [
        GridCell(
            mark="S" if at == 0 else "G" if at == 8 else " ",
            worth=None if at == 8 else at / 8,
            moves={"right" if at % 3 < 2 else "down": 0.9, "up": 0.1},
        )
        for at in range(9)
    ]
    MAP.write(
        path,
        PolicyMap(step=steps, worth_is="value", slices=[GridSlice(title="grid", rows=3, columns=3, cells=cells)]),
    )
    write_robustness(
        path,
        [
            PerturbedScore(
                name=one,
                mean=500 - cut,
                low=480 - cut,
                high=510 - cut,
                difference=-cut,
                difference_low=-cut - 9,
                difference_high=-cut + 9,
                p_value=0.5 if cut < 5 else 0.001,
                n=20,
            )
            for one, cut in (("unperturbed", 0.0), ("wind 0.1", 40.0), ("sensor noise 0.2", 210.0))
        ],
    )


def write_control_run(root: Path, name: str, *, steps: int = 30, seed: int = 0) -> Path:
    """A PPO run with episodes, an animation, a map and robustness."""
    with begin_run(root, name, "ppo", {"seed": seed, "steps": steps, "env.id": "CartPole-v1"}) as folder:
        path, random = folder.path, np.random.default_rng(seed)
        with folder.metrics_path.open("w", encoding="utf-8") as file:
            for step in range(1, steps + 1):
                value = 20 + 480 * step / steps + 10 * random.standard_normal()
                file.write(
                    metrics_line(
                        step,
                        {
                            "reward/mean": value,
                            "episodes/decisions": 512.0,
                            "value/explained_variance": step / steps,
                            "policy/entropy_nats": 0.7 - 0.4 * step / steps,
                            "time/collect_s": 0.2,
                            "time/update_s": 0.1,
                            "time/step_s": 0.31,
                        },
                    )
                )
        EventLog(path / "events.jsonl", watched_clock()).append(steps, "finish", f"finished step {steps}")
        lengths = np.array([40, 12, 25])
        count = int(lengths.sum())
        write_rollouts(
            path / "rollouts" / f"step_{steps:08d}.parquet",
            EpisodeTable(
                step=steps,
                offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                id=np.arange(3),
                group=np.arange(3),
                score=lengths.astype(float),
                status=np.zeros(3, np.uint8),
                end=np.array([0, 1, 2], np.uint8),
                version=np.full(3, steps - 1),
                actions=random.integers(0, 2, (count, 1)).astype(np.float32),
                rewards=np.ones(count, np.float32),
                logp=-random.random(count).astype(np.float32),
                advantages=random.standard_normal(count).astype(np.float32),
                values=np.linspace(10, 0, count).astype(np.float32),
                observations=random.standard_normal((count, 4)).astype(np.float32),
            ),
        )
        _write_world(path, steps)
    return path


def append_line(run: Path, step: int, steps: int = 60, seed: int = 0) -> None:
    """One more line of metrics."""
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(metrics_line(step, text_metrics(step, steps, seed, good=True)))


def write_lab(root: Path) -> None:
    """A finding of the lab."""
    place = root / "lab" / "no-clipping"
    place.mkdir(parents=True)
    finding = {
        "experiment": "no-clipping",
        "seed": 0,
        "verdict": "Without clipping the policy leaves its data.",
        "holds": True,
        "margin": 0.4,
        "claims": [{"says": "times the KL", "value": 6.9, "at_least": 3.0, "at_most": None, "margin": 0.5}],
        "figures": {},
        "table": {"header": ["clip", "KL"], "rows": [["on", "0.01"], ["off", "0.07"]]},
        "panels": [],
    }
    (place / "finding.json").write_text(json.dumps(finding), encoding="utf-8")


def write_service(file: Path) -> Path:
    """A service file of three actions; its log is in the folder beside it once it is written."""
    file.write_text('[service]\nname = "shop"\nactions = ["red", "green", "blue"]\n[policy]\nkind = "uniform"\n')
    return file


def write_decisions(service: Path) -> Path:
    """The log of a service's 30 decisions, of which 20 have an outcome; returns its file."""
    folder = service_folder(service, read_service_file(service).config)
    folder.mkdir(parents=True)
    with closing(open_decision_log(folder / "decisions.db")) as log:
        log.append([decision(seq) for seq in range(30)])
        log.append([outcome(seq) for seq in range(20)])
    return folder / "decisions.db"


def write_queue(file: Path) -> str:
    """A queue in which red ran 30 s, gave way, and ran 10 s more; blue runs since 20 s, and has another job."""
    clock = ManualClock()
    queue = RunQueue(open_queue_database(str(file)), clock, lease_s=1e6)
    queue.set_tenant("blue", weight=3.0, slots=1)
    queue.submit("red", "r", ["x.toml"])
    job = queue.claim("one")
    clock.advance(30.0)
    queue.finish(job.id, job.token, "queued", "gave way at a checkpoint")
    again = queue.claim("one")
    clock.advance(10.0)
    queue.finish(again.id, again.token, "done")
    queue.submit("blue", "b", ["x.toml"])
    queue.submit("blue", "c", ["x.toml"])
    running = queue.claim("two")
    clock.advance(20.0)
    queue.heartbeat(running.id, running.token)
    queue.close()
    return str(file)
