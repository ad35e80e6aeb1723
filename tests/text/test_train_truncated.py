"""Truncated sampling with ratios: the trainer draws the line where the engine drew it, or the config is refused."""

import json

import pytest
from pydantic import ValidationError
from tiny_runs import GRPO, hone, lay_out

from hone.recipes.text.grpo import GrpoConfig
from hone.recipes.text.optimal_token_baseline import ENTRY as OTB

CUT = ("rollout.top_k=6", "rollout.top_p=0.8", "rollout.min_p=0.05")


GRAMMAR = "rollout.grammar=/[0-9]{1,3}=?/"


@pytest.mark.parametrize(
    ("runner", "cut"), [("native", CUT), ("torch", CUT), ("native", (GRAMMAR,)), ("torch", (GRAMMAR, CUT[1]))]
)
def test_the_sampling_mask_is_replayed(runner, cut, tmp_path, monkeypatch) -> None:
    """Without the mask the trainer's log-probabilities would be lower by the log of the mass that was left."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    for config in tmp_path.glob("grpo.toml"):
        config.write_text(GRPO.replace("kl = 0.1", "kl = 0.0"), encoding="utf-8")
    assert hone("train", "grpo.toml", *cut, f"rollout.runner={json.dumps(runner)}", "learner.lr=1e-3") == 0
    lines = [json.loads(line) for line in (tmp_path / "runs/tiny/metrics.jsonl").read_text("utf-8").splitlines()]
    assert max(line["mismatch/mean"] for line in lines) < 2e-6
    assert max(line["mismatch/value_max"] for line in lines) < 1e-4


def fields(**rollout: object) -> dict[str, object]:
    return {
        "recipe": "grpo",
        "name": "x",
        "steps": 1,
        "model": {"new": {}},
        "task": {"source": "sums.jsonl"},
        "rewards": {"functions": [{"use": "exact_match"}]},
        "rollout": {"prompts_per_step": 2, "max_tokens": 3, **rollout},
        "learner": {"lr": 1e-3},
    }


def test_where_the_mask_cannot_be_replayed_truncation_is_refused() -> None:
    GrpoConfig.model_validate(fields(top_k=5))
    with pytest.raises(ValidationError, match=r"rollout\.top_k = 5: this recipe looks at other tokens"):
        OTB.config.model_validate(fields(top_k=5))
    with pytest.raises(ValidationError, match=r"rollout\.grammar = '/a/': this recipe looks at other tokens"):
        OTB.config.model_validate(fields(grammar="/a/"))
    with pytest.raises(ValidationError, match=r"rollout\.grammar is for the embedded engine"):
        GrpoConfig.model_validate({**fields(grammar="/a/"), "cluster": {}})
    server = {"kind": "vllm", "url": "http://localhost:1"}
    GrpoConfig.model_validate(fields(runner=server))
    with pytest.raises(ValidationError, match=r"rollout\.min_p = 0\.1: a server does not say"):
        GrpoConfig.model_validate(fields(runner=server, min_p=0.1))
