"""A run planned from its settings alone: every recipe against its checked config, adapters, processors, bad input."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hone.cli import closed_plan as closed
from hone.cli.calibration import processor_traits
from hone.cli.closed_plan import closed_plan
from hone.cli.main import main
from hone.config.toml import ConfigDocument
from hone.core.errors import DataError, HoneError
from hone.learner.config import MIN_LR_WITHOUT_MASTER_WEIGHTS
from hone.models.language.config import model_config_from_hf
from hone.models.language.lora import LoraConfig
from hone.models.native.library import available_kernels, uses_amx_tiles, widens_half_products
from hone.planner.known_models import KNOWN_MODELS, known_model
from hone.planner.planned_decoder import shape_from_hf
from hone.planner.run_settings import PLANNED_RECIPES, TextLengths, adapter_sizes
from hone.recipes.registry import load_recipe
from hone.run.memory_plan import MemoryPlan
from hone.text.evaluate.open_policy import has_fast_bfloat16, open_tokenizer
from hone.text.memory import config_settings, planned_decoder, text_memory

NEW = {
    "hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64,
    "max_positions": 64,
}  # fmt: skip
ROLLOUT = {"prompts_per_step": 4, "samples_per_prompt": 4, "max_tokens": 8}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "on_policy_distillation": {"algorithm": {"teacher": "somewhere"}},
    "passk": {"algorithm": {"k": 2}},
    "pkpo": {"algorithm": {"k": 2}},
    "dro": {"algorithm": {"beta": 0.1}},
    "warm_grpo": {"algorithm": {"warm": {"source": "somewhere"}}},
    "best_of_n_distillation": {"algorithm": {"collect_steps": 1, "learn_steps": 1, "batch": 4}},
    "expert_iteration": {"algorithm": {"collect_steps": 1, "learn_steps": 1, "batch": 4}},
}
"""What a recipe asks for beyond the rest."""
RECIPES: Mapping[str, Mapping[str, Any]] = json.loads(PLANNED_RECIPES.read_text(encoding="utf-8"))["recipes"]


def tables(recipe: str, **changes: Any) -> dict[str, Any]:
    """A config of a recipe."""
    found: dict[str, Any] = {
        "recipe": recipe, "steps": 2, "task": {"source": "prompts.jsonl"}, "model": {"new": NEW},
        "learner": {"lr": 1e-4, "micro_batch_tokens": 128},
    }  # fmt: skip
    if RECIPES[recipe].get("writes"):
        found |= {"rewards": {"functions": [{"use": "exact_match"}]}, "rollout": ROLLOUT}
    return found | dict(NEEDED.get(recipe, {})) | changes


def document(values: Mapping[str, Any]) -> ConfigDocument:
    return ConfigDocument(name="run.toml", values=json.loads(json.dumps(values)))


def plan_of(config: Any, lengths: TextLengths) -> MemoryPlan:
    """The plan of a checked config, whose data have texts of these lengths."""
    return text_memory(
        config_settings(config), config.model, config.planned(), open_tokenizer(config.model)[0], lengths
    )


def test_every_kind_of_recipe_is_planned_as_its_checked_config_is() -> None:
    """The dimensions from settings are those of the config class, of its copies of the weights, and of the model."""
    kinds = {json.dumps(facts): name for name, facts in RECIPES.items()}
    assert len(RECIPES) > 50
    assert len(kinds) > 10
    for name in kinds.values():
        values = tables(name)
        config: Any = load_recipe(name).config.model_validate({**values, "name": "x"})
        prompt = 28 - RECIPES[name].get("answers", 1) * 8 if RECIPES[name].get("writes") else 0
        plan = plan_of(config, TextLengths(prompt=prompt, whole=28))
        assert closed_plan(document(values), 28).run == plan.run, name


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"max_tokens": 4, "task": {"source": "held.jsonl"}}},
        {"algorithm": {"kl": 0.1, "entropy": 0.01}},
        {"model": {"new": NEW, "compute": "float32", "activations": "recompute"}},
        {"model": {"new": NEW, "exactness": "bitwise"}},
        {"model": {"new": NEW, "activations": "round_again"}},
        {"model": {"new": NEW, "weights": "bfloat16"}},
        {"rollout": {**ROLLOUT, "runner": "native_bfloat16", "max_concurrent": 3}},
        {"rollout": {**ROLLOUT, "runner": "torch", "max_staleness": 1}},
        {"rollout": {**ROLLOUT, "runner": "torch", "max_staleness": {"steps": 2}}},
        {"learner": {"lr": 1e-4, "minibatches": 4}},
        {"model": {"new": {**NEW, "family": "olmoe", "experts": {"count": 4}, "tokenizer": "bytes"}}},
        {"preset": "verl"},
    ],
)
def test_settings_of_a_run_are_read_alike(changes: dict[str, Any]) -> None:
    values = tables("grpo", **changes)
    rewards = {"rewards": {"functions": [{"use": "exact_match"}]}}
    if "evaluation" in values:
        values["evaluation"] |= rewards
    config: Any = load_recipe("grpo").config.model_validate({**values, "name": "x"})
    plan = plan_of(config, TextLengths(prompt=20, whole=28))
    assert closed_plan(document(values), 28).run == plan.run


@pytest.mark.parametrize(("asked", "prompts", "drawn"), [(64, 3, 3), (2, 3, 2), (3, 3, 3)])
def test_answers_that_are_drawn_to_measure_a_distance_are_planned(asked: int, prompts: int, drawn: int) -> None:
    values = tables("dpo", samples={"prompts": asked})
    config: Any = load_recipe("dpo").config.model_validate({**values, "name": "x"})
    run = plan_of(config, TextLengths(prompt=0, whole=28, prompts=prompts)).run
    assert run is not None
    assert run.drawing is not None
    assert (run.drawing.concurrent, run.drawing.answer_tokens, run.drawing.layout) == (drawn, 28, "packed")
    run = plan_of(config, TextLengths(prompt=0, whole=28)).run
    assert run is not None
    assert run.drawing is not None
    assert run.drawing.concurrent == asked, "the data were not counted"
    run = plan_of(config, TextLengths(prompt=0, whole=28, drawn=35)).run
    assert run is not None
    assert run.drawing is not None
    assert run.drawing.answer_tokens == 35, "a prompt of one row with an answer as long as another's"
    silent: Any = load_recipe("dpo").config.model_validate({**values, "samples": {"prompts": 0}, "name": "x"})
    run = plan_of(silent, TextLengths(prompt=0, whole=28, prompts=0)).run
    assert run is not None
    assert run.drawing is None


@pytest.mark.parametrize(
    ("prompts", "together", "slots"), [(40, {}, 40), (200, {}, 64), (40, {"max_concurrent": 8}, 8)]
)
def test_the_engine_of_an_evaluation_is_planned(prompts: int, together: dict[str, int], slots: int) -> None:
    exam = {"max_tokens": 12, "task": {"source": "held.jsonl"}, "rewards": {"functions": [{"use": "exact_match"}]}}
    values = tables("sft", evaluation=exam | together)
    config: Any = load_recipe("sft").config.model_validate({**values, "name": "x"})
    held_out = TextLengths(prompt=30, whole=42, prompts=prompts)
    run = plan_of(config, TextLengths(prompt=0, whole=28, held_out=held_out)).run
    assert run is not None
    assert run.evaluation is not None
    assert (run.evaluation.concurrent, run.evaluation.prompt_tokens, run.evaluation.answer_tokens) == (slots, 30, 12)
    run = plan_of(config, TextLengths(prompt=0, whole=28)).run
    assert run is not None
    assert run.evaluation is not None
    assert run.evaluation.answer_tokens == 28, "nobody read the held-out prompts"


def test_published_models_are_those_that_hone_would_run() -> None:
    counts = {"Qwen2.5-7B": 7_615_616_512, "Qwen3-8B": 8_190_735_360, "Llama-3.1-8B": 8_030_261_248,
              "Qwen3-30B-A3B": 30_532_122_624, "Mixtral-8x7B-v0.1": 46_702_792_704, "OLMoE-1B-7B-0924": 6_919_161_856,
              "Mistral-7B-v0.3": 7_248_023_552, "Llama-3.2-1B": 1_235_814_400, "SmolLM2-135M": 134_515_008,
              "SmolLM2-360M": 361_821_120, "SmolLM2-1.7B": 1_711_376_384}  # fmt: skip
    for name, config in KNOWN_MODELS.items():
        shape = shape_from_hf(config)
        assert shape == planned_decoder(model_config_from_hf({**config, "sliding_window": None})), name
        assert shape.parameters == counts.get(name, shape.parameters), name
    assert known_model("Qwen/qwen3-8b-Base") == KNOWN_MODELS["Qwen3-8B"]
    assert known_model("hone:smollm2") == known_model("HuggingFaceTB/SmolLM2-135M-Instruct")


@pytest.mark.parametrize("layers", ["all", "attention", "mlp", ["q_proj", "down_proj"], ["o_proj", "gate_proj"]])
@pytest.mark.parametrize("name", ["Qwen2.5-0.5B", "Qwen3-30B-A3B"])
def test_an_adapter_in_closed_form_is_that_of_the_decoder(name: str, layers: Any) -> None:
    if name == "Qwen3-30B-A3B" and (layers == "mlp" or "gate_proj" in layers):
        layers = ["v_proj"]
    config = model_config_from_hf({**KNOWN_MODELS[name], "num_hidden_layers": 2})
    settings = LoraConfig(rank=8, layers=layers).settings(config)
    assert adapter_sizes(planned_decoder(config), 8, layers) == (
        settings.count(config), settings.adapted_weights(config)
    )  # fmt: skip


def test_the_processor_is_the_one_that_torch_sees() -> None:
    found = processor_traits()
    assert found.bfloat16 == has_fast_bfloat16("cpu")
    if found.compiled:
        assert available_kernels() is not None
    assert found.tiles == uses_amx_tiles()
    assert found.widens == widens_half_products()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(
        'recipe = "grpo"\nsteps = 2\ntask.source = "prompts.jsonl"\nrewards.functions = [{ use = "exact_match" }]\n'
        "rollout = { prompts_per_step = 16, samples_per_prompt = 8, max_tokens = 512 }\n"
        'learner = { lr = 1e-6, micro_batch_tokens = 16384 }\nmodel.path = "Qwen/Qwen3-1.7B"\n',
        encoding="utf-8",
    )
    return path


def test_memory_alone_imports_no_torch(config: Path) -> None:
    """A child process: torch takes seconds to import."""
    code = (
        "import sys; from hone.cli.main import main; "
        f"code = main(['plan', {str(config)!r}, '--memory', '--solve', '--device', 'h100']); "
        "sys.exit(code + ('torch' in sys.modules) + ('numpy' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr + done.stdout
    assert "Qwen/Qwen3-1.7B, a published model" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--model", "Qwen3-9B"], 3, "Qwen3-9B is neither a folder with a config.json nor a model known by name; did "
                                     "you mean Qwen3-8B?"),
        (["--device", "h10"], 2, "did you mean h100?"),
        (["--longest-text", "-5"], 2, "--longest-text must be a whole number >= 1, got -5"),
        (["--longest-text", "99999999"], 2, "the model reads texts of 1 to 40,960 tokens"),
        (["--longest-text", "512"], 2, "no token is left for the prompt"),
        (["learner.micro_batch_tokens=-1"], 2, "learner.micro_batch_tokens in command line must be a whole number of"),
        (["learner.micro_batch_tokens=99999999999999"], 2, "must be a whole number below 2^40, got 99999999999999"),
        (["algorithm.entropy=1e30"], 2, "algorithm.entropy in command line must be a number below 2^40"),
        (["rollout.max_tokens=40960"], 2, "rollout.max_tokens = 40960: the model reads 40,960 tokens"),
        (["rollout.max_tokens=0.5"], 2, "rollout.max_tokens in command line must be a whole number of at least 1"),
        (["learner.micro_batch_token=1"], 2, "did you mean learner.micro_batch_tokens?"),
        (["learner=3"], 2, "learner"),
        (["recipe=gpro"], 2, "did you mean grpo?"),
        (["recipe=ppo"], 2, "language model by gradient"),
        (["model.weights=float16"], 2, "must be one of float32, bfloat16, int8, int4, got 'float16'"),
        (["model.weights=int4"], 2, "model.weights in codes is for a base that is not trained: add model.lora.rank"),
        (["model.weights=bfloat16", "learner.lr=1e-4", "model.lora.rank=8"], 2, "would round the adapter away"),
        (["model.weights=bfloat16", "learner.lr=1e-5"], 2, 'learner.lr = 1e-05 with model.weights = "bfloat16"'),
        (["model.weights=bfloat16", "model.compute=float32"], 2, 'model.compute = "float32" with model.weights'),
        (["model.path=stage:first"], 2, "--memory needs a folder"),
        (["model.path=."], 3, "no config.json in this folder"),
    ],
)  # fmt: skip
def test_bad_input_is_named(
    config: Path, words: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(config), "--memory", *words]) == code
    assert part in capsys.readouterr().err


def test_weights_in_bfloat16_are_planned_from_the_rate_that_trains_them(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no adapter is proposed for them, which training refuses."""
    assert closed.MIN_LR_WITHOUT_MASTER_WEIGHTS == MIN_LR_WITHOUT_MASTER_WEIGHTS
    words = ["model.weights=bfloat16", "learner.lr=1e-4", "learner.micro_batch_tokens=4000000"]
    assert main(["plan", str(config), "--memory", *words]) == 5, "it does not fit"
    told = capsys.readouterr().out
    assert "moments of 8 bits" in told
    assert "model.lora" not in told


