"""A scratch table on either database, and the columns that each hands to `compile_query`."""

import asyncio
from collections.abc import Coroutine, Sequence
from decimal import Decimal
from typing import Any, TypeVar, assert_never

import msgspec
from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Double,
    Executable,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.types import TypeDecorator

from sqlreplay.query import Columns, Kind, Node, compile_query

FIELDS: dict[str, Kind] = {
    "uid": "number",
    "num_tokens": "number",
    "stale_from_step": "number",
    "priority": "number",
    "reward_mean": "number",
    "task_name": "text",
    "client_key": "text",
    "is_leased": "boolean",
}

groups = Table(
    "query_scratch",
    MetaData(),
    Column("uid", BigInteger, primary_key=True),
    Column("num_tokens", Integer),
    Column("stale_from_step", BigInteger),
    Column("priority", Double, nullable=False),
    Column("reward_mean", Double),
    Column("task_name", Text, nullable=False),
    Column("client_key", Text),
    Column("is_leased", Boolean),
    Column("meta", JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")),
    prefixes=["TEMPORARY"],
)

FIRST_INEXACT_FLOAT = 2.0**53


def json_number(value: int | float) -> str:
    """Write a number in JSON with its exact value.

    From 2**53 on, the shortest form of a float is not its value (2.0**60 prints as 1152921504606847000), and
    jsonb, which keeps decimals, would tell it from the integer it equals. The written-out form also keeps its
    point there, so a float reads back as a float.
    """
    return f"{value:.1f}" if isinstance(value, float) and abs(value) >= FIRST_INEXACT_FLOAT else repr(value)


def encode_meta(meta: object) -> str:
    """Write meta as JSON text: raw UTF-8, because SQLite finds members by their name as it is written."""
    return msgspec.json.encode(_with_exact_numbers(meta)).decode()


def _with_exact_numbers(value: object) -> object:
    match value:
        case float():
            return msgspec.Raw(json_number(value).encode())
        case dict():
            return {name: _with_exact_numbers(member) for name, member in value.items()}
        case list() | tuple():
            return [_with_exact_numbers(item) for item in value]
    return value


class SqliteNumber(TypeDecorator[int | float]):
    """A number from JSON, whose operands are parsed from JSON too.

    Builds of SQLite that convert decimals themselves miss the last bit now and then, as they do for
    0.707056753354459. Parsed alike on both sides, equal numbers stay equal.
    """

    impl = String
    cache_ok = True

    def process_bind_param(self, value: int | float | None, dialect: Dialect) -> str | None:
        return None if value is None else json_number(value)

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        return func.json_extract(bindvalue, literal_column("'$'"))


class SqliteColumns:
    """Text compares by its UTF-8 bytes, and json_extract gives native values: only kinds need a check."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def column(self, name: str) -> ColumnElement[Any]:
        return self.table.c[name]

    def nullable(self, name: str) -> bool:
        return bool(self.table.c[name].nullable)

    def meta(self, name: str, kind: Kind) -> ColumnElement[Any]:
        path = bindparam(None, f'$."{name}"', String, unique=True)
        found = func.json_type(self.table.c.meta, path)
        value = func.json_extract(self.table.c.meta, path)
        match kind:
            case "text":
                return type_coerce(case((found == literal_column("'text'"), value)), String)
            case "number":
                is_number = found.in_([literal_column("'integer'"), literal_column("'real'")])
                return type_coerce(case((is_number, value)), SqliteNumber)
            case "boolean":
                is_boolean = found.in_([literal_column("'true'"), literal_column("'false'")])
                return type_coerce(case((is_boolean, value)), Boolean)
        assert_never(kind)


class PostgresNumber(TypeDecorator[int | float]):
    """A number from jsonb, which is a NUMERIC: operands are the decimal that `json_number` writes."""

    impl = Numeric
    cache_ok = True

    def process_bind_param(self, value: int | float | None, dialect: Dialect) -> Decimal | None:
        return None if value is None else Decimal(json_number(value))


class PostgresColumns:
    """Text compares by its UTF-8 bytes under "C"; a column declared with that collation keeps its indexes."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def column(self, name: str) -> ColumnElement[Any]:
        column = self.table.c[name]
        return column.collate("C") if isinstance(column.type, String) else column

    def nullable(self, name: str) -> bool:
        return bool(self.table.c[name].nullable)

    def meta(self, name: str, kind: Kind) -> ColumnElement[Any]:
        key = bindparam(None, name, Text, unique=True)
        member = self.table.c.meta.op("->", return_type=JSONB())(key)
        found = func.jsonb_typeof(member)
        match kind:
            case "text":
                value = self.table.c.meta.op("->>", return_type=Text())(key)
                return case((found == literal_column("'string'"), value)).collate("C")
            case "number":
                return case((found == literal_column("'number'"), cast(member, PostgresNumber)))
            case "boolean":
                return case((found == literal_column("'boolean'"), cast(member, Boolean)))
        assert_never(kind)


Result = TypeVar("Result")


class Scratch:
    """The scratch table on one database, on one connection and an event loop of its own."""

    def __init__(self, url: str | URL) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = create_async_engine(url, json_serializer=encode_meta)
        self.connection = self.run(self._connect())
        is_sqlite = self.engine.dialect.name == "sqlite"
        self.columns: Columns = SqliteColumns(groups) if is_sqlite else PostgresColumns(groups)

    async def _connect(self) -> AsyncConnection:
        connection = await self.engine.connect()
        await connection.run_sync(groups.create)
        return connection

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def insert(self, rows: Sequence[dict[str, object]]) -> None:
        self.run(self.connection.execute(insert(groups), list(rows)))

    def fetch(self, statement: Executable) -> Sequence[Any]:
        return self.run(self.connection.execute(statement)).all()

    def matching(self, node: Node) -> set[int]:
        """Return the uids that a query selects, having checked that it decides every row."""
        condition = compile_query(node, self.columns)
        rows = self.fetch(select(groups.c.uid, condition.label("matched")))
        assert all(matched in (True, False) for _, matched in rows)
        found = {uid for (uid,) in self.fetch(select(groups.c.uid).where(condition))}
        assert found == {uid for uid, matched in rows if matched}
        return found

    def close(self) -> None:
        self.run(self.connection.close())
        self.run(self.engine.dispose())
        self.loop.close()
