"""A provider of OpenFeature: an application that evaluates flags gets decisions by changing one line.

The flag is the service's name, its value an action; the targeting key is the unit, and attributes are the features.
Tracking an event tells a reward: its name is the kind, its details hold the value and `decision_id`.
Needs the extra `decide` (openfeature-sdk).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import FlagNotFoundError, InvalidContextError, TargetingKeyMissingError, TypeMismatchError
from openfeature.flag_evaluation import FlagResolutionDetails, FlagValueType, Reason
from openfeature.provider import AbstractProvider, Metadata
from openfeature.track import TrackingEventDetails

from hone.decide.gateway.opening import OpenedService
from hone.decide.gateway.requests import RequestError

ValueT = TypeVar("ValueT")
_TRUTH: Mapping[str, bool] = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


class HoneProvider(AbstractProvider):
    """OpenFeature provider over a service in this process: `api.set_provider(HoneProvider(shop))`.

    Attributes that are no features of the service are left out: applications merge many into one context.
    """

    def __init__(self, opened: OpenedService) -> None:
        super().__init__()
        self._opened = opened
        self._schema = {name.partition("=")[0] for name in opened.config.service.features}

    def get_metadata(self) -> Metadata:
        """The provider's name."""
        return Metadata(name="hone")

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        """The name of the action."""
        del default_value
        return self._resolve(flag_key, evaluation_context, str)

    def resolve_boolean_details(
        self,
        flag_key: str,
        default_value: bool,  # noqa: FBT001 - the interface of OpenFeature
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[bool]:
        """Actions `on` and `off`, `true` and `false`, or `yes` and `no`."""
        del default_value
        return self._resolve(flag_key, evaluation_context, lambda name: _TRUTH[name.lower()])

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        """Actions whose names are whole numbers."""
        del default_value
        return self._resolve(flag_key, evaluation_context, int)

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        """Actions whose names are numbers."""
        del default_value
        return self._resolve(flag_key, evaluation_context, float)

    def resolve_object_details(
        self,
        flag_key: str,
        default_value: Sequence[FlagValueType] | Mapping[str, FlagValueType],
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Sequence[FlagValueType] | Mapping[str, FlagValueType]]:
        """Not supported. Raises TypeMismatchError."""
        del default_value, evaluation_context
        raise TypeMismatchError(f"flag {flag_key!r}: actions are texts, numbers or truth values, not objects")

    def track(
        self,
        tracking_event_name: str,
        evaluation_context: EvaluationContext | None = None,
        tracking_event_details: TrackingEventDetails | None = None,
    ) -> None:
        """Tell the reward of the decision that the details name; an event without a decision is none of ours."""
        del evaluation_context
        details = tracking_event_details
        decision = None if details is None else details.attributes.get("decision_id")
        if details is not None and isinstance(decision, str):
            value = 1.0 if details.value is None else details.value
            self._opened.reward(decision, value, tracking_event_name)

    def _resolve(
        self, flag_key: str, context: EvaluationContext | None, convert: Callable[[str], ValueT]
    ) -> FlagResolutionDetails[ValueT]:
        """Decide; what cannot be decided is an error before anything is logged."""
        service = self._opened.config.service
        if flag_key != self._opened.folder.name:
            raise FlagNotFoundError(f"no flag {flag_key!r}; this provider serves {self._opened.folder.name!r}")
        if context is None or not context.targeting_key:
            raise TargetingKeyMissingError(f"flag {flag_key!r} needs a targeting key: the unit that it decides for")
        try:
            values = {name: convert(name) for name in service.actions}
        except (KeyError, ValueError):
            names = ", ".join(service.actions)
            message = f"flag {flag_key!r}: the actions {names} are not of the type that was asked for"
            raise TypeMismatchError(message) from None
        features = {name: value for name, value in context.attributes.items() if name in self._schema}
        try:
            decided = self._opened.decide(context.targeting_key, features)  # pyright: ignore[reportArgumentType]
        except RequestError as error:
            raise InvalidContextError(str(error)) from None
        metadata = {
            "decision_id": decided.id, "logp": decided.logp, "version": decided.version, "route": decided.route,
        }  # fmt: skip
        return FlagResolutionDetails(
            value=values[decided.action],
            variant=decided.action,
            reason=Reason.DEFAULT if decided.intervention else Reason.TARGETING_MATCH,
            flag_metadata=metadata,
        )
