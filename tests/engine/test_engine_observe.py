"""Whoever watches sees every token of every answer, in its place, before the answer is handed out."""

import pytest
from engines import CONFIG, by_name, engine, request, same

from hone.core.generation import ScoreRequest, generate
from hone.engine.native.library import unavailable_reason
from hone.models.language.init import new_model

REQUESTS = [
    request(1, samples=3),
    request(2, length=90, samples=4, max_tokens=40),
    request(3, samples=40, max_tokens=3),
    request(4, top_p=0.7),
]


def kinds():
    return ["torch", *([] if unavailable_reason() else ["native"])]


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("changes", [{}, {"slots": 6, "pages": 15, "pass_tokens": 16}])
def test_tokens_are_seen_as_they_are_drawn(kind, changes):
    """With few pages answers are preempted, and may draw a token again: the latest counts."""
    model = new_model(CONFIG, seed=3)
    seen, finished, late = {}, {}, []

    def observe(tokens):
        for one in tokens:
            name = (one.request_id, one.sample_index)
            late.extend([name] if name in finished else [])
            answer = seen.setdefault(name, [])
            assert one.position <= len(answer), "no place is left out"
            answer[one.position :] = [one.token]

    watched = engine(model, kind=kind, **changes)
    watched.observer = observe
    for done in generate(watched, REQUESTS):
        finished[done.request_id, done.sample_index] = done
        assert seen[done.request_id, done.sample_index] == done.tokens.tolist()
    assert len(seen) == len(finished) == 48 and not late
    alone = by_name(generate(engine(model, kind=kind, **changes), REQUESTS))
    assert all(same(alone[name], done) for name, done in finished.items())
    if changes:
        assert watched.stats.preempted > 0


def test_what_is_scored_is_not_seen():
    watched = engine(new_model(CONFIG, seed=3))
    (done,) = generate(watched, [request(1)])
    watched.observer = lambda tokens: seen.extend(tokens)
    seen = []
    one = request(1)
    watched.score([ScoreRequest(prompt=one.prompt, tokens=done.tokens, sampling=one.sampling)])
    assert seen == []
