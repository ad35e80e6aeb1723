"""Reward models as rewards: several with their spread, scores of steps, and the faults of models that mean nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from hone.core.conversation import TranscriptBuilder
from hone.core.errors import DataError
from hone.core.generation import Completion
from hone.core.judging import ScorerInput
from hone.estimators.calibration import probabilities
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import ScoreRange, TokenScorer, new_scalar_head
from hone.models.language.tokenizers import Tokenizer, character_tokenizer
from hone.rewards.config import RewardModel, RewardsConfig, UserCodeConfig
from hone.rewards.scorer import RewardScorer
from hone.text.evaluate.reward_members import load_reward_scorer, require_context, reward_scorer
from hone.text.tasks.world import Prompt

TOKENIZER = character_tokenizer(["0123456789;"])


def saved(folder: Path, *, seed: int, steps: bool = False, seen: ScoreRange | None = None, scale: float = 1.0) -> str:
    shape = ModelConfig(
        vocab_size=TOKENIZER.size, hidden_size=8, intermediate_size=16, layers=1, heads=2, max_positions=32
    )
    model = new_scalar_head(new_model(shape, seed=seed), seed=seed, reads="steps" if steps else "last")
    with torch.no_grad():
        model.score.weight.mul_(scale)
    TokenScorer(model, TOKENIZER, seen).save(folder)
    return str(folder)


def scorer_of(config: dict[str, object], *, step_end: str = "") -> RewardScorer:
    rewards = RewardsConfig.model_validate({"functions": [{"kind": "model", **config}], "step_end": step_end})

    def load(path: str, weights: str) -> TokenScorer:
        return load_reward_scorer(path, weights, device="cpu", tokenizer=TOKENIZER)

    return reward_scorer(rewards, limits=UserCodeConfig(), load=load)


def answer(text: str, *, steps: int | None = None) -> ScorerInput:
    prompt, said = TOKENIZER.encode("12"), TOKENIZER.encode(text)
    built = TranscriptBuilder(prompt=prompt)
    built.append_sampled(
        Completion(
            request_id="a", sample_index=0, tokens=said, logp=np.zeros(len(said), np.float32),
            version=np.zeros(len(said), np.int32), finish_reason="stop", sampled_logp=np.zeros(len(said), np.float32),
        )
    )  # fmt: skip
    return ScorerInput(prompt="12", text=text, columns={}, messages=(), transcript=built, steps=steps)


def scores(scorer: RewardScorer, answers: list[ScorerInput]) -> np.ndarray:
    return scorer.gather([scorer.submit(answers)]).score


ANSWERS = [answer(text) for text in ("1;2;", "35", "9;;1", "4")]


def test_several_models_score_their_mean_less_the_price_of_their_spread(tmp_path: Path) -> None:
    paths = [saved(tmp_path / str(seed), seed=seed) for seed in range(3)]
    alone = np.stack([scores(scorer_of({"path": path}), ANSWERS) for path in paths])
    both = scorer_of({"path": paths[0], "members": paths[1:], "pessimism": 0.5, "name": "taste"})
    expected = alone.mean(axis=0) - 0.5 * alone.std(axis=0, ddof=1)
    np.testing.assert_allclose(scores(both, ANSWERS), expected, rtol=0, atol=1e-6)
    assert both.metrics() == {"rewards/taste_spread": pytest.approx(alone.std(axis=0, ddof=1).mean(), abs=1e-6)}
    again = scorer_of({"path": paths[0], "members": paths[1:], "pessimism": 0.5, "name": "taste"})
    again.restore(both.state())
    chance = scorer_of({"path": paths[0], "output": "probability"})
    np.testing.assert_allclose(scores(chance, ANSWERS), probabilities(alone[0]), rtol=0, atol=1e-6)


def test_steps_are_scored_at_their_last_tokens(tmp_path: Path) -> None:
    path = saved(tmp_path / "prm", seed=1, steps=True)
    inputs = [answer("1;2;3", steps=3), answer("45;", steps=2), answer("6", steps=1)]
    model = load_reward_scorer(path, "float32", device="cpu", tokenizer=TOKENIZER).model
    sequences = [one.tokens for one in inputs]
    places = [np.array([3, 5, 6]), np.array([4, 4]), np.array([2])]  # two tokens of prompt before
    slow = np.split(model.score_tokens(sequences, places, micro_batch_tokens=9), [3, 5])
    each = scorer_of({"path": path, "at": "steps"}, step_end=";")
    found = each.gather([each.submit(inputs)])
    for place, wanted in enumerate(slow):
        np.testing.assert_allclose(found.turn_scores[place], wanted, rtol=0, atol=1e-6)
        assert found.score[place] == pytest.approx(wanted.sum(), abs=1e-6)
    weakest = scorer_of({"path": path, "at": "weakest"}, step_end=";")
    np.testing.assert_allclose(scores(weakest, inputs), [one.min() for one in slow], rtol=0, atol=1e-6)
    assert each.check([]) == []
    outcome = scorer_of({"path": saved(tmp_path / "orm", seed=1), "at": "weakest"}, step_end=";")
    assert "a sequence classifier, trained on whole answers" in outcome.check([])[0]


def test_scores_far_from_those_of_training_are_told_once(tmp_path: Path) -> None:
    seen = ScoreRange(mean=0.0, std=1e-4, n=256)
    scorer = scorer_of({"path": saved(tmp_path / "rm", seed=0, seen=seen)})
    for _ in range(2):
        scores(scorer, ANSWERS)
    (line,) = scorer.notes()
    assert "gives 4 of 4 scores more than 10 standard deviations from those of its training answers" in line
    assert scorer.notes() == []
    wide = scorer_of({"path": saved(tmp_path / "wide", seed=0, seen=ScoreRange(mean=0.0, std=10.0, n=256))})
    scores(wide, ANSWERS)
    assert wide.notes() == []


def test_a_model_with_one_score_for_all_is_told(tmp_path: Path) -> None:
    scorer = scorer_of({"path": saved(tmp_path / "rm", seed=0, scale=0.0)})
    scores(scorer, ANSWERS * 2)
    assert "gives all of 8 scored tokens the same score, 0" in scorer.notes()[0]


def test_a_model_that_gives_nan_stops_the_run(tmp_path: Path) -> None:
    scorer = scorer_of({"path": saved(tmp_path / "rm", seed=0, scale=1e38), "name": "broken"})
    with torch.no_grad():
        member = scorer.members[0][1]
        member.check([])  # type: ignore[attr-defined]
        member._models[0].model.score.weight.fill_(torch.inf)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"reward model 'broken' \(.*rm\) gives NaN to \d of 4 scored tokens"):
        scores(scorer, ANSWERS)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pessimism": 1.0}, "pessimism is the price of disagreement"),
        ({"members": ["a"]}, "a stands there twice"),
        ({"at": "steps"}, 'at = "steps" scores the steps of answers; say what ends a step'),
        ({"at": "weakest"}, 'at = "weakest" scores the steps'),
    ],
)
def test_configs_that_cannot_be_meant_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardsConfig.model_validate({"functions": [{"kind": "model", "path": "a", **config}]})


def test_a_context_shorter_than_prompt_and_answer_is_refused_with_the_longest_row(tmp_path: Path) -> None:
    path = saved(tmp_path / "rm", seed=0)
    rewards = RewardsConfig(functions=[RewardModel(kind="model", path=path)])
    prompts = [Prompt(id=name, content="", tokens=np.zeros(size, np.int32), columns={}) for name, size in
               (("short", 2), ("long", 20))]  # fmt: skip
    require_context(rewards, prompts, max_tokens=12)
    with pytest.raises(DataError, match=r"reads 32 tokens.*longest prompt \(long, 20 tokens\).*of 13 has 33"):
        require_context(rewards, prompts, max_tokens=13)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other: Tokenizer = character_tokenizer(["abc"])
    with pytest.raises(DataError, match="another vocabulary than the policy"):
        load_reward_scorer(saved(tmp_path / "rm", seed=0), "float32", device="cpu", tokenizer=other)


def test_a_damaged_range_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "rm", seed=0, seen=ScoreRange(mean=0.0, std=1.0, n=2))
    assert load_reward_scorer(path, "float32", device="cpu", tokenizer=TOKENIZER).score_range == ScoreRange(
        mean=0.0, std=1.0, n=2
    )
    (Path(path) / "score_range.json").write_text('{"mean": "x"}')
    with pytest.raises(DataError, match=r"score_range.json: expected the numbers mean, std and n"):
        load_reward_scorer(path, "float32", device="cpu", tokenizer=TOKENIZER)
