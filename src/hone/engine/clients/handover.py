"""Publishes the policy's weights to a server through a folder, and checks that it loaded them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file

from hone.core.errors import DataError, DivergedError
from hone.core.generation import SamplingParams, ScoreRequest
from hone.core.state import share_arrays
from hone.engine.canary import WeightCanary, WeightFingerprint
from hone.engine.clients.http import ServerError
from hone.engine.clients.wire import GenerateResponse, ServerFeatures, ServerProtocol
from hone.engine.work import ForwardBatch, SamplerOutput

# --------------------------------------------------------------------------------------------------------------- canary


_TOKENS = 64


class _ScoringRunner:
    """Implements `work.Runner` as far as `WeightCanary.check` uses it."""

    exact = False
    page_tokens = _TOKENS

    def __init__(self, wire: ServerProtocol, name: str) -> None:
        self.name = name
        self._wire = wire

    def reserve(self, pages: int) -> None:
        """Do nothing: a server has its own weights."""

    def publish(self) -> None:
        """Do nothing: `handover` publishes the weights."""

    def release(self) -> None:
        """Do nothing, as above."""

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Do nothing: a server has its own pages."""

    def run(self, work: ForwardBatch) -> SamplerOutput:
        """Score the given tokens of one text, at temperature 1."""
        text = ScoreRequest(
            prompt=work.tokens[:1], tokens=work.draws.forced_token, sampling=SamplingParams(max_tokens=1)
        )
        logp = self._wire.score(text)
        return SamplerOutput(token=work.draws.forced_token, logp=logp, sampled_logp=logp, sampling_mask_bits=None)


# --------------------------------------------------------------------------------------------------------------- untied
# Model folders with a separate output layer.
#
# vLLM 0.32 on a CPU packs the output layer at start, and a reload of weights skips one that is tied to the embedding,
# without an error. So a server for training is started from an untied folder, and gets its weights through untied
# folders. The numbers are the same.


_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_FIRST: Final = "model-00001-of-00002.safetensors"
_SECOND: Final = "model-00002-of-00002.safetensors"
_ADDED: Final = "model-lm_head.safetensors"


def untie(folder: Path) -> bool:
    """Give a Hugging Face folder a separate output layer, in place; returns whether it had none.

    Every tool can still read it: a single weight file becomes the first of two. Raises DataError where the folder has
    no embedding to copy.
    """
    config = _read(folder / "config.json")
    if not config.get("tie_word_embeddings", False):
        return False
    places, head = _places(folder)
    if _EMBEDDING not in places:
        raise DataError(f"{folder}: none of its weights is {_EMBEDDING}; it is not a complete model folder")
    with safe_open(folder / places[_EMBEDDING], framework="pt") as tensors:
        weight = tensors.get_tensor(_EMBEDDING)
    save_file({_HEAD: weight}, folder / head, metadata={"format": "pt"})
    share_arrays(folder / head)
    total = sum((folder / name).stat().st_size for name in {*places.values(), head})
    _write(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": {**places, _HEAD: head}})
    _write(folder / "config.json", {**config, "tie_word_embeddings": False})
    return True


def _places(folder: Path) -> tuple[dict[str, str], str]:
    """Map each tensor to its file, and find the file of the output layer."""
    if (folder / _INDEX).is_file():
        return dict(_read(folder / _INDEX)["weight_map"]), _ADDED
    if not (folder / _SINGLE).is_file():
        raise DataError(f"{folder}: no weights; expected {_SINGLE}, or {_INDEX} and the files that it lists")
    (folder / _SINGLE).rename(folder / _FIRST)
    with safe_open(folder / _FIRST, framework="pt") as tensors:
        return dict.fromkeys(tensors.keys(), _FIRST), _SECOND


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------- handover


_REMEMBERED: Final = 64


class ForeignWeightsError(ServerError):
    """Answer sampled with weights that this run did not publish: the server was restarted."""


@dataclass(slots=True, kw_only=True)
class WeightTransfer:
    """Transfer of weights through a folder that this machine writes and the server reads under the same path."""

    save: Callable[[Path], None]
    """Writes a Hugging Face folder."""
    folder: Path
    session: str
    """Distinguishes this run's weights from another's on the same server."""
    canary: WeightCanary | None = None
    keep_folder: bool = True
    """Keep the folder after the engine is closed; its weights are removed."""
    fingerprints: dict[int, WeightFingerprint] = field(default_factory=dict[int, WeightFingerprint])
    """Fingerprints of the latest versions."""
    saved_version: int | None = None
    """Version of the weights in the folder."""

    def save_weights(self, version: int) -> None:
        """Write the current weights and remove those of the previous version."""
        place = self._place(version)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.save(place)
        untie(place)
        if self.saved_version not in (None, version):
            shutil.rmtree(self._place(self.saved_version), ignore_errors=True)
        if self.canary is not None:
            self.canary.keep(version)
        self.saved_version = version

    def send(self, wire: ServerProtocol, abilities: ServerFeatures, *, stopped: bool = False) -> None:
        """Make the server load the folder, and check that it did; `stopped`: the server waits for `resume`.

        Raises ServerError if it does not load them, DivergedError if its weights still differ.
        """
        self._hand(wire)
        if stopped:
            wire.resume()
        try:
            self._check(wire, abilities)
        except DivergedError:
            # It may have restarted since; a server that does not load weights fails again.
            self._hand(wire)
            self._check(wire, abilities)

    def _hand(self, wire: ServerProtocol) -> None:
        version = self.saved_version
        assert version is not None
        wire.load(self._place(version).absolute(), self._label(version))

    def _check(self, wire: ServerProtocol, abilities: ServerFeatures) -> None:
        """Check that the server gives the canary's tokens the trainer's log-probabilities."""
        if self.canary is None or self.saved_version is None or "score" not in abilities.supported:
            return
        runner = _ScoringRunner(wire, abilities.server)
        try:
            self.fingerprints[self.saved_version] = self.canary.check(self.saved_version, runner, page=0)
        except DivergedError as error:
            raise DivergedError(
                *error.messages,
                "a server that differs only after a publication did not load all weights: one with a tied output "
                "layer may not, so start it from an untied folder (docs/howto/servers.md). One that differs from the "
                "start computes in another number format than the trainer: give it the trainer's, or set canary_nats",
            ) from None
        while len(self.fingerprints) > _REMEMBERED:
            self.fingerprints.pop(next(iter(self.fingerprints)), None)

    def token_versions(self, response: GenerateResponse, asked: int, place: str) -> NDArray[np.int32]:
        """Version of the weights of each token `[n]`, in an answer requested under version `asked`.

        Raises ForeignWeightsError for weights that are not of this run, DivergedError for older ones than `asked`.
        """
        result = np.full(len(response.tokens), asked, np.int32)
        for start, label in response.weight_labels or ():
            session, _, number = label.rpartition(".")
            if session != self.session or not number.isdecimal():
                raise ForeignWeightsError(
                    f"{place}: it samples from weights {label!r}, not from {self._label(asked)!r}"
                )
            if int(number) < asked:
                raise DivergedError(
                    f"{place}: an answer asked for under version {asked} was sampled by {number}: the server did "
                    "not load the published weights, or several servers share one address"
                )
            result[start:] = int(number)
        return result

    def close(self) -> None:
        """Remove the weights."""
        if self.saved_version is not None:
            shutil.rmtree(self._place(self.saved_version), ignore_errors=True)
        if not self.keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _place(self, version: int | None) -> Path:
        return self.folder / f"weights_{version}"

    def _label(self, version: int) -> str:
        return f"{self.session}.{version}"
