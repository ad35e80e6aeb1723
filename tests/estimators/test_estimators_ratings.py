"""Ratings: values by hand, invariances, and slow versions that share no formula with the module."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import mpmath
import numpy as np
import pytest

from hone.core.random import generator
from hone.estimators.ratings import (
    Elo,
    Floats,
    Glicko2,
    Rating,
    RatingSystem,
    WengLin,
    fit_ratings,
    rank_agreement,
    rate_games,
)

Exact: TypeAlias = Any
"""A number of mpmath."""
LOGISTIC, NORMAL = WengLin(drift=0.0), WengLin(form="normal", drift=0.0, draw_margin=0.0)
SYSTEMS: list[RatingSystem] = [WengLin(), WengLin(form="normal", damped=False), Elo(), Glicko2()]
V, C2 = (25 / 3) ** 2, 2 * (25 / 3) ** 2 + 2 * (25 / 6) ** 2


# ------------------------------------------------------------------------------------------------------ values by hand


def test_a_first_game_moves_both_by_half_of_their_variance_over_c() -> None:
    (won,), (lost,) = LOGISTIC.rate([[LOGISTIC.initial], [LOGISTIC.initial]], [1, 2])
    # p = 1/2, c^2 = 2 v + v / 2 = 2.5 v: mean +- v / 2c, variance * (1 - sqrt(1 / 2.5) / 4 / 2.5)
    assert won.mean == pytest.approx(25 + V / 2 / math.sqrt(C2), rel=1e-14)
    assert (won.mean, lost.mean) == pytest.approx((27.63523138347365, 22.36476861652635), rel=1e-13)
    assert won.deviation == lost.deviation == pytest.approx(25 / 3 * math.sqrt(1 - math.sqrt(0.4) / 10), rel=1e-13)


def test_the_normal_form_of_a_first_game() -> None:
    (won,), _ = NORMAL.rate([[NORMAL.initial], [NORMAL.initial]], [1, 2])
    # V(0) = phi(0) / (1/2) = sqrt(2 / pi), W(0) = V^2 = 2 / pi
    assert won.mean == pytest.approx(25 + V * math.sqrt(2 / math.pi) / math.sqrt(C2), rel=1e-13)
    assert won.deviation == pytest.approx(25 / 3 * math.sqrt(1 - math.sqrt(0.4) * 2 / math.pi / 2.5), rel=1e-13)


def test_a_draw_of_equals_moves_no_mean_and_tells_something() -> None:
    for system in SYSTEMS:
        (one,), (other,) = system.rate([[system.initial], [system.initial]], [1, 1])
        assert one.mean == other.mean == system.initial.mean
        assert one.deviation < system.initial.deviation or system.initial.deviation == 0
    # With no margin a draw says that the performances were equal: W = 1
    (one,), _ = NORMAL.rate([[NORMAL.initial], [NORMAL.initial]], [1, 1])
    assert one.deviation == pytest.approx(25 / 3 * math.sqrt(1 - math.sqrt(0.4) / 2.5), rel=1e-13)


def test_a_draw_pulls_the_stronger_one_down() -> None:
    for system in SYSTEMS:
        strong = system.initial._replace(mean=system.initial.mean * 1.2)
        (after,), (weak,) = system.rate([[strong], [system.initial]], [5, 5])
        assert after.mean < strong.mean and weak.mean > system.initial.mean


def test_without_damping_a_result_shrinks_the_variance_as_a_kalman_filter_does() -> None:
    system = WengLin(drift=0.0, damped=False, beta=0.0)
    (won,), (lost,) = system.rate([[Rating(0, 3)], [Rating(0, 4)]], [1, 2])
    # c = 5, p = 1/2: variances 9 and 16 shrink by 9 / 25 / 4 and 16 / 25 / 4
    assert won.deviation == pytest.approx(3 * math.sqrt(1 - 9 / 100), rel=1e-14)
    assert lost.deviation == pytest.approx(4 * math.sqrt(1 - 16 / 100), rel=1e-14)


def test_elo_of_equals_and_of_400_points() -> None:
    elo = Elo()
    assert elo.rate([[Rating(1500)], [Rating(1500)]], [1, 2]) == [[Rating(1516)], [Rating(1484)]]
    assert elo.expected_score([Rating(1900)], [Rating(1500)]) == pytest.approx(10 / 11, rel=1e-14)
    (upset,), _ = elo.rate([[Rating(1500)], [Rating(1900)]], [1, 2])
    assert upset.mean == pytest.approx(1500 + 32 * 10 / 11, rel=1e-14)


def test_glicko_gives_the_example_of_its_paper() -> None:
    opponents = [Rating(1400, 30, 0.06), Rating(1550, 100, 0.06), Rating(1700, 300, 0.06)]
    after = Glicko2().rate_period(Rating(1500, 200, 0.06), opponents, [1, 0, 0])
    assert after.mean == pytest.approx(1464.06, abs=0.01)
    assert after.deviation == pytest.approx(151.52, abs=0.01)
    assert after.volatility == pytest.approx(0.05999, abs=1e-5)


def test_an_absence_widens_the_deviation_up_to_that_of_a_new_player() -> None:
    glicko, weng_lin = Glicko2(), WengLin()
    settled = glicko.rate_period(Rating(1500, 200, 0.06), [], [])
    assert settled.deviation == pytest.approx(math.hypot(200, 0.06 * 400 / math.log(10)), rel=1e-14)
    assert glicko.after_absence(settled, 1e9).deviation == 350.0
    assert weng_lin.after_absence(Rating(30, 3), 36).deviation == pytest.approx(math.hypot(3, 0.5), rel=1e-14)
    assert weng_lin.after_absence(Rating(30, 3), 1e9) == Rating(30, 25 / 3)
    for system in SYSTEMS:  # a clock that went back takes nothing away
        assert system.after_absence(Rating(30, 3, 0.06), -5.0) == Rating(30, 3, 0.06)
        assert system.after_absence(Rating(30, 9e9, 0.06), 5.0) == Rating(30, 9e9, 0.06)


# --------------------------------------------------------------------------------------------------- slow versions


def slow_weng_lin(system: WengLin, teams: Sequence[Sequence[Rating]], ranks: Sequence[float]) -> list[list[Rating]]:
    """The update from its definition: first and second derivative of the log-likelihood of each pair's result."""

    def likelihood(x: Exact, margin: Exact, rank: float, other: float) -> Exact:
        if system.form == "logistic":
            win = 1 / (1 + mpmath.e**-x)
            return win if rank < other else 1 - win if rank > other else mpmath.sqrt(win * (1 - win))
        above, below = mpmath.ncdf(x - margin), mpmath.ncdf(-x - margin)
        return above if rank < other else below if rank > other else 1 - above - below

    after: list[list[Rating]] = []
    with mpmath.workdps(40):
        tau, beta = mpmath.mpf(system.drift), mpmath.mpf(system.beta)
        means = [mpmath.fsum(mpmath.mpf(player.mean) for player in team) for team in teams]
        variances = [mpmath.fsum(mpmath.mpf(player.deviation) ** 2 + tau**2 for player in team) for team in teams]
        for i, team in enumerate(teams):
            omega = delta = mpmath.mpf(0)
            for q in set(range(len(teams))) - {i}:
                c = mpmath.sqrt(variances[i] + variances[q] + 2 * beta**2)

                def log(x: Exact, c: Exact = c, i: int = i, q: int = q) -> Exact:
                    return mpmath.log(likelihood(x, system.draw_margin / c, ranks[i], ranks[q]))

                place = (means[i] - means[q]) / c
                omega += variances[i] / c * mpmath.diff(log, place)
                damping = mpmath.sqrt(variances[i]) / c if system.damped else 1
                delta -= damping * variances[i] / c**2 * mpmath.diff(log, place, 2)
            after.append([])
            for player in team:
                variance = mpmath.mpf(player.deviation) ** 2 + tau**2
                share = variance / variances[i]
                shrunk = variance * max(1 - share * delta, mpmath.mpf(system.floor))
                after[-1].append(Rating(float(player.mean + share * omega), float(mpmath.sqrt(shrunk))))
    return after


