"""The manifest that tells a robot which policies it may run, its signature, and the keys of robots.

A service has one secret. A robot's secret is derived from it and the robot's name, and two keys from that: the token
that the robot shows, and the key that signs manifests for it (HMAC-SHA256, RFC 2104). So the service keeps no list of
robots, a stolen robot can neither sign for another one nor send in its name, and no package beside Python's own is
needed. The manifest holds the sha256 of each file of each policy, so that one signature covers every byte that runs.

Chance of an episode: in a trial, each episode of an exposed robot is run by the new version or by the live one, by a
coin that is a hash of the salt, the robot and the episode. So the two are compared within the same robots.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import PurePosixPath
from typing import Any, cast

from hone.core.errors import ConfigError, DataError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A file of a policy."""

    path: str
    """Relative to the policy's folder, with `/`."""
    sha256: str
    size_bytes: int

    @property
    def is_inside(self) -> bool:
        """True for a relative path that stays in its folder."""
        parts = PurePosixPath(self.path)
        return bool(self.path) and not parts.is_absolute() and ".." not in parts.parts and "\\" not in self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTrial:
    """A version on trial: which part of the robot's episodes it runs."""

    rollout: str
    stage: str
    version: str
    exposed: bool
    """True: each episode is the new version's with probability 1/2; False: the robot only knows of the trial."""
    episodes: int
    """Episodes of the new version that may pass without word from the service; the live version goes on after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetManifest:
    """Policies that a robot may run."""

    service: str
    robot: str
    number: int
    """Rises with every change: a robot refuses a lower number than it had."""
    live: str
    """Version that runs where no trial says otherwise; empty: none yet."""
    salt: str
    files: Mapping[str, Sequence[PolicyFile]]
    """Files of each version that is named."""
    numbers: Mapping[str, int]
    """Number of each version, which its steps carry."""
    trial: PolicyTrial | None = None

    def to_text(self) -> str:
        """The manifest as JSON, to be signed."""
        tree = {
            "format": FORMAT, "service": self.service, "robot": self.robot, "number": self.number, "live": self.live,
            "salt": self.salt, "numbers": dict(self.numbers),
            "files": {name: [[one.path, one.sha256, one.size_bytes] for one in files]
                      for name, files in self.files.items()},
            "trial": None if self.trial is None else {
                "rollout": self.trial.rollout, "stage": self.trial.stage, "version": self.trial.version,
                "exposed": self.trial.exposed, "episodes": self.trial.episodes,
            },
        }  # fmt: skip
        return json.dumps(tree, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "FleetManifest":
        """Read what `to_text` wrote. Raises DataError, also for paths that leave the policy's folder."""
        try:
            tree = cast("dict[str, Any]", json.loads(text))
            if tree["format"] != FORMAT:
                raise DataError(f"the manifest has format {tree['format']!r}, this hone reads {FORMAT}; update hone")
            files = {
                str(name): tuple(PolicyFile(path=str(one[0]), sha256=str(one[1]), size_bytes=int(one[2])) for one in of)
                for name, of in tree["files"].items()
            }
            trial = None if tree["trial"] is None else PolicyTrial(**tree["trial"])
            manifest = cls(
                service=tree["service"], robot=tree["robot"], number=int(tree["number"]), live=tree["live"],
                salt=tree["salt"], files=files, numbers={name: int(one) for name, one in tree["numbers"].items()},
                trial=trial,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise DataError(f"the manifest cannot be read: {error!r}") from error
        named = {manifest.live, "" if trial is None else trial.version} - {""}
        unsafe = [one.path for of in files.values() for one in of if not one.is_inside]
        unsafe += [name for name in files if not name.isalnum()]
        if unsafe or not named <= files.keys() or not named <= manifest.numbers.keys():
            raise DataError(f"the manifest names {unsafe or sorted(named)}, which is no file of a version")
        return manifest

    @classmethod
    def from_signed(cls, secret: str, text: str, signature: str) -> "FleetManifest":
        """A manifest whose signature holds. Raises DataError for any other."""
        if not hmac.compare_digest(manifest_signature(secret, text), signature):
            raise DataError(
                "the manifest is not signed for this robot: it is refused, and the policies stay as they are"
            )
        return cls.from_text(text)

    def tries_in(self, episode: int) -> bool:
        """The coin of an episode on trial: True for the new version, with probability 1/2."""
        return bool(blake2b(f"{self.salt}\x00{self.robot}\x00{episode}".encode(), digest_size=1).digest()[0] & 1)


# ----------------------------------------------------------------------------------------------------------------- keys


def robot_secret(service_secret: str, robot: str) -> str:
    """The secret of a robot, to be put on it and nowhere else -> 64 hexadecimal digits."""
    return _derived(service_secret, f"robot {robot}")


def robot_token(secret: str) -> str:
    """The bearer token that a robot shows."""
    return _derived(secret, "token")


def manifest_signature(secret: str, text: str) -> str:
    """The signature of a manifest's text for one robot -> 64 hexadecimal digits."""
    return hmac.new(bytes.fromhex(_derived(secret, "sign")), text.encode(), sha256).hexdigest()


def _derived(secret: str, purpose: str) -> str:
    try:
        key = bytes.fromhex(secret)
    except ValueError:
        raise ConfigError("a secret of a fleet has 64 hexadecimal digits") from None
    return hmac.new(key, purpose.encode(), sha256).hexdigest()
