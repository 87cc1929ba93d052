"""Both databases answer every query as the oracle does."""

import random
import re
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from query_columns import FIELDS, PostgresColumns, Scratch, groups
from sqlalchemy import ColumnElement, select
from sqlalchemy.dialects import postgresql

from sqlreplay.query import Comparison, Node, compile_query, matches, parse_query

Row = dict[str, Any]


class Source(Enum):
    WEB = "web"
    SMALL = 0.1


class Level(IntEnum):
    ONE = 1
    LARGE = 2**62 + 1


INTEGERS = [0, 1, -1, 2, 3, 7, 2**31 - 1, -(2**31), 10**17 - 1, 10**17, 10**17 + 1]
INTEGERS += [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**60, 1152921504606847000]
INTEGERS += [2**62, 2**62 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 0.1, 0.2, 0.1 + 0.2, 2.5, -2.5, 1 / 3, 0.707056753354459, -1.860845337057835e-295]
FLOATS += [2.0**53, 2.0**53 + 2, 1e16, 1e17, 1e17 + 16, 2.0**60, 2.0**62, 2.0**63, -(2.0**63), 1e22, 1e23]
FLOATS += [1e300, -1e300, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
TEXTS = ["", "a", "A", "Z", "aa", "a b", "web", "1", "1.0", "true", "null", "a'b", 'a"b', "a\\b", "%", "a_"]
TEXTS += ["\x01", "\n", "\x7f", "é", "e\u0301", "ß", "ss", "İ", "i"]
TEXTS += ["\ue000", "\uff5a", "\uffff", "😀", "\U0010ffff"]
NAMES = ["source", "level", "a.b", "it's", "名前", "e\u0301", "[0]", "$", "x-y", "*"]
OTHER = [None, [], [1], {"source": "web"}, {}]


def make_rows(count: int) -> list[Row]:
    choose = random.Random(count)

    def maybe(values: list[Any]) -> Any:
        return choose.choice(values) if choose.random() < 0.8 else None

    def meta() -> Row:
        pool = choose.choice([INTEGERS, FLOATS, TEXTS, [True, False], OTHER])
        return {name: choose.choice(pool) for name in NAMES if choose.random() < 0.7}

    return [
        {
            "uid": uid,
            "num_tokens": maybe([0, 1, 2, 3, 7, 2**31 - 1, -(2**31)]),
            "stale_from_step": maybe(INTEGERS),
            "priority": choose.choice(FLOATS),
            "reward_mean": maybe(FLOATS),
            "task_name": choose.choice(TEXTS),
            "client_key": maybe(TEXTS),
            "is_leased": maybe([True, False]),
            "meta": meta() if choose.random() < 0.9 else None,
        }
        for uid in range(1, count + 1)
    ]


ROWS = make_rows(200)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def scratch(request: pytest.FixtureRequest) -> Iterator[Scratch]:
    if request.param == "sqlite":
        scratch = Scratch("sqlite+aiosqlite://")
    else:
        scratch = Scratch(request.getfixturevalue("postgres_server").set(drivername="postgresql+asyncpg"))
    scratch.insert(ROWS)
    yield scratch
    scratch.close()


def expected(node: Node) -> set[int]:
    return {row["uid"] for row in ROWS if matches(node, row)}


numbers = st.one_of(
    st.sampled_from(INTEGERS),
    st.sampled_from(FLOATS),
    st.sampled_from([Level.ONE, Level.LARGE, Source.SMALL]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.one_of(
    st.sampled_from([*TEXTS, Source.WEB]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
)
ordered = st.one_of(numbers, texts)
values = st.one_of(numbers, texts, st.booleans())
fields = st.one_of(st.sampled_from(sorted(FIELDS)), st.sampled_from([f"meta.{name}" for name in NAMES]))
operators: st.SearchStrategy[Row] = st.one_of(
    st.fixed_dictionaries({}, optional={"$eq": values, "$ne": values}),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), ordered)),
    st.fixed_dictionaries({}, optional={name: st.lists(values, max_size=6) for name in ("$in", "$not_in", "$nin")}),
    st.fixed_dictionaries({"$between": st.one_of(st.tuples(numbers, numbers), st.tuples(texts, texts))}),
).filter(bool)
negatable = st.recursive(operators, lambda inner: st.fixed_dictionaries({"$not": inner}), max_leaves=2)
leaves = st.dictionaries(fields, st.one_of(values, negatable), max_size=3)
queries = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=4)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=4)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(query=queries)
@example(query={})
@example(query={"$not": {"meta.level": {"$gt": 10**17}}})
@example(query={"client_key": {"$ne": "a"}})
def test_random_queries_select_what_the_oracle_selects(scratch: Scratch, query: Row) -> None:
    node = parse_query(query)
    assert scratch.matching(node) == expected(node)


