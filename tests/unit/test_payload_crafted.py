"""Bytes made by an attacker, with every checksum right: one typed error, little memory, and no code runs."""

import resource
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from msgspec import msgpack

from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload import Codec, Part
from sqlreplay.payload import values as codes
from sqlreplay.payload.frame import COMPRESSED, HEADER, MAGIC, open_section, seal_section, zstd
from sqlreplay.payload.section import SIZE, Directory, lay_out


@dataclass
class Item:
    a: Any = None
    b: list[int] | None = None


def seal(
    body: bytes, *, buffers: bytes = b"", is_table: bool = False, references: Any = (), **directory: Any
) -> list[Part]:
    size = directory.pop("body_size", len(body))
    head = Directory("object", is_table, size, references=list(references), **directory)
    return seal_section(0, lay_out(head, body, [buffers]))


def extension(code: int, content: Any) -> bytes:
    return msgpack.encode([msgpack.Ext(code, msgpack.encode(content))])


def nested(code: int, levels: int) -> bytes:
    data = msgpack.encode([])
    for _ in range(levels):
        data = msgpack.encode([msgpack.Ext(code, data)])
    return data


CRAFTED_VALUES = {
    "an unknown extension": extension(99, b"x"),
    "a negative extension": extension(-7, b"x"),
    "a broken timestamp": b"\x91\xc7\x03\xffabc",
    "a pickle": msgpack.encode([msgpack.Ext(codes.TUPLE, b"cos\nsystem\n(S'true'\ntR.")]),
    "a tuple of no list": extension(codes.TUPLE, {"a": 1}),
    "an unhashable set member": extension(codes.SET, [[1]]),
    "an odd mapping": extension(codes.MAPPING, [1, 2, 3]),
    "an unhashable key": extension(codes.MAPPING, [[], 1]),
    "a deep tuple": nested(codes.TUPLE, 5000),
    "a tuple a little too deep": nested(codes.TUPLE, codes.MAX_DEPTH + 3),
    "a deep list": b"\x91" * 200_000 + b"\xc0",
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\x91\xdf\xff\xff\xff\xff",
    "text that is no text": b"\x91\xa1\xff",
    "trailing bytes": b"\x90\x00",
    "no list": msgpack.encode({"a": 1}),
    "an empty group": b"\x90",
    "nothing": b"",
    "an invalid type byte": b"\xc1",
    "an unknown enum": extension(codes.ENUM, ["Status", "init", None]),
    "an unknown class": extension(codes.RECORD, ["os.system", [[0], {}, {}, [], None]]),
    "a class by its path": extension(codes.RECORDS, ["subprocess.Popen", [[0], {"args": "true"}, {}, [], None]]),
    "a month 13": extension(20, [2026, 13, 1, 0, 0, 0, 0, 0, None]),
    "a year in text": extension(21, ["2026", 1, 1]),
    "a zone by a path": extension(20, [2026, 1, 1, 0, 0, 0, 0, 0, "../../../../etc/passwd"]),
    "an unknown zone": extension(20, [2026, 1, 1, 0, 0, 0, 0, 0, "Evil/Module"]),
    "a zone of three days": extension(22, [0, 0, 0, 0, 0, [10**12, None]]),
    "an endless timedelta": extension(23, [10**18, 0, 0]),
    "a decimal in words": extension(24, "__import__('os')"),
    "a short uuid": extension(25, b"123"),
    "half a complex": extension(19, [1.0]),
    "a reference": extension(codes.REFERENCE, [0, 0]),
    "a negative reference": extension(codes.REFERENCE, [0, -1]),
}


@pytest.mark.parametrize("body", CRAFTED_VALUES.values(), ids=CRAFTED_VALUES.keys())
def test_crafted_values_are_damage(body: bytes) -> None:
    with pytest.raises(PayloadDamaged):
        Codec(object).decode(seal(body))


def array(dtype: Any = "<i4", shape: Any = (1,), offset: int = 0, size: int = 4, mantissa: int = 0) -> bytes:
    return extension(codes.ARRAY, [dtype, mantissa, list(shape), False, offset, size])


def tensor(dtype: str = "int32", shape: Any = (1,), offset: int = 0, size: int = 4, grad: bool = False) -> bytes:
    return extension(codes.TENSOR, [dtype, list(shape), grad, offset, size])


