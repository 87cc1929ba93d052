"""Read the documents of one section: msgpack into Python objects, extension types into exactly what was written.

Each extension code leads to one function below. None of them imports, evaluates or calls anything that the bytes
name; classes and enums come from the reader's schema.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload import arrays, values
from sqlreplay.payload.integers import MAX_REPEATED, read_integer_lists
from sqlreplay.payload.refs import restore_reference
from sqlreplay.payload.schema import Schema
from sqlreplay.payload.tables import RecordsWire, build_objects
from sqlreplay.payload.values import FORMS, MAX_DEPTH, EnumWire

__all__ = ["Unpacker"]

FORMS_BY_CODE: Final = {form.code: (form.read, msgspec.msgpack.Decoder(form.wire).decode) for form in FORMS}


class Unpacker:
    """Reads documents that share buffers and references; `references` are those of the section before."""

    def __init__(self, schema: Schema, buffers: memoryview, references: dict[tuple[int, int], Any]) -> None:
        self.schema = schema
        self.buffers = buffers
        self.references = references
        self.repeatable = MAX_REPEATED
        self.depth = 0

    def document(self, data: memoryview, wire: Any = Any) -> Any:
        """Decode one document of the given type."""
        return msgspec.msgpack.decode(data, type=wire, ext_hook=self.read_extension)

    def restore_references(self, section: int, places: Iterable[tuple[int, int, int]]) -> None:
        """Read the values of references; those that a value refers to come before it."""
        for number, offset, size in places:
            self.references[section, number] = restore_reference(self.document(self.find(offset, size)))

    def find(self, offset: int, size: int) -> memoryview:
        """Return one of the section's buffers."""
        if offset < 0 or size < 0 or offset + size > len(self.buffers):
            raise PayloadDamaged(f"found a buffer at {offset} of {size} bytes, the section has {len(self.buffers)}")
        return self.buffers[offset : offset + size]

    def read_extension(self, code: int, data: memoryview) -> Any:
        if code in FORMS_BY_CODE:
            read, decode = FORMS_BY_CODE[code]
            return read(decode(data))
        if (reader := READERS.get(code)) is None:
            raise PayloadDamaged(f"found the extension type {code}, which is not one that sqlreplay writes")
        if self.depth > MAX_DEPTH:
            raise PayloadDamaged(f"found values nested deeper than {MAX_DEPTH} levels")
        self.depth += 1
        value = reader(self, data)
        self.depth -= 1
        return value

    def _read_list(self, data: memoryview) -> list[Any]:
        items = self.document(data)
        if type(items) is not list:
            raise PayloadDamaged(f"found {type(items).__name__} where a list was expected")
        return items

    def _read_tuple(self, data: memoryview) -> tuple[Any, ...]:
        return tuple(self._read_list(data))

    def _read_set(self, data: memoryview) -> set[Any]:
        return set(self._read_list(data))

    def _read_frozenset(self, data: memoryview) -> frozenset[Any]:
        return frozenset(self._read_list(data))

    def _read_mapping(self, data: memoryview) -> dict[Any, Any]:
        flat = self._read_list(data)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _read_records(self, data: memoryview) -> list[Any]:
        wire = self.document(data, RecordsWire)
        record = self.schema.records.get(wire.label)
        if record is None:
            raise PayloadDamaged(self._unknown_class(wire.label))
        return build_objects(record, wire.table)

    def _read_record(self, data: memoryview) -> Any:
        (item,) = self._read_records(data)
        return item

    def _read_enum(self, data: memoryview) -> Any:
        wire = self.document(data, EnumWire)
        cls = self.schema.enums.get(wire.label)
        if cls is None:
            raise PayloadDamaged(self._unknown_class(wire.label))
        return cls(wire.value) if wire.name is None else cls[wire.name]

    def _unknown_class(self, label: str) -> str:
        return (
            f"these bytes hold a {label!r}, the annotations of the item type name only "
            f"{', '.join(self.schema.class_names)}: read them with the item_type that wrote them"
        )

    def _read_array(self, data: memoryview) -> Any:
        return arrays.read_array(self.document(data, arrays.ArrayWire), self.find)

    def _read_scalar(self, data: memoryview) -> Any:
        return arrays.read_scalar(self.document(data, arrays.ScalarWire))

    def _read_tensor(self, data: memoryview) -> Any:
        return arrays.read_tensor(self.document(data, arrays.TensorWire), self.find)

    def _read_reference(self, data: memoryview) -> Any:
        place = self.document(data, tuple[int, int])
        if place not in self.references:
            raise PayloadDamaged(f"found the reference {place} before its value")
        return self.references[place]

    def _read_integer_lists(self, data: memoryview) -> list[list[int]]:
        lists, repeated = read_integer_lists(data, self.repeatable)
        self.repeatable -= repeated
        return lists


READERS: Final[Mapping[int, Callable[[Unpacker, memoryview], Any]]] = {
    values.TUPLE: Unpacker._read_tuple,
    values.SET: Unpacker._read_set,
    values.FROZENSET: Unpacker._read_frozenset,
    values.MAPPING: Unpacker._read_mapping,
    values.RECORD: Unpacker._read_record,
    values.RECORDS: Unpacker._read_records,
    values.ENUM: Unpacker._read_enum,
    values.ARRAY: Unpacker._read_array,
    values.NUMPY_SCALAR: Unpacker._read_scalar,
    values.TENSOR: Unpacker._read_tensor,
    values.REFERENCE: Unpacker._read_reference,
    values.INTEGER_LISTS: Unpacker._read_integer_lists,
}
