"""The tree of a query: leaves compare one field with values, inner nodes combine their results."""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "And",
    "Between",
    "Comparison",
    "ComparisonOperator",
    "Kind",
    "Membership",
    "MembershipOperator",
    "Node",
    "Not",
    "Or",
    "Value",
    "kind_of",
    "meta_name",
]

Kind = Literal["text", "number", "boolean"]
Value = str | int | float | bool
ComparisonOperator = Literal["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]
MembershipOperator = Literal["$in", "$not_in"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field against one value. Every operator but `$ne` is false where the value is missing."""

    field: str
    operator: ComparisonOperator
    value: Value


@dataclass(frozen=True, slots=True)
class Membership:
    """A field against a list, in which kinds may be mixed. `$not_in` is true where the value is missing."""

    field: str
    operator: MembershipOperator
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """A field within two bounds of one kind, both included."""

    field: str
    lower: Value
    upper: Value


@dataclass(frozen=True, slots=True)
class And:
    """True where every condition is; without conditions true everywhere."""

    conditions: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True where some condition is; without conditions true nowhere."""

    conditions: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True where the condition is false, which includes groups that lack the field."""

    condition: "Node"


Node = Comparison | Membership | Between | And | Or | Not


def kind_of(value: object) -> Kind | None:
    """Name the kind of a plain value; None for what no query can ask for (missing, lists, objects).

    A boolean is not a number here, although it is one in Python: JSON and Postgres keep them apart.
    """
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return None


def meta_name(field: str) -> str | None:
    """Return the member that `meta.<name>` asks for, or None for a column.

    Everything after the first dot is one name: `meta.a.b` is the member "a.b", not a path.
    """
    prefix, dot, name = field.partition(".")
    return name if dot and prefix == "meta" else None
