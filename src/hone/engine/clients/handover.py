"""Publishes the policy's weights to a server through a folder, and checks that it loaded them."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DivergedError
from hone.engine.canary import WeightCanary, WeightFingerprint
from hone.engine.clients.canary import ScoringRunner
from hone.engine.clients.http import ServerError
from hone.engine.clients.untied import untie
from hone.engine.clients.wire import GenerateResponse, ServerFeatures, ServerProtocol

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
        runner = ScoringRunner(wire, abilities.server)
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
