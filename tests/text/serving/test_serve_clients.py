"""Real clients: lm-eval, inspect-ai and llm-comply, from PyPI, against `hone serve`.

They run in an environment of their own (`python benchmarks/peers.py serving`), which takes minutes to make.
HONE_SERVING_PYTHON names the Python of one that is there already.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from live_server import LiveServer, live, opened, save_tiny
from test_completions_tools import HERMES
from tiny_runs import SFT, lay_out

from hone.cli.main import main
from hone.core.dialogue import ToolSchema
from hone.core.generation import SamplingParams, ScoreRequest
from hone.evaluate.checkpoint import evaluate_checkpoint, evaluate_server
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.language.tokenizers import load_tokenizer
from hone.models.packing import pack_rows
from hone.run.saved_config import policy_folder
from hone.text.serving.completions.asked import chat_tokenizer
from hone.text.tools.formats import TOOL_FORMATS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that learnt sums a little, with its newest policy."""
    folder = tmp_path_factory.mktemp("evaluated")
    lay_out(folder)
    rows = [json.loads(line) for line in (folder / "sums.jsonl").read_text().splitlines()]
    held = [json.dumps({name: row[name] for name in ("prompt", "answer")}) + "\n" for row in rows]
    (folder / "held.jsonl").write_text("".join(held))
    config = SFT.replace("steps = 6", "steps = 40").replace("every = 2", "every = 40")
    config = config.replace('"held.jsonl"', f'"{folder}/held.jsonl"').replace("rewards.py:right", "exact_match")
    (folder / "sft.toml").write_text(config)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["train", "sft.toml"]) == 0
    finally:
        os.chdir(before)
    return folder / "runs" / "tiny"


def test_hone_eval_of_a_server_is_hone_eval(run):
    """The same answers, so the same scores, over HTTP and in process."""
    policy = policy_folder(run)
    here = evaluate_checkpoint(policy, run=run, problems=40, seed=0, device="cpu").scores
    with live(opened(policy)) as server:
        there = evaluate_server(policy, run=run, url=server.url, model="", problems=40, seed=0).scores
    same = set(here) & set(there) - {name for name in here if name.startswith("time/")}
    assert 0 < here["eval/score"] < 1 and "eval/score" in same, (here, there)
    assert {name: here[name] for name in same} == {name: there[name] for name in same}


# ------------------------------------------------------------------------------------- other packages


@pytest.fixture(scope="module")
def scripts() -> Path:
    """Folder of the programs of the environment."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from peers import require_peer

    given = os.environ.get("HONE_SERVING_PYTHON")
    return (Path(given) if given else require_peer("serving")).parent


def ran(command: list[object], folder: Path, **variables: str) -> str:
    """Output of a program without a network. Its errors are the test's."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment = {**kept, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HOME": str(folder), **variables}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


