"""GGUF files: numbers of every type, models and tokenizers there and back, what llama.cpp makes of them, faults."""

import json
import struct
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers as hf
import torch
from real_chat_model import smollm2

from hone.core.errors import ConfigError, DataError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.gguf_export import write_gguf
from hone.models.language.gguf_file import GGUF_WEIGHTS, read_gguf
from hone.models.language.gguf_tokenizer import SPLITS, split_rule
from hone.models.language.hf_checkpoint import load_model, read_config
from hone.models.language.init import new_model
from hone.models.language.rope import RopeConfig
from hone.models.language.tokenizers import Tokenizer, byte_tokenizer, character_tokenizer, load_tokenizer
from hone.models.packing import pack_rows
from hone.text.evaluate.open_policy import export_policy

# ------------------------------------------------------------------------------------------------------------- numbers
# The layout of each type, byte by byte, as ggml's documentation of its blocks gives it.


def halves(block: bytes, *places: int) -> list[float]:
    return [float(np.frombuffer(block, np.float16, 1, place)[0]) for place in places]


def nibbles(packed: bytes) -> list[int]:
    return [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]


def six_bits(packed: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def slow_q4_k(block: bytes, high: bytes | None = None) -> list[float]:
    (d, least), scales, packed, values = halves(block, 0, 2), block[4:16], block[-128:], []
    for j in range(8):
        scale, minimum = six_bits(scales, j)
        for place in range(32):
            q = packed[j // 2 * 32 + place] >> (4 * (j % 2)) & 15
            q += 0 if high is None else (high[place] >> j & 1) * 16
            values.append(d * scale * q - least * minimum)
    return values


def slow_q6_k(block: bytes) -> list[float]:
    low, high, scales, (d,) = block[:128], block[128:192], np.frombuffer(block[192:208], np.int8), halves(block, 208)
    values = np.zeros(256)
    for half, place, part in np.ndindex(2, 32, 4):
        bits = low[half * 64 + place + part % 2 * 32] >> (4 * (part // 2)) & 15
        q = (bits | (high[half * 32 + place] >> (2 * part) & 3) << 4) - 32
        values[half * 128 + part * 32 + place] = d * int(scales[half * 8 + place // 16 + 2 * part]) * q
    return values.tolist()


SLOW = {
    "F32": lambda block: np.frombuffer(block, np.float32).tolist(),
    "F16": lambda block: np.frombuffer(block, np.float16).astype(float).tolist(),
    "BF16": lambda block: [struct.unpack("<f", b"\0\0" + block)[0]],
    "Q8_0": lambda block: [halves(block, 0)[0] * q for q in np.frombuffer(block, np.int8, offset=2).tolist()],
    "Q4_0": lambda block: [halves(block, 0)[0] * (q - 8) for q in nibbles(block[2:])],
    "Q4_1": lambda block: [halves(block, 0)[0] * q + halves(block, 2)[0] for q in nibbles(block[4:])],
    "Q4_K": slow_q4_k,
    "Q5_K": lambda block: slow_q4_k(block[:16] + block[48:], block[16:48]),
    "Q6_K": slow_q6_k,
}
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def test_numbers_of_every_type_equal_a_slow_reader(tmp_path):
    rng, expected = np.random.default_rng(0), {}
    writer = gguf.GGUFWriter(tmp_path / "types.gguf", "llama")
    for name, slow in SLOW.items():
        kind = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[kind][1]
        blocks = rng.integers(0, 256, (3, 2, size), np.uint8)
        if name not in SCALES:
            whole = rng.standard_normal((3, 2)).astype(np.float16 if name == "F16" else np.float32)
            blocks = whole.view(np.uint8).reshape(3, 2, -1)[..., -size:]
        for place in SCALES.get(name, ()):
            scale = rng.standard_normal((3, 2, 1)).astype(np.float16)
            blocks[..., place : place + 2] = scale.view(np.uint8)
        expected[name] = np.array([[v for block in row for v in slow(block.tobytes())] for row in blocks])
        writer.add_tensor(name, np.ascontiguousarray(blocks.reshape(3, -1)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / "types.gguf")
    for name, values in expected.items():
        tensor = found.tensors[name]
        assert tensor.shape == values.shape
        np.testing.assert_allclose(found.numbers(tensor), values, rtol=2e-6, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(
            found.numbers(tensor._replace(shape=(3, 1, values.shape[1])), 2)[0], found.numbers(tensor)[2]
        )


# -------------------------------------------------------------------------------------------------------------- models

SIZES = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "max_positions": 64,
}
EXPERTS = ExpertsConfig(count=4, per_token=2, width=32)
LLAMA3 = RopeConfig(theta=500000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, original_max_positions=8192)
CONFIGS = {
    "llama": ModelConfig(family="llama", **SIZES, tie_embeddings=False),
    "llama3": ModelConfig(family="llama", **SIZES, rope=LLAMA3),
    "linear": ModelConfig(family="llama", **SIZES, rope=RopeConfig(kind="linear", factor=2.5)),
    "yarn": ModelConfig(family="qwen3", **SIZES, rope=RopeConfig(kind="yarn", factor=4.0, original_max_positions=16)),
    "biases": ModelConfig(family="llama", **SIZES, attention_bias=True, mlp_bias=True),
    "mistral": ModelConfig(family="mistral", **{**SIZES, "head_dim": 16}),
    "qwen2": ModelConfig(family="qwen2", **SIZES),
    "qwen3": ModelConfig(family="qwen3", **{**SIZES, "head_dim": 16}, tie_embeddings=False),
    "qwen3_moe": ModelConfig(family="qwen3_moe", **SIZES, experts=EXPERTS),
    "mixtral": ModelConfig(family="mixtral", **{**SIZES, "intermediate_size": 32}, experts=EXPERTS),
    "olmoe": ModelConfig(
        family="olmoe",
        **{**SIZES, "intermediate_size": 32, "kv_heads": 4},
        experts=replace(EXPERTS, normalise_gates=False),
        tie_embeddings=False,
    ),
}


def drawn(config: ModelConfig) -> Decoder:
    model = new_model(config, seed=3)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def logits(model: Decoder) -> torch.Tensor:
    rows = [np.arange(5, 40, dtype=np.int32), np.array([7], np.int32)]
    with torch.no_grad():
        return model.logits(model.hidden(pack_rows(rows)))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_read_back_as_it_was_written(name, tmp_path):
    model, tokenizer = drawn(CONFIGS[name]), byte_tokenizer()
    for weights in GGUF_WEIGHTS:
        kind = {"F16": torch.float16, "BF16": torch.bfloat16}.get(weights)
        if kind is not None:  # values that the type holds, so that nothing is rounded
            model.load_state_dict({key: value.to(kind).float() for key, value in model.state_dict().items()})
        file = tmp_path / f"{weights}.gguf"
        write_gguf(model, tokenizer, file, weights, name="tiny")
        first = file.read_bytes()
        write_gguf(model, tokenizer, file, weights, name="tiny")
        assert file.read_bytes() == first
        read = load_model(file)
        # Mistral's arithmetic is Llama's, and llama.cpp has one name for both.
        family = "llama" if name == "mistral" else CONFIGS[name].family
        assert replace(read.config, extra={}) == replace(CONFIGS[name], family=family)
        for key, value in model.state_dict().items():
            other = read.state_dict()[key]
            if kind is not None or value.ndim == 1 or ".router" in key:
                assert torch.equal(other, value), key
            else:  # a block of 32 has a step of its largest number / 127, rounded to 16 bits
                blocks = value.reshape(*value.shape[:-1], -1, 32)
                step = blocks.abs().amax(-1, keepdim=True) / 127
                error = (other.reshape(blocks.shape) - blocks).abs()
                assert bool((error <= step * (0.5 + 127 / 2048)).all()), key
    found = read_gguf(tmp_path / "BF16.gguf")
    query = model.state_dict()["layers.1.qkv.weight"][: CONFIGS[name].heads * CONFIGS[name].head_dim]
    stored = torch.from_numpy(found.numbers(found.tensors["blk.1.attn_q.weight"]))
    if family in ("llama", "mixtral"):  # pairs side by side, as here
        assert torch.equal(stored, query)
    else:
        heads = query.reshape(CONFIGS[name].heads, -1, 2, 32)
        assert torch.equal(stored, torch.cat([heads[:, :, 0], heads[:, :, 1]], 1).reshape(stored.shape))


# ----------------------------------------------------------------------------------------------------------- llama.cpp


@contextmanager
def llama_server(file: Path):
    """llama.cpp with the model of a file, on one thread: a function (path, body) -> answer."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp checks what is written: pip install xllamacpp")
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel, settings.warmup = str(file), 256, 1, False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)

    def ask(path: str, body: dict[str, object]) -> dict[str, object]:
        data = json.dumps(body).encode()
        asked = urllib.request.Request(server.listening_address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=300) as reply:
            return json.load(reply)

    yield ask


def gaps(model: Decoder, prompt: list[int], answer: list[int]) -> list[float]:
    """At each place of an answer the distance of its token's logit from the largest: 0 where the answer is greedy."""
    with torch.no_grad():
        hidden = model.hidden(pack_rows([np.array(prompt + answer, np.int32)]))
        found = model.logits(hidden[len(prompt) - 1 : -1])
    return (found.amax(-1) - found[torch.arange(len(answer)), torch.tensor(answer)]).tolist()


def their_greedy(ask, prompt: list[int], count: int) -> list[int]:
    asked = {"prompt": prompt, "n_predict": count, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    return ask("/completion", asked)["tokens"]


@pytest.mark.parametrize("name", CONFIGS)
def test_llama_cpp_answers_as_the_model_does(name, tmp_path):
    model, tokenizer = drawn(CONFIGS[name]), byte_tokenizer()
    model.load_state_dict({key: value.half().float() for key, value in model.state_dict().items()})
    write_gguf(model, tokenizer, tmp_path / "m.gguf", "F16", name="tiny")
    with llama_server(tmp_path / "m.gguf") as ask:
        for prompt in ([5, 9, 40, 41, 42, 8], list(range(60, 85))):
            answer = their_greedy(ask, prompt, 8)
            assert max(gaps(model, prompt, answer)) == 0
            assert len(answer) == 8 or answer[-1] in tokenizer.eos_ids


QUESTIONS = (
    "What is the capital of France?", "Write a haiku about rain.", "2+2?", "Name three colours.",
    "Translate 'cat' to Spanish.", "Why is the sky blue?", "def fib(n):", "Count to ten.",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("weights", GGUF_WEIGHTS)
def test_a_published_model_answers_the_same_in_llama_cpp(weights, tmp_path):
    source = smollm2()
    export_policy(source, tmp_path / "m.gguf", adapter=False, gguf=weights)
    model, tokenizer = load_model(tmp_path / "m.gguf"), load_tokenizer(tmp_path / "m.gguf")
    original, apart = load_tokenizer(source), list[float]()
    with llama_server(tmp_path / "m.gguf") as ask:
        for question in QUESTIONS:
            chat = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat(chat).tolist()
            assert prompt == original.apply_chat(chat).tolist()
            assert ask("/apply-template", {"messages": chat})["prompt"] == tokenizer.render_chat(chat)
            answer = their_greedy(ask, prompt, 24)
            apart += gaps(model, prompt, answer)
    # llama.cpp rounds the other factor of a product to the type of the weights, too: to 8 bits beside Q8_0.
    print(f"{weights}: {np.count_nonzero(apart)} of {len(apart)} tokens differ, by at most {max(apart)}")
    assert max(apart) <= {"F16": 0.0, "BF16": 0.15, "Q8_0": 0.5}[weights]


# ---------------------------------------------------------------------------------------------------------- tokenizers

TEXTS = (
    "It's  we'LL 1234567 a1b22\n\n\n x\t\ty \r\n don't", "", " ", "\n\n4", "  two spaces", "fooBar's HTTPServer!!!\n??",
    "\u00e9t\u00e9 e\u0301a \u6771\u4eac3 \ud55c\uad6d\uc5b4 \U0001f642", "a b\u00a0c  d", "x=1;\n    y += 22\n",
    "<|end|>", "a<|end|>b <think> c", "\u2581a", "12345678901234567890",
)  # fmt: skip


def trained(splitter, *, whole: bool = False) -> Tokenizer:
    """A byte-level BPE whose merges are learnt from these texts."""
    backend = hf.Tokenizer(hf.models.BPE(ignore_merges=whole))
    backend.pre_tokenizer, backend.decoder = splitter, hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|end|>"], initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([*TEXTS, *TEXTS], trainer)
    backend.add_tokens([hf.AddedToken("<think>", special=False, normalized=False)])
    special = {"eos_token": "<|end|>", "bos_token": "<|end|>"}
    return Tokenizer(
        backend=backend, eos_ids=(0,), pad_id=0, special=special, chat_template="{{ messages[0].content }}"
    )


def sentencepiece(*, begins: bool) -> Tokenizer:
    """A SentencePiece BPE with byte fallback: pairs that make a token merge, earlier tokens first."""
    pieces = ["\u2581", *"abcdeghinoprstuvwxyz1234567890'.!?=;+", "\u6771"]
    learnt = ["th", "in", "\u2581a", "an", "\u2581t", "er", "12", "123", "\u2581\u2581", "\u2581two", "tw", "two",
              "spa", "sp", "ces", "es"]  # fmt: skip
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: place for place, token in enumerate(["<unk>", "<s>", "<|end|>", *bytes_, *learnt, *pieces])}
    pairs = [
        (token[:cut], token[cut:])
        for token in learnt
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    backend = hf.Tokenizer(hf.models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    first = [hf.normalizers.Prepend("\u2581")] if begins else []
    backend.normalizer = hf.normalizers.Sequence([*first, hf.normalizers.Replace(" ", "\u2581")])
    last = [hf.decoders.Strip(" ", 1, 0)] if begins else []
    backend.decoder = hf.decoders.Sequence(
        [hf.decoders.Replace("\u2581", " "), hf.decoders.ByteFallback(), hf.decoders.Fuse(), *last]
    )
    backend.add_special_tokens(
        [hf.AddedToken(one, special=True, normalized=False) for one in ("<unk>", "<s>", "<|end|>")]
    )
    special = {"eos_token": "<|end|>", "bos_token": "<s>", "unk_token": "<unk>"}
    return Tokenizer(backend=backend, eos_ids=(2,), pad_id=2, unknown_id=0, special=special)


TOKENIZERS = {
    **{name: (lambda name=name: trained(*split_rule(name)[:1], whole=SPLITS[name][1])) for name in SPLITS},
    "sentencepiece": lambda: sentencepiece(begins=True),
    "gemma": lambda: sentencepiece(begins=False),
    "bytes": byte_tokenizer,
    "characters": lambda: character_tokenizer(["".join(map(chr, (10, *range(32, 127))))]),
}


def without_whole_file(file: Path) -> Path:
    """The same file as llama.cpp's own tools write it: without the whole `tokenizer.json`."""
    reader, plain = gguf.GGUFReader(file), file.with_name("plain.gguf")
    writer = gguf.GGUFWriter(plain, "llama")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "tokenizer.huggingface")):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_encodes_the_same_there_and_back_and_in_llama_cpp(name, tmp_path):
    tokenizer = TOKENIZERS[name]()
    config = ModelConfig(family="llama", **{**SIZES, "vocab_size": 512, "layers": 1})
    write_gguf(drawn(config), tokenizer, tmp_path / "m.gguf", "F16", name="tiny")
    whole = load_tokenizer(tmp_path / "m.gguf")
    assert whole.backend.to_str() == tokenizer.backend.to_str()
    plain = load_tokenizer(without_whole_file(tmp_path / "m.gguf"))
    with llama_server(tmp_path / "m.gguf") as ask:
        for text in TEXTS:
            if name == "characters":
                text = text.encode("ascii", "ignore").decode().replace("\t", "").replace("\r", "")
            expected = tokenizer.encode(text).tolist()
            assert whole.encode(text).tolist() == expected
            assert plain.encode(text).tolist() == expected, text
            assert plain.decode(expected) == tokenizer.decode(expected)
            if "<think>" in text and "<think>" in tokenizer.backend.get_vocab():
                assert "<think>" in [tokenizer.backend.id_to_token(one) for one in expected]
            if name in ("tekken", "gpt-4o") and "\u0301" in text:
                continue  # llama.cpp's own form of these two rules splits before a combining mark
            theirs = ask("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]
            assert theirs == expected, text
    for read in (whole, plain):
        assert (read.eos_ids, read.size, read.chat_template) == (
            tokenizer.eos_ids,
            tokenizer.size,
            tokenizer.chat_template,
        )
        assert {**read.special, "pad_token": ""} == {**tokenizer.special, "pad_token": ""}


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(drawn(CONFIGS["llama"]), byte_tokenizer(), file, "Q8_0", name="tiny")
    return file


def changed(written: Path, file: Path, *, drop: tuple[str, ...] = (), tensors: dict | None = None, **fields) -> Path:
    """A copy with other fields (dots as underscores of two) and tensors."""
    reader, others = gguf.GGUFReader(written), {key.replace("__", "."): value for key, value in fields.items()}
    writer = gguf.GGUFWriter(file, others.pop("general.architecture", "llama"))
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", *drop)):
            value = others.pop(name, None) or field.contents()
            writer.add_key_value(name, value, field.types[0], field.types[-1])
    for name, value in others.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_string)(name, value)
    for tensor in reader.tensors:
        data = (tensors or {}).get(tensor.name, tensor)
        if data is not None:
            data = tensor.data if data is tensor else data
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type if data is tensor.data else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


HF = "tokenizer.huggingface"
WRONG = np.zeros((3, 32), np.float32)
FAULTS = {
    "architecture": (
        {"general__architecture": "mamba"},
        ["general.architecture 'mamba' is not supported; known: llama"],
    ),
    "a missing tensor": (
        {"tensors": {"blk.1.ffn_up.weight": None}},
        ["tensor model.layers.1.mlp.up_proj.weight is missing"],
    ),
    "a shape": (
        {"tensors": {"blk.0.ffn_up.weight": WRONG}},
        ["mlp.up_proj.weight has shape (3, 32); config.json asks for (64, 32)"],
    ),
    "no embedding": ({"tensors": {"token_embd.weight": None}}, ["tensor token_embd.weight is missing"]),
    "no size": (
        {"drop": ("llama.block_count", "llama.embedding_length")},
        ["llama.block_count is missing", "llama.embedding_length is missing"],
    ),
    "rotary width": ({"llama__rope__dimension_count": 4}, ["rope.dimension_count 4 of 8 features"]),
    "parts": ({"split__count": 3}, ["is one of 3 parts", "fix: join them"]),
    "scaling": (
        {"llama__rope__scaling__type": "longrope"},
        ["rope.scaling (type longrope) is not supported; known: linear, yarn"],
    ),
    "split rule": (
        {"drop": (HF,), "tokenizer__ggml__pre": "kimi-k2"},
        ["tokenizer.ggml.pre 'kimi-k2' names no rule", "known: gpt-2, smollm"],
    ),
    "tokenizer": ({"drop": (HF,), "tokenizer__ggml__model": "bert"}, ["tokenizer.ggml.model 'bert' is not supported"]),
    "no tokenizer": ({"drop": ("tokenizer",)}, ["no tokenizer (tokenizer.ggml.tokens)"]),
    "an id": ({"tokenizer__ggml__eos_token_id": 999}, ["has the id 999, and the tokenizer has 259 tokens"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_with_a_file_is_named(name, written, tmp_path):
    changes, told = FAULTS[name]
    file = changed(written, tmp_path / "bad.gguf", **changes)
    with pytest.raises(DataError) as refusal:
        load_tokenizer(file)
        load_model(file)
    assert all(one in str(refusal.value) for one in told), refusal.value
    assert str(file) in str(refusal.value)


def test_damaged_files_are_named_with_their_bytes(written, tmp_path):
    content, bad = written.read_bytes(), tmp_path / "bad.gguf"
    end = max(one.start for one in read_gguf(written).tensors.values())
    kind = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    version = content[:4] + (1).to_bytes(4, "little") + content[8:]
    unknown = content[:kind] + (99).to_bytes(4, "little") + content[kind + 4 :]
    unread = content[:kind] + int(gguf.GGMLQuantizationType.Q8_K).to_bytes(4, "little") + content[kind + 4 :]
    for damaged, told in (
        (b"PK" + content, "is no GGUF file: it begins with b'PKGG'"),
        (content[:6], "is no GGUF file"),
        (version, "is GGUF of version 1; known: 2 and 3"),
        (content[:1000], "(1000 bytes) is damaged or cut short in its header"),
        (content[: end + 1], f"({end + 1} bytes) is cut short: tensor"),
        (unknown, "tensor blk.0.attn_q.weight is of the type 99, which is not read; known: F32, F16"),
        (unread, "tensor blk.0.attn_q.weight is of the type Q8_K"),
    ):
        bad.write_bytes(damaged)
        with pytest.raises(DataError) as refusal:
            read_config(bad)
        assert told in str(refusal.value)
        assert str(bad) in str(refusal.value)
    bad.write_bytes(content)  # the header is read again
    assert read_config(bad).layers == 2


def test_what_llama_cpp_cannot_hold_is_refused_before_a_byte_is_written(tmp_path):
    model, target = drawn(CONFIGS["olmoe"]), tmp_path / "m.gguf"
    with torch.no_grad():
        model.embedding.weight[3, 3] = 70000.0
        model.layers[0].down.weight[0, 0] = -65505.0
    with pytest.raises(DataError, match=r"numbers beyond 65504.*and so 1 more tensors"):
        write_gguf(model, byte_tokenizer(), target, "F16", name="tiny")
    write_gguf(model, byte_tokenizer(), target, "BF16", name="tiny")
    target.unlink()
    with torch.no_grad():
        model.embedding.weight[3, 3] = model.layers[0].down.weight[0, 0] = 65504.0
    write_gguf(model, byte_tokenizer(), target, "F16", name="tiny")
    target.unlink()
    own = {
        "llama3": replace(LLAMA3, original_max_positions=4096),
        "yarn": RopeConfig(kind="yarn", factor=2.0, beta_fast=16.0),
        "dynamic": RopeConfig(kind="dynamic", factor=2.0),
    }
    windowed = replace(CONFIGS["mistral"], extra={"sliding_window": 8})
    with pytest.raises(DataError, match="attention windows are not written"):
        write_gguf(drawn(windowed), byte_tokenizer(), target, "F16", name="tiny")
    other = ModelConfig(family="granite", **SIZES)
    with pytest.raises(DataError, match="family 'granite' are not written as GGUF; known: llama, mistral"):
        write_gguf(drawn(other), byte_tokenizer(), target, "F16", name="tiny")
    for rope in own.values():
        with pytest.raises(DataError, match="rope"):
            write_gguf(drawn(replace(CONFIGS["llama"], rope=rope)), byte_tokenizer(), target, "F16", name="tiny")
    odd = hf.Tokenizer(hf.models.WordLevel({"<eos>": 0, "word": 1}, unk_token="<eos>"))
    for tokenizer, told in (
        (Tokenizer(backend=odd, eos_ids=(0,), pad_id=0), "WordLevel"),
        (
            trained(hf.pre_tokenizers.Sequence([hf.pre_tokenizers.Punctuation(), hf.pre_tokenizers.ByteLevel()])),
            "no name",
        ),
    ):
        with pytest.raises(DataError, match=told):
            write_gguf(drawn(replace(CONFIGS["llama"], vocab_size=512)), tokenizer, target, "F16", name="tiny")
    assert not target.exists()


# -------------------------------------------------------------------------------------------------------------- export


def test_export_writes_a_file_of_a_folder_and_a_folder_of_a_file(written, tmp_path):
    told = export_policy(written, tmp_path / "folder", adapter=False)
    assert "the whole model, for transformers and vLLM" in told
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        one.name for one in (tmp_path / "folder").iterdir()
    }
    told = export_policy(tmp_path / "folder", tmp_path / "again.gguf", adapter=False, gguf="Q8_0")
    assert told == f"wrote {tmp_path / 'again.gguf'}: the whole model in Q8_0 with its tokenizer, for llama.cpp"
    assert not list(tmp_path.glob(".*"))
    first, second = load_model(written).state_dict(), load_model(tmp_path / "again.gguf").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)  # numbers of Q8_0 are rounded once
    for target, options, says in (
        (tmp_path / "again.gguf", {"gguf": "F16"}, "exists; name a new file"),
        (tmp_path / "m.gguf", {"gguf": "Q4_K"}, "known: F16, BF16, Q8_0"),
        (tmp_path / "m", {"gguf": "F16"}, "name it"),
        (tmp_path / "m.gguf", {"gguf": "F16", "adapter": True}, "leave --adapter out"),
    ):
        with pytest.raises(ConfigError, match=says):
            export_policy(tmp_path / "folder", target, **{"adapter": False, **options})
