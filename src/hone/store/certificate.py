"""Gradient certificate of a run, `certificate.json`: gradients of its loss compared over different batch splits.

Belongs here: the figures and their file. `train/invariance/check.py` computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hone.core.errors import DataError
from hone.store.durable import Json, finite_or_none, read_json_object, replace_file, to_json

CERTIFICATE = "certificate.json"
CERTIFICATE_FORMAT = 1
TOLERANCE = 1e-12
"""Largest difference of two float64 gradients, relative to the largest component, that counts as rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """Comparison of a batch's gradient as a whole and split."""

    name: str
    """Description of the split."""
    detail: str
    """Into what."""
    difference: float
    """Largest |difference| of a component; NaN for a NaN gradient."""
    relative: float
    """`difference` divided by the largest |component| of the whole batch's gradient."""

    @property
    def passed(self) -> bool:
        """Whether the difference is rounding."""
        return self.relative <= TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCertificate:
    """Gradient checks of one config."""

    recipe: str
    config_hash: str
    """Hash of the settings, as in `manifest.json`."""
    batch: str
    """Description of the batch."""
    checks: tuple[GradientCheck, ...]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def summary(self) -> str:
        """Summary in a sentence."""
        failed = [
            f"{check.name} (relative difference {check.relative:.1e})" for check in self.checks if not check.passed
        ]
        if failed:
            return f"the gradient depends on the split of a batch: {', '.join(failed)}"
        worst = max((check.relative for check in self.checks), default=0.0)
        return (
            f"the gradient does not depend on the split of a batch: {len(self.checks)} splits agree to {worst:.1e} "
            "of it in float64"
        )


def write_certificate(folder: Path, certificate: GradientCertificate) -> None:
    """Write `certificate.json` atomically. Raises ResourceError."""
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
    """Read `certificate.json`; None without the file. Raises DataError for a damaged one."""
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
            raise DataError(f"{path} is not a gradient certificate; `hone doctor loss` writes a new one")


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
            raise DataError(f"{path}: a check must contain a name, a detail and two figures, got {row!r}")
