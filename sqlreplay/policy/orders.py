"""Selectors that follow an order, as SQL for a take and as sortable bytes for the key a table stores in its rows."""

import struct
from dataclasses import dataclass
from typing import Any

from sqlreplay.policy.plan import Plan

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Staleness", "inverted", "whole_key"]


def whole_key(number: int) -> bytes:
    """Return eight bytes that sort as 64-bit integers do."""
    return (number + 2**63).to_bytes(8, "big")


def real_key(number: float) -> bytes:
    """Return eight bytes that sort as numbers of zero or more do: their IEEE form already does."""
    return struct.pack(">d", number + 0.0)


def inverted(key: bytes) -> bytes:
    return bytes(255 - byte for byte in key)


@dataclass(frozen=True)
class Fifo:
    """First in, first out."""

    def plan(self, columns: Any) -> Plan:
        return Plan(order_by=(columns.uid.asc(),))

    def key(self, uid: int, priority: float, stale_from_step: int) -> bytes:
        return whole_key(uid)


@dataclass(frozen=True)
class Lifo:
    """Last in, first out."""

    def plan(self, columns: Any) -> Plan:
        return Plan(order_by=(columns.uid.desc(),))

    def key(self, uid: int, priority: float, stale_from_step: int) -> bytes:
        return whole_key(-uid)


@dataclass(frozen=True)
class Staleness:
    """The most stale first, and first in, first out among equals."""

    def plan(self, columns: Any) -> Plan:
        return Plan(order_by=(columns.stale_from_step.asc(), columns.uid.asc()))

    def key(self, uid: int, priority: float, stale_from_step: int) -> bytes:
        return whole_key(stale_from_step)


@dataclass(frozen=True)
class MinHeap:
    """The smallest priority first, and first in, first out among equals."""

    def plan(self, columns: Any) -> Plan:
        return Plan(order_by=(columns.priority.asc(), columns.uid.asc()))

    def key(self, uid: int, priority: float, stale_from_step: int) -> bytes:
        return real_key(priority)


@dataclass(frozen=True)
class MaxHeap:
    """The largest priority first, and first in, first out among equals."""

    def plan(self, columns: Any) -> Plan:
        return Plan(order_by=(columns.priority.desc(), columns.uid.asc()))

    def key(self, uid: int, priority: float, stale_from_step: int) -> bytes:
        return inverted(real_key(priority))
