"""Evaluate a tree on a row in Python: the meaning that both databases are tested against."""

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from sqlreplay.query.tree import (
    And,
    Between,
    Comparison,
    Membership,
    Node,
    Not,
    Or,
    Value,
    kind_of,
    meta_name,
)

__all__ = ["matches"]

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(node: Node, row: Mapping[str, object]) -> bool:
    """Say whether a row satisfies a tree from `parse_query`.

        matches(parse_query({"meta.source": "web"}), {"uid": 1, "meta": {"source": "web"}})

    The row has its values by field name, and under "meta" a mapping. What it lacks is missing, like None.
    """
    match node:
        case And(conditions):
            return all(matches(condition, row) for condition in conditions)
        case Or(conditions):
            return any(matches(condition, row) for condition in conditions)
        case Not(condition):
            return not matches(condition, row)
        case Comparison(field, "$ne", value):
            return not _compared(_found(field, row), "$eq", value)
        case Comparison(field, comparison, value):
            return _compared(_found(field, row), comparison, value)
        case Between(field, lower, upper):
            found = _found(field, row)
            return _compared(found, "$gte", lower) and _compared(found, "$lte", upper)
        case Membership(field, membership, values):
            found = _found(field, row)
            return any(_compared(found, "$eq", value) for value in values) == (membership == "$in")


def _found(field: str, row: Mapping[str, object]) -> object:
    name = meta_name(field)
    holder = row if name is None else row.get("meta")
    value = holder.get(field if name is None else name) if isinstance(holder, Mapping) else None
    return value.value if isinstance(value, Enum) else value


def _compared(found: object, comparison: str, value: Value) -> bool:
    return kind_of(found) == kind_of(value) and COMPARE[comparison](found, value)
