"""Self-play league: poker down to its equilibrium, Connect Four against tree search, a gate, and workers that die.

The negative control is naive self-play: the best response to the newest policy alone, which goes round in circles for
ever. Kuhn and Leduc poker are judged by exact best responses, Connect Four by matches in both seats.
"""

import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.control.networks.seats import NumpyPolicyValue
from hone.control.seats.compiled_games import CompiledGame, game_tree
from hone.control.seats.evaluation import Arena, gate_evidence, open_arena
from hone.control.seats.match_log import FILE, MatchLog
from hone.control.seats.matches import SeatLayout
from hone.control.seats.opponents import GateConfig, match_scores
from hone.control.seats.players import MctsPlayer, Player, PolicyPlayer, RandomPlayer, SearchPlayer, TreeSearchConfig
from hone.control.seats.tree_play import TreePlay
from hone.decide.estimators.sequential import mixture_paths
from hone.process.child import ChildProcess
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

TITLE = "Self-play league"
SEED = 100
"""First seed of every figure; settings were chosen on seeds below 10."""
FOUR = {"id": "compiled:connect_four", "num_envs": 128}


class SpentError(Exception):
    """The budget of processor time is spent."""


def job_of(recipe: str, **tables: object) -> TrainingJob[Any]:
    """A run of a recipe."""
    spec = load_recipe(recipe)
    return spec.build(spec.config.model_validate({"recipe": recipe, "name": "x", **tables}))


def poker(recipe: str, game: str, steps: int, **tables: object) -> list[float]:
    """NashConv of the released policy after each visit of both seats."""
    job = job_of(recipe, steps=steps, seed=SEED, env={"id": f"compiled:{game}", "num_envs": 1}, **tables)
    play, found = TreePlay(tree=game_tree(game)), list[float]()

    def note(step: int, *_: object) -> None:
        if step % 2 == 0:
            found.append(play.nash_conv(job.recipe.learner.policy.probabilities.numpy()))

    train(job.recipe, steps=steps, callback=note)
    return found


