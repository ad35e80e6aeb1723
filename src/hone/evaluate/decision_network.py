"""A trained network as a decision policy: the distribution over numbered actions that it was trained to act by."""

from pathlib import Path

import numpy as np

from hone.control.networks.checkpoint import load_policy
from hone.control.networks.numpy_policies import NumpyCategoricalPolicy, NumpyGreedyPolicy
from hone.control.networks.offline import NumpyDiscreteBcqPolicy
from hone.control.networks.q_networks import NumpyNoisyPolicy
from hone.control.tables.tables import KINDS, policy_kind
from hone.core.decisions import ActionSet, Floats
from hone.core.errors import DataError
from hone.decide.bandits.policy import BanditPolicy, PolicyContents, PolicyDistribution

DiscreteNumpyPolicy = NumpyCategoricalPolicy | NumpyGreedyPolicy | NumpyNoisyPolicy | NumpyDiscreteBcqPolicy


class _NetworkDecisionPolicy(BanditPolicy):
    """A network with numbered actions: its softmax if it was trained to draw from one, else all mass on its choice.

    A context is one observation, flattened; for one of numbered states it is the state's number. A network that was
    trained to be greedy (DQN, discrete BCQ) is deterministic: a served one is wrapped in an `EpsilonFloor`.
    """

    kind = "network"

    def __init__(self, network: DiscreteNumpyPolicy, folder: Path) -> None:
        self.network, self.folder = network, folder

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.distribution_rows(context[None], actions)
        return PolicyDistribution(logp[0], None if scores is None else scores[0])

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        # observations of the network. Raises DataError for another number of features or actions than its own
        inputs, count = self.network.inputs, self.network.actions.count
        if len(actions) != count:
            raise DataError(f"{self.folder}: the network has {count} actions, and the decision {len(actions)}")
        size = 1 if inputs.one_hot else inputs.size
        if contexts.shape[1] != size:
            raise DataError(
                f"{self.folder}: the network was trained on {size} features, and a context has {contexts.shape[1]}"
            )
        seen = contexts[:, 0] if inputs.one_hot else contexts
        if isinstance(self.network, NumpyCategoricalPolicy):
            logits = self.network.network(self.network.inputs.array(seen)).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            return PolicyDistribution(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), None)
        best = self.network.best(seen).astype(np.int64) - self.network.actions.start
        return PolicyDistribution(np.where(np.arange(len(actions)) == best[:, None], 0.0, -np.inf), None)

    def contents(self) -> PolicyContents:
        raise DataError(f"{self.folder}: a network is served from its own checkpoint; it is not copied into a policy")

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "_NetworkDecisionPolicy":
        del contents
        raise DataError("a network is served from its own checkpoint; name its folder")


def open_network(folder: Path) -> _NetworkDecisionPolicy:
    """The network of a policy's folder; the entry point `network` of `hone.decision_policies`.

    Raises DataError for a table, and for a network whose actions are not numbered, or that remembers.
    """
    if policy_kind(folder) in KINDS:
        raise DataError(f"{folder}: a table of states cannot be served; train a bandit, or a network, on features")
    policy = load_policy(folder)
    network = policy.numpy_policy()
    if isinstance(network, DiscreteNumpyPolicy):
        return _NetworkDecisionPolicy(network, folder)
    raise DataError(
        f"{folder}: a policy of the kind {policy.kind} cannot decide among named actions: its actions are not "
        "numbered, or it remembers what it saw before; use a network with discrete actions and no memory (ppo, dqn, "
        "discrete_sac, bc, cql, iql or bcq on numbered actions)"
    )
