"""The tokenizer of a GGUF file as the files of a Hugging Face folder.

Two kinds: byte-level BPE (`gpt2`), whose rule of splitting text before merges goes by a name, and SentencePiece's BPE
(`llama`), whose merges follow from the tokens' scores. A file that holds a whole `tokenizer.json` is taken by its word.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

import tokenizers as hf

from hone.core.errors import DataError, ErrorCollector

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED: Final = tuple(
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]{upper}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]{lower}"
    for upper, lower in (("*", "+"), ("+", "*"))
)


def _words(numbers: str, letters: str = r"\p{L}") -> str:
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{numbers}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_SPACES}"


SPLITS: Final[Mapping[str, tuple[tuple[str, ...], bool, str]]] = {
    "gpt-2": ((_GPT2,), False, "phi-2 mpt olmo jais trillion granite-docling exaone4 modern-bert mellum gigachat"),
    "smollm": ((r"\p{N}", _GPT2), False, "starcoder refact command-r codeshell exaone minerva-7b"),
    "llama-bpe": ((_words(r"\p{N}{1,3}"),), True, "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 glm5"),
    "dbrx": ((_words(r"\p{N}{1,3}"),), False, "smaug-bpe chatglm-bpe"),
    "qwen2": ((_words(r"\p{N}"),), False, "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open"),
    "qwen35": ((_words(r"\p{N}", r"\p{L}\p{M}"),), False, ""),
    "tekken": ((rf"{'|'.join(_CASED)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",), True, ""),
    "gpt-4o": (
        (
            rf"{'|'.join(f'{one}{_ENDINGS}?' for one in _CASED)}|\p{{N}}{{1,3}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        ),
        False,
        "llama4 kanana2 talkie minimax-m2",
    ),
}  # fmt: skip
"""`tokenizer.ggml.pre` -> expressions that split a text, one after the other; whether a piece that is a token is taken
whole; further names of the same rule."""
PROBE: Final = (
    "It's  we'LL 1234567 a1b22\n\n\n x\t\ty \r\n don't\u00e9t\u00e9 \u6771\u4eac3 HTTPServer fooBar's !!!\n?? //\n "
    "e\u0301a \u0939\u093f\u0928 "
)
"""Text that every two of the rules split differently."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL: Final = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}  # fmt: skip
_SPACE: Final = "\u2581"


def split_rule(name: str) -> tuple[hf.pre_tokenizers.PreTokenizer, bool] | None:
    """The splitter of a `tokenizer.ggml.pre`, and whether whole tokens are taken before merges; None if unknown."""
    for known, (expressions, whole, others) in SPLITS.items():
        if name in (known, *others.split()):
            parts = [hf.pre_tokenizers.Split(hf.Regex(one), "isolated") for one in expressions]
            byte_level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return hf.pre_tokenizers.Sequence([*parts, byte_level]), whole
    return None


# ---------------------------------------------------------------------------------------------------------------- read


