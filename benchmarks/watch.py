"""Figures of `hone watch`: a run of a million lines, the cursor over twenty charts, a thousand runs, 100,000 answers.

    python benchmarks/watch.py            in full, some minutes and 3 GB of disk; rewrites its tables in RESULTS.md
    python benchmarks/watch.py --only answers
    python benchmarks/watch.py --quick    a tenth of everything; prints only
    python benchmarks/watch.py --picture docs/howto/watch.png

Processor time of the server is its own (/proc); script time of the page is Chromium's (ScriptDuration). Times to the
screen are wall clock, and upper bounds on a busy machine. Without Playwright and Chromium those rows are left out.
"""

# ruff: noqa: ANN401, E402 (a browser's page has no type here; the path of the tests' support comes first)
import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "support")]

import numpy as np
from tables import Row, grow, tell
from watched_runs import append_line, begin_run, text_metrics, text_rollouts, write_text_run

from hone.core.clock import SystemClock
from hone.run.store.rollouts import AnswerRollouts, TokenColumns, write_rollouts
from hone.web.columns import RunColumns
from hone.web.rollouts import RolloutReader
from hone.web.runs import RunListing
from hone.web.series import series_answer
from hone.web.serve import unpack_demo

TOKEN = "a-token-of-the-benchmark"
HZ = os.sysconf("SC_CLK_TCK")
METRICS = 23
PICTURED = "#/rollouts/sums?step=40"


@dataclass(frozen=True)
class Sizes:
    lines: int
    runs: int
    answers: int
    watch_s: float


FULL = Sizes(1_000_000, 1000, 100_000, 60.0)
QUICK = Sizes(100_000, 100, 10_000, 10.0)


def bar(row: str, value: float, unit: str, most: float | None = None) -> Row:
    """A row whose value may be `most` at most."""
    return Row(
        row=row,
        value=value,
        unit=unit,
        bar=None if most is None else f"<= {most:g}",
        met=None if most is None else value <= most,
    )


