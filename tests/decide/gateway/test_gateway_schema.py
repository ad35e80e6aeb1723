"""Requests that schemathesis derives from the published schema: none ends in an error of the server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_process import serving

ROOT = Path(__file__).resolve().parents[3]
SERVICE = """
[service]
features = ["age", "country=de"]
actions = ["banner", "mail", "none"]
"""
EVERYTHING = ("--exclude-checks", "positive_data_acceptance")
"""Rules of rewards that no schema states: `source` needs `seq` and `at_s`, and no time is in the future."""
DECISIONS = ("--include-path", "/v1/decide")


@pytest.fixture(scope="module")
def schemathesis() -> Path:
    """The program, in its environment; HONE_SCHEMATHESIS_PYTHON names another one."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from peers import require_peer

    given = os.environ.get("HONE_SCHEMATHESIS_PYTHON")
    return (Path(given) if given else require_peer("schemathesis")).parent / "schemathesis"


@pytest.mark.slow
@pytest.mark.parametrize("options", [EVERYTHING, DECISIONS], ids=["everything", "decisions"])
def test_generated_requests_get_what_the_schema_says(
    options: tuple[str, ...], tmp_path: Path, schemathesis: Path
) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(SERVICE, encoding="utf-8")
    with serving(path) as server:
        url = f"http://127.0.0.1:{server.port}/openapi.json"
        command = [schemathesis, "run", url, "--max-examples", "60", "--seed", "100", "--no-color", *options]
        command += ["--phases", "examples,coverage,fuzzing"]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=160)
        assert done.returncode == 0, done.stdout[-6000:]
        status, _ = server.post("/v1/decide", {"unit": "u", "context": {"age": 1, "country": "de"}})
        assert status == 200
