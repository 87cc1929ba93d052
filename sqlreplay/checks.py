"""Refusing arguments that cannot mean anything, before anything is written."""

import math
import operator
from collections.abc import Mapping
from enum import Enum
from typing import Any

from sqlreplay.errors import BadArgument
from sqlreplay.query import meta_name_problem, text_problem
from sqlreplay.records import Status, status_value
from sqlreplay.rules import TableConfig

__all__ = [
    "batch_sizes",
    "count",
    "finite",
    "limit",
    "meta",
    "priorities",
    "priority",
    "share",
    "status",
    "step",
    "tables",
    "text",
    "threshold",
    "timeout",
    "uid",
    "whole_number",
]

LARGEST_STEP = 2**53


def whole_number(name: str, value: Any) -> int:
    """Accept what is an integer, numpy's included, and nothing that merely looks like one."""
    if isinstance(value, bool):
        raise BadArgument(f"{name} is {value!r}, expected a whole number.")
    try:
        return operator.index(value)
    except TypeError:
        raise BadArgument(f"{name} is {value!r}, expected a whole number.") from None


def text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise BadArgument(f"{name} is {value!r}, expected text such as 'math'.")
    problem = text_problem(value)
    if problem:
        raise BadArgument(f"{name} {value!r} {problem}, which the databases cannot store alike. Choose another name.")


def step(name: str, value: Any) -> int | None:
    if value is None:
        return None
    number = whole_number(name, value)
    if abs(number) > LARGEST_STEP:
        raise BadArgument(f"{name} is {number}, expected a step between {-LARGEST_STEP} and {LARGEST_STEP}.")
    return number


def threshold(name: str, value: Any) -> int | None:
    if value is None:
        return None
    number = whole_number(name, value)
    if number <= 0:
        raise BadArgument(f"{name} is {number}, expected a positive number. Leave it out to have no such limit.")
    return number


def batch_sizes(sizes: Any) -> None:
    if not isinstance(sizes, Mapping):
        raise BadArgument(f"batch sizes are {type(sizes).__name__}, expected a dict such as {{'math': 64}}.")
    for name, size in sizes.items():
        text("task_name", name)
        if whole_number(f"batch size of {name!r}", size) < 0:
            raise BadArgument(f"batch size of {name!r} is {size}, expected 0 or more.")


def timeout(value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
        raise BadArgument(f"timeout is {value!r}, expected seconds, 0 or more. Leave it out not to wait.")


def limit(value: Any) -> None:
    if value is not None and whole_number("limit", value) < 0:
        raise BadArgument(f"limit is {value}, expected 0 or more.")


def priority(value: Any) -> float:
    number = finite("priority", value)
    if number < 0:
        raise BadArgument(f"priority is {value!r}, expected a finite number, 0 or more.")
    return number


def finite(name: str, value: Any) -> float:
    """Accept what is a finite number, numpy's included."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadArgument(f"{name} is {value!r}, expected a finite number, 0 or more.")
    return number


def count(name: str, value: Any) -> int:
    number = whole_number(name, value)
    if number < 0:
        raise BadArgument(f"{name} is {number}, expected 0 or more.")
    return number


def share(name: str, value: Any) -> float:
    number = finite(name, value)
    if not 0 <= number <= 1:
        raise BadArgument(f"{name} is {value!r}, expected a number from 0 to 1.")
    return number


def priorities(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise BadArgument(f"priorities are {type(value).__name__}, expected a dict such as {{uid: 0.5}}.")
    checked = {}
    for number, given in value.items():
        try:
            checked[uid(number)] = priority(given)
        except BadArgument as error:
            raise BadArgument(f"uid {number!r}: {error} Nothing was changed.") from None
    return checked


def tables(value: Any) -> dict[str, TableConfig]:
    if not isinstance(value, Mapping):
        raise BadArgument(f"tables is {value!r}, expected a dict such as {{'math': TableConfig(max_size=1000)}}.")
    for name, config in value.items():
        text("a table's name", name)
        if not isinstance(config, TableConfig):
            raise BadArgument(f"the table {name!r} is {config!r}, expected a TableConfig.")
    return dict(value)


def uid(value: Any) -> int:
    return whole_number("uid", value)


def meta(value: Any) -> None:
    """Refuse what JSON cannot hold exactly, or a query could not ask for."""
    if not isinstance(value, Mapping):
        raise BadArgument(f"meta is {type(value).__name__}, expected a dict of names to plain values.")
    member("meta", value)


def member(path: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            problem = meta_name_problem(name) if isinstance(name, str) else "is not text"
            if problem:
                raise BadArgument(f"{path} has the name {name!r}, which {problem}. Choose another name.")
            member(f"{path}.{name}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            member(f"{path}[{index}]", inner)
    elif problem := member_problem(value):
        raise BadArgument(f"{path} {problem}. Keep such values in the items, where every byte survives.")


def member_problem(value: Any) -> str | None:
    if isinstance(value, str):
        return text_problem(value)
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else "is an integer beyond 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}, which JSON does not have"
    return f"is {type(value).__name__}, expected text, a number, a boolean, None, a list or a dict"


def status(value: Any, status_type: type[Enum]) -> str:
    """Return the stored string of a status given as text or as a member of any enum."""
    found = status_value(value)
    known = [str(member.value) for known_type in (Status, status_type) for member in known_type]
    if found not in known:
        raise BadArgument(f"{value!r} is not a status. Type one of {', '.join(dict.fromkeys(known))}.")
    return found