@pytest.mark.parametrize("field", [*FIELDS, *(f"meta.{name}" for name in NAMES)])
def test_every_operator_on_every_stored_value(scratch: Scratch, field: str) -> None:
    for value in (*INTEGERS, *FLOATS, *TEXTS, True, False):
        compared = ["$eq", "$ne"] if isinstance(value, bool) else ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]
        condition = {operator: parse_query({field: {operator: value}}) for operator in compared}
        rows = scratch.fetch(
            select(groups.c.uid, *(compile_query(node, scratch.columns) for node in condition.values()))
        )
        for operator, column in zip(compared, list(zip(*rows, strict=True))[1:], strict=True):
            found = {row[0] for row, matched in zip(rows, column, strict=True) if matched}
            assert None not in column
            assert found == expected(condition[operator]), (operator, value)


def nested(depth: int, leaves: list[Row], inner: Row) -> Row:
    for level in range(depth):
        inner = {"$or" if level % 2 else "$and": [*leaves, inner]}
    return inner


MIXED: Row = {"meta.level": {"$in": [1, "a", True]}}
LARGEST: dict[str, Row] = {
    "flat": {"$or": [MIXED] * 999},
    "deep": nested(31, [{"client_key": {"$ne": "a"}}], MIXED),
    "negated": {"$not": nested(30, [{"client_key": "a"}, MIXED], MIXED)},
    "deep and wide": nested(31, [{"client_key": {"$gt": "a"}}] * 30, MIXED),
    "one long list": {"meta.level": {"$in": list(range(10_000))}},
    "as many values as allowed": {"$or": [MIXED] * 900 + [{"uid": {"$in": list(range(8_650))}}] * 2},
    "text": {"client_key": {"$not_in": [f"key-{number}" for number in range(10_000)]}},
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_queries_fit_into_a_claim(scratch: Scratch, name: str) -> None:
    node = parse_query(LARGEST[name])
    picked = (
        select(groups.c.uid)
        .where(groups.c.uid > 0, groups.c.num_tokens.is_(None), compile_query(node, scratch.columns))
        .order_by(groups.c.priority, groups.c.uid)
        .cte("picked")
    )
    claimed = select(groups.c.uid).where(groups.c.uid > 0, groups.c.uid.in_(select(picked.c.uid)))
    rows = {row["uid"] for row in ROWS if row["num_tokens"] is None and matches(node, row)}
    assert {uid for (uid,) in scratch.fetch(claimed)} == rows


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_queries_stay_below_the_parameter_limit(scratch: Scratch, name: str) -> None:
    condition = compile_query(parse_query(LARGEST[name]), scratch.columns)
    statement = condition.compile(dialect=scratch.engine.dialect, compile_kwargs={"render_postcompile": True})
    assert len(statement.positiontup or ()) < 32_000


@pytest.mark.parametrize(
    ("query", "sql"),
    [
        ({"uid": 7}, "uid = :v"),
        ({"uid": {"$ne": 7}}, "uid != :v"),
        ({"uid": {"$gt": 2.5}}, "uid > :v"),
        ({"uid": {"$in": [1, 2.0, 2.5]}}, "uid IN (:v, :v)"),
        ({"uid": 2.5}, "false"),
        ({"uid": {"$lt": 1e300}}, "true"),
        ({"uid": {"$not": {"$gt": 3}}}, "uid <= :v"),
        ({"reward_mean": {"$gte": 1}}, "reward_mean IS NOT NULL AND reward_mean >= :v"),
        ({"reward_mean": {"$ne": 1}}, "reward_mean IS NULL OR reward_mean != :v"),
        ({"reward_mean": {"$nin": [1]}}, "reward_mean IS NULL OR (reward_mean NOT IN (:v))"),
        ({"num_tokens": {"$not": {"$gte": -1e308}}}, "num_tokens IS NULL"),
        (
            {"$not": {"$or": [{"uid": 1}, {"reward_mean": {"$lt": 0}}]}},
            "uid != :v AND (reward_mean IS NULL OR reward_mean >= :v)",
        ),
    ],
)
def test_columns_are_compared_bare_so_that_their_indexes_serve(query: Row, sql: str) -> None:
    condition = compile_query(parse_query(query, FIELDS), PostgresColumns(groups))
    statement = str(condition.compile(dialect=postgresql.dialect(), compile_kwargs={"render_postcompile": True}))
    assert re.sub(r"%\(\w+\)s(::\w+)?", ":v", statement).replace("query_scratch.", "") == sql


def test_postgres_compares_text_by_code_point_whatever_its_locale() -> None:
    condition = compile_query(parse_query({"task_name": {"$gt": "a"}, "meta.x": "b"}), PostgresColumns(groups))
    statement = str(condition.compile(dialect=postgresql.dialect()))
    assert statement.count('COLLATE "C"') == 2


def test_a_column_of_no_kind_is_a_mistake_of_the_store() -> None:
    class Everything(PostgresColumns):
        def column(self, name: str) -> ColumnElement[Any]:
            return groups.c.meta

    with pytest.raises(TypeError, match="queries need text, a number or a boolean"):
        compile_query(Comparison("uid", "$eq", 1), Everything(groups))


def test_meta_reads_back_as_it_was_written(scratch: Scratch) -> None:
    for uid, meta in scratch.fetch(select(groups.c.uid, groups.c.meta)):
        written = ROWS[uid - 1]["meta"]
        assert meta == written
        assert [*map(type, (meta or {}).values())] == [type(written[name]) for name in meta or {}]
