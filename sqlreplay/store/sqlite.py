"""What SQLite does its own way. One file, one writer at a time, readers beside it."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiosqlite
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Dialect,
    Double,
    String,
    bindparam,
    case,
    event,
    func,
    literal_column,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, StaticPool
from sqlalchemy.types import TypeDecorator

from sqlreplay.config import StoreConfig
from sqlreplay.errors import StoreBusy, StoreError, StoreRefused, StoreUnavailable
from sqlreplay.store.backend import MetaKind, Order
from sqlreplay.store.meta import encode_meta, json_number

__all__ = ["SqliteBackend"]

PAGE_SIZE = 16384


class SqliteBackend:
    """The SQLite half of the seam; `PostgresBackend` has the same methods."""

    name = "sqlite"
    one_writer = True
    read_options: Mapping[str, Any] = MappingProxyType({})
    driver_errors = (DBAPIError, sqlite3.Error, OSError)

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.path = str(config.url.database)

    def create_engine(self) -> AsyncEngine:
        """Every connection gets the same pragmas; a write transaction takes the write lock when it begins.

        A deferred transaction that reads and then writes fails at once when another writer came between, and no
        timeout helps. BEGIN IMMEDIATE waits its turn instead, for as long as the busy timeout says.
        """
        pool: dict[str, Any] = (
            {"poolclass": StaticPool}
            if self.config.is_memory
            else {
                "poolclass": AsyncAdaptedQueuePool,
                "pool_size": self.config.pool_size,
                "max_overflow": 0,
                "pool_timeout": 3600,
            }
        )
        engine = create_async_engine(
            "sqlite+aiosqlite://",
            async_creator=self._connect,
            hide_parameters=True,
            json_serializer=encode_meta,
            **pool,
        )
        event.listen(engine.sync_engine, "begin", self._begin)
        return engine

    @staticmethod
    def _begin(connection: Any) -> None:
        if connection.get_execution_options().get("sqlreplay_write"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    async def _connect(self) -> aiosqlite.Connection:
        self._create_file()
        connection = await OneTripConnection(self.path, self.config.busy_timeout_s)
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _create_file(self) -> None:
        """Create a missing file for its owner alone, and the folder it is to be in."""
        if not self.config.is_memory and not os.path.exists(self.path):
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))

    async def _prepare(self, connection: aiosqlite.Connection) -> None:
        """Switching a fresh file to WAL can report "locked" before the busy timeout: processes that open it at the
        same moment try again until one of them has done it."""
        deadline = asyncio.get_running_loop().time() + self.config.busy_timeout_s
        for pragma in (
            f"page_size = {PAGE_SIZE}",
            "auto_vacuum = incremental",
            "journal_mode = wal",
            f"synchronous = {self.config.synchronous}",
            "foreign_keys = on",
            "cache_size = -16384",
            "temp_store = memory",
            "journal_size_limit = 67108864",
            "wal_autocheckpoint = 4000",
        ):
            while True:
                try:
                    await connection.execute_fetchall(f"PRAGMA {pragma}")
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(0.01)

    async def lock_schema(self, connection: AsyncConnection) -> None:
        """The write lock that the transaction began with is the schema lock."""

    async def has_table(self, connection: AsyncConnection, name: str) -> bool:
        query = text("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name")
        return (await connection.execute(query, {"name": name})).first() is not None

    async def draw_ids(self, connection: AsyncConnection, count: int) -> range:
        """AUTOINCREMENT's own counter gives the ids before the rows are written; it never goes back.

        The transaction holds the write lock, so no other writer can read the same numbers.
        """
        update = text(
            "/* draw_ids */ UPDATE sqlite_sequence SET seq = seq + :count WHERE name = 'sqlreplay_groups' RETURNING seq"
        )
        last = (await connection.execute(update, {"count": count})).scalar_one()
        return range(last - count + 1, last + 1)

    async def advance_ids(self, connection: AsyncConnection, last: int) -> None:
        """The transaction holds the write lock, so the counter cannot move between the look and the change."""
        update = text(
            "/* advance_ids */ UPDATE sqlite_sequence SET seq = max(seq, :last) WHERE name = 'sqlreplay_groups'"
        )
        await connection.execute(update, {"last": last})

    async def join_epoch(self, connection: AsyncConnection, run_id: int) -> None:
        """There is one writer: nothing can begin an epoch inside this transaction."""

    async def begin_epoch(self, connection: AsyncConnection, run_id: int) -> None:
        """There is one writer: no put is under way inside this transaction."""

    def one_of(self, column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        """A list of any length travels as one JSON parameter, far from the limit of 32,766."""
        each = func.json_each(bindparam(parameter, type_=String)).table_valued("value")
        return column.in_(select(each.c.value))

    def none_of(self, column: ColumnElement[Any], values: Sequence[int]) -> ColumnElement[bool]:
        """The same list, with its values bound at once."""
        each = func.json_each(bindparam(None, self.id_list(values), String, unique=True)).table_valued("value")
        return column.not_in(select(each.c.value))

    def id_list(self, ids: Sequence[int]) -> str:
        return json.dumps(list(ids))

    async def count_drawn(self, connection: AsyncConnection, uids: Sequence[int], race_keys: Sequence[bytes]) -> None:
        """Straight to the driver: for a hundred small updates SQLAlchemy's parameters cost more than SQLite does."""
        statement = (
            "/* drawn */ UPDATE sqlreplay_groups SET times_sampled = times_sampled + 1, race_key = ? WHERE uid = ?"
        )
        await connection.exec_driver_sql(statement, list(zip(race_keys, uids, strict=True)))

    insert = staticmethod(insert)

    def walk_task(self, column: ColumnElement[Any], task_id: Any, order_by: Order) -> tuple[ColumnElement[bool], Order]:
        """Equality on the first columns of an index leaves the rest of it in order."""
        return column == task_id, order_by

    def meta(self, column: ColumnElement[Any], name: str, kind: MetaKind) -> ColumnElement[Any]:
        """`json_extract` gives native values and text compares by bytes, so only the kind must be checked.

        It finds a member by its name as it is written, hence the raw UTF-8 of `encode_meta`.
        """
        path = bindparam(None, f'$."{name}"', String, unique=True)
        found, value = func.json_type(column, path), func.json_extract(column, path)
        names, sql_type = JSON_TYPES[kind]
        is_kind = found.in_([literal_column(f"'{json_type}'") for json_type in names])
        return type_coerce(case((is_kind, value)), sql_type)

    def clock(self) -> ColumnElement[float]:
        """Seconds since 1970 by the database's clock; `unixepoch('subsec')` came only with SQLite 3.42."""
        return literal_column("(julianday('now') - 2440587.5) * 86400.0", Double)

    def is_transient(self, error: BaseException) -> bool:
        """The busy timeout has waited already; what is left is a lock that was lost for a moment."""
        return "database is locked" in str(error) or "database table is locked" in str(error)

    def is_lost(self, error: BaseException) -> bool:
        """A file has no connection to lose: a COMMIT that failed did not happen."""
        return False

    def explain(self, error: BaseException) -> StoreError:
        """Say what SQLite's short messages mean for the person who reads them."""
        cause = str(getattr(error, "orig", None) or error)
        if "locked" in cause:
            return StoreBusy(
                f"{self.path} stayed locked by another process for over {self.config.busy_timeout_s:g} s. "
                "Look for a process that holds a transaction open, or raise busy_timeout_s."
            )
        if "readonly" in cause or "Read-only" in cause or "ermission" in cause:
            return StoreUnavailable(
                f"{self.path} cannot be written ({cause}). SQLite also writes beside the file: "
                "give this user write permission on the file and on its folder, or choose another path."
            )
        if "unable to open" in cause or isinstance(error, OSError):
            return StoreUnavailable(
                f"{self.path} cannot be opened ({cause}). Check that the folder exists, that the path is not a "
                "folder itself, and that this user may write there."
            )
        if "not a database" in cause:
            return StoreUnavailable(f"{self.path} is not a SQLite database. Choose another path; it was left as it is.")
        if "full" in cause:
            return StoreUnavailable(
                f"The disk that holds {self.path} is full. Nothing of this call was stored; free some space and retry."
            )
        if "disk I/O error" in cause:
            return StoreUnavailable(
                f"The system refused to read or write {self.path}. Nothing of this call was stored; look at the disk, "
                "its quota and the limit on file sizes (ulimit -f), and retry."
            )
        return StoreRefused(f"SQLite refused a statement on {self.path}: {cause}.")


