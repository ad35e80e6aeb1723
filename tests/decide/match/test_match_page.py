"""The page of an evening: its three sections, and an evening without matches."""

from pathlib import Path

from hone.decide.match.page import write_match_page
from hone.estimators.ratings import Rating


def test_the_page_tells_waits_ratings_and_levels(tmp_path: Path) -> None:
    history = [(0.0, Rating(25, 8)), (60.0, Rating(28, 6))]
    write_match_page(
        tmp_path / "p.html", "An evening", waits_s=[1.0, 3.0, 9.0], imbalances=[0.1, 0.2, 0.3],
        histories={"ada": history, "nobody": []}, chances=[[0.9, 0.7, 0.6], [0.5]],
    )  # fmt: skip
    html = (tmp_path / "p.html").read_text()
    assert "3 matches. Half wait no longer than 3.0 s" in html and "mean imbalance |p - 1/2| is 0.2" in html
    assert html.count("<svg") == 3 and "ada" in html and "nobody" not in html
    assert "in 2 sessions" in html and "target of 65% is 0.125" in html  # (.25 + .05 + .05 + .15) / 4
    write_match_page(tmp_path / "e.html", "None", waits_s=[], imbalances=[], histories={})
    assert "<svg" not in (tmp_path / "e.html").read_text()
