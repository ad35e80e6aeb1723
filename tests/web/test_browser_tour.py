"""A tour of the page in a real browser: every page light and dark, cursor, brush, live lines, tokens, policy, console.

Pictures are kept in $HONE_PICTURES, if that is set. Without Playwright or Chromium the tests are skipped, with words.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from watched_runs import (
    ATTACK,
    append_line,
    watched_clock,
    write_control_run,
    write_decisions,
    write_lab,
    write_queue,
    write_service,
    write_text_run,
)

import hone.api
from hone.run.http.listening import listening
from hone.web.app import WatchParts, make_app
from hone.web.guard import AccessRules
from hone.web.runs import RunListing

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-tour"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
OLD_RUN = Path(__file__).parents[1] / "fixtures" / "runs_0_1" / "runs" / "grpo"
PAGES = {
    "runs": ("#/runs", "collapsed"),
    "run": ("#/run/sums-1", "reward/mean"),
    "alarm": ("#/run/collapsed", "entropy collapse"),
    "old": ("#/run/old", "this run wrote no events"),
    "rollouts": ("#/rollouts/sums-1?step=30&row=4", "point at a token"),
    "group": ("#/rollouts/sums-1?step=30&row=4&view=group", "advantage 0, 3 tokens"),
    "over time": ("#/rollouts/sums-1?step=30&row=0&view=time", "step 60"),
    "conversation": ("#/rollouts/sums-1?step=30&row=16&view=text", "a call"),
    "compare": ("#/compare?runs=sums-1,sums-2,collapsed", "IQM"),
    "compare nothing": ("#/compare", "Choose two runs or more"),
    "evaluation": ("#/evaluation/collapsed", "exact sign test"),
    "world": ("#/world/cartpole", "Robustness"),
    "lanes": ("#/lanes/sums-1?step=30", "The longest answer took"),
    "system": ("#/system/sums-1", "planned"),
    "data": ("#/data/pairs", "end, trained"),
    "no data": ("#/data/sums-1", "cannot be shown"),
    "preferences": ("#/preferences/pairs?step=2", "margin"),
    "chat": ("#/chat/pairs", "as hone sample --prompt does"),
    "lab": ("#/lab", "margin"),
    "decisions": ("#/decisions", "mean reward"),
    "queue": ("#/queue", "Shares against entitlements"),
}
"""Address of each page, and words that stand on it once it is drawn, and on no page that another one replaces."""
PAIRS: dict[str, Any] = {
    "recipe": "dpo", "name": "pairs", "steps": 3, "batch": 4,
    "model": {"compute": "float32", "new": {
        "hidden_size": 16, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "intermediate_size": 32,
        "max_positions": 64, "alphabet": "0123456789+=",
    }},
    "learner": {"lr": 1e-2}, "samples": {"prompts": 0}, "user_code": {"workers": 1},
    "run": {"threads": 1, "certify": False, "rollouts_every": 1},
}  # fmt: skip
"""A real run, of which the page shows the data and the checkpoints."""


@dataclass
class Tour:
    """A browser at the page of some runs."""

    browser: Any
    root: Path
    port: int
    complaints: list[str] = field(default_factory=list)
    tabs: dict[str, Any] = field(default_factory=dict)
    """Tabs that stay open, by colour scheme."""

    def tab(self, scheme: str) -> Any:
        """The tab of a colour scheme."""
        if scheme not in self.tabs:
            self.tabs[scheme] = self.open(scheme)
        return self.tabs[scheme]

    def open(self, scheme: str = "light", **options: object) -> Any:
        """A tab; whatever it complains about is kept."""
        context = self.browser.new_context(color_scheme=scheme, viewport={"width": 1360, "height": 900}, **options)
        context.set_default_timeout(90_000)  # a busy machine is no fault of the page
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.goto(f"http://127.0.0.1:{self.port}/?token={TOKEN}")
        assert "token" not in page.url
        return page

    def go(self, page: Any, name: str) -> None:
        """Show a page, and wait until it is drawn."""
        place, words = PAGES.get(name, (name, ""))
        page.evaluate("(hash) => { location.hash = hash; }", place)
        if words:
            page.get_by_text(words).first.wait_for()
        page.wait_for_timeout(300)


def train_pairs(root: Path, beside: Path) -> None:
    """Train on pairs in a file beside the runs."""
    lines = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}{n}"} for n in range(8)]
    data = beside / "pairs.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    hone.api.train(PAIRS | {"task": {"source": str(data)}}, runs=root)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the page is not looked at in a browser: pip install playwright"
    )
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"the page is not looked at in a browser: none of {', '.join(BROWSERS)} is installed")
    root = tmp_path_factory.mktemp("tour") / "runs"
    root.mkdir()
    write_text_run(root, "sums-1", seed=1)
    write_text_run(root, "sums-2", seed=2)
    write_text_run(root, "collapsed", good=False, seed=3, lr=1e-2)
    write_text_run(root, "live", seed=4, done=20)
    write_control_run(root, "cartpole")
    write_lab(root)
    shutil.copytree(OLD_RUN, root / "old")
    beside = tmp_path_factory.mktemp("beside")
    train_pairs(root, beside)
    write_decisions(service := write_service(beside / "service.toml"))
    listing = RunListing(root, tmp_path_factory.mktemp("cache"), watched_clock())
    parts = WatchParts(
        listing=listing, clock=watched_clock(), service=service, queue=write_queue(beside / "queue.db"), chat=True
    )
    with listening("127.0.0.1", 0) as listener, playwright.sync_playwright() as driver:
        port = listener.getsockname()[1]
        rules = AccessRules(token=TOKEN, hosts=(f"127.0.0.1:{port}",), may_write=True)
        server = uvicorn.Server(
            uvicorn.Config(make_app(parts, rules), lifespan="off", log_level="critical", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield Tour(browser, root, port)
        browser.close()
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(tour: Tour) -> Iterator[Any]:
    page = tour.open()
    yield page
    page.context.close()


def until(ready: Callable[[], bool], what: str) -> None:
    """Wait without scripts in the page, which its policy would refuse."""
    end = time.monotonic() + 90
    while not ready():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn_under_the_strict_policy_without_a_complaint(tour: Tour, scheme: str, name: str) -> None:
    tour.complaints.clear()
    page = tour.tab(scheme)
    tour.go(page, name)
    body = page.locator("body")
    fits = "(body) => document.documentElement.scrollWidth <= innerWidth"
    until(lambda: body.evaluate(fits), "the page is wider than the window")
    if folder := os.environ.get("HONE_PICTURES"):
        page.screenshot(path=f"{folder}/{name.replace(' ', '_')}_{scheme}.png", full_page=True)
    assert page.locator(".fault").count() == 0
    background = body.evaluate("(body) => getComputedStyle(body).backgroundColor")
    assert (background == "rgb(20, 23, 27)") == (scheme == "dark")
    assert tour.complaints == []


def test_an_address_that_changes_before_the_page_listens_is_followed(tour: Tour, page: Any) -> None:
    page.add_init_script(
        "const add = window.addEventListener;"
        "window.addEventListener = function (name, ...rest) {"
        "  if (name === 'hashchange' && location.hash !== '#/lab') history.replaceState(null, '', '#/lab');"
        "  return add.call(window, name, ...rest); };"
    )
    page.goto(f"http://127.0.0.1:{tour.port}/#/runs")
    page.reload()
    page.get_by_text(PAGES["lab"][1]).first.wait_for()


def test_a_completion_of_markup_is_text(tour: Tour, page: Any) -> None:
    for view in ("tokens", "text", "group", "time"):
        tour.go(page, f"#/rollouts/sums-1?step=30&row=8&view={view}")
        page.get_by_text(ATTACK).first.wait_for()
        assert page.locator("img[src=x]").count() == 0
        assert page.title() != "owned"


def test_the_cursor_is_shared_and_its_read_out_moves_nothing(tour: Tour, page: Any) -> None:
    tour.go(page, "run")
    charts = page.locator(".chart[data-metric] .u-over")
    charts.nth(5).wait_for()
    page.wait_for_timeout(500)
    before = [page.locator(".chart[data-metric]").nth(place).bounding_box() for place in range(6)]
    first = page.locator(".chart[data-metric='reward/mean'] .u-over")
    first.scroll_into_view_if_needed()
    before = [page.locator(".chart[data-metric]").nth(place).bounding_box() for place in range(6)]
    first.hover(position={"x": 100, "y": 40})
    page.wait_for_timeout(200)
    reads = page.locator(".chart[data-metric] .read").all_inner_texts()
    steps = {text.split(":")[0] for text in reads if text[:1].isdigit()}
    assert len([text for text in reads if text[:1].isdigit()]) >= 10
    assert len(steps) <= 2  # the evaluations' chart has its own, sparser steps
    assert all(text.count(":") <= 1 for text in reads if text[:1].isdigit()), "a read-out was written twice"
    after = [page.locator(".chart[data-metric]").nth(place).bounding_box() for place in range(6)]
    assert after == before


def test_a_brush_zooms_every_chart_and_escape_goes_back(tour: Tour, page: Any) -> None:
    tour.go(page, "run")
    over = page.locator(".chart[data-metric='reward/mean'] .u-over")
    over.scroll_into_view_if_needed()
    page.wait_for_timeout(300)

    def dragged() -> bool:
        """Drag over the middle of the chart; on a busy machine the page may still move under the pointer."""
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 30, steps=4)
        page.mouse.up()
        page.wait_for_timeout(500)
        return "from=" in page.url

    until(dragged, "the address does not hold the zoom")
    plot = "(node) => [...node.plot.data[0]]"
    shown = lambda name: page.locator(f".chart[data-metric='{name}'] .plot").evaluate(plot)  # noqa: E731
    until(lambda: len(shown("policy/kl_nats")) < 30, "the other charts did not follow")
    steps = shown("policy/kl_nats")
    assert 10 <= steps[0] <= 20
    assert 25 <= steps[-1] <= 35
    page.keyboard.press("Escape")
    until(lambda: len(shown("policy/kl_nats")) == 60, "Escape did not show the whole run")
    assert "from=" not in page.url


def test_smoothing_axes_logarithm_tables_filter_and_keys(tour: Tour, page: Any) -> None:
    tour.go(page, "run")
    plot = page.locator(".chart[data-metric='policy/kl_nats'] .plot")
    count = "(node) => node.plot.series.length"
    assert plot.evaluate(count) == 2
    page.get_by_label("smoothing").select_option("0.9")
    until(lambda: plot.evaluate(count) == 3, "no smoothed line")
    raw, smoothed = plot.evaluate("(node) => [[...node.plot.data[1]], [...node.plot.data[2]]]")
    expected, total, weight = 0.0, 0.0, 0.9
    for place, value in enumerate(raw):
        expected, total = weight * expected + (1 - weight) * value, weight * total + (1 - weight)
        assert smoothed[place] == pytest.approx(expected / total, rel=1e-6)
    page.get_by_label("axis").select_option("seconds")
    until(lambda: plot.evaluate("(node) => node.plot.data[0][59]") > 700, "not the wall clock, with its pause")
    assert page.get_by_label("axis").input_value() == "seconds"
    page.keyboard.press("x")
    until(lambda: page.get_by_label("axis").input_value() == "amount", "the key x takes no other axis")
    page.locator(".chart[data-metric='policy/kl_nats']").focus()
    page.keyboard.press("l")
    until(lambda: plot.evaluate("(node) => node.plot.scales.y.distr") == 3, "no logarithm")
    page.keyboard.press("t")
    page.locator(".chart[data-metric='policy/kl_nats'] table").wait_for()
    page.keyboard.press("?")
    page.get_by_text("next chart").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("entropy")
    until(lambda: page.locator(".chart[data-metric]").count() == 1, "the filter")
    label = page.locator(".chart[data-metric]").get_attribute("aria-label")
    assert label.startswith("policy/entropy_nats: ")
    assert "falling" in label


def test_a_constant_has_an_axis_around_it_and_the_last_label_is_whole(tour: Tour, page: Any) -> None:
    tour.go(page, "world")
    plot = page.locator(".lines").nth(1)
    plot.wait_for()
    low, high = plot.evaluate("(node) => [node.plot.scales.y.min, node.plot.scales.y.max]")
    assert (low, high) == (pytest.approx(0.9), pytest.approx(1.1))
    tour.go(page, "run")
    room = page.locator(".chart[data-metric='policy/kl_nats'] .plot").evaluate(
        "(node) => node.plot.width - (node.plot.bbox.left + node.plot.bbox.width) / devicePixelRatio"
    )
    assert room >= 14


def test_a_line_that_is_appended_is_on_the_screen(tour: Tour, page: Any) -> None:
    tour.go(page, "#/run/live")
    plot = page.locator(".chart[data-metric='policy/kl_nats'] .plot")
    plot.wait_for()
    until(lambda: plot.evaluate("(node) => node.plot ? node.plot.data[0].length : 0") == 20, "twenty steps")
    append_line(tour.root / "live", 21)
    until(lambda: plot.evaluate("(node) => node.plot.data[0].length") == 21, "the new step")
    page.get_by_text("step 21 of 60").wait_for()


def test_tokens_are_coloured_and_read_by_the_arrow_keys(tour: Tour, page: Any) -> None:
    tour.go(page, "rollouts")
    tokens = page.locator(".tokens span")
    tokens.first.wait_for()
    assert page.locator(".tokens .special").inner_text() == "<eos>"
    colours = tokens.evaluate_all("(nodes) => nodes.map((node) => node.style.background)")
    world = tokens.evaluate_all("(nodes) => nodes.map((node) => node.classList.contains('world'))")
    assert all(("transparent" in colour) for colour, own in zip(colours, world, strict=True) if own)
    assert any("rgba" in colour for colour in colours)
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    assert "of the policy" in page.locator(".token-read").inner_text().replace("\n", " ")
    first = page.locator(".token-read").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(".token-read").inner_text() != first
    page.get_by_role("button", name="advantage", exact=True).click()
    assert page.locator(".tokens span").first.is_visible()
    page.keyboard.press("]")
    page.get_by_text("step 40", exact=True).wait_for()


def test_the_list_filters_and_folds(tour: Tour, page: Any) -> None:
    tour.go(page, "runs")
    search = page.get_by_label("filter runs")
    search.fill("recipe:grpo score>0.5 learner.lr<1e-3")
    rows = page.locator("table.runs tbody tr")
    until(lambda: rows.count() == 2, "the two seeds in a row, and the run that goes on")
    page.get_by_text("2 seeds").wait_for()
    page.locator(".fold").first.click()
    until(lambda: rows.count() == 4, "the seeds")
    search.fill("score>")
    page.get_by_text("not understood: score>").wait_for()
    search.fill("no-such-run")
    page.get_by_text("No run passes the filter").wait_for()


def test_a_select_shows_its_value_at_once(tour: Tour, page: Any) -> None:
    tour.go(page, "#/runs?sort=score")
    assert page.locator("select").input_value() == "score"
    tour.go(page, "evaluation")
    assert page.locator("select").nth(1).input_value() == "60"
