"""Seal a section's bytes into numbered, checksummed chunks, and open them again without trusting them.

    section = header | stored bytes            stored bytes: the raw bytes, or one zstd frame of them
    chunk   = at most CHUNK_BYTES of it        one chunk, one `Part`, one row

The header announces every size, so that nothing larger than announced is ever allocated.
"""

import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sqlreplay.errors import PayloadDamaged, PayloadUnsupported

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["CHUNK_BYTES", "MAX_RAW_BYTES", "Buffer", "Part", "open_section", "seal_section"]

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES: Final = 64 << 20
MAX_RAW_BYTES: Final = 8 << 30

MAGIC: Final = b"SQRP"
FORMAT_VERSION: Final = 1
COMPRESSED: Final = 1
HEADER: Final = struct.Struct("<4sBBHIQQ")  # magic, version, flags, section, chunks, raw size, stored size

SMALLEST_COMPRESSED: Final = 32 * 1024
WORTHWHILE: Final = 0.5
SAMPLE_BYTES: Final = 4096
STEP_BYTES: Final = 8 << 20
WINDOW_LOG_MAX: Final = 23  # level 1 needs 19; a frame that asks for more is not ours and may want 2 GiB
MAX_CHUNKS: Final = 1 << 16  # part = section * MAX_CHUNKS + index of the chunk


class Part(NamedTuple):
    """One row of a payload: a chunk of one of its sections.

    `raw_size` is the section's size before compression on its first chunk and 0 on the others, so that a sum
    over the rows is the size of the payload. `checksum` is the CRC-32 of the body, an unsigned 32-bit number,
    started from the chunk's index, so that chunks cannot change places.

        Part(part=65536, body=b"...", raw_size=140_318, checksum=zlib.crc32(b"...", 0))
    """

    part: int
    body: Buffer
    raw_size: int
    checksum: int

    @property
    def section(self) -> int:
        return self.part // MAX_CHUNKS


