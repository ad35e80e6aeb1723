"""Hugging Face folders: parity with transformers both ways, and every way in which a folder can be wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import load_model, load_weights, read_config, save_model
from hone.models.language.init import new_model
from hone.models.language.tokenizers import character_tokenizer
from hone.models.packing import pack_rows
from hone.text.evaluate.open_policy import check_weights

SIZES = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,  # large, so that attention is not near uniform
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama3": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama-linear": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "llama-biases": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None, head_dim=16),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "qwen3-untied": transformers.Qwen3Config(**SIZES, head_dim=24, attention_bias=True),
}


def theirs(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases start at 0 and norms at 1: a lost one would not show
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 50, size=n).astype(np.int32) for n in (70, 1, 33, 64)]


def their_logits(model: transformers.PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(torch.from_numpy(row[None].astype(np.int64))).logits[0] for row in rows()])


def our_logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(pack_rows(rows())))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers_both_ways(name, tmp_path):
    reference = theirs(name)
    reference.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    expected = their_logits(reference)
    assert expected.std() > 0.3  # not a comparison of zeros
    torch.testing.assert_close(our_logits(model), expected, rtol=0, atol=1e-5)
    save_model(model, tmp_path / "ours", tokenizer_from=None)
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    # To rounding: a product's bits depend on how the weights lie in memory, on some processors.
    torch.testing.assert_close(their_logits(reloaded), expected, rtol=0, atol=1e-5)
    weights = dict(reference.named_parameters())
    assert weights.keys() == dict(reloaded.named_parameters()).keys()
    assert all(torch.equal(weights[name], parameter) for name, parameter in reloaded.named_parameters())
    mine, original = load_file(tmp_path / "ours/model.safetensors"), load_file(tmp_path / "theirs/model.safetensors")
    assert mine.keys() == original.keys()
    assert all(torch.equal(mine[key], original[key]) for key in mine)


CONFIG = ModelConfig(family="qwen3", vocab_size=50, hidden_size=16, intermediate_size=24, layers=2, heads=2)


@pytest.fixture
def folder(tmp_path) -> Path:
    save_model(new_model(CONFIG, seed=0), tmp_path / "model", tokenizer_from=None)
    return tmp_path / "model"


def test_sharded_folders_load_here_and_in_transformers(folder, tmp_path):
    model = load_model(folder)
    save_model(model, tmp_path / "sharded", tokenizer_from=None, shard_bytes=4000)
    shards = sorted(file.name for file in (tmp_path / "sharded").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert all((tmp_path / "sharded" / name).stat().st_size < 8000 for name in shards)
    again = load_model(tmp_path / "sharded")
    assert torch.equal(our_logits(again), our_logits(model))
    check_weights(str(tmp_path / "sharded"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "sharded").eval()
    torch.testing.assert_close(their_logits(loaded), our_logits(model), rtol=0, atol=1e-5)
    save_model(model, tmp_path / "sharded", tokenizer_from=None)  # over it: no stale shard stays
    assert [file.name for file in (tmp_path / "sharded").glob("*.safetensors")] == ["model.safetensors"]


def test_the_same_model_gives_the_same_bytes(folder, tmp_path):
    save_model(load_model(folder), tmp_path / "again", tokenizer_from=None)
    for file in folder.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def test_tokenizer_files_are_copied_as_they_are(folder, tmp_path):
    character_tokenizer("abc").save(folder)
    save_model(load_model(folder), tmp_path / "again", tokenizer_from=folder)
    assert {file.name for file in folder.iterdir()} == {file.name for file in (tmp_path / "again").iterdir()}
    assert (tmp_path / "again/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_low_precision_is_kept_and_written(folder, tmp_path):
    model = load_model(folder, dtype="bfloat16")
    save_model(model, tmp_path / "half", tokenizer_from=None)
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    assert load_file(tmp_path / "half/model.safetensors")["model.norm.weight"].dtype == torch.bfloat16


def test_load_weights_works_in_place(folder):
    model = new_model(CONFIG, seed=1)
    weight = model.embedding.weight
    load_weights(model, folder)
    assert weight is model.embedding.weight
    assert torch.equal(our_logits(model), our_logits(load_model(folder)))


def test_no_folder_and_a_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no folder here: HF_HUB_OFFLINE is set, .*hf download Qwen/Qwen3-0.6B"):
        load_model("Qwen/Qwen3-0.6B")
    with pytest.raises(DataError, match="does not exist") as error:
        load_model(tmp_path / "nothing")
    assert "Hub" not in str(error.value)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is a file"):
        load_model(tmp_path / "file")


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match=r"config\.json does not exist"):
        load_model(tmp_path)


def test_broken_json(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        read_config(folder)


def test_no_weights_and_pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no weights"):
        load_model(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"only pickled weights \(pytorch_model.bin\).*save_pretrained"):
        load_model(folder)


def test_a_file_cut_short_is_named(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model\.safetensors \(\d+ bytes\) is damaged or cut short"):
        load_model(folder)
    file.write_bytes(b"")
    with pytest.raises(DataError, match=r"\(0 bytes\) is damaged"):
        load_model(folder)


def test_every_bad_tensor_is_named_at_once(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
    tensors["model.norm.weight"][2] = torch.nan
    tensors["model.layers.1.self_attn.q_norm.weight"] = tensors["model.layers.1.self_attn.q_norm.weight"].to(torch.int8)
    tensors["surplus.weight"] = torch.zeros(1)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError) as error:
        load_model(folder)
    text = str(error.value)
    assert len(error.value.messages) == 5
    assert "up_proj.weight has shape (3, 3); config.json asks for (24, 16)" in text
    assert "model.norm.weight holds 1 NaN or infinite" in text
    assert "q_norm.weight holds torch.int8" in text
    assert "surplus.weight is not part of a qwen3" in text
    assert "model.layers.1.mlp.down_proj.weight is missing" in text
    with pytest.raises(DataError) as planned:
        check_weights(str(folder))
    assert planned.value.messages == tuple(one for one in error.value.messages if "NaN" not in one)


def test_a_missing_shard_is_named(folder, tmp_path):
    save_model(load_model(folder), tmp_path / "sharded", tokenizer_from=None, shard_bytes=4000)
    lost = sorted((tmp_path / "sharded").glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(DataError, match=lost.name):
        load_model(tmp_path / "sharded")


def test_an_index_may_not_point_outside(folder, tmp_path):
    shutil.move(folder / "model.safetensors", tmp_path / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="not a file of this folder"):
        load_model(folder)


def test_redundant_tensors_of_older_writers_are_ignored(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, folder / "model.safetensors")
    load_model(folder)


def test_an_unknown_dtype(folder):
    with pytest.raises(DataError, match="'float8'"):
        load_model(folder, dtype="float8")


def split_in_two(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The folder's weights in two files with an index. Returns the files' tensors by name."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    files = {file: {name: tensors[name] for name in part} for file, part in parts.items()}
    for file, part in files.items():
        save_file(part, folder / file)
    places = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()
    return files


def faults_of(folder: Path) -> str:
    """What loading tells, and a plan before it from the headers alone."""
    with pytest.raises(DataError) as error:
        load_model(folder)
    with pytest.raises(DataError) as planned:
        check_weights(str(folder))
    assert planned.value.messages == error.value.messages
    return str(error.value)


def test_an_index_that_names_a_missing_shard(folder):
    split_in_two(folder)
    (folder / "b.safetensors").unlink()
    told = faults_of(folder)
    assert f"{folder / 'b.safetensors'} does not exist, but model.safetensors.index.json lists it" in told


def test_a_tensor_that_its_shard_lacks_names_the_shard(folder):
    files = split_in_two(folder)
    name = min(files["b.safetensors"])
    rest = {key: tensor for key, tensor in files["b.safetensors"].items() if key != name}
    save_file(rest, folder / "b.safetensors")
    assert f"{folder / 'b.safetensors'}: tensor {name} is missing" in faults_of(folder)


def test_a_tensor_in_two_shards_is_refused(folder):
    """The later file would have won in silence."""
    files = split_in_two(folder)
    name = min(files["a.safetensors"])
    save_file({**files["b.safetensors"], name: files["a.safetensors"][name] + 1}, folder / "b.safetensors")
    told = f"{folder / 'b.safetensors'}: tensor {name} is in a.safetensors too; keep it in one file"
    assert told in faults_of(folder)


def test_two_sets_of_weights_are_refused(folder):
    whole = (folder / "model.safetensors").read_bytes()
    split_in_two(folder)
    (folder / "model.safetensors").write_bytes(whole)  # transformers would take this one, vLLM the shards
    told = faults_of(folder)
    assert f"{folder} holds model.safetensors and model.safetensors.index.json: two sets of weights" in told


@pytest.mark.parametrize("sharded", [False, True])
def test_a_tied_head_that_differs_from_the_embedding_is_refused(folder, sharded):
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, folder / "model.safetensors")
    if sharded:
        split_in_two(folder)
    assert load_model(folder).head is None  # present twice, and equal
    file = next(file for file in folder.glob("*.safetensors") if "lm_head.weight" in load_file(file))
    save_file({**load_file(file), "lm_head.weight": embedding + 1e-3}, file)
    told = faults_of(folder)
    assert f"{file}: tensor lm_head.weight is not equal to model.embed_tokens.weight" in told
    assert "tie_word_embeddings true" in told


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_quantised_weights_are_refused_by_name(folder, dtype):
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / "model.safetensors")
    assert f"{folder / 'model.safetensors'}: tensor {name} holds {dtype}; quantised weights" in faults_of(folder)


def test_a_mix_of_floating_dtypes_is_read_exactly(folder):
    tensors = load_file(folder / "model.safetensors")
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    mixed = {name: tensors[name].to(kinds[number % 4]) for number, name in enumerate(sorted(tensors))}
    save_file(mixed, folder / "model.safetensors")
    save_model(load_model(folder), folder / "again", tokenizer_from=None)
    again = load_file(folder / "again" / "model.safetensors")
    assert all(torch.equal(again[name], mixed[name].float()) for name in mixed)


def faults_after(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> tuple[str, ...]:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    with pytest.raises(DataError) as error:
        load_model(folder)
    return error.value.messages


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda value: value * torch.nan, "NaN or infinite numbers; the checkpoint is broken; and so "),
        (lambda value: value.repeat(*[2] * value.dim()), "has shape (100, 32); config.json asks for (50, 16); and so "),
        (lambda value: value.to(torch.int8), "quantised weights are not supported; and so "),
    ],
)
def test_one_fault_of_all_tensors_is_one_line(folder, change, says) -> None:
    messages = faults_after(folder, lambda tensors: {name: change(value) for name, value in tensors.items()})
    (message,) = messages
    count = len(load_file(folder / "model.safetensors")) - 1
    assert f"and so {count} more tensors: " in message
    assert says in message
    assert message.endswith(", ...")


def test_other_names_are_two_lines(folder) -> None:
    lost, surplus = faults_after(folder, lambda tensors: {f"x.{name}": value for name, value in tensors.items()})
    assert lost.count("is missing") == 1
    assert "did you mean x.model" in lost
    assert "is not part of a" in surplus


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<html>404</html>", "is damaged or cut short"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:a\n", "is a pointer of Git LFS"),
        (b"\x1f\x8b\x08\x00", "is compressed by gzip: decompress it"),
        (b"PK\x03\x04", "is a zip archive: unpack it"),
    ],
)
def test_a_file_of_another_kind_is_one_line(folder, content, says) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(DataError) as error:
        load_model(folder)
    (message,) = error.value.messages
    assert says in message


def test_a_link_to_nothing_is_named(folder) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/gone")
    with pytest.raises(DataError, match=r"model\.safetensors is a link to \.\./blobs/gone, which does not exist"):
        load_model(folder)
