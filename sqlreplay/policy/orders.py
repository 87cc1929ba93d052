"""The orders that come with the library. Each walks an index; nothing is sorted."""

from dataclasses import dataclass

from sqlreplay.policy.plan import Plan
from sqlreplay.store.columns import GroupColumns

__all__ = ["Fifo", "Lifo", "Staleness"]


@dataclass(frozen=True)
class Fifo:
    """First in, first out."""

    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.uid.asc(),))


@dataclass(frozen=True)
class Lifo:
    """Last in, first out."""

    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.uid.desc(),))


@dataclass(frozen=True)
class Staleness:
    """The most stale first, and first in, first out among equals."""

    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.stale_from_step.asc(), columns.uid.asc()))
