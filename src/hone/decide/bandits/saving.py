"""A policy as a folder: `policy.json` (kinds and settings) and `policy.safetensors` (arrays), read back to the bit.

The hash of the contents stands in the file and is the policy's name wherever versions are compared: equal policies have
equal hashes, on every machine.

Any saved policy as a decision policy: a bandit's folder, or whatever an installed package knows how to open.

A policy that is no bandit is opened by an entry point of the group `hone.decision_policies`: a function that takes the
policy's folder and returns a `BanditPolicy`, or raises DataError. hone declares one itself, for networks of control, so
that a service of a bandit starts without torch and this wing knows nothing of the other.

Any saved policy as a decision policy: a bandit's folder, or a network with numbered actions.

torch is imported for networks only, so that a service of a bandit starts at once.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from hone.core.decisions import Floats
from hone.core.errors import DataError, HoneError, did_you_mean
from hone.core.state import State, share_arrays, substate
from hone.core.strict_json import strict_json
from hone.decide.bandits.greedy import (
    BetaThompsonPolicy,
    BoltzmannPolicy,
    EpsilonGreedyPolicy,
    GaussianThompsonPolicy,
    LinUcbPolicy,
    SquareCbPolicy,
    TargetRatePolicy,
    Ucb1Policy,
    thompson_policy,
)
from hone.decide.bandits.models import (
    ArmMeans,
    BanditModel,
    BetaBernoulliPosterior,
    GaussianPosterior,
    JointLinearPosterior,
    LinearGaussianPosterior,
)
from hone.decide.bandits.policy import BanditPolicy, PolicyContents, Saveable
from hone.decide.bandits.wrappers import Clipped, EpsilonFloor, Fallback, Masked, Routed
from hone.run.saved_config import policy_folder
from hone.run.store.codec import state_bytes, state_from_bytes

FORMAT: Final = 2
FAMILY: Final = "bandit"
"""Value of `family` in `policy.json`, which tells a bandit from a network's folder."""
OLD_FORMAT: Final = 1
"""Posteriors of Thompson sampling, without a policy around them."""
DESCRIPTION: Final = "policy.json"
ARRAYS: Final = "policy.safetensors"
_DEEPEST: Final = 32
"""Wrappers within wrappers; a file with more is damaged."""
KINDS: Final[Mapping[str, type[Saveable]]] = {
    one.kind: one
    for one in (
        EpsilonGreedyPolicy, BoltzmannPolicy, SquareCbPolicy, Ucb1Policy, LinUcbPolicy, BetaThompsonPolicy,
        GaussianThompsonPolicy, TargetRatePolicy, EpsilonFloor, Masked, Clipped, Fallback, Routed,
        ArmMeans, BetaBernoulliPosterior, GaussianPosterior, LinearGaussianPosterior, JointLinearPosterior,
    )
}  # fmt: skip
"""Everything that a policy folder may hold, by its kind."""


def save_policy(policy: BanditPolicy, folder: Path) -> str:
    """Write a policy into `folder`, which is created if missing; -> the hash of its contents.

    Raises DataError for a policy with a part that cannot be saved.
    """
    tree, arrays = describe_policy(policy)
    digest = _digest(tree, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / ARRAYS)
    share_arrays(folder / ARRAYS)
    description = {"format": FORMAT, "family": FAMILY, "sha256": digest, "policy": tree}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return digest


def load_policy(folder: Path) -> BanditPolicy:
    """Read the policy that `save_policy` wrote. Raises DataError that names the damaged, missing or unknown part."""
    description, path = _read_description(folder), folder / DESCRIPTION
    if description["format"] == OLD_FORMAT:
        return _posterior_of_old_file(description, path)
    arrays, tree = _read_arrays(folder / ARRAYS), _tables(description.get("policy"))
    if tree is None:
        raise DataError(f"{path}: it holds no policy; save it again")
    digest, written = _digest(tree, arrays), description.get("sha256")
    if digest != written:
        raise DataError(
            f"{path}: the contents have the hash {digest}, and {written} was written with them: {DESCRIPTION} or "
            f"{ARRAYS} has changed since; take an undamaged copy"
        )
    policy = _built(tree, arrays, "", path, 0)
    if not isinstance(policy, BanditPolicy):
        raise DataError(f"{path}: {policy.kind} is a part of a policy, not a policy")
    return policy