def cpu_s(work: Any) -> float:
    """Processor time of a call, its children's threads included."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# -------------------------------------------------------------------------------------------------------------- inputs


def write_long_run(root: Path, lines: int) -> Path:
    """A run with 23 metrics a line; a million lines are about 900 MB."""
    with begin_run(root, "long", "grpo", {"seed": 0, "steps": 2 * lines}) as folder:
        random = np.random.default_rng(0)
        names = [name for name in text_metrics(1, 10, 0, good=True) if not name.startswith("eval/")][:METRICS]
        layout = '{"step": %d, ' + ", ".join(f'"{name}": %r' for name in names) + "}\n"
        with folder.metrics_path.open("w", encoding="utf-8") as file:
            for begin in range(0, lines, 10_000):
                values = (np.abs(random.standard_normal((10_000, len(names)))) + 0.1).tolist()
                file.write("".join(layout % (begin + place + 1, *row) for place, row in enumerate(values)))
        return folder.path


def write_many_answers(run: Path, answers: int) -> None:
    """A file of answers of 256 tokens each."""
    small = text_rollouts(1, 0, groups=answers // 8, samples=8)
    count = len(small.rows)
    random = np.random.default_rng(0)
    total = 256 * count
    logp = -random.exponential(0.3, total).astype(np.float32)
    mask = np.arange(total) % 256 >= 40
    known = np.where(mask, logp, np.nan).astype(np.float32)
    nothing = np.full(total, np.nan, np.float32)
    tokens = TokenColumns(
        offsets=np.arange(0, total + 1, 256), ids=random.integers(0, 12, total).astype(np.int32), mask=mask,
        logp=known, logp_now=known,
        logp_last=known, entropy=nothing, clipped=np.where(mask, random.random(total) < 0.01, -1).astype(np.int8),
        versions=np.where(mask, 1, -1).astype(np.int32), advantages=nothing, values=nothing,
    )  # fmt: skip
    write_rollouts(run / "rollouts" / "step_00000001.parquet", AnswerRollouts(rows=small.rows, tokens=tokens))


# -------------------------------------------------------------------------------------------------------------- server


class Server:
    """`hone watch` as a process."""

    def __init__(self, root: Path, cache: Path) -> None:
        file = cache / "token"
        cache.mkdir(parents=True, exist_ok=True)
        file.write_text(TOKEN, encoding="utf-8")
        command = [sys.executable, "-m", "hone.cli.main", "watch", str(root), "--port", "0", "--token-file", str(file)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        self.port = int(told.rpartition(":")[2].partition("/")[0])

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HZ

    def memory_mib(self) -> float:
        """Resident memory without pages of files, which the system may take back."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        facts = {line.split(":")[0]: line.split()[1] for line in lines if len(line.split()) > 1}
        return int(facts["RssAnon"]) / 1024

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@contextmanager
def browsing(server: Server) -> Iterator[Any]:
    """A tab at the server; None where there is no browser."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - most benchmarks have no browser
    except ModuleNotFoundError:
        program = None
    if program is None:
        print("no browser: its rows are left out", file=sys.stderr)
        yield None
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        context = browser.new_context(viewport={"width": 1360, "height": 900})
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/?token={TOKEN}")
        yield page
        browser.close()


def show(page: Any, place: str) -> None:
    page.evaluate("(hash) => { location.hash = hash; }", place)


# ---------------------------------------------------------------------------------------------------------------- rows


def reading(run: Path, cache: Path, lines: int) -> Iterator[Row]:
    """The data path in this process."""
    columns = RunColumns(run / "metrics.jsonl", cache)
    size = (run / "metrics.jsonl").stat().st_size
    yield bar(
        f"{lines:,} lines of {METRICS} metrics ({size / 1e6:.0f} MB), read once", cpu_s(columns.refresh), "CPU s", 60
    )
    columns.close()
    columns = RunColumns(run / "metrics.jsonl", cache)
    yield bar("the same, opened again from the cache", 1000 * cpu_s(columns.refresh), "CPU ms")
    chosen = columns.names[:14]
    ask = lambda: series_answer(columns, chosen, first_step=0, last_step=1e18, pixels=700)  # noqa: E731
    yield bar("14 metrics over the whole range, 700 pixels, first", 1000 * cpu_s(ask), "CPU ms")
    yield bar("the same again", 1000 * min(cpu_s(ask) for _ in range(20)), "CPU ms")
    columns.close()


def first_chart(page: Any, server: Server) -> Iterator[Row]:
    """The page of the long run, its cache warm."""
    received: list[int] = []
    page.goto("about:blank")  # another address of the same page would load its data, and a reload all of it again
    page.on("requestfinished", lambda request: received.append(request.sizes()["responseBodySize"]))
    before, cpu = time.perf_counter(), server.cpu_s()
    page.goto(f"http://127.0.0.1:{server.port}/#/run/long")
    page.locator(".chart .u-over").first.wait_for(timeout=120_000)
    yield bar("first chart of the long run, from an empty tab", time.perf_counter() - before, "s", 1.5)
    page.wait_for_timeout(1500)
    yield bar("bytes of the page and its data", sum(received) / 1000, "kB", 200)
    yield bar("the server for it", 1000 * (server.cpu_s() - cpu), "CPU ms")


def cursor(page: Any) -> Iterator[Row]:
    """Script time of a move of the cursor that every chart shares."""
    page.wait_for_timeout(3000)
    charts = page.locator(".chart .u-over").count()
    box = page.locator(".chart .u-over").first.bounding_box()
    moves = 200
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def script_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "ScriptDuration")

    before = script_s()
    for place in range(moves):
        page.mouse.move(box["x"] + 5 + (place * 7) % (box["width"] - 10), box["y"] + 30)
    spent = script_s() - before
    yield bar(f"script of a move of the cursor, {charts} charts", 1000 * spent / moves, "ms", 2)


def live(page: Any, root: Path) -> Iterator[Row]:
    """From an appended line to the chart."""
    show(page, "#/run/live")
    plot = page.locator(".chart[data-metric='policy/kl_nats'] .plot")
    plot.wait_for(timeout=60_000)
    page.wait_for_timeout(2500)
    times: list[float] = []
    for step in range(101, 111):
        begin = time.perf_counter()
        append_line(root / "live", step, steps=200)
        while plot.evaluate("(node) => node.plot.data[0].length") < step:
            time.sleep(0.005)
        times.append(time.perf_counter() - begin)
        time.sleep(0.3)
    yield bar("an appended line on the screen, median of 10", float(np.median(times)), "s", 0.5)
    yield bar("the same, slowest", max(times), "s")


def many_runs(page: Any, server: Server, runs: int) -> Iterator[Row]:
    """The list of runs."""
    before, cpu = time.perf_counter(), server.cpu_s()
    show(page, "#/runs")
    page.locator("table.runs tbody tr").nth(5).wait_for(timeout=120_000)
    yield bar(f"list of {runs:,} runs on the screen", time.perf_counter() - before, "s", 1)
    yield bar("the server for it", server.cpu_s() - cpu, "CPU s")
    yield bar("rows of the table that are drawn", float(page.locator("table.runs tbody tr").count()), "rows", 32)


def answers(run: Path, count: int) -> Iterator[Row]:
    """Tables of answers in this process."""
    reader = RolloutReader()

    def ask(chip: str, page: int = 0) -> Any:
        return lambda: reader.table(run, 1, chip=chip, text="", page=page)

    yield bar(f"first page of {count:,} answers, widest spread first", 1000 * cpu_s(ask("")), "CPU ms", 300)
    yield bar("another page, longest first", 1000 * cpu_s(ask("longest", 3)), "CPU ms", 300)
    yield bar("a page of the truncated ones", 1000 * cpu_s(ask("truncated")), "CPU ms", 300)
    yield bar("most clipped, which reads every token once", 1000 * cpu_s(ask("clipped")), "CPU ms")
    yield bar("most clipped again", 1000 * cpu_s(ask("clipped", 1)), "CPU ms", 300)
    yield bar(
        "one answer with its tokens",
        1000 * min(cpu_s(lambda row=row: reader.answer(run, 1, row)) for row in (0, 5000, 777)),
        "CPU ms",
    )


def memory(page: Any, server: Server, root: Path, seconds: float) -> Iterator[Row]:
    """Five tabs on runs, one of which grows."""
    tabs = [page, *(page.context.new_page() for _ in range(4))]
    for tab, place in zip(
        tabs, ("#/run/long", "#/run/live", "#/runs", "#/rollouts/live", "#/system/long"), strict=True
    ):
        tab.goto(f"http://127.0.0.1:{server.port}/{place}")
    cpu, end, step = server.cpu_s(), time.monotonic() + seconds, 111
    while time.monotonic() < end:
        append_line(root / "live", step, steps=100_000)
        step += 1
        time.sleep(0.2)
    yield bar(f"server's own memory, five tabs for {seconds:g} s, one run growing", server.memory_mib(), "MiB", 400)
    yield bar("the server for it", (server.cpu_s() - cpu) / seconds, "CPU s a second")


def long_rows(sizes: Sizes, work: Path) -> Iterator[Row]:
    """Rows of the long run, of one that goes on, and of five tabs on both."""
    root, cache = work / "runs", work / "cache"
    root.mkdir()
    long = write_long_run(root, sizes.lines)
    yield from reading(long, cache / "hone" / "watch", sizes.lines)
    write_text_run(root, "live", steps=200, done=100)
    with Server(root, cache) as server, browsing(server) as page:
        if page is not None:
            yield from first_chart(page, server)
            yield from cursor(page)
            yield from live(page, root)
            yield from memory(page, server, root, sizes.watch_s)


def list_rows(sizes: Sizes, work: Path) -> Iterator[Row]:
    """Rows of the list of many runs."""
    many, cache = work / "many", work / "cache_of_many"
    many.mkdir()
    template = write_text_run(many, "run-0", steps=60)
    for number in range(1, sizes.runs):
        shutil.copytree(
            template, many / f"run-{number}", ignore=shutil.ignore_patterns("rollouts", "checkpoints", "report.html")
        )
        config = many / f"run-{number}" / "config.json"
        settings = config.read_text(encoding="utf-8")  # equal ones would be seeds of one run, and one row
        config.write_text(settings.replace("0.0001", f"{1e-4 * (1 + number):.7f}"), encoding="utf-8")
    listing = RunListing(many, cache / "hone" / "watch", SystemClock())
    yield bar(f"{sizes.runs:,} runs, listed for the first time", cpu_s(listing.rows), "CPU s")
    again = RunListing(many, cache / "hone" / "watch", SystemClock())
    yield bar("the same after a restart", cpu_s(again.rows), "CPU s", 1)
    with Server(many, cache) as server, browsing(server) as page:
        if page is not None:
            yield from many_runs(page, server, sizes.runs)


def answer_rows(sizes: Sizes, work: Path) -> Iterator[Row]:
    """Rows of a file of many answers."""
    (run := work / "answers").mkdir()
    write_many_answers(run, sizes.answers)
    yield from answers(run, sizes.answers)


PARTS = {"long": long_rows, "list": list_rows, "answers": answer_rows}


def take_picture(target: Path, work: Path) -> None:
    """The picture of docs/howto/watch.md: tokens of the recorded run."""
    with Server(unpack_demo(work), work / "cache") as server, browsing(server) as page:
        if page is None:
            raise SystemExit("a picture needs Playwright and Chromium")
        page.set_viewport_size({"width": 1340, "height": 660})
        show(page, PICTURED)
        page.locator(".tokens span").first.wait_for()
        page.locator(".tokens").focus()
        for _ in range(9):
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(500)
        page.screenshot(path=str(target))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=[*PARTS])
    parser.add_argument("--picture", metavar="FILE", type=Path)
    asked = parser.parse_args()
    quick = asked.quick
    if asked.picture is not None:
        with tempfile.TemporaryDirectory() as name:
            take_picture(asked.picture, Path(name))
        return
    for part, made in PARTS.items():
        if asked.only in (None, part):
            with tempfile.TemporaryDirectory() as name:
                rows = made(QUICK if quick else FULL, Path(name))
                tell(grow(f"hone watch, {part}", "benchmarks/watch.py", rows, threads=1, quick=quick))


if __name__ == "__main__":
    main()
