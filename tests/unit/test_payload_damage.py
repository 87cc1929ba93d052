"""Bytes that are not what was written raise one typed error, run no code and take little memory."""

import pickle
import random
import subprocess
import sys
import tracemalloc
import zlib

import pytest

from sqlreplay import PayloadDamaged
from sqlreplay.payload import Codec, Part
from sqlreplay.payload.frame import HEADER, zstd

GROUP = [{"text": "hello", "ids": list(range(40))}]


def damaged(parts: list[Part]) -> bool:
    try:
        Codec(dict).decode(parts)
    except PayloadDamaged:
        return True
    return False


def test_every_flipped_byte_is_noticed() -> None:
    [part] = Codec(dict).encode(GROUP)
    for place in range(len(part.body)):
        body = bytearray(part.body)
        body[place] ^= 0x40
        assert damaged([part._replace(body=bytes(body))])


def test_flipped_bytes_behind_a_valid_checksum_never_escape_as_another_error() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    [part] = Codec(dict).encode([{"text": "x" * 50, "n": list(range(300)), "t": (1, 2)}])
    for _ in range(2000):
        body = bytearray(part.body)
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        damaged([Part(part.part, bytes(body), part.raw_size, zlib.crc32(body))])


def test_truncated_missing_and_foreign_parts_are_noticed() -> None:
    codec = Codec(dict, chunk_bytes=64)
    parts = codec.encode([{"data": random.Random(1).randbytes(500)}])
    assert len(parts) > 3
    assert codec.decode(reversed(parts)).items == [{"data": random.Random(1).randbytes(500)}]
    for index in range(len(parts)):
        assert damaged(parts[:index] + parts[index + 1 :])
    for end in range(0, len(parts[0].body), 7):
        body = bytes(parts[0].body)[:end]
        assert damaged([parts[0]._replace(body=body, checksum=zlib.crc32(body)), *parts[1:]])
    for foreign in (b"", b"PK\x03\x04", pickle.dumps(GROUP), b"\x93NUMPY\x01\x00", b"SQLite format 3\x00" * 9):
        assert damaged([Part(0, foreign, len(foreign), zlib.crc32(foreign))])
    assert damaged([])


def bomb(announced: int) -> Part:
    stored = zstd.compress(bytes(200 * 2**20), level=1)
    [part] = Codec(dict).encode(GROUP)
    magic, version, *_ = HEADER.unpack_from(part.body)
    body = HEADER.pack(magic, version, 1, 0, 1, announced, len(stored)) + stored
    return Part(0, body, announced, zlib.crc32(body))


@pytest.mark.parametrize("announced", [1000, 2**40])
def test_a_bomb_takes_no_more_memory_than_it_announces(announced: int) -> None:
    part = bomb(announced)
    tracemalloc.start()
    assert damaged([part])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def test_reading_crafted_bytes_runs_and_imports_nothing() -> None:
    """An audit hook in another process watches every read; it cannot be taken off again, hence the process."""
    script = r"""
import pickle, random, sys, zlib
import numpy, torch
from sqlreplay import PayloadDamaged
from sqlreplay.payload import Codec, Part
codec = Codec(dict)
[part] = codec.encode([{"text": "x", "array": numpy.arange(4), "tensor": torch.ones(3)}])
codec.decode([part])
class Evil:
    def __reduce__(self):
        import os
        return os.system, ("true",)
events = []
watched = ("import", "exec", "compile", "pickle.find_class", "os.system", "subprocess.Popen", "socket.connect", "open")
sys.addaudithook(lambda event, arguments: events.append((event, arguments)) if event in watched else None)
chance = random.Random(3)
bodies = [pickle.dumps(Evil()), b"PK\x03\x04" * 30]
for _ in range(1500):
    body = bytearray(part.body)
    for _ in range(chance.randint(1, 6)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    bodies.append(bytes(body))
for body in bodies:
    try:
        codec.decode([Part(0, body, part.raw_size, zlib.crc32(body))])
    except PayloadDamaged:
        pass
print(events)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
