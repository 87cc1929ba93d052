"""Which classes a reader may rebuild: those that the annotations of its item type name, and no others.

The bytes carry a class's short name. It only ever selects among the classes collected here, so what can be built
is decided by the reader's own configuration.
"""

import contextlib
import enum
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import pydantic

from sqlreplay.errors import BadArgument
from sqlreplay.payload.classes import AttributeClass, ModelClass, NamedTupleClass, RecordClass

__all__ = ["Schema", "can_be_rebuilt"]

HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class Schema:
    """The classes within reach of one item type, by class and by name.

    Schema(RolloutState).enums["Status"]
    """

    def __init__(self, item_type: type) -> None:
        found = list(_reachable(item_type))
        names = [cls.__name__ for cls in found]
        self.class_names: list[str] = []
        self.enums: dict[str, type[enum.Enum]] = {}
        self.records: dict[str, RecordClass] = {}
        for cls in found:
            label = cls.__name__ if names.count(cls.__name__) == 1 else f"{cls.__module__}.{cls.__qualname__}"
            if label in self.class_names:
                raise BadArgument(
                    f"the annotations of {item_type.__name__} name two classes {label!r}, which the bytes could not "
                    "tell apart; rename one of them"
                )
            self.class_names.append(label)
            if issubclass(cls, enum.Enum):
                self.enums[label] = cls
            elif (record := record_class(cls)) is not None:
                hints = _hints(cls).items()
                record.number_lists = frozenset(name for name, hint in hints if _is_number_list(hint))
                self.records[label] = record
        self.enum_labels: dict[type, str] = {cls: label for label, cls in self.enums.items()}
        self.record_labels: dict[type, str] = {record.cls: label for label, record in self.records.items()}


def can_be_rebuilt(cls: type) -> bool:
    """Tell whether an annotation that names this class is enough to store its instances."""
    return issubclass(cls, enum.Enum) or record_class(cls) is not None


def record_class(cls: type) -> RecordClass | None:
    """Say how instances of a class are taken apart and rebuilt, or None where that is not safe or not plain."""
    if issubclass(cls, pydantic.BaseModel):
        return ModelClass(cls)
    if issubclass(cls, tuple):
        return NamedTupleClass(cls) if hasattr(cls, "_fields") else None
    is_written_in_python = bool(cls.__flags__ & HEAP_TYPE) and cls.__new__ is object.__new__
    if issubclass(cls, enum.Enum) or not is_written_in_python or inspect.isabstract(cls):
        return None
    return AttributeClass(cls)


def _reachable(item_type: type) -> Iterator[type]:
    """Walk the annotations, breadth first, and yield every class that can be rebuilt."""
    seen: set[Any] = set()
    waiting: list[Any] = [item_type]
    while waiting:
        annotation = waiting.pop(0)
        try:
            if annotation in seen:
                continue
            seen.add(annotation)
        except TypeError:  # unhashable metadata inside Annotated or Literal
            pass
        if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
            if can_be_rebuilt(annotation):
                yield annotation
            elif not _is_typed_dict(annotation):
                continue
            waiting.extend(_hints(annotation).values())
        else:
            waiting.extend(_inside(annotation))


def _is_typed_dict(cls: type) -> bool:
    # typing.is_typeddict does not know those of typing_extensions, which pydantic asks for below Python 3.12.
    return issubclass(cls, dict) and hasattr(cls, "__total__")


def _inside(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    if origin is type:
        return []
    if isinstance(annotation, typing.TypeVar):
        return [annotation.__bound__, *annotation.__constraints__]
    inside = [origin, *typing.get_args(annotation)]
    inside += [getattr(annotation, "__supertype__", None), getattr(annotation, "__value__", None)]
    return [part for part in inside if part is not None]


def _is_number_list(annotation: Any) -> bool:
    """Recognise `list[int]` and `list[float]`, also where None is allowed."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _is_number_list(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return all(_is_number_list(part) for part in arguments if part is not types.NoneType)
    return origin is list and arguments[0] in (int, float)


def _hints(cls: type) -> dict[str, Any]:
    if issubclass(cls, enum.Enum):
        return {}
    if issubclass(cls, pydantic.BaseModel):
        if not cls.__pydantic_complete__:
            cls.model_rebuild(raise_errors=False)
        own = [base for base in cls.__mro__ if base not in pydantic.BaseModel.__mro__]
        unlisted = {name: hint for base in own for name, hint in _hints_one_by_one(base)}
        kept = {"__pydantic_extra__", *cls.__private_attributes__}
        fields = {name: field.annotation for name, field in cls.model_fields.items()}
        return fields | {name: hint for name, hint in unlisted.items() if name in kept}
    try:
        return typing.get_type_hints(cls)
    except Exception:  # annotations are code of others: a name under TYPE_CHECKING, a library's own syntax
        return {name: hint for base in cls.__mro__ for name, hint in _hints_one_by_one(base)}


def _hints_one_by_one(cls: type) -> Iterator[tuple[str, Any]]:
    """Leave out only what cannot be resolved; the values there must then be plain."""
    try:
        annotations = inspect.get_annotations(cls)
    except NameError:
        return
    module = vars(sys.modules.get(cls.__module__, typing))
    for name, annotation in annotations.items():
        single = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):
            yield name, typing.get_type_hints(single, module, dict(vars(cls)))[name]
