"""Tools that cannot be used, as a user meets them: refused before a model is trained, in words, with an exit code."""

from pathlib import Path

import pytest

from hone.cli.main import main

TOOLS = """
def search(query: str) -> str:
    return query

def untyped(query):
    return query

def reset() -> None:
    pass

class Shelf:
    def __init__(self, size: int = 1) -> None:
        pass

    def search(self, book: str) -> str:
        return book

class Counter:
    def reset(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        return number
"""
CONFIG = """
recipe = "grpo"
steps = 1
task = { SOURCE }
rollout = { prompts_per_step = 1, samples_per_prompt = 2, max_tokens = 4 }
rewards.functions = [{ use = "exact_match" }]
learner.lr = 1e-3

[model.new]
tokenizer = "bytes"
hidden_size = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
"""
CASES = [
    ('use = ["tools.py:untyped"]', 4, ["parameter 'query' has no type hint; write query: str"]),
    (
        'use = ["tools.py:search", "tools.py:Shelf"]',
        4,
        ["2 tools are called 'search' (tools.py:search, tools.py:Shelf)"],
    ),
    ('use = ["tools.py:reset"]', 4, ["a tool is called 'reset'"]),
    (
        'use = ["tools.py:Shelf", "tools.py:untyped"], options = { "tools.py:Shelf" = { sise = 3 } }',
        4,
        ["Shelf takes no option 'sise'; did you mean size?", "'query' has no type hint"],
    ),
    ('use = ["tools.py:serch"]', 4, ["tools.py has no 'serch'; did you mean search?"]),
    ('use = ["hone:calculater"]', 2, ["'hone:calculater' is not built in; did you mean hone:calculator?"]),
    ('use = ["mcp:no-such-server"]', 4, ["'mcp:no-such-server' cannot be reached: FileNotFoundError"]),
    ('use = ["tools.py:search"], format = "xml"', 2, ["format", "hermes"]),
    ('use = ["tools.py:search"], reward = "tools.py"', 2, ["task.tools.reward", "path/to/file.py:name"]),
    ("", 2, ["tools.py:Counter", "has the tools add", 'add [task.tools] format = "hermes"']),
]


@pytest.mark.parametrize(("tools", "code", "words"), CASES)
def test_tools_that_cannot_be_used_are_refused(
    tools: str, code: int, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    task = f'source = "rows.jsonl", tools = {{ {tools} }}' if tools else 'source = "dialogue:tools.py:Counter"'
    (tmp_path / "run.toml").write_text(CONFIG.replace("SOURCE", task))
    assert main(["plan", "run.toml"]) == code
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    for expected in words:
        assert expected in told
    assert not (tmp_path / "runs").exists()
