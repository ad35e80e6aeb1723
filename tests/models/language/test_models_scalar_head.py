"""A scalar head: the scores of transformers both ways, folders that are none, and scores that no packing changes."""

import json

import numpy as np
import pytest
import torch
import transformers
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from shared_prompts import pack_shared_prompts

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.language.init import new_model
from hone.models.language.scalar_head import load_scalar_head, new_scalar_head, scored_tokens
from hone.models.packing import pack_rows

SIZES = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "num_labels": 1,
    "pad_token_id": 49,
}
FAMILIES = {
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None, head_dim=16),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}
CONFIG = ModelConfig(family="qwen3", vocab_size=50, hidden_size=16, intermediate_size=24, layers=2, heads=2)
PAD = 49


def sequences() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, PAD, size=n).astype(np.int32) for n in (70, 1, 33, 64)]


def their_scores(model: transformers.PreTrainedModel) -> np.ndarray:
    """Padded on the right, in one batch: the rule of `pad_token_id` decides which token is scored."""
    padded = torch.full((4, 70), PAD)
    for row, tokens in enumerate(sequences()):
        padded[row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        return model(padded, attention_mask=(padded != PAD).long()).logits[:, 0].double().numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_equal_those_of_transformers_both_ways(name, tmp_path):
    torch.manual_seed(1)
    reference = transformers.AutoModelForSequenceClassification.from_config(FAMILIES[name]).eval()
    reference.save_pretrained(tmp_path / "theirs")
    model = load_scalar_head(tmp_path / "theirs")
    expected = their_scores(reference)
    assert expected.std() > 0.3
    np.testing.assert_allclose(model.score_sequences(sequences(), micro_batch_tokens=100), expected, rtol=0, atol=2e-5)
    model.save(tmp_path / "ours")
    loaded, notes = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(notes.values())
    assert type(loaded) is type(reference)
    np.testing.assert_allclose(their_scores(loaded.eval()), expected, rtol=0, atol=2e-5)
    mine, original = load_file(tmp_path / "ours/model.safetensors"), load_file(tmp_path / "theirs/model.safetensors")
    assert mine.keys() == original.keys()
    assert all(torch.equal(mine[key], original[key]) for key in mine)
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert config["tie_word_embeddings"] == FAMILIES[name].tie_word_embeddings
    assert config["pad_token_id"] == PAD


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_every_token_equal_those_of_a_token_classifier_both_ways(name, tmp_path):
    torch.manual_seed(2)
    reference = transformers.AutoModelForTokenClassification.from_config(FAMILIES[name]).eval()
    with torch.no_grad():
        reference.score.bias.fill_(0.7)
    reference.save_pretrained(tmp_path / "theirs")
    model = load_scalar_head(tmp_path / "theirs")
    assert (model.reads, scored_tokens(tmp_path / "theirs")) == ("steps", "steps")
    texts = sequences()
    with torch.no_grad():
        expected = [reference(torch.from_numpy(text[None].astype(np.int64))).logits[0, :, 0].numpy() for text in texts]
    at = [np.arange(len(text)) for text in texts]
    ours = model.score_tokens(texts, at, micro_batch_tokens=100)
    np.testing.assert_allclose(ours, np.concatenate(expected), rtol=0, atol=1e-5)
    model.save(tmp_path / "ours", pad_id=PAD)
    loaded, notes = transformers.AutoModelForTokenClassification.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(notes.values())
    with torch.no_grad():
        again = loaded.eval()(torch.from_numpy(texts[0][None].astype(np.int64))).logits[0, :, 0].numpy()
    np.testing.assert_allclose(again, expected[0], rtol=0, atol=1e-5)


def test_a_policy_says_nothing_of_a_head(tmp_path):
    save_model(new_model(CONFIG, seed=0), tmp_path, tokenizer_from=None)
    assert scored_tokens(tmp_path) is None


def test_a_new_head_is_saved_with_a_padding_token_and_loads_in_transformers(tmp_path):
    model = new_scalar_head(new_model(CONFIG, seed=0), seed=0)
    assert torch.equal(model.score.weight, new_scalar_head(new_model(CONFIG, seed=0), seed=0).score.weight)
    model.save(tmp_path, pad_id=PAD)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    ours = model.score_sequences(sequences(), micro_batch_tokens=1000)
    np.testing.assert_allclose(their_scores(loaded), ours, rtol=0, atol=2e-5)
    np.testing.assert_allclose(
        load_scalar_head(tmp_path).score_sequences(sequences(), micro_batch_tokens=64), ours, atol=1e-5
    )


def test_a_folder_with_a_head_is_no_policy(tmp_path):
    new_scalar_head(new_model(CONFIG, seed=0), seed=0).save(tmp_path)
    with pytest.raises(DataError, match=r"tensor score.weight is a scalar head.*not a policy.*kind = \"model\""):
        load_model(tmp_path)


def test_a_policy_has_no_head(tmp_path):
    save_model(new_model(CONFIG, seed=0), tmp_path, tokenizer_from=None)
    with pytest.raises(DataError, match=r"tensor score.weight is missing"):
        load_scalar_head(tmp_path)


def test_a_classifier_is_no_scalar_head(tmp_path):
    classifier = transformers.AutoModelForSequenceClassification.from_config(
        transformers.Qwen3Config(**{**SIZES, "num_labels": 3})
    )
    classifier.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="a classifier of 3 labels"):
        load_scalar_head(tmp_path)


