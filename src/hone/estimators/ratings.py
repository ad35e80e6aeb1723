"""Ratings of players by the results of their games, and the equilibrium of a table of payoffs.

Belongs here: pure mathematics of who is how strong. Three systems share one protocol: a rating is a mean and a
deviation, the standard deviation of what is known of the player's skill.

- `WengLin`: Bayesian approximation (Weng and Lin, "A Bayesian approximation method for online ranking", JMLR 2011) with
  teams, any number of them, and draws; in its logistic (Bradley-Terry) and its normal (Thurstone-Mosteller) form.
- `Elo`: logistic steps of a fixed size (Elo, 1978); it has no deviation.
- `Glicko2`: mean, deviation and volatility by rating periods (Glickman, "Example of the Glicko-2 system", 2013).

Two more functions serve those who choose opponents from a table of results: `nash_mixture` is the exact equilibrium of
a matrix game, and `rank_agreement` says how well an order was recovered.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_GLICKO_SCALE: Final = 400 / math.log(10)
"""Points of a rating by unit of the logistic scale: 173.7178."""
_VOLATILITY_TOLERANCE: Final = 1e-9
_SQRT_HALF: Final = math.sqrt(0.5)
_DENSITY_AT_0: Final = 1 / math.sqrt(2 * math.pi)
_DEEPEST: Final = 30.0
"""Standard deviations below 0 from where the ratio of density to distribution function is taken as its asymptote."""
_LEAST_MASS: Final = 1e-250
"""Probability of a draw below which it counts as an event of probability 0."""
_LARGEST_EXPONENT: Final = 300.0
"""Bound of exponents: its power is finite, and so is the square of it."""
_PIVOT: Final = 1e-11
_MOST_STEPS: Final = 50
_LONGEST_STEP: Final = 3.0
"""Longest step of Newton's method, in units of the logistic scale."""
_NEWTON_TOLERANCE: Final = 1e-10


class Rating(NamedTuple):
    """What is known of a player's skill. Rows `[P, 3]` of an array hold the ratings of P players."""

    mean: float
    deviation: float = 0.0
    """Standard deviation of the skill about `mean`; 0 in a system that keeps none."""
    volatility: float = 0.0
    """Glicko-2 alone: standard deviation by which the skill moves in one rating period."""


class RatingSystem(Protocol):
    """A way to turn results of games into ratings. Pure.

    `ranks` are the places of the teams of a game, the lowest the best; equal ranks are a draw. A score is 1 for a win,
    1/2 for a draw and 0 for a loss.
    """

    @property
    def initial(self) -> Rating:
        """Rating of a player of whom nothing is known."""
        ...

    def rate(self, teams: Sequence[Sequence[Rating]], ranks: Sequence[float]) -> list[list[Rating]]:
        """Ratings after one game. Raises ValueError for fewer than two teams, an empty one, or unequal lengths."""
        ...

    def rate_duels(self, ratings: Floats, scores: Floats) -> Floats:
        """Ratings `[n, 2, 3]` after n duels of disjoint pairs, by the first ones' scores `[n]` -> `[n, 2, 3]`."""
        ...

    def expected_scores(self, teams: Sequence[Sequence[Rating]]) -> Floats:
        """Expected score `[n, n]` of each of n teams against each, the deviations of both taken into account."""
        ...

    def expected_score(self, one: Sequence[Rating], other: Sequence[Rating]) -> float:
        """Expected score of one team against another: an entry of `expected_scores`."""
        ...

    def after_absence(self, rating: Rating, periods: float) -> Rating:
        """The rating after `periods` rating periods without a game: the deviation grows, at most to the initial one."""
        ...


def rate_games(system: RatingSystem, ratings: Floats, pairs: NDArray[np.int64], scores: Floats) -> Floats:
    """Ratings `[P, 3]` after duels of the players `pairs` `[M, 2]`, one after another, by the first ones' scores `[M]`.

    Games of players that have met nobody since are rated together, which changes no result: each player's games keep
    their order.
    """
    last = np.full(len(ratings), -1)
    layers: list[list[int]] = []
    for game, (one, other) in enumerate(pairs):
        layer = int(max(last[one], last[other])) + 1
        last[one] = last[other] = layer
        if layer == len(layers):
            layers.append([])
        layers[layer].append(game)
    after = ratings.copy()
    for games in layers:
        after[pairs[games]] = system.rate_duels(after[pairs[games]], scores[games])
    return after


