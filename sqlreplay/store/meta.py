"""A group's `meta` as JSON text that both databases search alike."""

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["encode_meta", "json_number"]

FIRST_INEXACT_FLOAT = 2.0**53


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
