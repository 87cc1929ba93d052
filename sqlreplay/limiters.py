"""Rate limiters: how far sampling may run ahead of insertion, and the other way round. Pure arithmetic on counters.

All of them are one rule with four numbers, as in Reverb. With I inserts, D deletes and S samples so far:

    k samples may be drawn when   I - D >= min_size   and   I * samples_per_insert - S - k >= min_diff
    k groups may go in when       I + k - D <= min_size  or  (I + k) * samples_per_insert - S <= max_diff
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlreplay.errors import BadArgument

__all__ = ["LIMITERS", "Counters", "MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]


class Counters(NamedTuple):
    """What a table has seen since it was made."""

    inserts: int
    deletes: int
    samples: int


class RateLimiter:
    """The rule; each limiter gives its four numbers."""

    samples_per_insert: float
    min_size = 1
    min_diff = -math.inf
    max_diff = math.inf

    def sampling_must_wait(self, so_far: Counters, count: int) -> str | None:
        """Say why so many samples may not be drawn now; None if they may."""
        size = so_far.inserts - so_far.deletes
        if size < self.min_size:
            return f"{self!r} waits for {self.min_size} groups and the table holds {size}"
        ahead = so_far.inserts * self.samples_per_insert - so_far.samples - count
        if ahead < self.min_diff:
            return (
                f"{self!r} would stand at {so_far.inserts} inserts * {self.samples_per_insert:g} - "
                f"{so_far.samples} samples - {count} asked = {ahead:g}, below {self.min_diff:g}: it waits for inserts"
            )
        return None

    def inserting_must_wait(self, so_far: Counters, count: int = 1) -> str | None:
        """Say why so many groups may not go in now; None if they may."""
        if so_far.inserts + count - so_far.deletes <= self.min_size:
            return None
        ahead = (so_far.inserts + count) * self.samples_per_insert - so_far.samples
        if ahead > self.max_diff:
            return (
                f"{self!r} would stand at {so_far.inserts + count} inserts * {self.samples_per_insert:g} - "
                f"{so_far.samples} samples = {ahead:g}, above {self.max_diff:g}: it waits for samples"
            )
        return None

    @property
    def largest_batch(self) -> float:
        """How many can be drawn at once at most, as inserts stop at `max_diff`."""
        return self.max_diff - self.min_diff


@dataclass(frozen=True)
class MinSize(RateLimiter):
    """Sampling waits until the table holds so many groups."""

    size: int
    samples_per_insert = 1.0

    def __post_init__(self) -> None:
        check_size("MinSize", self.size)

    @property
    def min_size(self) -> int:  # type: ignore[override]
        return self.size


@dataclass(frozen=True)
class SampleToInsertRatio(RateLimiter):
    """Each group is sampled so many times on average, give or take `error_buffer` samples.

    `error_buffer` is a number around `samples_per_insert * min_size_to_sample`, or a pair (lowest, highest) itself.
    """

    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        check_size("min_size_to_sample", self.min_size_to_sample)
        if not is_number(self.samples_per_insert) or not self.samples_per_insert > 0:
            raise BadArgument(f"samples_per_insert is {self.samples_per_insert!r}, expected a number above 0.")
        pair = self.error_buffer
        if isinstance(pair, (list, tuple)):
            object.__setattr__(self, "error_buffer", tuple(pair))
            usable = len(pair) == 2 and all(map(is_number, pair))
        else:
            usable = is_number(pair) and pair > 0
        if not usable:
            raise BadArgument(f"error_buffer is {pair!r}, expected a number above 0 or a pair (lowest, highest).")
        smallest = 2 * max(1.0, self.samples_per_insert)
        if self.largest_batch < smallest:
            raise BadArgument(
                f"error_buffer {pair!r} leaves {self.largest_batch:g} samples between lowest and highest, expected at "
                f"least 2 * max(1, samples_per_insert) = {smallest:g}: less could block samples and inserts for ever."
            )
        if self.min_diff > self.offset:
            raise BadArgument(
                f"error_buffer's lowest value is {self.min_diff:g}, expected at most samples_per_insert * "
                f"min_size_to_sample = {self.offset:g}: the first sample could never be drawn."
            )
        if self.max_diff < self.offset:
            warnings.warn(
                f"error_buffer's highest value {self.max_diff:g} is below samples_per_insert * min_size_to_sample = "
                f"{self.offset:g}: inserts may block before the first sample can be drawn, and neither goes on.",
                stacklevel=3,
            )

    @property
    def offset(self) -> float:
        return self.samples_per_insert * self.min_size_to_sample

    @property
    def min_size(self) -> int:  # type: ignore[override]
        return self.min_size_to_sample

    @property
    def min_diff(self) -> float:  # type: ignore[override]
        return self.error_buffer[0] if isinstance(self.error_buffer, tuple) else self.offset - self.error_buffer

    @property
    def max_diff(self) -> float:  # type: ignore[override]
        return self.error_buffer[1] if isinstance(self.error_buffer, tuple) else self.offset + self.error_buffer


@dataclass(frozen=True)
class Queue(RateLimiter):
    """At most so many groups wait to be sampled; each counts once."""

    size: int
    samples_per_insert = 1.0

    def __post_init__(self) -> None:
        check_size(type(self).__name__, self.size)

    @property
    def min_diff(self) -> float:  # type: ignore[override]
        return 0.0

    @property
    def max_diff(self) -> float:  # type: ignore[override]
        return float(self.size)


@dataclass(frozen=True)
class Stack(Queue):
    """The rule of `Queue`, by the name that goes with a `Lifo` sampler."""


LIMITERS: dict[str, type[Any]] = {kind.__name__: kind for kind in (MinSize, Queue, SampleToInsertRatio, Stack)}


def check_size(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**53:
        raise BadArgument(f"{name} is {value!r}, expected a whole number, 1 or more.")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