def drawn_ratings(system: RatingSystem, count: int, *ids: int) -> list[Rating]:
    random = generator(7, "ratings", *ids)
    scale = system.initial.mean / 5
    return [
        Rating(system.initial.mean + scale * float(z), scale * float(u) / 2, system.initial.volatility)
        for z, u in zip(random.normal(size=count), random.uniform(0.1, 1, count), strict=True)
    ]


@pytest.mark.parametrize("form", ["logistic", "normal"])
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (1, 1), (1, 2, 3), (2, 1, 1), (1, 3, 2, 3)])
def test_weng_lin_equals_the_derivatives_of_the_likelihood(form: str, ranks: tuple[int, ...]) -> None:
    logistic = form == "logistic"
    system = WengLin(form="logistic" if logistic else "normal", draw_margin=0.7, damped=ranks != (2, 1, 1))
    players = iter(drawn_ratings(system, 12, len(ranks)))
    teams = [[next(players) for _ in range(1 + number % 3)] for number in range(len(ranks))]
    for team, slow in zip(system.rate(teams, ranks), slow_weng_lin(system, teams, ranks), strict=True):
        np.testing.assert_allclose(np.array(team), np.array(slow), rtol=2e-11)


@pytest.mark.parametrize("gap", [0.0, 3.0, 20.0, 29.9, 30.1, 200.0])
def test_the_normal_form_holds_in_the_farthest_tails(gap: float) -> None:
    system = WengLin(form="normal", drift=0.0, beta=1 / math.sqrt(2), floor=1e-12)  # c = 1 for certain players
    strong, weak = Rating(gap, 1e-9), Rating(0.0, 1e-9)
    step = (system.rate([[strong], [weak]], [2, 1])[1][0].mean) * 1e18
    with mpmath.workdps(50):
        x = mpmath.mpf(-gap) - mpmath.mpf(0.1)
        exact = mpmath.npdf(x) / mpmath.ncdf(x)
    assert step == pytest.approx(float(exact), rel=1e-5)
    drawn = system.rate([[strong], [weak]], [1, 1])[1][0].mean * 1e18
    assert gap - 0.1 <= drawn <= gap + 1e-9  # between the two ends of a draw


