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

LETTERS, TOKENS = "abcdefgh", 6
AGES = (0, 1, 4)
EACH, RATE, WINDOW = 8, 0.02, 5
FEW_SLOTS, REPLAYED = 4, 8
"""Answers that the recorded run writes at once, so few that it is at work when weights arrive, and its steps."""
PLAIN, CORRECTED = "no correction", "ratio to the recorded policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterScores:
    """Scores of answers, in the form that episodes take."""

    score: Floats
    status: np.ndarray
    functions: dict[str, Floats]
    turn_scores: dict[int, Sequence[float]]


class LetterScorer:
    """Score: the share of an answer's six places that hold the letter after the prompt's."""

    def submit(self, answers: Sequence[ScorerInput]) -> object:
        """Scores of some answers."""
        wanted = [LETTERS[(LETTERS.index(str(one.prompt)) + 1) % len(LETTERS)] for one in answers]
        return [one.text.count(letter) / TOKENS for one, letter in zip(answers, wanted, strict=True)]

    def gather(self, tickets: Sequence[list[float]]) -> LetterScores:
        """All scores in the order of the tickets."""
        score = np.concatenate([np.array(ticket, np.float64) for ticket in tickets])
        status = np.full(len(score), ScoreStatus.SCORED, np.uint8)
        return LetterScores(score=score, status=status, functions={"letters": score}, turn_scores={})

    def state(self) -> State:
        """Nothing is kept."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


def new_policy(seed: int) -> TokenPolicy:
    """A decoder of one layer that has learnt nothing."""
    tokenizer = character_tokenizer([LETTERS])
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=1, heads=2, kv_heads=1,
        head_dim=16, max_positions=16,
    )  # fmt: skip
    return TokenPolicy(new_model(config, seed=seed), tokenizer)


def loss_of(policy: TokenPolicy, batch: TokenBatch, *, corrected: bool) -> LossTerms:
    """Clipped ratio to the policy that wrote, as it was recorded; or the gradient of the policy that learns."""
    now = policy.token_logprobs(batch.packed, batch.at, batch.chosen)
    if corrected:
        return clipped_surrogate(now.logp, batch.behaviour_logp, batch.advantage)
    return reinforce_loss(now.logp, batch.advantage)


def letter_world(policy: TokenPolicy, seed: int) -> TextWorld:
    """Every letter, several times."""
    return TextWorld(
        prompts=[
            Prompt(id=letter, content=letter, tokens=policy.tokenizer.encode(letter), columns={}) for letter in LETTERS
        ],
        scorer=LetterScorer(),
        decode=policy.tokenizer.decode,
        sampling=SamplingParams(max_tokens=TOKENS),
        prompts_per_step=len(LETTERS),
        samples=EACH,
        seed=seed,
    )


def letter_engine(policy: TokenPolicy, *, slots: int, seed: int) -> EmbeddedEngine:
    """An engine with its own copy of the weights."""
    return make_engine(
        policy, slots=slots, longest_prompt=1, max_tokens=TOKENS, seed=seed, runner="auto",
        guarantees=EngineGuarantees(on_publish="recompute"),
    )  # fmt: skip


def learn_from(
    source: AsyncSource[TokenPolicy], policy: TokenPolicy, *, corrected: bool, seed: int, steps: int
) -> Floats:
    """Train the policy in place -> mean score of each step's answers `[steps]`."""
    learner = token_learner(
        LearnerConfig(lr=RATE),
        policy,
        layout=TokenLayout(scheme=token_mean),
        objective=lambda now, batch: loss_of(now, batch, corrected=corrected),
        seed=seed,
        steps=steps,
    )
    scores = np.empty(steps)

    def watch(step: int, episodes: Episodes) -> None:
        scores[step - 1] = episodes.score.mean()

    try:
        train_recipe(Recipe(source=source, credit=group_relative, learner=learner), steps=steps, watch=watch)
    finally:
        source.close()
    return scores


def train_async(age: int, *, corrected: bool, seed: int, steps: int) -> Floats:
    """Mean score of each step's answers `[steps]`; a batch is written by one version, on a fixed schedule."""
    policy = new_policy(seed)
    actor = EngineActor(letter_engine(policy, slots=EACH * len(LETTERS), seed=seed))
    live = LiveSource[TokenPolicy](letter_world(policy, seed), actor)
    source = AsyncSource[TokenPolicy](live, max_staleness=age, in_background=True)
    return learn_from(source, policy, corrected=corrected, seed=seed, steps=steps)