GENERATION = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: held.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
generation_kwargs: {until: ["="], max_gen_toks: 3, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOICE = """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: ["0=", "3+1", "91"]
doc_to_target: wrong
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
TARGETS = ["0=", "3+1", "91"]


def likelihoods(server: LiveServer, policy: Path, prompts: list[str]) -> tuple[list[list[float]], np.ndarray]:
    """Log-likelihood of each target after each prompt: by the engine in process, and by the trainer's forward."""
    encode, engine = server.model.served.tokenizer.encode, server.model.engine
    sampling = SamplingParams(max_tokens=1)
    pairs = [(encode(prompt), encode(target)) for prompt in prompts for target in TARGETS]
    scored = engine.score([ScoreRequest(prompt=a, tokens=b, sampling=sampling) for a, b in pairs])
    exact = [sum(one.logp.tolist()) for one in scored]
    from transformers import AutoModelForCausalLM

    model, theirs = AutoModelForCausalLM.from_pretrained(policy), []
    for a, b in pairs:
        with torch.no_grad():
            logits = model(torch.from_numpy(np.concatenate([a, b])[None].astype(np.int64))).logits[0]
        logp = torch.log_softmax(logits[len(a) - 1 : -1], -1)
        theirs.append(float(logp[torch.arange(len(b)), torch.from_numpy(b.astype(np.int64))].sum()))
    rows = [exact[start : start + 3] for start in range(0, len(exact), 3)]
    return rows, np.array(theirs).reshape(-1, 3)


@pytest.mark.slow  # makes an environment of gigabytes
def test_lm_eval_is_hone_eval(run, scripts, tmp_path):
    """Generation: the accuracy of `hone eval`, exactly. Likelihood: the engine's sums, to the bit, and those of
    transformers to 1e-4; a wrong target is never chosen."""
    policy = policy_folder(run)
    held = run.parents[1] / "held.jsonl"
    rows = [json.loads(line) for line in held.read_text().splitlines()]
    (tmp_path / "held.jsonl").write_bytes(held.read_bytes())
    for name, text in (("sums", GENERATION), ("choices", CHOICE)):
        (tmp_path / f"{name}.yaml").write_text(text)
    with live(opened(policy)) as server:
        exact, theirs = likelihoods(server, policy, [row["prompt"] for row in rows])
        wrong = [{**row, "wrong": int(np.argmin(sums))} for row, sums in zip(rows, exact, strict=True)]
        (tmp_path / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in wrong))
        arguments = (
            f"model=tiny,base_url={server.url}/v1/completions,tokenizer={policy},tokenizer_backend=huggingface,"
            "num_concurrent=4,max_length=32"
        )
        command = [scripts / "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks"]
        command += ["sums,choices", "--include_path", tmp_path, "--output_path", tmp_path / "out", "--log_samples"]
        ran(command, tmp_path, OPENAI_API_KEY="none")
        ours = evaluate_checkpoint(policy, run=run, problems=len(rows), seed=0, device="cpu").scores["eval/score"]
    (found,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(found.read_text())["results"]
    assert 0 < ours < 1
    assert results["sums"]["exact_match,none"] == ours
    assert results["choices"]["acc,none"] == 0.0
    (samples,) = (tmp_path / "out").rglob("samples_choices_*.jsonl")
    told = {one["doc_id"]: one for one in map(json.loads, samples.read_text().splitlines())}
    sums = [[float(answer[0][0]) for answer in told[place]["resps"]] for place in range(len(rows))]
    assert sums == exact
    np.testing.assert_allclose(sums, theirs, atol=1e-4)


INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def sums():
    return Task(dataset=[Sample(input=f"{n}+1", target="7") for n in range(4)], solver=generate(), scorer=includes())
"""


@pytest.mark.slow  # as above
def test_inspect_ai_runs_to_success(scripts, tmp_path):
    (tmp_path / "sums.py").write_text(INSPECT)
    with live(opened(save_tiny(tmp_path / "model"))) as server:
        command = [scripts / "inspect", "eval", "sums.py", "--model", "openai-api/hone/tiny", "--log-format", "json"]
        command += ["--log-dir", tmp_path / "logs", "--max-tokens", "12", "--seed", "3", "--display", "plain"]
        ran(command, tmp_path, HONE_BASE_URL=f"{server.url}/v1", HONE_API_KEY="none")
    (log,) = (tmp_path / "logs").glob("*.json")
    found = json.loads(log.read_text())
    assert found["status"] == "success"
    assert found["results"]["completed_samples"] == 4


PLACE = {"type": "object", "properties": {"location": {"type": "string", "description": "City name"}}}
SYSTEM = {"role": "system", "content": "You are a pirate. Always respond in pirate speak."}
WEATHER = ToolSchema(
    name="get_weather",
    description="Get current weather for a location.",
    parameters={**PLACE, "required": ["location"]},
)


def teach_answers(folder: Path) -> None:
    """Teach the model of a folder to answer, and to go on from the beginning of a call."""
    decoder, tokenizer = load_model(folder), load_tokenizer(folder)
    told = chat_tokenizer(tokenizer, [WEATHER], TOOL_FORMATS["hermes"])
    begun = tokenizer.encode('<tool_call>\n{"name": "get_weather')
    call = tokenizer.encode('", "arguments": {"location": "SF"}}\n</tool_call>')
    answer = tokenizer.encode("I am here.")
    asked = [
        [{"role": "user", "content": one}] for one in ("What is the weather in San Francisco?", "Is it warm?", "hi")
    ]
    pairs = [(np.concatenate([told.apply_chat(one), begun]), call) for one in asked]
    pairs += [(tokenizer.apply_chat([*before, *one]), answer) for one in asked for before in ([], [SYSTEM])]
    texts = [np.concatenate([before, after, [tokenizer.eos_id]]).astype(np.int32) for before, after in pairs]
    ends = np.cumsum([len(one) for one in texts])
    lengths = [len(after) + 1 for _, after in pairs]
    at = np.concatenate([np.arange(end - n - 1, end - 1) for end, n in zip(ends, lengths, strict=True)])
    targets = torch.from_numpy(np.concatenate(texts)[at + 1].astype(np.int64))
    packed, steps = pack_rows(texts), 200
    optimizer = torch.optim.Adam(decoder.parameters())
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / steps)
        logits = decoder.logits(decoder.hidden(packed)[torch.from_numpy(at)])
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02
    with torch.no_grad():
        decoder.norm.weight.mul_(3)  # sharper: of fifty tokens none may go astray
    save_model(decoder, folder, tokenizer_from=None)


@pytest.mark.slow  # as above
def test_llm_comply_passes_all_but_images(scripts, tmp_path):
    folder = save_tiny(tmp_path / "model", template=HERMES)
    teach_answers(folder)
    with live(opened(folder)) as server:
        command = [scripts / "llm-comply", "run", "-u", f"{server.url}/v1", "-m", "tiny", "-k", "none"]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        told = subprocess.run([*map(str, command), "--format", "openai-chat", "--json"], capture_output=True, env=kept)
    found = json.loads(told.stdout)
    states = {one["name"]: one["status"] for one in found["results"]}
    assert [name for name, state in states.items() if state == "failed"] == ["Image Input"], found
    assert sum(state == "passed" for state in states.values()) >= 7, states