def slow_glicko(player: Rating, opponents: Sequence[Rating], scores: Sequence[float], tau: float) -> Rating:
    """The system in the points of its first form, its volatility by bisection of the scaled equation."""
    q = math.log(10) / 400
    g = [1 / math.sqrt(1 + 3 * q * q * other.deviation**2 / math.pi**2) for other in opponents]
    e = [1 / (1 + 10 ** (-w * (player.mean - other.mean) / 400)) for w, other in zip(g, opponents, strict=True)]
    d2 = 1 / (q * q * sum(w * w * p * (1 - p) for w, p in zip(g, e, strict=True)))
    total = sum(w * (s - p) for w, s, p in zip(g, scores, e, strict=True))
    phi2, v, delta = (q * player.deviation) ** 2, d2 * q * q, d2 * q * q * total

    def f(x: float) -> float:
        grown = phi2 + v + math.exp(x)
        return math.exp(x) * (delta**2 - grown) / (2 * grown**2) - (x - math.log(player.volatility**2)) / tau**2

    low, high = -60.0, 20.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    before = player.deviation**2 + math.exp(low) / q**2
    variance = 1 / (1 / before + 1 / d2)
    return Rating(player.mean + q * variance * total, math.sqrt(variance), math.exp(low / 2))


def test_glicko_equals_its_slow_version() -> None:
    system = Glicko2()
    for number in range(30):
        player, *opponents = drawn_ratings(system, 2 + number % 5, number)
        scores = generator(3, "scores", number).choice([0.0, 0.5, 1.0], len(opponents)).tolist()
        slow = slow_glicko(player, opponents, scores, system.tau)
        np.testing.assert_allclose(system.rate_period(player, opponents, scores), slow, rtol=1e-6)
    surprise = system.rate_period(Rating(1500, 30, 0.06), [Rating(2400, 30, 0.06)] * 4, [1.0] * 4)
    np.testing.assert_allclose(
        surprise, slow_glicko(Rating(1500, 30, 0.06), [Rating(2400, 30, 0.06)] * 4, [1.0] * 4, 0.5), rtol=1e-6
    )
    assert surprise.volatility > 0.06