def test_a_config_without_a_model_says_what_to_give(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = config.read_text(encoding="utf-8")
    config.write_text("\n".join(line for line in whole.splitlines() if "model.path" not in line), encoding="utf-8")
    assert main(["plan", str(config), "--memory"]) == 2
    assert "this config has neither; or say --model NAME" in capsys.readouterr().err
    assert main(["plan", str(config), "--memory", "model.path=Qwen3-8B", "model.new.layers=2"]) == 2
    assert "this config has both" in capsys.readouterr().err


def test_a_model_of_text_and_pictures_has_its_sizes_inside(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = {**known_model("Qwen3-1.7B"), "model_type": "qwen9_text", "max_position_embeddings": 700}
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "config.json").write_text(
        json.dumps({"model_type": "qwen9", "text_config": inner}), encoding="utf-8"
    )
    assert main(["plan", str(config), "--memory", "--model", str(tmp_path / "both"), "--longest-text", "701",
                 "rollout.max_tokens=32"]) == 2  # fmt: skip
    assert "the model reads texts of 1 to 700 tokens" in capsys.readouterr().err
    words = ["--model", str(tmp_path / "both"), "--device", "b200", "rollout.max_tokens=32"]
    assert main(["plan", str(config), "--memory", *words]) == 0
    assert "hone does not run the family 'qwen9_text'" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads (16) must be a multiple of num_key_value_heads (3)"),
        ({"num_attention_heads": 4096, "head_dim": None, "model_type": "llama"}, "hidden_size (2048) must be at least"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok (8) must be at most the experts (4)"),
        ({"vocab_size": 1 << 50}, "vocab_size must be a whole number of at least 1 and below 2^40"),
    ],
)
def test_sizes_that_no_decoder_has_are_named(changes: dict[str, object], part: str) -> None:
    with pytest.raises(DataError) as raised:
        shape_from_hf({**known_model("Qwen3-1.7B"), **changes})
    assert part in str(raised.value)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-1.7B-Base", "qwen/qwen3-1.7b-instruct", "QWEN3-1.7B"])