def poker_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Exploitability in poker, and the cycle of naive self-play."""
    with cpu_seconds() as cpu:
        kuhn = poker("double_oracle", "kuhn_poker", 16)
    yield AcceptanceLine(
        figure="Kuhn poker: NashConv of the league's mixture", value=min(kuhn), at_most=1e-3, cpu_s=cpu.spent,
        words=f"{len(kuhn)} members, first below the bar at {next(n for n, one in enumerate(kuhn, 1) if one < 1e-3)}",
    )  # fmt: skip
    with cpu_seconds() as cpu:
        naive = poker("double_oracle", "kuhn_poker", 60, algorithm={"mixture": "latest"})
    yield AcceptanceLine(
        figure="Kuhn poker: lowest NashConv of the newest policy alone", value=min(naive), at_least=0.3, negative=True,
        cpu_s=cpu.spent, words=f"{len(naive)} members; last {', '.join(f'{one:.2f}' for one in naive[-4:])}",
    )  # fmt: skip
    with cpu_seconds() as cpu:
        leduc = poker("cfr_plus", "leduc_poker", 400 if fast else 2000)
    marks = [leduc[at - 1] for at in (10, 20, 50, 100, 200, 500, 1000) if at <= len(leduc)]
    yield AcceptanceLine(
        figure="Leduc poker: NashConv of the average", value=leduc[-1], at_most=0.3, cpu_s=cpu.spent,
        words=f"{len(leduc)} iterations of CFR+; {', '.join(f'{one:.4f}' for one in marks)}",
    )  # fmt: skip
    rises = max(later / earlier for earlier, later in zip(leduc[:-10], leduc[10:], strict=True))
    by_marks = max(later / earlier for earlier, later in pairwise(marks))
    yield AcceptanceLine(
        figure="Leduc poker: largest NashConv over that of ten iterations before", value=rises, at_most=1.1,
        words=f"falls to within a tenth; between the marks at 10, 20, 50, 100 ... at most {by_marks:.3f}",
    )  # fmt: skip
    with cpu_seconds() as cpu:
        latest = poker("double_oracle", "leduc_poker", 30, algorithm={"mixture": "latest"})
    yield AcceptanceLine(
        figure="Leduc poker: lowest NashConv of the newest policy alone", value=min(latest), at_least=1.0,
        negative=True, cpu_s=cpu.spent, words=f"{len(latest)} best responses, the last has {latest[-1]:.2f}",
    )  # fmt: skip


ORACLES: dict[str, Any] = {
    "every": 5, "size": 200, "matchmaking": "nash", "latest": 0.0, "reset_every": 10, "exploiters_meet": "nash",
    "payoffs": "exact", "payoff_matches": 2, "anchors": [],
}  # fmt: skip
"""A league of best responses to the equilibrium of its population."""
MAIN_ONLY: dict[str, Any] = {
    "every": 5, "size": 200, "matchmaking": "pfsp", "latest": 0.5, "reset_every": 10, "exploiters_meet": "main",
    "payoffs": "score", "payoff_matches": 32, "anchors": [],
}  # fmt: skip
"""A league whose exploiters meet main, and whose equilibrium is of matches won."""


def learnt_kuhn(folder: Path, seed: int, league: dict[str, Any], *, steps: int) -> list[float]:
    """NashConv of the mixture of a league of PPO policies, every twenty iterations."""
    job = job_of(
        "league", steps=steps, seed=seed, env={"id": "compiled:kuhn_poker", "num_envs": 256},
        network={"hidden": [64], "activation": "tanh"}, league=league, algorithm={"entropy_weight": 0.01},
        learner={"lr": 5e-3, "epochs": 4, "minibatches": 2, "lr_decay": "constant"},
        evaluation={"episodes": 2, "sample": True, "nash_conv": True},
    )  # fmt: skip
    job.open_folder(folder)
    found = list[float]()

    def note(step: int, *_: object) -> None:
        if step % 20 == 0:
            assert job.evaluate is not None
            found.append(job.evaluate().metrics["eval/nash_conv_mean"])

    try:
        train(job.recipe, steps=steps, callback=note)
    finally:
        job.close()
    return found


def learnt_poker_lines(*, steps: int = 160, seeds: int = 3) -> Iterator[AcceptanceLine]:
    """How near a league of PPO policies comes to the equilibrium of Kuhn poker, and one whose exploiters meet main."""
    for league, words in ((ORACLES, "exploiters meet the equilibrium, exact payoffs"), (MAIN_ONLY, "")):
        curves = list[list[float]]()
        count = seeds if words else 1
        with cpu_seconds() as cpu, tempfile.TemporaryDirectory() as folder:
            for seed in range(SEED, SEED + count):
                curves.append(learnt_kuhn(Path(folder) / str(seed), seed, league, steps=steps))
        last = [curve[-1] for curve in curves]
        middle = float(np.mean([curve[len(curve) // 2 - 1] for curve in curves]))
        yield AcceptanceLine(
            figure="Kuhn poker: NashConv of the mixture of a league of PPO policies"
            + ("" if words else ", exploiters meet main and payoffs are matches won"),
            value=float(np.mean(last)), at_most=1e-3 if words else None, at_least=None if words else 0.2,
            negative=not words, seeds=count, cpu_s=cpu.spent,
            words=f"{words or 'the same number of matches'}; {steps} iterations, half way {middle:.3f}; of each: "
            f"{', '.join(f'{one:.3f}' for one in last)}",
        )  # fmt: skip


def trained_four(
    seed: int, folder: Path, *, steps: int = 10_000, budget_s: float = math.inf
) -> tuple[NumpyPolicyValue, int, float]:
    """A network that learned Connect Four for so many steps, or processor seconds; the steps and the seconds."""
    job = job_of("alphazero", steps=10_000, seed=seed, env=FOUR)
    job.open_folder(folder)
    begin, done = time.process_time(), 0

    def stop(step: int, *_: object) -> None:
        nonlocal done
        done = step
        if step >= steps or time.process_time() - begin >= budget_s:
            raise SpentError

    try:
        train(job.recipe, steps=10_000, callback=stop)
    except SpentError:
        spent = time.process_time() - begin
    job.close()
    policy = job.recipe.learner.policy.numpy_policy()
    assert isinstance(policy, NumpyPolicyValue)
    return policy, done, spent


def four_arena(matches: int) -> Arena:
    """Connect Four."""
    game = CompiledGame("connect_four")
    game.reset(0)
    layout = SeatLayout.from_game(game, "connect_four")
    return open_arena(lambda: CompiledGame("connect_four"), layout, matches=matches, max_steps=100)


def score_of(mine: Player, other: Player, matches: int, seed: int) -> float:
    """Mean score of `mine`, in every seat alike."""
    returns = four_arena(matches).play([[mine, other], [other, mine]] * (matches // 2), seed=seed)
    return float(np.mean([match_scores(row, place % 2) for place, row in enumerate(returns)]))


def four_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Connect Four by tree search against random players and against searches with playouts."""
    seeds, matches = (1, 60) if fast else (3, 400)
    limit = {"steps": 10} if fast else {"budget_s": 60.0}  # steps are the same on any processor
    scores: dict[str, list[float]] = {}
    words, spent = list[str](), 0.0
    layout = four_arena(2).layout
    opponents = {"random": RandomPlayer(layout), "MCTS-100": MctsPlayer(100), "MCTS-1000": MctsPlayer(1000)}
    for seed in range(SEED, SEED + seeds):
        with tempfile.TemporaryDirectory() as folder:
            policy, steps, cpu_s = trained_four(seed, Path(folder), **limit)
        words.append(f"{steps} steps")
        spent += cpu_s
        searching = SearchPlayer(policy=policy, search=TreeSearchConfig(evaluation_simulations=100))
        deeper = SearchPlayer(policy=policy, search=TreeSearchConfig(evaluation_simulations=200))
        for name, other in opponents.items():
            mine = deeper if name == "MCTS-1000" else searching
            scores.setdefault(name, []).append(score_of(mine, other, matches, seed))
        alone = score_of(PolicyPlayer(policy, greedy=True), MctsPlayer(100), matches, seed)
        scores.setdefault("alone", []).append(alone)
    bars = {"random": 0.95, "MCTS-100": 0.5 if fast else 0.55, **({} if fast else {"MCTS-1000": 0.5})}
    lines = {"random": "100", "MCTS-100": "100", "MCTS-1000": "200"}
    for name, bar in bars.items():
        wider = "; after a twelfth of the steps the bar is 0.5" if fast and name == "MCTS-100" else ""
        yield AcceptanceLine(
            figure=f"Connect Four: score against {name}, search of {lines[name]} lines",
            value=float(np.mean(scores[name])),
            at_least=bar, seeds=seeds, cpu_s=spent,
            words=f"{spent / seeds:.0f} CPU s of training each ({', '.join(words)}), {matches} matches, worst seed "
            f"{min(scores[name]):.3f}; the network alone against MCTS-100 {np.mean(scores['alone']):.3f}{wider}",
        )  # fmt: skip
    yield from gate_lines(policy)


