"""A gateway whose log's server is killed: alive and not ready, then ready again, and no password on any screen."""

import re
import runpy
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from log_servers import LogServer, MissingServerError, postgres_server, redis_server

GATEWAY = Path(__file__).resolve().parents[2] / "gateway"
PASSWORD = "hunter2"


def until(check: Callable[[], bool]) -> None:
    """Wait, for a minute at most, until something holds."""
    last = time.monotonic() + 300
    while not check():
        assert time.monotonic() < last
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("make", [postgres_server, redis_server])
def test_a_gateway_without_its_log_is_alive_and_not_ready_and_comes_back(
    make: Callable[[], LogServer], tmp_path: Path
) -> None:
    serving = runpy.run_path(str(GATEWAY / "gateway_process.py"))["serving"]

    pytest.importorskip("psycopg" if make is postgres_server else "redis", reason="needs the extra")
    try:
        log = make()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    file = tmp_path / "shop.toml"
    log.start()
    try:
        address = log.address
        if make is postgres_server:  # which trusts everybody
            address = re.sub(r"://(\w+)@", rf"://\1:{PASSWORD}@", address)
        file.write_text(f'[service]\nactions = ["a", "b"]\n[log]\naddress = "{address}"\n')
        with serving(file) as gateway:
            status = lambda path: httpx2.get(f"http://127.0.0.1:{gateway.port}{path}", timeout=300).status_code  # noqa: E731
            decided = lambda: gateway.post("/v1/decide", {"unit": "u"})[0]  # noqa: E731
            assert (decided(), status("/live"), status("/ready"), status("/health")) == (200, 200, 200, 200)
            log.kill()
            until(lambda: status("/ready") == 503)
            assert (decided(), status("/live"), status("/health")) == (503, 200, 503)
            log.start()
            until(lambda: status("/ready") == 200)
            assert decided() == 200
            gateway.process.send_signal(signal.SIGTERM)
            told, _ = gateway.process.communicate(timeout=300)
            assert gateway.process.returncode == 0
            assert "log_unavailable" in told and PASSWORD not in told
    finally:
        log.remove()
