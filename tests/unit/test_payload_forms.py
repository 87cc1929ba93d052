"""The less common values: zones, odd numbers, foreign subclasses, dtypes at the edge, and what is refused of them."""

import datetime
import decimal
import enum
import os
import socket
import subprocess
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from sqlreplay.errors import PayloadUnsupported
from sqlreplay.payload import Codec
from sqlreplay.payload.values import MAX_DEPTH


def round_trip(value: Any) -> Any:
    codec = Codec(object)
    return codec.decode(codec.encode([value])).items[0]


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("America/New_York")),
        datetime.datetime(1, 1, 1, microsecond=1, tzinfo=datetime.timezone(datetime.timedelta(hours=5.5), "IST")),
        datetime.datetime.max.replace(tzinfo=datetime.timezone(-datetime.timedelta(seconds=1, microseconds=7))),
        datetime.time(23, 59, 59, 999_999, datetime.UTC, fold=1),
        datetime.timedelta.min,
        datetime.timedelta.max,
        datetime.date.max,
        decimal.Decimal("-0E-400"),
        decimal.Decimal("sNaN123"),
        decimal.Decimal("1" * 60),
        uuid.UUID(int=2**128 - 1),
        complex(-0.0, float("inf")),
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        {(): frozenset(), b"": bytearray(), None: {None}, True: {frozenset({1})}, 1.5: (1, (2, [3]))},
        {"a": {"b": {(1, "\ud800"): ["\udfff", 2**80, {"\udc00": 1}]}}},
        [[], [[]], [[[]]], {}, (), set()],
        ["\x00", "", "\U0010ffff", "\ud83d\ude00"],
    ],
    ids=lambda value: repr(value)[:40],
)
def test_exact(value: Any) -> None:
    found = round_trip(value)
    assert repr(found) == repr(value)
    assert type(found) is type(value)


def test_zones_and_fold_are_the_same_objects_in_meaning() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    moment = datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zone)
    found = round_trip(moment)
    assert found.utcoffset() == moment.utcoffset() == datetime.timedelta(hours=1)
    assert found.tzinfo is zone
    assert round_trip(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)).tzinfo is datetime.UTC