def fit_ratings(system: "WengLin", players: int, pairs: NDArray[np.int64], scores: Floats) -> Floats:
    """Ratings `[players, 3]` from all games at once, whatever their order, by the scores `[M]` of the first sides.

    `pairs` `[M, 2]` are duels; `[M, 2, t]` games of two teams of at most t players, with -1 at places that nobody
    fills. The maximum of the posterior of the Bradley-Terry model with the system's prior and scale,
    sum_m [s_m log p_m + (1 - s_m) log(1 - p_m)] - sum_i (m_i - mean)^2 / (2 deviation^2), p_m = 1 / (1 + exp(-(m_one -
    m_other) / (sqrt(2) beta))) with a team's m the sum of its players', by Newton's method; deviations are those of its
    Gaussian approximation. It uses the games better than one pass of updates does, and costs O(players^3).
    """
    teams = pairs if pairs.ndim == 3 else pairs[:, :, None]
    members = np.where(teams < 0, players, teams).reshape(len(pairs), 2 * teams.shape[2])
    sides = np.repeat([1.0, -1.0], teams.shape[2])
    """A place that nobody fills is one more player, whose skill stays 0."""
    c = math.sqrt(2) * system.beta
    prior, larger = (c / system.deviation) ** 2, (teams >= 0).sum(axis=2) @ np.array([1.0, -1.0])
    skills, precision = np.zeros(players + 1), prior * np.eye(players)
    for _ in range(_MOST_STEPS):
        p = 1 / (1 + np.exp(np.minimum(-(skills[members] @ sides) - system.mean / c * larger, _LARGEST_EXPONENT)))
        surprise = np.bincount(members.ravel(), ((scores - p)[:, None] * sides).ravel(), players + 1)[:players]
        information = np.zeros((players + 1, players + 1))
        weights = (p * (1 - p))[:, None, None] * np.outer(sides, sides)
        np.add.at(information, (members[:, :, None], members[:, None, :]), weights)
        precision = prior * np.eye(players) + information[:players, :players]
        step = np.linalg.solve(precision, surprise - prior * skills[:players])
        skills[:players] += step * min(1.0, _LONGEST_STEP / float(np.abs(step).max(initial=_LONGEST_STEP)))
        if np.abs(step).max(initial=0.0) < _NEWTON_TOLERANCE:
            break
    ratings = np.zeros((players, 3))
    ratings[:, 0] = system.mean + c * skills[:players]
    ratings[:, 1] = c * np.sqrt(np.diag(np.linalg.inv(precision)))
    return ratings


def _check_game(teams: Sequence[Sequence[Rating]], ranks: Sequence[float], *, largest_team: int | None = None) -> None:
    if len(teams) < 2 or len(teams) != len(ranks):
        raise ValueError(f"a game has two teams or more, and a rank for each: {len(teams)} teams, {len(ranks)} ranks")
    empty = [number for number, team in enumerate(teams) if not team]
    if empty or not all(map(math.isfinite, ranks)):
        raise ValueError(f"teams {empty} have no player" if empty else f"ranks must be finite: {list(ranks)}")
    if largest_team is not None and max(map(len, teams)) > largest_team:
        raise ValueError(f"this system rates single players, not a team of {max(map(len, teams))}; WengLin rates teams")


def _score(rank: float, other: float) -> float:
    return 0.5 + 0.5 * (int(rank < other) - int(rank > other))


# -------------------------------------------------------------------------------------------------------- Weng and Lin


