"""Opening of a token scorer: from a folder with a scalar head, from a policy, or a new network."""

from pathlib import Path

import torch

from hone.core.errors import ConfigError, DataError
from hone.models.language.lora import new_adapter
from hone.models.language.scalar_head import (
    ScalarHeadModel,
    ScoredTokens,
    TokenScorer,
    load_scalar_head,
    new_scalar_head,
    scored_tokens,
)
from hone.models.language.tokenizers import Tokenizer, load_tokenizer
from hone.run.saved_config import policy_folder
from hone.text.evaluate.open_policy import ModelSource, open_policy, set_arithmetic


def open_scorer(
    source: ModelSource, *, reads: ScoredTokens, seed: int, device: str, tokenizer: Tokenizer | None = None
) -> TokenScorer:
    """Load a scorer's folder, or put a new head on a policy or on a new network.

    With `source.lora` the head is trained in full and the decoder by an adapter, which is saved merged.
    A head for other tokens than `reads` is kept: a reward model of answers is a good start for one of steps.
    Raises DataError naming the folder and the problem; ConfigError for `exactness = "bitwise"`, which is a policy's.
    """
    if source.exactness == "bitwise":
        raise ConfigError('model.exactness = "bitwise" is for policies whose answers are sampled; remove it')
    folder = None if source.path is None else policy_folder(Path(source.path))
    if folder is None or scored_tokens(folder) is None:
        policy = open_policy(source, seed=seed, device=device, temperature=1.0, tokenizer=tokenizer)
        policy.decoder.head = None
        model = new_scalar_head(policy.decoder, seed=seed, reads=reads).to(device)
        return TokenScorer(model, policy.tokenizer, adapter=policy.adapter)
    model = load_scalar_head(
        folder, device=device, dtype=source.weights, checkpoint_activations=source.activation_checkpointing
    )
    model.train()
    tokenizer = tokenizer or load_tokenizer(folder)
    tokenizer.check_fits(model.decoder.config.vocab_size, where=str(folder))
    set_arithmetic(model.decoder, source, device)
    adapter = None if source.lora is None else new_adapter(model.decoder, source.lora, folder, seed=seed)
    return TokenScorer(_with_head_for(model, reads), tokenizer, adapter=adapter)


def load_scorer(folder: Path | str, *, device: str = "cpu", dtype: str = "float32") -> TokenScorer:
    """The scorer of a folder with a scalar head and its tokenizer. Raises DataError."""
    place = policy_folder(Path(folder))
    model = load_scalar_head(place, device=device, dtype=dtype)
    tokenizer = load_tokenizer(place)
    tokenizer.check_fits(model.decoder.config.vocab_size, where=str(place))
    return TokenScorer(model, tokenizer)


def _with_head_for(model: ScalarHeadModel, reads: ScoredTokens) -> ScalarHeadModel:
    """The same network with a head for the tokens `reads`: of steps with a bias, 0 at first, of answers without.

    Raises DataError where a bias would be lost.
    """
    if model.reads == reads:
        return model
    if model.score.bias is not None and float(model.score.bias.abs().max()) > 0:
        raise DataError(
            "a head of steps has a bias, which a sequence classifier of transformers has not: its scores would shift; "
            "start from the policy, or from a reward model of answers"
        )
    changed = ScalarHeadModel(model.decoder, reads).to(model.score.weight.device)
    with torch.no_grad():
        changed.score.weight.copy_(model.score.weight)
    return changed