def test_equal_groups_give_equal_bytes_in_every_process() -> None:
    """A retried put is recognised by its bytes, and sets of text iterate differently in each process."""
    script = (
        "from sqlreplay.payload import Codec\n"
        "group = [{'words': {f'word {n}' for n in range(99)}, 'sets': frozenset({(1, 'a'), (2, 'b'), None})}]\n"
        "print(Codec(dict).encode(group))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}])
def test_depth_is_bounded_the_same_for_writing_and_reading(wrap: Any) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert round_trip(value) == value
    with pytest.raises(PayloadUnsupported, match="nested deeper"):
        round_trip(wrap(wrap(value)))


def test_values_that_contain_themselves_are_refused() -> None:
    mapping: dict[str, Any] = {}
    mapping["self"] = (mapping,)
    with pytest.raises(PayloadUnsupported, match="contains itself"):
        round_trip(mapping)


class Name(str):
    __slots__ = ()


class Zone(datetime.tzinfo):
    pass


class Thing:
    pass


REFUSED = [
    (lambda: None, "code is never stored"),
    (Thing, "code is never stored"),
    (Thing(), "Annotate the field with Thing"),
    (Name("x"), r"Store str\(value\)"),
    (OrderedDict(a=1), r"Store dict\(value\)"),
    (defaultdict(list), r"has no safe form"),
    (Counter("a"), r"Store dict\(value\)"),
    (deque([1]), "Store plain data"),
    (range(3), "Store plain data"),
    (Path("/tmp"), r"str\(value\)"),
    (memoryview(b"x"), "Store plain data"),
    (ValueError("x"), "Store plain data"),
    ((number for number in ()), "has no safe form"),
    (datetime.datetime(2026, 1, 1, tzinfo=Zone()), "astimezone"),
    (numpy.array([object()]), "dtype object"),
    (numpy.array(["a"], dtype=numpy.dtypes.StringDType()), "dtype StringDType"),
    (numpy.zeros(2, dtype=[("a", [("b", "i4")])]), "flat structured"),
    (numpy.zeros(2, dtype=[("a", "O")]), "flat structured"),
    (numpy.ma.array([1]), "numpy.asarray"),
    (numpy.rec.array([(1, 2)]), "numpy.asarray"),
    (torch.nn.Parameter(torch.ones(2)), "detach"),
    (torch.ones(2).to_sparse(), "to_dense"),
    (torch.ones(2, device="meta"), "dense"),
]


@pytest.mark.parametrize(
    ("value", "advice"), REFUSED, ids=[type(value).__name__ + repr(advice) for value, advice in REFUSED]
)
def test_refused_with_advice_and_path(value: Any, advice: str) -> None:
    with pytest.raises(PayloadUnsupported, match=rf"^\[0\]\.trace\[1\]\.x: (?s:.*){advice}"):
        Codec(dict).encode([{"trace": [1, {"x": value}]}])
    with pytest.raises(PayloadUnsupported, match=rf"^\[1\]\['a b'\]\[40\]: (?s:.*){advice}"):
        Codec(dict).encode([{}, {"a b": [1] * 40 + [value, 2]}])


def test_a_socket_is_refused() -> None:
    with socket.socket() as open_socket, pytest.raises(PayloadUnsupported, match="socket"):
        round_trip([open_socket])


NUMPY = [
    numpy.zeros((2,), dtype=[("a", "<i4"), ("b", ">f8", (2, 3)), ("c", "U3")]),
    numpy.ones(3, dtype=numpy.dtype([("a", "i1"), ("b", "f8")], align=True)),
    numpy.array([1, 2], dtype=numpy.longdouble) / 3,
    numpy.array([1 + 2j], dtype=numpy.clongdouble),
    numpy.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    numpy.arange(10)[::-3],
    numpy.broadcast_to(numpy.arange(3), (2, 3)),
    numpy.array(["2026-01-01", "NaT"], dtype="M8[D]"),
    numpy.array([1, 2], dtype="m8[25us]"),
    numpy.array([b"a\x00b", b""], dtype="S4"),
    numpy.array([b"\x00\x01"], dtype="V2"),
    numpy.array([0x7FF0000000000001, 0x8000000000000000], dtype="u8").view(">f8"),
    numpy.empty((0, 3), dtype="U5"),
]


@pytest.mark.parametrize("array", NUMPY, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_keep_dtype_order_and_bits(array: numpy.ndarray) -> None:
    found = round_trip(array)
    assert type(found) is numpy.ndarray
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.dtype.isnative == array.dtype.isnative
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        assert found.flags.f_contiguous


SCALARS = [
    numpy.float64(-0.0),
    numpy.float32("nan"),
    numpy.longdouble(1) / 3,
    numpy.int8(-3),
    numpy.uint64(2**64 - 1),
    numpy.True_,
    numpy.complex64(1 - 2j),
    numpy.datetime64("NaT"),
    numpy.datetime64("2026-01-01", "25s"),
    numpy.timedelta64(3),
    numpy.str_("a\x00\ud800"),
    numpy.bytes_(b"a\x00"),
    numpy.void(b""),
    numpy.zeros(1, dtype=[("a", "<i4")])[0],
]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: repr(scalar)[:40])
def test_numpy_scalars_are_exact(scalar: numpy.generic) -> None:
    found = round_trip({"reward": [scalar] * 20})["reward"][7]
    assert type(found) is type(scalar)
    assert found.dtype == scalar.dtype
    assert found.tobytes() == scalar.tobytes()
    if isinstance(scalar, (str, bytes)):
        assert len(found) == len(scalar)


def test_tensor_views_flags_and_packed_types() -> None:
    complex_tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert round_trip(complex_tensor.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert round_trip(torch._neg_view(torch.ones(2))).tolist() == [-1.0, -1.0]
    leaf = torch.ones(3, requires_grad=True)
    assert round_trip(leaf).requires_grad
    assert not round_trip(leaf * 2).requires_grad
    for name in ("int4", "uint7", "bits8", "float4_e2m1fn_x2", "bits16", "complex32", "float8_e8m0fnu"):
        dtype = getattr(torch, name)
        raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
        view = raw.view(dtype).reshape(2, 3).t()
        found = round_trip(view)
        assert (found.dtype, found.shape) == (dtype, view.shape)
        carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
        assert found.view(carrier).tolist() == view.view(carrier).tolist()
    found = round_trip(torch.arange(3))
    found += 1
    assert found.tolist() == [1, 2, 3]


class Weight(enum.Enum):
    HEAVY = numpy.float64(2.5)


def test_an_enum_of_numpy_values_is_stored_by_value() -> None:
    assert type(round_trip([Weight.HEAVY])[0]) is numpy.float64


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_arrays_inside_containers_find_their_own_bytes(size: int) -> None:
    arrays = [numpy.full(size, number, dtype="i2") for number in range(5)]
    found = round_trip({"list": arrays, "tuple": (arrays[1], torch.full((size,), 9)), "text": "\ud800"})
    assert [array.tolist() for array in found["list"]] == [array.tolist() for array in arrays]
    assert found["tuple"][0].tolist() == arrays[1].tolist()
    assert found["tuple"][1].tolist() == [9] * size


def test_a_second_careful_walk_stores_arrays_once() -> None:
    [part] = Codec(object).encode([[numpy.frombuffer(os.urandom(100_000), dtype="u1"), "\ud800", 2**70]])
    assert part.raw_size < 101_000