class SqliteNumber(TypeDecorator[float]):
    """A number from JSON. Operands go through the same parser: where it is off by the last bit, as it is now and
    then, it is off on both sides, and equal numbers stay equal."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> str | None:
        return None if value is None else json_number(value)

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        return func.json_extract(bindvalue, literal_column("'$'"))


JSON_TYPES: dict[MetaKind, tuple[tuple[str, ...], Any]] = {
    "text": (("text",), String),
    "number": (("integer", "real"), SqliteNumber),
    "boolean": (("true", "false"), Boolean),
}


class OneTripConnection(aiosqlite.Connection):
    """A connection whose statements cost one trip to its thread: execute and fetch together.

    SQLAlchemy otherwise makes four (cursor, execute, fetch, close), which is most of the time of a small statement.
    """

    def __init__(self, path: str, busy_timeout_s: float) -> None:
        super().__init__(
            lambda: sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, cached_statements=256),
            64,
        )
        self._thread.daemon = True  # a process that forgets to close must still exit

    def cursor(self) -> "OneTripCursor":  # type: ignore[override]
        return OneTripCursor(self)

    async def rollback(self) -> None:
        if self.in_transaction:
            await super().rollback()


class OneTripCursor:
    """What SQLAlchemy needs of a cursor, with the rows already here."""

    arraysize = 1
    lastrowid = None

    def __init__(self, connection: OneTripConnection) -> None:
        self.connection = connection
        self.description: Any = None
        self.rowcount = -1
        self.rows: list[Any] = []

    async def __aenter__(self) -> "OneTripCursor":
        return self

    async def execute(self, sql: str, parameters: Any = ()) -> None:
        def run() -> tuple[Any, int, list[Any]]:
            cursor = self.connection._conn.execute(sql, parameters)
            return cursor.description, cursor.rowcount, cursor.fetchall()

        self.description, self.rowcount, self.rows = await self.connection._execute(run)  # type: ignore[no-untyped-call]

    async def executemany(self, sql: str, parameters: Any) -> None:
        many = self.connection._conn.executemany
        cursor = await self.connection._execute(many, sql, parameters)  # type: ignore[no-untyped-call]
        self.rowcount = cursor.rowcount

    async def fetchall(self) -> list[Any]:
        return self.rows

    async def close(self) -> None:
        self.rows = []
