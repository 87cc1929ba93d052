"""The facade: groups of items in, parts out, and back."""

from collections.abc import Collection, Iterable, Sequence
from types import NoneType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from sqlreplay.errors import BadArgument, InvalidGroup, PayloadDamaged, SqlReplayError
from sqlreplay.payload.classes import ModelClass, RecordClass
from sqlreplay.payload.frame import CHUNK_BYTES, MAX_RAW_BYTES, Part, open_section
from sqlreplay.payload.packer import Packer
from sqlreplay.payload.pending import Draft, PendingGroup
from sqlreplay.payload.refusal import REFUSALS, as_unsupported
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
DAMAGES: Final = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, msgspec.MsgspecError)


class Decoded(NamedTuple, Generic[Item]):
    """A group as it was encoded, and the steps that were given with it."""

    items: list[Item]
    steps: list[int | None]


class Codec(Generic[Item]):
    """Turns groups of one item type into parts and back; compiled once, used from any thread.

    `item_type` is a pydantic model, a dataclass, a named tuple, a class with plain attributes, `dict`,
    `bytes`, or `object` for any plain value. Fields named in `response_fields` go to a section of their own
    (`RESPONSE`), so that a group which lost its response is read from the other one (`LASTING`) alone.

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
                    f"found item_type={item_type!r}, expected a pydantic model, a dataclass, a class with "
                    "plain attributes, dict or bytes"
                )
            self._record = self._schema.records[label]

    def encode(self, items: Sequence[Item], steps: Sequence[int | None] = ()) -> list[Part]:
        """Encode a group; `steps` come back from `decode` as they are. Blocks on Ray if it holds ObjectRefs."""
        return self.prepare(items, steps).finish()

    def prepare(self, items: Sequence[Item], steps: Sequence[int | None] = ()) -> PendingGroup:
        """Encode all of a group but the values of its Ray ObjectRefs, without blocking."""
        self._check(items, steps)
        try:
            drafts = self._draft_values(items) if self._record is None else self._draft_tables(self._record, items)
        except REFUSALS as error:
            raise as_unsupported(error) from error
        drafts[0].directory.steps = list(steps)
        return PendingGroup(drafts, chunk_bytes=self.chunk_bytes, max_raw_bytes=self.max_raw_bytes)

    def decode(self, parts: Iterable[Part], *, with_response: bool = True) -> Decoded[Item]:
        """Rebuild a group from its parts, given in any order.

        Without the response its fields get their default, or None where they have none; parts of that
        section are then neither needed nor looked at.
        """
        sections: dict[int, list[Part]] = {LASTING: [], RESPONSE: []}
        for part in parts:
            section = part.section
            if section not in sections:
                raise PayloadDamaged(f"found part {part.part}, which belongs to no section of a payload")
            sections[section].append(part)
        try:
            return self._decode(sections[LASTING], sections[RESPONSE], with_response)
        except SqlReplayError:
            raise
        except DAMAGES as error:
            raise PayloadDamaged(f"the bytes do not read back as a group: {type(error).__name__}: {error}") from error

    def read_steps(self, parts: Iterable[Part]) -> list[int | None]:
        """Return the steps that were given at encode, without rebuilding the items."""
        return self._open(LASTING, [part for part in parts if part.section == LASTING]).directory.steps

    def read_item_type(self, parts: Iterable[Part]) -> str:
        """Return the name of the item type that wrote a group, without rebuilding the items."""
        return self._open(LASTING, [part for part in parts if part.section == LASTING]).directory.item_type

    def _check(self, items: Sequence[Item], steps: Sequence[int | None]) -> None:
        if not isinstance(items, (list, tuple)) or not items:
            raise InvalidGroup(f"found {items!r:.80}, expected a non-empty list of {self.item_type.__name__}")
        if self.item_type is not object and (others := set(map(type, items)) - {self.item_type}):
            other = others.pop()
            index = list(map(type, items)).index(other)
            raise InvalidGroup(
                f"[{index}] is of type {other.__qualname__}, expected {self.item_type.__qualname__}; "
                f"open the buffer with item_type={other.__qualname__}, or convert the item"
            )
        if not set(map(type, steps)) <= {int, NoneType} or any(step and step.bit_length() > 63 for step in steps):
            raise BadArgument(f"found steps={list(steps)!r:.80}, expected integers of 64 bits or None")

    def _draft_values(self, items: Sequence[Item]) -> list[Draft]:
        packer = Packer(self._schema)
        body = packer.document(lambda: packer.pack_list(items, MAX_DEPTH))
        return [self._draft(packer, body)]

    def _draft_tables(self, record: RecordClass, items: Sequence[Item]) -> list[Draft]:
        columns = columns_of(record, items)
        lasting = [column for column in columns if column[0] not in self.response_fields]
        response = [column for column in columns if column[0] in self.response_fields]
        packer = Packer(self._schema)
        drafts = [self._draft_table(record, packer, items, lasting, [name for name, _, _ in response])]
        if response:
            after = Packer(self._schema, RESPONSE, packer)
            drafts.append(self._draft_table(record, after, items, response, []))
        return drafts

    def _draft_table(
        self,
        record: RecordClass,
        packer: Packer,
        items: Sequence[Item],
        columns: Columns,
        elsewhere: list[str],
    ) -> Draft:
        def pack() -> Table:
            fields, absent = packer.pack_columns(record, columns)
            table = Table([0] * len(items), fields, absent, elsewhere)
            if packer.section == LASTING and isinstance(record, ModelClass):
                table.picks, table.state = packer.pack_state(record, items)
            return table

        return self._draft(packer, packer.document(pack))

    def _draft(self, packer: Packer, body: bytes) -> Draft:
        directory = Directory(self.item_type.__name__, self._record is not None, len(body))
        return Draft(packer, body, directory)

    def _decode(self, lasting: list[Part], response: list[Part], with_response: bool) -> Decoded[Item]:
        references: dict[tuple[int, int], Any] = {}
        section = self._open(LASTING, lasting)
        steps = section.directory.steps
        if self._record is None:
            return Decoded(self._read_values(section), steps)
        table = self._read_table(LASTING, section, references)
        if with_response and table.elsewhere:
            _join(table, self._read_table(RESPONSE, self._open(RESPONSE, response), references))
        elif with_response and response:
            raise PayloadDamaged("found a response section, the group was written without one")
        return Decoded(build_objects(self._record, table, waived=table.elsewhere), steps)

    def _open(self, section: int, parts: list[Part]) -> OpenSection:
        return read_section(open_section(section, parts, max_raw_bytes=self.max_raw_bytes))

    def _read_body(self, number: int, section: OpenSection, references: dict[tuple[int, int], Any], wire: Any) -> Any:
        if section.directory.is_table != (self._record is not None):
            raise self._other_items(section)
        unpacker = Unpacker(self._schema, section.buffers, references)
        unpacker.restore_references(number, section.directory.references)
        return unpacker.document(section.body, wire)

    def _read_values(self, section: OpenSection) -> list[Item]:
        items: list[Item] = self._read_body(LASTING, section, {}, Any)
        if type(items) is not list or not items:
            raise PayloadDamaged("found something else than a non-empty list of items")
        if self.item_type is not object and set(map(type, items)) != {self.item_type}:
            raise self._other_items(section)
        return items

    def _read_table(self, number: int, section: OpenSection, references: dict[tuple[int, int], Any]) -> Table:
        table: Table = self._read_body(number, section, references, Table)
        if not table.picks:
            raise PayloadDamaged("found a group without items")
        return table

    def _other_items(self, section: OpenSection) -> PayloadDamaged:
        return PayloadDamaged(
            f"found items of type {section.directory.item_type!r}, this codec reads "
            f"{self.item_type.__name__!r}: read them with the item_type that wrote them"
        )


def _join(table: Table, response: Table) -> None:
    if len(table.picks) != len(response.picks) or set(table.elsewhere) != response.fields.keys():
        raise PayloadDamaged(
            f"found a response of {len(response.picks)} items with the fields {sorted(response.fields)}, "
            f"expected {len(table.picks)} with {sorted(table.elsewhere)}"
        )
    table.fields.update(response.fields)
    table.absent.update(response.absent)
