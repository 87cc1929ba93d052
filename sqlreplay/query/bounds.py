"""Restate a comparison so that an integer or float column can make it exactly as Python would.

A driver binds only integers to an integer column, and a float column would round an integer bound: `> 2.5`
becomes `> 2` for integers, and `>= 2**53 + 1` becomes `> 2.0**53` for floats.
"""

import math
from typing import Literal

from sqlreplay.query.values import LARGEST_INTEGER, SMALLEST_INTEGER

__all__ = ["Operator", "float_bound", "integer_bound"]

Operator = Literal["$eq", "$gt", "$gte", "$lt", "$lte"]


def integer_bound(operator: Operator, value: int | float) -> tuple[Operator, int] | bool:
    """Return the comparison for a 64-bit integer, or the answer where it is the same for all of them."""
    if value > LARGEST_INTEGER:
        return operator in ("$lt", "$lte")
    if value < SMALLEST_INTEGER:
        return operator in ("$gt", "$gte")
    if operator == "$eq":
        return ("$eq", int(value)) if value == int(value) else False
    return operator, math.ceil(value) if operator in ("$gte", "$lt") else math.floor(value)


def float_bound(operator: Operator, value: int | float) -> tuple[Operator, float] | bool:
    """Return the comparison for a float, or False where no float is equal."""
    bound = float(value)
    if bound == value:
        return operator, bound
    if operator == "$eq":
        return False
    if operator in ("$gt", "$gte"):
        return "$gt" if bound < value else "$gte", bound
    return "$lt" if bound > value else "$lte", bound
