"""A group's `meta`: JSON that both databases search alike, so what they would treat differently is refused."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sqlreplay.errors import BadArgument

__all__ = ["check_meta", "encode_meta", "json_number"]

FIRST_INEXACT_FLOAT = 2.0**53


def check_meta(meta: Any) -> None:
    """Refuse what JSON cannot hold exactly or a query could not ask for."""
    if not isinstance(meta, Mapping):
        raise BadArgument(f"meta is {type(meta).__name__}, expected a dict of names to plain values.")
    refuse("meta", meta)


def refuse(path: str, value: Any) -> None:
    if isinstance(value, str):
        problem = text_problem(value)
    elif isinstance(value, bool) or value is None:
        problem = None
    elif isinstance(value, int):
        problem = None if -(2**63) <= value < 2**63 else "is an integer beyond 64 bits"
    elif isinstance(value, float):
        problem = None if abs(value) < float("inf") else f"is {value}, which JSON does not have"
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            refuse(f"{path}[{index}]", item)
        return
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str) or not name or text_problem(name) or '"' in name or "\\" in name:
                raise BadArgument(
                    f"{path} has the name {name!r}, expected text without quotes, backslashes or control characters."
                )
            refuse(f"{path}.{name}", item)
        return
    else:
        problem = f"is {type(value).__name__}, expected text, a number, a boolean, None, a list or a dict"
    if problem:
        raise BadArgument(f"{path} {problem}. Keep such values in the items, where every byte survives.")


def text_problem(text: str) -> str | None:
    """Return what keeps text out of a column: neither database takes all of it, and they differ."""
    if "\x00" in text:
        return "contains a NUL character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "contains half of a surrogate pair"
    return None


def encode_meta(meta: Any) -> str:
    """Write meta as JSON text: raw UTF-8, because SQLite finds members by their name as it is written."""
    return msgspec.json.encode(with_exact_numbers(meta)).decode()


def json_number(value: float) -> str:
    """Write a number in JSON with its exact value.

    From 2**53 on, the shortest form of a float is not its value (2.0**60 prints as 1152921504606847000), and jsonb,
    which keeps decimals, would tell it from the integer it equals.
    """
    return f"{value:.1f}" if isinstance(value, float) and abs(value) >= FIRST_INEXACT_FLOAT else repr(value)


def with_exact_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return msgspec.Raw(json_number(value).encode())
    if isinstance(value, Mapping):
        return {name: with_exact_numbers(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_exact_numbers(item) for item in value]
    return value
