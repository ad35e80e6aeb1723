"""`certificate.json`: what was found when a run's loss was cut up in many ways and its gradients were compared.

Belongs here: the figures and their file. How they are found is `train/invariance/check.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hone.core.errors import DataError
from hone.store.durable import Json, finite_or_none, read_json_object, replace_file, to_json

CERTIFICATE = "certificate.json"
CERTIFICATE_FORMAT = 1
TOLERANCE = 1e-12
"""Largest difference of two gradients in float64, as a share of the largest component, that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """The gradient of one batch, taken once whole and once cut up."""

    name: str
    """How it was cut."""
    detail: str
    """Into what."""
    difference: float
    """Largest |difference| of a component; NaN where the gradient was not a number."""
    relative: float
    """The same, divided by the largest |component| of the whole batch's gradient."""

    @property
    def passed(self) -> bool:
        return self.relative <= TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCertificate:
    """The checks of one config."""

    recipe: str
    config_hash: str
    """Of the settings, as in `manifest.json`."""
    batch: str
    """What the gradients were taken of."""
    checks: tuple[GradientCheck, ...]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def summary(self) -> str:
        """The whole of it in a sentence."""
        failed = [check for check in self.checks if not check.passed]
        if failed:
            found = ", ".join(f"{check.name} (off by {check.relative:.1e} of it)" for check in failed)
            return f"the gradient depends on how a batch is cut: {found}"
        worst = max((check.relative for check in self.checks), default=0.0)
        return (
            f"the gradient does not depend on how a batch is cut: {len(self.checks)} ways agree to {worst:.1e} of it "
            "in float64"
        )


def write_certificate(folder: Path, certificate: GradientCertificate) -> None:
    """Write `certificate.json`, whole or not at all. Raises ResourceError."""
    checks: list[Json] = [
        {
            "name": check.name,
            "detail": check.detail,
            "difference": finite_or_none(check.difference),
            "relative": finite_or_none(check.relative),
            "passed": check.passed,
        }
        for check in certificate.checks
    ]
    document: dict[str, Json] = {
        "format": CERTIFICATE_FORMAT,
        "recipe": certificate.recipe,
        "config_hash": certificate.config_hash,
        "batch": certificate.batch,
        "tolerance": TOLERANCE,
        "passed": certificate.passed,
        "checks": checks,
        "versions": dict(certificate.versions),
    }
    replace_file(folder / CERTIFICATE, to_json(document, indent=1))


def read_certificate(folder: Path) -> GradientCertificate | None:
    """What `write_certificate` wrote; None when there is no file. Raises DataError for a damaged one."""
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    match read_json_object(path):
        case {
            "recipe": str(recipe),
            "config_hash": str(digest),
            "batch": str(batch),
            "checks": list(rows),
            "versions": dict(versions),
        }:
            return GradientCertificate(
                recipe=recipe,
                config_hash=digest,
                batch=batch,
                checks=tuple(_check(row, path) for row in rows),
                versions={name: str(version) for name, version in versions.items()},
            )
        case _:
            raise DataError(f"{path} is not the certificate of a loss; `hone doctor loss` writes a new one")


def _check(row: Json, path: Path) -> GradientCheck:
    match row:
        case {
            "name": str(name),
            "detail": str(detail),
            "difference": (int() | float() | None) as difference,
            "relative": (int() | float() | None) as relative,
        }:
            return GradientCheck(
                name=name,
                detail=detail,
                difference=float("nan") if difference is None else float(difference),
                relative=float("nan") if relative is None else float(relative),
            )
        case _:
            raise DataError(f"{path}: a check should hold a name, a detail and two figures, is {row!r}")
