"""What Postgres does its own way. Many writers at once, READ COMMITTED throughout."""

import hashlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import asyncpg
from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Dialect,
    Double,
    Numeric,
    Text,
    all_,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql.operators import desc_op
from sqlalchemy.types import TypeDecorator

from sqlreplay.config import StoreConfig
from sqlreplay.errors import StoreBusy, StoreError, StoreRefused, StoreUnavailable
from sqlreplay.store.backend import MetaKind, Order
from sqlreplay.store.meta import encode_meta, json_number

__all__ = ["PostgresBackend"]

SERIALIZATION_FAILURE, DEADLOCK, LOCK_TIMEOUT = "40001", "40P01", "55P03"
SERVER_ENDING = ("57P01", "57P02")
SERVER_COMING = ("57P03", "53300")
LOGIN_REFUSED = ("28000", "28P01", "3D000")
PERMISSION_DENIED = "42501"
LARGEST_DRAWN_GAP = 10_000_000


class PostgresBackend:
    """The Postgres half of the seam; `SqliteBackend` has the same methods."""

    name = "postgresql"
    one_writer = False
    read_options: Mapping[str, Any] = MappingProxyType({"isolation_level": "AUTOCOMMIT"})
    driver_errors = (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

    def __init__(self, config: StoreConfig) -> None:
        self.config = config

    def create_engine(self) -> AsyncEngine:
        """Reads run outside a transaction, so none is left open to hold back vacuum."""
        settings = {"application_name": "sqlreplay"}
        if self.config.postgres_schema is not None:
            settings["search_path"] = quoted(self.config.postgres_schema)
        return create_async_engine(
            self.config.url,
            pool_size=self.config.pool_size,
            max_overflow=0,
            pool_timeout=3600,
            hide_parameters=True,
            json_serializer=encode_meta,
            connect_args={"server_settings": settings, "timeout": 10},
            skip_autocommit_rollback=True,
        )

    async def lock_schema(self, connection: AsyncConnection) -> None:
        """One process at a time migrates; the lock ends with the transaction, also when the process is killed."""
        if self.config.postgres_schema is not None:
            await connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.config.postgres_schema)}"))
        await self._advisory_lock(connection, "pg_advisory_xact_lock", "schema")

    async def has_table(self, connection: AsyncConnection, name: str) -> bool:
        return bool((await connection.execute(text("SELECT to_regclass(:name)"), {"name": name})).scalar())

    async def draw_ids(self, connection: AsyncConnection, count: int) -> Sequence[int]:
        """The sequence gives the ids before the rows are written; it is outside transactions and never goes back."""
        query = text(
            "/* draw_ids */ SELECT nextval('sqlreplay_groups_uid_seq') FROM generate_series(1, CAST(:count AS integer))"
        )
        return (await connection.execute(query, {"count": count})).scalars().all()

    async def advance_ids(self, connection: AsyncConnection, last: int) -> None:
        """A role that only uses the sequence may draw from it but not set it, so small gaps are drawn away.

        The lock keeps two who advance apart; others draw far too slowly to get past a gap that is set.
        """
        await self._advisory_lock(connection, "pg_advisory_xact_lock", "advance ids")
        [drawn] = await self.draw_ids(connection, 1)
        gap = last - drawn
        if gap > LARGEST_DRAWN_GAP:
            query = text("/* advance_ids */ SELECT setval('sqlreplay_groups_uid_seq', CAST(:last AS bigint))")
            try:
                await connection.execute(query, {"last": last})
            except DBAPIError as error:
                if state_of(error) != PERMISSION_DENIED:
                    raise
                raise StoreUnavailable(
                    f"{self.config}: this user may not set the sequence of uids, which is {gap} behind the largest "
                    f"one given. Type as the owner: GRANT UPDATE ON SEQUENCE sqlreplay_groups_uid_seq TO "
                    f"{self.config.url.username};"
                ) from error
        elif gap > 0:
            query = text(
                "/* advance_ids */ SELECT max(nextval('sqlreplay_groups_uid_seq')) "
                "FROM generate_series(1, CAST(:gap AS integer))"
            )
            await connection.execute(query, {"gap": gap})

    async def join_epoch(self, connection: AsyncConnection, run_id: int) -> None:
        """Writers share this lock until they commit. It has to be a statement of its own: one that locks and reads
        sees the state from before it waited."""
        await self._advisory_lock(connection, "pg_advisory_xact_lock_shared", f"epoch {run_id}")

    async def begin_epoch(self, connection: AsyncConnection, run_id: int) -> None:
        """Waits until no writer is between reading the run's state and its commit, and keeps new ones out."""
        await self._advisory_lock(connection, "pg_advisory_xact_lock", f"epoch {run_id}")

    async def _advisory_lock(self, connection: AsyncConnection, function: str, name: str) -> None:
        scope = f"sqlreplay {self.config.postgres_schema or ''} {name}"
        key = int.from_bytes(hashlib.blake2b(scope.encode(), digest_size=8).digest(), "big", signed=True)
        await connection.execute(text(f"SELECT {function}(CAST(:key AS bigint))"), {"key": key})

    def one_of(self, column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        """A list of any length travels as one array parameter, far from the limit of 32,767."""
        return column == any_(bindparam(parameter, type_=ARRAY(BigInteger)))

    def none_of(self, column: ColumnElement[Any], values: Sequence[int]) -> ColumnElement[bool]:
        """The same list, with its values bound at once."""
        return column != all_(bindparam(None, list(values), ARRAY(BigInteger), unique=True))

    def id_list(self, ids: Sequence[int]) -> list[int]:
        return list(ids)

    async def count_drawn(self, connection: AsyncConnection, uids: Sequence[int], race_keys: Sequence[bytes]) -> None:
        """One statement with two arrays instead of one trip for each group."""
        statement = text(
            "/* drawn */ UPDATE sqlreplay_groups AS g SET times_sampled = times_sampled + 1, race_key = drawn.key "
            "FROM unnest(CAST(:uids AS bigint[]), CAST(:keys AS bytea[])) AS drawn (uid, key) WHERE g.uid = drawn.uid"
        )
        await connection.execute(statement, {"uids": list(uids), "keys": list(race_keys)})

    insert = staticmethod(insert)

    def walk_task(self, column: ColumnElement[Any], task_id: Any, order_by: Order) -> tuple[ColumnElement[bool], Order]:
        """With equality the planner may walk the primary key, which is in order of uid too, and filter: past the whole
        backlog of every other task. A range of one, in the order of task and then uid, only our index gives."""
        descending = order_by and getattr(order_by[0], "modifier", None) is desc_op
        return column.between(task_id, task_id), (column.desc() if descending else column, *order_by)

    def meta(self, column: ColumnElement[Any], name: str, kind: MetaKind) -> ColumnElement[Any]:
        """jsonb keeps numbers as decimals and text in the database's collation; "C" compares by code point."""
        key = bindparam(None, name, Text, unique=True)
        member = column.op("->", return_type=JSONB())(key)
        found = func.jsonb_typeof(member)
        if kind == "text":
            value = column.op("->>", return_type=Text())(key)
            return case((found == literal_column("'string'"), value)).collate("C")
        if kind == "number":
            return case((found == literal_column("'number'"), cast(member, PostgresNumber)))
        return case((found == literal_column("'boolean'"), cast(member, Boolean)))

    def clock(self) -> ColumnElement[float]:
        """Seconds since 1970 by the database's clock."""
        return literal_column("extract(epoch FROM clock_timestamp())::float8", Double)

    def is_transient(self, error: BaseException) -> bool:
        """A transaction that lost a conflict, or met a server that restarts, may run again from its start."""
        return state_of(error) in (SERIALIZATION_FAILURE, DEADLOCK, *SERVER_COMING) or self.is_lost(error)

    def is_lost(self, error: BaseException) -> bool:
        """Tell whether the connection went away, so that nothing is known of what was under way."""
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return True
        cause = getattr(error, "orig", None) or error
        state = state_of(error)
        ended = state in SERVER_ENDING or state.startswith("08") or "is closed" in str(cause)
        return ended or isinstance(cause, OSError)

    def explain(self, error: BaseException) -> StoreError:
        """Tell a server that is down from a login that is refused and from anything else."""
        cause = getattr(error, "orig", None) or error
        where = str(self.config)
        if state_of(error) in LOGIN_REFUSED:
            return StoreUnavailable(
                f"{where} refused the login: {first_line(cause)}. Check user, password and database."
            )
        if state_of(error) == LOCK_TIMEOUT:
            return StoreBusy(f"{where} kept a lock too long: {first_line(cause)}.")
        if isinstance(cause, (OSError, TimeoutError)) or self.is_lost(error) or not state_of(error):
            return StoreUnavailable(
                f"{where} cannot be reached: {first_line(cause)}. "
                "Check that the server runs and that host and port are right."
            )
        return StoreRefused(f"{where} refused a statement ({state_of(error)}): {first_line(cause)}.")


class PostgresNumber(TypeDecorator[float]):
    """A number from jsonb, which is a NUMERIC: operands are the decimal that `json_number` writes."""

    impl = Numeric
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> Decimal | None:
        return None if value is None else Decimal(json_number(value))


def state_of(error: BaseException) -> str:
    """Return the five-character SQLSTATE, or nothing."""
    cause = getattr(error, "orig", None) or error
    return str(getattr(cause, "sqlstate", None) or "")


def first_line(cause: BaseException) -> str:
    text_of_cause = str(cause).rpartition(">: ")[2].splitlines()
    return text_of_cause[0] if text_of_cause else type(cause).__name__


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
