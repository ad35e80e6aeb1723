"""Gradient certificate of a run, `certificate.json`: gradients of its loss compared over different batch splits.

Belongs here: the figures and their file. `certify/check.py` computes them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import Number, read_record, record_json

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
    """Parts of the split batch."""
    difference: Number
    """Largest |difference| of a component; NaN for a NaN gradient."""
    relative: Number
    """`difference` divided by the largest |component| of the whole batch's gradient."""

    @property
    def passed(self) -> bool:
        """True if the difference is rounding."""
        return self.relative <= TOLERANCE

    @property
    def is_empty(self) -> bool:
        """True if the whole batch has no gradient, so that nothing could be compared."""
        return math.isnan(self.relative) and math.isfinite(self.difference)


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
        """True if every check passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def summary(self) -> str:
        """Summary in a sentence."""
        failed = [check for check in self.checks if not check.passed]
        if any(check.is_empty for check in failed):
            names = ", ".join(check.name for check in failed if check.is_empty)
            return f"the gradient of the synthetic batch is 0, which shows nothing: {names}"
        if failed:
            found = ", ".join(f"{check.name} (relative difference {check.relative:.1e})" for check in failed)
            return f"the gradient depends on the split of a batch: {found}"
        worst = max((check.relative for check in self.checks), default=0.0)
        return (
            f"the gradient does not depend on the split of a batch: {len(self.checks)} splits agree to {worst:.1e} "
            "of it in float64"
        )


def write_certificate(folder: Path, certificate: GradientCertificate) -> None:
    """Write `certificate.json` atomically. Raises ResourceError."""
    checks: list[Json] = [record_json(check) | {"passed": check.passed} for check in certificate.checks]
    document: dict[str, Json] = {
        "format": CERTIFICATE_FORMAT,
        **record_json(certificate),
        "tolerance": TOLERANCE,
        "passed": certificate.passed,
        "checks": checks,
    }
    replace_file(folder / CERTIFICATE, to_json(document, indent=1))


def read_certificate(folder: Path) -> GradientCertificate | None:
    """Read `certificate.json`; None without the file. Raises DataError for a damaged one."""
    try:
        return read_record(GradientCertificate, folder / CERTIFICATE)
    except DataError as error:
        raise DataError(*error.messages, "`hone doctor loss` writes a new certificate") from None
