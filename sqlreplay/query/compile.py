"""Turn a tree into one SQLAlchemy condition that is never NULL and binds every value."""

import operator
from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    Float,
    Integer,
    Numeric,
    String,
    and_,
    bindparam,
    false,
    func,
    not_,
    or_,
    true,
)
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.types import TypeEngine

from sqlreplay.query.bounds import Operator, float_bound, integer_bound
from sqlreplay.query.tree import (
    And,
    Between,
    Comparison,
    Kind,
    Membership,
    Node,
    Not,
    Or,
    Value,
    kind_of,
    meta_name,
)

__all__ = ["Columns", "compile_query"]

Condition = ColumnElement[bool]
Leaf = Comparison | Membership | Between

COMPARE: dict[Operator, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}

# SQLite refuses expressions more than 1,000 levels deep, and each term of `a AND b AND c` is a level.
MAX_CHAIN = 8


class Columns(Protocol):
    """What a store lets queries search. Text it hands out must compare by code point."""

    def column(self, name: str) -> ColumnElement[Any]:
        """Return a known field; its SQL type says of which kind it is, and whether integer or float."""

    def nullable(self, name: str) -> bool:
        """Say whether a known field can be NULL; one that cannot compiles to the bare comparison."""

    def meta(self, name: str, kind: Kind) -> ColumnElement[Any]:
        """Return a member of meta where it is of that kind, and NULL where it is not or is missing.

        The SQL type of a number is also the type its operands are bound with: it is given the int or float
        of the query and turns it into what this database compares exactly with a number from JSON.
        """


def compile_query(node: Node, columns: Columns) -> Condition:
    """Return the condition for a tree from `parse_query`.

        select(groups.c.uid).where(compile_query(parse_query({"uid": {"$gt": 7}}), columns))

    Plain columns are compared bare, so their indexes serve. It is true or false for every row, so it may be
    negated and combined freely.
    """
    return _condition(node, columns, negated=False)


def _condition(node: Node, columns: Columns, negated: bool) -> Condition:
    match node:
        case Not(inner):
            return _condition(inner, columns, not negated)
        case And(inner) | Or(inner):
            # SQLite's parser has a stack of 100 entries: nesting costs it one entry at the start of a chain
            # and three further on.
            deepest_first = sorted(inner, key=_height, reverse=True)
            conditions = [_condition(condition, columns, negated) for condition in deepest_first]
            return _every(conditions) if isinstance(node, And) != negated else _some(conditions)
        case Comparison(_, "$ne") | Membership(_, "$not_in"):
            return _leaf(node, columns, not negated)
        case _:
            return _leaf(node, columns, negated)


def _leaf(node: Leaf, columns: Columns, negated: bool) -> Condition:
    """Compile a leaf, reading `$ne` as `$eq` and `$not_in` as `$in`, and close the gap that NULL leaves."""
    name = meta_name(node.field)
    if name is not None:
        present = [_test(node, columns.meta(name, kind), kind) for kind in _kinds(node)]
        if negated:
            return _every([func.coalesce(not_(test), true()) for test in present])
        return _some([func.coalesce(test, false()) for test in present])
    column = columns.column(node.field)
    test = _test(node, column, _column_kind(node.field, column.type))
    if not columns.nullable(node.field):
        return not_(test) if negated else test
    return or_(column.is_(None), not_(test)) if negated else and_(column.is_not(None), test)


def _test(node: Leaf, expression: ColumnElement[Any], kind: Kind) -> Condition:
    """Compare an expression of one kind; NULL where it is NULL, false where the node asks for other kinds."""
    match node:
        case Comparison(_, comparison, value):
            return _compared(expression, kind, "$eq" if comparison == "$ne" else comparison, value)
        case Between(_, lower, upper):
            return and_(_compared(expression, kind, "$gte", lower), _compared(expression, kind, "$lte", upper))
        case Membership(_, _, values):
            equals = [_restated(expression.type, "$eq", value) for value in values if kind_of(value) == kind]
            members = [equal[1] for equal in equals if not isinstance(equal, bool)]
            if not members:
                return false()
            bound = bindparam(None, members, _bound_type(expression.type, kind), unique=True, expanding=True)
            return expression.in_(bound)


def _compared(expression: ColumnElement[Any], kind: Kind, comparison: Operator, value: Value) -> Condition:
    restated = _restated(expression.type, comparison, value) if kind_of(value) == kind else False
    if isinstance(restated, bool):
        return true() if restated else false()
    comparison, value = restated
    bound = bindparam(None, value, _bound_type(expression.type, kind), unique=True)
    result: Condition = COMPARE[comparison](expression, bound)
    return result


def _restated(sql_type: TypeEngine[Any], comparison: Operator, value: Value) -> tuple[Operator, Value] | bool:
    if isinstance(value, str | bool):
        return comparison, value
    if isinstance(sql_type, Integer):
        return integer_bound(comparison, value)
    if isinstance(sql_type, Float):
        return float_bound(comparison, value)
    return comparison, value


def _bound_type(sql_type: TypeEngine[Any], kind: Kind) -> TypeEngine[Any]:
    """Choose the type of a bound value: wide enough for any that the language allows, whatever the column."""
    if kind == "text":
        return String()
    if kind == "boolean":
        return Boolean()
    if isinstance(sql_type, Integer):
        return BigInteger()
    return Double() if isinstance(sql_type, Float) else sql_type


def _column_kind(name: str, sql_type: TypeEngine[Any]) -> Kind:
    if isinstance(sql_type, String):
        return "text"
    if isinstance(sql_type, Boolean):
        return "boolean"
    if isinstance(sql_type, Integer | Float | Numeric):
        return "number"
    raise TypeError(f"column {name!r} has SQL type {sql_type!r}; queries need text, a number or a boolean")


def _kinds(node: Leaf) -> list[Kind]:
    match node:
        case Comparison(value=value) | Between(lower=value):
            kinds = [kind_of(value)]
        case Membership(values=values):
            kinds = [kind_of(value) for value in values]
    return [kind for kind in dict.fromkeys(kinds) if kind is not None]


def _height(node: Node) -> int:
    match node:
        case And(conditions) | Or(conditions):
            return 1 + max(map(_height, conditions), default=0)
        case Not(condition):
            return _height(condition)
        case _:
            return 0


def _every(conditions: list[Condition]) -> Condition:
    return and_(true(), *_in_chains(conditions, and_))


def _some(conditions: list[Condition]) -> Condition:
    return or_(false(), *_in_chains(conditions, or_))


def _in_chains(conditions: list[Condition], join: Callable[..., Condition]) -> list[Condition]:
    """Put what follows the first condition in parentheses, a few at a time, where there are many."""
    if len(conditions) <= MAX_CHAIN:
        return conditions
    chains = [conditions[start : start + MAX_CHAIN] for start in range(1, len(conditions), MAX_CHAIN)]
    return [conditions[0], *(_Parentheses(join(*chain)) for chain in chains)]


class _Parentheses(Grouping[bool]):
    """Parentheses that stay: SQLAlchemy dissolves its own where the operator inside is the one outside."""

    inherit_cache = True
    operator = None
