"""What the command line needs to know of `run.ranks`: faults before the start, the placement, the build."""

from collections.abc import Callable, Mapping
from typing import Any

from hone.core.config import Config
from hone.core.errors import ConfigError, ErrorCollector
from hone.parallel.config import ClusterConfig
from hone.planner.run_settings import step_rows
from hone.run.job import RecipeSpec, RunConfig, TrainingJob


def _is_ranked(config: RunConfig) -> bool:
    """True if the learner is spread over ranks, or computes as virtual ranks."""
    return config.run.ranks > 1 or config.run.virtual_ranks > 0


def require_ranks_fit(config: RunConfig) -> None:
    """Raise ConfigError for a recipe whose learner ranks cannot share, and for more ranks than rows."""
    _require_placement(config)
    if not _is_ranked(config):
        return
    from hone.learner.config import OptimizerConfig  # noqa: PLC0415 - torch: not needed without ranks

    run = config.run
    key = f"run.ranks = {run.ranks}" if run.ranks > 1 else f"run.virtual_ranks = {run.virtual_ranks}"
    if not (isinstance(dict(config).get("learner"), OptimizerConfig) or _has_trust_region(config)):
        raise ConfigError(f"{key}: {config.recipe} has no steps along a gradient that ranks could share; leave it out")
    if run.tensor > 1:
        _require_layers_split(config)
    rows = _rows_of_step(config)
    if rows is not None and rows < run.shares:
        raise ConfigError(
            f"{key}: an optimizer step has {rows} sequences, fewer than {run.shares} shares, so that ranks would have "
            "nothing to do; take fewer ranks, fewer learner.minibatches, or more sequences"
        )


def _has_trust_region(config: RunConfig) -> bool:
    """True for a recipe that steps along a natural gradient."""
    from hone.learner.natural_gradient import TrustRegionConfig  # noqa: PLC0415 - torch

    algorithm = dict(config).get("algorithm")
    return isinstance(algorithm, Config) and isinstance(dict(algorithm).get("region"), TrustRegionConfig)


def _require_placement(config: RunConfig) -> None:
    """Raise ConfigError for `[cluster.learner]` without ranks to place, or without their GPUs."""
    cluster, run = _cluster_of_ranks(config), config.run
    if cluster is None or cluster.learner is None:
        return
    if run.ranks == 1:
        raise ConfigError(
            "cluster.learner places the ranks of the learner, and run.ranks = 1; raise it, or leave it out"
        )
    if run.device.startswith("cuda") and not cluster.learner.gpus:
        raise ConfigError(
            f'run.device = "{run.device}" with cluster.learner.gpus = 0: a rank computes on a GPU; set gpus = 1'
        )


def _require_layers_split(config: RunConfig) -> None:
    """Raise ConfigError, with every reason, for a run whose layers cannot be cut among `run.tensor` ranks."""
    from hone.models.language.tensor_parallel import tensor_split_faults  # noqa: PLC0415 - as above
    from hone.text.evaluate.open_policy import model_config, open_tokenizer  # noqa: PLC0415 - torch
    from hone.text.open_text import LanguageRunConfig  # noqa: PLC0415 - as above
    from hone.text.rl import TextRunConfig  # noqa: PLC0415 - as above

    key = f"run.tensor = {config.run.tensor}"
    if not isinstance(config, LanguageRunConfig | TextRunConfig):
        raise ConfigError(f"{key}: {config.recipe} trains no language model whose layers could be cut; leave it out")
    source, faults = config.model, ErrorCollector(ConfigError)
    if source.exactness == "bitwise":
        faults.add(
            f"{key}: layers that are cut among ranks add in another order than the engine, so that log-probabilities "
            'are not equal to the bit; use model.exactness = "parity"'
        )
    tokenizer, _ = open_tokenizer(source)
    faults.extend(f"run.{fault}" for fault in tensor_split_faults(model_config(source, tokenizer), config.run.tensor))
    faults.raise_if_any()


def _rows_of_step(config: RunConfig) -> int | None:
    """Sequences of an optimizer step; None where a step has no fixed number of them."""
    from hone.text.memory import config_settings  # noqa: PLC0415 - torch: not needed without ranks
    from hone.text.open_text import LanguageRunConfig  # noqa: PLC0415 - as above
    from hone.text.rl import TextRunConfig  # noqa: PLC0415 - as above

    if not isinstance(config, LanguageRunConfig | TextRunConfig) or not config.planned().rows:
        return None
    return step_rows(config.planned(), config_settings(config))


def rank_placement(config: RunConfig) -> Mapping[str, str]:
    """Who stands where, for the plan of a run; empty for a learner of one process."""
    if not _is_ranked(config):
        return {}
    run = config.run
    place = "cuda:{}" if run.device.startswith("cuda") else run.device
    where = "child process on " + place
    if (cluster := _cluster_of_ranks(config)) is not None and (learner := cluster.learner) is not None:
        gpus = f" and {learner.gpus:g} GPUs" if learner.gpus else ""
        where = f"in Ray ({cluster.address}), {learner.cpus:g} CPUs{gpus}"
    others = [f"rank {rank}: {where.format(rank)}" for rank in range(1, run.ranks)]
    shown = others if len(others) < 4 else [*others[:2], "...", others[-1]]
    bits = (
        f"{run.virtual_ranks} shares of each batch: equal bits on 1 to {run.virtual_ranks} ranks"
        if run.virtual_ranks
        else "another number of ranks gives results equal to rounding, not to the bit"
    )
    placement = {
        "ranks": "; ".join([f"rank 0: this process, on {place.format(0)}, with rollouts", *shown]),
        "threads of each rank": f"{run.threads}, {run.threads * run.ranks} in all",
        "share of each batch": f"{run.tensor / run.ranks:.3g}; {bits}",
    }
    if run.tensor > 1:
        placement["share of each layer"] = f"{1 / run.tensor:.3g}; {run.tensor} neighbours compute the same rows"
    return placement


def over_ranks(
    spec: RecipeSpec, build: Callable[[Any], TrainingJob[Any]], config: RunConfig
) -> Callable[[Any], TrainingJob[Any]]:
    """`build`, over the ranks of `config`; `build` itself for a learner of one process."""
    if not _is_ranked(config):
        return build
    from hone.parallel.ranked_job import LocalLauncher, RankedJobBuilder  # noqa: PLC0415 - as above

    module, threads, cluster = "hone.recipes.rank_process", config.run.threads, _cluster_of_ranks(config)
    if cluster is None:
        launcher = LocalLauncher(module=module, threads=threads)
    else:
        from hone.parallel.ray_launcher import RayLauncher  # noqa: PLC0415 - Ray: an extra

        launcher = RayLauncher(module=module, threads=threads, cluster=cluster)
    return RankedJobBuilder(opened=build, reopen=spec.build, launcher=launcher)


def _cluster_of_ranks(config: RunConfig) -> ClusterConfig | None:
    """The cluster that the ranks but the driver stand in; None: they are child processes of this machine."""
    cluster = dict(config).get("cluster")
    return cluster if isinstance(cluster, ClusterConfig) and cluster.learner is not None else None