# ------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_order_of_teams_changes_nothing(system: RatingSystem) -> None:
    players, ranks = [[one] for one in drawn_ratings(system, 4)], [2, 1, 2, 4]
    after = system.rate(players, ranks)
    for order in itertools.permutations(range(4)):
        again = system.rate([players[i] for i in order], [ranks[i] for i in order])
        np.testing.assert_allclose(np.array(again), np.array([after[i] for i in order]), rtol=1e-12)
    np.testing.assert_array_equal(np.array(after), np.array(system.rate(players, [-3.5, -8, -3.5, 100])))


@pytest.mark.parametrize("system", SYSTEMS)
def test_winners_rise_losers_fall_and_results_tell(system: RatingSystem) -> None:
    for number in range(20):
        one, other = drawn_ratings(system, 2, 50 + number)
        (won,), (lost,) = system.rate([[one], [other]], [0, 1])
        assert won.mean > one.mean and lost.mean < other.mean
        expected = system.expected_score([one], [other])
        assert expected + system.expected_score([other], [one]) == pytest.approx(1, abs=1e-12)
        assert (expected > 0.5) == (one.mean > other.mean)


def test_expected_scores_by_hand() -> None:
    # c^2 = 3^2 + 4^2 + 2 beta^2 with beta^2 = 12: c = 7, x = 1 for teams of 27 and 20
    one, other = [Rating(15, 0.0), Rating(12, 3.0)], [Rating(20, 4.0)]
    beta = math.sqrt(12)
    logistic = WengLin(beta=beta).expected_scores([one, other])
    np.testing.assert_allclose(logistic, [[0.5, 1 / (1 + math.exp(-1))], [1 / (1 + math.exp(1)), 0.5]], rtol=1e-14)
    normal = WengLin(form="normal", beta=beta).expected_scores([one, other])
    np.testing.assert_allclose(normal[0, 1], 0.8413447460685429, rtol=1e-14)
    # Glickman's example: E of 1500 against 1400 with deviation 30 and a certain player is .639
    assert Glicko2().expected_score([Rating(1500)], [Rating(1400, 30)]) == pytest.approx(0.639, abs=5e-4)
    for system in SYSTEMS:
        players = [[player] for player in drawn_ratings(system, 5)]
        table = system.expected_scores(players)
        slow = [[system.expected_score(one, other) for other in players] for one in players]
        np.testing.assert_allclose(table, slow, rtol=1e-13)


@pytest.mark.parametrize("system", [WengLin(), WengLin(form="normal"), Glicko2()])
def test_a_less_certain_player_is_expected_nearer_to_one_half_and_moves_more(system: RatingSystem) -> None:
    low, high = system.initial._replace(deviation=system.initial.deviation / 5), system.initial
    strong = system.initial._replace(mean=system.initial.mean * 1.3, deviation=low.deviation)
    vague = strong._replace(deviation=high.deviation)
    assert 0.5 < system.expected_score([vague], [low]) < system.expected_score([strong], [low])
    (moved,), _ = system.rate([[vague], [low]], [2, 1])
    (stayed,), _ = system.rate([[strong], [low]], [2, 1])
    assert vague.mean - moved.mean > strong.mean - stayed.mean > 0


