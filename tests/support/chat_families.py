"""Chat templates of each family's structure: where the end token stands, what prompts and history look like.

They are stand-ins: each does what makes a family of published models particular, and nothing else of it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import tokenizers as hf

from hone.models.language.tokenizers import Tokenizer, with_turn_end

_LOOP = "{%- for m in messages -%}"
_SYSTEM = "{%- if messages[0].role != 'system' -%}{{- '<|im_start|>system\nYou help.<|im_end|>\n' -}}{%- endif -%}"
_TOOLS = (
    "{%- if tools -%}{{- '<|im_start|>system\n<tools>' -}}{%- for t in tools -%}{{- t | tojson -}}{%- endfor -%}"
    "{{- '</tools><|im_end|>\n' -}}{%- endif -%}"
)
_CALLS = (
    "{%- for c in m.tool_calls or [] -%}{%- set f = c.function or c -%}"
    "{{- '\n<tool_call>\n' ~ ({'name': f.name, 'arguments': f.arguments} | tojson) ~ '\n</tool_call>' -}}{%- endfor -%}"
)
_LAST_USER = (
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)
_SPLIT = (
    "{%- set c = m.content -%}{%- set r = m.reasoning_content or '' -%}"
    "{%- if '</think>' in c -%}{%- set r = c.split('</think>')[0].split('<think>')[-1].strip('\n') -%}"
    "{%- set c = c.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
)


@dataclass(frozen=True)
class Family:
    """A template with the tokens of its folder."""

    name: str
    template: str
    special: Sequence[str]
    """Names of the special tokens, beside `<bos>` and `<eos>`."""
    stops: Sequence[str] = ("<eos>",)
    """Names of the tokens that the folder calls ends, the tokenizer's `eos_token` first."""
    ordinary: Sequence[str] = ()
    """Added tokens that are not special."""
    end: str = "<eos>"
    """End token of an answer."""
    written: str = ""
    """What the template writes between the prompt and an answer that has no reasoning."""
    after: str = ""
    """What it writes behind the answer and before its end token."""
    splits: bool = False
    """A conversation of two questions needs a row for each answer."""
    system: bool = True
    """It takes a message of the system."""
    trims: bool = False


_IM = ("<|im_start|>", "<|im_end|>")
_THINK = ("<think>", "</think>")


def _prompt(text: str) -> str:
    return "{%- if add_generation_prompt -%}{{- '" + text + "' -}}{%- endif -%}"


