"""A table that is given in part keeps the rest of its field's own default, from whatever door it comes."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from hone.core.config import Config, new_default


class Optimizer(Config):
    lr: float = 3e-4
    minibatches: int = 1


class Straight(Config):
    kind: Literal["straight"] = "straight"
    end: float = 0.0
    optimizer: Optimizer = Optimizer(lr=0.5)


class Bent(Config):
    kind: Literal["bent"] = "bent"
    end: float = 0.9
    power: float = 2.0


Schedule = Annotated[Straight | Bent, Field(discriminator="kind")]


class Run(Config):
    learner: Optimizer = Optimizer(lr=1e-3, minibatches=4)
    schedule: Schedule = Straight(end=0.1, optimizer=Optimizer(lr=0.25))
    perhaps: Schedule | None = Bent(power=3.0)
    none: Optimizer | None = None
    stages: list[Optimizer] = Field(default_factory=lambda: [Optimizer(lr=9.0)])


def test_the_other_keys_of_the_default_stay() -> None:
    assert Run.model_validate({"learner": {"minibatches": 2}}).learner == Optimizer(lr=1e-3, minibatches=2)
    assert Run.model_validate_json('{"learner": {"minibatches": 2}}').learner == Optimizer(lr=1e-3, minibatches=2)
    assert Run.model_validate({"learner": {}}) == Run()


def test_tables_in_tables_are_completed_too() -> None:
    got = Run.model_validate({"schedule": {"optimizer": {"minibatches": 7}}}).schedule
    assert got == Straight(end=0.1, optimizer=Optimizer(lr=0.25, minibatches=7))


def test_a_union_keeps_its_member_until_another_is_named() -> None:
    got = Run.model_validate({"schedule": {"end": 0.3}, "perhaps": {"end": 0.3}})
    assert got.schedule == Straight(end=0.3, optimizer=Optimizer(lr=0.25))
    assert got.perhaps == Bent(end=0.3, power=3.0)
    assert Run.model_validate({"schedule": {"kind": "bent"}}).schedule == Bent()
    assert Run.model_validate({"perhaps": {"kind": "straight"}}).perhaps == Straight()


def test_what_has_no_default_instance_takes_its_class() -> None:
    got = Run.model_validate({"none": {"minibatches": 2}, "stages": [{"minibatches": 3}]})
    assert (got.none, got.stages) == (Optimizer(minibatches=2), [Optimizer(minibatches=3)])
    assert Run.model_validate({"perhaps": None}).perhaps is None


def test_the_given_dictionary_is_left_alone_and_instances_pass() -> None:
    given = {"learner": {"minibatches": 2}}
    Run.model_validate(given)
    assert given == {"learner": {"minibatches": 2}}
    assert Run.model_validate({"learner": Optimizer(minibatches=2)}).learner == Optimizer(minibatches=2)
    assert Run(learner=Optimizer(minibatches=2)).learner == Optimizer(minibatches=2)


class Slow(Optimizer):
    lr: float = Field(default=0.1, gt=0)
    """Learning rate."""


class Slower(Slow):
    lr = new_default(0.01)
    minibatches = new_default(3, "Parts of a batch.")


class Slowest(Slower):
    lr = new_default(0.001)


def test_another_default_keeps_type_bounds_and_sentence() -> None:
    assert [kind() for kind in (Slow, Slower, Slowest)] == [
        Slow(lr=0.1, minibatches=1), Slower(lr=0.01, minibatches=3), Slowest(lr=0.001, minibatches=3)
    ]  # fmt: skip
    assert list(Slowest.model_fields) == list(Optimizer.model_fields)
    assert Slowest.model_fields["lr"].description == "Learning rate."
    assert Slowest.model_fields["minibatches"].description == "Parts of a batch."
    with pytest.raises(ValidationError, match="greater than 0"):
        Slowest(lr=0.0)
    assert Slowest.model_validate({"minibatches": 2}).lr == 0.001


def test_faults_are_found_where_they_stand() -> None:
    with pytest.raises(ValidationError) as caught:
        Run.model_validate({"learner": {"lrr": 1, "lr": "1e-3"}, "schedule": {"power": 1.0}})
    assert {fault["loc"] for fault in caught.value.errors()} == {
        ("learner", "lrr"),
        ("learner", "lr"),
        ("schedule", "straight", "power"),
    }
