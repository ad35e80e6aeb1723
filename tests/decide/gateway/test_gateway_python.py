"""The doors of Python: the context manager, and OpenFeature."""

import logging
from pathlib import Path

import pytest
from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.flag_evaluation import ErrorCode
from openfeature.track import TrackingEventDetails

from hone.api import serve_decisions
from hone.core.decisions import Decision, Outcome
from hone.decide.gateway.openfeature_provider import HoneProvider
from hone.decide.gateway.opening import pages

SHOP = """
[service]
features = ["age", "country=de"]
actions = ["on", "off"]
tenants = ["web"]
"""


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(SHOP, encoding="utf-8")
    return path


def test_a_service_is_a_context_manager_and_faults_are_warnings(shop_file: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING, "hone.decisions"), serve_decisions(str(shop_file)) as shop:
        decided = shop.decide("u42", {"age": 3.0, "country": "de"})
        assert decided.probability == pytest.approx(0.5)
        assert shop.reward(decided.id, 1.0).status == "joined"
        assert len(shop.view().table) == 1
        shop.service.parts.lines.fault("fallback", "timeout", {})
    assert "timeout" in caplog.text
    with serve_decisions(shop_file) as shop:
        assert len(shop.view().table) == 1


def test_an_application_of_openfeature_decides_and_rewards(shop_file: Path) -> None:
    with serve_decisions(shop_file) as shop:
        api.set_provider(HoneProvider(shop))
        client = api.get_client()
        context = EvaluationContext("u42", {"age": 3, "country": "de", "session": "x"})
        details = client.get_boolean_details("shop", False, context)
        assert details.error_code is None
        assert details.value == (details.variant == "on")
        client.track("reward", context, TrackingEventDetails(value=1.0, attributes=details.flag_metadata))
        client.track("page_view", context)
        records = [logged.record for logged in pages(shop.log)]
        assert isinstance(records[0], Decision) and isinstance(records[1], Outcome)
        assert records[1].decision_id == records[0].id == details.flag_metadata["decision_id"]
        assert client.get_string_value("shop", "neither", context) in ("on", "off")
        faults = [
            (client.get_boolean_details("other", True, context), ErrorCode.FLAG_NOT_FOUND),
            (client.get_boolean_details("shop", True), ErrorCode.TARGETING_KEY_MISSING),
            (client.get_integer_details("shop", 7, context), ErrorCode.TYPE_MISMATCH),
            (client.get_object_details("shop", {}, context), ErrorCode.TYPE_MISMATCH),
            (client.get_string_details("shop", "x", EvaluationContext("u")), ErrorCode.INVALID_CONTEXT),
        ]
        assert [found.error_code for found, _ in faults] == [expected for _, expected in faults]
        before = len(records) + 1  # the string above; nothing is logged for a fault
        assert len(list(pages(shop.log))) == before
        api.clear_providers()
