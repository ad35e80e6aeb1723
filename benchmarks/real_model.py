"""A real model and published chat templates: what hone trains of a conversation, on other people's files.

`python benchmarks/real_model.py [--quick] [--folder DIR]` downloads packages of PyPI into a folder once
(`.peers/real_model`, 150 MB), for the templates inside `llama_cpp_python`, `trl` and `axolotl`. The tokenizer is
SmolLM2-135M-Instruct's (`hone fetch smollm2`). Templates are read and rendered, never copied. A template is given the
special tokens that it names, as its model's folder would, and the stop tokens that are known under those names.

`--memory` measures the plan of runs on that model in place of the templates: each in a process of its own, one after
another, of at most 5 GB, with the memory that it took beside its plan (`--quick`: the first of each kind). Weights are
those of the package; SFT, DPO, GRPO and a dialogue with a tool, of all weights in float32 and bfloat16, and an adapter.

Prints one JSON line for each row, with its bar, and a line for each template that is refused.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as hf
from peers import PEERS_FOLDER
from tables import Row

from hone.cli.commands.fetch import fetch_model
from hone.core.errors import DataError
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.language.tokenizers import Tokenizer, load_tokenizer, with_turn_end
from hone.text.tools.described import with_tools
from hone.text.tools.formats import TOOL_FORMATS
from hone.text.trained_spans import TurnEncoder

PACKAGES = ("llama_cpp_python==0.3.36", "trl==1.16.0", "axolotl==0.19.0")
INSIDE = {
    "llama_cpp_python": "/models/templates/",
    "trl": "trl/chat_templates/",
    "axolotl": "/chat_templates/templates/",
}
STOPS = (
    "<EOS>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[", "<|END_OF_TURN_TOKEN|>",
)  # fmt: skip
"""Names of tokens that end texts, where a folder has them."""
MARKERS = re.compile(
    r"\[\|[^\]|]+\|\]|<\|[^|<>\s'\"]+\|>|<\uff5c[^\uff5c<>]+\uff5c>|<(?:start|end)_of_[a-z]+>|<\|turn>|<turn\|>"
    r"|<\|channel>|<channel\|>|</?s>|\[/?[A-Z_]{3,}\]|<(?:bos|eos|unk|pad)>|\[e~\[|\]~b\]|<seed:[a-z_]+>"
    r"|<end_of_utterance>"
)
"""Names in a template's source that are special tokens of its model's folder."""
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "42",
    "mats;",
    "is",
    "<|im_end|>",
    "2+2?",
    "</s>",
    "no,",
    "\n\n4",
    "it",
    "{x}",
    "<",
    ">",
    "é",
    "東京",
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


CALL = {"id": "abcdef123", "type": "function", "function": {"name": "get_city", "arguments": {"city": "Oslo"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_city",
        "description": "The city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CONVERSATIONS: Sequence[Sequence[Mapping[str, Any]]] = (
    [user("2+2?")],
    [user("2+2?"), assistant("4")],
    [user("2+2?"), assistant("4"), user("3+3?")],
    [user("2+2?"), assistant("4"), user("3+3?"), assistant("6")],
    [{"role": "system", "content": "Be kind."}, user("2+2?")],
    [{"role": "system", "content": "Be kind."}, user("2+2?"), assistant("4"), user("3+3?"), assistant("6")],
    [user("two\n\nlines and {braces}"), assistant("ok")],
    [user("2+2?"), assistant("<think>\nso\n</think>\n\n4"), user("3+3?")],
    [user("2+2?"), assistant("4", reasoning_content="so"), user("3+3?"), assistant("6", reasoning_content="then")],
    [user("Where?"), assistant("", tool_calls=[CALL]), {"role": "tool", "name": "get_city", "content": "Oslo"}],
    [user("é ü 東京 🙂"), assistant("ok")],
    [user("1"), assistant("2"), user("3"), assistant("4"), user("5"), assistant("6"), user("7")],
)


# ------------------------------------------------------------------------------------------------------------ downloads


def run_pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def download(folder: Path) -> None:
    """The packages, each once."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        name = package.partition("==")[0].replace("-", "_")
        if not any(wheels.glob(f"{name}-*")):
            source = ["--no-binary", name] if name == "llama_cpp_python" else []
            run_pip("download", "--no-deps", *source, package, "--dest", str(wheels))


