"""The other side of each measurement: the same statements on the same tables, by the driver alone."""

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiosqlite
import asyncpg

from sqlreplay.payload import Part
from sqlreplay.store.tables import AGELESS, groups, payloads

__all__ = ["Bare", "BarePostgres", "BareSqlite", "Taken"]

GROUP_COLUMNS = [column.name for column in groups.columns]
PAYLOAD_COLUMNS = [column.name for column in payloads.columns]
PRAGMAS = (
    "page_size = 16384",
    "journal_mode = wal",
    "synchronous = normal",
    "foreign_keys = on",
    "cache_size = -65536",
    "temp_store = memory",
    "journal_size_limit = 67108864",
)


@dataclass
class Taken:
    """Rows in order, and the parts of each by payload id."""

    rows: list[Any]
    parts: dict[int, list[Part]]


class Bare(ABC):
    """Statements are written once, with parameters as `?1`; a subclass runs them, prepared and cached."""

    one_of: str
    lock_rows = ""

    @abstractmethod
    async def fetch(self, sql: str, *parameters: Any) -> list[Any]: ...

    @abstractmethod
    async def execute_many(self, sql: str, rows: Sequence[Any]) -> None: ...

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[None]: ...

    @abstractmethod
    def id_list(self, ids: list[int]) -> Any: ...

    @abstractmethod
    async def round_trip(self) -> None:
        """Ask the asynchronous driver for nothing."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def lock_epoch(self) -> None:
        """Take the lock that a refresh takes, where there is one."""

    async def task_id(self) -> int:
        return int((await self.fetch("SELECT id FROM sqlreplay_tasks"))[0][0])

    async def mean_group_bytes(self) -> float:
        return float((await self.fetch("SELECT avg(size_bytes) FROM sqlreplay_groups"))[0][0])

    async def take(self, task_id: int, count: int) -> Taken:
        """Pick, delete and commit the first groups in order, then read their bytes."""
        pick = f"""
            SELECT {", ".join(GROUP_COLUMNS)} FROM sqlreplay_groups
            WHERE task_id = ?1 AND status = ?2 AND lease_id IS NULL ORDER BY uid LIMIT ?3 {self.lock_rows}
        """  # noqa: S608 - names of our own columns
        async with self.transaction():
            rows = await self.fetch(pick, task_id, "completed", count)
            uids = self.id_list([row["uid"] for row in rows])
            await self.fetch(f"DELETE FROM sqlreplay_groups WHERE uid {self.one_of}", uids)  # noqa: S608 - a constant
        ids = [row["payload_id"] for row in rows]
        parts: dict[int, list[Part]] = {payload_id: [] for payload_id in ids}
        read = (
            f"SELECT payload_id, part, body, raw_size, checksum FROM sqlreplay_payloads WHERE payload_id {self.one_of}"  # noqa: S608 - a constant
        )
        for payload_id, *part in await self.fetch(read, self.id_list(ids)):
            parts[payload_id].append(Part(*part))
        return Taken(rows, parts)

    async def free(self, taken: Taken) -> None:
        """Delete bytes that were read."""
        sql = f"DELETE FROM sqlreplay_payloads WHERE payload_id {self.one_of}"  # noqa: S608 - a constant
        await self.fetch(sql, self.id_list(list(taken.parts)))

    async def rows_again(self, taken: Taken) -> list[tuple[Any, ...]]:
        """Return taken rows with new numbers, to be inserted at the end of the order."""
        last = (await self.fetch("SELECT max(uid) FROM sqlreplay_groups"))[0][0]
        return [
            tuple({**dict(row), "uid": uid, "payload_id": uid}.values())
            for uid, row in enumerate(taken.rows, start=last + 1)
        ]

    async def put(self, rows: list[tuple[Any, ...]], parts: list[list[Part]]) -> None:
        """Insert groups and their bytes in one transaction."""
        bodies = [
            (row[0], part.part, part.raw_size, part.checksum, part.body)
            for row, parts_of_row in zip(rows, parts, strict=True)
            for part in parts_of_row
        ]
        async with self.transaction():
            await self.execute_many(insert_into("sqlreplay_payloads", PAYLOAD_COLUMNS), bodies)
            await self.execute_many(insert_into("sqlreplay_groups", GROUP_COLUMNS), rows)

    async def count(self, task_id: int) -> int:
        sql = "SELECT count(*) FROM sqlreplay_groups WHERE task_id = ?1 AND status = ?2 AND lease_id IS NULL"
        return int((await self.fetch(sql, task_id, "completed"))[0][0])

    async def is_ready(self, task_id: int, count: int) -> bool:
        sql = """
            SELECT EXISTS (SELECT 1 FROM sqlreplay_groups
                WHERE task_id = ?1 AND status = ?2 AND lease_id IS NULL LIMIT 1 OFFSET ?3)
        """
        return bool((await self.fetch(sql, task_id, "completed", count - 1))[0][0])

    async def refresh(self, task_id: int, step: int, threshold: int) -> None:
        """Note the step, and expire what has become too old."""
        async with self.transaction():
            await self.lock_epoch()
            await self.fetch("UPDATE sqlreplay_tasks SET train_step = ?2 WHERE id = ?1", task_id, step)
            await self.execute_many(
                """
                INSERT INTO sqlreplay_refreshes (task_id, status, number, step) VALUES (?1, ?2, 1, ?3)
                ON CONFLICT (task_id, status) DO UPDATE SET number = sqlreplay_refreshes.number + 1, step = ?3
                """,
                [(task_id, status, step) for status in ("completed", "aborted")],
            )
            await self.fetch(
                f"""
                UPDATE sqlreplay_groups SET stale_from_step = {AGELESS}, staleness = 0
                WHERE task_id = ?1 AND status IN ('completed', 'aborted') AND oldest_step IS NULL
                AND stale_from_step < {AGELESS} AND lease_id IS NULL
                """,  # noqa: S608 - a constant
                task_id,
            )
            await self.fetch(
                """
                UPDATE sqlreplay_groups SET status = 'expired', expired_at_step = ?2,
                staleness = ?2 - stale_from_step WHERE task_id = ?1 AND status IN ('completed', 'aborted')
                AND stale_from_step <= ?3 AND oldest_step IS NOT NULL AND lease_id IS NULL
                """,
                task_id,
                step,
                step - threshold,
            )


class BareSqlite(Bare):
    """The standard library's driver, on the caller's own thread. Round trips are aiosqlite's."""

    one_of = "IN (SELECT value FROM json_each(?1))"

    def __init__(self, path: str) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        self.connection.row_factory = sqlite3.Row
        for pragma in PRAGMAS:
            self.connection.execute(f"PRAGMA {pragma}")
        self.asynchronous: aiosqlite.Connection | None = None

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(sql, parameters).fetchall()

    async def execute_many(self, sql: str, rows: Sequence[Any]) -> None:
        self.connection.executemany(sql, rows)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        yield
        self.connection.execute("COMMIT")

    def id_list(self, ids: list[int]) -> str:
        return json.dumps(ids)

    async def lock_epoch(self) -> None:
        """The write lock is enough."""

    async def round_trip(self) -> None:
        if self.asynchronous is None:
            self.asynchronous = await aiosqlite.connect(self.path)
        await self.asynchronous.execute_fetchall("SELECT 1")

    async def close(self) -> None:
        self.connection.close()
        if self.asynchronous is not None:
            await self.asynchronous.close()


class BarePostgres(Bare):
    """asyncpg on the caller's own loop."""

    one_of = "= ANY(?1)"
    lock_rows = "FOR UPDATE SKIP LOCKED"

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @classmethod
    async def open(cls, dsn: str, schema: str) -> "BarePostgres":
        return cls(await asyncpg.connect(dsn, server_settings={"search_path": f'"{schema}"'}))

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        found: list[Any] = await self.connection.fetch(sql.replace("?", "$"), *parameters)
        return found

    async def execute_many(self, sql: str, rows: Sequence[Any]) -> None:
        await self.connection.executemany(sql.replace("?", "$"), rows)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        begun: AbstractAsyncContextManager[None] = self.connection.transaction()
        return begun

    def id_list(self, ids: list[int]) -> list[int]:
        return ids

    async def lock_epoch(self) -> None:
        await self.connection.fetch("SELECT pg_advisory_xact_lock(hashtext(current_schema()))")

    async def round_trip(self) -> None:
        await self.connection.fetch("SELECT 1")

    async def close(self) -> None:
        await self.connection.close()


def insert_into(table: str, columns: Sequence[str]) -> str:
    places = ", ".join(f"?{number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 - names of our own
