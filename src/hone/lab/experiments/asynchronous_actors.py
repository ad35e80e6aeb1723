"""Asynchronous actors: a language model learns from answers that another thread writes with older weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.generation import SamplingParams
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.credit.group import group_relative
from hone.envs.text.world import Prompt, TextWorld
from hone.evaluate.text.engine_actor import EngineActor, EngineGuarantees, make_engine
from hone.lab.control import moving_average, train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.objectives.policy import clipped_surrogate, reinforce_loss
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.train.learner.config import LearnerConfig
from hone.train.loop import Recipe
from hone.train.sources.asynchronous import AsyncSource
from hone.train.sources.live import LiveSource
from hone.train.text.learners import token_learner
from hone.train.text.rows import TokenBatch, TokenLayout

LETTERS, TOKENS = "abcdefgh", 6
AGES = (0, 1, 4)
EACH, RATE, WINDOW = 8, 0.02, 5
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


def train_async(age: int, *, corrected: bool, seed: int, steps: int) -> tuple[Floats, str]:
    """Mean score of each step's answers `[steps]`, and the hash of the final weights."""
    policy = new_policy(seed)
    engine = make_engine(
        policy, slots=EACH * len(LETTERS), longest_prompt=1, max_tokens=TOKENS, seed=seed, runner="auto",
        guarantees=EngineGuarantees(on_publish="recompute"),
    )  # fmt: skip
    world = TextWorld(
        prompts=[
            Prompt(id=letter, content=letter, tokens=policy.tokenizer.encode(letter), columns={}) for letter in LETTERS
        ],
        scorer=LetterScorer(),
        decode=policy.tokenizer.decode,
        sampling=SamplingParams(max_tokens=TOKENS),
        prompts_per_step=len(LETTERS),
        samples=EACH,
        seed=seed,
    )  # fmt: skip
    live = LiveSource[TokenPolicy](world, EngineActor(engine))
    source = AsyncSource[TokenPolicy](live, max_staleness=age, in_background=True)
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
    return scores, policy.fingerprint()


def claims_of(mean: dict[int, float], end: dict[int, dict[str, float]], hashes: Sequence[str]) -> list[BoundedClaim]:
    """Claims on the mean score in training with the ratio, by staleness, on the score in the last fifth by staleness
    and correction, and on the weights of two asynchronous runs."""
    oldest = max(mean)
    return [
        at_most("two asynchronous runs with different weights", len(set(hashes)) - 1, 0.5),
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
            [train_async(age, corrected=name == CORRECTED, seed=10 * seed + k, steps=steps)[0] for k in range(runs)]
        )
        for age, name in cases
    }
    hashes = [train_async(1, corrected=True, seed=seed, steps=6)[1] for _ in range(2)]
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
            f"steps score {end[oldest][CORRECTED]:.2f}, without a correction {end[oldest][PLAIN]:.2f}. A thread writes "
            f"while the learner works, on a fixed schedule: two runs have {weights} weights, compared by "
            "sha256 after 6 steps."
        ),
        claims=claims_of(mean, end, hashes),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Asynchronous actors",
    question="What does learning from answers of older weights cost, and what does the ratio repair?",
    run=run,
    source="Mnih et al., 2016 (A3C); Fu et al., 2025 (AReaL)",
)
