"""`hone show DATA --tokens`: rows of a dataset as context, trained tokens and end tokens."""

import json
from pathlib import Path

import pytest
from chat_families import family_tokenizer, save_family

from hone.cli.main import main
from hone.models.language.tokenizers import load_tokenizer

TURNS = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "44"},
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "sat"},
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 16, "vocab_size": 400,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 10000.0,
}  # fmt: skip


def folder(tmp_path: Path, family: str) -> Path:
    """A model's folder without weights."""
    for name, content in save_family(family_tokenizer(family)).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_are_context_trained_tokens_and_ends(tmp_path, capsys):
    data, model = write(tmp_path / "data.jsonl", {"messages": TURNS}), folder(tmp_path, "chatml")
    assert main(["show", str(data), "--tokens", "--model", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("row 1 (id ")
    assert lines[0].endswith("trained")
    parts = [line.split(maxsplit=2) for line in lines[1:7]]
    assert [kind for kind, _, _ in parts] == ["context", "trained", "end"] * 2
    assert [text for _, _, text in parts] == [
        "<|im_start|>user↵2+2?<|im_end|>↵<|im_start|>assistant↵", "44", "<|im_end|>",
        "↵<|im_start|>user↵the cat?<|im_end|>↵<|im_start|>assistant↵", "sat", "<|im_end|>",
    ]  # fmt: skip
    assert "is context and never learnt" in lines[7]


def test_split_rows_and_an_added_end_are_told(tmp_path, capsys):
    data = write(tmp_path / "data.jsonl", {"prompt": TURNS[:1], "chosen": TURNS[1:2], "rejected": TURNS[3:]})
    model = folder(tmp_path, "another end of turn than eos")
    (model / "generation_config.json").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "bos_token": "<bos>"}))
    assert load_tokenizer(model).added_stop is not None
    assert main(["show", str(data), "--tokens", "--model", str(model)]) == 0
    text = capsys.readouterr().out
    assert "score 1: " in text
    assert "score 0: " in text
    assert "turns end in '<end_of_turn>' (259), which the model's folder does not name as an end" in text
    assert main(["show", str(write(tmp_path / "two.jsonl", {"messages": TURNS})), "--tokens", "--model",
                 str(folder(tmp_path, "two end tokens"))]) == 0  # fmt: skip
    text = capsys.readouterr().out
    assert "part 1: " in text
    assert "part 2: " in text
    assert "rewrites the history" in text


def test_a_config_names_data_model_and_turns(tmp_path, capsys):
    data, model = write(tmp_path / "data.jsonl", {"messages": TURNS}), folder(tmp_path, "chatml")
    config = tmp_path / "run.toml"
    config.write_text(
        f'recipe = "sft"\nname = "a"\nsteps = 1\nmodel.path = "{model}"\ntask.source = "{data}"\n'
        'data.train_on = "last"\nlearner.lr = 1e-3\n'
    )
    assert main(["show", str(config), "--tokens"]) == 0
    lines = [line.split(maxsplit=2)[0] for line in capsys.readouterr().out.splitlines()[1:4]]
    assert lines == ["context", "trained", "end"]
    config.write_text(config.read_text().replace('"last"', '"lst"'))
    assert main(["show", str(config), "--tokens"]) == 2
    assert "train_on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        ({"prompt": [{"role": "system", "content": "x"}]}, 3, "System role not supported; in 1 of 1 rows: 1 (id "),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, 3, "part of type 'image'"),
        ({"question": "x"}, 3, "no column 'prompt'"),
    ],
)
def test_faults_name_the_row(tmp_path, capsys, row, code, message):
    model = folder(tmp_path, "another end of turn than eos")
    assert main(["show", str(write(tmp_path / "a.jsonl", row)), "--tokens", "--model", str(model)]) == code
    assert message in capsys.readouterr().err


def test_a_model_is_needed(tmp_path, capsys):
    assert main(["show", str(write(tmp_path / "a.jsonl", {"prompt": "x"})), "--tokens"]) == 2
    assert "hone show takes the model by --model" in " ".join(capsys.readouterr().err.split())
    assert main(["show", "nowhere.jsonl", "--tokens"]) == 3
