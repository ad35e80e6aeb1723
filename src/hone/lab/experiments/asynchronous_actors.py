"""Asynchronous actors: a language model learns from answers that another thread writes with older weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.generation import SamplingParams
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.credit.group import group_relative
from hone.engine.engine import EmbeddedEngine
from hone.lab.control import moving_average, train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.learner.config import LearnerConfig
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.objectives.policy import clipped_surrogate, reinforce_loss
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.run.loop import Recipe
from hone.run.store.interleaving import INTERLEAVING, InterleavingRecord, read_interleaving
from hone.sources.asynchronous import AsyncSource
from hone.sources.live import LiveSource
from hone.text.evaluate.engine_actor import EngineActor, EngineGuarantees, make_engine
from hone.text.interleaving import RecordedSource, RecordingActor, ReplayedSource, ReplayingActor
from hone.text.learners import token_learner
from hone.text.rows import TokenBatch, TokenLayout
from hone.text.tasks.world import Prompt, TextWorld

_LETTERS, _TOKENS = "abcdefgh", 6
_AGES = (0, 1, 4)
_EACH, _RATE, _WINDOW = 8, 0.02, 5
_FEW_SLOTS, _REPLAYED = 4, 8
"""Answers that the recorded run writes at once, so few that it is at work when weights arrive, and its steps."""
PLAIN, CORRECTED = "no correction", "ratio to the recorded policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LetterScores:
    """Scores of answers, in the form that episodes take."""

    score: Floats
    status: np.ndarray
    functions: dict[str, Floats]
    turn_scores: dict[int, Sequence[float]]


class _LetterScorer:
    """Score: the share of an answer's six places that hold the letter after the prompt's."""

    def submit(self, answers: Sequence[ScorerInput]) -> object:
        """Scores of some answers."""
        wanted = [_LETTERS[(_LETTERS.index(str(one.prompt)) + 1) % len(_LETTERS)] for one in answers]
        return [one.text.count(letter) / _TOKENS for one, letter in zip(answers, wanted, strict=True)]

    def gather(self, tickets: Sequence[list[float]]) -> _LetterScores:
        """All scores in the order of the tickets."""
        score = np.concatenate([np.array(ticket, np.float64) for ticket in tickets])
        status = np.full(len(score), ScoreStatus.SCORED, np.uint8)
        return _LetterScores(score=score, status=status, functions={"letters": score}, turn_scores={})

    def state(self) -> State:
        """Nothing is kept."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


def _new_policy(seed: int) -> TokenPolicy:
    """A decoder of one layer that has learnt nothing."""
    tokenizer = character_tokenizer([_LETTERS])
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=1, heads=2, kv_heads=1,
        head_dim=16, max_positions=16,
    )  # fmt: skip
    return TokenPolicy(new_model(config, seed=seed), tokenizer)


def _letter_world(policy: TokenPolicy, seed: int) -> TextWorld:
    """Every letter, several times."""
    return TextWorld(
        prompts=[
            Prompt(id=letter, content=letter, tokens=policy.tokenizer.encode(letter), columns={}) for letter in _LETTERS
        ],
        scorer=_LetterScorer(),
        decode=policy.tokenizer.decode,
        sampling=SamplingParams(max_tokens=_TOKENS),
        prompts_per_step=len(_LETTERS),
        samples=_EACH,
        seed=seed,
    )


def _letter_engine(policy: TokenPolicy, *, slots: int, seed: int) -> EmbeddedEngine:
    """An engine with its own copy of the weights."""
    return make_engine(
        policy, slots=slots, longest_prompt=1, max_tokens=_TOKENS, seed=seed, runner="auto",
        guarantees=EngineGuarantees(on_publish="recompute"),
    )  # fmt: skip


def _learn_from(
    source: AsyncSource[TokenPolicy], policy: TokenPolicy, *, corrected: bool, seed: int, steps: int
) -> Floats:
    """Train the policy in place -> mean score of each step's answers `[steps]`."""

    def objective(now: TokenPolicy, batch: TokenBatch) -> LossTerms:
        """Clipped ratio to the policy that wrote, as it was recorded; or the gradient of the policy that learns."""
        logp = now.token_logprobs(batch.packed, batch.at, batch.chosen).logp
        if corrected:
            return clipped_surrogate(logp, batch.behaviour_logp, batch.advantage)
        return reinforce_loss(logp, batch.advantage)

    layout = TokenLayout(scheme=token_mean)
    learner = token_learner(LearnerConfig(lr=_RATE), policy, layout=layout, objective=objective, seed=seed, steps=steps)
    scores = np.empty(steps)

    def watch(step: int, episodes: Episodes) -> None:
        scores[step - 1] = episodes.score.mean()

    try:
        train_recipe(Recipe(source=source, credit=group_relative, learner=learner), steps=steps, watch=watch)
    finally:
        source.close()
    return scores


