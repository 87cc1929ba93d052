"""Transactions: opened lazily, retried from a closed list of errors, and paused around a fork."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sqlreplay.config import StoreConfig
from sqlreplay.errors import OutcomeUnknown, SchemaTooNew
from sqlreplay.store import schema
from sqlreplay.store.backend import Backend, open_backend

__all__ = ["Database", "Work"]

logger = logging.getLogger("sqlreplay")
T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

RETRY_DELAYS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)


class Engines(NamedTuple):
    """One engine, and how it is used to read and to write."""

    own: AsyncEngine
    reading: AsyncEngine
    writing: AsyncEngine


class Database:
    """One engine, used by one event loop. Every call is one transaction."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.backend: Backend = open_backend(config)
        self._engines: Engines | None = None
        self._opening = asyncio.Lock()
        self._writer = asyncio.Lock()
        self._checked = False
        self._open_gate = asyncio.Event()
        self._open_gate.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._active = 0

    @property
    def engine(self) -> AsyncEngine | None:
        """The engine, while there is one."""
        return None if self._engines is None else self._engines.own

    async def read(self, work: Work[T]) -> T:
        """Run statements that change nothing; each sees its own moment."""

        async def attempt(engines: Engines) -> T:
            async with engines.reading.connect() as connection:
                return await work(connection)

        return await self._run(attempt, alone=self.config.is_memory)

    async def write(self, work: Work[T]) -> T:
        """Run one write transaction. `work` may run again from its start, so it changes nothing but the database."""

        async def attempt(engines: Engines) -> T:
            async with engines.writing.connect() as connection:
                transaction = await connection.begin()
                result = await work(connection)
                try:
                    await transaction.commit()
                except self.backend.driver_errors as error:
                    if self.backend.is_lost(error):
                        raise OutcomeUnknown(
                            f"The connection to {self.config} was lost while a transaction was committing: it may or "
                            "may not be stored. Look with find() or count() before you try again."
                        ) from error
                    raise
                return result

        return await self._run(attempt, alone=self.backend.one_writer)

    async def _run(self, attempt: Callable[[Engines], Awaitable[T]], *, alone: bool) -> T:
        async with self._entered():
            engines = await self._opened()
            if not alone:
                return await self._attempts(attempt, engines)
            async with self._writer:
                return await self._attempts(attempt, engines)

    async def _attempts(self, attempt: Callable[[Engines], Awaitable[T]], engines: Engines) -> T:
        for delay in (*RETRY_DELAYS_S, None):
            try:
                return await attempt(engines)
            except self.backend.driver_errors as error:
                if delay is None or not self.backend.is_transient(error):
                    raise self.backend.explain(error) from error
                if delay >= 1:
                    logger.warning("%s: %s; trying again", self.config, self.backend.explain(error))
                await asyncio.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    async def _opened(self) -> Engines:
        """Create the engine and settle the schema once. A server that is down is reported at once, not retried."""
        async with self._opening:
            engines = self._connect()
            if not self._checked:
                try:
                    await self._settle_schema(engines)
                except self.backend.driver_errors as error:
                    raise self.backend.explain(error) from error
                self._checked = True
            return engines

    def _connect(self) -> Engines:
        if self._engines is None:
            engine = self.backend.create_engine()
            self._engines = Engines(
                engine,
                engine.execution_options(**self.backend.read_options),
                engine.execution_options(sqlreplay_write=True),
            )
        return self._engines

    async def _settle_schema(self, engines: Engines) -> None:
        async with engines.reading.connect() as connection:
            found = await schema.read_revision(self.backend, connection)
        problem = schema.check(found, self.config)
        if problem is None:
            return
        if self.config.schema == "check" or isinstance(problem, SchemaTooNew):
            raise problem
        async with engines.writing.begin() as connection:
            await schema.upgrade(self.backend, connection)
        logger.info("%s is now at schema revision %s", self.config, schema.head_revision())

    @asynccontextmanager
    async def session(self, *, write: bool) -> AsyncIterator[AsyncConnection]:
        """Open a connection without looking at the schema: for the commands that create and inspect it."""
        engines = self._connect()
        try:
            async with (engines.writing if write else engines.reading).begin() as connection:
                yield connection
        except self.backend.driver_errors as error:
            raise self.backend.explain(error) from error

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[None]:
        await self._open_gate.wait()
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def pause(self) -> None:
        """Finish what runs, keep new transactions waiting, and close every connection."""
        self._open_gate.clear()
        await self._idle.wait()
        if not self.config.is_memory:
            await self.close()

    def resume(self) -> None:
        """Let waiting transactions go on; connections open again as they are needed."""
        self._open_gate.set()

    async def close(self) -> None:
        engines, self._engines = self._engines, None
        if engines is not None:
            await engines.own.dispose()
