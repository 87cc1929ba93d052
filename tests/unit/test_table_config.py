"""A table's settings: equal, storable as plain data, and refused where they mean nothing."""

import json
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sqlreplay import (
    AsyncReplayBufferConfig,
    BadArgument,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stack,
    Staleness,
    SyncReplayBufferConfig,
    TableConfig,
    Uniform,
)
from sqlreplay.limiters import LIMITERS, RateLimiter
from sqlreplay.policy import SELECTORS, Selector

ORDERS: list[Fifo | Lifo | MaxHeap | MinHeap | Staleness] = [Fifo(), Lifo(), MaxHeap(), MinHeap(), Staleness()]
EVERY_SELECTOR: list[Selector] = [*ORDERS, Uniform(), Prioritized(0.6), Prioritized(0), Prioritized(1.5, beta=0.4)]
EVERY_LIMITER: list[RateLimiter] = [
    MinSize(7),
    Queue(3),
    Stack(4),
    SampleToInsertRatio(2.0, 3, 4.0),
    SampleToInsertRatio(0.5, 2, (-3.0, 4.5)),
]


def test_the_lists_of_this_module_have_every_kind() -> None:
    assert {type(selector) for selector in EVERY_SELECTOR} == set(SELECTORS.values())
    assert {type(limiter) for limiter in EVERY_LIMITER} == set(LIMITERS.values())


def test_settings_are_equal_by_value() -> None:
    first = TableConfig(Prioritized(0.6), Lifo(), 10, 2, MinSize(3), 1000, "block")
    assert first == TableConfig(Prioritized(0.6), Lifo(), 10, 2, MinSize(3), 1000, "block")
    assert hash(first) == hash(replace(first))
    others: list[dict[str, Any]] = [
        {"sampler": Prioritized(0.7)},
        {"sampler": Prioritized(0.6, beta=0.1)},
        {"remover": Fifo()},
        {"max_size": 11},
        {"max_times_sampled": 3},
        {"rate_limiter": MinSize(4)},
        {"max_bytes": 1001},
        {"on_full": "reject"},
    ]
    for other in others:
        assert replace(first, **other) != first


def test_left_out_settings_are_a_uniform_table_without_limits() -> None:
    expected = TableConfig(Uniform(), Fifo(), None, 0, MinSize(1), None, "evict")
    assert TableConfig() == expected == TableConfig.from_json({})


def through_json(config: TableConfig) -> TableConfig:
    return TableConfig.from_json(json.loads(json.dumps(config.to_json())))


@pytest.mark.parametrize("selector", EVERY_SELECTOR, ids=repr)
def test_every_selector_comes_back_from_json(selector: Selector) -> None:
    as_sampler = TableConfig(sampler=selector, remover=Lifo(), max_size=5, max_times_sampled=3)
    assert through_json(as_sampler) == as_sampler
    as_remover = TableConfig(remover=selector, max_bytes=2**40, on_full="reject")
    assert through_json(as_remover) == as_remover


@pytest.mark.parametrize("limiter", EVERY_LIMITER, ids=repr)
def test_every_limiter_comes_back_from_json(limiter: RateLimiter) -> None:
    config = TableConfig(rate_limiter=limiter)
    found = through_json(config)
    assert found == config
    assert type(found.rate_limiter) is type(limiter)


def test_a_table_that_was_warned_of_is_read_back_in_silence() -> None:
    with pytest.warns(UserWarning, match="Fifo sampler"):
        config = TableConfig(sampler=Fifo())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert through_json(config) == config