def load_into(model: BanditModel, folder: Path) -> None:
    """Load the model of a saved policy into `model`, in place. Raises DataError for one of another kind or size."""
    policy = load_policy(folder)
    saved = policy.contents().parts.get("model")
    if saved is None or saved.kind != model.kind:
        kind_read = policy.kind if saved is None else saved.kind
        raise DataError(f"{folder / DESCRIPTION}: a {kind_read} model; this run's is {model.kind}")
    try:
        model.load_contents(saved.contents())
    except DataError as error:
        raise DataError(f"{folder / DESCRIPTION}: another model than this run's: {error}") from error


def is_policy_folder(folder: Path) -> bool:
    """True for a folder whose `policy.json` is of a bandit policy, readable or not of this version."""
    try:
        description = _tables(strict_json((folder / DESCRIPTION).read_bytes()))
    except (OSError, ValueError):
        return False
    return description is not None and (description.get("family") == FAMILY or _is_old(description))


def copy_policy(policy: BanditPolicy) -> BanditPolicy:
    """An equal policy that shares nothing: it stays as it is while the model of the first goes on learning."""
    tree, arrays = describe_policy(policy)
    copied = _built(tree, arrays, "", Path("memory"), 0)
    assert isinstance(copied, BanditPolicy)
    return copied


def policy_bytes(policy: BanditPolicy) -> bytes:
    """A policy as bytes, for another process. Raises DataError for a policy with a part that cannot be saved."""
    tree, arrays = describe_policy(policy)
    return state_bytes({"policy": json.dumps(tree), "arrays": cast("State", arrays)}).tobytes()


def policy_from_bytes(data: bytes, name: str) -> BanditPolicy:
    """The policy of `policy_bytes`. Raises DataError with `name` for bytes that are none."""
    try:
        state = state_from_bytes(np.frombuffer(data, np.uint8))
        arrays = cast("dict[str, Floats]", substate(state, "arrays"))
        policy = _built(json.loads(str(state["policy"])), arrays, "", Path(name), 0)
    except (ValueError, KeyError, DataError) as error:
        raise DataError(f"{name}: cannot read the policy: {error!s:.200}") from error
    if not isinstance(policy, BanditPolicy):
        raise DataError(f"{name}: {policy.kind} is a part of a policy, not a policy")
    return policy


def policy_hash(policy: BanditPolicy) -> str:
    """sha256 of a policy's kinds, settings and arrays, in hexadecimal."""
    return _digest(*describe_policy(policy))


def describe_policy(policy: Saveable) -> tuple[dict[str, Any], dict[str, Floats]]:
    """The policy as a tree of kinds and settings, and its arrays by their path (`inner.model.inverse`)."""
    arrays: dict[str, Floats] = {}
    return _described(policy, "", arrays), arrays


