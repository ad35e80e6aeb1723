"""League: PPO against a population of its own past, with exploiters, a gate and the equilibrium of payoffs.

Main plays itself, and members of the population that it finds hard to beat (prioritised fictitious self-play); each
exploiter plays main alone, joins the population and begins anew (Vinyals et al., 2019). A new member plays all others,
and the payoffs have an equilibrium (Lanctot et al., 2017). Another on-policy recipe is made a league in the same way:
`LeagueRunConfig` before its config.
"""

from hone.control.seats.league import LeagueOpponents, LeagueRunConfig
from hone.control.seats.training import evaluate_seats
from hone.core.config import new_default
from hone.decide.estimators.sequential import mixture_paths
from hone.learner.config import LearnerConfig
from hone.recipes.on_policy.ppo import PpoAlgorithm, PpoConfig
from hone.run.job import RecipeParts, RecipeSpec


class LeagueAlgorithm(PpoAlgorithm):
    """PPO's numbers, for matches that are paid at their end."""

    discount = new_default(1.0)
    gae_lambda = new_default(0.95)
    entropy_weight = new_default(0.02)


class LeagueConfig(LeagueRunConfig, PpoConfig):  # pyright: ignore[reportIncompatibleVariableOverride] - the seats' env
    """PPO in a league."""

    rollout_steps = new_default(2, "Whole matches, one after another, of each that is played together, per iteration.")
    league: LeagueOpponents = LeagueOpponents()
    """The population, and whom main meets."""
    algorithm: LeagueAlgorithm = LeagueAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Credit and loss."""
    learner = new_default(LearnerConfig(lr=1e-3, lr_decay="linear", epochs=4, minibatches=4, max_grad_norm=0.5))

    e_values = staticmethod(mixture_paths)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        matches, shares = self.env.num_envs * self.rollout_steps, 1 + self.league.exploiters
        return {
            "matches per iteration": f"{matches}, 1 in {shares} of main against the population",
            "snapshots of main": f"every {self.league.every} iterations, {self.league.size} members at most",
            "optimizer steps": f"{self.learner.optimizer_steps(self.steps)}",
            "evaluated against": ", ".join(self.players_of_evaluation()),
        }

    @classmethod
    def parts(cls) -> RecipeParts:
        return RecipeParts(
            source="League(matches)",
            credit=super().parts().credit,
            loss=super().parts().loss,
            weights=super().parts().weights,
        )


ENTRY = RecipeSpec(
    summary="self-play league: a population, exploiters, a gate, and the equilibrium of payoffs, over PPO",
    paper="Vinyals et al., Grandmaster Level in StarCraft II Using Multi-Agent Reinforcement Learning, 2019",
    config=LeagueConfig,
    evaluate=evaluate_seats,
    limitation="two seats, one network for both; in poker use cfr_plus, whose average converges.",
)
