"""How instances of one class become rows of fields, and rows become instances again without running its code.

Neither `__init__` nor validators run: what was stored comes back as it was. Only a default factory of the
reader's own class is called, for a field that the bytes do not have.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pydantic
from pydantic_core import PydanticUndefined

from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload.refusal import Refused

__all__ = ["AttributeClass", "ModelClass", "NamedTupleClass", "RecordClass", "Row"]

Row = dict[str, Any]
Filler = Callable[[Row], Any]


class RecordClass:
    """The rules of one class. `names` are its declared fields, None where any attribute may be set."""

    names: tuple[str, ...] | None = None

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.defaults: dict[str, Filler] = {}

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        """Take the objects apart; the rows may be their own `__dict__`, so they are read and never written."""
        raise NotImplementedError

    def build(self, rows: list[Row]) -> list[Any]:
        """Make objects that own the rows."""
        raise NotImplementedError

    def is_derived(self, name: str) -> bool:
        """Tell whether an undeclared attribute is only a cache, which the object can compute again."""
        return isinstance(getattr(self.cls, name, None), functools.cached_property)

    def check_declared(self, names: Collection[str], index: int) -> None:
        """Refuse to write attributes that no reader of this class could take back; `index` is for the message."""
        if self.names is None:
            return
        for name in names:
            if name not in self.names and not self.is_derived(name):
                refused = Refused(
                    f"{self.cls.__name__} does not declare the attribute {name!r}; declare it as a field, or delete it"
                )
                refused.steps += [f".{name}", f"[{index}]"]
                raise refused

    def missing(self, names: Collection[str], waived: Collection[str]) -> dict[str, Filler]:
        """Say how to fill the fields that the bytes lack; those in `waived` may be None for want of a default."""
        fillers = {}
        for name in self.names if self.names is not None else waived:
            if name in names:
                continue
            if name in self.defaults:
                fillers[name] = self.defaults[name]
            elif name in waived:
                fillers[name] = _none
            else:
                raise PayloadDamaged(
                    f"these bytes have no field {name!r}, which {self.cls.__name__} has without a default: they were "
                    f"written with another item_type; give {name!r} a default to read them"
                )
        return fillers

    def unknown(self, names: Collection[str]) -> list[str]:
        """List the fields in the bytes that the class does not declare."""
        return [] if self.names is None else [name for name in names if name not in self.names]


class AttributeClass(RecordClass):
    """A dataclass, or any class whose state is plain attributes, with `__slots__` or without."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.slots = _slots_of(cls)
        self.has_dict = cls.__dictoffset__ != 0
        if dataclasses.is_dataclass(cls):
            fields = dataclasses.fields(cls)
            self.names = tuple(field.name for field in fields)
            for field in fields:
                if field.default is not dataclasses.MISSING:
                    self.defaults[field.name] = _constant(field.default)
                elif field.default_factory is not dataclasses.MISSING:
                    self.defaults[field.name] = _calling(field.default_factory)

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        if not self.slots:
            return [vars(item) for item in objects]
        return [
            {name: getattr(item, name) for name in self.slots if hasattr(item, name)}
            | (vars(item) if self.has_dict else {})
            for item in objects
        ]

    def build(self, rows: list[Row]) -> list[Any]:
        cls, assign = self.cls, object.__setattr__
        items = []
        for row in rows:
            item = object.__new__(cls)
            for name in self.slots:
                if name in row:
                    assign(item, name, row.pop(name))
            if self.has_dict:
                assign(item, "__dict__", row)
            items.append(item)
        return items

    def missing(self, names: Collection[str], waived: Collection[str]) -> dict[str, Filler]:
        fillers = super().missing(names, waived)
        if self.names is None:  # a value on the class serves as the default, left where it is
            return {name: _none for name in fillers if name in self.slots or not hasattr(self.cls, name)}
        return fillers

    def unknown(self, names: Collection[str]) -> list[str]:
        if self.names is None and not self.has_dict:
            return [name for name in names if name not in self.slots]
        return super().unknown(names)


class NamedTupleClass(RecordClass):
    """A `typing.NamedTuple` or a `collections.namedtuple`."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self.names = tuple(cls._fields)
        self.defaults = {name: _constant(value) for name, value in cls._field_defaults.items()}

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        return [item._asdict() for item in objects]

    def build(self, rows: list[Row]) -> list[Any]:
        return [tuple.__new__(self.cls, row.values()) for row in rows]


class ModelClass(RecordClass):
    """A pydantic model: its fields, which of them were set, its extra fields and its private attributes."""

    def __init__(self, cls: type[pydantic.BaseModel]) -> None:
        super().__init__(cls)
        fields = cls.model_fields
        self.names = tuple(fields)
        self.allows_extra = cls.model_config.get("extra") == "allow"
        self.private_defaults = {
            name: attribute.get_default for name, attribute in cls.__private_attributes__.items()
        }
        for name, field in fields.items():
            if field.default_factory is not None:
                takes_row = getattr(field, "default_factory_takes_validated_data", False)
                factory: Any = field.default_factory
                self.defaults[name] = factory if takes_row else _calling(factory)
            elif field.default is not PydanticUndefined:
                self.defaults[name] = _calling(field.get_default)

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        return [vars(item) for item in objects]

    def private_of(self, item: Any) -> Row | None:
        private = item.__pydantic_private__
        return private and {name: value for name, value in private.items() if value is not PydanticUndefined}

    def build(self, rows: list[Row]) -> list[Any]:
        return self.build_models(rows, [set(row) for row in rows], [None] * len(rows), [None] * len(rows))

    def build_models(
        self,
        rows: list[Row],
        fields_set: Sequence[set[str]],
        extras: Sequence[Row | None],
        privates: Sequence[Mapping[str, Any] | None],
    ) -> list[Any]:
        """Make models with the given state; the sets and extra fields become theirs."""
        cls, assign, new = self.cls, object.__setattr__, object.__new__
        items = []
        for row, names, extra, private in zip(rows, fields_set, extras, privates, strict=True):
            item = new(cls)
            assign(item, "__dict__", row)
            assign(item, "__pydantic_fields_set__", names)
            assign(item, "__pydantic_extra__", {} if extra is None and self.allows_extra else extra)
            assign(
                item,
                "__pydantic_private__",
                self._complete_private(private) if self.private_defaults else None,
            )
            items.append(item)
        return items

    def _complete_private(self, stored: Mapping[str, Any] | None) -> Row:
        stored = stored or {}
        private = {}
        for name, default in self.private_defaults.items():
            value = stored[name] if name in stored else default()
            if value is not PydanticUndefined:
                private[name] = value
        return private


def _none(row: Row) -> None:
    return None


def _constant(value: Any) -> Filler:
    return lambda row: value


def _calling(factory: Callable[[], Any]) -> Filler:
    return lambda row: factory()


def _slots_of(cls: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in reversed(cls.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(dict.fromkeys(names))