FAMILIES = {
    one.name: one
    for one in (
        Family(
            "chatml",
            _LOOP + "{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' -}}{%- endfor -%}"
            + _prompt("<|im_start|>assistant\n"),
            _IM, ("<|im_end|>",), end="<|im_end|>",
        ),
        Family(
            "chatml with tools and a system text",
            "{%- if tools -%}" + _TOOLS + "{%- else -%}" + _SYSTEM + "{%- endif -%}" + _LOOP
            + "{%- if m.role == 'tool' -%}{{- '<|im_start|>user\n<tool_response>\n' ~ m.content "
            "~ '\n</tool_response><|im_end|>\n' -}}{%- else -%}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content -}}"
            + _CALLS + "{{- '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}" + _prompt("<|im_start|>assistant\n"),
            _IM, ("<|im_end|>", "<eos>"), ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
            end="<|im_end|>",
        ),
        Family(
            "reasoning dropped from history",
            _LAST_USER + _LOOP + "{%- if m.role == 'assistant' -%}" + _SPLIT
            + "{{- '<|im_start|>assistant\n' -}}{%- if loop.index0 > ns.last -%}"
            "{{- '<think>\n' ~ r ~ '\n</think>\n\n' -}}{%- endif -%}{{- c -}}" + _CALLS + "{{- '<|im_end|>\n' -}}"
            "{%- else -%}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|im_start|>assistant\n"),
            _IM, ("<|im_end|>", "<eos>"), _THINK, end="<|im_end|>", written="<think>\n\n</think>\n\n", splits=True,
        ),
        Family(
            "prompt opens a thought that a row closes",
            _LAST_USER + _LOOP + "{%- if m.role == 'assistant' -%}" + _SPLIT
            + "{{- '<|im_start|>assistant\n' -}}{%- if loop.index0 > ns.last -%}"
            "{{- '<think>\n' ~ r ~ '\n</think>\n\n' -}}{%- endif -%}{{- c ~ '<|im_end|>\n' -}}"
            "{%- else -%}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|im_start|>assistant\n<think>\n"),
            _IM, ("<|im_end|>",), _THINK, end="<|im_end|>", written="\n</think>\n\n", splits=True,
        ),
        Family(
            "header with two newlines",
            "{{- bos_token -}}" + _LOOP + "{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ "
            "m.content | trim ~ '<|eot_id|>' -}}{%- endfor -%}"
            + _prompt("<|start_header_id|>assistant<|end_header_id|>\n\n"),
            ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), ("<eos>", "<|eot_id|>"), end="<|eot_id|>",
            trims=True,
        ),
        Family(
            "no header before answers",
            "{{- bos_token -}}" + _LOOP + "{%- if m.role == 'assistant' -%}{{- m.content ~ eos_token -}}"
            "{%- else -%}{{- '[INST]' ~ m.content ~ '[/INST]' -}}{%- endif -%}{%- endfor -%}",
            ("[INST]", "[/INST]"),
        ),
        Family(
            "another end of turn than eos",
            "{{- bos_token -}}{%- if messages[0].role == 'system' -%}"
            "{{- raise_exception('System role not supported') -}}{%- endif -%}" + _LOOP
            + "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
            "{{- raise_exception('Conversation roles must alternate') -}}{%- endif -%}"
            "{%- set role = 'model' if m.role == 'assistant' else m.role -%}"
            "{{- '<start_of_turn>' ~ role ~ '\n' ~ m.content | trim ~ '<end_of_turn>\n' -}}{%- endfor -%}"
            + _prompt("<start_of_turn>model\n"),
            ("<start_of_turn>", "<end_of_turn>"), end="<end_of_turn>", system=False, trims=True,
        ),
        Family(
            "eos once behind everything",
            _LOOP + "{{- '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' -}}{%- endfor -%}"
            "{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- else -%}{{- eos_token -}}{%- endif -%}",
            ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), end="<|end|>",
        ),
        Family(
            "prompt opens a thought that no row has",
            "{{- bos_token -}}" + _LOOP + "{%- if m.role == 'assistant' -%}"
            "{{- '<|Assistant|>' ~ m.content.split('</think>')[-1] ~ eos_token -}}{%- elif m.role == 'user' -%}"
            "{{- '<|User|>' ~ m.content -}}{%- else -%}{{- m.content -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|Assistant|><think>\n"),
            ("<|User|>", "<|Assistant|>"), ordinary=_THINK, splits=True,
        ),
        Family(
            "prompt has a closed thought that rows close",
            "{{- bos_token -}}" + _LOOP + "{%- if m.role == 'assistant' -%}{{- '<|Assistant|></think>' ~ m.content "
            "~ eos_token -}}{%- else -%}{{- '<|User|>' ~ m.content -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|Assistant|><think></think>"),
            ("<|User|>", "<|Assistant|>"), ordinary=_THINK, splits=True,
        ),
        Family(
            "the next role ends the turn",
            "{{- '[gMASK]<sop>' -}}" + _LOOP + "{%- if m.role == 'assistant' -%}"
            "{{- '<|assistant|>\n<think></think>\n' ~ m.content | trim -}}{%- else -%}"
            "{{- '<|' ~ m.role ~ '|>\n' ~ m.content -}}{%- endif -%}{%- endfor -%}" + _prompt("<|assistant|>"),
            ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"), ("<eos>", "<|user|>"), _THINK,
            end="<|user|>", written="\n<think></think>\n", trims=True,
        ),
        Family(
            "the next role ends the turn, and the prompt opens a thought",
            _LOOP + "{%- if m.role == 'assistant' -%}{{- '<|assistant|></think>' ~ m.content -}}{%- else -%}"
            "{{- '<|' ~ m.role ~ '|>' ~ m.content -}}{%- endif -%}{%- endfor -%}" + _prompt("<|assistant|><think>"),
            ("<|system|>", "<|user|>", "<|assistant|>"), ("<eos>", "<|user|>"), _THINK, end="<|user|>",
            written="</think>", splits=True,
        ),
        Family(
            "two end tokens",
            _LOOP + "{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content -}}{%- if loop.last and m.role == 'assistant' -%}"
            "{{- eos_token -}}{%- else -%}{{- '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|im_start|>assistant\n"),
            _IM, ("<eos>", "<|im_end|>"), splits=True,
        ),
        Family(
            "channels and two end tokens",
            _LOOP + "{%- if m.role == 'assistant' -%}{{- '<|start|>assistant' -}}{%- if m.thinking and loop.last -%}"
            "{{- '<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|><|start|>assistant' -}}{%- endif -%}"
            "{{- '<|channel|>final<|message|>' ~ m.content -}}{{- '<|return|>' if loop.last else '<|end|>' -}}"
            "{%- else -%}{{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' -}}{%- endif -%}"
            "{%- endfor -%}"
            + _prompt("<|start|>assistant"),
            ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
            ("<|return|>", "<|call|>"), end="<|return|>", written="<|channel|>final<|message|>", splits=True,
        ),
        Family(
            "blocks around an answer",
            "{{- bos_token -}}" + _LOOP + "{%- if m.role == 'assistant' -%}{{- '<|TURN|><|BOT|><|START_RESPONSE|>' ~ "
            "m.content ~ '<|END_RESPONSE|><|END_OF_TURN|>' -}}{%- else -%}{{- '<|TURN|><|' ~ m.role | upper ~ '|>' ~ "
            "m.content ~ '<|END_OF_TURN|>' -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|TURN|><|BOT|><|START_THINKING|><|END_THINKING|>"),
            ("<|TURN|>", "<|BOT|>", "<|USER|>", "<|SYSTEM|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
             "<|END_OF_TURN|>", "<|START_THINKING|>", "<|END_THINKING|>"),
            end="<|END_OF_TURN|>", written="<|START_RESPONSE|>", after="<|END_RESPONSE|>", splits=True,
        ),
        Family(
            "an end in history only",
            "{{- bos_token -}}" + _LOOP + "{%- if m.role == 'assistant' -%}{{- '<|assistant_start|>' ~ m.content -}}"
            "{%- if not loop.last -%}{{- '<|assistant_end|>' -}}{%- endif -%}{%- else -%}"
            "{{- '<|user_start|>' ~ m.content ~ '<|user_end|>' -}}{%- endif -%}{%- endfor -%}"
            + _prompt("<|assistant_start|>"),
            ("<|assistant_start|>", "<|assistant_end|>", "<|user_start|>", "<|user_end|>"), end="<|assistant_end|>",
        ),
        Family(
            "no end token at all",
            _LOOP + "{{- m.role ~ ': ' ~ m.content ~ '\n' -}}{%- endfor -%}" + _prompt("assistant: "),
            (), splits=True,
        ),
        Family(
            "generation blocks",
            "{{- bos_token -}}" + _LOOP + "{{- '<|im_start|>' ~ m.role ~ '\n' -}}{%- if m.role == 'assistant' -%}"
            "{% generation %}{{- m.content ~ '<|im_end|>' -}}{% endgeneration %}{%- else -%}"
            "{{- m.content ~ '<|im_end|>' -}}{%- endif -%}{{- '\n' -}}{%- endfor -%}"
            + _prompt("<|im_start|>assistant\n"),
            _IM, ("<|im_end|>",), end="<|im_end|>",
        ),
        Family(
            "content as a list of parts",
            _LOOP + "{{- '<|im_start|>' ~ m.role ~ '\n' -}}{%- for p in m.content -%}{%- if p.type == 'text' -%}"
            "{{- p.text -}}{%- endif -%}{%- endfor -%}{{- '<|im_end|>\n' -}}{%- endfor -%}"
            + _prompt("<|im_start|>assistant\n"),
            _IM, ("<|im_end|>",), end="<|im_end|>",
        ),
    )
}  # fmt: skip