def record_run(folder: Path, *, seed: int, steps: int) -> str:
    """Train with weights that arrive while answers are written, and record which version drew which token -> hash of
    the final weights."""
    policy = new_policy(seed)
    actor = RecordingActor(letter_engine(policy, slots=FEW_SLOTS, seed=seed))
    recorded = RecordedSource(LiveSource[TokenPolicy](letter_world(policy, seed), actor), actor=actor)
    recorded.open_folder(folder)
    source = AsyncSource[TokenPolicy](recorded, max_staleness=1, in_background=True, partial_rollouts=True)
    learn_from(source, policy, corrected=True, seed=seed, steps=steps)
    return policy.fingerprint()


def replay_run(record: InterleavingRecord, *, seed: int, steps: int) -> str:
    """Train again with every token drawn by its recorded version -> hash of the final weights."""
    policy = new_policy(seed)
    actor = ReplayingActor(letter_engine(policy, slots=max(FEW_SLOTS, record.most_in_progress()), seed=seed))
    actor.start(policy.decoder, versions=2)
    live = LiveSource[TokenPolicy](letter_world(policy, seed), actor)
    source = AsyncSource[TokenPolicy](
        ReplayedSource(live, actor=actor, record=record), max_staleness=1, on_demand=True, partial_rollouts=True
    )
    learn_from(source, policy, corrected=True, seed=seed, steps=steps)
    return policy.fingerprint()


def share_of_mixed(record: InterleavingRecord) -> float:
    """Share of the recorded answers whose tokens are of several versions."""
    answers = [one for batch in range(record.batches) for one in record.read_batch(batch + 1).versions.values()]
    return float(np.mean([len(set(one.versions)) > 1 for one in answers]))


def run_twice(seed: int, *, steps: int) -> tuple[list[str], float]:
    """Hashes of a recorded run and of its replay, and the share of answers of several versions."""
    with TemporaryDirectory() as folder:
        recorded = record_run(Path(folder), seed=seed, steps=steps)
        record = read_interleaving(Path(folder) / INTERLEAVING)
        return [recorded, replay_run(record, seed=seed, steps=steps)], share_of_mixed(record)


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


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    steps, runs, ages = (50, 1, (0, 4)) if quick else (80, 2, AGES)
    cases = [(age, name) for age in ages for name in ((CORRECTED, PLAIN) if age else (CORRECTED,))]
    paths = {
        (age, name): np.stack(
            [train_async(age, corrected=name == CORRECTED, seed=10 * seed + k, steps=steps) for k in range(runs)]
        )
        for age, name in cases
    }
    hashes, mixed = run_twice(seed, steps=REPLAYED)
    mean = {age: float(paths[age, CORRECTED].mean()) for age in ages}
    end = {
        age: {name: float(one[:, -steps // 5 :].mean()) for (at, name), one in paths.items() if at == age}
        for age in ages
    }
    x, weights = np.arange(WINDOW, steps + 1), "equal" if len(set(hashes)) == 1 else "different"
    oldest = ages[-1]
    rows = [(str(age), name, f"{paths[age, name].mean():.2f}", f"{end[age][name]:.2f}") for age, name in cases]
    return ExperimentResult(
        header=("staleness, steps", "correction", "mean score in training", "in the last fifth"),
        rows=rows,
        panels=[
            line_plot(
                f"score of the answers, means over {WINDOW} steps", "step", x,
                {
                    f"staleness {age}, {name}": np.stack([moving_average(one, WINDOW) for one in paths[age, name]])
                    for age, name in cases
                },
            )
        ],
        verdict=(
            f"A language model whose answers are {oldest} versions old reaches a mean score of {mean[oldest]:.2f} in "
            f"{steps} steps, against {mean[0]:.2f} with fresh answers. With the ratio to the recorded policy its last "
            f"steps score {end[oldest][CORRECTED]:.2f}, without a correction {end[oldest][PLAIN]:.2f}. Where weights "
            f"arrive while answers are written, {mixed:.0%} of the answers were drawn by several versions, as time had "
            f"it; replayed by the record of who drew which token, {REPLAYED} steps gave {weights} weights (sha256)."
        ),
        claims=claims_of(mean, end, hashes, mixed),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Asynchronous actors",
    question="What does learning from answers of older weights cost, and what does the ratio repair?",
    run=run,
    source="Mnih et al., 2016 (A3C); Fu et al., 2025 (AReaL)",
)
