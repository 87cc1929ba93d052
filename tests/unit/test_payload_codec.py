"""The facade: sections, chunks and steps, what it imports, what it costs, and that parts stand on their own."""

import random
import subprocess
import sys
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

import sqlreplay.payload
from sqlreplay.errors import BadArgument, PayloadDamaged
from sqlreplay.payload import CHUNK_BYTES, LASTING, RESPONSE, Codec, Part


@dataclass
class Sample:
    prompt: str
    ids: list[int]
    response: Any = None


GROUP = [Sample("p" * 50, list(range(n, n + 300)), {"text": "r" * 500, "n": n}) for n in range(4)]
STEPS = [3, None, -1, 2**62]


def test_public_names_are_sorted_and_documented() -> None:
    assert sqlreplay.payload.__all__ == sorted(sqlreplay.payload.__all__, key=lambda name: (not name.isupper(), name))
    for name in sqlreplay.payload.__all__:
        public = getattr(sqlreplay.payload, name)
        assert isinstance(public, int) or public.__doc__, name


@pytest.mark.parametrize("chunk_bytes", [29, 64, 1000, CHUNK_BYTES])
def test_chunks_of_any_size_come_together_in_any_order(chunk_bytes: int) -> None:
    codec = Codec(Sample, response_fields={"response"}, chunk_bytes=chunk_bytes)
    parts = codec.encode(GROUP, STEPS)
    assert all(len(part.body) <= chunk_bytes for part in parts)
    assert all(part.checksum == zlib.crc32(part.body, part.part % 65536) for part in parts)
    sections = {LASTING: [part for part in parts if part.section == LASTING]}
    sections[RESPONSE] = [part for part in parts if part.section == RESPONSE]
    assert parts == sections[LASTING] + sections[RESPONSE]
    for section, chunks in sections.items():
        assert [part.part for part in chunks] == [section * 65536 + index for index in range(len(chunks))]
        assert [bool(part.raw_size) for part in chunks] == [True] + [False] * (len(chunks) - 1)
    random.Random(3).shuffle(parts)
    assert Codec(Sample, response_fields={"response"}).decode(parts) == (GROUP, STEPS)
    assert codec.decode(sections[LASTING], with_response=False).items[0].ids == GROUP[0].ids


def test_every_missing_doubled_or_exchanged_chunk_is_noticed() -> None:
    codec = Codec(Sample, response_fields={"response"}, chunk_bytes=200)
    parts = codec.encode(GROUP)
    assert len(parts) > 6
    for index, part in enumerate(parts):
        for wrong in (
            parts[:index] + parts[index + 1 :],
            [*parts, part],
            [*parts[:index], part._replace(part=part.part + 65536 * 2), *parts[index + 1 :]],
            [*parts[:index], part._replace(part=-1), *parts[index + 1 :]],
            [*parts[:index], parts[index - 1]._replace(part=part.part), *parts[index + 1 :]],
        ):
            with pytest.raises(PayloadDamaged):
                codec.decode(wrong)


def test_flipped_bytes_of_a_large_group_are_noticed() -> None:
    chance = random.Random(5)
    codec = Codec(Sample, response_fields={"response"}, chunk_bytes=50_000)
    parts = codec.encode([Sample("p", [], numpy.frombuffer(chance.randbytes(300_000), dtype="u1")) for _ in range(2)])
    for _ in range(300):
        index = chance.randrange(len(parts))
        body = bytearray(parts[index].body)
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        with pytest.raises(PayloadDamaged, match="checksum"):
            codec.decode([*parts[:index], parts[index]._replace(body=body), *parts[index + 1 :]])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_are_read_from_any_buffer(kind: Any) -> None:
    codec = Codec(dict, chunk_bytes=40)
    parts = codec.encode([{"a": list(range(100))}])
    assert codec.decode(part._replace(body=kind(part.body)) for part in parts).items == [{"a": list(range(100))}]


@pytest.mark.parametrize("steps", [[1.5], ["1"], [True], [2**63], [numpy.int64(1)], [None, object()]])
def test_steps_are_integers_or_none(steps: Any) -> None:
    with pytest.raises(BadArgument, match="steps"):
        Codec(dict).encode([{}], steps)