def templates(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and source of each published template; training copies are left out."""
    for archive in sorted((folder / "wheels").iterdir()):
        inside = INSIDE.get(archive.name.partition("-")[0])
        if inside is None:
            continue
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                files = {name: wheel.read(name) for name in wheel.namelist() if inside in name}
        else:
            with tarfile.open(archive) as source:
                members = [one for one in source.getmembers() if inside in one.name and one.isfile()]
                files = {one.name: content.read() for one in members if (content := source.extractfile(one))}
        for name, content in sorted(files.items()):
            if name.endswith(".jinja") and not name.endswith("_training.jinja"):
                yield f"{archive.name.partition('-')[0]}: {Path(name).stem}", content.decode()


def base_tokenizer(folder: Path) -> str:
    """SmolLM2's tokenizer as JSON, or the one that the folder holds."""
    file = folder / "tokenizer.json"
    return (
        file.read_text(encoding="utf-8") if file.is_file() else load_tokenizer(fetch_model("smollm2")).backend.to_str()
    )


def dressed(base: str, source: str) -> Tokenizer:
    """The tokenizer of a template's folder: the base with the special tokens that the template names."""
    backend = hf.Tokenizer.from_str(base)
    names = sorted({*MARKERS.findall(source), "<BOS>", "<EOS>"})
    backend.add_special_tokens([hf.AddedToken(name, special=True, normalized=False) for name in names])
    stops = [name for name in STOPS if name in names]
    if {"<|end|>", "<|return|>"} <= set(stops):
        stops.remove("<|end|>")  # it ends messages, not turns
    if {"<|observation|>", "<|user|>"} <= set(names):
        stops += ["<|user|>", "<|observation|>"]
    ids = tuple(backend.token_to_id(name) for name in stops)
    special = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
    return with_turn_end(Tokenizer(backend=backend, eos_ids=ids, pad_id=ids[0], chat_template=source, special=special))


# ----------------------------------------------------------------------------------------------------------------- rows


def unequal_to_transformers(tokenizer: Tokenizer) -> tuple[int, int]:
    """Renderings whose text or tokens differ from transformers', and all that both take."""
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes a second

    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **tokenizer.special)
    unequal = compared = 0
    for messages, begins in product(CONVERSATIONS, (True, False)):
        expected = rendered_by_transformers(theirs, tokenizer.chat_template, messages, begins=begins)
        try:
            ours = tokenizer.chat(messages, add_generation_prompt=begins)
        except DataError:
            ours = None
        if expected is None and ours is None:
            continue
        compared += 1
        same = ours is not None and ours.text == expected
        if not same or tokenizer.encode_chat(ours)[0].tolist() != theirs.encode(expected, add_special_tokens=False):
            unequal += 1
    return unequal, compared


def rendered_by_transformers(
    theirs: Any,  # noqa: ANN401 - a tokenizer of transformers'
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    begins: bool,
) -> str | None:
    """The text; None where the template takes the messages in no form. Arguments and content are given as the template
    takes them: hone finds the form by itself, and transformers does not."""
    text: str | None = None
    for form in (messages, with_text_arguments(messages), with_parts(messages)):
        try:
            text = theirs.apply_chat_template(
                form, chat_template=template, add_generation_prompt=begins, tokenize=False
            )
        except Exception:  # noqa: BLE001, S112 - whatever a template raises
            continue
        if not prints_nothing(text, messages):
            break
    return text


def prints_nothing(text: str, messages: Sequence[Mapping[str, Any]]) -> bool:
    """True for a template that wrote no message's text: it wants parts."""
    return not any(str(one["content"]).strip() in text for one in messages if one["content"])


def with_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]


def with_text_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    text = {**CALL, "function": {"name": "get_city", "arguments": json.dumps({"city": "Oslo"})}}
    return [{**one, "tool_calls": [text]} if "tool_calls" in one else dict(one) for one in messages]


def broken_spans(tokenizer: Tokenizer, turns: Sequence[Mapping[str, Any]]) -> str:
    """The invariant that the rows of a conversation break; empty where all hold. Raises DataError where it is
    refused."""
    rows = TurnEncoder(tokenizer).rows([dict(turns[0])], [dict(one) for one in turns[1:]])
    answers = [place for place, one in enumerate(turns) if one["role"] == "assistant"]
    spans = [(row, span) for row in rows for span in row.spans]
    if len(spans) != len(answers):
        return "a span for each turn"
    for (row, (begin, end)), place in zip(spans, answers, strict=True):
        trained = row.tokens[begin:end]
        if int(trained[-1]) not in tokenizer.eos_ids or np.isin(trained[:-1], tokenizer.eos_ids).any():
            return "one stop token, at the end"
        if str(turns[place]["content"]) not in tokenizer.decode(trained, special=True):
            return "the turn's text"
        if begin == row.spans[0][0] and not np.array_equal(row.tokens[:begin], tokenizer.apply_chat(turns[:place])):
            return "the engine's prompt"
    last = TurnEncoder(tokenizer, "last").rows([dict(turns[0])], [dict(one) for one in turns[1:]])
    if len(last) != 1 or not np.array_equal(last[0].tokens, rows[-1].tokens):
        return "the last turn's row"
    plain = [{**one, "content": "q"} for one in turns]
    bare = TurnEncoder(tokenizer).rows(plain[:1], plain[1:])
    special = [id_ for id_, one in tokenizer.backend.get_added_tokens_decoder().items() if one.special]
    counts = [sum(int(np.isin(row.tokens, special).sum()) for row in some) for some in (rows, bare)]
    return "" if counts[0] == counts[1] else "no special token from data"


