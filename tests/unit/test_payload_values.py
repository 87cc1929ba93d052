"""Whatever a group may hold comes back with its exact type and bits, without a database."""

import struct
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from sqlreplay import PayloadUnsupported, RolloutState, RolloutToolCall, Status
from sqlreplay.payload import Codec
from sqlreplay.records import RESPONSE_FIELDS


def same(codec: Codec[Any], items: list[Any]) -> list[Any]:
    return codec.decode(codec.encode(items)).items


def round_trip(value: Any) -> Any:
    return same(Codec(dict), [{"value": value}])[0]["value"]


def exactly(found: Any, given_value: Any) -> bool:
    """Compare type by type, so that a tuple is no list, True is no 1, and NaN equals itself."""
    if type(found) is not type(given_value):
        return False
    if isinstance(found, float):
        return struct.pack("d", found) == struct.pack("d", given_value)
    if isinstance(found, (list, tuple)):
        return len(found) == len(given_value) and all(map(exactly, found, given_value))
    if isinstance(found, dict):
        return list(found) == list(given_value) and all(exactly(found[name], given_value[name]) for name in found)
    return bool(found == given_value)


texts = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | texts
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.uuids()
)
hashable = st.integers() | texts | st.tuples(st.integers(), texts)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.frozensets(st.integers(), max_size=4)
        | st.sets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(plain)
def test_plain_data_is_exact(value: Any) -> None:
    assert exactly(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        "nul \x00 inside",
        "lone \ud800 surrogate",
        {"\udfff key": 1},
        {1: "int key", (1, 2): "tuple key"},
        2**200,
        -(2**63) - 1,
        float("-inf"),
        -0.0,
        3 + 4j,
        bytearray(b"x"),
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        time(1, 2, 3, 4),
        timedelta(days=-1, microseconds=1),
        date(2026, 2, 3),
        Decimal("1.10"),
        uuid.UUID(int=5),
        list(range(5000)),
        [0.5] * 3000,
        [1, True, 1.0, None] * 500,
    ],
    ids=repr,
)
def test_value_is_exact(value: Any) -> None:
    assert exactly(round_trip(value), value)


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u2", "<i4", ">i4", "u8", "f2", "<f4", ">f8", "c16", "S5", "U3", "datetime64[ns]", "m8[s]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_numpy_arrays_are_exact_and_writable(dtype: str, shape: tuple[int, ...]) -> None:
    array = numpy.arange(6).astype(dtype)[: numpy.prod(shape, dtype=int)].reshape(shape)
    found = round_trip(array)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


def test_numpy_keeps_nan_bits_fortran_order_and_scalars() -> None:
    bits = numpy.array([0x7FF8000000000001, 0x8000000000000000], dtype="u8").view("f8")
    assert round_trip(bits).view("u8").tolist() == bits.view("u8").tolist()
    fortran = numpy.asfortranarray(numpy.arange(6).reshape(2, 3))
    assert (round_trip(fortran) == fortran).all()
    scalar = numpy.float32(0.1)
    assert type(round_trip(scalar)) is numpy.float32
    assert round_trip(scalar) == scalar


TORCH_DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype)
        and not any(word in str(dtype) for word in ("qint", "quint", "bits", "int1", "int2", "int3", "int4", "int5"))
        and not any(word in str(dtype) for word in ("int6", "int7", "fn_x2"))
    }
    | {torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64},
    key=str,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (4,), (2, 3)])
def test_torch_tensors_of_every_dtype_are_bit_exact(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(7)
    size = dtype.itemsize * int(numpy.prod(shape, dtype=int))
    raw = torch.randint(0, 256 if dtype != torch.bool else 2, (size,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).reshape(shape)
    found = round_trip(tensor)
    assert found.dtype == dtype
    assert tuple(found.shape) == shape
    assert found.reshape(-1).view(torch.uint8).tolist() == raw.tolist()


def test_torch_keeps_bfloat16_nan_and_negative_zero_and_reads_views() -> None:
    tensor = torch.tensor([float("nan"), -0.0, 1.5], dtype=torch.bfloat16)
    assert round_trip(tensor).view(torch.int16).tolist() == tensor.view(torch.int16).tolist()
    view = torch.arange(12).reshape(3, 4).t()[1:]
    assert round_trip(view).tolist() == view.tolist()
    assert round_trip(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Frozen:
    points: list[Point]


class Plain:
    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.more = [1, (2, 3)]


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    point: Point | None = None
    anything: Any = None


def test_classes_are_rebuilt_from_the_readers_annotations() -> None:
    assert same(Codec(Frozen), [Frozen([Point(1), Point(2)])]) == [Frozen([Point(1), Point(2)])]
    assert same(Codec(Point), [Point(1)])[0].colour is Colour.RED
    plain_item = same(Codec(Plain), [Plain(3)])[0]
    assert vars(plain_item) == {"needed": 3, "more": [1, (2, 3)]}
    loose = Loose(point=Point(4), anything={"a": (1,)}, further="kept")  # type: ignore[call-arg]
    found = same(Codec(Loose), [loose])[0]
    assert found == loose
    assert found.model_extra == {"further": "kept"}
    assert found.model_fields_set == loose.model_fields_set
    assert same(Codec(bytes), [b"", b"\x00raw"]) == [b"", b"\x00raw"]


def test_rollout_state_round_trips_with_nested_models_and_arrays() -> None:
    state = RolloutState(
        message=[{"role": "user", "content": "hi \ud800"}],
        mm_info={"pixel_values": numpy.ones((2, 3)), "num_img_tokens": [4]},
        tool_calls=[RolloutToolCall(id="1", function={"name": "f", "arguments": {"a": [1]}})],  # type: ignore[arg-type]
        routed_experts=torch.zeros(2, 2, dtype=torch.int32),
        response_ids=[1, 2],
        logprobs=[float("nan"), -0.0],
        status=Status.COMPLETED,
        extra_fields={"nested": {"tuple": (1, 2)}},
    )
    codec = Codec(RolloutState, response_fields=RESPONSE_FIELDS)
    decoded = codec.decode(codec.encode([state], [3]))
    found = decoded.items[0]
    assert decoded.steps == [3]
    assert type(found.tool_calls[0]) is RolloutToolCall
    assert found.tool_calls == state.tool_calls
    assert found.status is Status.COMPLETED
    assert found.extra_fields == {"nested": {"tuple": (1, 2)}}
    assert found.sample_params == state.sample_params
    assert exactly(found.logprobs, state.logprobs)
    assert found.mm_info["pixel_values"].shape == (2, 3)
    lasting = [part for part in codec.encode([state], [3]) if part.section == 0]
    without = codec.decode(lasting, with_response=False).items[0]
    assert without.response_ids is None
    assert without.extra_fields == state.extra_fields


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"deep": [lambda: None]}, "deep"),
        ({"model": Loose()}, "model"),
        ({"array": numpy.array([object()])}, "array"),
        ({"sparse": torch.zeros(2).to_sparse()}, "sparse"),
        ({"generator": (number for number in ())}, "generator"),
    ],
    ids=["function", "model in a dict", "object array", "sparse tensor", "generator"],
)
def test_what_has_no_safe_form_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(PayloadUnsupported, match=path):
        Codec(dict).encode([value])


def test_cycles_and_endless_depth_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (cycle, deep):
        with pytest.raises(PayloadUnsupported):
            Codec(dict).encode([{"value": value}])