def _record_run(folder: Path, *, seed: int, steps: int) -> str:
    """Train with weights that arrive while answers are written, and record which version drew which token -> hash of
    the final weights."""
    policy = _new_policy(seed)
    actor = RecordingActor(_letter_engine(policy, slots=_FEW_SLOTS, seed=seed))
    recorded = RecordedSource(LiveSource[TokenPolicy](_letter_world(policy, seed), actor), actor=actor)
    recorded.open_folder(folder)
    source = AsyncSource[TokenPolicy](recorded, max_staleness=1, in_background=True, partial_rollouts=True)
    _learn_from(source, policy, corrected=True, seed=seed, steps=steps)
    return policy.fingerprint()


def _replay_run(record: InterleavingRecord, *, seed: int, steps: int) -> str:
    """Train again with every token drawn by its recorded version -> hash of the final weights."""
    policy = _new_policy(seed)
    actor = ReplayingActor(_letter_engine(policy, slots=max(_FEW_SLOTS, record.most_in_progress()), seed=seed))
    actor.start(policy.decoder, versions=2)
    live = LiveSource[TokenPolicy](_letter_world(policy, seed), actor)
    source = AsyncSource[TokenPolicy](
        ReplayedSource(live, actor=actor, record=record), max_staleness=1, on_demand=True, partial_rollouts=True
    )
    _learn_from(source, policy, corrected=True, seed=seed, steps=steps)
    return policy.fingerprint()


def claims_of(
    mean: dict[int, float], end: dict[int, dict[str, float]], hashes: Sequence[str], mixed: float
) -> list[BoundedClaim]:
    """Claims on the mean score in training with the ratio, by staleness, on the score in the last fifth by staleness
    and correction, on the weights of a recorded run and its replay, and on the share of its answers of several
    versions."""
    oldest = max(mean)
    return [
        at_most("a recorded run and its replay with different weights", len(set(hashes)) - 1, 0.5),
        at_least("share of the recorded answers of several versions", mixed, 0.003),
        at_most(f"mean score in training, staleness {oldest} over 0", mean[oldest] / mean[0], 0.9),
        at_least(
            f"score in the last fifth, staleness {oldest}, with the ratio over without",
            end[oldest][CORRECTED] / end[oldest][PLAIN],
            1.05,
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs, ages = (50, 1, (0, 4)) if quick else (80, 2, _AGES)
    cases = [(age, name) for age in ages for name in ((CORRECTED, PLAIN) if age else (CORRECTED,))]

    def trained(age: int, *, corrected: bool, seed: int) -> Floats:
        """Mean score of each step's answers `[steps]`; a batch is written by one version, on a fixed schedule."""
        policy = _new_policy(seed)
        actor = EngineActor(_letter_engine(policy, slots=_EACH * len(_LETTERS), seed=seed))
        live = LiveSource[TokenPolicy](_letter_world(policy, seed), actor)
        source = AsyncSource[TokenPolicy](live, max_staleness=age, in_background=True)
        return _learn_from(source, policy, corrected=corrected, seed=seed, steps=steps)

    paths = {
        (age, name): np.stack([trained(age, corrected=name == CORRECTED, seed=10 * seed + k) for k in range(runs)])
        for age, name in cases
    }
    with TemporaryDirectory() as folder:
        recorded = _record_run(Path(folder), seed=seed, steps=_REPLAYED)
        record = read_interleaving(Path(folder) / INTERLEAVING)
        hashes = [recorded, _replay_run(record, seed=seed, steps=_REPLAYED)]
        answers = [one for batch in range(record.batches) for one in record.read_batch(batch + 1).versions.values()]
    mixed = float(np.mean([len(set(one.versions)) > 1 for one in answers]))  # answers of several versions
    mean = {age: float(paths[age, CORRECTED].mean()) for age in ages}
    end = {
        age: {name: float(one[:, -steps // 5 :].mean()) for (at, name), one in paths.items() if at == age}
        for age in ages
    }
    x, weights = np.arange(_WINDOW, steps + 1), "equal" if len(set(hashes)) == 1 else "different"
    oldest = ages[-1]
    rows = [(str(age), name, f"{paths[age, name].mean():.2f}", f"{end[age][name]:.2f}") for age, name in cases]
    return ExperimentResult(
        header=("staleness, steps", "correction", "mean score in training", "in the last fifth"),
        rows=rows,
        panels=[
            line_plot(
                f"score of the answers, means over {_WINDOW} steps", "step", x,
                {
                    f"staleness {age}, {name}": np.stack([moving_average(one, _WINDOW) for one in paths[age, name]])
                    for age, name in cases
                },
            )
        ],
        verdict=(
            f"A language model whose answers are {oldest} versions old reaches a mean score of {mean[oldest]:.2f} in "
            f"{steps} steps, against {mean[0]:.2f} with fresh answers. With the ratio to the recorded policy its last "
            f"steps score {end[oldest][CORRECTED]:.2f}, without a correction {end[oldest][PLAIN]:.2f}. Where weights "
            f"arrive while answers are written, {mixed:.0%} of the answers were drawn by several versions, as time had "
            f"it; replayed by the record of who drew which token, {_REPLAYED} steps gave {weights} weights (sha256)."
        ),
        claims=claims_of(mean, end, hashes, mixed),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Asynchronous actors",
    question="What does learning from answers of older weights cost, and what does the ratio repair?",
    run=_run,
    source="Mnih et al., 2016 (A3C); Fu et al., 2025 (AReaL)",
)
