"""Read a query into its tree, or refuse it with the path, what is allowed and the closest spelling."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import cast, get_args

from sqlreplay.errors import QueryError
from sqlreplay.query.tree import (
    And,
    Between,
    Comparison,
    ComparisonOperator,
    Kind,
    Membership,
    MembershipOperator,
    Node,
    Not,
    Or,
    Value,
    kind_of,
    meta_name,
)
from sqlreplay.query.values import described, meta_name_problem, plain_value, refusal, shown

__all__ = ["parse_query"]

MAX_DEPTH = 32
MAX_NODES = 1_000
MAX_LIST_LENGTH = 10_000
# A statement holds at most 32,766 parameters; meta names and what the store binds itself need the rest.
MAX_VALUES = 20_000

COMPARISONS: tuple[str, ...] = get_args(ComparisonOperator)
MEMBERSHIPS: dict[str, MembershipOperator] = {"$in": "$in", "$not_in": "$not_in", "$nin": "$not_in"}
FIELD_OPERATORS = (*COMPARISONS, *MEMBERSHIPS, "$between", "$not")
LOGICAL_OPERATORS = ("$and", "$or", "$not")


def parse_query(query: object, fields: Mapping[str, Kind] | None = None) -> Node:
    """Return the tree of a query: a dict, a tree, or another library's query nodes.

        parse_query({"task_name": "math", "staleness": {"$lte": 4}})

    Given `fields`, every field must be one of them or `meta.<name>`, and values must be of the field's kind;
    without, only the form of the query is checked. Foreign nodes are known by their attributes: `relation`
    and `conditions`; `field`, `op` and `value`; or `field`, `lower` and `upper`. A tree is checked like the
    rest, and nodes of both origins may stand wherever a query may.
    """
    return _Parser(fields).query(query, "", 1)


class _Parser:
    """One pass over one query; it counts what it reads, so that a hostile query is refused early."""

    def __init__(self, fields: Mapping[str, Kind] | None) -> None:
        self.fields = fields
        self.num_nodes = 0
        self.num_values = 0

    def query(self, query: object, path: str, depth: int) -> Node:
        conditions = _as_mapping(query)
        if conditions is None:
            example = '{"task_name": "math", "staleness": {"$lte": 4}}'
            raise refusal(path, f"found {described(query)}, expected a dict such as {example}")
        if len(conditions) == 1:
            [(key, value)] = conditions.items()
            return self.condition(key, value, path, depth)
        self.enter(path, depth)
        return And(tuple(self.condition(key, value, path, depth + 1) for key, value in conditions.items()))

    def condition(self, key: object, value: object, path: str, depth: int) -> Node:
        name = _name(key)
        if name is None:
            expected = f"the name of a field or one of {', '.join(LOGICAL_OPERATORS)}"
            raise refusal(path, f"found {described(key)} as a key, expected {expected}")
        path = _path(path, name)
        if name.startswith("$"):
            return self.logical(name, value, path, depth)
        self.check_field(name, path)
        return self.field(name, value, path, depth)

    def logical(self, operator: str, operand: object, path: str, depth: int) -> Node:
        if operator not in LOGICAL_OPERATORS:
            raise _unknown_operator(operator, path, LOGICAL_OPERATORS)
        self.enter(path, depth)
        if operator == "$not":
            return Not(self.query(operand, path, depth + 1))
        if not isinstance(operand, list | tuple):
            raise refusal(path, f"found {described(operand)}, expected a list of queries")
        conditions = [self.query(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(operand)]
        return And(tuple(conditions)) if operator == "$and" else Or(tuple(conditions))

    def field(self, field: str, value: object, path: str, depth: int) -> Node:
        if not isinstance(value, Mapping):
            return self.operation(field, "$eq", value, path, depth)
        if not value:
            raise refusal(path, 'found an empty dict, expected a value or operators such as {"$gte": 1}')
        if len(value) > 1:
            self.enter(path, depth)
            depth += 1
        conditions = []
        for key, operand in value.items():
            operator = _name(key)
            if operator is None or not operator.startswith("$"):
                raise refusal(
                    path,
                    f"found {shown(key)} where an operator was expected: {', '.join(FIELD_OPERATORS)}. "
                    'To search in meta write its member as the field: "meta.<name>"',
                )
            conditions.append(self.operation(field, operator, operand, _path(path, operator), depth))
        return And(tuple(conditions)) if len(conditions) > 1 else conditions[0]

    def operation(self, field: str, operator: str, operand: object, path: str, depth: int) -> Node:
        if operator not in FIELD_OPERATORS:
            raise _unknown_operator(operator, path, FIELD_OPERATORS)
        self.enter(path, depth)
        if operator == "$not":
            if not isinstance(operand, Mapping):
                expected = 'operators such as {"$gt": 3}; to differ from a value write $ne'
                raise refusal(path, f"found {described(operand)}, expected {expected}")
            return Not(self.field(field, operand, path, depth + 1))
        if operator == "$between":
            return self.between(field, operand, path)
        if operator in MEMBERSHIPS:
            return self.membership(field, MEMBERSHIPS[operator], operand, path)
        value = self.plain(field, operand, path)
        if operator not in ("$eq", "$ne"):
            _check_ordered(value, path)
        self.count_values(1, path)
        return Comparison(field, cast("ComparisonOperator", operator), value)

    def membership(self, field: str, operator: MembershipOperator, operand: object, path: str) -> Membership:
        if not isinstance(operand, list | tuple | set | frozenset):
            raise refusal(path, f"found {described(operand)}, expected a list of values")
        if len(operand) > MAX_LIST_LENGTH:
            found = f"found {len(operand):,} values"
            raise refusal(path, f"{found}, expected at most {MAX_LIST_LENGTH:,}; split the query")
        self.count_values(len(operand), path)
        values = [self.plain(field, value, f"{path}[{index}]") for index, value in enumerate(operand)]
        return Membership(field, operator, tuple(values))

    def between(self, field: str, operand: object, path: str) -> Between:
        if not isinstance(operand, list | tuple) or len(operand) != 2:
            expected = "[low, high], both included; for one bound write $gte or $lte"
            raise refusal(path, f"found {described(operand)}, expected {expected}")
        self.count_values(2, path)
        lower, upper = (self.plain(field, bound, f"{path}[{index}]") for index, bound in enumerate(operand))
        _check_ordered(lower, path)
        if kind_of(lower) != kind_of(upper):
            found = f"found a {kind_of(lower)} and a {kind_of(upper)} as bounds"
            raise refusal(path, f"{found}, expected two of one kind")
        return Between(field, lower, upper)

    def plain(self, field: str, value: object, path: str) -> Value:
        kind = self.fields.get(field) if self.fields is not None else None
        plain = plain_value(value, path, field=field, kind=kind)
        if kind is not None and kind_of(plain) != kind:
            found = f"{shown(plain)}, which is a {kind_of(plain)}"
            raise refusal(path, f"found {found}, expected a {kind}: {field} holds nothing else")
        return plain

    def check_field(self, field: str, path: str) -> None:
        name = meta_name(field)
        if name is not None:
            if problem := meta_name_problem(name):
                raise refusal(path, f'the name after "meta." {problem}; rename that member to search by it')
        elif field == "meta":
            raise refusal(path, 'meta is searched by its members; write "meta.<name>"')
        elif self.fields is not None and field not in self.fields:
            known = [*sorted(self.fields), "meta.<name>"]
            found = f"unknown field {shown(field)}{_suggestion(field, known)}"
            raise refusal(path, f"{found}; known fields: {', '.join(known)}")

    def enter(self, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise refusal(path, f"nested deeper than {MAX_DEPTH} levels; flatten the query")
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            advice = "write many values of one field as one $in"
            raise refusal(path, f"found more than the {MAX_NODES:,} conditions a query may have; {advice}")

    def count_values(self, count: int, path: str) -> None:
        self.num_values += count
        if self.num_values > MAX_VALUES:
            raise refusal(path, f"found more than the {MAX_VALUES:,} values a query may have; split the query")


def _as_mapping(query: object) -> Mapping[object, object] | None:
    """See a node, ours or foreign, as the dict that says the same, one level deep; None for anything else."""
    match query:
        case Mapping():
            return query
        case Comparison(field, operator, value):
            return {_name(field): {_name(operator): value}}
        case Membership(field, operator, values):
            return {_name(field): {_name(operator): values}}
        case And(conditions):
            return {"$and": conditions}
        case Or(conditions):
            return {"$or": conditions}
        case Not(condition):
            return {"$not": condition}
        case object(relation=relation, conditions=conditions):
            return {_name(relation): conditions}
        case object(field=field, lower=lower, upper=upper):
            return {_name(field): {"$between": (lower, upper)}}
        case object(field=field, op=operator, value=value):
            return {_name(field): {_name(operator): value}}
    return None


def _name(key: object) -> str | None:
    """Return a key as plain text; enum members stand for their value."""
    value = key.value if isinstance(key, Enum) else key
    return str.__str__(value) if isinstance(value, str) else None


def _path(path: str, name: str) -> str:
    step = shown(name)[1:-1]
    return f"{path}.{step}" if path else step


def _check_ordered(value: Value, path: str) -> None:
    if isinstance(value, bool):
        raise refusal(path, "booleans have no order; write $eq, $ne, $in or $not_in")


def _unknown_operator(operator: str, path: str, allowed: tuple[str, ...]) -> QueryError:
    if operator in LOGICAL_OPERATORS:
        found = f'{operator} joins whole queries: write {{"{operator}": [{{"<field>": ...}}, ...]}}'
    elif operator in FIELD_OPERATORS:
        found = f'{operator} belongs to a field: write {{"<field>": {{"{operator}": ...}}}}'
    else:
        found = f"unknown operator {shown(operator)}{_suggestion(operator, allowed)}"
    return refusal(path, f"{found}; allowed here: {', '.join(allowed)}")


def _suggestion(name: str, allowed: Iterable[str]) -> str:
    closest = get_close_matches(name[:100], allowed, n=1)
    return f" (did you mean {closest[0]!r}?)" if closest else ""