@dataclass(frozen=True, slots=True, kw_only=True)
class WengLin:
    """Bayesian ratings of teams with draws (Weng and Lin, 2011, algorithms 1 and 3, all pairs of teams).

    For teams i and q with summed means m and variances v, c = sqrt(v_i + v_q + 2 beta^2) and x = (m_i - m_q) / c, the
    mean of player j of team i moves by s_j^2 g_i and its variance shrinks by the factor max(1 - s_j^2 h_i, floor), with
    sums over all q: logistic form g = (score - p) / c, h = sqrt(v_i) / c * p (1 - p) / c^2, p = 1 / (1 + exp(-x));
    normal form: V and W in the place of score - p and p (1 - p). With z = x - margin / c for a win, V = phi(z) / Phi(z)
    and W = V (V + z), the mean and the lost variance of a standard normal above -z.
    """

    form: Literal["logistic", "normal"] = "logistic"
    mean: float = 25.0
    deviation: float = 25 / 3
    """Deviation of a new player."""
    beta: float = 25 / 6
    """Standard deviation of a player's performance in one game about the skill."""
    drift: float = 25 / 300
    """Standard deviation by which a skill moves between two games, and in a rating period without one."""
    draw_margin: float = 0.1
    """Normal form: performances that differ by less than this draw."""
    floor: float = 1e-4
    """Least factor by which a variance shrinks in one game."""
    damped: bool = True
    """Damp the shrinking by sqrt(v_i) / c, as the paper does; False: h without this factor, the step of a Kalman
    filter, for skills that stand still."""

    @property
    def initial(self) -> Rating:
        return Rating(self.mean, self.deviation)

    def rate(self, teams: Sequence[Sequence[Rating]], ranks: Sequence[float]) -> list[list[Rating]]:
        _check_game(teams, ranks)
        moved = self.drift * self.drift
        means = [sum(player.mean for player in team) for team in teams]
        variances = [sum(player.deviation**2 + moved for player in team) for team in teams]
        steps, shrinks = [0.0] * len(teams), [0.0] * len(teams)
        for i in range(len(teams)):
            for q in range(i):
                c = math.sqrt(variances[i] + variances[q] + 2 * self.beta**2)
                step, shrink = self._pair((means[i] - means[q]) / c, self.draw_margin / c, _score(ranks[i], ranks[q]))
                steps[i] += step / c
                steps[q] -= step / c
                shrinks[i] += (math.sqrt(variances[i]) / c if self.damped else 1.0) * shrink / c**2
                shrinks[q] += (math.sqrt(variances[q]) / c if self.damped else 1.0) * shrink / c**2
        after: list[list[Rating]] = []
        for team, step, shrink in zip(teams, steps, shrinks, strict=True):
            after.append([])
            for player in team:
                variance = player.deviation**2 + moved
                deviation = math.sqrt(variance * max(1 - variance * shrink, self.floor))
                after[-1].append(player._replace(mean=player.mean + variance * step, deviation=deviation))
        return after

    def _pair(self, x: float, margin: float, score: float) -> tuple[float, float]:
        """Step of the first team's mean and shrinking of both variances, in units of c."""
        if self.form == "logistic":
            p = 1 / (1 + math.exp(min(-x, _LARGEST_EXPONENT)))
            return score - p, p * (1 - p)
        if score == 0.5:
            return _between(x, margin)
        z = (x if score > 0.5 else -x) - margin
        step = -z - 1 / z + 2 / z**3 if z < -_DEEPEST else _density(z) / (0.5 * math.erfc(-z * _SQRT_HALF))
        return (step if score > 0.5 else -step), min(max(step * (step + z), 0.0), 1.0)

    def rate_duels(self, ratings: Floats, scores: Floats) -> Floats:
        means, variances = ratings[..., 0], ratings[..., 1] ** 2 + self.drift**2
        c = np.sqrt(variances.sum(axis=1) + 2 * self.beta**2)
        x = (means[:, 0] - means[:, 1]) / c
        if self.form == "logistic":
            p = 1 / (1 + np.exp(np.minimum(-x, _LARGEST_EXPONENT)))
            step, shrink = scores - p, p * (1 - p)
        else:
            margins = (self.draw_margin / c).tolist()
            pairs = map(self._pair, x.tolist(), margins, scores.tolist())
            step, shrink = np.array(list(pairs), np.float64).reshape(-1, 2).T
        after = ratings.copy()
        after[..., 0] += variances * np.stack([step, -step], axis=1) / c[:, None]
        damping = np.sqrt(variances) / c[:, None] if self.damped else 1.0
        factor = 1 - variances * damping * (shrink / c**2)[:, None]
        after[..., 1] = np.sqrt(variances * np.maximum(factor, self.floor))
        return after

    def expected_scores(self, teams: Sequence[Sequence[Rating]]) -> Floats:
        means = np.array([sum(player.mean for player in team) for team in teams])
        variances = np.array([sum(player.deviation**2 for player in team) for team in teams])
        x = np.subtract.outer(means, means) / np.sqrt(np.add.outer(variances, variances) + 2 * self.beta**2)
        if self.form == "logistic":
            return 1 / (1 + np.exp(np.minimum(-x, _LARGEST_EXPONENT)))
        return 0.5 * np.array([list(map(math.erfc, row)) for row in (-x * _SQRT_HALF).tolist()])

    def expected_score(self, one: Sequence[Rating], other: Sequence[Rating]) -> float:
        return float(self.expected_scores([one, other])[0, 1])

    def after_absence(self, rating: Rating, periods: float) -> Rating:
        grown = math.sqrt(rating.deviation**2 + self.drift**2 * max(periods, 0.0))
        return rating._replace(deviation=max(min(grown, self.deviation), rating.deviation))


