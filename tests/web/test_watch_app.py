"""The page's routes: who may ask, and what is answered; nothing is written below the runs."""

import hashlib
import json
import re
import shutil
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from starlette.testclient import TestClient
from watched_runs import (
    ATTACK,
    append_line,
    watched_clock,
    write_control_run,
    write_decisions,
    write_lab,
    write_service,
    write_text_run,
)

from hone.decide.gateway.opening import read_service_file
from hone.decide.joins.columns import log_columns
from hone.decide.joins.join import build_view
from hone.decide.log.opening import open_decision_log
from hone.estimators.means import paired_difference
from hone.evaluate.comparison import compare
from hone.run.http.listening import listening
from hone.run.report.timeline import step_timeline
from hone.run.report.timing_section import bottleneck_line
from hone.run.store.durable import read_json
from hone.run.store.evaluations import AnswerRow, latest_answers
from hone.run.store.manifest import read_config
from hone.run.store.metrics import read_metrics
from hone.run.store.records import parse_record
from hone.run.store.rollouts import read_samples
from hone.web.app import STATIC, WatchParts, make_app
from hone.web.guard import WRITE_HEADER, AccessRules
from hone.web.runs import RunListing

TOKEN = "a-token-of-the-tests"
HOST = "127.0.0.1:8090"
RULES = AccessRules(token=TOKEN, hosts=(HOST, "localhost:8090"))
OLD_RUN = Path(__file__).parents[1] / "fixtures" / "runs_0_1" / "runs" / "grpo"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched") / "runs"
    root.mkdir()
    write_text_run(root, "sums-1", seed=1)
    write_text_run(root, "sums-2", seed=2)
    write_text_run(root, "collapsed", good=False, seed=3, lr=1e-2)
    write_control_run(root, "cartpole")
    write_lab(root)
    shutil.copytree(OLD_RUN, root / "old")
    return root