def test_steps_are_read_without_the_items() -> None:
    parts = Codec(Sample).encode(GROUP, STEPS)
    assert Codec(Sample).read_steps(parts) == Codec(dict).read_steps(parts) == STEPS
    assert Codec(dict).decode(Codec(dict).encode([{}])).steps == []


def test_compression_is_kept_where_it_pays() -> None:
    chance = random.Random(1)
    for data, is_compressed in ((bytes(100_000), True), (chance.randbytes(100_000), False), (b"\x00" * 500, False)):
        [part] = Codec(bytes).encode([data])
        assert bool(part.body[5]) is is_compressed
        assert (len(part.body) < 1000) is (is_compressed or len(data) < 1000)
        assert Codec(bytes).decode([part]).items == [data]
    halves = [chance.randbytes(20 << 20) + bytes(20 << 20)]
    assert Codec(bytes).decode(Codec(bytes).encode(halves)).items == halves


def test_parts_do_not_follow_later_changes() -> None:
    array = numpy.zeros(200_000, dtype="u1")
    for chunk_bytes in (CHUNK_BYTES, 1000):
        for noise in (array, numpy.frombuffer(bytearray(random.Random(2).randbytes(9000)), dtype="u1")):
            codec = Codec(dict, chunk_bytes=chunk_bytes)
            before = noise.tolist()
            item = {"array": noise, "list": [1, 2]}
            parts = codec.encode([item])
            noise += 1
            item["list"].append(3)  # type: ignore[attr-defined]
            [found] = codec.decode(parts).items
            assert found["array"].tolist() == before
            assert found["list"] == [1, 2]


def test_prepare_copies_all_but_arrays() -> None:
    item = {"list": [1, 2], "array": numpy.zeros(2)}
    pending = Codec(dict).prepare([item], [4])
    item["list"].append(3)
    assert pending.refs == []
    parts = pending.finish()
    assert parts == pending.finish([])
    assert Codec(dict).decode(parts).items[0]["list"] == [1, 2]
    with pytest.raises(BadArgument, match="one for each of refs"):
        pending.finish([1])


def test_large_arrays_are_copied_once_into_their_parts() -> None:
    noise = numpy.frombuffer(random.Random(4).randbytes(48 << 20), dtype="u1")
    codec = Codec(dict, chunk_bytes=8 << 20)
    tracemalloc.start()
    parts = codec.encode([{"experts": noise}])
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(parts) == 7
    assert written < 48 * 1.25 * 2**20
    tracemalloc.start()
    found = codec.decode(parts).items[0]["experts"]
    read = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read < 48 * 2.25 * 2**20
    assert (found == noise).all()


def test_one_codec_serves_many_threads() -> None:
    codec = Codec(Sample, response_fields={"response"})
    groups = [[Sample("\ud800" * (n % 2), [n] * 50, (n, {n: n}))] * 3 for n in range(200)]

    def there_and_back(group: list[Sample]) -> list[Sample]:
        return codec.decode(codec.encode(group)).items

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, groups)) == groups


def run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_heavy_is_imported() -> None:
    script = """
import sys
from sqlreplay.payload import Codec
codec = Codec(dict)
codec.decode(codec.encode([{"a": [1, (2, {3})], "b": 2**99}]))
print([name for name in ("numpy", "torch", "ray") if name in sys.modules])
"""
    assert run(script) == "[]"


@pytest.mark.parametrize(("package", "command"), [("numpy", "pip install numpy"), ("torch", "'sqlreplay[torch]'")])
def test_a_missing_package_is_named_with_its_install_command(package: str, command: str) -> None:
    value = numpy.arange(3) if package == "numpy" else __import__("torch").ones(2)
    [part] = Codec(object).encode([value])
    script = f"""
import sys, zlib
sys.modules["{package}"] = None
from sqlreplay.errors import MissingExtra
from sqlreplay.payload import Codec, Part
body = bytes.fromhex(sys.argv[1])
try:
    Codec(object).decode([Part(0, body, 0, zlib.crc32(body))])
except MissingExtra as error:
    print(error)
"""
    assert command in run(script, bytes(part.body).hex())


def test_part_says_its_section() -> None:
    assert Part(65536 + 7, b"", 0, 0).section == RESPONSE
