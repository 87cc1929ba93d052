"""Ray ObjectRefs are stored by value: fetched when written, put back into the object store when read.

Ray is only ever used where the process has it already: nothing here imports or starts it.
"""

import sys
from collections.abc import Sequence
from typing import Any

from sqlreplay.errors import PayloadUnsupported

__all__ = ["fetch_values", "is_reference", "restore_reference"]


def is_reference(value: Any) -> bool:
    """Tell whether a value is an ObjectRef, without importing Ray."""
    ray = sys.modules.get("ray")
    kind = getattr(ray, "ObjectRef", None)
    return kind is not None and isinstance(value, kind)


def fetch_values(references: Sequence[Any]) -> list[Any]:
    """Fetch the values in one batch; blocks until every one of them is there."""
    ray = sys.modules["ray"]
    if not ray.is_initialized():
        raise PayloadUnsupported(
            f"the group holds {len(references)} Ray ObjectRefs and Ray is not running in this process; "
            "call ray.init(...) before putting it, or store the values themselves"
        )
    try:
        return list(ray.get(list(references)))
    except Exception as error:  # Ray raises whatever the task that made the object raised
        raise PayloadUnsupported(
            f"one of the group's {len(references)} Ray ObjectRefs has no value: {type(error).__name__}: {error}; "
            "keep the objects alive until put returns"
        ) from error


def restore_reference(value: Any) -> Any:
    """Put a value into Ray's object store; where Ray is not running, hand out the value itself."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return value
    return ray.put(value)
