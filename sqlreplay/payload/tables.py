"""Objects of one class as a table: every field a column over the objects, equal values stored once.

A group's samples share most of their values (sampling parameters, status, unused fields), and a column is checked
and converted in one C call instead of one per object.
"""

from collections.abc import Collection, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from msgspec import Struct

from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload.classes import ModelClass, RecordClass, Row

__all__ = [
    "ABSENT",
    "Column",
    "Columns",
    "ModelState",
    "RecordsWire",
    "Table",
    "build_objects",
    "columns_of",
    "model_state",
]

Column = Sequence[Any]
Columns = list[tuple[str, type | None, Column]]  # name, the type of all values or None if mixed, values


class _Absent:
    """Stands in a column for an attribute that this object does not have."""


ABSENT: Final = _Absent()


class ModelState(Struct, array_like=True, forbid_unknown_fields=True):
    """What pydantic keeps beside the fields; `extra` and `private` are lists with one entry per object, or None."""

    fields_set: list[list[str]]
    extra: Any = None
    private: Any = None


class Table(Struct, array_like=True, forbid_unknown_fields=True):
    """The fields of some objects. A list holds one value per object, anything else is the value of them all."""

    picks: list[int]  # one per object: which of the state's `fields_set` is its own
    fields: dict[str, Any]
    absent: dict[str, list[int]] = {}  # the objects that do not have this attribute
    elsewhere: list[str] = []  # fields that another section holds
    state: ModelState | None = None


class RecordsWire(Struct, array_like=True, forbid_unknown_fields=True):
    """Objects of the class that the reader's schema knows under this label."""

    label: str
    table: Table


def columns_of(record: RecordClass, objects: Sequence[Any]) -> Columns:
    """Read the objects column by column, in the order in which their class declares its fields."""
    rows = record.rows(objects)
    names = record.names if record.names is not None else tuple(rows[0])
    width = len(names)
    if width > 1 and set(map(len, rows)) == {width}:
        try:
            values = list(map(itemgetter(*names), rows))
            kinds = list(map(type, chain.from_iterable(values)))
            columns = zip(*values, strict=True)
            if kinds == kinds[:width] * len(rows):
                return list(zip(names, kinds, columns, strict=False))
            return [(name, _kind_of(column), column) for name, column in zip(names, columns, strict=True)]
        except KeyError:
            pass
    for index, row in enumerate(rows):
        record.check_declared(row, index)
    found = dict.fromkeys(name for row in rows for name in row)
    ragged = {name: [row.get(name, ABSENT) for row in rows] for name in record.names or found}
    return [(name, _kind_of(column), column) for name, column in ragged.items()]


def _kind_of(column: Column) -> type | None:
    kinds = set(map(type, column))
    return kinds.pop() if len(kinds) == 1 else None


def model_state(record: ModelClass, objects: Sequence[Any]) -> tuple[list[int], list[list[str]], Column, Column]:
    """Read the state of pydantic models: picks, the distinct sets of set fields, extra fields, private attributes."""
    sets = [item.__pydantic_fields_set__ for item in objects]
    distinct = sets[:1]
    picks = [0] * len(sets)
    if sets.count(sets[0]) != len(sets):
        for index, names in enumerate(sets):
            if names not in distinct:
                distinct.append(names)
            picks[index] = distinct.index(names)
    fields_set = [_in_order(names, record.names or ()) for names in distinct]
    extras = [item.__pydantic_extra__ for item in objects] if record.allows_extra else []
    privates = [record.private_of(item) for item in objects] if record.private_names else []
    return picks, fields_set, extras, privates


def _in_order(names: set[str], declared: Sequence[str]) -> list[str]:
    known = [name for name in declared if name in names]
    return known if len(known) == len(names) else known + sorted(names.difference(declared))


def build_objects(record: RecordClass, table: Table, waived: Collection[str] = ()) -> list[Any]:
    """Rebuild the objects of a table; fields in `waived` may be missing and get their default, or None."""
    fields, count, state = table.fields, len(table.picks), table.state
    extras = _entries(state and state.extra, count)
    if record.holds is not None and not record.holds.issuperset(fields):
        extras = _move_unknown(record, fields, extras)
    is_complete = record.names is not None and len(fields) == len(record.names)
    fillers = {} if is_complete else record.missing(fields, waived)
    if record.names is not None:
        fields = dict(zip(record.names, map(fields.get, record.names), strict=True))
    rows = _rows_of(fields, count)
    for name, fill in fillers.items():
        for row in rows:
            row[name] = fill(row)
    for name, indices in table.absent.items():
        for index in indices:
            del rows[index][name]
    if not isinstance(record, ModelClass):
        return record.build(rows)
    if state is None:
        raise PayloadDamaged(f"these bytes hold no pydantic state for {record.cls.__name__}")
    if not record.allows_extra and any(extras):
        raise PayloadDamaged(
            f"these bytes hold extra fields, which {record.cls.__name__} does not allow: they were written "
            "with another item_type; set extra='allow' to read them"
        )
    distinct = list(map(set, state.fields_set))
    fields_set = [distinct[pick].copy() for pick in table.picks]
    return record.build_models(rows, fields_set, extras, _entries(state.private, count))


def _move_unknown(record: RecordClass, fields: Row, extras: list[Row | None]) -> list[Row | None]:
    """Make fields that the class no longer declares extra fields, where it allows such."""
    unknown = [name for name in fields if name not in (record.holds or ())]
    if not isinstance(record, ModelClass) or not record.allows_extra:
        raise PayloadDamaged(
            f"these bytes hold the field {unknown[0]!r}, which {record.cls.__name__} does not have: they were "
            "written with another item_type; add the field, or read them with the class that wrote them"
        )
    moved = _rows_of({name: fields.pop(name) for name in unknown}, len(extras))
    return [{**(extra or {}), **more} for extra, more in zip(extras, moved, strict=True)]


def _rows_of(fields: Row, count: int) -> list[Row]:
    varying = [(name, column) for name, column in fields.items() if type(column) is list]
    if not {len(column) for _, column in varying} <= {count}:
        raise PayloadDamaged(f"found columns of other lengths than the {count} objects they describe")
    rows = []
    for index in range(count):
        row = fields.copy()
        for name, column in varying:
            row[name] = column[index]
        rows.append(row)
    return rows


def _entries(entries: Any, count: int) -> list[Row | None]:
    if entries is None:
        return [None] * count
    if type(entries) is not list or len(entries) != count:
        raise PayloadDamaged(f"found {type(entries).__name__} instead of a list with {count} entries")
    if not {type(entry) for entry in entries} <= {dict, type(None)}:
        raise PayloadDamaged("found extra or private attributes that are not a mapping")
    return entries
