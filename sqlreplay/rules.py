"""A table's settings: what is stored with its task, so that every process agrees."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sqlreplay.errors import BadArgument
from sqlreplay.limiters import LIMITERS, MinSize, RateLimiter, check_size
from sqlreplay.policy import SELECTORS, Fifo, Selector, Uniform, selector_named

__all__ = ["Capacity", "OnFull", "TableConfig"]

UNIFORM, FIFO, NOT_EMPTY = Uniform(), Fifo(), MinSize(1)
OnFull = Literal["evict", "block", "reject"]


@dataclass(frozen=True)
class Capacity:
    """How much fits, and what becomes of a group that would be too much. None is no limit.

    "evict" lets others give way, "block" lets the put wait, "reject" raises `TableFull`.
    """

    max_size: int | None = None
    max_bytes: int | None = None
    on_full: OnFull = "evict"

    def __post_init__(self) -> None:
        for name in ("max_size", "max_bytes"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.on_full not in ("evict", "block", "reject"):
            raise BadArgument(f"on_full is {self.on_full!r}, expected 'evict', 'block' or 'reject'.")

    @property
    def is_limited(self) -> bool:
        return self.max_size is not None or self.max_bytes is not None

    def overflow(self, size: int, size_bytes: int) -> str | None:
        """Say what would be exceeded, if anything."""
        if self.max_size is not None and size > self.max_size:
            return f"max_size={self.max_size} groups"
        if self.max_bytes is not None and size_bytes > self.max_bytes:
            return f"max_bytes={self.max_bytes}"
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Capacity":
        return cls(**stored)


@dataclass(frozen=True)
class TableConfig:
    """How one task is sampled, limited and emptied.

        ReplayBuffer(url, tables={"math": TableConfig(sampler=Prioritized(0.6), max_size=100_000)})

    `sampler` chooses what `sample` gives, `remover` what gives way when the table is full. A group leaves after it was
    sampled `max_times_sampled` times; 0 is no limit.
    """

    sampler: Selector = UNIFORM
    remover: Selector = FIFO
    max_size: int | None = None
    max_times_sampled: int = 0
    rate_limiter: RateLimiter = NOT_EMPTY
    max_bytes: int | None = None
    on_full: OnFull = "evict"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", selector_named("sampler", self.sampler))
        object.__setattr__(self, "remover", selector_named("remover", self.remover))
        _ = self.capacity
        if self.max_times_sampled != 0:
            check_size("max_times_sampled", self.max_times_sampled)
        if type(self.rate_limiter) not in LIMITERS.values():
            raise BadArgument(f"rate_limiter is {self.rate_limiter!r}, expected one of {', '.join(LIMITERS)}.")
        if self.max_size is not None and self.max_size < self.rate_limiter.min_size:
            raise BadArgument(
                f"max_size={self.max_size} is less than {self.rate_limiter!r} waits for: nothing could ever be sampled."
            )
        if self.sampler == self.remover == FIFO and self.max_times_sampled == 0:
            warnings.warn(
                "A Fifo sampler with a Fifo remover and no max_times_sampled gives the same oldest groups in every "
                "sample until the table is full and they are evicted. For a queue, in which each group is sampled "
                "once, use Table.queue(...) or max_times_sampled=1.",
                stacklevel=3,
            )

    @property
    def capacity(self) -> Capacity:
        return Capacity(self.max_size, self.max_bytes, self.on_full)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `from_json` gives an equal object, with defaults for what is left out."""
        stored = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("sampler", "remover", "rate_limiter"):
            stored[name] = {type(stored[name]).__name__: asdict(stored[name])}
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TableConfig":
        if not isinstance(stored, Mapping) or not set(stored) <= set(cls.__dataclass_fields__):
            raise BadArgument(f"found {stored!r}, expected a dict with some of {', '.join(cls.__dataclass_fields__)}.")
        values = dict(stored)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever chose these settings was warned
            for name, kinds in (("sampler", SELECTORS), ("remover", SELECTORS), ("rate_limiter", LIMITERS)):
                if isinstance(values.get(name), Mapping):
                    values[name] = built(name, values[name], kinds)
            return cls(**values)


def built(name: str, stored: Mapping[str, Any], kinds: Mapping[str, type[Any]]) -> Any:
    """Return what `to_json` wrote as {"Prioritized": {"exponent": 0.6}}."""
    kind = next(iter(stored), "")
    if len(stored) != 1 or kind not in kinds:
        raise BadArgument(f"{name} is {stored!r}, expected a dict with one of {', '.join(kinds)}.")
    try:
        return kinds[kind](**stored[kind])
    except TypeError as error:
        raise BadArgument(f"{name} is {stored!r}: {error}.") from error