def test_a_head_that_is_not_finite_is_refused(tmp_path):
    new_scalar_head(new_model(CONFIG, seed=0), seed=0).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["score.weight"][0, 3] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"score.weight holds 1 NaN"):
        load_scalar_head(tmp_path)


GROUPS = st.lists(
    st.tuples(st.integers(1, 8), st.lists(st.integers(1, 10), min_size=1, max_size=4)), min_size=1, max_size=4
)


@examples(25)
@given(GROUPS, st.integers(1, 60), st.integers(0, 99))
def test_scores_do_not_depend_on_packing_micro_batches_or_shared_prompts(shapes, budget, seed):
    model = new_scalar_head(new_model(CONFIG, seed=1, dtype="float64"), seed=2)
    rng = np.random.default_rng(seed)
    groups = [
        (rng.integers(0, 50, prompt).astype(np.int32), [rng.integers(0, 50, n).astype(np.int32) for n in answers])
        for prompt, answers in shapes
    ]
    texts = [np.concatenate([prompt, answer]) for prompt, answers in groups for answer in answers]
    with torch.no_grad():  # the slow way: one sequence a pass, every token scored
        alone = [model.scores(pack_rows([text]), torch.arange(len(text))) for text in texts]
        packed, targets = pack_shared_prompts(groups)
        decisions = model.scores(packed, targets.at)
    last = np.array([float(values[-1]) for values in alone])
    np.testing.assert_allclose(model.score_sequences(texts, micro_batch_tokens=budget), last, rtol=0, atol=1e-12)
    order = rng.permutation(len(texts))
    shuffled = model.score_sequences([texts[place] for place in order], micro_batch_tokens=10**6)
    np.testing.assert_allclose(shuffled, last[order], rtol=0, atol=1e-12)
    prompts = [len(prompt) for prompt, answers in groups for _ in answers]
    slow = torch.cat([values[size - 1 : -1] for values, size in zip(alone, prompts, strict=True)])
    torch.testing.assert_close(decisions, slow, rtol=0, atol=1e-12)  # a critic: the state before each decision


def test_gradients_reach_the_head_and_the_decoder():
    model = new_scalar_head(new_model(CONFIG, seed=0), seed=0)
    packed = pack_rows(sequences())
    model.scores(packed, torch.from_numpy(packed.offsets[1:] - 1)).sum().backward()
    assert model.score.weight.grad.abs().sum() > 0
    assert model.decoder.embedding.weight.grad.abs().sum() > 0


def test_no_sequences_have_no_scores():
    assert new_scalar_head(new_model(CONFIG, seed=0), seed=0).score_sequences([], micro_batch_tokens=1).shape == (0,)