@pytest.fixture(scope="module")
def client(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    listing = RunListing(root, tmp_path_factory.mktemp("cache"), watched_clock())
    app = make_app(WatchParts(listing=listing, clock=watched_clock()), RULES)
    with TestClient(app, base_url=f"http://{HOST}", cookies={RULES.cookie: TOKEN}) as client:
        yield client


def answer(client: TestClient, name: str, /, **query: object) -> dict[str, object]:
    got = client.get(f"/api/{name}", params=query)
    assert got.status_code == 200, got.text
    return got.json()


# --------------------------------------------------------------------------------------------------------------- guard


def test_the_token_of_the_link_becomes_a_cookie_and_leaves_the_address(client: TestClient) -> None:
    with TestClient(client.app, base_url=f"http://{HOST}", follow_redirects=False) as stranger:
        assert stranger.get("/").status_code == 401
        assert stranger.get("/", params={"token": "wrong"}).status_code == 401
        assert stranger.get("/api/runs", params={"token": TOKEN}).status_code == 401  # the link is of the page alone
        opened = stranger.get("/", params={"token": TOKEN, "x": "1"})
        assert (opened.status_code, opened.headers["location"]) == (303, "/?x=1")
        cookie = opened.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert stranger.get("/").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1:8091"}, 421),
        ({"host": "127.0.0.1.evil.example:8090"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"https://{HOST}"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"cookie": f"{RULES.cookie}=x"}, 401),
        ({"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "localhost:8090"}, 200),
    ],
)
def test_who_is_let_in(client: TestClient, headers: dict[str, str], status: int) -> None:
    with TestClient(client.app, base_url=f"http://{HOST}") as other:
        got = other.get("/api/runs", headers={"cookie": f"{RULES.cookie}={TOKEN}", **headers})
        assert got.status_code == status
        assert got.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in got.headers["content-security-policy"]
        assert got.headers["referrer-policy"] == "no-referrer"


def test_it_only_reads(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/runs", headers={WRITE_HEADER: "1"}).status_code == 405
    assert client.post("/api/chat", json={}).status_code == 405


@pytest.mark.parametrize("run", ["../sums-1", "/etc", "sums-1/../collapsed", "..%2f..", "sums-1\0", "", "SUMS-1"])
def test_an_id_that_is_not_listed_is_unknown(client: TestClient, run: str) -> None:
    for name in ("run", "series", "world", "system", "live", "frame", "report"):
        assert client.get(f"/api/{name}", params={"run": run}).status_code == 404


def test_links_out_of_the_folder_are_left_out(root: Path, client: TestClient, tmp_path: Path) -> None:
    outside = write_text_run(tmp_path, "outside", steps=6)
    link = root / "link"
    link.symlink_to(outside)
    try:
        assert "link" not in {one["id"] for one in answer(client, "runs")["runs"]}
        assert client.get("/api/run", params={"run": "link"}).status_code == 404
    finally:
        link.unlink()


def test_files_are_looked_up_and_never_joined_to_a_path(client: TestClient) -> None:
    assert client.get("/static/app.js").headers["content-type"].startswith("text/javascript")
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/vendor/LICENSE.uplot"):
        assert client.get(path).status_code == 404
    assert client.get("/favicon.ico").status_code == 200
    assert "script-src 'self'" in client.get("/").headers["content-security-policy"]


# -------------------------------------------------------------------------------------------------------------- vendor


def test_the_vendored_files_are_those_of_the_manifest() -> None:
    manifest = json.loads((STATIC / "vendor" / "manifest.json").read_text(encoding="utf-8"))
    listed = {one["file"]: one for one in manifest["files"]}
    there = {path.name for path in (STATIC / "vendor").iterdir()} - {"manifest.json"}
    assert set(listed) == there
    for name, one in listed.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == one["sha256"], name
        assert one["package"] in {"htm", "preact", "uplot"}
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"])
    assert {one["package"] for one in listed.values() if one["file"].startswith("LICENSE")} == {
        "htm",
        "preact",
        "uplot",
    }


def test_no_script_makes_markup_of_text_and_no_page_has_an_inline_script() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "document.write", "eval("):
            assert word not in text, f"{path.name} has {word}"
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    assert "style=" not in page


def test_htm_closes_every_tag() -> None:
    """htm takes an unclosed `<td>` in silence and renders nonsense."""
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        for name in (
            "td",
            "tr",
            "th",
            "table",
            "thead",
            "tbody",
            "section",
            "header",
            "button",
            "select",
            "option",
            "details",
        ):
            opened = len(re.findall(rf"<{name}[\s>]", text)) - len(re.findall(rf"<{name}\b[^<>]*/>", text))
            assert opened == text.count(f"</{name}>"), f"{path.name}: <{name}> is opened {opened} times"


# --------------------------------------------------------------------------------------------------------------- pages


def test_the_list_has_states_scores_alarms_and_folds_of_seeds(client: TestClient) -> None:
    found = answer(client, "runs")
    runs = {one["id"]: one for one in found["runs"]}
    assert set(runs) == {"cartpole", "collapsed", "old", "sums-1", "sums-2"}
    assert {one["state"] for one in runs.values()} == {"finished"}
    assert runs["sums-1"]["group"] == runs["sums-2"]["group"] != runs["collapsed"]["group"]
    assert found["folds"][runs["sums-1"]["group"]] == {"iqm": 0.75, "count": 2}
    assert [(one["name"], one["level"], one["raised"]) for one in runs["collapsed"]["alarms"]] == [
        ("entropy_collapse", "red", True)
    ]
    assert runs["cartpole"]["score"] == pytest.approx(480, abs=30)
    assert found["has_lab"]


def test_the_run_page_has_families_with_intervals_events_and_a_bottleneck(root: Path, client: TestClient) -> None:
    page = answer(client, "run", run="sums-1")
    charts = {one["main"]: one for own in page["families"].values() for one in own}
    assert charts["eval/score"]["kind"] == "interval"
    assert (charts["eval/score"]["low"], charts["eval/score"]["high"]) == ("eval/low", "eval/high")
    assert charts["reward/mean"]["spread"] == "reward/std"
    assert charts["answers/tokens_mean"]["others"] == ["answers/tokens_longest"]
    assert "eval/low" not in charts
    assert page["families"]["Throughput"][0]["kind"] == "stack"
    assert {"reward/missing", "episodes/ended"} <= {one["name"] for one in page["constants"]}
    whole = step_timeline(read_metrics(root / "sums-1" / "metrics.jsonl"))
    assert whole is not None
    assert page["timelines"][0]["bottleneck"] == bottleneck_line(whole, read_config(root / "sums-1" / "config.json"))
    assert page["timelines"][0]["step_s"] == pytest.approx(whole.step_s)
    assert [one["title"].split(":")[0] for one in page["timelines"][1:]] == ["last", "median", "slowest"]
    assert page["rollouts"] == {str(step): "answers" for step in (10, 20, 30, 40, 50, 60)}
    assert page["events"][0]["kind"] == "start"


def test_a_run_has_tabs_of_what_it_has(client: TestClient) -> None:
    """A page without anything to show is left out, and the metrics that never move have their units."""
    without = {run: answer(client, "run", run=run)["without"] for run in ("sums-1", "cartpole", "old")}
    assert without["sums-1"] == ["preferences", "world"]
    assert "world" not in without["cartpole"]
    assert "data" in without["cartpole"], "its rollouts are episodes"
    assert "rollouts" not in without["old"]
    units = {one["name"]: one["unit"] for one in answer(client, "run", run="sums-1")["constants"]}
    assert (units["reward/missing"], units["episodes/ended"]) == ("fraction", "count")


def test_an_old_run_shows_what_it_has(client: TestClient) -> None:
    page = answer(client, "run", run="old")
    assert page["events"] == []
    assert list(page["rollouts"].values()) == ["answers"] * len(page["rollouts"])
    step = max(map(int, page["rollouts"]))
    table = answer(client, "rollouts", run="old", step=step)
    assert not table["has_tokens"]
    assert answer(client, "answer", run="old", step=step, row=0)["tokens_of"] is None


def test_answers_by_chips_are_those_that_a_slow_reader_finds(root: Path, client: TestClient) -> None:
    rows = read_samples(root / "sums-1" / "rollouts" / "step_00000030.parquet")
    scores: dict[int, list[float | None]] = {}
    for row in rows:
        scores.setdefault(row.group, []).append(row.score)
    best = max(row.score for row in rows if row.score is not None)
    equal = {group for group, own in scores.items() if None not in own and len(set(own)) == 1}
    solved = {group for group in equal if scores[group][0] == best}
    expected = {
        "": set(range(len(rows))),
        "solved": {at for at, row in enumerate(rows) if row.group in solved},
        "failed": {at for at, row in enumerate(rows) if row.group in equal - solved},
        "missing": {at for at, row in enumerate(rows) if row.score is None},
        "truncated": {at for at, row in enumerate(rows) if row.finish == "length"},
        "longest": set(range(len(rows))),
        "repeats": {at for at, row in enumerate(rows) if row.completion == "0" * 14},
    }
    for chip, wanted in expected.items():
        found = [one["row"] for one in answer(client, "rollouts", run="sums-1", step=30, chip=chip)["rows"]]
        assert set(found) == wanted, chip
    longest = answer(client, "rollouts", run="sums-1", step=30, chip="longest")["rows"]
    assert [one["tokens"] for one in longest] == sorted((row.tokens for row in rows), reverse=True)
    spreads = [one["group_spread"] for one in answer(client, "rollouts", run="sums-1", step=30)["rows"]]
    assert spreads == sorted(spreads, reverse=True)
    found = answer(client, "rollouts", run="sums-1", step=30, text="ONERROR")["rows"]
    assert [one["completion"] for one in found] == [ATTACK]
    assert client.get("/api/rollouts", params={"run": "sums-1", "step": 30, "chip": "no"}).status_code == 400
    # the most clipped and the largest mismatch, one answer at a time
    clipped, gaps = {}, {}
    for row in range(len(rows)):
        tokens = answer(client, "answer", run="sums-1", step=30, row=row)["tokens_of"]
        known = [one for one in tokens["clipped"] if one is not None]
        clipped[row] = sum(known) / len(known)
        both = zip(tokens["logp"], tokens["logp_now"], strict=True)
        gaps[row] = max(abs(now - one) for one, now in both if one is not None)
    for chip, figure in (("clipped", clipped), ("mismatch", gaps)):
        found = [one["row"] for one in answer(client, "rollouts", run="sums-1", step=30, chip=chip)["rows"]]
        assert set(found) == {row for row, value in figure.items() if value > 0}
        assert [figure[row] for row in found] == pytest.approx(
            sorted((figure[row] for row in found), reverse=True), abs=1e-4
        )


def test_one_answer_has_its_tokens_with_the_end_drawn_as_one(client: TestClient) -> None:
    found = answer(client, "answer", run="sums-1", step=30, row=4)
    tokens = found["tokens_of"]
    assert len({len(tokens[name]) for name in ("ids", "text", "mask", "logp", "logp_now", "logp_last", "clipped")}) == 1
    assert "".join(tokens["text"][:-1]) == found["prompt"] + found["completion"]
    assert tokens["text"][-1] == "\x02<eos>"
    assert [one is None for one in tokens["logp"]] == [not one for one in tokens["mask"]]
    ratio = np.exp(np.array(tokens["logp_last"][-1]) - np.array(tokens["logp_now"][-1]))
    assert tokens["clipped"][-1] == (abs(np.log(ratio)) > 0.2)
    assert len(found["siblings"]) == 4
    steps = answer(client, "prompt", run="sums-1", step=30, row=0)["steps"]
    assert [one["step"] for one in steps] == [10, 20, 30, 40, 50, 60]


def test_flips_and_their_test_are_the_estimators_own(root: Path, client: TestClient) -> None:
    found = answer(client, "evaluation", run="collapsed")["flips"]
    rows = found["rows"]
    assert found["lost"] + found["gained"] == len(rows)
    changes = [one["after_score"] - one["before_score"] for one in rows]
    assert changes == sorted(changes)
    after = latest_answers(root / "collapsed")
    first = answer(client, "evaluation", run="collapsed", before=30, after=30)["flips"]
    assert (first["lost"], first["gained"], first["test"]["p_value"]) == (0, 0, 1.0)
    known = {one["id"]: one["before_score"] for one in rows}
    old = np.array([known.get(one.id, one.score) for one in after], np.float64)
    expected = paired_difference(old, np.array([one.score for one in after], np.float64))
    assert found["test"]["p_value"] == expected.p_value
    assert found["test"]["difference"] == expected.difference


def test_flips_of_each_tag_are_those_of_its_questions_and_add_up(root: Path, client: TestClient) -> None:
    found = answer(client, "evaluation", run="collapsed")["flips"]
    old, new = (
        {one.id: one for one in parse_record(list[AnswerRow], read_json(path), path)}
        for path in sorted((root / "collapsed" / "evaluation").glob("step_*.json"))
    )
    assert [one["tag"] for one in found["tags"]] == ["even", "odd"]
    for one in found["tags"]:
        pairs = [(old[id_].score, row.score) for id_, row in new.items() if row.tag == one["tag"]]
        assert one["common"] == len(pairs) == 20
        assert one["lost"] == sum(before > after for before, after in pairs)
        assert one["gained"] == sum(before < after for before, after in pairs)
        assert one["test"]["difference"] == pytest.approx(np.mean([after - before for before, after in pairs]))
    for name in ("common", "lost", "gained"):
        assert found[name] == sum(one[name] for one in found["tags"])


def test_pass_at_k_has_its_interval(root: Path, client: TestClient) -> None:
    search = answer(client, "evaluation", run="sums-1")["search"]
    assert search == {**json.loads((root / "sums-1" / "search.json").read_text()), "auc": None}
    assert [(one["plan"], one["mean"]) for one in search["plans"]][:2] == [("pass:1", 0.5), ("pass:4", 0.8)]
    assert answer(client, "evaluation", run="old")["search"] is None


def test_comparison_is_that_of_hone_compare(root: Path, client: TestClient) -> None:
    runs = ["sums-1", "sums-2", "collapsed"]
    found = answer(client, "compare", run=runs)
    expected = compare([str(root / one) for one in runs], root=root).to_json()
    assert {key: found[key] for key in expected} == json.loads(json.dumps(expected))
    assert set(found["profiles"]) == {"sums", "collapsed"}
    assert "learner.lr" in found["differences"][0]["settings"]


def test_a_world_has_frames_a_map_and_decisions(client: TestClient) -> None:
    world = answer(client, "world", run="cartpole")
    assert world["episode"]["frames"] == 12
    assert (world["map"]["slices"][0]["rows"], len(world["robustness"]), world["steps"]) == (3, 3, [30])
    frames = {client.get("/api/frame", params={"run": "cartpole", "i": place}).content for place in range(12)}
    assert len(frames) == 12
    assert all(one.startswith(b"\x89PNG") for one in frames)
    episodes = answer(client, "episodes", run="cartpole", step=30)
    assert [one["score"] for one in episodes["episodes"]] == [40.0, 25.0, 12.0]
    trace = answer(client, "trace", run="cartpole", step=30, row=1)
    assert len(trace["rewards"]) == len(trace["actions"]) == len(trace["values"]) == 12


def test_lanes_system_lab_histograms_and_data(client: TestClient) -> None:
    lanes = answer(client, "lanes", run="sums-1", step=30)
    assert len(lanes["answers"]) == 24
    assert lanes["timeline"]["loop"][0]["name"] == "collect"
    system = answer(client, "system", run="sums-1")
    assert system["memory"]["taken_bytes"] == 120 << 20
    assert [one["name"] for one in answer(client, "lab")] == ["no-clipping"]
    heat = answer(client, "histogram", run="sums-1", name="reward")
    assert len(heat["heat"]) == len(heat["steps"]) == 60
    assert np.allclose(np.array(heat["heat"]).sum(axis=1), 1.0, atol=1e-3)
    assert "file of data" in str(answer(client, "data", run="sums-1")["fault"])


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("series", {"run": "sums-1", "px": "many"}),
        ("series", {"run": "sums-1", "from": "nan"}),
        ("answer", {"run": "sums-1", "step": 30, "row": 99}),
        ("answer", {"run": "sums-1", "step": 31, "row": 0}),
        ("rollouts", {"run": "sums-1"}),
        ("histogram", {"run": "sums-1", "name": "no"}),
        ("evaluation", {"run": "sums-1", "before": 7}),
    ],
)
def test_what_cannot_be_answered_is_said(client: TestClient, name: str, query: dict[str, object]) -> None:
    got = client.get(f"/api/{name}", params=query)
    assert got.status_code == 400
    assert got.json()["error"]


