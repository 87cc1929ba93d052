"""Walk Python objects and write them as msgpack, with an extension type for all that msgpack would blur.

Most values need no walk: lists, dicts and columns of plain values are recognised as a whole and handed to
msgspec as they are. Text with lone surrogates and integers beyond 64 bits make msgspec raise; only then is
the document walked again, value by value.
"""

import enum
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from sqlreplay.payload import arrays, values
from sqlreplay.payload.classes import ModelClass, RecordClass
from sqlreplay.payload.frame import Buffer
from sqlreplay.payload.integers import (
    MAX_REPEATED,
    are_integers,
    are_numbers,
    have_number_ends,
    write_integer_lists,
)
from sqlreplay.payload.refs import is_reference
from sqlreplay.payload.refusal import Refused, explain_refusal
from sqlreplay.payload.schema import Schema, can_be_rebuilt
from sqlreplay.payload.tables import ABSENT, Column, Columns, ModelState, RecordsWire, Table, columns_of, model_state
from sqlreplay.payload.values import FORMS, MAX_DEPTH, EnumWire

__all__ = ["Packer"]

EXACT: Final = frozenset({NoneType, bool, int, float, str, bytes})
COMPARABLE: Final = frozenset({bool, int, str, bytes})  # equal values of one of these types are the same
NUMERIC: Final = frozenset({int, float})
TEXT_ONLY: Final = frozenset({str})
MAY_BE_ABSENT: Final = frozenset({None, type(ABSENT)})
LONG_LIST: Final = 16
FORM_OF: Final = {form.kind: form for form in FORMS if form.kind not in EXACT}
WIDE: Final = {form.kind: form for form in FORMS if form.kind in EXACT}


class _Unseen(Exception):
    """msgspec met a value that the quick look at a list had taken for a number."""


def _unseen(value: Any) -> Any:
    raise _Unseen


# A decimal comes here only from within a list that is annotated as one of floats, which is what it becomes.
_encode: Final = msgspec.msgpack.Encoder(enc_hook=_unseen, decimal_format="number").encode


