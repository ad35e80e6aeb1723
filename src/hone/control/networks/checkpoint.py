"""The folder of a control policy: `model.safetensors` and `policy.json`, without code but for a module of the user's.

Saving, loading, and the list of loadable kinds. The file of `network.module` is copied into the folder as `module.py`,
and is run again only where its digest is that of `policy.json`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hone.control.environments.layout import leaf_from_json
from hone.control.networks.actor_critic import (
    ActorCritic,
    ChoiceScorer,
    ControlPolicy,
    DeterministicActorCritic,
    QNetworkPolicy,
    SoftActorCritic,
)
from hone.control.networks.discriminator import AdversarialActorCritic
from hone.control.networks.encoders import UserEncoder
from hone.control.networks.encoding import EncoderSpec, ImageLayout, encoder_from_json
from hone.control.networks.intrinsic_reward import CuriousActorCritic
from hone.control.networks.memory import MemoryActorCritic, RecurrentDqnPolicy
from hone.control.networks.mlp import (
    ACTION_FACTORS,
    ActionFactor,
    BoxActions,
    DiscreteActions,
    FactoredActions,
    MlpConfig,
    ObservationInputs,
    PolicySpaces,
)
from hone.control.networks.mpc import ModelPlanner
from hone.control.networks.multitask import MultitaskActorCritic
from hone.control.networks.offline import BcqPolicy, BearPolicy, DiscreteBcqPolicy, IqlPolicy
from hone.control.networks.options import OptionCriticPolicy, OptionTablePolicy
from hone.control.networks.q_networks import DiscreteSacPolicy, DqnPolicy
from hone.control.networks.recurrent import RecurrentActorCritic
from hone.control.networks.seats import CentralActorCritic, InformationSetPolicy, PolicyValueNetwork, SeatPolicies
from hone.control.networks.team import TeamValues
from hone.core.errors import DataError, one_line
from hone.core.state import share_arrays
from hone.core.strict_json import strict_json

FORMAT = 3
_READ_FORMATS = (2, 3)
"""Format 2 knows neither parts of observations and actions nor masks."""
MODULE_FILE = "module.py"
"""The copy of the user's module in a policy's folder."""
_POLICY_KINDS: dict[str, type[ControlPolicy]] = {
    kind.kind: kind
    for kind in (
        ActorCritic,
        ChoiceScorer,
        SoftActorCritic,
        QNetworkPolicy,
        ModelPlanner,
        RecurrentActorCritic,
        MemoryActorCritic,
        MultitaskActorCritic,
        DqnPolicy,
        RecurrentDqnPolicy,
        DiscreteSacPolicy,
        DiscreteBcqPolicy,
        BcqPolicy,
        IqlPolicy,
        BearPolicy,
        DeterministicActorCritic,
        CuriousActorCritic,
        AdversarialActorCritic,
        OptionTablePolicy,
        OptionCriticPolicy,
        CentralActorCritic,
        SeatPolicies,
        TeamValues,
        InformationSetPolicy,
        PolicyValueNetwork,
    )
}


def save_policy(policy: ControlPolicy, folder: Path) -> None:
    """Write `model.safetensors` and `policy.json` into `folder`, which is created if missing, and `module.py` for a
    policy with a module of the user's."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in policy.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    share_arrays(folder / "model.safetensors")
    fields = asdict(policy.spaces.inputs)
    description = {
        "format": FORMAT,
        "kind": policy.kind,
        "extras": dict(policy.extras()),
        "network": policy.network.model_dump(include=set(MlpConfig.model_fields)),
        "inputs": {
            name: value for name, value in fields.items() if name not in _NEWER_INPUTS or value != _NEWER_INPUTS[name]
        },
        "actions": asdict(policy.spaces.actions),
    }
    source = next((part.source for part in policy.modules() if isinstance(part, UserEncoder)), None)
    if source is not None:
        (folder / MODULE_FILE).write_text(source, encoding="utf-8")
    (folder / "policy.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


_NEWER_INPUTS: Final[Mapping[str, object]] = {"image": None, "encoder": None, "frames": 1, "leaves": ()}
"""Fields of inputs that a folder names only where they differ from these."""


def _inputs_from_json(seen: Mapping[str, Any], folder: Path) -> ObservationInputs:
    """Inputs whose module, if any, is the copy in `folder`. Raises KeyError, TypeError, and DataError for a copy that
    is not the one that was saved."""
    changed: dict[str, Any] = {"mean": tuple(seen["mean"]), "scale": tuple(seen["scale"])}
    changed["leaves"] = tuple(leaf_from_json(leaf) for leaf in seen.get("leaves", ()))
    if seen.get("image") is not None:
        changed["image"] = ImageLayout(**{**seen["image"], "shape": tuple(seen["image"]["shape"])})
    if seen.get("encoder") is not None:
        changed["encoder"] = encoder_from_json(seen["encoder"])
    encoder = changed.get("encoder")
    if isinstance(encoder, EncoderSpec) and encoder.module:
        copied = folder / MODULE_FILE
        digest = hashlib.sha256(copied.read_bytes()).hexdigest() if copied.is_file() else "missing"
        if digest != encoder.sha256:
            raise DataError(
                f"{copied}: the code of the policy's network is not what was saved (sha256 is {digest}, was "
                f"{encoder.sha256}); put the file back"
            )
        changed["encoder"] = replace(encoder, module=f"{copied}:{encoder.module.rpartition(':')[2]}")
    return ObservationInputs(**{**seen, **changed})


def load_policy(folder: Path) -> ControlPolicy:
    """The policy saved by `save_policy`; raises DataError that names the missing, damaged or unknown part."""
    policy = _uninitialised_policy(_description(folder / "policy.json"), folder / "policy.json")
    load_weights(policy, folder)
    return policy


def load_weights(policy: ControlPolicy, folder: Path) -> None:
    """Read the weights of `folder` into `policy`, in place; raises DataError when they do not fit."""
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot read the weights of the policy: {error}") from error
    wanted = policy.state_dict()
    lost = {name: f"{path}: no tensor {name}" for name in wanted if name not in tensors}
    unknown = {name: f"{path}: unknown tensor {name}" for name in tensors if name not in wanted}
    unfit = {
        name: f"{path}: {name} has shape {list(tensors[name].shape)}, the policy's is {list(wanted[name].shape)}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    }
    if faults := [line for kind in (lost, unknown, unfit) for line in one_line(kind, "tensors")]:
        raise DataError(*faults)
    require_same_gaussian(policy, folder / "policy.json")
    policy.load_state_dict(tensors)


def require_same_gaussian(policy: ControlPolicy, path: Path) -> None:
    """Raises DataError for weights of a Gaussian over the box in another form: they mean other actions."""
    actions = policy.spaces.actions
    if not isinstance(actions, BoxActions) or not path.is_file():
        return
    saved = _description(path)["actions"].get("gaussian", "unscaled")  # older descriptions do not name it
    if saved != actions.gaussian and not (actions.is_unit and "squashed" not in {saved, actions.gaussian}):
        raise DataError(
            f"{path}: its Gaussian over the box of actions is {saved}, and this run's is {actions.gaussian}; set "
            f'network.gaussian = "{saved}" to go on with it'
        )


def _description(path: Path) -> dict[str, Any]:
    try:
        description = strict_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the description of the policy: {error}") from error
    if not isinstance(description, dict) or description.get("format") not in _READ_FORMATS:
        raise DataError(f"{path}: not a policy of format {FORMAT}")
    return description


def _one_action(actions: Mapping[str, Any]) -> ActionFactor:
    """Actions of one factor, of the kind that has these fields; those that an older description lacks have their
    defaults. Raises TypeError, ValueError."""
    kind = next((one for one in ACTION_FACTORS if actions.keys() <= {field.name for field in fields(one)}), None)
    if kind is None:
        raise ValueError(f"no kind of actions has the fields {', '.join(actions)}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in actions.items()
    }
    return kind(**values)


def _as_whole(actions: ActionFactor) -> DiscreteActions | BoxActions:
    if not isinstance(actions, DiscreteActions | BoxActions):
        raise ValueError(f"{actions} are a factor of actions, and not the whole of them")
    return actions


def _uninitialised_policy(description: dict[str, Any], path: Path) -> ControlPolicy:
    try:
        actions, seen = description["actions"], description["inputs"]
        spaces = PolicySpaces(
            inputs=_inputs_from_json(seen, path.parent),
            actions=FactoredActions(
                parts=tuple(_one_action(part) for part in actions["parts"]), masked=actions["masked"]
            )
            if "parts" in actions
            else _as_whole(_one_action(actions)),
        )
        network = MlpConfig.model_validate(description["network"])
        return _POLICY_KINDS[description["kind"]].from_extras(spaces, network, description["extras"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: incomplete or unknown: {error!r}") from error