def test_the_least_certain_of_a_team_moves_most_and_certain_ones_stay() -> None:
    for form in ("logistic", "normal"):
        system = WengLin(form=form, drift=0.0)
        party = [Rating(25, 6), Rating(25, 3), Rating(25, 0)]
        after, _ = system.rate([party, [Rating(75, 5)]], [1, 2])
        gains = [new.mean - old.mean for new, old in zip(after, party, strict=True)]
        assert gains[0] == pytest.approx(4 * gains[1]) and gains[1] > 0 == gains[2]
        assert after[2] == party[2]


@pytest.mark.parametrize("system", SYSTEMS)
def test_games_in_columns_are_the_games_one_by_one(system: RatingSystem) -> None:
    random, players = generator(5, "games"), 9
    pairs = np.array([random.choice(players, 2, replace=False) for _ in range(60)])
    scores = random.choice([0.0, 0.5, 1.0], 60)
    before: Floats = np.array(drawn_ratings(system, players))
    slow = before.copy()
    for pair, score in zip(pairs, scores, strict=True):
        teams = [[Rating(*slow[player])] for player in pair]
        slow[pair] = np.array(system.rate(teams, [1 - score, score]))[:, 0]
    np.testing.assert_allclose(rate_games(system, before, pairs, scores), slow, rtol=1e-11)
    assert rate_games(system, before, pairs[:0], scores[:0]).tolist() == before.tolist()


def test_a_fit_to_one_game_by_hand_and_to_none() -> None:
    # Prior 1, c = 1: the difference d of two players with one win solves d = 2 (1 - sigmoid(d)): d = .6748316
    system = WengLin(mean=0.0, deviation=1.0, beta=1 / math.sqrt(2))
    ratings = fit_ratings(system, 3, np.array([[0, 1]]), np.array([1.0]))
    d = float(ratings[0, 0] - ratings[1, 0])
    assert d == pytest.approx(2 / (1 + math.exp(d)), abs=1e-9) and d == pytest.approx(0.6748316, abs=1e-6)
    assert ratings[2].tolist() == [0.0, 1.0, 0.0]
    # Precision [[1 + w, -w], [-w, 1 + w]] with w = p (1 - p): variance (1 + w) / (1 + 2 w)
    w = 1 / (1 + math.exp(-d)) / (1 + math.exp(d))
    assert ratings[0, 1] == pytest.approx(math.sqrt((1 + w) / (1 + 2 * w)), rel=1e-9)
    empty = fit_ratings(WengLin(), 2, np.zeros((0, 2), np.int64), np.zeros(0))
    np.testing.assert_allclose(empty, [[25.0, 25 / 3, 0.0]] * 2)


def test_a_fit_is_the_maximum_of_the_posterior_and_knows_more_than_one_pass() -> None:
    random, system = generator(9, "fit"), WengLin()
    skills = random.normal(size=12) * 25 / 3
    pairs = np.array([random.choice(12, 2, replace=False) for _ in range(240)])
    c = math.sqrt(2) * system.beta
    scores = (random.uniform(size=240) < 1 / (1 + np.exp((skills[pairs[:, 1]] - skills[pairs[:, 0]]) / c))).astype(
        float
    )

    def posterior(means: Floats) -> float:
        x = (means[pairs[:, 0]] - means[pairs[:, 1]]) / c
        likelihood = scores * -np.logaddexp(0, -x) + (1 - scores) * -np.logaddexp(0, x)
        return float(likelihood.sum() - ((means - system.mean) ** 2).sum() / (2 * system.deviation**2))

    fitted = fit_ratings(system, 12, pairs, scores)
    best = posterior(fitted[:, 0])
    for player in range(12):
        for step in (-0.01, 0.01):
            assert posterior(fitted[:, 0] + step * (np.arange(12) == player)) < best
    order = random.permutation(240)
    np.testing.assert_allclose(fit_ratings(system, 12, pairs[order], scores[order]), fitted, atol=1e-8)
    online = rate_games(system, np.tile(np.array(system.initial), (12, 1)), pairs, scores)
    assert rank_agreement(fitted[:, 0], skills) >= rank_agreement(online[:, 0], skills)


