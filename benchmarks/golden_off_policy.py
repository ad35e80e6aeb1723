"""Golden values of Open Bandit Pipeline for the tests of off-policy estimators: only numbers come into the project.

    python benchmarks/golden_off_policy.py tests/fixtures/off_policy/obp.json
    python benchmarks/golden_off_policy.py --rows 100000       values and processor seconds of more rows, printed

Downloads the wheel of obp 0.4.1 without its dependencies, reads its estimators as a file, and runs them on a table of
sines. The environment needs numpy; torch, which the file imports for functions that are not used, is left out.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np

ROWS, ACTIONS = 60, 4
WHEEL = "obp==0.4.1"


def downloaded_wheel(folder: Path) -> zipfile.ZipFile:
    """The wheel of obp, opened as a zip file."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL, "-d", str(folder)], check=True)
    return zipfile.ZipFile(next(folder.glob("obp-*.whl")))


def golden_table(rows: int = ROWS) -> dict[str, np.ndarray]:
    """A log of sines: the same numbers on every machine, without a random generator."""
    row, action = np.arange(rows)[:, None], np.arange(ACTIONS)[None, :]
    scores, other = np.sin(3 * row + 5 * action), np.sin(7 * row + 2 * action)
    behaviour, target = (np.exp(each) / np.exp(each).sum(axis=1, keepdims=True) for each in (scores, 2 * other))
    chosen = (7 * row[:, 0] ** 2 + 3 * row[:, 0]) % ACTIONS
    return {
        "behaviour": behaviour,
        "target": target,
        "predicted": np.cos(row + action) / 2 + 0.5,
        "chosen": chosen,
        "reward": np.sin(11.0 * row[:, 0]) + chosen,
    }


def peer_module(source: str, folder: Path) -> ModuleType:
    """The peer's file as a module, beside empty stand-ins of the two modules that it imports for other functions."""
    unused = ("estimate_confidence_interval_by_bootstrap", "check_ope_inputs", "check_ope_inputs_tensor")
    (folder / "torch.py").write_text("Tensor = None\n", encoding="utf-8")
    (folder / "obp_utils.py").write_text("".join(f"{name} = None\n" for name in unused), encoding="utf-8")
    (folder / "obp_estimators.py").write_text(source.replace("from ..utils", "from obp_utils"), encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module("obp_estimators")


def peer_estimates(peer: ModuleType, count: int = ROWS) -> tuple[dict[str, float], float]:
    """Values of the peer's estimators on the table of `count` rows, and their processor seconds."""
    table = golden_table(count)
    rows = np.arange(count)
    given = {
        "reward": table["reward"],
        "action": table["chosen"],
        "pscore": table["behaviour"][rows, table["chosen"]],
        "action_dist": table["target"][:, :, None],
        "estimated_rewards_by_reg_model": table["predicted"][:, :, None],
        "position": np.zeros(count, int),
    }
    made = {
        "ips": peer.InverseProbabilityWeighting(),
        "snips": peer.SelfNormalizedInverseProbabilityWeighting(),
        "dm": peer.DirectMethod(),
        "dr": peer.DoublyRobust(),
        "sndr": peer.SelfNormalizedDoublyRobust(),
        "switch": peer.SwitchDoublyRobust(tau=1.5),
    }
    begin = time.process_time()
    values = {name: float(np.mean(each._estimate_round_rewards(**given))) for name, each in made.items()}
    return values, time.process_time() - begin


def main() -> int:
    """Write the golden file that the command line names, or print the values of more rows."""
    count = int(sys.argv[2]) if sys.argv[1] == "--rows" else ROWS
    with tempfile.TemporaryDirectory() as folder, downloaded_wheel(Path(folder)) as wheel:
        peer = peer_module(wheel.read("obp/ope/estimators.py").decode(), Path(folder))
        values, cpu_s = peer_estimates(peer, count)
    if sys.argv[1] == "--rows":
        print(json.dumps({"source": WHEEL, "values": values, "cpu_s": cpu_s}))
    else:
        golden = {"source": WHEEL, "max_weight": 1.5, "rows": ROWS, "actions": ACTIONS, "values": values}
        Path(sys.argv[1]).write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
