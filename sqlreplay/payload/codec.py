"""The facade: groups of items in, parts out, and back."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from sqlreplay.errors import BadArgument, InvalidGroup, PayloadDamaged, SqlReplayError
from sqlreplay.payload.classes import ModelClass, RecordClass
from sqlreplay.payload.frame import CHUNK_BYTES, MAX_RAW_BYTES, Part, open_section
from sqlreplay.payload.packer import Packer
from sqlreplay.payload.pending import Draft, PendingGroup
from sqlreplay.payload.refusal import refusing
from sqlreplay.payload.schema import Schema
from sqlreplay.payload.section import Directory, OpenSection, read_section
from sqlreplay.payload.tables import Columns, Table, build_objects, columns_of
from sqlreplay.payload.unpacker import Unpacker
from sqlreplay.payload.values import MAX_DEPTH

__all__ = ["LASTING", "RESPONSE", "Codec", "Decoded"]

Item = TypeVar("Item")

LASTING: Final = 0
RESPONSE: Final = 1
UNTYPED: Final = (dict, bytes, object)


class Decoded(NamedTuple, Generic[Item]):
    """A group as it was encoded, and the steps that were given with it."""

    items: list[Item]
    steps: list[int | None]


class Codec(Generic[Item]):
    """Turns groups of one item type into parts and back; compiled once, used from any thread.

    `item_type` is a pydantic model, a dataclass, a named tuple, a class with plain attributes, `dict`, `bytes`, or
    `object` for any plain value. Fields named in `response_fields` go to a section of their own (`RESPONSE`), so
    that a group which lost its response is read from the other one (`LASTING`) alone.

        codec = Codec(RolloutState, response_fields={"response", "response_ids"})
        parts = codec.encode(group, steps=[3, 3])
        items, steps = codec.decode(parts)
    """

    def __init__(
        self,
        item_type: type[Item],
        *,
        response_fields: Collection[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
        max_raw_bytes: int = MAX_RAW_BYTES,
    ) -> None:
        self.item_type = item_type
        self.response_fields = frozenset(response_fields)
        self.chunk_bytes = chunk_bytes
        self.max_raw_bytes = max_raw_bytes
        self._schema = Schema(item_type)
        self._record: RecordClass | None = None
        if item_type not in UNTYPED:
            label = self._schema.record_labels.get(item_type)
            if label is None:
                raise BadArgument(
                    f"found item_type={item_type!r}, expected a pydantic model, a dataclass, a class with plain "
                    "attributes, dict or bytes"
                )
            self._record = self._schema.records[label]

    def encode(self, items: Sequence[Item], steps: Sequence[int | None] = ()) -> list[Part]:
        """Encode a group; blocks on Ray where it holds ObjectRefs. `steps` come back from `decode` as they are."""
        return self.prepare(items, steps).finish()

    def prepare(self, items: Sequence[Item], steps: Sequence[int | None] = ()) -> PendingGroup:
        """Encode all of a group but the values of its Ray ObjectRefs, without blocking."""
        self._check(items, steps)
        with refusing():
            drafts = (
                self._draft_values(items) if self._record is None else self._draft_tables(self._record, items)
            )
        drafts[0].directory.steps = list(steps)
        return PendingGroup(drafts, chunk_bytes=self.chunk_bytes, max_raw_bytes=self.max_raw_bytes)

    def decode(self, parts: Iterable[Part], *, with_response: bool = True) -> Decoded[Item]:
        """Rebuild a group from its parts, given in any order.

        Without the response its fields get their default, or None where they have none; parts of that section are
        then neither needed nor looked at.
        """
        sections: dict[int, list[Part]] = {LASTING: [], RESPONSE: []}
        for part in parts:
            if part.section not in sections:
                raise PayloadDamaged(
                    f"found part {part.part} of section {part.section}, expected sections 0 and 1"
                )
            sections[part.section].append(part)
        with damages():
            lasting = self._open(LASTING, sections[LASTING])
            if self._record is None:
                return Decoded(self._read_values(lasting), lasting.directory.steps)
            table = self._read_table(lasting)
            if with_response and table.elsewhere:
                _join(table, self._read_table(self._open(RESPONSE, sections[RESPONSE])))
            elif with_response and sections[RESPONSE]:
                raise PayloadDamaged("found a response section, the group was written without one")
            waived = table.elsewhere
            return Decoded(build_objects(self._record, table, waived), lasting.directory.steps)

    def read_steps(self, parts: Iterable[Part]) -> list[int | None]:
        """Return the steps that were given at encode, without rebuilding the items."""
        with damages():
            return self._open(LASTING, [part for part in parts if part.section == LASTING]).directory.steps

    def _check(self, items: Sequence[Item], steps: Sequence[int | None]) -> None:
        if not isinstance(items, (list, tuple)) or not items:
            raise InvalidGroup(f"found {items!r:.80}, expected a non-empty list of {self.item_type.__name__}")
        if self.item_type is not object:
            for index, item in enumerate(items):
                if type(item) is not self.item_type:
                    found = type(item).__qualname__
                    raise InvalidGroup(
                        f"[{index}] is of type {found}, expected {self.item_type.__qualname__}; "
                        f"open the buffer with item_type={found}, or convert the item"
                    )
        if not all(step is None or (type(step) is int and -(1 << 63) <= step < 1 << 63) for step in steps):
            raise BadArgument(f"found steps={list(steps)!r:.80}, expected integers of 64 bits or None")

    def _draft_values(self, items: Sequence[Item]) -> list[Draft]:
        packer = Packer(self._schema)
        body = packer.document(lambda: packer.pack_list(items, MAX_DEPTH))
        return [self._draft(LASTING, packer, body)]

    def _draft_tables(self, record: RecordClass, items: Sequence[Item]) -> list[Draft]:
        columns = columns_of(record, items)
        response = {name: columns.pop(name) for name in self.response_fields.intersection(columns)}
        response = {name: response[name] for name in sorted(response)}
        drafts = [self._draft_table(LASTING, items, columns, list(response))]
        if response:
            drafts.append(self._draft_table(RESPONSE, items, response, []))
        return drafts

    def _draft_table(
        self, section: int, items: Sequence[Item], columns: Columns, elsewhere: list[str]
    ) -> Draft:
        packer = Packer(self._schema)

        def pack() -> Table:
            fields, absent = packer.pack_columns(columns)
            table = Table([0] * len(items), fields, absent, elsewhere)
            if section == LASTING and isinstance(self._record, ModelClass):
                table.picks, table.state = packer.pack_state(self._record, items)
            return table

        return self._draft(section, packer, packer.document(pack))

    def _draft(self, section: int, packer: Packer, body: bytes) -> Draft:
        directory = Directory(self.item_type.__name__, self._record is not None, len(body))
        return Draft(section, packer, body, directory)

    def _open(self, section: int, parts: list[Part]) -> OpenSection:
        return read_section(open_section(section, parts, max_raw_bytes=self.max_raw_bytes))

    def _unpacker(self, section: OpenSection) -> Unpacker:
        directory = section.directory
        if directory.is_table != (self._record is not None):
            raise PayloadDamaged(
                f"found items of type {directory.item_type!r}, this codec reads {self.item_type.__name__!r}; "
                "read them with the item_type that wrote them"
            )
        unpacker = Unpacker(self._schema, section.buffers)
        unpacker.restore_references(directory.references)
        return unpacker

    def _read_values(self, section: OpenSection) -> list[Item]:
        items: list[Item] = self._unpacker(section).document(section.body)
        if type(items) is not list or (
            self.item_type is not object and not all(type(item) is self.item_type for item in items)
        ):
            raise PayloadDamaged(
                f"found items of type {section.directory.item_type!r}, this codec reads {self.item_type.__name__!r}"
            )
        return items

    def _read_table(self, section: OpenSection) -> Table:
        table: Table = self._unpacker(section).document(section.body, Table)
        return table


def _join(table: Table, response: Table) -> None:
    if len(table.picks) != len(response.picks) or set(table.elsewhere) != set(response.fields):
        raise PayloadDamaged(
            f"found a response of {len(response.picks)} items with the fields {sorted(response.fields)}, "
            f"expected {len(table.picks)} with {sorted(table.elsewhere)}"
        )
    table.fields.update(response.fields)
    table.absent.update(response.absent)


@contextlib.contextmanager
def damages() -> Iterator[None]:
    """Turn whatever foreign bytes make Python raise into the one error that callers expect."""
    try:
        yield
    except SqlReplayError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise PayloadDamaged(
            f"the bytes do not read back as a group: {type(error).__name__}: {error}"
        ) from error
