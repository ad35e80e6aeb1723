"""Container, compose file, chart, alerts and boards: what they name exists in hone, and they fit each other.

Linters of their own look at them in test_deploy_linters.py, where these are installed.
"""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from gateway_parts import make_box, post
from render_chart import CHART, RENDERED, chart_hash

from hone.cli.options import COMMANDS
from hone.core.clock import SystemClock
from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher
from hone.decide.gateway.opening import open_service, read_service_file
from hone.text.serving.completions.service import _ServingCounters

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/hone.rules.yml"
BOARDS = sorted((DEPLOY / "grafana/boards").glob("*.json"))
SERVE = next(one for one in COMMANDS if one.name == "serve")
OF_PROMETHEUS = {"up": {"job", "instance"}}
OF_A_SCRAPE = {"job", "instance"}
WORDS = {
    "by",
    "on",
    "unless",
    "group_left",
    "sum",
    "rate",
    "increase",
    "max",
    "max_over_time",
    "histogram_quantile",
    "scalar",
}


# -------------------------------------------------------------------------------------------------------------- metrics


@cache
def exported() -> dict[str, set[str]]:
    """Metrics that the services really export, by name, with their labels."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "shop.toml").write_text('[service]\nactions = ["a", "b"]\n[policy]\nkind = "linucb"\n')
        opened = open_service(Path(folder) / "shop.toml", clock=SystemClock(), tell=print)
        learning = opened.service.counters_text()
        opened.close()
    box = make_box()
    app = GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=False)).app()
    decided = post(app, "/v1/decide", {"unit": "u", "context": {"age": 0.5, "country": "de"}}).json()
    post(app, "/v1/reward", {"id": decided["id"], "value": 1.0})
    post(app, "/v1/decide", {"unit": "u", "nothing": 1})
    counters = box.service.parts.counters
    counters.decided("default", "v", "timeout: late")
    counters.shadows["v", "logged"] += 1
    counters.features["profile", "fresh"] += 1
    counters.shares["default", "30d"] = 1.0
    models = _ServingCounters()
    models.count_response("/v1/completions", 200, 0.1)
    models.first_token.add(0.1)
    app_source = (ROOT / "src/hone/text/serving/completions/app.py").read_text(encoding="utf-8")
    gauges = [(name, "", 0.0) for name in re.findall(r'\("(hone_\w+)", "', app_source)]
    assert len(gauges) == 3
    found: dict[str, set[str]] = {}
    for line in (box.service.counters_text() + learning + models.text(gauges)).splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return {**found, **OF_PROMETHEUS}


def faults_of(expression: str, metrics: dict[str, set[str]]) -> list[str]:
    """Metrics and labels of an expression that no service exports."""
    faults: list[str] = []
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, matchers in re.findall(r"\b([a-z_]\w*)\s*(?:\{([^}]*)\})?", re.sub(r"\b(?:by|on) \([^)]*\)", "", bare)):
        if name in WORDS or re.fullmatch(r"[smhdw]", name):
            continue
        if name not in metrics:
            faults.append(f"{name} is not exported")
            continue
        labels = set(re.findall(r"(\w+)\s*(?:=|!)", matchers))
        faults += [f"{name} has no label {label}" for label in labels - metrics[name] - OF_A_SCRAPE]
    known = set().union(*metrics.values(), OF_A_SCRAPE)
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare):
        faults += [
            f"no metric has the label {label.strip()}" for label in group.split(",") if label.strip() not in known
        ]
    return faults


def test_the_check_of_expressions_sees_what_is_wrong() -> None:
    metrics = {"hone_a_total": {"status"}, **OF_PROMETHEUS}
    assert faults_of('sum by (status) (rate(hone_a_total{status=~"5..", instance="a"}[5m])) / 2 > 0.01', metrics) == []
    assert faults_of("rate(hone_b_total[5m])", metrics) == ["hone_b_total is not exported"]
    assert faults_of('hone_a_total{code="x"}', metrics) == ["hone_a_total has no label code"]
    assert faults_of("sum by (code) (hone_a_total)", metrics) == ["no metric has the label code"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alert_asks_for_metrics_that_are_exported_and_has_a_page() -> None:
    metrics, page = exported(), (ROOT / "docs/production/on_call.md").read_text(encoding="utf-8")
    for rule in rules():
        assert faults_of(rule["expr"], metrics) == [], rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / path).is_file() and anchor == rule["alert"].lower()
        assert f"\n## {rule['alert']}\n" in page
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [rule["alert"] for rule in rules()]
    codes = set(re.search(r'code=~"([^"]+)"', RULES.read_text(encoding="utf-8"))[1].split("|"))
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/hone/decide").rglob("*.py"))
    assert all(f'"{code}"' in source for code in codes), "codes of faults that hone writes"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_of_a_board_asks_for_metrics_that_are_exported(path: Path) -> None:
    board, metrics = json.loads(path.read_text(encoding="utf-8")), exported()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {one["name"] for one in board["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"] and panel["targets"] and panel["datasource"]["uid"] == "${source}"
        for target in panel["targets"]:
            assert faults_of(target["expr"].replace("$instance", ""), metrics) == [], panel["title"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert labels <= set().union(*metrics.values(), OF_A_SCRAPE)
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_the_boards_and_alerts_leave_out_no_metric() -> None:
    used = "".join(path.read_text(encoding="utf-8") for path in (*BOARDS, RULES))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    assert [name for name in sorted(names) if name not in used] == []
    page = (ROOT / "docs/production/operations.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (`hone_[^|]*) \|([^|]*)\|", page, re.MULTILINE))
    listed = {
        name: set(re.findall(r"`(\w+)`", labels))
        for cell, labels in rows.items()
        for name in re.findall(r"`(\w+)`", cell)
    }
    truth = {name: labels - {"le"} for name, labels in exported().items() if name != "up"}
    assert listed == {re.sub(r"_(bucket|sum|count)$", "", name): labels for name, labels in truth.items()}


# ------------------------------------------------------------------------------------------------ container and compose


def test_the_container_runs_as_nobody_and_asks_whether_it_lives() -> None:
    text = (DEPLOY / "container/Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    instructions = [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]
    words = [one[0] for one in instructions]
    assert words.count("FROM") == 2 and words.index("USER") > words.index("RUN", words.index("FROM") + 4)
    values = dict(instructions)
    assert values["USER"] == "10001:10001" and values["STOPSIGNAL"] == "SIGTERM" and "/live" in values["HEALTHCHECK"]
    entry, arguments = json.loads(values["ENTRYPOINT"]), json.loads(values["CMD"])
    assert entry == ["hone"] and arguments[0] == "serve"
    assert_options(arguments)
    extras = re.search(r"ARG EXTRAS=(\S+)", text)[1].split(",")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    ignored = (DEPLOY / "container/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [*re.search(r"^COPY (.*) \./$", text, re.MULTILINE)[1].split(), "src"]
    assert ignored[0] == "*" and all(f"!{name}" in ignored and (ROOT / name).exists() for name in copied)


def assert_options(arguments: list[str]) -> None:
    """The options of a `hone serve` in these files are those that it has."""
    known = {option.flag for option in SERVE.options}
    assert {one.partition("=")[0] for one in arguments if one.startswith("--")} <= known, arguments


def test_the_compose_file_fits_its_service_file_and_its_secrets(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text(encoding="utf-8"))
    services, secrets = compose["services"], set(compose["secrets"])
    for name, one in services.items():
        assert set(one.get("secrets", [])) <= secrets
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", [])), f"{name} is reached from elsewhere"
        assert "mem_limit" in one and one["security_opt"] == ["no-new-privileges:true"]
        for volume in one["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), volume
            else:
                assert source in compose["volumes"]
        for variable in re.findall(r"\$\{(\w+)(.*?)\}", json.dumps(one.get("environment", {}))):
            assert variable[1].startswith(":?"), "what is not set is refused"
    decisions = services["decisions"]
    assert (DEPLOY / "compose" / decisions["build"]["context"]).resolve() == ROOT
    assert (ROOT / decisions["build"]["dockerfile"]).is_file()
    assert_options(decisions["command"])
    config = read_service_file(DEPLOY / "compose/service.toml").config
    assert {Path(one.token_file).name for one in config.service.clients} == set(decisions["secrets"])
    assert config.log.password_env in decisions["environment"]
    ignored = (DEPLOY / "compose/.gitignore").read_text(encoding="utf-8").split()
    assert {Path(one["file"]).name for one in compose["secrets"].values()} | {".env"} == set(ignored)
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scraped["job_name"] in RULES.read_text(encoding="utf-8")
    assert scraped["static_configs"][0]["targets"] == ["decisions:8000"]
    assert Path(scraped["authorization"]["credentials_file"]).name in services["prometheus"]["secrets"]
    scopes = {one.name: one.scopes for one in config.service.clients}
    assert scopes["prometheus"] == ["read"]


# ---------------------------------------------------------------------------------------------------------------- chart


def rendered(name: str) -> dict[str, dict[str, Any]]:
    """Documents that Helm made of the chart, by kind."""
    texts = json.loads(RENDERED.read_text(encoding="utf-8"))["rendered"][name]
    documents = [one for text in texts for one in yaml.safe_load_all(text) if one]
    assert len({one["kind"] for one in documents}) == len(documents)
    return {one["kind"]: one for one in documents}


def test_the_rendered_documents_are_those_of_the_chart_as_it_is() -> None:
    assert json.loads(RENDERED.read_text(encoding="utf-8"))["chart"] == chart_hash(), (
        "run `python tests/deploy/render_chart.py` with the packages of deploy/requirements.txt"
    )
    assert (CHART / "files/hone.rules.yml").read_bytes() == RULES.read_bytes(), "the chart's alerts are a copy"


@pytest.mark.parametrize("name", ["decisions", "watched", "model"])
def test_a_pod_is_confined_probed_and_given_time_to_end(name: str) -> None:
    spec = rendered(name)["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    for one in (container, *pod.get("initContainers", [])):
        security = one["securityContext"]
        assert security["readOnlyRootFilesystem"] and security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["ports"] == [{"name": "http", "containerPort": 8000}] and "--port=8000" in container["args"]
    assert_options(container["args"])
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + 30, "DRAIN_S of a gateway"
    mounted = {mount["name"] for one in (container, *pod.get("initContainers", [])) for mount in one["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]} | claims
    service, budget = rendered(name)["Service"]["spec"], rendered(name)["PodDisruptionBudget"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (service["selector"], budget["selector"]["matchLabels"], spec["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    assert service["ports"][0]["targetPort"] == "http" and budget["maxUnavailable"] == 1


@pytest.mark.parametrize("name", ["decisions", "watched"])
def test_the_service_file_of_the_chart_is_one_that_hone_reads(name: str, tmp_path: Path) -> None:
    documents = rendered(name)
    (tmp_path / "service.toml").write_text(documents["ConfigMap"]["data"]["service.toml"], encoding="utf-8")
    config = read_service_file(tmp_path / "service.toml").config
    pod = documents["StatefulSet"]["spec"]["template"]["spec"]
    mounts = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert all(str(Path(one.token_file).parent) in mounts for one in config.service.clients)
    link = pod["initContainers"][0]["command"]
    assert link == ["ln", "-sfn", "/config/service.toml", "/data/service.toml"]
    assert pod["containers"][0]["args"][1] == link[-1]
    variables = {one["name"] for one in pod["containers"][0].get("env", [])}
    assert not config.log.password_env or config.log.password_env in variables


def test_a_link_to_the_service_file_keeps_its_folder_beside_the_link(tmp_path: Path) -> None:
    """As in the chart: a ConfigMap cannot be written."""
    (tmp_path / "config").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "config/service.toml").write_text('[service]\nname = "offers"\nactions = ["a"]\n', encoding="utf-8")
    (tmp_path / "data/service.toml").symlink_to(tmp_path / "config/service.toml")
    from hone.decide.gateway.opening import open_service

    open_service(tmp_path / "data/service.toml", clock=SystemClock(), tell=print).close()
    assert (tmp_path / "data/offers/decisions.db").is_file()
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["service.toml"]


def test_the_chart_is_watched_by_the_alerts_and_the_jobs_that_they_name() -> None:
    documents = rendered("watched")
    assert documents["PrometheusRule"]["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))
    endpoint = documents["ServiceMonitor"]["spec"]["endpoints"][0]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "hone-decisions"}]
    assert endpoint["path"] == "/metrics" and endpoint["port"] == "http"
    assert documents["StatefulSet"]["spec"]["replicas"] == 3
