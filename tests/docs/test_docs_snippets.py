"""Every command and every piece of code in the README, CONTRIBUTING and docs/ does what the page says."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from real_chat_model import smollm2_stand_in
from snippets import Block, Runner, blocks_of, commands_of, not_said

from hone.cli.main import _call
from hone.cli.options import COMMANDS
from hone.config.resolve import read_document, resolve
from hone.recipes.registry import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]

NOT_RUN = {
    "make demo": "minutes; the pipeline that it runs is run here with fewer steps",
    "make demo-chat": "minutes; a slow test runs its pipeline with fewer steps",
    "make test": "runs this very test",
    "hone fetch smollm2": "downloads 98 MB; a slow test runs it",
    **{
        f"hone {words}": "needs the published model: tests/docs/test_docs_smollm2.py runs the configs"
        for words in (
            "train examples/smollm2/grpo.toml",
            "train examples/smollm2/sft.toml",
            "train chat.toml",
            "train examples/smollm2/dpo.toml",
            "train examples/smollm2/kto.toml",
            "train examples/smollm2/reward_model.toml",
            "train examples/smollm2/tools.toml",
            "export smollm2/grpo sums.gguf --gguf Q8_0",
            "export smollm2/grpo sums --dtype bfloat16",
            "serve smollm2/grpo",
        )
    },
    "pip install torch==2.13.0": "installs",
    "pip install -c constraints.txt -e .": "installs",
}
LONGEST = {
    "docs/control/hierarchical.md", "docs/control/imitation.md", "docs/control/league.md", "docs/control/meta.md",
    "docs/control/model_based.md", "docs/control/networks.md", "docs/control/off_policy.md",
    "docs/control/offline.md", "docs/control/on_policy.md", "docs/control/tables.md", "docs/control/take_away.md",
    "docs/howto/chaos.md", "docs/howto/compare.md", "docs/howto/data.md", "docs/howto/debug.md",
    "docs/howto/environments.md", "docs/howto/grammar.md", "docs/howto/judges.md", "docs/howto/memory.md",
    "docs/howto/profile.md", "docs/howto/python.md", "docs/howto/queue.md", "docs/howto/ranks.md",
    "docs/howto/runs.md", "docs/howto/sandbox.md", "docs/howto/serving.md", "docs/howto/training_service.md",
    "docs/language/adapters.md", "docs/language/critics.md", "docs/language/dialogues.md",
    "docs/language/distillation.md", "docs/language/early_experience.md", "docs/language/expert_iteration.md",
    "docs/language/experts.md", "docs/language/preferences.md", "docs/language/search.md", "docs/language/tools.md",
    "docs/production/offline_estimates.md", "docs/production/rollout.md", "docs/production/shield.md",
    "docs/production/warehouse.md",
}  # fmt: skip
"""Long pages that nobody reads first; `make test-all` runs them. The tests of what they show, of its examples and of
its system are not slow, and a quick test reads their configs, commands and programs."""
WITHOUT_CODE = (
    "docs/control/index.md",
    "docs/language/models.md",
    "docs/production/index.md",
    "docs/project/one_grpo_step.md",
    "docs/project/one_ppo_step.md",
    "docs/reference/configuration/",
    "docs/reference/metrics.md",
    "docs/reference/training_service_file.md",
    "docs/howto/watch.md",
    "docs/reference/glossary.md",
    "docs/reference/service_file.md",
)
"""Pages and folders that only describe or lead on."""
SMALLER = {
    r"^steps = .*": "steps = 2",
    r"^batch = .*": "batch = 8",
    r"\bsize = \d{3,}": "size = 24",
    r"^hidden_size = .*": "hidden_size = 32",
    r"^layers = .*": "layers = 1",
    r"^head_dim = .*": "head_dim = 8",
    r"^intermediate_size = .*": "intermediate_size = 64",
    r"\bprompts_per_step = \d+": "prompts_per_step = 4",
    # The task's own scorer takes each worker process two seconds to import.
    r'"reasoning_gym"': '"exact_match"',
    r",? *full_marks_only = \w+": "",
}
"""What is cut in the pipeline of the main job, so that the README's own lines run it in seconds."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the examples in it, where the files of a page are written."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "examples" / "chain_sum").glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        for pattern, smaller in SMALLER.items():
            text = re.sub(pattern, smaller, text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # tables are folded to the screen; pages show them unfolded
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # child processes find this hone, installed or not
    return tmp_path


def marks_of(page: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow] if page in LONGEST else []
    if page == "docs/howto/training_service.md":  # the tinker package leaves its sockets to the collector
        marks.append(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
    return marks


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page)) for page in PAGES])
def test_a_page_runs_from_top_to_bottom(
    page: str, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, certificates: Any
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    certificates.made = "certificate" in text
    if "hone:smollm2" in text:
        smollm2_stand_in(workplace / "cache", monkeypatch)
    blocks = blocks_of(ROOT / page, page)
    assert bool(blocks) != page.startswith(WITHOUT_CODE), f"{page} shows nothing, or is wrongly in WITHOUT_CODE"
    runner = Runner(allowed=NOT_RUN, capture=capsys, names={"__name__": "page"})
    for block in blocks:
        runner.run(block)


@pytest.mark.parametrize("page", sorted(LONGEST))
def test_a_long_page_names_what_there_is(page: str, workplace: Path) -> None:
    """Its configs have keys and values that there are, its commands are understood, its programs are Python."""
    blocks = blocks_of(ROOT / page, page)
    for block in blocks:
        if block.title is not None:
            path = workplace / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
    for block in (one for one in blocks if one.language == "python"):
        compile(block.body, f"<{block.place}>", "exec")
    shown = [
        shlex.split(one.line) for block in blocks if block.language == "console" for one in commands_of(block.body)
    ]
    for name, *words in (rest for program, *rest in shown if program == "hone"):
        _call(next(one for one in COMMANDS if one.name == name), words)
    for block in (one for one in blocks if one.language == "toml" and one.title is not None and not one.exit_code):
        document = read_document(str(block.title))
        if isinstance(recipe := document.values.get("recipe"), str):
            document.values.setdefault("name", "page")
            resolve(load_recipe(recipe).config, document)


def test_what_is_not_run_stands_on_a_page() -> None:
    lines = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [command for command in NOT_RUN if command not in lines] == [], "strike these from NOT_RUN"


def test_links_lead_somewhere() -> None:
    dead: list[str] = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = target.partition("#")
            if "://" in file:
                continue
            path = (ROOT / page).parent / file if file else ROOT / page
            if not path.exists() or (anchor and anchor not in anchors_of(path)):
                dead.append(f"{page}: {target}")
    assert dead == []


def anchors_of(path: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_worked_example_is_short() -> None:
    blocks = blocks_of(ROOT / "CONTRIBUTING.md", "")
    block = next(block for block in blocks if str(block.title).endswith("leaky_clip.py"))
    assert len(block.body.splitlines()) < 40


def test_figures_are_filled_in_in_one_place_only() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    around = text[: text.index("<!-- numbers -->")] + text[text.index("<!-- /numbers -->") :]
    assert "to be measured" not in around


# ---------------------------------------------------------------------------------------- the harness sees faults


def block_of(language: str, body: str, *, exit_code: int = 0) -> Block:
    return Block(page="page.md", line=1, language=language, title=None, exit_code=exit_code, body=body)


@pytest.mark.parametrize(
    "block",
    [
        block_of("python", "assert 1 == 2\n"),
        block_of("console", "$ hone plan nothing.toml\n"),
        block_of("console", "$ hone list recipes\nan algorithm that nobody has\n"),
        block_of("console", "$ rm -rf everything\n"),
        block_of("console", "hone list recipes\n"),
        block_of("console", "$ hone list recipes\n", exit_code=2),
        block_of("yaml", "a: b\n"),
    ],
)
def test_a_block_that_is_wrong_fails(block: Block, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        Runner(allowed=NOT_RUN, capture=capsys, names={}).run(block)


def test_what_is_shown_must_be_said_in_order() -> None:
    said = "step 1   reward  0.5\nfinished a: runs/a"
    assert not_said(("step 1 ... 0.5", "finished a: ..."), said) is None
    assert not_said(("finished a: ...", "step 1 reward 0.5"), said) == "step 1 reward 0.5"
    assert not_said(("step 2 ...",), said) == "step 2 ..."
