"""What a database says about its own tables, in a form that two databases can be compared by."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.config import StoreConfig, parse_url
from sqlreplay.store.database import Database

SQLITE_OBJECTS = text("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name LIKE 'sqlreplay_%'")
SQLITE_INDEXES = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
POSTGRES_COLUMNS = text(
    """
    SELECT c.relname || '.' || a.attname,
           format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), l.collname
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE c.relkind = 'r' AND c.relname LIKE 'sqlreplay_%'
    """
)
POSTGRES_CONSTRAINTS = text(
    "SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = current_schema()::regnamespace"
)
POSTGRES_INDEXES = text(
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND tablename LIKE 'sqlreplay_%'"
)
VERSION_TABLE = "sqlreplay_schema"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Database]:
    """A database that nobody has looked at or migrated yet."""
    database = Database(StoreConfig(parse_url(url), **options))
    try:
        yield database
    finally:
        await database.close()


async def describe(connection: AsyncConnection) -> dict[str, Any]:
    """Return columns, constraints and indexes by name, but for alembic's own table."""
    found = await (describe_sqlite if connection.dialect.name == "sqlite" else describe_postgres)(connection)
    return {name: value for name, value in found.items() if VERSION_TABLE not in name}


async def describe_sqlite(connection: AsyncConnection) -> dict[str, Any]:
    """SQLite keeps the text of each statement; the order of columns and constraints inside it means nothing."""
    return {
        f"{kind} {name}": sorted(members(sql)) if kind == "table" else without_quotes(" ".join(sql.split()))
        for kind, name, sql in await connection.execute(SQLITE_OBJECTS)
    }


def members(sql: str) -> list[str]:
    """Split the text of a CREATE TABLE at the commas between its columns and constraints."""
    head, _, body = " ".join(without_quotes(sql).split()).partition("(")
    found, depth = [""], 0
    for letter in body.strip().removesuffix(")"):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [head.strip(), *(part.strip() for part in found)]


def without_quotes(sql: str) -> str:
    return re.sub(r'["`]', "", sql)


async def describe_postgres(connection: AsyncConnection) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, query in (
        ("column", POSTGRES_COLUMNS),
        ("constraint", POSTGRES_CONSTRAINTS),
        ("index", POSTGRES_INDEXES),
    ):
        found |= {f"{kind} {name}": tuple(rest) for name, *rest in await connection.execute(query)}
    return found


async def index_statements(connection: AsyncConnection) -> dict[str, str]:
    query = SQLITE_INDEXES if connection.dialect.name == "sqlite" else POSTGRES_INDEXES
    return dict((await connection.execute(query)).all())


async def table_names(connection: AsyncConnection) -> set[str]:
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if connection.dialect.name == "sqlite"
        else "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    )
    names = (await connection.execute(text(query))).scalars()
    return {name for name in names if name.startswith("sqlreplay_")}
