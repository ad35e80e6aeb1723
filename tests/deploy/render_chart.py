"""The chart, rendered by Helm: `python tests/deploy/render_chart.py`, with the packages of deploy/requirements.txt.

It writes tests/fixtures/helm_rendered.json: the documents of each set of values, and the hash of the chart that they
are of. So the tests look at what Helm makes of the chart, without Helm.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/hone"
RENDERED = ROOT / "tests/fixtures/helm_rendered.json"
VALUES: dict[str, dict[str, Any]] = {
    "decisions": {},
    "watched": {
        "replicas": 3,
        "monitoring": {"enabled": True},
        "secretEnv": [{"name": "LOG_PASSWORD", "secret": "hone-log", "key": "password"}],
        "serviceFile": '[service]\nactions = ["a", "b"]\n[log]\naddress = "postgresql://hone@log/hone"\n'
        'password_env = "LOG_PASSWORD"\n[[service.clients]]\nname = "web"\ntoken_file = "/secrets/web"\n',
    },
    "model": {"kind": "model", "model": {"existingClaim": "checkpoints", "path": "runs/sums"}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "an unknown key": {"replica": 2},
    "a model without its claim": {"kind": "model"},
    "no replicas": {"replicas": 0},
    "another kind": {"kind": "bandit"},
    "a lower-case variable": {"secretEnv": [{"name": "x", "secret": "a", "key": "b"}]},
}


def chart_hash() -> str:
    """sha256 over the chart's files and the values that are rendered."""
    digest = hashlib.sha256(json.dumps(VALUES, sort_keys=True).encode())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(CHART)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def rendered() -> dict[str, list[str]]:
    """YAML texts of every set of values, by Helm."""
    import helm_python

    texts: dict[str, list[str]] = {}
    with helm_python.Chart.load(CHART) as chart:
        for name, values in VALUES.items():
            files = chart.render(values, name="demo", namespace="prod")
            texts[name] = [text for path, text in sorted(files.items()) if path.endswith(".yaml") and text.strip()]
    return texts


def lint_messages() -> list[str]:
    """What Helm's linter says beside its recommendations; and values that the chart's schema should refuse, but does
    not."""
    import helm_python

    messages: list[str] = []
    for name, values in VALUES.items():
        report = helm_python.lint(CHART, values=values, strict=True)
        messages += [f"{name}: {one['error']}" for one in report["messages"] if one["severity"] > 1]
    for name, values in REFUSED.items():
        if not helm_python.lint(CHART, values=values, strict=True)["errors"]:
            messages.append(f"{name} is not refused")
    return messages


if __name__ == "__main__":
    if sys.argv[1:] == ["--lint"]:
        print(json.dumps({"messages": lint_messages(), "rendered": rendered()}))
    else:
        RENDERED.write_text(json.dumps({"chart": chart_hash(), "rendered": rendered()}, indent=1) + "\n")
