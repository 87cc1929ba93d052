"""Lists of numbers are stored short and come back number by number, with the types they had."""

import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from sqlreplay.errors import PayloadDamaged
from sqlreplay.payload import Codec
from sqlreplay.payload.frame import seal_section
from sqlreplay.payload.integers import MAX_REPEATED, read_integer_lists, write_integer_lists
from sqlreplay.payload.section import Directory, lay_out
from sqlreplay.payload.values import INTEGER_LISTS


@dataclass
class Sample:
    ids: list[int] | None
    scores: list[float] | None = None
    anything: Any = None


def round_trip(group: list[Sample]) -> list[Sample]:
    codec = Codec(Sample)
    return codec.decode(codec.encode(group)).items


def with_types(values: list[Any] | None) -> list[Any] | None:
    return None if values is None else [(type(value), repr(value)) for value in values]


runs = st.lists(st.tuples(st.integers(-3, 400), st.integers(1, 40)), max_size=12).map(
    lambda runs: [number for number, size in runs for _ in range(size)]
)
tokens = st.lists(st.integers(0, 2**17), max_size=60)
wide = st.lists(st.integers(-(2**70), 2**70), max_size=40)
mixed = st.lists(
    st.integers(0, 1) | st.booleans() | st.decimals(allow_nan=False, places=0) | st.sampled_from([0.0, 1.0, -0.0]),
    max_size=40,
)
columns = st.lists(runs | runs.map(sorted) | tokens | wide | mixed | st.none(), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(columns, st.booleans())
@example([[1] * 20, [True] * 20, [1.0] * 20], False)
@example([[5] * 20, [5] * 20, [5] * 19 + [6]], True)
@example([[2**31] * 30, [2**31, *range(30)]], True)
def test_untyped_lists_are_exact(lists: list[Any], is_repeated: bool) -> None:
    group = [Sample(None, anything=values) for values in lists * (2 if is_repeated else 1)]
    for found, given_item in zip(round_trip(group), group, strict=True):
        assert with_types(found.anything) == with_types(given_item.anything)


@settings(max_examples=300, deadline=None)
@given(st.lists(runs | runs.map(sorted) | tokens | wide | st.none(), min_size=1, max_size=6))
def test_typed_lists_are_exact(lists: list[Any]) -> None:
    group = [Sample(values, [float(value % 7) for value in values or ()]) for values in lists * 2]
    for found, given_item in zip(round_trip(group), group, strict=True):
        assert with_types(found.ids) == with_types(given_item.ids)
        assert with_types(found.scores) == with_types(given_item.scores)


@pytest.mark.parametrize(
    "values",
    [
        [True] * 40,
        [numpy.int64(3)] * 40,
        [1, 2, (3, 4)] * 20,
        ["a"] * 40,
        [None] * 40,
        [200] * 20 + [None] + [200] * 20,
        [200, 300] * 10 + [(1, 2)] + [200, 300] * 10,
        [200, 300] * 10 + ["text", [1]] + [200, 300] * 10,
        [1, 0] * 10 + [True, None] + [1, 0] * 10,
        [0.5] * 20 + [1, True, None, numpy.float64(0.5)] + [0.5] * 20,
        [numpy.arange(3), 1, 2] * 20,
        [1] * 20 + [Decimal(1), Decimal("Infinity")] + [1] * 20,
        [0.5] * 20 + [Decimal("sNaN"), Decimal("0.5")] + [0.5] * 20,
        [0.5] * 20 + [10**400, 1] + [0.5] * 20,
    ],
    ids=lambda values: f"{values[0]!r} {values[20]!r}",
)
def test_what_the_annotation_does_not_say_is_kept_too(values: list[Any]) -> None:
    if not isinstance(values[0], float):
        [found, other] = round_trip([Sample(values), Sample(values[:])])
        assert with_types(found.ids) == with_types(other.ids) == with_types(values)
    [found, other] = round_trip([Sample(None, anything=values), Sample(None, anything=values[:])])
    assert with_types(found.anything) == with_types(other.anything) == with_types(values)


def test_one_list_may_break_its_annotation_where_the_others_keep_it() -> None:
    lists = [[200, 300] * 20, [numpy.int64(200), numpy.int64(300)] * 20, [200.0, 300.0] * 20, [True, 300] * 20]
    found = round_trip([Sample(values) for values in lists])
    assert [with_types(item.ids) for item in found] == [with_types(values) for values in lists]


def test_numbers_that_only_look_like_the_annotation_become_what_it_says() -> None:
    """Typed lists are not walked: between two integers, other things that count as integers are taken for them."""
    [found] = round_trip([Sample([200, True, numpy.int64(7)] * 10 + [300], [0.5, Decimal("0.25"), 1, 0.5])])
    assert with_types(found.ids) == with_types([200, 1, 7] * 10 + [300])
    assert with_types(found.scores) == with_types([0.5, 0.25, 1, 0.5])


def test_repetition_is_not_stored() -> None:
    chance = random.Random(7)
    prompt = [chance.randrange(100_000) for _ in range(5000)]
    one = Codec(Sample).encode([Sample(list(prompt))])
    eight = Codec(Sample).encode([Sample(list(prompt)) for _ in range(8)])
    assert eight[0].raw_size < one[0].raw_size + 100
    steps = [100] * 3000 + [101] * 2000
    [part] = Codec(Sample).encode([Sample(steps)])
    assert part.raw_size < 150


def test_copies_are_independent() -> None:
    group = round_trip([Sample([7] * 50) for _ in range(3)])
    group[0].ids.append(8)  # type: ignore[union-attr]
    assert group[1].ids == group[2].ids == [7] * 50


def test_the_allowance_is_shared_by_writer_and_reader() -> None:
    lists = [[5] * 100, [6] * 100, [5] * 100, [7, 300] * 50]
    written, repeated = write_integer_lists(lists, allowance=250) or ([], 0)
    assert repeated == 200
    assert isinstance(written[2], (bytes, list))
    data = memoryview(msgpack.encode(written))
    assert read_integer_lists(data, 200) == (lists, 200)
    with pytest.raises(ValueError, match="repeated"):
        read_integer_lists(data, 199)


def decode_forged(written: Any) -> Any:
    body = msgpack.encode([msgpack.Ext(INTEGER_LISTS, msgpack.encode(written))])
    return Codec(object).decode(seal_section(0, lay_out(Directory("object", False, len(body)), body, []))).items


@pytest.mark.parametrize(
    "written",
    [
        [{MAX_REPEATED + 1: 1}],
        [{2**62: 1}],
        [{MAX_REPEATED // 2: 1}, 0, 0],
        [{10: 1, 5: 2, 9: 3}],
        [{-5: 1}],
        [{}],
        [0],
        [[1], 5],
        [[1], -1, -7],
        [b"abc"],
        [["text"]],
        {"a": 1},
        [None],
    ],
    ids=repr,
)
def test_forged_repetition_is_refused(written: Any) -> None:
    with pytest.raises(PayloadDamaged):
        decode_forged(written)


def test_forged_forms_that_are_in_order_are_read() -> None:
    assert decode_forged([[1, 2], 0, {3: 9, 4: 8}, b"\x05\x00\x00\x00"]) == [[[1, 2], [1, 2], [9, 9, 9, 8], [5]]]
