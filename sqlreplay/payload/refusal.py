"""Say why a value cannot be stored, where it is, and what to store instead."""

import sys
from collections.abc import Sequence
from typing import Any

from sqlreplay.errors import PayloadUnsupported

__all__ = ["REFUSALS", "Refused", "as_unsupported", "explain_refusal"]

BUILTIN_BASES = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, complex)


class Refused(Exception):
    """A value without a safe form; `steps` grows from the inside out into the path to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


REFUSALS = (Refused, RecursionError, UnicodeEncodeError)


def as_unsupported(error: Exception) -> PayloadUnsupported:
    """Turn what the walk over a group raised into the error that its caller sees."""
    if isinstance(error, Refused):
        path = "".join(reversed(error.steps))
        return PayloadUnsupported(f"{path}: {error.reason}" if path else error.reason)
    return PayloadUnsupported(
        f"the group has no form as bytes: {error}; store a flatter copy, with attribute names of valid text"
    )


def explain_refusal(value: Any, known_classes: Sequence[str], can_be_rebuilt: bool) -> str:
    """Name what was found and how its data can be stored all the same."""
    kind = type(value)
    found = f"a value of type {kind.__module__}.{kind.__qualname__} has no safe form as bytes"
    if can_be_rebuilt:
        return (
            f"{found} here: only classes that the annotations of the item type name are rebuilt "
            f"({', '.join(known_classes) or 'none'}). Annotate the field with {kind.__qualname__}, or store plain data"
        )
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if isinstance(value, getattr(numpy, "ndarray", ())):
        return f"{found}. Store numpy.asarray(value)"
    if isinstance(value, getattr(torch, "Tensor", ())):
        return f"{found}. Store value.detach(), a plain torch.Tensor"
    if isinstance(value, type) or callable(value):
        return f"{found}: code is never stored. Store a name that your program looks up"
    for base in BUILTIN_BASES:
        if isinstance(value, base):
            return f"{found}. Store {base.__name__}(value)"
    return f"{found}. Store plain data, such as str(value) or a dict of its attributes"