def _density(z: float) -> float:
    return _DENSITY_AT_0 * math.exp(-0.5 * z * z)


def _between(x: float, margin: float) -> tuple[float, float]:
    """V and W of a draw: mean and lost variance of a standard normal between -margin - x and margin - x.

    With a = margin - |x|, b = -margin - |x| and x >= 0: V = (phi(b) - phi(a)) / (Phi(a) - Phi(b)) and
    W = (a phi(a) - b phi(b)) / (Phi(a) - Phi(b)) + V^2. Where the difference underflows, the limit.
    """
    a, b = margin - abs(x), -margin - abs(x)
    mass = 0.5 * (math.erfc(-a * _SQRT_HALF) - math.erfc(-b * _SQRT_HALF))
    if mass < _LEAST_MASS:
        return math.copysign(a, -x), 1.0
    v = (_density(b) - _density(a)) / mass
    w = (a * _density(a) - b * _density(b)) / mass + v * v
    return math.copysign(v, -x), min(max(w, 0.0), 1.0)


# ---------------------------------------------------------------------------------------------------------------- Elo


@dataclass(frozen=True, slots=True, kw_only=True)
class Elo:
    """Elo's ratings: r += k (score - expected), expected = 1 / (1 + 10^((r_other - r) / 400)); single players.

    A game of more than two players counts as a duel of each with each, all of them before any rating moves.
    """

    mean: float = 1500.0
    k: float = 32.0
    """Points that a certain loser wins by a surprise."""

    @property
    def initial(self) -> Rating:
        return Rating(self.mean)

    def rate(self, teams: Sequence[Sequence[Rating]], ranks: Sequence[float]) -> list[list[Rating]]:
        _check_game(teams, ranks, largest_team=1)
        moved: list[list[Rating]] = []
        for i, (player,) in enumerate(teams):
            surplus = sum(
                _score(ranks[i], ranks[q]) - self.expected_score([player], other)
                for q, other in enumerate(teams)
                if q != i
            )
            moved.append([player._replace(mean=player.mean + self.k * surplus)])
        return moved

    def rate_duels(self, ratings: Floats, scores: Floats) -> Floats:
        after = ratings.copy()
        surplus = scores - 1 / (1 + 10 ** ((ratings[:, 1, 0] - ratings[:, 0, 0]) / 400))
        after[..., 0] += self.k * np.stack([surplus, -surplus], axis=1)
        return after

    def expected_scores(self, teams: Sequence[Sequence[Rating]]) -> Floats:
        _check_game(teams, range(len(teams)), largest_team=1)
        means = np.array([player.mean for (player,) in teams])
        return 1 / (1 + 10 ** (np.subtract.outer(means, means).T / 400))

    def expected_score(self, one: Sequence[Rating], other: Sequence[Rating]) -> float:
        _check_game([one, other], (0, 1), largest_team=1)
        return 1 / (1 + 10 ** ((other[0].mean - one[0].mean) / 400))

    def after_absence(self, rating: Rating, periods: float) -> Rating:  # noqa: ARG002
        """The rating itself: Elo does not know that it forgets."""
        return rating