def test_a_model_is_known_by_its_publisher_and_in_small_letters(name: str) -> None:
    assert known_model(name) is known_model("Qwen3-1.7B")


def test_options_that_contradict_each_other_are_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(config), "--longest-text", "9", "--model", "Qwen3-8B"]) == 2
    said = capsys.readouterr().err
    assert "--longest-text 9 is for --memory" in said
    assert "--model Qwen3-8B is for --memory" in said


def test_a_family_that_hone_does_not_run_is_planned_with_a_note(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    other = {**KNOWN_MODELS["Qwen3-0.6B"], "model_type": "gemma9"}
    (tmp_path / "other" / "config.json").write_text(json.dumps(other), encoding="utf-8")
    assert main(["plan", str(config), "--memory", "--model", "other", "--device", "b200"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "hone does not run the family 'gemma9': planned as a decoder of its sizes" in said


def test_a_search_prints_the_command(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", config.name, "--memory", "--solve", "--device", "h100"]
    assert main([*words, "--model", "Qwen3-8B"]) == 5
    said = " ".join(capsys.readouterr().out.split())
    assert "solution none: with every change that keeps the run the peak is" in said
    assert (
        "the smallest device that holds it is b200, and the largest published model that fits here is Qwen3-4B" in said
    )
    assert main([*words, "--model", "Qwen3-1.7B", "learner.micro_batch_tokens=32768", "learner.lr=1e-5"]) == 5
    command = "hone train run.toml learner.lr=1e-5 model.path=Qwen3-1.7B learner.micro_batch_tokens=8192"
    assert command in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--json", "rollout.max_concurrent=256", "--longest-text", "4096"]) == 5
    (plan,) = json.loads(capsys.readouterr().out)
    solution = plan["memory"]["solution"]
    assert solution["missing_bytes"] == 0
    assert solution["settings"], "it does not fit as it is"
    assert solution["peak_bytes"] <= plan["memory"]["device"]["usable_bytes"]
    assert main([*words, "--json", "rollout.max_concurrent=256", "--longest-text", "4096", *solution["settings"]]) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert again["memory"]["fits"] is True
    assert again["memory"]["peak_bytes"] == solution["peak_bytes"]


def test_a_search_with_nothing_to_solve_says_so(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(config), "--memory", "--model", "Qwen3-0.6B", "--device", "b200", "--solve"]) == 0
    assert "solution nothing to change: it fits" in " ".join(capsys.readouterr().out.split())


def test_faults_are_told_together() -> None:
    values = tables("grpo", learner={"lr": 1e-4, "micro_batch_tokens": 0}, rollout={**ROLLOUT, "max_tokens": -1})
    with pytest.raises(HoneError) as raised:
        closed_plan(document(values), None)
    assert len(raised.value.messages) == 2
