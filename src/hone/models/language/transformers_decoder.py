"""Models that hone's decoder does not know, computed by transformers' own module.

The same parameters are trained, adapted and sampled from; every text of a batch is computed whole, padded to the
longest, and a shared prompt once for each of its answers. Results are those of transformers, and differ between two
batches by the order of sums: about 1e-5 nats in float32.
"""

from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder, LinearFn, RoutingRecord, torch_dtype
from hone.models.language.decoder_layer import CompiledLayerHalves
from hone.models.language.packed_attention import LayerAttention
from hone.models.language.quantised_linear import BITS
from hone.models.language.token_logprobs import at_least_float32
from hone.models.language.weight_names import CheckpointPiece
from hone.models.packing import PackedBatch, index_numbers, packed_text_slots

_PREFIX: Final = "module."
_HEAD_TOLERANCE: Final = 1e-3
"""Largest difference of logits, as a part of their spread, between the module's and those of hone's head."""


class TransformersDecoder(Decoder):
    """A decoder around a causal language model of transformers; without weights until `load_folder`."""

    def build(self, dtype: torch.dtype) -> None:
        # Imported here: transformers takes seconds, which every command would wait for.
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
        from transformers.models.auto.modeling_auto import AutoModelForCausalLM  # noqa: PLC0415

        self.layers = nn.ModuleList()
        self.frequencies = nn.Buffer(torch.zeros(1, 1), persistent=False)
        keys = dict(self.config.extra)
        with torch.device("meta"):
            own = CONFIG_MAPPING[str(keys["model_type"])].from_dict(keys)
            self.module: nn.Module = AutoModelForCausalLM.from_config(own, dtype=dtype)

    def load_folder(self, folder: Path) -> None:
        """Read the weights of a folder; in place where there are some. Raises DataError for a damaged one."""
        from transformers.models.auto.modeling_auto import AutoModelForCausalLM  # noqa: PLC0415

        try:
            module, report = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
                folder, dtype=self.dtype, output_loading_info=True, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
            raise DataError(f"{folder}: transformers cannot load this model: {error}") from error
        if missing := sorted(report["missing_keys"]):
            raise DataError(f"{folder}: tensors are missing: {', '.join(missing[:5])}; fetch it again")
        if any(parameter.is_meta for parameter in self.module.parameters()):
            self.module = module.eval()
            self._check_head(folder)
        else:
            self.module.load_state_dict(module.state_dict())
        if self.checkpoint_activations:
            self.module.gradient_checkpointing_enable()  # type: ignore[operator]
            self.module.train()  # transformers computes layers again in training only

    def save_folder(self, folder: Path) -> None:
        """Write weights and `config.json` as transformers does."""
        self.module.save_pretrained(folder)  # type: ignore[operator]

    @torch.no_grad()
    def _check_head(self, folder: Path) -> None:
        """Raise DataError where the logits are more than hidden states times the output layer, a factor and a cap."""
        tokens = torch.arange(8)[None] % self.config.vocab_size
        expected = at_least_float32(self.module(input_ids=tokens).logits)
        error = (self.logits(self._texts(tokens, torch.ones_like(tokens))) - expected).abs().max()
        if not error <= _HEAD_TOLERANCE * expected.std():
            raise DataError(
                f"{folder}: logits of model_type {self.config.extra['model_type']!r} are not its hidden states times "
                f"its output layer (they differ by {float(error):.2g}): hone cannot compute its log-probabilities"
            )

    @property
    def output_weight(self) -> Tensor:
        return self.module.get_output_embeddings().weight  # type: ignore[operator]

    def _output_weight(self, dtype: torch.dtype) -> Tensor:
        del dtype  # it has no codes
        return self.output_weight

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def use_bitwise_arithmetic(self) -> None:
        raise DataError('model.exactness = "bitwise" needs a model that hone computes, not transformers')

    def run(
        self, tokens: Tensor, positions: Tensor, attend: LayerAttention, linear: LinearFn = functional.linear,
        kind: torch.dtype | None = None, halves: CompiledLayerHalves | None = None,
        routing: RoutingRecord | None = None
    ) -> Tensor:  # fmt: skip
        """`[T, hidden_size]` for whole texts one after another: each begins at position 0. Attention and products are
        the module's own."""
        del attend, linear, kind, halves, routing
        starts = np.flatnonzero(positions.cpu().numpy() == 0)
        offsets = np.append(starts, len(tokens)).astype(np.int64)
        return self._hidden(PackedBatch(tokens=tokens, positions=positions, offsets=offsets), None)

    def _hidden(self, packed: PackedBatch, routing: RoutingRecord | None) -> Tensor:
        del routing
        sequence, slots = packed_text_slots(packed)
        positions = index_numbers(packed.positions)
        lengths = np.zeros(len(slots), np.int64)
        np.maximum.at(lengths, sequence, positions + 1)
        there = torch.from_numpy(np.arange(slots.shape[1]) < lengths[:, None]).to(self.device)
        states = self._texts(packed.tokens[torch.from_numpy(slots).to(self.device)], there.long())
        return states[torch.from_numpy(sequence).to(self.device), packed.positions]

    def _texts(self, tokens: Tensor, there: Tensor) -> Tensor:
        """`[B, L, hidden_size]` last states of texts `[B, L]`, padded at their ends where `there` is 0."""
        low = self.is_mixed_precision
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            result = self.module.base_model(input_ids=tokens, attention_mask=there, use_cache=False)  # type: ignore[operator]
        return result.last_hidden_state.to(self.dtype) if low else result.last_hidden_state

    def pieces(self) -> list[CheckpointPiece]:
        """Every tensor, by its name in transformers."""
        return [
            CheckpointPiece(
                checkpoint_name=name.removeprefix(_PREFIX),
                parameter_name=name,
                start=0,
                rows=parameter.shape[0] if parameter.ndim else 1,
            )
            for name, parameter in self.named_parameters()
        ]


def make_decoder(
    config: ModelConfig, *, dtype: str = "float32", checkpoint_activations: bool = False
) -> Decoder:  # fmt: skip
    """A decoder of hone's, or, for a model that it does not know, transformers' module. Raises DataError for a dtype
    that is not supported."""
    if dtype not in BITS:
        torch_dtype(dtype)
    elif config.by_texts:
        raise DataError(
            f'model.weights = "{dtype}": {config.family} runs through transformers, whose weights cannot be kept in '
            "codes; leave model.weights out"
        )
    kind = TransformersDecoder if config.by_texts else Decoder
    return kind(config, dtype=dtype, checkpoint_activations=checkpoint_activations)
