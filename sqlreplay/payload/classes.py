"""How instances of one class become rows of fields, and rows become instances without running its code.

Neither `__init__` nor validators run: what was stored comes back as it was. Only a default factory of the
reader's own class is called, for a field that the bytes do not have.
"""

import copy
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

# Through the slots themselves: models forbid or validate what is set through them.
_set_dict, _set_fields_set, _set_extra, _set_private = (
    pydantic.BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class RecordClass:
    """The rules of one class: `names` are its declared fields, None where they are not declared.

    `holds` are all attributes that an instance can have, None where it can have any. `number_lists` are those
    that the annotations say are lists of numbers.
    """

    def __init__(self, cls: type, names: tuple[str, ...] | None) -> None:
        self.cls = cls
        self.names = names
        self.holds = None if names is None else frozenset(names)
        self.fillers: dict[str, Filler] = {}
        self.number_lists: frozenset[str] = frozenset()

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        """Take the objects apart; the rows may be their own `__dict__`, so they are never written to."""
        raise NotImplementedError

    def build(self, rows: list[Row]) -> list[Any]:
        """Make objects that own the rows."""
        raise NotImplementedError

    def check_declared(self, row: Row, index: int) -> None:
        """Refuse attributes that no reader of this class could take back; caches are left out instead."""
        for name in row:
            if self.holds is None or name in self.holds:
                continue
            if not isinstance(getattr(self.cls, name, None), functools.cached_property):
                refused = Refused(
                    f"{self.cls.__name__} does not declare the attribute {name!r}; declare it as a field, "
                    "or delete it before the group is put"
                )
                refused.steps += [f".{name}", f"[{index}]"]
                raise refused

    def missing(self, fields: Collection[str], waived: Collection[str]) -> dict[str, Filler]:
        """Say how to fill fields that the bytes lack; those in `waived` become None for want of a default."""
        fillers = {}
        for name in self.names if self.names is not None else waived:
            if name in fields:
                continue
            if name in self.fillers:
                fillers[name] = self.fillers[name]
            elif name in waived:
                fillers[name] = _none
            else:
                raise PayloadDamaged(
                    f"these bytes have no field {name!r}, which {self.cls.__name__} requires: they were "
                    f"written with another item_type; give {name!r} a default to read them"
                )
        return fillers


class AttributeClass(RecordClass):
    """A dataclass, or any class whose state is plain attributes, with `__slots__` or without."""

    def __init__(self, cls: type) -> None:
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else None
        super().__init__(cls, None if fields is None else tuple(field.name for field in fields))
        self.slots = _slots_of(cls)
        self.has_dict = cls.__dictoffset__ != 0
        if fields is None and not self.has_dict:
            self.holds = frozenset(self.slots)
        for field in fields or ():
            if field.default is not dataclasses.MISSING:
                self.fillers[field.name] = _constant(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                self.fillers[field.name] = _calling(field.default_factory)

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        if not self.slots:
            return [item.__dict__ for item in objects]
        return [
            {name: getattr(item, name) for name in self.slots if hasattr(item, name)}
            | (item.__dict__ if self.has_dict else {})
            for item in objects
        ]

    def build(self, rows: list[Row]) -> list[Any]:
        assign = object.__setattr__
        items: list[Any] = []
        for row in rows:
            item: Any = object.__new__(self.cls)
            for name in self.slots:
                if name in row:
                    assign(item, name, row.pop(name))
            if self.has_dict:
                assign(item, "__dict__", row)
            items.append(item)
        return items

    def missing(self, fields: Collection[str], waived: Collection[str]) -> dict[str, Filler]:
        fillers = super().missing(fields, waived)
        if self.names is not None:
            return fillers
        # Without declared fields, a value on the class is the default and stays where it is.
        return {name: _none for name in fillers if name in self.slots or not hasattr(self.cls, name)}


class NamedTupleClass(RecordClass):
    """A `typing.NamedTuple` or a `collections.namedtuple`."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, tuple(cls._fields))
        self.fillers = {name: _constant(value) for name, value in cls._field_defaults.items()}

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        return [item._asdict() for item in objects]

    def build(self, rows: list[Row]) -> list[Any]:
        return [tuple.__new__(self.cls, row.values()) for row in rows]


class ModelClass(RecordClass):
    """A pydantic model: its fields, which of them were set, its extra fields and its private attributes."""

    def __init__(self, cls: type[pydantic.BaseModel]) -> None:
        super().__init__(cls, tuple(cls.model_fields))
        self.allows_extra = cls.model_config.get("extra") == "allow"
        self.private_fillers = _fillers_of(cls.__private_attributes__)
        self.private_names = frozenset(cls.__private_attributes__)
        self.fillers = _fillers_of(cls.model_fields)

    def rows(self, objects: Sequence[Any]) -> list[Row]:
        return [item.__dict__ for item in objects]

    def private_of(self, item: Any) -> Row | None:
        """Read the private attributes that have a value."""
        private = item.__pydantic_private__
        return private and {name: value for name, value in private.items() if value is not PydanticUndefined}

    def build_models(
        self,
        rows: list[Row],
        fields_set: Sequence[set[str]],
        extras: Sequence[Row | None],
        privates: Sequence[Row | None],
    ) -> list[Any]:
        """Make models that own the given state."""
        if self.allows_extra:
            extras = [extra or {} for extra in extras]
        if not self.private_names:
            privates = [None] * len(rows)
        else:
            privates = [self._complete_private(row, kept or {}) for row, kept in zip(rows, privates, strict=True)]
        cls, new = self.cls, object.__new__
        items: list[Any] = []
        for row, names, extra, private in zip(rows, fields_set, extras, privates, strict=True):
            item: Any = new(cls)
            _set_dict(item, row)
            _set_fields_set(item, names)
            _set_extra(item, extra)
            _set_private(item, private)
            items.append(item)
        return items

    def _complete_private(self, row: Row, stored: Row) -> Row:
        missing = {name: fill(row) for name, fill in self.private_fillers.items() if name not in stored}
        return missing | {name: value for name, value in stored.items() if name in self.private_names}


def _fillers_of(declared: Mapping[str, Any]) -> dict[str, Filler]:
    """Say how fields or private attributes of a model get their default, for those that have one."""
    fillers: dict[str, Filler] = {}
    for name, field in declared.items():
        if field.default_factory is not None:
            takes_row = getattr(field, "default_factory_takes_validated_data", False)
            fillers[name] = field.default_factory if takes_row else _calling(field.default_factory)
        elif field.default is None or isinstance(field.default, (bool, int, float, str, bytes)):
            fillers[name] = _constant(field.default)
        elif field.default is not PydanticUndefined:
            fillers[name] = _calling(functools.partial(copy.deepcopy, field.default))
    return fillers


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