def test_a_fit_to_games_of_teams_is_the_maximum_of_the_posterior_too() -> None:
    random, system = generator(10, "teams"), WengLin()
    c = math.sqrt(2) * system.beta
    games = np.array([random.choice(9, 6, replace=False) for _ in range(120)]).reshape(120, 2, 3)
    games[random.random(120) < 0.4, 1, 2] = -1  # three against two
    games[:10, :, 1:] = -1  # duels among them
    scores = random.choice([0.0, 0.5, 1.0], 120)

    def posterior(means: Floats) -> float:  # a game after another, as the definition says
        total = -float(((means - system.mean) ** 2).sum()) / (2 * system.deviation**2)
        for (one, other), score in zip(games, scores, strict=True):
            x = (sum(means[k] for k in one if k >= 0) - sum(means[k] for k in other if k >= 0)) / c
            total -= score * np.logaddexp(0, -x) + (1 - score) * np.logaddexp(0, x)
        return total

    fitted = fit_ratings(system, 9, games, scores)
    best = posterior(fitted[:, 0])
    for player in range(9):
        for step in (-0.01, 0.01):
            assert posterior(fitted[:, 0] + step * (np.arange(9) == player)) < best
    # deviations by a numerical Hessian of the posterior
    h, eye = 1e-2, np.eye(9)
    hessian = np.array([[
        (posterior(fitted[:, 0] + h * (a + b)) - posterior(fitted[:, 0] + h * (a - b))
         - posterior(fitted[:, 0] - h * (a - b)) + posterior(fitted[:, 0] - h * (a + b))) / (4 * h * h)
        for b in eye] for a in eye])  # fmt: skip
    np.testing.assert_allclose(fitted[:, 1], np.sqrt(np.diag(np.linalg.inv(-hessian))), rtol=1e-4)
    exchanged = fit_ratings(system, 9, games[:, ::-1, ::-1], 1 - scores)  # neither sides nor places in a team matter
    np.testing.assert_allclose(exchanged, fitted, atol=1e-8)
    duels = games[:10, :, :1]
    np.testing.assert_allclose(
        fit_ratings(system, 9, games[:10], scores[:10]), fit_ratings(system, 9, duels[:, :, 0], scores[:10]), atol=1e-9
    )


def test_hopeless_gaps_stay_finite() -> None:
    for system in SYSTEMS:
        weak = system.initial._replace(deviation=1.0)
        strong = weak._replace(mean=20_000.0)
        for ranks in ([1, 2], [2, 1], [1, 1]):
            assert np.isfinite(np.array(system.rate([[strong], [weak]], ranks))).all()
        assert system.expected_score([strong], [weak]) == pytest.approx(1.0)


def test_games_that_are_none_are_refused_with_what_is_wrong() -> None:
    one = Rating(25, 8)
    for system in SYSTEMS:
        with pytest.raises(ValueError, match="two teams or more"):
            system.rate([[one]], [1])
        with pytest.raises(ValueError, match="1 ranks"):
            system.rate([[one], [one]], [1])
        with pytest.raises(ValueError, match=r"teams \[1\] have no player"):
            system.rate([[one], []], [1, 2])
        with pytest.raises(ValueError, match="ranks must be finite"):
            system.rate([[one], [one]], [1, math.nan])
    for system in (Elo(), Glicko2()):
        with pytest.raises(ValueError, match="not a team of 2; WengLin rates teams"):
            system.rate([[one, one], [one]], [1, 2])
        with pytest.raises(ValueError, match="not a team of 2"):
            system.expected_score([one, one], [one])
    with pytest.raises(ValueError, match="1 opponents and 2 scores"):
        Glicko2().rate_period(one, [one], [1, 0])
