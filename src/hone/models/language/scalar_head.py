"""A scalar head: one number from a decoder's last hidden state, the form of reward models, verifiers of steps and
critics.

A policy is asked at the position before a token, a scalar head at the token itself: its number judges everything up to
and with that token. Folders are those of transformers with `num_labels = 1`, without an output projection:

* `reads = "last"`: `AutoModelForSequenceClassification`, the tensor `score.weight`. transformers scores the last token
  that is not `pad_token_id`: a sequence that ends in that token gets the score of an earlier one there; here the
  caller names the positions, and padding does not exist.
* `reads = "steps"`: `AutoModelForTokenClassification`, the tensors `score.weight` and `score.bias`: a number at every
  token, of which those at the ends of steps are meant.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.random import generator
from hone.models.language.decoder import Decoder, LinearProjection
from hone.models.language.families import FAMILIES
from hone.models.language.hf_checkpoint import (
    SCALAR_HEAD,
    config_json,
    load_pieces,
    model_folder,
    read_config,
    save_pieces,
)
from hone.models.language.lora import LoraAdapter
from hone.models.language.token_logprobs import at_least_float32
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer, read_json
from hone.models.language.weight_names import CheckpointPiece, checkpoint_pieces
from hone.models.packing import PackedBatch, pack_rows

ScoredTokens: TypeAlias = Literal["last", "steps"]
"""Tokens whose numbers are meant: the last of a sequence, or the last of each step."""
ARCHITECTURES: Final[dict[ScoredTokens, Literal["SequenceClassification", "TokenClassification"]]] = {
    "last": "SequenceClassification",
    "steps": "TokenClassification",
}
_BIAS: Final = "score.bias"
_DEFAULT_LABELS: Final = 2
"""Labels of a classifier whose `config.json` names none, in transformers."""
_LABEL: Final = "LABEL_0"


class ScalarHeadModel(nn.Module):
    """v(tokens) = score.weight @ h (+ score.bias), for the last hidden state h after the tokens."""

    def __init__(self, decoder: Decoder, reads: ScoredTokens = "last") -> None:
        """Raises DataError for a decoder that transformers computes."""
        super().__init__()
        if decoder.config.by_texts:
            raise DataError(
                f"a scalar head has no place on {decoder.config.uncompiled}: give a model of {', '.join(FAMILIES)}"
            )
        self.decoder = decoder
        self.reads: ScoredTokens = reads
        self.score = LinearProjection(decoder.config.hidden_size, 1, bias=reads == "steps", dtype=decoder.dtype)

    def scores(self, packed: PackedBatch, at: Tensor) -> Tensor:
        """`[n]` float32 (float64 for a float64 model), differentiable: the numbers at positions `at` `[n]`.

        A reward model reads the last token of each sequence or step; a critic the tokens before each decision.
        """
        hidden = at_least_float32(self.decoder.hidden(packed)[at])
        values = hidden @ self.score.weight[0].to(hidden.dtype)
        return values if self.score.bias is None else values + self.score.bias.to(hidden.dtype)

    def score_sequences(
        self, sequences: Sequence[NDArray[np.int32]], *, micro_batch_tokens: int
    ) -> NDArray[np.float64]:
        """`[n]` the number at the last token of each sequence, with at most `micro_batch_tokens` tokens in a pass (a
        longer sequence is a pass of its own)."""
        ends = [np.array([len(sequence) - 1], np.int64) for sequence in sequences]
        return self.score_tokens(sequences, ends, micro_batch_tokens=micro_batch_tokens)

    @torch.no_grad()
    def score_tokens(
        self, sequences: Sequence[NDArray[np.int32]], at: Sequence[Ints], *, micro_batch_tokens: int
    ) -> NDArray[np.float64]:
        """`[n]` the numbers at positions `at` of each sequence, one sequence's after another's; passes as in
        `score_sequences`."""
        device = self.score.weight.device
        scores = [torch.zeros(0, dtype=torch.float64)]
        for batch in _batches(sequences, micro_batch_tokens):
            packed = pack_rows([sequences[place] for place in batch], device=str(device))
            starts = packed.offsets[:-1].tolist()
            places = np.concatenate([start + at[place] for start, place in zip(starts, batch, strict=True)])
            if len(places):
                scores.append(self.scores(packed, torch.from_numpy(places).to(device)).double().cpu())
        return torch.cat(scores).numpy()

    def save(self, folder: Path, *, pad_id: int | None = None) -> None:
        """Write weights and `config.json`. `pad_id` becomes `pad_token_id` where the config has none: without one,
        transformers scores one sequence at a time only."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self.decoder.config.to_hf(ARCHITECTURES[self.reads])
        config |= {"id2label": {"0": _LABEL}, "label2id": {_LABEL: 0}, "num_labels": 1}
        if config.get("pad_token_id") is None:
            config["pad_token_id"] = pad_id
        save_pieces(_parameters(self), _pieces(self), config, folder)

    def load(self, folder: Path) -> None:
        """Load, in place, the weights of a folder that `save` wrote. Raises DataError when they do not fit."""
        load_pieces(_parameters(self), _pieces(self), self.decoder.config, folder)