# ----------------------------------------------------------------------------------------------------------- Glicko-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Glicko2:
    """Glicko-2: deviation and volatility beside the mean (Glickman, 2013); single players.

    A game of more than two players is one rating period of each against all others.
    """

    mean: float = 1500.0
    deviation: float = 350.0
    volatility: float = 0.06
    tau: float = 0.5
    """Bound of the change of the volatility; 0.3 to 1.2."""

    @property
    def initial(self) -> Rating:
        return Rating(self.mean, self.deviation, self.volatility)

    def rate_period(self, player: Rating, opponents: Sequence[Rating], scores: Sequence[float]) -> Rating:
        """The player's rating after one rating period of games with the scores; without one, after an absence."""
        if len(opponents) != len(scores):
            raise ValueError(f"{len(opponents)} opponents and {len(scores)} scores")
        if not opponents:
            return self.after_absence(player, 1.0)
        mean, phi = (player.mean - self.mean) / _GLICKO_SCALE, player.deviation / _GLICKO_SCALE
        information = surplus = 0.0
        for opponent, score in zip(opponents, scores, strict=True):
            g = _glicko_weight(opponent.deviation / _GLICKO_SCALE)
            x = g * (mean - (opponent.mean - self.mean) / _GLICKO_SCALE)
            x = min(max(x, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
            expected = 1 / (1 + math.exp(-x))
            information += g * g * expected / (1 + math.exp(x))
            surplus += g * (score - expected)
        volatility = self._volatility(phi, player.volatility, 1 / information, surplus / information)
        variance = 1 / (1 / (phi * phi + volatility**2) + information)
        mean += variance * surplus
        return Rating(self.mean + _GLICKO_SCALE * mean, _GLICKO_SCALE * math.sqrt(variance), volatility)

    def _volatility(self, phi: float, volatility: float, v: float, delta: float) -> float:
        """Step 5 of the system: the root of f by the Illinois method, between bounds on either side of it."""
        start = math.log(volatility**2)

        def f(x: float) -> float:
            grown = phi * phi + v + math.exp(x)
            return math.exp(x) * (delta * delta - grown) / (2 * grown * grown) - (x - start) / self.tau**2

        low = start
        if delta * delta > phi * phi + v:
            high = math.log(delta * delta - phi * phi - v)
        else:
            high = start - self.tau
            while f(high) < 0:
                high -= self.tau
        f_low, f_high = f(low), f(high)
        while abs(high - low) > _VOLATILITY_TOLERANCE:
            middle = low + (low - high) * f_low / (f_high - f_low)
            f_middle = f(middle)
            if f_middle * f_high <= 0:
                low, f_low = high, f_high
            else:
                f_low /= 2
            high, f_high = middle, f_middle
        return math.exp(low / 2)

    def rate(self, teams: Sequence[Sequence[Rating]], ranks: Sequence[float]) -> list[list[Rating]]:
        _check_game(teams, ranks, largest_team=1)
        return [
            [
                self.rate_period(
                    player,
                    [other for q, (other,) in enumerate(teams) if q != i],
                    [_score(ranks[i], rank) for q, rank in enumerate(ranks) if q != i],
                )
            ]
            for i, (player,) in enumerate(teams)
        ]

    def rate_duels(self, ratings: Floats, scores: Floats) -> Floats:
        after = ratings.copy()
        for row, score in enumerate(scores.tolist()):
            one, other = (Rating(*player) for player in ratings[row].tolist())
            rated = self.rate_period(one, [other], [score]), self.rate_period(other, [one], [1 - score])
            after[row] = np.array(rated)
        return after

    def expected_scores(self, teams: Sequence[Sequence[Rating]]) -> Floats:
        _check_game(teams, range(len(teams)), largest_team=1)
        means, deviations = np.array([player[:2] for (player,) in teams]).T / _GLICKO_SCALE
        x = np.subtract.outer(means, means) / np.sqrt(1 + 3 * np.add.outer(deviations**2, deviations**2) / math.pi**2)
        return 1 / (1 + np.exp(np.minimum(-x, _LARGEST_EXPONENT)))

    def expected_score(self, one: Sequence[Rating], other: Sequence[Rating]) -> float:
        return float(self.expected_scores([one, other])[0, 1])

    def after_absence(self, rating: Rating, periods: float) -> Rating:
        moved = (_GLICKO_SCALE * rating.volatility) ** 2 * max(periods, 0.0)
        grown = math.sqrt(rating.deviation**2 + moved)
        return rating._replace(deviation=max(min(grown, self.deviation), rating.deviation))


def _glicko_weight(phi: float) -> float:
    """g: how much a result against an opponent of this deviation tells."""
    return 1 / math.sqrt(1 + 3 * phi * phi / math.pi**2)


# ------------------------------------------------------------------------------------------------------ orders, games


def rank_agreement(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation of two columns `[n]`, n >= 2; ties share their mean rank. NaN if one is constant."""
    if len(one) != len(other) or len(one) < 2:
        raise ValueError(f"columns of {len(one)} and {len(other)} values have no rank correlation")
    ranks = [np.unique(column, return_inverse=True, return_counts=True) for column in (one, other)]
    centred = [(np.cumsum(counts) - (counts - 1) / 2)[place] - (len(one) + 1) / 2 for _, place, counts in ranks]
    scale = math.sqrt(float(centred[0] @ centred[0]) * float(centred[1] @ centred[1]))
    return float(centred[0] @ centred[1]) / scale if scale else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatrixEquilibrium:
    """A Nash equilibrium of a two-player zero-sum matrix game."""

    row: Floats
    """`[m]` probabilities of the row player, who receives the payoffs."""
    column: Floats
    """`[n]` probabilities of the column player, who pays them."""
    value: float
    """Payoff of the row player in it."""


def nash_mixture(payoffs: Floats) -> _MatrixEquilibrium:
    """Exact equilibrium of the zero-sum game with the row player's payoffs `[m, n]`, by the simplex method.

    With payoffs B > 0 the column player's programme is: maximise sum(y) with B y <= 1, y >= 0 (Dantzig, 1951); its
    duals are the row player's. Bland's rule keeps it from cycling. Of several equilibria it returns one vertex.
    Raises ValueError for an empty table or one that is not finite.
    """
    if payoffs.ndim != 2 or not payoffs.size or not np.isfinite(payoffs).all():
        raise ValueError(f"payoffs must be a finite table [m, n], got shape {payoffs.shape}")
    m, n = payoffs.shape
    least, spread = float(payoffs.min()), float(np.ptp(payoffs)) or 1.0
    table = np.zeros((m + 1, n + m + 1))
    table[:m, :n] = (payoffs - least) / spread + 1
    table[:m, n : n + m] = np.eye(m)
    table[:m, -1] = 1
    table[m, :n] = -1
    basis = list(range(n, n + m))
    while (entering := np.flatnonzero(table[m, :-1] < -_PIVOT)).size:
        column = int(entering[0])
        usable = np.flatnonzero(table[:m, column] > _PIVOT)
        ratios = table[usable, -1] / table[usable, column]
        row = min(usable[ratios <= ratios.min() + _PIVOT].tolist(), key=basis.__getitem__)
        pivot = table[row] / table[row, column]
        table -= np.outer(table[:, column], pivot)
        table[row] = pivot
        basis[row] = column
    plays = np.zeros(n + m)
    plays[basis] = table[:m, -1]
    column_mixture, row_mixture = np.maximum(plays[:n], 0), np.maximum(table[m, n : n + m], 0)
    value = (1 / float(table[m, -1]) - 1) * spread + least
    return _MatrixEquilibrium(
        row=row_mixture / row_mixture.sum(), column=column_mixture / column_mixture.sum(), value=value
    )
