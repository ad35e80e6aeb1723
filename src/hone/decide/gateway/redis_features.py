"""A feature store in Redis, for the gateways and writers of several hosts. Needs the extra `redis`.

An entity is a hash, `hone:features:TENANT:GROUP:ENTITY` (the tenant's special characters as in a URL); a field is a
feature, with `[value, at_s]` in JSON, so that any program can write one. A read is one round trip for all entities of
all decisions that are made together. The client keeps its connections, and makes new ones when the server comes back.
"""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from hone.core.errors import ConfigError, ResourceError
from hone.decide.gateway.feature_store import EntityKey, FeatureRow, StoredFeature, StoredRows
from hone.decide.log.protocol import log_name, without_secrets

PUT: Final = """
for i = 2, #ARGV, 2 do
  local sound, held = pcall(cjson.decode, redis.call('HGET', KEYS[1], ARGV[i]) or '')
  local at = sound and type(held) == 'table' and tonumber(held[2])
  if not at or not (at > tonumber(ARGV[1])) then
    if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
    else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
  end
end"""
"""Store fields of a hash: ARGV is the time, then names and values; an empty value removes the field."""
_ROWS: Final = 500
"""Rows of one round trip."""


def open_redis_features(address: str, wait_s: float) -> "_RedisFeatures":
    """A store at `redis://host:6379/0`, whose server is not asked yet. Raises ConfigError for an unsound address."""
    try:
        client = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
            address, socket_timeout=wait_s, socket_connect_timeout=wait_s, retry=Retry(NoBackoff(), 1),
            decode_responses=True,
        )  # fmt: skip
    except ValueError as error:
        words = without_secrets(error, address)
        raise ConfigError(f"{log_name(address)} is no address of a feature store: {words}") from None
    return _RedisFeatures(client, log_name(address), address)


@dataclass(slots=True)
class _RedisFeatures:
    """A `FeatureStore` over a Redis server."""

    client: redis.Redis
    name: str
    """Address, for messages."""
    _address: str = field(default="", repr=False)

    @contextmanager
    def _talking(self) -> Generator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            words = without_secrets(error, self._address)
            raise ResourceError(f"the feature store {self.name} does not answer: {words}") from error

    def read(self, wanted: Mapping[EntityKey, Sequence[str]]) -> StoredRows:
        """Values of entities, in one round trip; see `FeatureStore`. A value that is not `[value, at_s]` is none."""
        with self._talking(), self.client.pipeline(transaction=False) as pipeline:
            for key, names in wanted.items():
                pipeline.hmget(_redis_key(key), list(names))
            answers = cast("list[list[str | None]]", pipeline.execute())
        rows: StoredRows = {}
        for (key, names), values in zip(wanted.items(), answers, strict=True):
            stored = {name: _stored(text) for name, text in zip(names, values, strict=True) if text is not None}
            rows[key] = {name: one for name, one in stored.items() if one is not None}
        return rows

    def put(self, rows: Sequence[FeatureRow]) -> None:
        """Store values, each entity whole; see `FeatureStore`."""
        for begin in range(0, len(rows), _ROWS):
            with self._talking(), self.client.pipeline(transaction=False) as pipeline:
                for row in rows[begin : begin + _ROWS]:
                    fields = [
                        text
                        for name, value in row.values.items()
                        for text in (name, "" if value is None else json.dumps([value, row.at_s]))
                    ]
                    pipeline.eval(PUT, 1, _redis_key(row.key), repr(float(row.at_s)), *fields)
                pipeline.execute()

    def erase(self, keys: Sequence[EntityKey]) -> int:
        """Remove entities; see `FeatureStore`."""
        with self._talking(), self.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hlen(_redis_key(key))
                pipeline.delete(_redis_key(key))
            return sum(cast("list[int]", pipeline.execute())[::2]) if keys else 0

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def _redis_key(key: EntityKey) -> str:
    return f"hone:features:{quote(key.tenant, safe='')}:{key.group}:{key.entity}"


def _stored(text: str) -> StoredFeature | None:
    """The value that a field holds; None for one that another program wrote otherwise."""
    try:
        pair = cast("Any", json.loads(text))
        value, at_s = pair
    except (ValueError, TypeError):
        return None
    sound = isinstance(value, int | float | str) and isinstance(at_s, int | float) and math.isfinite(at_s)
    return StoredFeature(value, float(at_s)) if sound and not isinstance(value, bool) else None
