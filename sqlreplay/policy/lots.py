"""Selectors that draw by lot. They have weights and no order: a table races them, see `store/race.py`."""

import sys
from dataclasses import dataclass
from typing import Any

from sqlreplay.errors import BadArgument

__all__ = ["Prioritized", "Uniform"]

SMALLEST = 5e-324


@dataclass(frozen=True)
class Uniform:
    """Every group as likely as any other."""

    beta = 0.0

    def weight(self, priority: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Prioritized:
    """A group is drawn in proportion to `priority ** exponent`.

    Groups of priority 0 come only when no others are left. `beta` is for `SampleInfo.weight`, which undoes the bias
    of the draw: `(N * probability) ** -beta`, by the largest of its batch.
    """

    exponent: float
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("exponent", self.exponent), ("beta", self.beta)):
            check_exponent(name, value)

    def weight(self, priority: float) -> float:
        if priority == 0 and self.exponent > 0:
            return 0.0
        try:
            return max(float(priority**self.exponent), SMALLEST)
        except OverflowError:
            return sys.float_info.max


def check_exponent(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise BadArgument(f"{name} is {value!r}, expected a finite number, 0 or more, such as 0.6.")