def _read_description(folder: Path) -> dict[str, Any]:
    """The contents of `policy.json` of a bandit. Raises DataError for a file that is unreadable, or of another kind."""
    path = folder / DESCRIPTION
    try:
        description = _tables(strict_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the policy: {error}") from error
    if description is not None and _is_old(description):
        return description
    if description is None or description.get("family") != FAMILY:
        raise DataError(f"{path}: not the description of a bandit policy")
    if description.get("format") != FORMAT:
        raise DataError(f"{path}: format {description.get('format')}; this version of hone reads {FORMAT}")
    return description


def _is_old(description: Mapping[str, Any]) -> bool:
    return description.get("format") == OLD_FORMAT and "numbers" in description


def _posterior_of_old_file(description: Mapping[str, Any], path: Path) -> BanditPolicy:
    """Thompson sampling over the posterior of a file of format 1, which holds its arrays as numbers."""
    try:
        arrays = {name: np.array(values, dtype=np.float64) for name, values in description["numbers"].items()}
        if description["kind"] == BetaBernoulliPosterior.kind:
            beta = BetaBernoulliPosterior(len(arrays["alpha"]))
            beta.load_contents(PolicyContents(arrays=arrays))
            return thompson_policy(beta)
        noise, precision, information = float(arrays["noise"]), arrays["precision"], arrays["pull"]
        linear = LinearGaussianPosterior(*information.shape, noise=noise)
        linear.tables.replace_sums(precision, information)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: cannot read the posterior: {error!r}") from error
    return thompson_policy(linear)


def _described(part: Saveable, place: str, arrays: dict[str, Floats]) -> dict[str, Any]:
    contents = part.contents()
    for name, values in contents.arrays.items():
        arrays[f"{place}{name}"] = np.ascontiguousarray(values, dtype=np.float64)
    parts = {name: _described(inner, f"{place}{name}.", arrays) for name, inner in contents.parts.items()}
    return {"kind": part.kind, "settings": dict(contents.settings), "parts": parts}


def _built(tree: object, arrays: Mapping[str, Floats], place: str, path: Path, depth: int) -> Saveable:
    where = f"{path}: {place.rstrip('.') or 'policy'}"
    table = _tables(tree)
    if table is None or depth > _DEEPEST:
        raise DataError(f"{where}: not a policy, or nested more than {_DEEPEST} deep")
    kind, settings, inner = table.get("kind"), _tables(table.get("settings")), _tables(table.get("parts"))
    if kind not in KINDS:
        raise DataError(f"{where}: unknown kind {kind!r}{did_you_mean(str(kind), sorted(KINDS))}")
    if settings is None or inner is None:
        raise DataError(f"{where}: {kind} without settings or parts")
    parts = {name: _built(part, arrays, f"{place}{name}.", path, depth + 1) for name, part in inner.items()}
    within = {name.removeprefix(place): one for name, one in arrays.items() if name.startswith(place)}
    own = {name: one for name, one in within.items() if "." not in name}
    try:
        return KINDS[kind].from_contents(PolicyContents(settings=settings, arrays=own, parts=parts))
    except HoneError as error:
        raise DataError(f"{where}: {kind}: {error}") from error


def _tables(value: object) -> dict[str, Any] | None:
    """An object of a JSON document; None for another value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _read_arrays(path: Path) -> dict[str, Floats]:
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot read the policy's arrays: {error}") from error
    wrong = next((name for name, values in arrays.items() if values.dtype != np.float64), None)
    if wrong is not None:
        raise DataError(f"{path}: array {wrong} holds {arrays[wrong].dtype}, not float64")
    wrong = next((name for name, values in arrays.items() if not np.isfinite(values).all()), None)
    if wrong is not None:
        raise DataError(f"{path}: array {wrong} holds a number that is not finite; take an earlier version")
    return arrays


def _digest(tree: Mapping[str, Any], arrays: Mapping[str, Floats]) -> str:
    whole = sha256(json.dumps(tree, sort_keys=True).encode())
    for piece in _pieces(arrays):
        whole.update(len(piece).to_bytes(8, "little") + piece)
    return whole.hexdigest()


def _pieces(arrays: Mapping[str, Floats]) -> Iterator[bytes]:
    for name in sorted(arrays):
        yield f"{name} {arrays[name].shape}".encode()
        yield arrays[name].astype("<f8", copy=False).tobytes()


# ----------------------------------------------------------------------------------------------------------- any policy


ENTRY_POINT_GROUP: Final = "hone.decision_policies"


def open_decision_policy(path: Path) -> BanditPolicy:
    """Open the policy of `path`: a policy's folder, a checkpoint, or a run, whose newest intact checkpoint is taken.

    Raises DataError for a damaged or missing policy, and for one that cannot decide among numbered actions.
    """
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a policy's folder, a checkpoint or a run")
    folder = policy_folder(path)
    if is_policy_folder(folder):
        return load_policy(folder)
    if not (folder / "policy.json").is_file():
        content = "a language model" if (folder / "config.json").is_file() else "no policy"
        raise DataError(f"{folder}: it holds {content}; decisions need a bandit, or a network with numbered actions")
    refusals: list[str] = []
    for opener in entry_points(group=ENTRY_POINT_GROUP):
        try:
            policy = opener.load()(folder)
        except DataError as refusal:
            refusals.append(str(refusal))
        else:
            assert isinstance(policy, BanditPolicy), f"{opener.value} returned {type(policy).__name__}"
            return policy
    raise DataError(*(refusals or [f"{folder}: no installed package opens it (entry points {ENTRY_POINT_GROUP})"]))
