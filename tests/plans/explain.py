"""The statements that verbs really run, and what each database plans to do for them."""

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy import event

from sqlreplay import ReplayBuffer


@dataclass(frozen=True)
class Statement:
    """SQL as it went to the driver."""

    sql: str
    parameters: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.sql.partition("/* ")[2].partition(" */")[0]


@asynccontextmanager
async def spying(buffer: ReplayBuffer[Any]) -> AsyncIterator[list[Statement]]:
    """Collect the statements that the buffer's store runs meanwhile."""
    seen: list[Statement] = []

    def note(_connection: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, many: bool) -> None:
        for each in parameters if many else [parameters]:
            seen.append(Statement(sql, tuple(each)))

    engine = buffer.joined_thread().store.database.engine
    assert engine is not None
    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)


@dataclass(frozen=True)
class QueryPlan:
    """What a database will do: the indexes it walks, the tables it reads from end to end, and how often it sorts."""

    tables: frozenset[str]
    indexes: frozenset[str]
    scanned: frozenset[str]
    sorts: int
    text: str

    def expect(self, *, index: str | tuple[str, ...]) -> None:
        """Fail unless this index, or one of several, leads to the groups, with no scan, no sort and no payload."""
        wanted = (index,) if isinstance(index, str) else index
        assert self.indexes & {f"ix_sqlreplay_groups_{name}" for name in wanted}, self.text
        assert "sqlreplay_groups" not in self.scanned, self.text
        assert "sqlreplay_payloads" not in self.tables, self.text
        assert self.sorts == 0, self.text


async def explain(url: str, statement: Statement, *, generic: bool = False) -> QueryPlan:
    if url.startswith("sqlite"):
        return explain_sqlite(url.removeprefix("sqlite:///"), statement)
    return await explain_postgres(url, statement, generic=generic)


def explain_sqlite(path: str, statement: Statement) -> QueryPlan:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.parameters).fetchall()
    finally:
        connection.close()
    tables, indexes, scanned, sorts = set(), set(), set(), 0
    for *_, step in found:
        words = step.split()
        if words[0] in ("SEARCH", "SCAN"):
            tables.add(words[1])
        if "INDEX" in words:
            indexes.add(words[words.index("INDEX") + 1])
        if words[0] == "SCAN":
            scanned.add(words[1])
        sorts += "TEMP B-TREE" in step
    return QueryPlan(
        frozenset(tables), frozenset(indexes), frozenset(scanned), sorts, "\n".join(row[-1] for row in found)
    )


async def explain_postgres(url: str, statement: Statement, *, generic: bool) -> QueryPlan:
    """A prepared statement that is used often may get a plan that fits any parameters: `generic` asks for that one."""
    connection = await asyncpg.connect(url)
    try:
        if generic:
            await connection.execute("SET plan_cache_mode = force_generic_plan")
            await connection.execute(f"PREPARE explained AS {statement.sql}")
            values = ", ".join(map(literal, statement.parameters))
            found = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE explained ({values})")
        else:
            found = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement.sql}", *statement.parameters)
    finally:
        await connection.close()
    nodes = list(nodes_of(json.loads(found)[0]["Plan"]))
    return QueryPlan(
        tables=frozenset(node["Relation Name"] for node in nodes if "Relation Name" in node),
        indexes=frozenset(node["Index Name"] for node in nodes if "Index Name" in node),
        scanned=frozenset(node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"),
        sorts=sum("Sort" in node["Node Type"] for node in nodes),
        text=json.dumps(json.loads(found), indent=1),
    )


def literal(value: Any) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)
