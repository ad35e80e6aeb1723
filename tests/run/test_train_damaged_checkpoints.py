"""A damaged policy is never opened, whatever folder names it, and an older one is never taken in silence."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
from tiny_runs import hone, lay_out

from hone import api
from hone.core.errors import CheckpointWarning, DataError
from hone.run.saved_config import policy_folder
from hone.run.store import checkpoints as verification
from hone.run.store.checkpoints import CheckpointFolder, checkpoint_of, verify_policy

PPO = """
recipe = "ppo"
name = "cart"
steps = 2
env = { id = "CartPole-v1", num_envs = 2 }
rollout_steps = 16
evaluation.episodes = 1
run = { threads = 1, checkpoint_every = 1, certify = false }
"""
DAGGER = """
recipe = "dagger"
name = "pupil"
steps = 1
env = { id = "CartPole-v1", num_envs = 2 }
expert = { kind = "policy", policy = "POLICY" }
run = { threads = 1, certify = false }
"""
CHECKPOINT = "runs/tiny/checkpoints/step_00000004"
CONTROL = "runs/cart/checkpoints/step_00000002"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on text and one on CartPole, with two checkpoints each."""
    folder = tmp_path_factory.mktemp("trained")
    lay_out(folder)
    (folder / "ppo.toml").write_text(PPO, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert hone("train", "sft.toml", "steps=4", "run.certify=false") == 0
        assert hone("train", "ppo.toml") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path) -> None:
    """Change the lowest bit of a byte in the middle of the data."""
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def config_from(folder: str) -> tuple[str, ...]:
    """Override of the model of `sft.toml`, with which the rest of the file trains."""
    text = Path("sft.toml").read_text(encoding="utf-8")
    head, _, rest = text.partition("[model]")
    Path("again.toml").write_text(
        f'{head}[model]\ncompute = "float32"\npath = "{folder}"\n[task]{rest.partition("[task]")[2]}', encoding="utf-8"
    )
    return ("train", "again.toml", "name=again", "steps=1", "run.certify=false")


@pytest.mark.parametrize(
    ("folder", "name"), [(CHECKPOINT, "model.safetensors"), (f"./{CHECKPOINT}/policy/", "tokenizer.json")]
)
def test_a_changed_byte_of_a_named_checkpoint_is_refused(
    place: Path, folder: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / CHECKPOINT / "policy" / name
    path.write_bytes(path.read_bytes().replace(b"}", b" }")) if name != "model.safetensors" else flip(path)
    for command in (("sample", folder, "--prompt", "1+1="), ("eval", folder, "--problems", "2"), config_from(folder)):
        assert hone(*command) == 3
        said = capsys.readouterr()
        assert f"policy/{name}" in said.err
        assert "expected" in said.err
        assert "another checkpoint" in said.err
        assert not (place / "runs" / "again").exists()
    with pytest.raises(DataError, match=name):
        api.sample(folder, prompt="1+1=")


def test_a_changed_control_policy_is_refused_by_evaluation_and_as_an_expert(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(place / CONTROL / "policy" / "model.safetensors")
    Path("dagger.toml").write_text(DAGGER.replace("POLICY", f"{CONTROL}/policy"), encoding="utf-8")
    for command in (("eval", CONTROL, "--problems", "1"), ("train", "dagger.toml")):
        assert hone(*command) == 3
        assert "model.safetensors has sha256" in capsys.readouterr().err


def test_a_missing_an_added_and_a_cut_file_are_named_together(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = place / CHECKPOINT / "policy"
    (policy / "tokenizer.json").unlink()
    shutil.copy(policy / "model.safetensors", policy / "model-00001-of-00001.safetensors")
    with (policy / "config.json").open("a", encoding="utf-8") as file:
        file.write(" ")
    assert hone("sample", str(policy), "--prompt", "1+1=") == 3
    said = capsys.readouterr().err
    for part in ("tokenizer.json is missing", "00001.safetensors is not listed", "config.json has"):
        assert part in said


def test_a_policy_inside_a_checkpoint_without_its_manifest_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = place / CHECKPOINT / "manifest.json"
    flip(manifest)
    assert hone("sample", CHECKPOINT, "--prompt", "1+1=") == 3
    assert "manifest.json" in capsys.readouterr().err
    manifest.unlink()
    assert hone("sample", f"{CHECKPOINT}/policy", "--prompt", "1+1=") == 3
    assert "manifest.json" in capsys.readouterr().err


def test_links_and_the_working_directory_find_the_manifest_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "link").symlink_to(place / CHECKPOINT / "policy")
    verify_policy(Path("link"))
    flip(place / CHECKPOINT / "policy" / "model.safetensors")
    for path in (Path("link"), place / CHECKPOINT):
        with pytest.raises(DataError):
            verify_policy(path)
    monkeypatch.chdir(place / CHECKPOINT / "policy")
    with pytest.raises(DataError):
        policy_folder(Path())


def test_intact_copied_and_foreign_folders_open(place: Path) -> None:
    shutil.copytree(place / CHECKPOINT / "policy", place / "shipped")
    flip(place / "shipped" / "model.safetensors")
    (place / CHECKPOINT / "policy" / "README.md").write_text("mine", encoding="utf-8")
    assert checkpoint_of(Path("shipped")) is None
    assert checkpoint_of(Path("runs/tiny")) is None
    for folder in (CHECKPOINT, f"{CHECKPOINT}/policy", "shipped"):
        assert hone("sample", folder, "--prompt", "1+1=", "--count", "1") == 0


def test_an_older_checkpoint_than_the_newest_is_named_on_stderr(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(place / CHECKPOINT / "policy" / "model.safetensors")
    flip(place / CONTROL / "state" / "state.safetensors")
    for command, skipped in (
        (("sample", "tiny", "--prompt", "1+1="), CHECKPOINT),
        (config_from("runs/tiny"), CHECKPOINT),
        (("eval", "cart", "--problems", "1"), CONTROL),
    ):
        assert hone(*command) == 0
        warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
        assert len(warned) == 1
        assert skipped in warned[0]
        assert "is used instead" in warned[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api.evaluate("cart", problems=1)
    assert [one.category for one in caught] == [CheckpointWarning]


def test_show_marks_what_it_can_tell_from_sizes_and_verifies_when_asked(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("show", "tiny", "--verify") == 0
    assert "2, 4, every file verified" in capsys.readouterr().out
    flip(place / CHECKPOINT / "state" / "state.safetensors")
    assert hone("show", "tiny", "--verify") == 3
    said = capsys.readouterr()
    assert "4 (damaged)" in said.out
    assert "state.safetensors has sha256" in said.err
    (place / CHECKPOINT / "policy" / "config.json").unlink()
    assert hone("show", "tiny") == 0
    assert "4 (damaged)" in capsys.readouterr().out


def test_a_file_is_read_once_as_long_as_it_does_not_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return real(path)

    real = verification.sha256
    monkeypatch.setattr(verification, "sha256", counted)
    verify_policy(place / CHECKPOINT)
    first = len(read)
    verify_policy(place / CHECKPOINT / "policy")
    CheckpointFolder(folder=place / "runs" / "tiny" / "checkpoints").newest_intact()
    assert len(set(read)) == len(read)
    assert len(read) == first + 2  # the two files of its state
    assert not any(path.parent.name == "state" for path in read[:first])