def tokenizer_files_of(fields: Mapping[str, object], where: str) -> dict[str, bytes]:
    """The files of a Hugging Face folder for the tokenizer of a GGUF header: name -> content. Raises DataError with
    every fault."""
    faults = ErrorCollector(DataError)
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}
    tokens = cast("list[str]", ggml.get("tokens") or [])
    if not tokens:
        faults.add(f"{where}: no tokenizer (tokenizer.ggml.tokens); fix: give the model's Hugging Face folder")
        faults.raise_if_any()
    numbers = {
        name: cast(int, ggml[key]) for name, key in SPECIAL.items() if isinstance(ggml.get(key), int)
    }  # fmt: skip
    ends = [ggml.get(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    for key, token in {**numbers, **{f"end {place}": one for place, one in enumerate(ends)}}.items():
        if isinstance(token, int) and not 0 <= token < len(tokens):
            faults.add(f"{where}: {key} has the id {token}, and the tokenizer has {len(tokens)} tokens")
    faults.raise_if_any()
    whole = fields.get("tokenizer.huggingface.json")
    files = {
        "tokenizer.json": whole.encode() if isinstance(whole, str) else _backend(ggml, where).to_str().encode(),
        "tokenizer_config.json": _json_bytes({
            "clean_up_tokenization_spaces": False,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": bool(ggml.get("add_bos_token", ggml.get("model") == "llama")),
            **{name: tokens[token] for name, token in numbers.items()},
        }),
        "generation_config.json": _json_bytes({
            "eos_token_id": list(dict.fromkeys(one for one in ends if isinstance(one, int))),
            **{f"{name[:3]}_token_id": one for name, one in numbers.items() if name in ("bos_token", "pad_token")},
        }),
    }  # fmt: skip
    template = fields.get("tokenizer.chat_template")
    return files | ({"chat_template.jinja": template.encode()} if isinstance(template, str) else {})


def _backend(ggml: Mapping[str, object], where: str) -> hf.Tokenizer:
    tokens, model = cast("list[str]", ggml["tokens"]), ggml.get("model")
    kinds = cast("list[int]", ggml.get("token_type") or [NORMAL] * len(tokens))
    vocabulary = {token: place for place, token in enumerate(tokens) if kinds[place] != UNUSED}
    if model == "gpt2":
        rule = split_rule(str(ggml.get("pre")))
        if rule is None:
            raise DataError(
                f"{where}: tokenizer.ggml.pre {ggml.get('pre')!r} names no rule of splitting that hone knows; known: "
                f"{', '.join(SPLITS)}. fix: give the model's Hugging Face folder"
            )
        splitter, ignores = rule
        written = (one.split(" ") for one in cast("list[str]", ggml.get("merges") or []))
        # A merge of what is no token is a filler: llama.cpp wants one merge at least.
        merges = [(left, right) for left, right in written if left + right in vocabulary]
        backend = hf.Tokenizer(hf.models.BPE(vocabulary, merges, ignore_merges=ignores))
        backend.pre_tokenizer, backend.decoder = splitter, hf.decoders.ByteLevel()
    elif model == "llama":
        backend = _sentencepiece(tokens, kinds, vocabulary, ggml)
    else:
        raise DataError(
            f"{where}: tokenizer.ggml.model {model!r} is not supported; known: gpt2 (byte-level BPE), llama "
            "(SentencePiece's BPE). fix: give the model's Hugging Face folder"
        )
    added = [
        hf.AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (CONTROL, USER_DEFINED) or (kind == UNKNOWN and model == "llama")
    ]
    backend.add_tokens([one for one in added if not one.special])
    backend.add_special_tokens([one for one in added if one.special])
    return backend


def _sentencepiece(
    tokens: Sequence[str], kinds: Sequence[int], vocabulary: Mapping[str, int], ggml: Mapping[str, object]
) -> hf.Tokenizer:
    """Pairs that make a token are merged, the token of the highest score first."""
    scores = cast("list[float]", ggml.get("scores") or [0.0] * len(tokens))
    pairs: list[tuple[float, int, str, str]] = []
    for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        for cut in range(1, len(token)) if kind in (NORMAL, USER_DEFINED) else ():
            if token[:cut] in vocabulary and token[cut:] in vocabulary:
                pairs.append((-scores[place], place, token[:cut], token[cut:]))
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    merges = [(left, right) for *_, left, right in sorted(pairs)]
    has_bytes = BYTE in kinds
    backend = hf.Tokenizer(
        hf.models.BPE(dict(vocabulary), merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    )
    begins = bool(ggml.get("add_space_prefix", True))
    first = [hf.normalizers.Prepend(_SPACE)] if begins else []
    backend.normalizer = hf.normalizers.Sequence([*first, hf.normalizers.Replace(" ", _SPACE)])
    last = [hf.decoders.Strip(" ", 1, 0)] if begins else []
    backend.decoder = hf.decoders.Sequence(
        [hf.decoders.Replace(_SPACE, " "), hf.decoders.ByteFallback(), hf.decoders.Fuse(), *last]
    )
    return backend


def _json_bytes(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