def seal_section(
    section: int,
    pieces: Sequence[Buffer],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> list[Part]:
    """Compress the pieces as one stream where it pays, and cut it into parts."""
    raw_size = sum(map(len, pieces))
    if raw_size > max_raw_bytes:
        raise PayloadUnsupported(
            f"the group takes {raw_size} bytes, more than the {max_raw_bytes} that max_raw_bytes allows; "
            "split the group, or raise max_raw_bytes here and in every reader"
        )
    compressed = _deflate(pieces, raw_size)
    stored = pieces if compressed is None else compressed
    flags = 0 if compressed is None else COMPRESSED
    stored_size = sum(map(len, stored))
    chunk_count = -(-(HEADER.size + stored_size) // chunk_bytes)
    if chunk_count > MAX_CHUNKS:
        raise PayloadUnsupported(
            f"the group takes {chunk_count} chunks of {chunk_bytes} bytes, more than {MAX_CHUNKS}; "
            "split the group, or use larger chunks"
        )
    header = HEADER.pack(MAGIC, FORMAT_VERSION, flags, section, chunk_count, raw_size, stored_size)
    if chunk_count == 1:
        body = b"".join((header, *stored))
        return [Part(section * MAX_CHUNKS, body, raw_size, zlib.crc32(body))]
    return [
        Part(section * MAX_CHUNKS + index, body, 0 if index else raw_size, zlib.crc32(body, index))
        for index, body in enumerate(map(b"".join, _runs([header, *stored], chunk_bytes)))
    ]


def open_section(section: int, parts: Sequence[Part], *, max_raw_bytes: int = MAX_RAW_BYTES) -> memoryview:
    """Check the parts of one section, given in any order, and return its raw bytes."""
    chunks = sorted(parts, key=itemgetter(0)) if len(parts) > 1 else parts
    for index, part in enumerate(chunks):
        if part.part != section * MAX_CHUNKS + index:
            raise PayloadDamaged(f"found part {part.part}, expected {section * MAX_CHUNKS + index}")
        if (found := zlib.crc32(part.body, index)) != part.checksum:
            raise PayloadDamaged(f"part {part.part} has checksum {found:#x}, expected {part.checksum:#x}")
    first = memoryview(chunks[0].body if chunks else b"")
    if len(first) < HEADER.size:
        raise PayloadDamaged(f"section {section} has {len(first)} bytes, a header alone takes {HEADER.size}")
    magic, version, flags, number, chunk_count, raw_size, stored_size = HEADER.unpack_from(first)
    if magic != MAGIC:
        raise PayloadDamaged(f"section {section} starts with {magic!r}, expected {MAGIC!r}: not sqlreplay bytes")
    if version != FORMAT_VERSION:
        raise PayloadDamaged(
            f"section {section} has format version {version}, this library reads {FORMAT_VERSION}: "
            "pip install --upgrade sqlreplay"
        )
    if flags & ~COMPRESSED or number != section:
        raise PayloadDamaged(f"section {section} has flags {flags:#x} and calls itself section {number}")
    if raw_size > max_raw_bytes:
        raise PayloadDamaged(
            f"section {section} announces {raw_size} bytes, more than the {max_raw_bytes} that max_raw_bytes allows"
        )
    if len(chunks) != chunk_count:
        raise PayloadDamaged(f"section {section} has {len(chunks)} chunks, its header announces {chunk_count}")
    stored = [first[HEADER.size :], *(memoryview(part.body) for part in chunks[1:])]
    if (size := sum(map(len, stored))) != stored_size:
        raise PayloadDamaged(f"section {section} has {size} stored bytes, its header announces {stored_size}")
    if flags & COMPRESSED:
        return memoryview(_inflate(section, stored, raw_size))
    if stored_size != raw_size:
        raise PayloadDamaged(f"section {section} has {stored_size} bytes, its header announces {raw_size}")
    return stored[0] if len(stored) == 1 else memoryview(b"".join(stored))


def _deflate(pieces: Sequence[Buffer], raw_size: int) -> list[Buffer] | None:
    """Compress, or answer None as soon as it is clear that it does not pay.

    Token ids and logprobs shrink by a third at most, at the price of encoding them three times over; text and sparse
    arrays shrink to a fraction. A look at a few kilobytes tells which it is.
    """
    if raw_size < SMALLEST_COMPRESSED or not _looks_worthwhile(max(pieces, key=len)):
        return None
    compressor: Any = zstd.ZstdCompressor(level=1)
    compressor.set_pledged_input_size(raw_size)
    stored: list[Buffer] = []
    consumed = produced = 0
    for run in _runs(pieces, STEP_BYTES):
        step = run[0] if len(run) == 1 else b"".join(run)
        consumed += len(step)
        is_last = consumed == raw_size
        stored.append(compressor.compress(step, compressor.FLUSH_FRAME if is_last else compressor.CONTINUE))
        produced += len(stored[-1])
        if produced > consumed * WORTHWHILE:
            return None
    return stored


def _looks_worthwhile(piece: Buffer) -> bool:
    view = memoryview(piece).cast("B")
    starts = (0, len(view) // 3, 2 * len(view) // 3)
    sample = b"".join(view[start : start + SAMPLE_BYTES] for start in starts)
    return len(zstd.compress(sample, level=1)) <= len(sample) * WORTHWHILE


def _inflate(section: int, stored: Sequence[memoryview], raw_size: int) -> Buffer:
    """Decompress one zstd frame of exactly `raw_size` bytes, holding at most one byte more."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX}
    decompressor = zstd.ZstdDecompressor(options=options)
    raw = bytearray()
    try:
        for chunk in stored:
            data: Buffer = chunk
            while True:
                raw += decompressor.decompress(data, max_length=min(STEP_BYTES, raw_size - len(raw) + 1))
                if len(raw) > raw_size:
                    raise PayloadDamaged(f"section {section} holds more than the {raw_size} bytes it announces")
                if decompressor.eof or decompressor.needs_input:
                    break
                data = b""
    except (zstd.ZstdError, EOFError) as error:
        raise PayloadDamaged(f"section {section} does not decompress: {error}") from error
    if not decompressor.eof or decompressor.unused_data or len(raw) != raw_size:
        raise PayloadDamaged(
            f"section {section} gives {len(raw)} bytes and {len(decompressor.unused_data)} that follow its end, "
            f"its header announces {raw_size} and none"
        )
    return raw


def _runs(pieces: Iterable[Buffer], size: int) -> Iterator[list[memoryview]]:
    """Regroup the pieces into runs of exactly `size` bytes, the last one shorter."""
    run: list[memoryview] = []
    room = size
    for piece in pieces:
        view = memoryview(piece)
        while len(view) >= room:
            yield [*run, view[:room]]
            view, run, room = view[room:], [], size
        if view:
            run.append(view)
            room -= len(view)
    if run:
        yield run