def tool_fate(tokenizer: Tokenizer) -> str:
    """`template` or `hone`, which describes a tool in a row with its call, a result and an answer; else what is lost.
    Raises DataError where the row is refused."""
    prepared = with_tools(tokenizer, [TOOL], TOOL_FORMATS["hermes"])
    result = {"role": "tool", "tool_call_id": CALL["id"], "name": "get_city", "content": "Bergen"}
    turns = [assistant("", tool_calls=[CALL]), result, assistant("so 44")]
    rows = TurnEncoder(prepared).rows([user("Where?")], turns)
    begin, end = rows[0].spans[0]
    called = prepared.decode(rows[0].tokens[begin:end], special=True)
    if "get_city" not in prepared.decode(rows[0].tokens[:begin], special=True):
        return "the tool"
    if "get_city" not in called or "Oslo" not in called:
        return "the call"
    if "Bergen" not in prepared.decode(rows[-1].tokens, special=True):
        return "the result"
    return "template" if prepared.prepare is None else "hone"


def random_conversation(chance: random.Random) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for _ in range(chance.randint(1, 3)):
        for role in ("user", "assistant"):
            text = " ".join(chance.choices(WORDS, k=chance.randint(1, 6)))
            turns.append({"role": role, "content": f"q{text}q"})
    return turns


