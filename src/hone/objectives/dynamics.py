"""Loss of learned dynamics models: the Gaussian likelihood of an ensemble's predictions.

The networks are in `models.control.ensemble_dynamics`.
"""

from hone.objectives.shapes import Members
from hone.objectives.terms import LossTerms


def gaussian_nll(mean: Members, log_variance: Members, target: Members) -> LossTerms:
    """1/2 [(target - mean)^2 / variance + log variance], summed over members and numbers (Nix & Weigend, 1994).

    All `[K, n, d]` -> loss `[n]` in nats, without the constant d/2 log 2 pi. Used for ensembles by Chua et al. (2018).
    """
    gap = target - mean
    squared = gap * gap
    loss = 0.5 * (squared * (-log_variance).exp() + log_variance).sum(dim=(0, 2))
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "model/squared_error": squared.detach().mean(dim=(0, 2)),
            "model/log_variance_nats": log_variance.detach().mean(dim=(0, 2)),
        },
    )