CRAFTED_ARRAYS = {
    "object dtype": array("|O8", (1,), 0, 8),
    "object spelled out": array("object", (1,), 0, 8),
    "comma dtype": array("i4,O", (1,), 0, 8),
    "a class as dtype": array("numpy.ndarray"),
    "no such width": array("<i3", (1,), 0, 3),
    "a structured object": array([[["a", "|O8", 0, []]], 8], (1,), 0, 8),
    "no structured objects": array([[["a", "|O8", 0, []]], 8], (0,), 0, 0),
    "no objects": array("|O8", (0,), 0, 0),
    "a field out of bounds": array([[["a", "<i4", 8, []]], 4]),
    "a negative field": array([[["a", "<i4", -4, []]], 4]),
    "a field twice": array([[["a", "<i4", 0, []], ["a", "<i4", 0, []]], 4]),
    "a huge subarray": array([[["a", "<i4", 0, [2**40, 2**40]]], 4]),
    "foreign long doubles": array("<f16", (1,), 0, 16, 112),
    "negative length": array(shape=(-1,)),
    "negative lengths": array(shape=(-1, -1)),
    "too many dimensions": array(shape=(1,) * 100),
    "a terabyte": array(shape=(2**38,), size=2**40),
    "an overflow": array(shape=(2**62, 2**62, 4), size=2**128 // 2**66),
    "an impossible empty": array(shape=(0, 2**62, 2**62), size=0),
    "wrong size": array(size=3),
    "behind the end": array(offset=1),
    "before the start": array(offset=-1),
    "negative size": array(shape=(0,), size=-4),
    "a quantized tensor": tensor("qint8", (1,), 0, 1),
    "an attribute of torch": tensor("load"),
    "a dotted name": tensor("nn.Module"),
    "a tensor with a negative length": tensor(shape=(-1,)),
    "a tensor of a terabyte": tensor(shape=(2**38,), size=2**40),
    "an impossible empty tensor": tensor(shape=(0, 2**62, 2**62), size=0),
    "a tensor of wrong size": tensor(size=2),
    "gradients of integers": tensor(grad=True),
    "a scalar of wrong size": extension(codes.NUMPY_SCALAR, ["<f8", 0, b"123"]),
    "a scalar object": extension(codes.NUMPY_SCALAR, ["|O8", 0, b"12345678"]),
    "an npy file": extension(codes.ARRAY, b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'shape': (1,), }"),
    "a torch file": extension(codes.TENSOR, b"PK\x03\x04data.pkl"),
}


@pytest.mark.parametrize("body", CRAFTED_ARRAYS.values(), ids=CRAFTED_ARRAYS.keys())
def test_crafted_arrays_are_damage_and_take_no_memory(body: bytes) -> None:
    assert (type(numpy), type(torch)) == (type(sys), type(sys))
    tracemalloc.start()
    with pytest.raises(PayloadDamaged):
        Codec(object).decode(seal(body, buffers=b"1234"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


CRAFTED_TABLES = {
    "no table": [1, 2],
    "too many fields": [[0], {}, {}, [], None, 1],
    "no items": [[], {}, {}, [], None],
    "an unknown field": [[0], {"evil": 1}, {}, [], None],
    "a dunder": [[0], {"__class__": 1}, {}, [], None],
    "short columns": [[0, 0], {"a": [1], "b": None}, {}, [], None],
    "long columns": [[0], {"a": [1, 2], "b": None}, {}, [], None],
    "absent of another": [[0], {"a": 1, "b": None}, {"c": [0]}, [], None],
    "absent twice": [[0], {"a": 1, "b": None}, {"a": [0, 0]}, [], None],
    "absent outside": [[0], {"a": 1, "b": None}, {"a": [7]}, [], None],
}


@pytest.mark.parametrize("table", CRAFTED_TABLES.values(), ids=CRAFTED_TABLES.keys())
def test_crafted_tables_are_damage(table: Any) -> None:
    with pytest.raises(PayloadDamaged):
        Codec(Item).decode(seal(msgpack.encode(table), is_table=True))


RAW = bytes(open_section(0, Codec(object).encode([[1, 2, 3]])))


def test_crafted_directories_are_damage() -> None:
    good = msgpack.encode([1])
    for parts in (
        seal(good, body_size=99),
        seal(good, body_size=-1),
        seal(good, references=[(0, 5, 5)]),
        seal(good, references=[(0, -1, 1)]),
        seal(good, references=[(0, 0, 2**60)]),
        seal(extension(codes.REFERENCE, [0, 0]), buffers=extension(codes.REFERENCE, [0, 0]), references=[(0, 0, 6)]),
        seal_section(0, [RAW[:-1]]),
        seal_section(0, [b""]),
        seal_section(0, [SIZE.pack(2**32 - 1)]),
        seal_section(0, [SIZE.pack(3), b"\x93\x01\x02"]),
        seal_section(0, [SIZE.pack(1), b"\xc1"]),
    ):
        with pytest.raises(PayloadDamaged):
            Codec(object).decode(parts)


def test_every_byte_of_a_group_may_be_anything() -> None:
    """Every byte of the raw section is set to other values, behind right sizes and checksums."""
    codec = Codec(object)
    group = [
        {"t": (1, "\ud800"), "s": {1}, 2: 2**70, "z": [[9] * 20, [9] * 20], "n": numpy.float32(1)},
        [numpy.arange(3, dtype="i2"), torch.ones(2, dtype=torch.bfloat16), 1.5, None, b"x", 1j],
    ]
    raw = bytes(open_section(0, codec.encode(group)))
    outcomes = set()
    for place in range(len(raw)):
        for value in (0x00, 0x80, 0xC1, 0xC7, 0xDD, 0xDF, 0xFF, raw[place] ^ 1):
            forged = bytearray(raw)
            forged[place] = value
            try:
                codec.decode(seal_section(0, [forged]))
                outcomes.add("read")
            except PayloadDamaged:
                outcomes.add("damage")
    assert outcomes == {"read", "damage"}


def frame(data: bytes, **header: Any) -> Part:
    fields: dict[str, Any] = {"magic": MAGIC, "version": 1, "flags": 0, "section": 0, "chunks": 1}
    fields |= {"raw": len(data), "stored": len(data)} | header
    body = HEADER.pack(*fields.values()) + data
    return Part(0, body, 0, zlib.crc32(body))


BOMB = zstd.compress(bytes(300 << 20), level=1)
WIDE = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
WIDE_WINDOW = WIDE.compress(RAW, WIDE.FLUSH_BLOCK) + WIDE.flush()


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (frame(RAW, magic=b"PK\x03\x04"), "not sqlreplay bytes"),
        (frame(RAW, version=2), "format version 2.*pip install"),
        (frame(RAW, flags=2), "flags 0x2"),
        (frame(RAW, section=1), "section 1"),
        (frame(RAW, chunks=2), "announces 2"),
        (frame(RAW, chunks=2**32 - 1), "announces 4294967295"),
        (frame(RAW, raw=len(RAW) + 1), "announces"),
        (frame(RAW, raw=2**63), "max_raw_bytes"),
        (frame(RAW, stored=len(RAW) - 1), "announces"),
        (frame(RAW + b"x", raw=len(RAW), stored=len(RAW)), "announces"),
        (frame(RAW, flags=COMPRESSED), "does not decompress"),
        (frame(zstd.compress(RAW)[:-1], flags=COMPRESSED, raw=len(RAW)), "announces"),
        (frame(zstd.compress(RAW), flags=COMPRESSED, raw=len(RAW) - 1), "more than"),
        (frame(zstd.compress(RAW), flags=COMPRESSED, raw=len(RAW) + 1), "announces"),
        (frame(zstd.compress(RAW) + b"x", flags=COMPRESSED, raw=len(RAW)), "follow its end"),
        (frame(zstd.compress(RAW) * 2, flags=COMPRESSED, raw=len(RAW) * 2), "follow its end"),
        (frame(WIDE_WINDOW, flags=COMPRESSED, raw=len(RAW)), "does not decompress"),
        (frame(BOMB, flags=COMPRESSED, raw=1000), "more than"),
        (frame(BOMB, flags=COMPRESSED, raw=2**60), "max_raw_bytes"),
    ],
)
def test_lying_headers_are_damage_and_take_no_memory(part: Part, text: str) -> None:
    tracemalloc.start()
    with pytest.raises(PayloadDamaged, match=text):
        Codec(object).decode([part])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_bomb_in_a_process_of_little_memory() -> None:
    """zstd allocates outside of Python's sight: a limit on the process sees it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    script = """
import sys, zlib
from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload import Codec, Part
body = sys.stdin.buffer.read()
before = int(open("/proc/self/statm").read().split()[1]) * 4096
try:
    Codec(object).decode([Part(0, body, 0, zlib.crc32(body))])
except PayloadDamaged as error:
    grown = int(open("/proc/self/statm").read().split()[1]) * 4096 - before
    print("damaged" if grown < 32 << 20 else f"grew by {grown}")
"""
    frames = [
        frame(BOMB, flags=COMPRESSED, raw=1 << 16),
        frame(BOMB, flags=COMPRESSED, raw=2**60),
        frame(WIDE_WINDOW, flags=COMPRESSED, raw=len(RAW)),
    ]
    for part in frames:
        done = subprocess.run(
            [sys.executable, "-c", script], input=bytes(part.body), capture_output=True, preexec_fn=limit, check=False
        )
        assert done.stdout.decode().strip() == "damaged", done.stderr.decode()


def test_max_raw_bytes_binds_writer_and_reader() -> None:
    group = [{"data": bytes(5000)}]
    parts = Codec(dict).encode(group)
    with pytest.raises(PayloadDamaged, match="more than the 4000"):
        Codec(dict, max_raw_bytes=4000).decode(parts)
    with pytest.raises(ValueError, match="max_raw_bytes"):
        Codec(dict, max_raw_bytes=4000).encode(group)


AUDIT = r"""
import random, sys, zlib
import numpy, torch, zoneinfo
from datetime import datetime
from enum import Enum
from pydantic import BaseModel
from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload import Codec, Part
from sqlreplay.payload.frame import open_section, seal_section

sys.path.insert(0, sys.argv[1])
import test_payload_crafted as crafted

class Colour(Enum):
    RED = "red"

class Leaf(BaseModel):
    name: str = "os.system"
    colour: Colour = Colour.RED

class Item(BaseModel):
    leaf: Leaf | None = None
    anything: object = None

codec = Codec(Item)
group = [Item(leaf=Leaf(), anything={
    "array": numpy.arange(4), "tensor": torch.ones(3), "tuple": (1, {2}), 3: numpy.float32(1), "big": 2**80,
    "zone": datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), "text": "\ud800", "colour": Colour.RED,
})] * 2
parts = codec.encode(group)
codec.decode(parts)
raw = bytes(open_section(0, parts))
forged = [seal for body in crafted.CRAFTED_VALUES.values() for seal in [crafted.seal(body)]]
forged += [crafted.seal(body, buffers=b"1234") for body in crafted.CRAFTED_ARRAYS.values()]
chance = random.Random(11)
for _ in range(4000):
    body = bytearray(raw)
    for _ in range(chance.randint(1, 5)):
        body[chance.randrange(len(body))] = chance.choice([chance.randrange(256), 0xC7, 0xD8, 0xDC, 0xFF])
    forged.append(seal_section(0, [body]))
plain = Codec(object)
watched = ("import", "exec", "compile", "pickle", "marshal", "os.", "subprocess", "socket", "open", "ctypes", "code.")
events = []

class Spy:
    def find_spec(self, name, path=None, target=None):
        events.append(("find", name))

sys.meta_path.insert(0, Spy())  # importlib.import_module is not audited
sys.addaudithook(lambda name, arguments: events.append((name, arguments)) if name.startswith(watched) else None)
read = 0
for parts in forged:
    for reader in (codec, plain):
        try:
            reader.decode(parts)
            read += 1
        except PayloadDamaged:
            pass
print(events, read > 0)
"""


def test_crafted_bytes_run_import_and_open_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, __file__.rpartition("/")[0]], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[] True", done.stdout[-2000:] + done.stderr[-2000:]


def test_the_audit_would_see_an_unpickling() -> None:
    """The watch itself works: the same hook reports a pickle that is read."""
    spying = AUDIT.replace(
        "reader.decode(parts)\n", "__import__('pickle').loads(b'cos\\nsystem\\n.'); reader.decode(parts)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", spying, __file__.rpartition("/")[0]], capture_output=True, text=True, check=False
    )
    assert "pickle.find_class" in done.stdout