def measure(folder: Path, *, conversations: int) -> Iterator[Row]:
    """The rows; refusals are printed."""
    base, counts = base_tokenizer(folder), Counter[str]()
    chance = random.Random(0)
    simple = [user("2+2?"), assistant("4"), user("3+3?"), assistant("6, I think")]
    for name, source in templates(folder):
        tokenizer = dressed(base, source)
        unequal, compared = unequal_to_transformers(tokenizer)
        counts.update({"unequal": unequal, "compared": compared, "templates": 1})
        try:
            fate = tool_fate(tokenizer)
        except DataError as refusal:
            fate = "tools refused"
            print(f"{name}: a row with a call is refused: {str(refusal)[:200]}", flush=True)
        counts[fate] += 1
        if fate.startswith("the "):
            print(f"{name}: loses {fate} without a word", flush=True)
        if unequal:
            print(f"{name}: {unequal} of {compared} renderings differ from transformers'", flush=True)
        try:
            broken = broken_spans(tokenizer, simple)
        except DataError as refusal:
            counts["refused"] += 1
            print(f"{name}: refused: {str(refusal)[:200]}", flush=True)
            continue
        counts["right"] += not broken
        for turns in (random_conversation(chance) for _ in range(conversations)):
            counts["drawn"] += 1
            try:
                broken = broken or broken_spans(tokenizer, turns)
            except DataError as refusal:
                broken = f"it is refused: {str(refusal)[:200]}"
            counts["broken"] += bool(broken)
        if broken:
            print(f"{name}: does not keep: {broken}", flush=True)
    total = counts["templates"]
    lost = sum(counts[part] for part in ("the tool", "the call", "the result"))
    yield Row(
        row=f"published templates that lose a tool, its call or its result without a word, of {total}; "
        f"{counts['template']} describe tools, hone for {counts['hone']}, {counts['tools refused']} refuse the row",
        value=lost, unit="templates", bar="<= 0", met=lost == 0,
    )  # fmt: skip
    yield Row(
        row=f"renderings of 12 conversations by {total} published templates whose tokens differ from transformers', of "
        f"{counts['compared']}", value=counts["unequal"], unit="renderings", bar="<= 0", met=counts["unequal"] == 0,
    )  # fmt: skip
    yield Row(
        row=f"random conversations whose trained spans break an invariant, of {counts['drawn']}",
        value=counts["broken"], unit="conversations", bar="<= 0", met=counts["broken"] == 0,
    )  # fmt: skip
    yield Row(
        row=f"published templates whose rows end at a stop token behind the engine's prompt, of {total}; "
        f"{counts['refused']} are refused, with the template's reason", value=counts["right"], unit="templates",
        bar=">= 118, the rest refused", met=counts["right"] >= 118 and counts["right"] + counts["refused"] == total,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- memory

ANSWERS = ("recipe=grpo", "task.source=sums.jsonl", "rewards.functions=[{use='exact_match'}]")
ROLLOUT = "prompts_per_step=2, samples_per_prompt=2, max_tokens=64"
KINDS = {
    "SFT": ("recipe=sft", "batch=3", "task.source=chats.jsonl"),
    "DPO": ("recipe=dpo", "batch=1", "task.source=pairs.jsonl", "algorithm.loss={kind='dpo', beta=0.1}"),
    "GRPO": (*ANSWERS, f"rollout={{{ROLLOUT}}}"),
    "a dialogue with a tool": (*ANSWERS, f"rollout={{{ROLLOUT}, context=512}}", "task.tools.use=['hone:calculator']"),
}
"""Settings of each kind of run."""
MEMORY_BAR = 3.0
"""Percent."""


def model_folder(folder: Path) -> Path:
    """SmolLM2 as a Hugging Face folder of bfloat16 numbers, which peers load too; made once."""
    place = folder / "smollm2"
    if not (place / "tokenizer.json").is_file():
        file = fetch_model("smollm2")
        save_model(load_model(file, dtype="bfloat16"), place, tokenizer_from=file)
    return place


def write_rows(folder: Path) -> None:
    """Conversations, pairs and sums of drawn words."""
    chance = random.Random(0)

    def said(count: int) -> str:
        return " ".join(chance.choices([word for word in WORDS if word.isalpha()], k=count))

    def sum_row() -> dict[str, Any]:
        left, right = chance.randint(1, 9), chance.randint(1, 9)
        return {"prompt": [user(f"{said(40)} What is {left}+{right}?")], "answer": str(left + right)}

    rows = {
        "chats": lambda: {"messages": [user(said(30)), assistant(said(300))]},
        "pairs": lambda: {
            "prompt": [user(said(30))], "chosen": [assistant(said(200))], "rejected": [assistant(said(200))],
        },
        "sums": sum_row,
    }  # fmt: skip
    for name, make in rows.items():
        text = "".join(json.dumps(make()) + "\n" for _ in range(16))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def memory_rows(folder: Path, only: str, *, quick: bool) -> Iterator[Row]:
    """Distance of the planned peak from the memory that each run took beyond its start; of the kinds whose names begin
    with `only`."""
    model, root = model_folder(folder), folder / "memory"
    root.mkdir(exist_ok=True)
    write_rows(root)
    kinds = [(f"{kind}, {weights}", (*words, f"model.weights={weights}"))
             for kind, words in KINDS.items() for weights in ("float32", "bfloat16")]  # fmt: skip
    kinds += [
        (f"SFT of an adapter of rank 16, products in {products}",
         (*KINDS["SFT"], "model.lora.rank=16", f"model.compute={products}"))
        for products in ("float32", "bfloat16")
    ]  # fmt: skip
    for name, words in (one for one in kinds[:: 2 if quick else 1] if one[0].startswith(only)):
        file, run = root / "run.toml", root / "runs" / "run"
        recipe, *others = words
        file.write_text(
            f'recipe = "{recipe.removeprefix("recipe=")}"\nname = "run"\nsteps = 2\nmodel.path = "{model.resolve()}"\n'
            "learner.lr = 1e-4\nrun.threads = 1\n", encoding="utf-8",
        )  # fmt: skip
        shutil.rmtree(run, ignore_errors=True)
        command = [sys.executable, "-m", "hone", "train", file.name, *others]
        subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
        use = json.loads((run / "memory.json").read_text(encoding="utf-8"))
        shutil.rmtree(run)
        taken = use["peak_bytes"] - use["before_bytes"]
        value = 100.0 * abs(use["planned_bytes"] / taken - 1.0)
        yield Row(
            row=f"plan against the memory of a run, SmolLM2-135M: {name}; planned {use['planned_bytes'] / 1e9:.2f} GB, "
            f"taken {taken / 1e9:.2f} GB", value=value, unit="%", bar=f"<= {MEMORY_BAR:g}", met=value <= MEMORY_BAR,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="2 random conversations a template, not 20; half of the runs"
    )
    parser.add_argument("--memory", action="store_true", help="only the plans of runs on the model")
    parser.add_argument("--only", default="", help="with --memory: kinds of runs by the beginning of their names")
    parser.add_argument("--folder", type=Path, default=PEERS_FOLDER / "real_model", help="where the downloads lie")
    asked = parser.parse_args()
    download(asked.folder)
    rows = (
        memory_rows(asked.folder, asked.only, quick=asked.quick)
        if asked.memory
        else measure(asked.folder, conversations=2 if asked.quick else 20)
    )
    for row in rows:
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
