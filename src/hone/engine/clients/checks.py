"""Validation of requests to a server, before any is sent."""

from collections.abc import Iterable

from hone.core.errors import ConfigError, ErrorCollector
from hone.core.generation import SamplingParams, ScoreRequest
from hone.engine.clients.wire import FEATURE_DESCRIPTIONS, ServerFeatures


def check_sampling_supported(samplings: Iterable[SamplingParams], abilities: ServerFeatures) -> None:
    """Raise ConfigError with every setting under which the server could not report the policy's log-probabilities."""
    faults = ErrorCollector(ConfigError)
    for sampling in dict.fromkeys(samplings):
        if sampling.top_logprobs:
            faults.add(f"{abilities.server}: hone's clients ask for no top_logprobs, got {sampling.top_logprobs}")
        if sampling.truncates:
            faults.add(
                f"{abilities.server} does not support top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = "
                f"{sampling.min_p}: it reports one log-probability, and truncated sampling needs two (the policy's and "
                "the truncated one); leave these keys out, or use the embedded engine"
            )
        if sampling.temperature == 1:
            continue
        if sampling.greedy:
            faults.add(
                f"{abilities.server} reports greedy answers at temperature 1, not {sampling.temperature}; leave the "
                "temperature out"
            )
        elif "temperature" not in abilities.supported:
            faults.add(
                f"temperature = {sampling.temperature}: {abilities.missing(['temperature'])[0]}; start it with flags "
                "under which it does (docs/howto/servers.md)"
            )
    faults.raise_if_any()


def check_scoring_supported(texts: Iterable[ScoreRequest], abilities: ServerFeatures) -> None:
    """Raise ConfigError with all unsupported settings of scoring."""
    faults = ErrorCollector(ConfigError)
    if "score" not in abilities.supported:
        faults.extend(abilities.missing(["score"]))
    for sampling in dict.fromkeys(text.sampling for text in texts):
        if sampling.temperature != 1 or sampling.truncates or sampling.greedy:
            faults.add(
                f"{abilities.server} scores given tokens at temperature 1 and untruncated, not with temperature = "
                f"{sampling.temperature}, top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = "
                f"{sampling.min_p}, greedy = {str(sampling.greedy).lower()}"
            )
    faults.raise_if_any()


def missing_features(abilities: ServerFeatures) -> list[str]:
    """Describe each missing feature of the server in a sentence."""
    return abilities.missing(FEATURE_DESCRIPTIONS)
