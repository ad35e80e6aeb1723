"""A scalar head: one number from the last hidden state of a decoder, the form of reward models and critics.

Folders are those of transformers' `AutoModelForSequenceClassification` with `num_labels = 1`: the tensor `score.weight`
and no output projection. transformers scores the last token that is not `pad_token_id`, so that a sequence that ends in
that token gets the score of an earlier one there; here the caller names the positions, and padding does not exist.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.core.errors import DataError
from hone.core.random import generator
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder, LinearProjection
from hone.models.language.hf_checkpoint import SCALAR_HEAD, load_pieces, read_config, save_pieces
from hone.models.language.token_logprobs import at_least_float32
from hone.models.language.weight_names import CheckpointPiece, checkpoint_pieces
from hone.models.packing import PackedBatch, pack_rows

_LABEL: Final = "LABEL_0"


class ScalarHeadModel(nn.Module):
    """v(tokens) = score.weight @ h, for the last hidden state h after the tokens."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.score = LinearProjection(decoder.config.hidden_size, 1, bias=False, dtype=decoder.dtype)

    def scores(self, packed: PackedBatch, at: Tensor) -> Tensor:
        """`[n]` float32 (float64 for a float64 model), differentiable: the numbers at positions `at` `[n]`.

        A reward model reads the last token of each sequence; a critic the tokens before each decision.
        """
        hidden = at_least_float32(self.decoder.hidden(packed)[at])
        return hidden @ self.score.weight[0].to(hidden.dtype)

    @torch.no_grad()
    def score_sequences(
        self, sequences: Sequence[NDArray[np.int32]], *, micro_batch_tokens: int
    ) -> NDArray[np.float64]:
        """`[n]` the number at the last token of each sequence, with at most `micro_batch_tokens` tokens in a pass (a
        longer sequence is a pass of its own)."""
        device = self.score.weight.device
        found = [torch.zeros(0, dtype=torch.float64)]
        for batch in _batches(sequences, micro_batch_tokens):
            packed = pack_rows(batch, device=str(device))
            found.append(self.scores(packed, torch.from_numpy(packed.offsets[1:] - 1).to(device)).double().cpu())
        return torch.cat(found).numpy()

    def save(self, folder: Path, *, pad_id: int | None = None) -> None:
        """Write weights and `config.json`. `pad_id` becomes `pad_token_id` where the config has none: without one,
        transformers scores one sequence at a time only."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self.decoder.config.to_hf("SequenceClassification")
        config |= {"id2label": {"0": _LABEL}, "label2id": {_LABEL: 0}, "num_labels": 1}
        if config.get("pad_token_id") is None:
            config["pad_token_id"] = pad_id
        save_pieces(_parameters(self), _pieces(self.decoder.config), config, folder)


def new_scalar_head(decoder: Decoder, *, seed: int) -> ScalarHeadModel:
    """A head over `decoder`, normal with std (hidden_size + 1)^-1/2 (Stiennon et al., 2020)."""
    model = ScalarHeadModel(decoder)
    draws = generator(seed, "init", SCALAR_HEAD).standard_normal(decoder.config.hidden_size, dtype=np.float32)
    with torch.no_grad():
        model.score.weight.copy_(torch.from_numpy(draws / np.float32(np.sqrt(decoder.config.hidden_size + 1))))
    return model


def load_scalar_head(folder: Path | str, *, device: str = "cpu", dtype: str = "float32") -> ScalarHeadModel:
    """The model of a folder with a scalar head. Raises DataError as `load_model`, and for another number of labels."""
    config = read_config(folder)
    labels = config.extra.get("id2label")
    if isinstance(labels, dict) and len(labels) != 1:
        raise DataError(f"{folder}: a classifier of {len(labels)} labels; a scalar head has one (num_labels = 1)")
    decoder = Decoder(config, dtype=dtype)
    decoder.head = None
    model = ScalarHeadModel(decoder)
    load_pieces(_parameters(model), _pieces(config), config, folder)
    return model.to(device).eval()


def _pieces(config: ModelConfig) -> Iterator[CheckpointPiece]:
    """Every tensor of a folder: the decoder's without the output projection, and the head."""
    yield from (piece for piece in checkpoint_pieces(config) if piece.parameter_name != "head.weight")
    yield CheckpointPiece(checkpoint_name=SCALAR_HEAD, parameter_name=SCALAR_HEAD, start=0, rows=1)


def _parameters(model: ScalarHeadModel) -> dict[str, nn.Parameter]:
    return {**dict(model.decoder.named_parameters()), SCALAR_HEAD: model.score.weight}


def _batches(sequences: Sequence[NDArray[np.int32]], budget: int) -> Iterator[list[NDArray[np.int32]]]:
    """Sequences in their order, cut where the next one would exceed the budget."""
    batch: list[NDArray[np.int32]] = []
    for sequence in sequences:
        if batch and sum(map(len, batch)) + len(sequence) > budget:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch
