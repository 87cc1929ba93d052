"""Buffers by configuration, in the shape trainers nest into their own: pydantic, `extra="forbid"`, `build()`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from sqlreplay.buffer import ReplayBuffer
from sqlreplay.config import SchemaMode, default_url
from sqlreplay.records import Expiry
from sqlreplay.rules import OnFull, TableConfig

__all__ = ["AsyncReplayBufferConfig", "SyncReplayBufferConfig"]


def read_table(value: Any) -> TableConfig:
    return value if isinstance(value, TableConfig) else TableConfig.from_json(value)


PlainTableConfig = Annotated[TableConfig, PlainValidator(read_table), PlainSerializer(TableConfig.to_json)]
"""A table's settings, also as the plain data that `TableConfig.to_json` gives."""


class BufferConfig(BaseModel):
    """What both presets share."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(default_factory=default_url)
    run: str = "default"
    expiry: Expiry = "group"
    tables: dict[str, PlainTableConfig] | None = None
    max_size: int | None = None
    max_bytes: int | None = None
    on_full: OnFull = "evict"
    seed: int | None = None
    fresh: bool = False
    schema_mode: SchemaMode = "upgrade"
    postgres_schema: str | None = None
    synchronous: Literal["normal", "full"] = "normal"
    busy_timeout_s: float = 60.0
    pool_size: int = 5

    def build_with(self, policy: str) -> ReplayBuffer[Any]:
        arguments = {name: value for name, value in self if name not in ("url", "schema_mode")}
        return ReplayBuffer(self.url, policy=policy, schema=self.schema_mode, **arguments)


class SyncReplayBufferConfig(BufferConfig):
    """On-policy training: groups come out first in, first out.

    buffer = SyncReplayBufferConfig(url="sqlite:///replay.db").build()
    """

    def build(self) -> ReplayBuffer[Any]:
        """Return a buffer that opens with its first verb."""
        return self.build_with("fifo")


class AsyncReplayBufferConfig(BufferConfig):
    """Off-policy training: the most stale groups come out first.

    buffer = AsyncReplayBufferConfig(url="postgresql://replay@db.example/rl").build()
    """

    def build(self) -> ReplayBuffer[Any]:
        """Return a buffer that opens with its first verb."""
        return self.build_with("staleness")