def test_a_limiter_that_was_warned_of_is_read_back_in_silence() -> None:
    """Every process reads it with every draw and put: whoever chose it was warned."""
    with pytest.warns(UserWarning, match="highest"):
        config = TableConfig(rate_limiter=SampleToInsertRatio(2.0, 3, (0.0, 5.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert through_json(config) == config


@pytest.mark.parametrize("name", ["uniform", "fifo", "lifo", "minheap", "maxheap", "staleness", "Uniform", "MaxHeap"])
def test_selectors_may_be_named_in_any_case(name: str) -> None:
    kind = {name.lower(): kind for name, kind in SELECTORS.items()}[name.lower()]
    config = TableConfig(sampler=name, remover=name, max_times_sampled=1)  # type: ignore[arg-type]
    assert config == TableConfig(sampler=kind(), remover=kind(), max_times_sampled=1)
    assert through_json(config) == config


@pytest.mark.parametrize("role", ["sampler", "remover"])
@pytest.mark.parametrize("selector", ["random", "", "prioritized", Uniform, 1, None, MinSize(1)], ids=repr)
def test_an_unknown_selector_is_refused_with_the_known_ones(role: str, selector: Any) -> None:
    arguments: dict[str, Any] = {role: selector}
    with pytest.raises(BadArgument, match=f"^{role} is ") as caught:
        TableConfig(**arguments)
    assert repr(selector) in str(caught.value)
    for name in SELECTORS:
        assert name in str(caught.value)


@pytest.mark.parametrize("value", [-0.1, -1, math.nan, math.inf, -math.inf, True, "0.6", None])
def test_an_exponent_that_is_no_finite_number_from_0_on_is_refused(value: Any) -> None:
    with pytest.raises(BadArgument, match=r"^exponent is ") as caught:
        Prioritized(value)
    assert repr(value) in str(caught.value)
    with pytest.raises(BadArgument, match=r"^beta is "):
        Prioritized(0.5, beta=value)


@pytest.mark.parametrize("name", ["max_size", "max_bytes", "max_times_sampled"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", math.nan])
def test_a_limit_that_is_no_whole_number_above_0_is_refused(name: str, value: Any) -> None:
    if name == "max_times_sampled" and value == 0:
        assert TableConfig(max_times_sampled=0).max_times_sampled == 0  # no limit, as in Reverb
        return
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(BadArgument, match=f"^{name} is ") as caught:
        TableConfig(**arguments)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["drop", "", None, "EVICT", 1])
def test_an_unknown_on_full_is_refused_with_the_known_ones(value: Any) -> None:
    with pytest.raises(BadArgument, match=r"^on_full is .*'evict', 'block' or 'reject'"):
        TableConfig(max_size=1, on_full=value)


@pytest.mark.parametrize("value", ["MinSize", None, 3, MinSize, Uniform(), RateLimiter()])
def test_what_is_no_limiter_of_ours_is_refused_with_those_that_are(value: Any) -> None:
    with pytest.raises(BadArgument, match=r"^rate_limiter is ") as caught:
        TableConfig(rate_limiter=value)
    for name in LIMITERS:
        assert name in str(caught.value)


@pytest.mark.parametrize("limiter", [MinSize(5), SampleToInsertRatio(2.0, 5, 12.0)], ids=repr)
def test_a_capacity_below_what_the_limiter_waits_for_is_refused(limiter: RateLimiter) -> None:
    with pytest.raises(BadArgument, match=r"max_size=4 is less than .* nothing could ever be sampled"):
        TableConfig(max_size=4, rate_limiter=limiter)
    assert TableConfig(max_size=5, rate_limiter=limiter).max_size == 5


def test_a_fifo_sampler_with_a_fifo_remover_warns_of_the_same_groups_again_and_again() -> None:
    with pytest.warns(UserWarning, match=r"same oldest groups.*Table\.queue") as caught:
        TableConfig(sampler=Fifo(), remover=Fifo(), max_size=10)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableConfig(sampler=Fifo(), remover=Fifo(), max_size=10, max_times_sampled=1)
        TableConfig(sampler=Fifo(), remover=Lifo())
        TableConfig(sampler=Lifo(), remover=Fifo())


@pytest.mark.parametrize("preset", [SyncReplayBufferConfig, AsyncReplayBufferConfig])
def test_presets_take_tables_as_objects_and_as_plain_data(preset: Any) -> None:
    tables = {
        "math": TableConfig(sampler=Prioritized(0.6, beta=0.4), max_size=100, on_full="block"),
        "code": TableConfig(rate_limiter=SampleToInsertRatio(2.0, 3, (0.0, 9.0)), max_times_sampled=2),
    }
    from_objects = preset(url="sqlite://", tables=tables, max_size=1000, seed=7)
    plain = {name: config.to_json() for name, config in tables.items()}
    from_plain = preset(url="sqlite://", tables=plain, max_size=1000, seed=7)
    assert from_objects.tables == from_plain.tables == tables
    written = from_objects.model_dump_json()
    assert preset.model_validate_json(written) == from_objects
    assert json.loads(written)["tables"] == json.loads(json.dumps(plain))
    assert preset.model_validate(from_objects.model_dump()) == from_objects


def test_a_preset_builds_a_buffer_with_its_tables() -> None:
    config = TableConfig(sampler=Lifo(), max_size=2)
    preset = SyncReplayBufferConfig(url="sqlite://", tables={"math": config})
    buffer = preset.build()
    assert buffer._tables == {"math": config}


@pytest.mark.parametrize(
    "table",
    [
        {"max_size": 0},
        {"on_full": "drop"},
        {"sampler": {"Prioritized": {"exponent": -1}}},
        {"sampler": {"Random": {}}},
        {"rate_limiter": {"Often": {}}},
        {"sampler": {}},
        {"sampler": 3},
        {"max_sise": 10},
        7,
    ],
    ids=repr,
)
def test_a_preset_refuses_plain_data_that_is_no_table_as_pydantic_does(table: Any) -> None:
    with pytest.raises(ValidationError):
        SyncReplayBufferConfig(url="sqlite://", tables={"math": table})


Row = tuple[int, float, int]
rows_of_a_table = st.lists(
    st.tuples(
        st.integers(1, 2**62),
        st.one_of(
            st.sampled_from([0.0, -0.0, 5e-324, 1.0, 1.7e308]), st.floats(0, allow_nan=False, allow_infinity=False)
        ),
        st.one_of(st.integers(-3, 3), st.integers(-(2**53), 2**53), st.just(2**62)),
    ),
    unique_by=lambda row: row[0],
    max_size=30,
)


def documented_order(selector: Selector, row: Row) -> tuple[float, ...]:
    uid, priority, stale_from_step = row
    return {
        Fifo(): (uid,),
        Lifo(): (-uid,),
        MinHeap(): (priority, uid),
        MaxHeap(): (-priority, uid),
        Staleness(): (stale_from_step, uid),
    }[selector]


@pytest.mark.parametrize("selector", ORDERS, ids=repr)
@given(rows=rows_of_a_table)
@settings(max_examples=150, deadline=None)
def test_keys_sort_as_the_selector_says(selector: Any, rows: list[Row]) -> None:
    by_key = sorted(rows, key=lambda row: (selector.key(*row), row[0]))
    assert by_key == sorted(rows, key=lambda row: documented_order(selector, row))


@pytest.mark.parametrize("selector", ORDERS, ids=repr)
@given(rows=rows_of_a_table)
@settings(max_examples=30, deadline=None)
def test_keys_sort_as_the_plan_does_in_sql(selector: Any, rows: list[Row]) -> None:
    columns = sqlalchemy.Table(
        "rows",
        sqlalchemy.MetaData(),
        sqlalchemy.Column("uid", sqlalchemy.Integer, primary_key=True),
        sqlalchemy.Column("priority", sqlalchemy.Double),
        sqlalchemy.Column("stale_from_step", sqlalchemy.BigInteger),
    )
    engine = sqlalchemy.create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            columns.metadata.create_all(connection)
            if rows:
                connection.execute(columns.insert(), [dict(zip(columns.c.keys(), row, strict=True)) for row in rows])
            ordered = sqlalchemy.select(columns.c.uid).order_by(*selector.plan(columns.c).order_by)
            by_plan = list(connection.execute(ordered).scalars())
    finally:
        engine.dispose()
    assert by_plan == [row[0] for row in sorted(rows, key=lambda row: (selector.key(*row), row[0]))]


@given(priority=st.floats(0, allow_nan=False, allow_infinity=False), exponent=st.floats(0, 50))
@settings(max_examples=300, deadline=None)
def test_a_weight_is_finite_and_0_only_for_priority_0(priority: float, exponent: float) -> None:
    weight = Prioritized(exponent).weight(priority)
    assert math.isfinite(weight)
    assert (weight == 0) == (priority == 0 and exponent > 0)
    assert Uniform().weight(priority) == 1.0
    if 1e-3 < priority < 1e3 and exponent < 10:
        assert math.isclose(weight, priority**exponent)
