"""Text to token ids and back: tokenizers built on the spot, and any `tokenizer.json` of a Hugging Face folder.

Encoding, decoding, chat templates, the special ids. Text of a user never becomes a special token: it is encoded as
plain characters.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import numpy as np
import tokenizers as hf
from numpy.typing import NDArray

from hone.core.conversation import Message, RenderedChat, SpecialNames
from hone.core.errors import DataError, ErrorCollector
from hone.core.strict_json import strict_json
from hone.models.language.config import Json


def _shorten_text(text: str, limit: int = 80) -> str:
    """The text, cut after `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


# ----------------------------------------------------------------------------------------------------- default template
# The default template belongs to tokenizers that hone builds for a new model and data with conversations. A message is
# its role's token, its text, and `<eos>`: `<|user|>2+2?<eos><|assistant|>4<eos>`. It appends only, keeps all
# whitespace, and needs no character beside those of the messages.

ROLE_TOKENS: Final = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
"""Special tokens of the roles, in the order of their ids, which follow all others."""
DEFAULT_CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('the default chat template has no role \\'' ~ message['role'] ~ '\\'; known: system, user, "
    "assistant, tool') -}}"
    "{%- endif -%}"
    "{%- if message['content'] is not string or message['tool_calls'] -%}"
    "{{- raise_exception('the default chat template takes messages of plain text, without parts and tool calls') -}}"
    "{%- endif -%}"
    "{{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<eos>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

# ----------------------------------------------------------------------------------------------------------- tokenizers


PAD: Final = "<pad>"
EOS: Final = "<eos>"
UNKNOWN: Final = "<unk>"
_FILES: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)

_ENCODING: Final = threading.Lock()
"""Held while a backend's flag for special tokens is set and used: copies of a tokenizer share their backend."""
_LONG: Final = 4096
"""Characters, or ids, from which on a tokenizer for threads lets other threads work meanwhile."""
_PROBES: Final = ("an answer", " spaces at both ends ", "<think>a thought</think>an answer")
"""Answers that chat templates are known to rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A `tokenizers.Tokenizer` with the ids that generation needs."""

    backend: hf.Tokenizer
    eos_ids: tuple[int, ...]
    """Tokens that end a text; the first is the one that hone writes."""
    pad_id: int
    """Never used to mask (that goes by length); EOS where the folder names no padding token."""
    unknown_id: int | None = None
    chat_template: str | None = None
    special: Mapping[str, str] = field(default_factory=dict[str, str])
    """`eos_token`, `bos_token` and the like -> text."""
    tools: tuple[Mapping[str, object], ...] = ()
    """Tools that the chat template is told about, in OpenAI's form (`ToolSchema.as_function`)."""
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    """Further variables of the chat template, such as `enable_thinking`."""
    system: str = ""
    """System message of conversations that have none."""
    prepare: Callable[[Sequence[Message]], Sequence[Message]] | None = None
    """Rewrites messages for the chat template: tools that it does not describe are described in the messages."""
    added_stop: int | None = None
    """The one of `eos_ids` that the folder does not name: the chat template ends turns in it."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """Tokenizer files of a folder: file name -> content, written back unchanged."""
    plain_backend: hf.Tokenizer | None = None
    """Copy of the backend for text without special tokens, of a tokenizer for threads; `backend` is then another copy,
    for text with them."""

    @property
    def eos_id(self) -> int:
        """Id of the end-of-sequence token."""
        return self.eos_ids[0]

    @property
    def size(self) -> int:
        """Largest id + 1: logits from there on belong to no token."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of `n` characters has at least `n / longest_token` tokens."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)))

    def for_threads(self) -> "Tokenizer":
        """A tokenizer of the same ids for several threads at once: a long text holds up no other thread, neither by a
        lock nor by Python's own. It takes the memory of two more backends."""
        text = self.backend.to_str()
        named, plain = hf.Tokenizer.from_str(text), hf.Tokenizer.from_str(text)
        named.encode_special_tokens, plain.encode_special_tokens = False, True
        return replace(self, backend=named, plain_backend=plain)

    def encode(self, text: str) -> NDArray[np.int32]:
        """`[n]` ids of the text: no BOS, no EOS, special tokens' names as plain characters.

        Raises DataError naming the characters when some have no token.
        """
        return self._encode(text, plain=True)[0]

    def decode(self, ids: Sequence[int] | NDArray[np.integer], *, special: bool = False) -> str:
        """Text of the ids; special tokens are left out unless `special`."""
        numbers = [int(i) for i in ids]
        if self.plain_backend is not None and len(numbers) >= _LONG:
            return self.backend.decode_batch([numbers], skip_special_tokens=not special)[0]
        return self.backend.decode(numbers, skip_special_tokens=not special)

    def chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, marks_generation: bool = False
    ) -> RenderedChat:
        """The conversation as the chat template writes it; `add_generation_prompt` begins an answer, and
        `marks_generation` asks for the places of `{% generation %}` blocks.

        Raises DataError when there is no template or it does not take these messages.
        """
        if self.chat_template is None:
            raise DataError(
                "the data holds conversations, or task.chat or task.system asks for them, but the model folder has no "
                "chat template; add a chat_template.jinja to it, or give prompts as text"
            )
        from hone.models.language.chat_template import ChatTemplate  # noqa: PLC0415 - jinja2: for conversations only

        template = ChatTemplate(
            source=self.chat_template,
            special=self.special,
            names=_special_names(self.backend, self.eos_ids),
            tools=self.tools,
            variables=self.variables,
            system=self.system,
            prepare=self.prepare,
        )
        return template.render(messages, add_generation_prompt=add_generation_prompt, marks_generation=marks_generation)

    def encode_chat(self, chat: RenderedChat, start: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """`[n]` ids of a rendered conversation from character `start` on, and the character at which each begins."""
        ids, places = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for place, text, plain in chat.pieces(start):
            tokens, begins = self._encode(text, plain=plain)
            ids.append(tokens)
            places.append(begins + place)
        return np.concatenate(ids), np.concatenate(places)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Text of `chat`."""
        return self.chat(messages, add_generation_prompt=add_generation_prompt).text

    def apply_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> NDArray[np.int32]:
        """`[n]` ids of the rendered conversation: special tokens where the template writes them, and nowhere else."""
        return self.encode_chat(self.chat(messages, add_generation_prompt=add_generation_prompt))[0]

    def continue_chat(
        self, history: Sequence[Message], new: Sequence[Message], *, answer: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """`[n]` ids that the chat template writes between a sampled answer and the next one, `new` messages included.

        The template renders a sentinel in the place of the answer; the text after it is encoded. So sampled tokens are
        never decoded and encoded again. The token that ended the answer is not repeated, and neither is what the
        template writes before it.

        Raises DataError when the template does not take these messages, or rewrites the text before the answer.
        """
        before, after = self._chat_around_answer(history, new)
        prompt = self.render_chat(history)
        # Behind the prompt a template may write what the policy has said itself, such as an empty thought.
        own = before.removeprefix(prompt) if before.startswith(prompt) else None
        spoken = "".join(self.decode(answer, special=True).split()) if own else ""  # spaces are a decoder's, too
        if own is None or not spoken.startswith("".join(own.split())):
            raise DataError(
                "the chat template rewrites earlier messages once an answer follows: a conversation cannot go on "
                f"token by token; it writes {_shorten_text(before)!r} after {_shorten_text(prompt)!r}"
            )
        tokens = self.encode_chat(after)[0]
        if not len(answer) or int(answer[-1]) not in self.eos_ids:
            return tokens
        special = np.flatnonzero(np.isin(tokens, list(_special_ids(self.backend))))
        ended = len(special) > 0 and tokens[special[0]] == answer[-1]
        return tokens[special[0] + 1 :] if ended else tokens

    def continue_or_rewrite_chat(
        self, history: Sequence[Message], new: Sequence[Message], *, said: str, answer: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
        """`continue_chat`, and None where the chat template keeps all that was written; where it rewrites earlier
        messages once the answer (text `said`, tokens `answer`) and `new` follow, no tokens, and the whole conversation
        as it writes it.

        Raises DataError when the template does not take these messages.
        """
        before, after = self._chat_around_answer(history, new)
        whole = [*history, {"role": "assistant", "content": said}, *new]
        kept = before == self.render_chat(history) and f"{before}{said}{after.text}" == self.render_chat(whole)
        if kept and (not len(answer) or self._ends_as_history(answer, after)):
            return self.continue_chat(history, new, answer=answer), None
        return np.zeros(0, np.int32), self.apply_chat(whole)

    def check_chat_beginning(self, roles: Sequence[str] = ("user",)) -> None:
        """Self-test of the chat template, without a model: what stands before an answer must be what the template
        renders as its prompt, with new messages of these `roles` after it.

        Raises DataError that shows both texts.
        """
        faults, history = ErrorCollector(DataError), [{"role": "user", "content": "a question"}]
        for role in roles:
            before, _ = self._chat_around_answer(history, [{"role": role, "content": "a reply"}])
            if before != (prompt := self.render_chat(history)):
                faults.add(
                    f"the chat template rewrites the prompt once an answer and a message of {role!r} follow: it "
                    f"renders {before!r} before the answer, and {prompt!r} as the prompt: no dialogue can go on"
                )
        faults.raise_if_any()

    def check_chat_continuation(self, roles: Sequence[str] = ("user",)) -> None:
        """Self-test of the chat template, without a model: a conversation that `continue_chat` appends to must be what
        the template renders as a whole, with new messages of these `roles`.

        Raises DataError that shows both texts for each answer that the template rewrites, and both end tokens where
        answers in history end in another one than the last.
        """
        faults, history = ErrorCollector(DataError), [{"role": "user", "content": "a question"}]
        last = turn_ends(self).last
        end = next((token for token in last if token in self.eos_ids), None)
        for role in roles:
            new = [{"role": role, "content": "a reply"}]
            for answer in _PROBES:
                before, after = self._chat_around_answer(history, new)
                appended = f"{before}{answer}{after.text}"
                whole = self.render_chat([*history, {"role": "assistant", "content": answer}, *new])
                if before != self.render_chat(history) or appended != whole:
                    faults.add(
                        f"the chat template rewrites history: after the answer {answer!r} and a message of {role!r} it "
                        f"renders {whole!r}, and appending gives {appended!r}"
                    )
            if end is not None and not self._ends_as_history(
                np.array([end]), self._chat_around_answer(history, new)[1]
            ):
                faults.add(
                    "the chat template rewrites history: the last answer ends in "
                    f"{self.backend.id_to_token(end)!r}, and one that a message of {role!r} follows does not"
                )
        faults.raise_if_any()

    def _ends_as_history(self, answer: NDArray[np.integer], after: RenderedChat) -> bool:
        """True unless the answer's end token is another than the template writes there, before `after`'s messages."""
        if int(answer[-1]) not in self.eos_ids:
            return True
        written = _written_tokens(self, after)
        return not written or written[0] == int(answer[-1]) or not turn_ends(self).last

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files for transformers to load; those of a loaded one byte for byte."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def check_fits(self, vocab_size: int, *, where: str = "") -> None:
        """Raise DataError, naming the folder `where`, when there are ids that the model has no row for. A larger model
        is fine: give `size` as `vocab_size_used` to engine and outlook, so that the surplus is never drawn."""
        if self.size > vocab_size:
            largest = self.size - 1
            raise DataError(
                f"{where}{': ' if where else ''}the tokenizer's largest id is {largest} "
                f"({self.backend.id_to_token(largest)!r}), but the model knows ids 0 to {vocab_size - 1} (vocab_size "
                f"{vocab_size} in config.json); tokenizer and model do not belong together"
            )

    def _encode(self, text: str, *, plain: bool) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Ids of the text, and the character at which each begins (0 of a long text on a tokenizer for threads)."""
        # The backend leaves only those added tokens as text that it calls special: others are cut in two.
        ordinary = _special_names(self.backend, self.eos_ids).ordinary_pattern if plain else None
        if ordinary is not None and (cut := ordinary.search(text)) is not None:
            border = cut.start() + 1
            first, second = (self._encode(part, plain=plain) for part in (text[:border], text[border:]))
            return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1] + border])
        if self.plain_backend is not None:
            backend = self.plain_backend if plain else self.backend
            if len(text) < _LONG:
                encoding = backend.encode(text, add_special_tokens=False)
            else:  # batches alone are encoded without Python's lock, and the fast ones have no offsets
                encode = backend.encode_batch_fast if self.unknown_id is None else backend.encode_batch
                (encoding,) = encode([text], add_special_tokens=False)
        else:
            with _ENCODING:
                self.backend.encode_special_tokens = plain
                encoding = self.backend.encode(text, add_special_tokens=False)
        ids = np.asarray(encoding.ids, np.int32)
        if self.unknown_id is not None and self.unknown_id in ids:
            spans = [encoding.offsets[i] for i in np.flatnonzero(ids == self.unknown_id)]
            unknown = sorted({text[a:b] for a, b in spans})
            raise DataError(
                f"the tokenizer has no token for {', '.join(map(repr, unknown))} in {_shorten_text(text)!r}; build it "
                "from texts that contain these characters, or use a byte tokenizer"
            )
        return ids, np.array([begin for begin, _ in encoding.offsets], np.int64)

    def _chat_around_answer(self, history: Sequence[Message], new: Sequence[Message]) -> tuple[str, RenderedChat]:
        """Text before an answer to `history`, and the text after it, up to the beginning of the answer to `new`."""
        held = json.dumps([*history, *new], ensure_ascii=False, default=str)
        sentinel = next(mark for mark in map(chr, range(0xE000, 0xF8FF)) if mark not in held)
        whole = self.chat([*history, {"role": "assistant", "content": sentinel}, *new])
        if whole.text.count(sentinel) != 1:
            raise DataError("the chat template does not write an assistant's answer exactly once")
        place = whole.text.index(sentinel)
        return whole.text[:place], whole.after(place + 1)


@lru_cache(maxsize=32)
def _special_names(backend: hf.Tokenizer, eos_ids: tuple[int, ...]) -> SpecialNames:
    """Names that no data may write as tokens: special tokens, and whatever ends a text."""
    added = backend.get_added_tokens_decoder()
    ends = {name: token for token in eos_ids if (name := backend.id_to_token(token)) is not None}
    ordinary = frozenset(name for name, token in ends.items() if token in added and not added[token].special)
    return SpecialNames(frozenset([*(one.content for one in added.values() if one.special), *ends]), ordinary)


@lru_cache(maxsize=32)
def _special_ids(backend: hf.Tokenizer) -> frozenset[int]:
    return frozenset(token for token, one in backend.get_added_tokens_decoder().items() if one.special)


def _written_tokens(tokenizer: Tokenizer, chat: RenderedChat) -> tuple[int, ...]:
    """Special tokens, and those that end texts, which a template wrote; the text around them is not encoded."""
    pattern = _special_names(tokenizer.backend, tokenizer.eos_ids).pattern
    names = [] if pattern is None else [one[0] for one in pattern.finditer(chat.text) if one.span() not in chat.plain]
    return tuple(token for name in names if (token := tokenizer.backend.token_to_id(name)) is not None)


# ---------------------------------------------------------------------------------------------------------- end of turn


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnEnds:
    """Special tokens that a chat template writes behind an assistant's answer, up to the next text."""

    last: tuple[int, ...]
    """Behind the last answer of a conversation."""
    middle: tuple[int, ...]
    """Behind an answer that a user's message follows."""
    headers: frozenset[int]
    """Before a user's text: roles and the beginning of a conversation."""


def turn_ends(tokenizer: Tokenizer) -> _TurnEnds:
    """End tokens of answers, measured by a conversation of three messages. Raises DataError where the template does not
    take it."""
    template, special = tokenizer.chat_template or "", tuple(tokenizer.special.items())
    return _turn_ends(tokenizer.backend, tokenizer.eos_ids, template, special)


_QUESTION, _ANSWER, _REPLY = "\ue0f0", "\ue0f1", "\ue0f2"


@lru_cache(maxsize=64)
def _turn_ends(
    backend: hf.Tokenizer, eos_ids: tuple[int, ...], template: str, special: tuple[tuple[str, str], ...]
) -> _TurnEnds:
    bare = Tokenizer(backend=backend, eos_ids=eos_ids, pad_id=eos_ids[0], chat_template=template, special=dict(special))
    turns = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _REPLY},
    ]
    last = bare.chat(turns[:2], add_generation_prompt=False).text
    whole = bare.chat(turns, add_generation_prompt=False).text
    if last.count(_ANSWER) != 1 or whole.count(_ANSWER) != 1 or _REPLY not in whole:
        raise DataError("the chat template does not write an assistant's answer exactly once")
    behind = whole.partition(_ANSWER)[2].partition(_REPLY)[0]
    return _TurnEnds(
        last=_written_tokens(bare, RenderedChat(text=last.partition(_ANSWER)[2])),
        middle=_written_tokens(bare, RenderedChat(text=behind)),
        headers=frozenset(_written_tokens(bare, RenderedChat(text=whole.partition(_QUESTION)[0]))),
    )


def answer_end(tokenizer: Tokenizer, *, is_chat: bool) -> int:
    """The token that ends an answer: of a conversation the one that the chat template writes, where it ends texts."""
    if not is_chat or tokenizer.chat_template is None:
        return tokenizer.eos_id
    ends = turn_ends(tokenizer)
    written = [*ends.last, *ends.middle[:1]] if not ends.last else ends.last
    return next((token for token in written if token in tokenizer.eos_ids), tokenizer.eos_id)


def with_turn_end(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the token in which its chat template ends turns among those that end texts, also in the files
    that it saves: a model that learnt to write it is stopped by it."""
    if tokenizer.chat_template is None:
        return tokenizer
    try:
        ends = turn_ends(tokenizer)
    except DataError:  # what the template does not take is a fault of rows that need it
        return tokenizer
    stops, added = set(tokenizer.eos_ids), None
    if ends.last and not (stops.intersection(ends.last) and stops.intersection(ends.middle)):
        # What both write before they part: a template may close a block of the answer first.
        both = [one for one, other in zip(ends.last, ends.middle, strict=False) if one == other]
        last = None if stops.intersection(ends.last) else ends.last[-1]
        added = both[-1] if both and ends.last[: len(both)] == ends.middle[: len(both)] else last
    elif not ends.last and ends.middle and not stops.intersection(ends.middle):
        added = None if ends.middle[0] in ends.headers else ends.middle[0]
    if added is None or added in stops:
        return tokenizer
    eos_ids, files = (*tokenizer.eos_ids, added), dict(tokenizer.files)
    if files:  # whoever serves the trained model stops there, too
        stated = cast(Json, json.loads(files.get("generation_config.json", b"{}")))
        files["generation_config.json"] = _json_bytes({**stated, "eos_token_id": list(eos_ids)})
    return replace(tokenizer, eos_ids=eos_ids, added_stop=added, files=files)


def character_tokenizer(
    texts: Iterable[str], *, chat_template: str | None = None, chat_tokens: Sequence[str] = ()
) -> Tokenizer:
    """One token for each character that occurs in `texts` (an alphabet is one text), after `<pad>`, `<eos>`, `<unk>`;
    then the special tokens `chat_tokens`.

    Raises DataError when there is no character.
    """
    alphabet = sorted({character for text in texts for character in text})
    if not alphabet:
        raise DataError("a character tokenizer needs at least one character; the texts are empty")
    vocab = {token: number for number, token in enumerate((PAD, EOS, UNKNOWN, *alphabet))}
    backend = hf.Tokenizer(hf.models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(r"[\s\S]"), "isolated")
    backend.decoder = hf.decoders.Fuse()
    return _built(backend, (PAD, EOS, UNKNOWN), chat_template, chat_tokens)


def byte_tokenizer(*, chat_template: str | None = None, chat_tokens: Sequence[str] = ()) -> Tokenizer:
    """One token for each of the 256 bytes, after `<pad>` and `<eos>`, so that every text has an encoding; then the
    special tokens `chat_tokens`."""
    alphabet = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate((PAD, EOS, *alphabet))}
    backend = hf.Tokenizer(hf.models.BPE(vocab, []))
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = hf.decoders.ByteLevel()
    return _built(backend, (PAD, EOS), chat_template, chat_tokens)


def _built(
    backend: hf.Tokenizer, specials: tuple[str, ...], chat_template: str | None, chat_tokens: Sequence[str]
) -> Tokenizer:
    tokens = [hf.AddedToken(token, special=True, normalized=False) for token in (*specials, *chat_tokens)]
    backend.add_special_tokens(tokens)
    special: dict[str, str] = dict(zip(("pad_token", "eos_token", "unk_token"), specials, strict=False))
    config: Json = {"clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast", **special}
    ids = {"eos_token_id": specials.index(EOS), "pad_token_id": specials.index(PAD)}
    files = {
        "generation_config.json": _json_bytes(ids),
        "tokenizer.json": backend.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json_bytes(config),
    }
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template.encode()
    return Tokenizer(
        backend=backend,
        eos_ids=(specials.index(EOS),),
        pad_id=specials.index(PAD),
        unknown_id=specials.index(UNKNOWN) if UNKNOWN in specials else None,
        chat_template=chat_template,
        special=special,
        files=files,
    )


def _json_bytes(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Files of a folder for its tokenizer and for generation: name -> content; of a GGUF file those that it stands
    for. Raises DataError for a tokenizer there that hone does not know."""
    if folder.suffix == ".gguf" and folder.is_file():
        from hone.models.language.gguf_file import read_gguf  # noqa: PLC0415 - torch
        from hone.models.language.gguf_tokenizer import tokenizer_files_of  # noqa: PLC0415

        return tokenizer_files_of(read_gguf(folder).fields, str(folder))
    names = [name for name in _FILES if (folder / name).is_file()]
    return {name: (folder / name).read_bytes() for name in names}


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or a GGUF file. Raises DataError, with every fault, naming the file."""
    folder = Path(folder)
    faults = ErrorCollector(DataError)
    files = tokenizer_files(folder)
    file = folder / "tokenizer.json"
    if file.name not in files:
        faults.add(
            f"{file} does not exist; hone reads the fast tokenizer format. AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...) of transformers writes it from the older files"
        )
        faults.raise_if_any()
    try:
        backend = hf.Tokenizer.from_str(files[file.name].decode())
    except Exception as error:  # tokenizers raises bare Exception for a damaged file
        raise DataError(f"{file} is not a tokenizer that can be read: {error}") from error
    backend.no_truncation()  # a length limit in the file would cut texts in silence
    backend.no_padding()
    special = {
        name: text
        for name, value in _json_of(files, folder / "tokenizer_config.json").items()
        if name.endswith("_token") and (text := _token_text(value)) is not None
    }
    generation = _json_of(files, folder / "generation_config.json").get("eos_token_id")
    config = read_json(folder / "config.json", required=False).get("eos_token_id")
    eos = special.get("eos_token")
    ends = [None if eos is None else backend.token_to_id(eos), *_listed(generation)]
    eos_ids = tuple(dict.fromkeys(token for token in ends if isinstance(token, int)))
    faults.extend(_end_faults(folder, backend, eos, {"generation_config.json": generation, "config.json": config}))
    if not eos_ids and not faults.messages:
        faults.add(
            f"{folder}: no end-of-text token; name one as eos_token in tokenizer_config.json (it is {eos!r} now)"
        )
    faults.raise_if_any()
    template = _json_of(files, folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = [cast(Json, entry) for entry in cast("list[object]", template) if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if "chat_template.jinja" in files:
        template = files["chat_template.jinja"].decode()
    pad = backend.token_to_id(special["pad_token"]) if "pad_token" in special else None
    unknown = backend.token_to_id(special["unk_token"]) if "unk_token" in special else None
    tokenizer = Tokenizer(
        backend=backend,
        eos_ids=eos_ids,
        pad_id=eos_ids[0] if pad is None else pad,
        unknown_id=unknown,
        chat_template=template if isinstance(template, str) else None,
        special=special,
        files=files,
    )
    if tokenizer.chat_template is None:
        return tokenizer
    return with_turn_end(tokenizer)


def _json_of(files: Mapping[str, bytes], file: Path) -> Json:
    """The JSON object that a tokenizer's file is; empty where it is not among `files`."""
    return json_object(files[file.name], file) if file.name in files else {}


def read_json(file: Path, *, required: bool = True) -> Json:
    """A JSON object. Raises DataError naming the file when it is damaged, or missing though `required`."""
    if not file.is_file():
        if required:
            raise DataError(f"{file} does not exist")
        return {}
    return json_object(file.read_bytes(), file)


def json_object(content: bytes, file: Path) -> Json:
    """The object that `content` of a file holds. Raises DataError naming the file when it is damaged."""
    try:
        result: object = strict_json(content)
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}") from error
    if not isinstance(result, dict):
        raise DataError(f"{file} must hold a JSON object, found {type(result).__name__}")
    return cast(Json, result)


def _token_text(value: object) -> str | None:
    """A special token is written as text or as an object with `content`."""
    if isinstance(value, dict):
        value = cast(Json, value).get("content")
    return value if isinstance(value, str) else None


def _listed(generation: object) -> list[object]:
    return cast("list[object]", generation) if isinstance(generation, list) else [generation]


def _end_faults(folder: Path, backend: hf.Tokenizer, eos: str | None, stated: Mapping[str, object]) -> Iterator[str]:
    """Ends of text that no token has, as files of the folder name them: generation would never stop there."""
    if eos is not None and backend.token_to_id(eos) is None:
        yield f"{folder / 'tokenizer_config.json'}: eos_token {eos!r} is not a token of tokenizer.json"
    for name, value in stated.items():
        for token in _listed(value):
            is_known = token is None
            if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**32:
                is_known = backend.id_to_token(token) is not None
            if is_known:
                continue
            yield f"{folder / name}: eos_token_id {token!r} is not the id of a token of tokenizer.json"


# ----------------------------------------------------------------------------------------------------------- vocabulary


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """sha256 of all tokens with their ids: equal for tokenizers whose tokens mean the same."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    return sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()