SPLITS = ("bytes", "gpt2", "metaspace")
"""Ways to cut a text into pieces: single bytes, GPT-2's rule with merges of newlines, and spaces as letters."""
_CORPUS = [
    "\n\n",
    "a cat\n\nsat on\n\nthe mat, 4 of 44",
    "the answer is 42\n\n42 cats\n\nassistant user system model",
] * 3


@cache
def _trained(split: str) -> str:
    """A tokenizer without added tokens, as JSON."""
    if split == "metaspace":
        letters = sorted({chr(n) for n in range(32, 127)} | {"\n", "▁"})
        vocab = {name: n for n, name in enumerate(["<unk>", *letters])}
        backend = hf.Tokenizer(hf.models.BPE(vocab, [], unk_token="<unk>"))
        backend.pre_tokenizer = hf.pre_tokenizers.Metaspace()
        backend.decoder = hf.decoders.Metaspace()
        return backend.to_str()
    backend = hf.Tokenizer(hf.models.BPE())
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt2")
    backend.decoder = hf.decoders.ByteLevel()
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    size = 256 if split == "bytes" else 330
    trainer = hf.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    backend.train_from_iterator(_CORPUS if split == "gpt2" else [], trainer)
    return backend.to_str()


@cache
def family_tokenizer(name: str, split: str = "bytes") -> Tokenizer:
    """The tokenizer of a family's folder, as it would be loaded."""
    family = FAMILIES[name]
    backend = hf.Tokenizer.from_str(_trained(split))
    special = ["<bos>", "<eos>", *family.special]
    backend.add_special_tokens([hf.AddedToken(one, special=True, normalized=False) for one in special])
    backend.add_tokens([hf.AddedToken(one, special=False, normalized=False) for one in family.ordinary])
    ids = tuple(backend.token_to_id(one) for one in family.stops)
    return with_turn_end(
        Tokenizer(
            backend=backend,
            eos_ids=ids,
            pad_id=ids[0],
            chat_template=family.template,
            special={"bos_token": "<bos>", "eos_token": family.stops[0]},
        )
    )


def save_family(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Files of a tokenizer's folder, with its template."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokenizer.special}
    return {
        "tokenizer.json": tokenizer.backend.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "generation_config.json": json.dumps({"eos_token_id": list(tokenizer.eos_ids)}).encode(),
        "chat_template.jinja": (tokenizer.chat_template or "").encode(),
    }