class Packer:
    """Writes the documents of one section, and collects the buffers and references they point to.

    References that the section `before` holds already are not stored again.
    """

    def __init__(self, schema: Schema, section: int = 0, before: "Packer | None" = None) -> None:
        self.schema = schema
        self.section = section
        self.before = before
        self.buffers: list[Buffer] = []
        self.buffered_bytes = 0
        self.references: dict[Any, int] = {}
        self.met: set[int] = set()  # references met since the last document began
        self.repeatable = MAX_REPEATED
        self.is_careful = False

    def document(self, pack: Callable[[], Any]) -> bytes:
        """Encode what `pack` returns; it is called again, to walk with care, where msgspec cannot."""
        mark = len(self.buffers), self.buffered_bytes, self.repeatable
        self.met = set()
        try:
            return _encode(pack())
        except (UnicodeEncodeError, OverflowError, _Unseen):
            kept, self.buffered_bytes, self.repeatable = mark
            del self.buffers[kept:]
            self.is_careful = True
        try:
            return _encode(pack())
        finally:
            self.is_careful = False

    def keep(self, buffer: Buffer) -> tuple[int, int]:
        """Take a buffer that travels beside the documents, and say where it will be."""
        offset = self.buffered_bytes
        self.buffers.append(buffer)
        self.buffered_bytes += len(buffer)
        return offset, len(buffer)

    def pack(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """Return the value as something that msgspec encodes exactly."""
        kind = type(value)
        if kind in EXACT:
            return self._pack_wide(value) if self.is_careful else value
        if depth <= 0:
            raise Refused(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself; store a flatter copy")
        if kind is dict:
            return self._pack_dict(value, depth - 1)
        if kind is list:
            return self.pack_list(value, depth - 1)
        if kind is tuple:
            return Ext(values.TUPLE, _encode(self.pack_list(value, depth - 1)))
        if kind is set or kind is frozenset:
            return self._pack_set(value, values.SET if kind is set else values.FROZENSET, depth - 1)
        if (form := FORM_OF.get(kind)) is not None:
            return Ext(form.code, _encode(form.write(value)))
        if kind in self.schema.record_labels:
            return self._pack_record(value, depth - 1)
        return self._pack_foreign(value, kind, depth - 1)

    def pack_list(self, items: Sequence[Any], depth: int) -> Any:
        """Return the items as a list, or as an extension that is read back as one."""
        is_long = len(items) > LONG_LIST and not self.is_careful
        if is_long and type(items[0]) in NUMERIC and are_numbers([items]):
            return items
        kinds = set(map(type, items))
        if kinds <= EXACT and (not self.is_careful or _fit(items, kinds)):
            return items
        return self._pack_uniform(kinds.pop(), items, depth) if len(kinds) == 1 else self._pack_each(items, depth)

    def pack_columns(
        self, record: RecordClass, columns: Columns, depth: int = MAX_DEPTH
    ) -> tuple[dict[str, Any], dict[str, list[int]]]:
        """Return the fields of a `Table`, and which of the objects lack which of them."""
        fields: dict[str, Any] = {}
        absent: dict[str, list[int]] = {}
        comparable = frozenset() if self.is_careful else COMPARABLE
        for name, kind, column in columns:
            if kind is NoneType:
                fields[name] = None
            elif kind in comparable:
                first = column[0]
                fields[name] = first if column.count(first) == len(column) else column
            else:
                if kind in MAY_BE_ABSENT and any(value is ABSENT for value in column):
                    absent[name] = [index for index, value in enumerate(column) if value is ABSENT]
                    column = [None if value is ABSENT else value for value in column]
                try:
                    fields[name] = self._pack_column(kind, column, depth, name in record.number_lists)
                except Refused as refused:
                    refused.steps.insert(-1, f".{name}")
                    raise
        return fields, absent

    def _pack_column(self, kind: type | None, column: Column, depth: int, is_number_list: bool) -> Any:
        if kind is None or self.is_careful:
            return self.pack_list(column, depth)
        if kind is list and (lists := self._pack_lists(column, is_number_list)) is not None:
            return lists
        if kind is float or kind in self.schema.enum_labels:
            is_constant = len(set(map(id, column))) == 1
            return self.pack(column[0], depth) if is_constant else self.pack_list(column, depth)
        return self._pack_uniform(kind, column, depth)

    def _pack_uniform(self, kind: type, items: Sequence[Any], depth: int) -> Any:
        """Pack items of one type, as a whole where that can be."""
        if kind in self.schema.record_labels and depth > 0:
            return Ext(values.RECORDS, self._encode_records(kind, items, depth - 1))
        if kind is dict and not self.is_careful and depth > 0 and _are_flat(items):
            return items
        if kind is list and not self.is_careful and depth > 1 and (lists := self._pack_lists(items)) is not None:
            return lists
        return self._pack_each(items, depth)

    def _pack_each(self, items: Sequence[Any], depth: int) -> list[Any]:
        packed: list[Any] = []
        try:
            for item in items:
                packed.append(self.pack(item, depth))
        except Refused as refused:
            refused.steps.append(f"[{len(packed)}]")
            raise
        return packed

    def pack_state(
        self, record: ModelClass, objects: Sequence[Any], depth: int = MAX_DEPTH
    ) -> tuple[list[int], ModelState]:
        """Return the picks and the state of a `Table` of pydantic models."""
        picks, fields_set, extras, privates = model_state(record, objects)
        state = ModelState(fields_set)
        if extras:
            state.extra = self.pack_list(extras, depth)
        if privates:
            state.private = self.pack_list(privates, depth)
        return picks, state

    def _pack_record(self, value: Any, depth: int) -> Ext:
        try:
            return Ext(values.RECORD, self._encode_records(type(value), [value], depth))
        except Refused as refused:
            del refused.steps[-1]  # the index in a list of one
            raise

    def _encode_records(self, kind: type, objects: Sequence[Any], depth: int) -> bytes:
        label = self.schema.record_labels[kind]
        record = self.schema.records[label]
        fields, absent = self.pack_columns(record, columns_of(record, objects), depth)
        table = Table([0] * len(objects), fields, absent)
        if isinstance(record, ModelClass):
            table.picks, table.state = self.pack_state(record, objects, depth)
        return _encode(RecordsWire(label, table))

    def _pack_lists(self, lists: Sequence[list[Any]], are_trusted: bool = False) -> Any:
        """Return a column of lists as a whole, or None if it takes a walk.

        Where the annotation says that they are lists of numbers, only their ends are looked at.
        """
        sample = next(filter(None, lists), None)
        if sample is None:
            return lists
        kind = type(sample[0])
        if kind in NUMERIC:
            are_trusted = are_trusted and have_number_ends(lists, kind)
            if kind is int and (are_trusted or are_integers(lists)):
                if (shortened := write_integer_lists(lists, self.repeatable)) is not None:
                    self.repeatable -= shortened[1]
                    return Ext(values.INTEGER_LISTS, _encode(shortened[0]))
                are_trusted = False
            return lists if are_trusted or are_numbers(lists) else None
        if kind is dict:
            members = list(chain.from_iterable(lists))
            return lists if set(map(type, members)) == {dict} and _are_flat(members) else None
        return None

    def _pack_dict(self, mapping: dict[Any, Any], depth: int) -> Any:
        if set(map(type, mapping)) <= TEXT_ONLY and (not self.is_careful or all(map(_fits, mapping))):
            if not self.is_careful and set(map(type, mapping.values())) <= EXACT:
                return mapping
            return {key: self._pack_entry(key, value, depth) for key, value in mapping.items()}
        flat = []
        for key, value in mapping.items():
            flat.append(self._pack_entry(key, key, depth))
            flat.append(self._pack_entry(key, value, depth))
        return Ext(values.MAPPING, _encode(flat))

    def _pack_entry(self, key: Any, value: Any, depth: int) -> Any:
        try:
            return self.pack(value, depth)
        except Refused as refused:
            is_name = isinstance(key, str) and key.isidentifier()
            refused.steps.append(f".{key}" if is_name else f"[{key!r:.80}]")
            raise

    def _pack_set(self, members: Collection[Any], code: int, depth: int) -> Ext:
        # Sorted: equal sets iterate differently in other processes, and equal groups must give equal bytes.
        encoded = sorted(_encode(self.pack(member, depth)) for member in members)
        return Ext(code, _encode(list(map(msgspec.Raw, encoded))))

    def _pack_wide(self, value: Any) -> Any:
        form = WIDE.get(type(value))
        return value if form is None or _fits(value) else Ext(form.code, _encode(form.write(value)))

    def _pack_foreign(self, value: Any, kind: type, depth: int) -> Any:
        if isinstance(value, enum.Enum):
            return self._pack_enum(value, depth)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if kind is getattr(numpy, "ndarray", None):
            return Ext(values.ARRAY, _encode(arrays.write_array(value, self.keep)))
        if isinstance(value, getattr(numpy, "generic", ())):
            return Ext(values.NUMPY_SCALAR, _encode(arrays.write_scalar(value)))
        if kind is getattr(torch, "Tensor", None):
            return Ext(values.TENSOR, _encode(arrays.write_tensor(value, self.keep)))
        if is_reference(value):
            return Ext(values.REFERENCE, _encode(self._place_reference(value)))
        raise Refused(explain_refusal(value, self.schema.class_names, can_be_rebuilt(kind)))

    def _place_reference(self, reference: Any) -> tuple[int, int]:
        if self.before is not None and reference in self.before.references:
            return self.before.section, self.before.references[reference]
        number = self.references.setdefault(reference, len(self.references))
        self.met.add(number)
        return self.section, number

    def _pack_enum(self, member: enum.Enum, depth: int) -> Any:
        label, value = self.schema.enum_labels.get(type(member)), member.value
        if label is None:
            return self.pack(value, depth)
        wire = EnumWire(label, None, member.name) if type(value) not in EXACT else EnumWire(label, self.pack(value))
        return Ext(values.ENUM, _encode(wire))


def _fits(value: str | int) -> bool:
    """Tell whether msgpack itself can hold the text or the integer."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fit(items: Sequence[Any], kinds: set[type]) -> bool:
    """Tell whether items of these plain types are quickly seen to fit."""
    if kinds == {int}:
        return _fits(min(items)) and _fits(max(items))
    return kinds.isdisjoint(WIDE)


def _are_flat(mappings: Sequence[dict[Any, Any]]) -> bool:
    """Tell whether all keys are text and all values plain."""
    if not set(map(type, chain.from_iterable(mappings))) <= TEXT_ONLY:
        return False
    return set(map(type, chain.from_iterable(map(dict.values, mappings)))) <= EXACT
