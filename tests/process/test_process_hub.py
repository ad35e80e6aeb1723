"""Models of the Hub by name: fetched from an endpoint of this machine, read from the cache without network, pushed."""

import hashlib
import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from hone.api import train
from hone.cli.main import main
from hone.core.errors import ConfigError, DataError
from hone.models.language.hf_checkpoint import load_model, read_config, stored_type
from hone.process.hub import hub_folder, is_hub_name, push_folder

ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(4)]
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24}
FIRST, SECOND = "a" * 40, "b" * 40


def sft(model: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "recipe": "sft",
        "steps": 1,
        "batch": 2,
        "model": {"compute": "float32", **model},
        "task": {"source": ROWS},
        "learner": {"lr": 1e-3},
        "run": {"threads": 1, "certify": False},
        **changes,
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a tiny model in bfloat16, with some that hone does not read."""
    folder = train(sft({"new": SHAPE}), runs=tmp_path_factory.mktemp("runs")).policy
    weights = folder / "model.safetensors"
    save_file({name: one.bfloat16() for name, one in load_file(weights).items()}, weights, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    read = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {**read, "onnx/config.json": b"{}", "pytorch_model.bin": b"pickled", "consolidated.safetensors": b"twice"}


class FakeHub(BaseHTTPRequestHandler):
    """The Hub's endpoint as far as `huggingface_hub` asks: one model to fetch, and uploads."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {}
    fetched: ClassVar[list[str]] = []
    pushed: ClassVar[dict[str, bytes]] = {}
    address: ClassVar[str] = ""

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/gated"):
            self.answer({}, 403, X_Error_Code="GatedRepo")
        elif path.startswith("/api/models/org/tiny/revision/v9"):
            self.answer({}, 404, X_Error_Code="RevisionNotFound")
        elif path.startswith("/api/models/org/tiny/revision/"):
            self.answer({"id": "org/tiny", "sha": FIRST, "siblings": [{"rfilename": name} for name in self.files]})
        elif path.startswith("/api/models/org/tiny/tree/"):
            self.answer(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in self.files.items()
                ]
            )
        elif path.startswith(f"/org/tiny/resolve/{FIRST}/"):
            name = path.removeprefix(f"/org/tiny/resolve/{FIRST}/")
            self.fetched.append(name)
            etag = f'"{hashlib.sha1(self.files[name]).hexdigest()}"'
            self.answer(self.files[name], ETag=etag, X_Repo_Commit=FIRST)
        else:
            self.answer({}, 404, X_Error_Code="RepoNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/repos/create":
            self.answer({"url": f"{self.address}/org/new"})
        elif "/preupload/" in self.path:
            modes = [{"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]]
            self.answer({"files": [{**one, "shouldIgnore": False} for one in modes]})
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.pushed[line["value"]["path"]] = b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{self.address}/org/new/commit/{FIRST}", "commitOid": FIRST, "success": True})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with an empty cache and no network."""
    hub_folder.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.fixture
def hub(place: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        FakeHub.files, FakeHub.fetched, FakeHub.pushed = files, [], {}
        FakeHub.address = f"http://127.0.0.1:{server.server_port}"
        template = f"{FakeHub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", FakeHub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield FakeHub
        server.shutdown()
        serving.join()


def in_cache(place: Path, files: dict[str, bytes], commit: str) -> Path:
    """A model in the cache as the Hub's own programs leave it there."""
    folder = place / "cache" / "models--org--tiny"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, data in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(data)
    return snapshot


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("org/tiny", True), ("HuggingFaceTB/SmolLM2-135M-Instruct", True), ("org/tiny@v1.0", True),
        ("here/tiny", False), ("org", False), ("/org/tiny", False), ("a/b/c", False), ("../org", False),
        ("stage:first", False), ("org/ti ny", False), ("", False),
    ],
)  # fmt: skip
def test_a_path_goes_before_a_name(place: Path, name: str, is_one: bool) -> None:
    (place / "here").mkdir()
    assert is_hub_name(name) == is_one


def test_a_model_is_fetched_once_with_the_files_that_are_read(hub: type[FakeHub], place: Path) -> None:
    folder = hub_folder("org/tiny")
    kept = {file.name for file in folder.iterdir()}
    assert kept == set(hub.files) - {"onnx/config.json", "pytorch_model.bin", "consolidated.safetensors"}
    assert folder.name == FIRST
    asked = len(hub.fetched)
    assert read_config("org/tiny").hidden_size == 16
    assert len(hub.fetched) == asked


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/nothing", "there is no such model at http://127.0.0.1:.*/org/nothing, or it is private: `hf auth login`"),
        ("org/gated", "its owner grants access: accept the terms at http://127.0.0.1:.*/org/gated, and log in"),
        ("org/tiny@v9", "has no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses_is_told_with_a_way_out(hub: type[FakeHub], name: str, words: str) -> None:
    with pytest.raises(DataError, match=f"the Hub's model '{name}', which is no folder here: .*{words}"):
        hub_folder(name)


def test_a_run_on_a_name_needs_no_network_and_keeps_to_its_commit(place: Path, files: dict[str, bytes]) -> None:
    in_cache(place, files, FIRST)
    first = train(sft({"path": "org/tiny"}))
    saved = json.loads((first.folder / "config.json").read_text())
    assert f"org/tiny@{FIRST}" in json.dumps(saved)
    assert train(sft({"path": "org/tiny"}, steps=2), resume=True).step == 2
    other = dict(load_file(first.policy / "model.safetensors"))
    weights = files["model.safetensors"]
    in_cache(place, {**files, "model.safetensors": weights[:-1] + bytes([weights[-1] ^ 0x80])}, SECOND)
    hub_folder.cache_clear()
    with pytest.raises(ConfigError, match=r"model\.path.*" + SECOND):
        train(sft({"path": "org/tiny"}, steps=3), resume=True)
    again = train(sft({"path": f"org/tiny@{FIRST}"}, steps=3), resume=True)
    assert again.step == 3
    assert other.keys() == load_file(again.policy / "model.safetensors").keys()


def test_a_model_that_neither_place_has(place: Path) -> None:
    with pytest.raises(DataError, match="'org/tiny', which is no folder here: HF_HUB_OFFLINE is set, and the cache"):
        train(sft({"path": "org/tiny"}))
    with pytest.raises(DataError, match="hf download org/tiny"):
        load_model("org/tiny")


def test_an_adapter_names_its_base_as_the_user_did(place: Path, files: dict[str, bytes]) -> None:
    snapshot = in_cache(place, files, FIRST)
    lora = {"lora": {"rank": 2}}
    adapter = train(sft({"path": "org/tiny", **lora})).policy
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/tiny", FIRST)
    (place / "models").mkdir()
    snapshot.rename(place / "models" / "tiny")
    local = train(sft({"path": "models/tiny", **lora}, name="local")).policy
    config = json.loads((local / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "models/tiny"
    assert "revision" not in config
    # An adapter of the Hub's model is read where only the Hub has its base.
    shutil.copytree(adapter, place / "adapter", ignore=shutil.ignore_patterns("adapter_base.json"))
    (place / "models" / "tiny").rename(snapshot)
    assert read_config(place / "adapter").hidden_size == 16
    further = train(sft({"path": "adapter", **lora}, name="further")).policy
    assert json.loads((further / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/tiny"


@pytest.mark.parametrize("lora", [{}, {"lora": {"rank": 2}}])
def test_an_export_has_the_type_of_the_first_model_and_goes_to_the_hub(
    hub: type[FakeHub], place: Path, lora: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    train({"name": "both", "stage": [sft({"path": "org/tiny"}, name="a"), sft({"path": "stage:a", **lora}, name="b")]})
    assert main(["export", "runs/both/b", "out", "--push", "org/new"]) == 0
    said = capsys.readouterr().out
    assert "in bfloat16 as the model that training began with" in said
    assert f"pushed out to {hub.address}/org/new" in said
    assert stored_type(Path("out")) == "bfloat16"
    wanted = load_model(next(Path("runs/both/b/checkpoints").glob("step_*")) / "policy").named_parameters()
    written = dict(load_model("out").named_parameters())
    assert all(torch.equal(tensor.bfloat16().float(), written[name]) for name, tensor in wanted)
    assert hub.pushed == {file.name: file.read_bytes() for file in Path("out").iterdir()}


def test_a_folder_that_cannot_be_pushed_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "out").mkdir()
    with pytest.raises(DataError, match=r"'org/new' was not uploaded \(out is complete, and `hf upload org/new out`"):
        push_folder(Path("out"), "org/new")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"was not uploaded .*: the Hub answered"):
        push_folder(Path("out"), "org/new")
    assert main(["export", "runs/none", "out", "--push", "new"]) == 2
