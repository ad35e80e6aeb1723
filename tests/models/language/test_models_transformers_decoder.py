"""Models that transformers computes: their numbers, training, adapters, folders and generation here."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as T
from greedy_answers import answers_as_of
from safetensors.torch import load_file
from shared_prompts import pack_shared_prompts

from hone.core.errors import ConfigError, DataError
from hone.core.generation import Grammar, Request, SamplingParams, generate
from hone.engine.grammar import GrammarCompiler
from hone.engine.open_engine import EngineSize, choose_runner, open_engine
from hone.engine.session import TokenizerRules
from hone.models.language.config import model_config_from_hf
from hone.models.language.hf_checkpoint import load_model, load_weights, load_with_adapter, save_model
from hone.models.language.lora import LoraConfig
from hone.models.language.scalar_head import new_scalar_head
from hone.models.language.tensor_parallel import tensor_split_faults
from hone.models.language.tokenizers import character_tokenizer
from hone.models.language.transformers_decoder import TransformersDecoder
from hone.models.packing import pack_rows

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MLA = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
CONFIGS = {
    "gpt2": T.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=96, bos_token_id=1, eos_token_id=2),
    "qwen3_next": T.Qwen3NextConfig(**{**SIZES, "num_hidden_layers": 4}, **DELTA, head_dim=8, num_experts=0),
    "deepseek_v2": T.DeepseekV2Config(**{**SIZES, "num_key_value_heads": 4}, **MLA, **EXPERTS, first_k_dense_replace=1),
}


@pytest.fixture(scope="module", params=CONFIGS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    torch.manual_seed(0)
    model = T.AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path, model


def test_numbers_and_gradients_are_those_of_transformers(reference):
    folder, theirs = reference
    ours = load_model(folder)
    assert isinstance(ours, TransformersDecoder)
    rng = np.random.default_rng(0)
    prompt, *answers = (rng.integers(3, 50, n).astype(np.int32) for n in (6, 9, 4))
    packed, _ = pack_shared_prompts([(prompt, answers)])
    texts = [torch.from_numpy(np.concatenate((prompt, one))[None].astype(np.int64)) for one in answers]
    expected = [theirs(text).logits[0] for text in texts]
    logits = ours.logits(ours.hidden(packed))
    # One text alone, or padded beside another: the order of sums differs.
    torch.testing.assert_close(logits[6:15], expected[0][6:], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits[15:], expected[1][6:], rtol=0, atol=1e-5)
    theirs.zero_grad()
    sum(one[6:].square().sum() for one in expected).backward()
    logits[6:].square().sum().backward()
    for (name, one), (_, other) in zip(ours.module.named_parameters(), theirs.named_parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_a_folder_is_written_and_read_in_place(reference, tmp_path):
    folder, _ = reference
    model = load_model(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    save_model(model, tmp_path, tokenizer_from=None)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for name in after:
        added = 0 if name.endswith("e_score_correction_bias") else 0.5  # which is no parameter
        assert torch.equal(after[name], before[name] + added), name
    load_weights(model, folder)
    assert all(
        torch.equal(one, two) for one, two in zip(model.parameters(), load_model(folder).parameters(), strict=True)
    )


def test_answers_are_those_of_transformers(reference):
    folder, theirs = reference
    model = load_model(folder)
    engine = open_engine(model, TokenizerRules(eos=(), vocab=50), size=EngineSize(slots=3, sequence_tokens=96), seed=0)
    assert "transformers" in engine.runner.name and "again for every token" in engine.note
    prompts = [np.arange(3, 3 + n).astype(np.int32) for n in (5, 17)]
    assert len(list(answers_as_of(theirs, engine, prompts))) == 2


def test_a_grammar_holds_its_answers_with_the_log_probabilities_under_the_mask(reference):
    model, tokenizer = load_model(reference[0]), character_tokenizer(["0123456789,abx"])
    grammars = GrammarCompiler(tokenizer.size, tokenizer.eos_ids, tokenizer.backend.to_str)
    rules = TokenizerRules(eos=tokenizer.eos_ids, vocab=tokenizer.size, grammars=grammars)
    engine = open_engine(model, rules, size=EngineSize(slots=3, sequence_tokens=96), seed=0)
    pattern, prompt = "[0-9]{1,3}(,[0-9]{1,3}){0,2}", np.arange(3, 8, dtype=np.int32)
    sampling = SamplingParams(max_tokens=12, grammar=Grammar(kind="regex", text=pattern))
    answers = list(generate(engine, [Request(id="digits", prompt=prompt, samples=3, sampling=sampling)], round=0))
    assert len(answers) == 3
    for done in answers:
        text = tokenizer.decode(done.tokens)
        assert re.fullmatch(pattern, text) if done.finish_reason == "eos" else set(text) <= set("0123456789,")
        with torch.no_grad():
            hidden = model.hidden(pack_rows([np.concatenate([prompt, done.tokens])[:-1]]))
            logp = model.logits(hidden[len(prompt) - 1 :])[:, : tokenizer.size].double().log_softmax(-1).numpy()
        for place, (row, token) in enumerate(zip(logp, done.tokens, strict=True)):
            left = set(range(tokenizer.size))
            ids = done.sampling_mask.values[slice(*done.sampling_mask.offsets[place : place + 2])].tolist()
            left = left - set(ids) if ids[0] == -1 else set(ids)
            under = row[token] - np.logaddexp.reduce(row[sorted(left)])
            np.testing.assert_allclose([done.logp[place], done.sampled_logp[place]], [row[token], under], atol=2e-5)


def test_an_adapter_of_such_a_model(tmp_path):
    torch.manual_seed(0)
    T.AutoModelForCausalLM.from_config(CONFIGS["qwen3_next"]).save_pretrained(tmp_path)
    adapter = load_with_adapter(tmp_path, LoraConfig(rank=2, layers=["q_proj", "down_proj"]), seed=0)
    assert {name.rpartition(".")[2] for name in adapter.updates} == {"q_proj", "down_proj"}
    assert len(adapter.updates) == 1 + 4  # one layer in four has full attention
    adapter.decoder.hidden(pack_rows([np.arange(9, dtype=np.int32)])).sum().backward()
    taken = {name for name, parameter in adapter.decoder.named_parameters() if parameter.grad is not None}
    assert taken == set(adapter.weights)


def test_what_such_a_model_cannot_do_is_told(reference, tmp_path):
    model = load_model(reference[0])
    with pytest.raises(ConfigError, match="whose module is transformers' own"):
        choose_runner("native", model, vocab_used=50)
    with pytest.raises(DataError, match="a scalar head has no place on model_type"):
        new_scalar_head(model, seed=0)
    (fault,) = tensor_split_faults(model.config, 2)
    assert "cannot be cut among ranks" in fault
    with pytest.raises(DataError, match="bitwise"):
        model.use_bitwise_arithmetic()
    with pytest.raises(DataError, match="model_type 'nonesuch' is not supported"):
        model_config_from_hf({"model_type": "nonesuch"})
    with pytest.raises(DataError, match="quantization_config is not supported"):
        model_config_from_hf({**model.config.extra, "quantization_config": {"bits": 4}})
    with pytest.raises(DataError, match="transformers does not take this config of model_type"):
        model_config_from_hf({**model.config.extra, "vocab_size": "fifty"})
    save_model(model, tmp_path, tokenizer_from=None)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="transformers cannot load this model"):
        load_model(tmp_path)
