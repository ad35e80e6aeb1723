"""The Open Bandit samples: real decisions of a shop with their propensities, read out of the wheel of obp 0.4.1.

Nothing of the data comes into the project: each use downloads the wheel, without its dependencies, and reads it as zip.
The value of the second policy (Bernoulli Thompson sampling) is estimated on the log of the uniform one; its
probabilities are the frequencies of its own log, by item and place on the page.
"""

import csv
import io
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hone.decide.estimators.terms import LoggedFeedback

WHEEL = "obp==0.4.1"
CAMPAIGNS = ("men", "women", "all")


@dataclass(frozen=True, kw_only=True)
class OpenBanditSample:
    """The log of a campaign's uniform policy beside the target, and the target's own mean."""

    campaign: str
    logged: LoggedFeedback
    on_policy: float
    """Share of clicks in the target's own log."""


def downloaded_samples(folder: Path) -> list[OpenBanditSample]:
    """The samples of the three campaigns. Raises CalledProcessError without the package index."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL, "-d", str(folder)]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("obp-*.whl"))) as wheel:
        return [_sample(wheel, campaign) for campaign in CAMPAIGNS]


def _rows(wheel: zipfile.ZipFile, policy: str, campaign: str) -> list[dict[str, str]]:
    text = wheel.read(f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv").decode()
    return list(csv.DictReader(io.StringIO(text)))


def _sample(wheel: zipfile.ZipFile, campaign: str) -> OpenBanditSample:
    uniform, target = _rows(wheel, "random", campaign), _rows(wheel, "bts", campaign)
    items = 1 + max(int(row["item_id"]) for row in uniform + target)
    shown = Counter((row["position"], int(row["item_id"])) for row in target)
    places = Counter(row["position"] for row in target)
    chance = {place: np.array([shown[place, item] for item in range(items)]) / places[place] for place in places}
    with np.errstate(divide="ignore"):
        target_logp = np.log(np.array([chance[row["position"]] for row in uniform]))
    logged = LoggedFeedback(
        contexts=np.zeros((len(uniform), 0)),
        action=np.array([int(row["item_id"]) for row in uniform]),
        logp=np.log([float(row["propensity_score"]) for row in uniform]),
        reward=np.array([float(row["click"]) for row in uniform]),
        target_logp=target_logp,
        unit=np.arange(len(uniform)),
    )
    return OpenBanditSample(
        campaign=campaign, logged=logged, on_policy=float(np.mean([float(row["click"]) for row in target]))
    )