def test_nothing_is_written_below_the_runs(root: Path, client: TestClient) -> None:
    def hashes() -> dict[str, str]:
        return {
            path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    before = hashes()
    for run in ("sums-1", "collapsed", "cartpole", "old"):
        for name in ("runs", "run", "system", "world", "evaluation", "report"):
            client.get(f"/api/{name}", params={"run": run})
        client.get("/api/series", params={"run": run, "m": "reward/mean"})
    assert hashes() == before


def test_the_stream_says_rows_as_they_come_and_a_reconnect_replays_nothing(tmp_path: Path) -> None:
    run = write_text_run(tmp_path / "runs", "live", done=10)
    listing = RunListing(tmp_path / "runs", tmp_path / "cache", watched_clock())
    app = make_app(WatchParts(listing=listing, clock=watched_clock()), AccessRules(token=TOKEN, hosts=("testserver",)))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical"))
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        app.user_middleware[0].kwargs["rules"] = AccessRules(token=TOKEN, hosts=(f"127.0.0.1:{port}",))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            first = events_of(port, 2, then=lambda: append_line(run, 11))
            assert [json.loads(one["data"])["rows"] for one in first] == [10, 11]
            again = events_of(port, 1, last_id=first[-1]["id"], then=lambda: append_line(run, 12), at_once=True)
            assert [json.loads(one["data"])["rows"] for one in again] == [12]
        finally:
            server.should_exit = True
            thread.join()


def events_of(port: int, count: int, *, then: object, last_id: str = "", at_once: bool = False) -> list[dict[str, str]]:
    """The first events of the stream; `then` is called after the first one, or as soon as the stream is open."""
    import http.client

    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"cookie": f"hone_watch_{port}={TOKEN}", **({"last-event-id": last_id} if last_id else {})}
    link.request("GET", "/api/live?run=live", headers=headers)
    stream = link.getresponse()
    events: list[dict[str, str]] = []
    current: dict[str, str] = {}
    if at_once:
        then()
    while len(events) < count:
        line = stream.readline().decode().rstrip("\n")
        if line and ": " in line:
            name, _, value = line.partition(": ")
            current[name] = value
        elif "data" in current:
            events.append(current)
            current = {}
            if len(events) == 1 and not at_once:
                then()
    link.close()
    return events


