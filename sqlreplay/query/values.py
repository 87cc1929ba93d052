"""Which values and names a query may hold: what both databases store and compare alike."""

import math
import unicodedata
from enum import Enum
from typing import Any, cast

from sqlreplay.errors import QueryError
from sqlreplay.query.tree import Kind, Value

__all__ = [
    "LARGEST_INTEGER",
    "SMALLEST_INTEGER",
    "described",
    "meta_name_problem",
    "plain_value",
    "refusal",
    "shown",
    "text_problem",
]

SMALLEST_INTEGER = -(2**63)
LARGEST_INTEGER = 2**63 - 1

SHOWN_CHARACTERS = 60

# What every present value of a kind satisfies; negated, it finds the groups that lack one.
PRESENT: dict[Kind, str] = {
    "text": '{"$gte": ""}',
    "number": '{"$gte": -1e308}',
    "boolean": '{"$in": [True, False]}',
}


def plain_value(value: object, path: str, *, field: str, kind: Kind | None) -> Value:
    """Reduce a value to plain text, number or boolean, or refuse it.

    Enum members stand for their value and numpy scalars for their Python number. Field and kind only shape
    the advice for None.
    """
    while isinstance(value, Enum):
        value = value.value
    if getattr(value, "ndim", None) == 0:
        value = cast("Any", value).item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _plain_integer(value, path)
    if isinstance(value, float):
        return _plain_float(value, path)
    if isinstance(value, str):
        if problem := text_problem(value):
            raise refusal(path, f"the text {shown(value)} {problem}; take that out of the query")
        return str.__str__(value)
    if value is None:
        absent = f'{{"$not": {{"{field}": {PRESENT[kind or "text"]}}}}}'
        raise refusal(
            path,
            "found None, expected text, a number or a boolean. A missing value satisfies no comparison; "
            f"to find groups without one negate what every present value satisfies: {absent}",
        )
    raise refusal(path, f"found {described(value)}, expected text, a number or a boolean; {_advice(value)}")


def text_problem(text: str) -> str | None:
    """Say why text cannot be stored on both databases ("contains a NUL character"), or None if it can."""
    if "\0" in text:
        return "contains a NUL character, which Postgres cannot store"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"contains a lone surrogate at position {error.start}, which has no UTF-8 form"
    return None


def meta_name_problem(name: str) -> str | None:
    """Say why a name cannot be that of a searchable meta member, or None if it can.

    SQLite finds a member by its quoted name as the JSON text spells it, so nothing that JSON would escape.
    """
    if not name:
        return "is empty"
    if '"' in name or "\\" in name:
        return "contains a double quote or a backslash"
    if problem := text_problem(name):
        return problem
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "contains a control character"
    return None


def refusal(path: str, message: str) -> QueryError:
    """Build the error for one place in a query; the root has no path and is called `query`."""
    return QueryError(f"{path or 'query'}: {message}.")


def shown(value: object) -> str:
    """Quote a value for a message, shortened, so that no input makes an error large or slow."""
    if isinstance(value, str):
        text = str.__str__(value)
        return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return repr(value)
    return described(value)


def described(value: object) -> str:
    """Name a value by its type only: its repr may be huge, or too deep to build."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _plain_integer(value: int, path: str) -> int:
    if SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        return int(value)
    raise refusal(
        path,
        f"found an integer of {value.bit_length()} bits, expected one from {SMALLEST_INTEGER} to "
        f"{LARGEST_INTEGER}, which is all that the databases store; write a larger bound as a float",
    )


def _plain_float(value: float, path: str) -> float:
    if math.isfinite(value):
        return float(value)
    advice = "leave the bound out" if math.isinf(value) else "NaN compares with nothing"
    raise refusal(path, f"found {float(value)!r}, expected a finite number, as all stored ones are; {advice}")


def _advice(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return "decode bytes to text first"
    if isinstance(value, list | tuple | set | frozenset):
        return 'to match any of several write {"$in": [...]}, for a range {"$between": [low, high]}'
    if isinstance(value, dict):
        return 'to search in meta write its member as the field: "meta.<name>"'
    return "convert it first"