def new_scalar_head(decoder: Decoder, *, seed: int, reads: ScoredTokens = "last") -> ScalarHeadModel:
    """A head over `decoder`, normal with std (hidden_size + 1)^-1/2 (Stiennon et al., 2020); a bias starts at 0."""
    model = ScalarHeadModel(decoder, reads)
    draws = generator(seed, "init", SCALAR_HEAD).standard_normal(decoder.config.hidden_size, dtype=np.float32)
    with torch.no_grad():
        model.score.weight.copy_(torch.from_numpy(draws / np.float32(np.sqrt(decoder.config.hidden_size + 1))))
    return model


def load_scalar_head(
    folder: Path | str, *, device: str = "cpu", dtype: str = "float32", checkpoint_activations: bool = False
) -> ScalarHeadModel:
    """The model of a folder with a scalar head. Raises DataError as `load_model`, and for another number of labels."""
    config = read_config(folder)
    if config.by_texts:
        raise DataError(f"{folder}: a scalar head has no place on {config.uncompiled}")
    reads, labels = scored_tokens(folder), config.extra.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.extra.get("num_labels", _DEFAULT_LABELS)
    if count != 1 and (isinstance(labels, dict) or reads is not None):
        raise DataError(f"{folder}: a classifier of {count} labels; a scalar head has one (num_labels = 1)")
    decoder = Decoder(config, dtype=dtype, checkpoint_activations=checkpoint_activations)
    decoder.head = None
    model = ScalarHeadModel(decoder, reads or "last")
    model.load(Path(folder))
    return model.to(device).eval()


def scored_tokens(folder: Path | str) -> ScoredTokens | None:
    """Which tokens the scalar head of a folder is meant for, by its `config.json`; None for a folder without a head,
    and for an adapter of a policy.

    Raises DataError for a folder without a readable config.
    """
    architectures = config_json(model_folder(folder)).get("architectures")
    names = architectures if isinstance(architectures, list) else []
    for reads, kind in ARCHITECTURES.items():
        if any(str(name).endswith(f"For{kind}") for name in names):
            return reads
    return None


def _pieces(model: ScalarHeadModel) -> Iterator[CheckpointPiece]:
    """Every tensor of a folder: the decoder's without the output projection, and the head's."""
    yield from (piece for piece in checkpoint_pieces(model.decoder.config) if piece.parameter_name != "head.weight")
    for name in (SCALAR_HEAD,) if model.score.bias is None else (SCALAR_HEAD, _BIAS):
        yield CheckpointPiece(checkpoint_name=name, parameter_name=name, start=0, rows=1)


def _parameters(model: ScalarHeadModel) -> dict[str, nn.Parameter]:
    tensors = {**dict(model.decoder.named_parameters()), SCALAR_HEAD: model.score.weight}
    return tensors if model.score.bias is None else {**tensors, _BIAS: model.score.bias}


def _batches(sequences: Sequence[NDArray[np.int32]], budget: int) -> Iterator[list[int]]:
    """Places of sequences in their order, cut where the next one would exceed the budget."""
    batch: list[int] = []
    filled = 0
    for place, sequence in enumerate(sequences):
        if batch and filled + len(sequence) > budget:
            yield batch
            batch, filled = [], 0
        batch.append(place)
        filled += len(sequence)
    if batch:
        yield batch


