"""The seam: what a database must offer, in verbs. `sqlite.py` and `postgres.py` hold every difference."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sqlreplay.config import StoreConfig
from sqlreplay.errors import StoreError

__all__ = ["Backend", "MetaKind", "Order", "open_backend"]

Order = tuple[ColumnElement[Any], ...]
MetaKind = Literal["text", "number", "boolean"]


class Backend(Protocol):
    """Internal, and may change with any release."""

    name: str
    one_writer: bool
    read_options: Mapping[str, Any]
    config: StoreConfig

    def __hash__(self) -> int: ...

    @property
    def driver_errors(self) -> tuple[type[BaseException], ...]:
        """What this driver raises, bare or wrapped by SQLAlchemy."""

    def create_engine(self) -> AsyncEngine: ...

    async def lock_schema(self, connection: AsyncConnection) -> None:
        """Let one process at a time past this point, until its transaction ends."""

    async def has_table(self, connection: AsyncConnection, name: str) -> bool: ...

    async def draw_ids(self, connection: AsyncConnection, count: int) -> Sequence[int]:
        """Return numbers that were never given out before and never will be again."""

    async def advance_ids(self, connection: AsyncConnection, last: int) -> None:
        """See to it that `draw_ids` gives only numbers beyond `last` from now on."""

    async def join_epoch(self, connection: AsyncConnection, run_id: int) -> None:
        """Keep the run's state from being moved on until this transaction has committed."""

    async def begin_epoch(self, connection: AsyncConnection, run_id: int) -> None:
        """Wait for every transaction that joined, and keep others out until this one has committed."""

    def one_of(self, column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        """Return `column IN (parameter)` for a list of any length, bound as one parameter by `id_list`."""

    def none_of(self, column: ColumnElement[Any], values: Sequence[int]) -> ColumnElement[bool]:
        """Return `column NOT IN values` for a list of any length, as one parameter."""

    def id_list(self, ids: Sequence[int]) -> Any: ...

    async def count_drawn(self, connection: AsyncConnection, uids: Sequence[int], race_keys: Sequence[bytes]) -> None:
        """Count one draw more in each of these groups, and give it its new key."""

    def insert(self, table: Any) -> Any:
        """Return this dialect's INSERT, for its ON CONFLICT clause."""

    def walk_task(self, column: ColumnElement[Any], task_id: Any, order_by: Order) -> tuple[ColumnElement[bool], Order]:
        """Return the condition for one task's rows and the order, put so that an index over both is walked."""

    def meta(self, column: ColumnElement[Any], name: str, kind: MetaKind) -> ColumnElement[Any]:
        """Return a member of a JSON column where it is of that kind, and NULL elsewhere; text by code point."""

    def clock(self) -> ColumnElement[float]: ...

    def is_transient(self, error: BaseException) -> bool:
        """Tell whether the same transaction may be tried again from its start. A closed list."""

    def is_lost(self, error: BaseException) -> bool:
        """Tell whether the connection is gone, so that the outcome of a COMMIT under way is unknown."""

    def explain(self, error: BaseException) -> StoreError: ...


def open_backend(config: StoreConfig) -> Backend:
    """Choose the half of the seam that fits the URL; only that one's driver is imported."""
    if config.is_sqlite:
        from sqlreplay.store.sqlite import SqliteBackend

        return SqliteBackend(config)
    from sqlreplay.store.postgres import PostgresBackend

    return PostgresBackend(config)
