"""What queries may say, what they become, and how the rest is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import sqlreplay.query
from sqlreplay.errors import BadArgument, QueryError
from sqlreplay.query import (
    And,
    Between,
    Comparison,
    Kind,
    Membership,
    Node,
    Not,
    Or,
    matches,
    meta_name_problem,
    parse_query,
    text_problem,
)
from sqlreplay.query.bounds import Operator, float_bound, integer_bound

FIELDS: dict[str, Kind] = {
    "uid": "number",
    "task_name": "text",
    "staleness": "number",
    "is_leased": "boolean",
}


class Relation(str, Enum):
    AND = "$and"
    OR = "$or"


class Status(StrEnum):
    INIT = "init"


class Priority(IntEnum):
    HIGH = 9


class Verdict(Enum):
    GOOD = True


@dataclass
class ForeignLogic:
    relation: object
    conditions: list[Any]


@dataclass
class ForeignScalar:
    field: object
    op: object
    value: object


@dataclass
class ForeignBetween:
    field: object
    lower: object
    upper: object


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    query: Any = {"uid": 1}
    for _ in range(depth):
        query = wrap(query)
    return query


def test_public_names_are_sorted() -> None:
    assert sqlreplay.query.__all__ == sorted(sqlreplay.query.__all__)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, And(())),
        ({"$and": []}, And(())),
        ({"$or": []}, Or(())),
        ({"$not": {}}, Not(And(()))),
        ({"task_name": "math"}, Comparison("task_name", "$eq", "math")),
        (
            {"uid": 1, "task_name": "math"},
            And((Comparison("uid", "$eq", 1), Comparison("task_name", "$eq", "math"))),
        ),
        ({"uid": {"$gt": 1, "$lt": 9}}, And((Comparison("uid", "$gt", 1), Comparison("uid", "$lt", 9)))),
        ({"uid": {"$between": (1, 2.5)}}, Between("uid", 1, 2.5)),
        ({"uid": {"$in": []}}, Membership("uid", "$in", ())),
        ({"uid": {"$in": frozenset({3})}}, Membership("uid", "$in", (3,))),
        ({"uid": {"$nin": [1, 2]}}, Membership("uid", "$not_in", (1, 2))),
        ({"meta.a.b": {"$in": [1, "1", True]}}, Membership("meta.a.b", "$in", (1, "1", True))),
        ({"uid": {"$not": {"$gt": 3}}}, Not(Comparison("uid", "$gt", 3))),
        (
            {"uid": {"$not": {"$gt": 3, "$lt": 9}}},
            Not(And((Comparison("uid", "$gt", 3), Comparison("uid", "$lt", 9)))),
        ),
        (
            {"$or": [{"uid": {"$lte": 1}}, {"$not": {"uid": {"$ne": 2}}}]},
            Or((Comparison("uid", "$lte", 1), Not(Comparison("uid", "$ne", 2)))),
        ),
        ({"is_leased": True}, Comparison("is_leased", "$eq", True)),
    ],
)
def test_dicts_become_trees_and_trees_stay_as_they_are(query: object, expected: Node) -> None:
    assert parse_query(query) == expected
    assert parse_query(query, FIELDS) == expected
    assert parse_query(parse_query(query), FIELDS) == expected


@pytest.mark.parametrize("relation", ["$or", Relation.OR])
def test_nodes_of_another_library_are_read_by_their_attributes(relation: object) -> None:
    query = ForeignLogic(
        relation,
        [
            ForeignScalar("uid", "$gte", 3),
            SimpleNamespace(field="task_name", op="$not_in", value=["math", "code"]),
            ForeignBetween("staleness", 1, 4),
            {"uid": Priority.HIGH},
            Comparison("uid", "$eq", 5),
            ForeignLogic(Relation.AND, []),
        ],
    )
    assert parse_query(query, FIELDS) == Or(
        (
            Comparison("uid", "$gte", 3),
            Membership("task_name", "$not_in", ("math", "code")),
            Between("staleness", 1, 4),
            Comparison("uid", "$eq", 9),
            Comparison("uid", "$eq", 5),
            And(()),
        )
    )


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Status.INIT, "init"),
        (Priority.HIGH, 9),
        (Verdict.GOOD, True),
        (numpy.int64(3), 3),
        (numpy.float32(0.5), 0.5),
        (numpy.float64(0.1), 0.1),
        (numpy.bool_(True), True),
        (numpy.str_("math"), "math"),
        (numpy.array(7), 7),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
    ],
)
def test_values_are_reduced_to_plain_ones(value: object, plain: object) -> None:
    for node in (parse_query({"meta.x": value}), parse_query({"meta.x": {"$in": [value]}})):
        found = node.value if isinstance(node, Comparison) else node.values[0]  # type: ignore[union-attr]
        assert found == plain
        assert type(found) is type(plain)


REFUSED: list[tuple[object, list[str]]] = [
    (5, ["query: found an int", "expected a dict"]),
    (None, ["query: found None"]),
    ([{"uid": 1}], ["query: found a list"]),
    ({"$or": [{"uid": 1}, {"uid": {"$gtee": 1}}]}, ["$or[1].uid.$gtee", "did you mean '$gte'", "$between"]),
    ({"$orr": []}, ["$orr: unknown operator", "did you mean '$or'", "$and, $or, $not"]),
    ({"$gt": 1}, ["$gt belongs to a field", '{"<field>": {"$gt": ...}}']),
    ({"uid": {"$or": []}}, ["uid.$or: $or joins whole queries"]),
    ({"$and": {"uid": 1}}, ["$and: found a dict, expected a list of queries"]),
    ({"$and": [{"uid": 1}, 3]}, ["$and[1]: found an int"]),
    ({"$not": [{"uid": 1}]}, ["$not: found a list"]),
    ({"tsk_name": "math"}, ["unknown field 'tsk_name'", "did you mean 'task_name'", "meta.<name>"]),
    ({"UID": 1}, ["unknown field 'UID'", "staleness, task_name, uid"]),
    ({"": 1}, ["unknown field ''"]),
    ({"uid; DROP TABLE x": 1}, ["unknown field"]),
    ({1: 2}, ["query: found an int as a key"]),
    ({"$and": [{None: 2}]}, ["$and[0]: found None as a key"]),
    ({"meta": {"source": "web"}}, ['write "meta.<name>"']),
    ({"meta.": 1}, ["is empty"]),
    ({'meta.a"b': 1}, ["double quote or a backslash"]),
    ({"meta.a\\b": 1}, ["double quote or a backslash"]),
    ({"meta.a\nb": 1}, ["control character"]),
    ({"meta.a\x7fb": 1}, ["control character"]),
    ({"meta.a\0b": 1}, ["NUL"]),
    ({"meta.\ud800": 1}, ["lone surrogate"]),
    ({"uid": {}}, ["uid: found an empty dict"]),
    ({"uid": {"$not": {}}}, ["uid.$not: found an empty dict"]),
    ({"uid": {"$gt": 1, "low": 2}}, ["uid: found 'low' where an operator was expected"]),
    ({"uid": {"low": 2}}, ["uid: found 'low'"]),
    ({"uid": {10**5000: 2}}, ["uid: found an int where"]),
    ({"uid": {"$not": 3}}, ["uid.$not: found an int", "$ne"]),
    ({"uid": None}, ["found None", '{"$not": {"uid": {"$gte": -1e308}}}']),
    ({"task_name": {"$ne": None}}, ["task_name.$ne", '{"$not": {"task_name": {"$gte": ""}}}']),
    ({"is_leased": None}, ['{"$not": {"is_leased": {"$in": [True, False]}}}']),
    ({"uid": {"$in": [1, None]}}, ["uid.$in[1]: found None"]),
    ({"uid": float("nan")}, ["found nan", "finite"]),
    ({"uid": {"$lt": float("inf")}}, ["found inf", "leave the bound out"]),
    ({"uid": numpy.float64("-inf")}, ["found -inf"]),
    ({"uid": 2**63}, ["64 bits", "9223372036854775807"]),
    ({"uid": {"$gt": -(2**63) - 1}}, ["-9223372036854775808"]),
    ({"uid": 10**10_000}, ["uid: found an integer of 33220 bits"]),
    ({"task_name": "a\0"}, ["NUL"]),
    ({"task_name": {"$in": ["a", "\udfff"]}}, ["task_name.$in[1]", "lone surrogate"]),
    ({"task_name": b"math"}, ["found a bytes", "decode"]),
    ({"uid": [1, 2]}, ["uid: found a list", '{"$in": [...]}']),
    ({"uid": {"$eq": {"$gt": 1}}}, ["uid.$eq: found a dict"]),
    ({"uid": 1j}, ["found a complex"]),
    ({"meta.x": numpy.array([1, 2])}, ["found a ndarray"]),
    ({"uid": {"$in": 3}}, ["uid.$in: found an int, expected a list"]),
    ({"task_name": {"$in": "math"}}, ["task_name.$in: found a str, expected a list"]),
    ({"uid": {"$between": [1]}}, ["[low, high]"]),
    ({"uid": {"$between": 3}}, ["[low, high]"]),
    ({"meta.x": {"$between": [1, "a"]}}, ["found a number and a text"]),
    ({"meta.x": {"$between": [False, True]}}, ["booleans have no order"]),
    ({"is_leased": {"$gt": False}}, ["booleans have no order"]),
    ({"uid": "7"}, ["uid: found '7', which is a text, expected a number"]),
    ({"uid": True}, ["found True, which is a boolean, expected a number"]),
    ({"uid": {"$ne": "7"}}, ["expected a number"]),
    ({"uid": {"$in": [1, "7"]}}, ["uid.$in[1]", "expected a number"]),
    ({"task_name": 7}, ["expected a text"]),
    ({"is_leased": 1}, ["expected a boolean"]),
    (ForeignScalar("uid", "$regex", "a"), ["uid.$regex: unknown operator"]),
    (ForeignScalar("uid", "$in", 3), ["expected a list"]),
    (ForeignScalar(["uid"], "$eq", 3), ["as a key"]),
    (ForeignScalar("$and", "$eq", 3), ["$and: found a dict"]),
    (ForeignLogic("$xor", []), ["unknown operator '$xor'"]),
    (ForeignLogic("$and", 3), ["expected a list of queries"]),  # type: ignore[arg-type]
    (ForeignBetween("uid", None, 3), ["uid.$between[0]: found None"]),
    (Comparison("uid", "$gt", "7"), ["uid.$gt", "expected a number"]),
    (Comparison("uid", "$like", 7), ["unknown operator '$like'"]),  # type: ignore[arg-type]
    (Membership("uid", "$in", (None,)), ["found None"]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("query", "parts"), REFUSED)
def test_refusals_name_the_path_and_say_what_to_type(query: object, parts: list[str]) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(query, FIELDS)
    assert isinstance(caught.value, BadArgument)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert len(message) < 600


@pytest.mark.parametrize(
    "wrap",
    [
        lambda query: {"$not": query},
        lambda query: {"$and": [query]},
        lambda query: {"$or": [{"uid": 2}, query]},
        lambda query: {"uid": 2, "$not": query},
        lambda query: Not(query),
        lambda query: And((query,)),
        lambda query: ForeignLogic("$and", [query]),
    ],
)
def test_depth_is_bounded_without_exhausting_the_stack(wrap: Callable[[Any], Any]) -> None:
    for depth in (33, 100_000):
        query = nested(depth, wrap)
        with pytest.raises(QueryError, match="deeper than 32 levels"):
            parse_query(query)


def test_depth_is_the_height_of_the_tree() -> None:
    parse_query(nested(31, lambda query: {"$not": query}))
    with pytest.raises(QueryError, match="deeper than 32"):
        parse_query(nested(32, lambda query: {"$not": query}))
    several: Any = {"uid": {"$gt": 1, "$lt": 9}}
    for _ in range(30):
        several = {"$not": several}
    assert parse_query(parse_query(several)) == parse_query(several)
    with pytest.raises(QueryError, match="deeper than 32"):
        parse_query({"$not": several})
    operators: Any = {"$gt": 1}
    for _ in range(100_000):
        operators = {"$not": operators}
    with pytest.raises(QueryError, match="deeper than 32"):
        parse_query({"uid": operators})


def test_a_query_may_hold_a_deep_value_it_refuses() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(QueryError, match="found a list"):
        parse_query({"uid": value})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"$or": [{"uid": 1}] * 1_000}, "more than the 1,000 conditions"),
        ({"$and": [{}] * 1_000_000}, "more than the 1,000 conditions"),
        ({f"meta.{number}": 1 for number in range(1_000_000)}, "more than the 1,000 conditions"),
        ({"uid": {f"${number}": 1 for number in range(1_000_000)}}, "unknown operator"),
        ({"uid": {"$in": range(3)}}, "found a range"),
        ({"uid": {"$in": [1] * 1_000_000}}, "found 1,000,000 values, expected at most 10,000"),
        ({"$or": [{"uid": {"$in": [1] * 10_000}}] * 2 + [{"uid": 1}]}, "more than the 20,000 values"),
    ],
)
def test_size_is_bounded(query: object, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        parse_query(query)


def test_the_largest_queries_are_read() -> None:
    parse_query({"$or": [{"uid": 1}] * 999})
    parse_query({"$or": [{"uid": {"$in": list(range(10_000))}}] * 2})


def test_problems_of_names_and_text_are_sentences() -> None:
    assert meta_name_problem("source.url é") is None
    assert text_problem("😀") is None
    assert meta_name_problem("") == "is empty"
    assert "NUL" in str(text_problem("\0"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, True),
        ({"$or": []}, False),
        ({"uid": 7}, True),
        ({"uid": 7.0}, True),
        ({"uid": "7"}, False),
        ({"uid": {"$ne": "7"}}, True),
        ({"uid": {"$lt": "8"}}, False),
        ({"uid": {"$not": {"$lt": "8"}}}, True),
        ({"flag": 1}, False),
        ({"flag": True}, True),
        ({"missing": {"$gte": ""}}, False),
        ({"missing": {"$ne": 1}}, True),
        ({"missing": {"$not_in": [1]}}, True),
        ({"missing": {"$in": []}}, False),
        ({"status": "init"}, True),
        ({"meta.a.b": {"$between": ["w", "x"]}}, True),
        ({"meta.null": {"$gte": 0}}, False),
        ({"meta.list": {"$ne": 1}}, True),
        ({"meta.big": 2**53}, False),
        ({"meta.big": {"$in": ["x", 2.0**53, 2**53 + 1]}}, True),
    ],
)
def test_the_oracle_is_two_valued(query: object, expected: bool) -> None:
    row = {
        "uid": 7,
        "flag": True,
        "status": Status.INIT,
        "meta": {"a.b": "w", "null": None, "list": [1], "big": 2**53 + 1},
    }
    assert matches(parse_query(query), row) is expected
    assert matches(parse_query({"$not": query}), row) is not expected


def test_the_oracle_takes_a_row_without_meta() -> None:
    assert not matches(parse_query({"meta.x": 1}), {"uid": 1})
    assert not matches(parse_query({"meta.x": 1}), {"uid": 1, "meta": None})


OPERATORS: list[Operator] = ["$eq", "$gt", "$gte", "$lt", "$lte"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_restated_bounds_decide_as_python_does(operator: Operator) -> None:
    limits = [-(2**63), 2**63 - 1, 2**53, -(2**53), 0, 1, 3]
    integers = [limit + step for limit in limits for step in (-1, 0, 1) if -(2**63) <= limit + step < 2**63]
    floats = [float(integer) for integer in integers] + [0.5, 2.5, -2.5, 1e300, -1e300, 5e-324, -0.0]
    for value in (*integers, *floats):
        for integer in integers:
            restated = integer_bound(operator, value)
            assert decides(restated, integer) == decides((operator, value), integer)
            assert isinstance(restated, bool) or restated[1] in range(-(2**63), 2**63)
        for number in floats:
            assert decides(float_bound(operator, value), number) == decides((operator, value), number)


def decides(restated: tuple[Operator, int | float] | bool, found: int | float) -> bool:
    if isinstance(restated, bool):
        return restated
    return matches(Comparison("number", *restated), {"number": found})