def gate_lines(policy: NumpyPolicyValue) -> Iterator[AcceptanceLine]:
    """A net that noise made worse, in its priors and its values, must not pass the gate."""
    search = TreeSearchConfig(simulations=16)  # explores: matches of two players that never vary would be one match
    champion = SearchPlayer(policy=policy, search=search, explores=True)
    rejected, evidence, gate = 0, list[float](), GateConfig(matches=100)
    with cpu_seconds() as cpu:
        for trial in range(20):
            shape = (policy.inputs.size, policy.actions.count + 1)
            noise = np.random.default_rng(SEED + trial).normal(scale=0.3, size=shape).astype(np.float32)

            def worse(seen: np.ndarray, noise: np.ndarray = noise) -> np.ndarray:
                return 0.5 * policy.both(seen) + seen @ noise

            new = SearchPlayer(policy=replace(policy, both=worse), search=search, explores=True)
            evidence.append(gate_evidence(four_arena(64), new, champion, gate, mixture_paths, seed=SEED + trial))
            rejected += evidence[-1] < 1 / gate.alpha
    yield AcceptanceLine(
        figure="worsened nets that the gate rejects, of 20", value=rejected, at_least=20, cpu_s=cpu.spent,
        words=f"noise in priors and values; largest e-value {max(evidence):.2f}, needed 20",
    )  # fmt: skip


def worker_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Half of the workers are killed in the middle of their blocks."""
    steps, workers, killed = (1, 2, list[int]()) if fast else (4, 4, list[int]())
    kills = workers // 2
    send = ChildProcess.send

    def send_and_kill(child: ChildProcess[Any], data: bytes) -> None:
        send(child, data)
        if b'"tickets"' in data and len(killed) < kills and child.pid not in killed:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    with tempfile.TemporaryDirectory() as folder, cpu_seconds() as cpu:
        job = job_of(
            "alphazero", steps=steps, seed=SEED, env={**FOUR, "num_envs": 8}, rollout_steps=8,
            search={"simulations": 8}, workers={"count": workers}, learner={"minibatches": 4},
        )  # fmt: skip
        job.open_folder(Path(folder))
        ChildProcess.send = send_and_kill  # type: ignore[method-assign]
        try:
            train(job.recipe, steps=steps, callback=lambda *_: None)
        finally:
            ChildProcess.send = send  # type: ignore[method-assign]
            job.close()
        log = MatchLog(path=Path(folder) / FILE)
        written, numbers = log.count(), {row[0] for row in log.rows("matches")}
        log.close()
    yield AcceptanceLine(
        figure=f"matches begun and not in the log, after {kills} of {workers} workers were killed",
        value=abs(steps * 64 - written) + (len(killed) != kills) + (numbers != set(range(steps * 64))), at_most=0,
        cpu_s=cpu.spent, words=f"{written} matches, {len(killed)} workers killed",
    )  # fmt: skip


def pairing_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Processor time of drawing one match's players from a full population."""
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(
            "league", steps=1, seed=SEED, env={"id": "compiled:kuhn_poker", "num_envs": 4},
            league={"every": 1, "payoff_matches": 2, "size": 33}, network={"hidden": [4]},
        )  # fmt: skip
        job.open_folder(Path(folder))
        pool = job.recipe.learner.pool
        for version in range(1, 33):
            pool.add(job.recipe.learner.policy, version)
        begin = time.process_time()
        for match in range(500):
            pool.draw(match)
        spent = (time.process_time() - begin) / 500
        job.close()
    yield AcceptanceLine(
        figure="pairing of one match, milliseconds of CPU", value=1000 * spent, at_most=1.0 * slack(fast=fast),
        words="population of 32, mean of 500",
    )  # fmt: skip


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """All figures of the league."""
    torch.set_num_threads(1)
    yield from poker_lines(fast=fast)
    if not fast:
        yield from learnt_poker_lines()
    yield from pairing_lines(fast=fast)
    yield from worker_lines(fast=fast)
    yield from four_lines(fast=fast)