def test_an_answer_of_numbers_names_its_parts(client: TestClient) -> None:
    got = client.get("/api/series", params={"run": "sums-1", "m": ["reward/mean", "no"], "px": 20})
    size = struct.unpack("<I", got.content[:4])[0]
    header = json.loads(got.content[4 : 4 + size])
    assert header["metrics"] == ["reward/mean"]
    assert header["axes"] == ["steps", "seconds", "amount"]
    assert len(got.content) == 4 + size + (-(4 + size) % 8) + 20 * (3 * 8 + 3 * 4)


# ---------------------------------------------------------------------------------------------------------------- chat


@pytest.fixture
def talking(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A page with a chat, whose checkpoints repeat what they are asked."""
    from hone.evaluate import checkpoint

    def repeat(policy: Path, wanted: checkpoint.SampleRequest) -> list[tuple[str, str, None]]:
        return [(wanted.prompt or "", f"{policy.parent.name} at {wanted.temperature}: {wanted.prompt}", None)]

    monkeypatch.setattr(checkpoint, "sample_answers", repeat)
    rules = AccessRules(token=TOKEN, hosts=(HOST,), may_write=True)
    listing = RunListing(root, tmp_path / "cache", watched_clock())
    app = make_app(WatchParts(listing=listing, clock=watched_clock(), chat=True), rules)
    with TestClient(app, base_url=f"http://{HOST}", cookies={rules.cookie: TOKEN}) as client:
        yield client


def test_a_chat_asks_checkpoints_and_needs_the_pages_own_header(talking: TestClient) -> None:
    assert answer(talking, "checkpoints", run="old")["steps"] == [4]
    assert answer(talking, "checkpoints", run="cartpole")["steps"] == []
    asked = {"run": "old", "steps": [4, 4], "text": "1+1=", "temperature": 0}
    assert talking.post("/api/chat", json=asked).status_code == 405  # as a form of another site would send it
    own = {WRITE_HEADER: "1", "origin": f"http://{HOST}"}
    assert talking.post("/api/chat", json=asked, headers=own | {"origin": "http://evil.example"}).status_code == 403
    got = talking.post("/api/chat", json=asked, headers=own)
    assert got.json() == {"answers": [{"step": 4, "text": "step_00000004 at 0.0: 1+1="}] * 2}
    for change, status in (
        ({"steps": [9]}, 400),
        ({"run": "../old"}, 404),
        ({"text": " "}, 400),
        ({"steps": "x"}, 400),
    ):
        assert talking.post("/api/chat", json=asked | change, headers=own).status_code == status
    assert talking.post("/api/chat", content=b"x" * 70_000, headers=own).status_code == 413


# ----------------------------------------------------------------------------------------------------------- decisions


def test_decisions_are_the_summary_of_the_log_and_the_versions_of_the_registry(root: Path, tmp_path: Path) -> None:
    file = write_service(tmp_path / "service.toml")
    listing = RunListing(root, tmp_path / "cache", watched_clock())
    alone = make_app(WatchParts(listing=listing, clock=watched_clock()), RULES)
    with TestClient(alone, base_url=f"http://{HOST}", cookies={RULES.cookie: TOKEN}) as client:
        assert client.get("/api/decisions").json() == {"service": None}
    parts = WatchParts(listing=listing, clock=watched_clock(), service=file)
    with TestClient(make_app(parts, RULES), base_url=f"http://{HOST}", cookies={RULES.cookie: TOKEN}) as client:
        assert "no log yet" in client.get("/api/decisions").json()["error"]
        written = write_decisions(file)
        found = client.get("/api/decisions").json()
        with closing(open_decision_log(written)) as log:
            config = read_service_file(file).config
            view = build_view(log_columns(log), as_of_s=watched_clock().now_s(), join=config.join, tenant="shop")
    (tenant,) = found["tenants"]
    expected = view.summary()
    assert tenant["summary"]["mean_reward"] == expected.mean_reward
    assert [one["decisions"] for one in tenant["summary"]["actions"]] == [one.decisions for one in expected.actions]
    assert (found["policy"], found["versions"], found["rollouts"]) == ("uniform", [], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_on_the_colours_of_lanes_can_be_read(scheme: str) -> None:
    """WCAG 2.2, 1.4.3: text of this size has a contrast of 4.5 at least."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    known = dict(re.findall(r"--(p\d|on): (#\w+)", light if scheme == "light" else dark.split("* {")[0]))
    (special,) = re.findall(r"\.lane \.blocks i:is\((.*?)\) \{ color: (#\w+); \}", style)

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for place in range(8):
        text = special[1] if f".c{place}" in special[0].split(", ") else known["on"]
        low, high = sorted((luminance(text), luminance(known[f"p{place}"])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, place)
    assert ".spans .end { background: var(--p3); color: var(--on);" in style, "the end token, in the same colours"
