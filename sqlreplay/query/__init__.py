"""The filter language: a dict in the manner of Mongo becomes a tree, and the tree one SQL condition.

    node = parse_query({"task_name": "math", "meta.source": {"$in": ["web", "book"]}}, fields)
    statement = select(groups.c.uid).where(compile_query(node, columns))

| query | true where |
| --- | --- |
| `{"uid": 7}`, `{"uid": {"$eq": 7}}` | the value equals 7 |
| `{"uid": {"$ne": 7}}` | it does not: another value, or none |
| `{"uid": {"$gt": 7}}`, `$gte`, `$lt`, `$lte` | it is greater; greater or equal; less; less or equal |
| `{"uid": {"$between": [1, 9]}}` | it lies between the two, both included |
| `{"uid": {"$in": [1, 2]}}` | it equals one of the list; never, if the list is empty |
| `{"uid": {"$not_in": [1, 2]}}`, `$nin` | it equals none of the list: another value, or none |
| `{"uid": {"$gt": 1, "$lt": 9}}` | all operators hold |
| `{"uid": {"$not": {"$gt": 7}}}` | they do not hold |
| `{"uid": 7, "status": "init"}` | all fields match; `{}` is true everywhere |
| `{"$and": [{...}, {...}]}` | all queries hold; also if there are none |
| `{"$or": [{...}, {...}]}` | some query holds; never, if there are none |
| `{"$not": {...}}` | the query does not hold |

A field is a column or `meta.<name>`, a top-level member of the group's meta. A value is text, a number or a
boolean, and only values of one kind compare: `1`, `"1"` and `True` are three different things, while `1` and
`1.0` are one. A missing value, or one of another kind, satisfies no comparison, so it does satisfy `$ne`,
`$not_in` and `$not`. Text is ordered by code point; numbers compare exactly, as in Python.
"""

from sqlreplay.query.compile import Columns, compile_query
from sqlreplay.query.oracle import matches
from sqlreplay.query.parse import parse_query
from sqlreplay.query.tree import And, Between, Comparison, Kind, Membership, Node, Not, Or, Value
from sqlreplay.query.values import meta_name_problem, text_problem

__all__ = [
    "And",
    "Between",
    "Columns",
    "Comparison",
    "Kind",
    "Membership",
    "Node",
    "Not",
    "Or",
    "Value",
    "compile_query",
    "matches",
    "meta_name_problem",
    "parse_query",
    "text_problem",
]