# -------------------------------------------------------------------------------------------------------- value network
# A value network: the critic of a token policy, a decoder of its own with a linear head.
#
# It is asked at the position before each decision, as the policy is: the value of what was written so far.


class ValueNetwork(nn.Module):
    """head @ h + bias of the last hidden state h: one number for each decision, or logits of the bins of its value.

    The head begins at 0: a new critic predicts the same value everywhere, which adds no noise to an advantage.
    """

    def __init__(self, decoder: Decoder, *, outputs: int) -> None:
        super().__init__()
        decoder.head = None
        self.decoder = decoder
        with decoder.device:
            self.head = LinearProjection(decoder.config.hidden_size, outputs, bias=True, dtype=decoder.dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def outputs(self, packed: PackedBatch, at: Tensor) -> Tensor:
        """`[n, outputs]` float32 (float64 for a float64 network), differentiable, at positions `at` `[n]`."""
        hidden = at_least_float32(self.decoder.hidden(packed)[at])
        assert self.head.bias is not None
        return hidden @ self.head.weight.to(hidden.dtype).T + self.head.bias.to(hidden.dtype)

    @torch.no_grad()
    def take_head(self, model: ScalarHeadModel) -> None:
        """Begin with the head of a scalar-head model, which has one output."""
        assert self.head.bias is not None
        self.head.weight.copy_(model.score.weight)
        if model.score.bias is not None:
            self.head.bias.copy_(model.score.bias)


# --------------------------------------------------------------------------------------------------------- token scorer
# A token scorer: a scalar-head model and the tokenizer it reads with, as one thing that is trained, saved and shipped.
#
# It is to a reward model, a verifier of steps or a critic what `TokenPolicy` is to a policy.


SCORE_RANGE_FILE: Final = "score_range.json"
"""File of a scorer's folder beside those of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """Scores that a scorer gives to answers that it was trained on: beyond them nobody knows what they mean."""

    mean: float
    std: float
    n: int


class TokenScorer(nn.Module):
    """v(tokens up to and with one) -> a number."""

    def __init__(
        self,
        model: ScalarHeadModel,
        tokenizer: Tokenizer,
        score_range: ScoreRange | None = None,
        *,
        adapter: LoraAdapter | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.score_range = score_range
        """Scores of training answers, saved with the weights; None: unknown."""
        self.adapter = adapter
        """The adapter that is trained, beside the head, in place of the decoder's weights, which hold it merged."""

    @property
    def decoder(self) -> Decoder:
        """The network below the head."""
        return self.model.decoder

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of the head by name."""
        return dict(self.model.score.named_parameters(prefix="score"))

    def scores(self, packed: PackedBatch, at: Tensor) -> Tensor:
        """`[n]` the numbers at positions `at` `[n]`, differentiable."""
        return self.model.scores(packed, at)

    def fingerprint(self) -> str:
        """sha256 of all weights."""
        digest = sha256()
        for parameter in self.parameters():
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights, config, tokenizer.

        A padding token that also ends texts is not written: transformers would score the token before it.
        """
        tokenizer = self.tokenizer
        self.model.save(folder, pad_id=None if tokenizer.pad_id in tokenizer.eos_ids else tokenizer.pad_id)
        tokenizer.save(folder)
        if self.score_range is not None:
            text = json.dumps(asdict(self.score_range), indent=2) + "\n"
            (folder / SCORE_RANGE_FILE).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Load, in place, the weights of a folder that `save` wrote. Raises DataError when they do not fit."""
        self.model.load(folder)


def read_score_range(folder: Path) -> ScoreRange | None:
    """Scores of a scorer's training answers; None for a folder that does not say. Raises DataError for a damaged
    file."""
    if not (folder / SCORE_RANGE_FILE).is_file():
        return None
    content = read_json(folder / SCORE_RANGE_FILE)
    mean, std, count = (content.get(name) for name in ("mean", "std", "n"))
    if not (isinstance(mean, int | float) and isinstance(std, int | float) and isinstance(count, int)):
        raise DataError(f"{folder / SCORE_RANGE_FILE}: expected the numbers mean, std and n; got {content}")
    return ScoreRange(mean=float(mean), std=float(std), n=count)


LanguageNetwork: TypeAlias = TokenPolicy | TokenScorer
"""A decoder with a head and its tokenizer: what runs on text train, save and ship."""
