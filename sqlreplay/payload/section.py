"""How the raw bytes of a section are laid out.

    size of the directory | directory | body | buffers

The body is the msgpack document of the items. Arrays, tensors and the values of references are buffers that it
points into: they are neither copied into the document nor scanned when it is read.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload.frame import Buffer

__all__ = ["Directory", "OpenSection", "lay_out", "read_section"]

SIZE: Final = struct.Struct("<I")


class Directory(Struct, array_like=True, forbid_unknown_fields=True):
    """What is in a section. `item_type` is for messages only: it never selects a class."""

    item_type: str
    is_table: bool
    body_size: int
    steps: list[int | None] = []
    references: list[tuple[int, int, int]] = []  # number, offset and size of each value, dependencies first


class OpenSection(NamedTuple):
    directory: Directory
    body: memoryview
    buffers: memoryview


def lay_out(directory: Directory, body: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the pieces of a section in their order, large buffers not copied."""
    encoded = msgspec.msgpack.encode(directory)
    return [SIZE.pack(len(encoded)), encoded, body, *buffers]


def read_section(raw: memoryview) -> OpenSection:
    """Take the raw bytes of a section apart."""
    if len(raw) < SIZE.size:
        raise PayloadDamaged(f"found a section of {len(raw)} bytes, expected at least {SIZE.size}")
    start = SIZE.size + SIZE.unpack_from(raw)[0]
    if start > len(raw):
        raise PayloadDamaged(f"found a section of {len(raw)} bytes whose directory would end at {start}")
    try:
        directory = msgspec.msgpack.decode(raw[SIZE.size : start], type=Directory)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadDamaged(f"the section's directory does not read: {error}") from error
    end = start + directory.body_size
    if not start <= end <= len(raw):
        raise PayloadDamaged(f"found a section of {len(raw)} bytes whose body would end at {end}")
    return OpenSection(directory, raw[start:end], raw[end:])
