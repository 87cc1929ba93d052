"""What a policy is: a pure function from columns to an order and a condition."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import ColumnElement

__all__ = ["Plan", "Policy"]


@dataclass(frozen=True)
class Plan:
    """The order in which groups are taken, and a condition on those that may be.

    End the order with `columns.uid.asc()`, so that equals go first in, first out.
    """

    order_by: tuple[ColumnElement[Any], ...]
    where: ColumnElement[bool] | None = None


@runtime_checkable
class Policy(Protocol):
    """Anything with a `plan`; it needs no base class and no connection.

    class ShortestFirst:
        def plan(self, columns):
            return Plan(order_by=(columns.num_tokens.asc(), columns.uid.asc()))

    ReplayBuffer("sqlite:///replay.db", policy=ShortestFirst())
    """

    def plan(self, columns: Any) -> Plan:
        """Return the order; called once for each take. `columns` has every field of a group by name."""
