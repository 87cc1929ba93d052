"""The store's verbs for tables: draw, wait, weigh and settle. Everything here runs on the I/O thread's event loop."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.rules import Capacity, TableConfig
from sqlreplay.store.admission import MustWait, look_for_room
from sqlreplay.store.making import make_tables, settings_match, shut_down
from sqlreplay.store.priorities import update_priorities
from sqlreplay.store.runs import set_seed
from sqlreplay.store.sampling import Draw, Drawn, draw_groups, look_before_draw, undo_draw
from sqlreplay.store.standing import Standing, read_standing

if TYPE_CHECKING:
    from sqlreplay.store.store import Store

__all__ = ["TableVerbs"]

NO_LIMIT = Capacity()


class TableVerbs:
    """What one store can do with the tasks that are tables."""

    def __init__(self, store: "Store") -> None:
        self._store = store

    async def draw(
        self,
        run_name: str,
        asked: Draw,
        *,
        timeout: float | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[Drawn, dict[int, list[Any]]] | MustWait:
        """Draw groups that stay, and read their bytes after it. Waits for ever without a timeout.

        After the first try a look that changes nothing comes before each other, so that those who wait hold up nobody.
        """
        run = await self._store.run(run_name)

        is_first = True

        async def attempt(left: float) -> Drawn | MustWait:
            nonlocal is_first
            if not is_first:
                wait = await self._store.database.read(lambda c: look_before_draw(c, run, asked))
                if wait is not None:
                    return wait
                if asked.where is not None and not await self._store.is_ready(run_name, [asked.as_claim()]):
                    return MustWait(f"{asked.count} groups of {asked.task_name!r} were asked, and fewer match")
            is_first = False
            return await self._store.database.write(lambda c: draw_groups(c, self._store.backend, run, asked))

        drawn = await self._store.waiters.until(attempt, timeout, is_wanted)
        if isinstance(drawn, MustWait):
            return drawn
        self._store.waiters.notify()
        try:
            return drawn, await self._store.read_parts(drawn.rows)
        except BaseException:
            await self.undo_draw(run_name, drawn)
            raise

    async def undo_draw(self, run_name: str, drawn: Drawn) -> None:
        """A draw that nobody gets did not happen: what it removed is there again, and nothing counts it."""
        if drawn.rows:
            run = await self._store.run(run_name)
            await self._store.database.write(lambda c: undo_draw(c, self._store.backend, run, drawn))
            self._store.waiters.notify()

    async def wait_for_room(
        self,
        run_name: str,
        task_name: str,
        size_bytes: int,
        *,
        timeout: float | None,
        is_wanted: Callable[[], bool],
        shutdowns: int | None = None,
    ) -> MustWait | Exception | None:
        """Wait until a group of this size may go into a table, as far as a look tells; None is go."""
        run = await self._store.run(run_name)

        async def attempt(left: float) -> MustWait | Exception | None:
            return await self._store.database.read(
                lambda c: look_for_room(c, self._store.backend, run, task_name, size_bytes, shutdowns)
            )

        return await self._store.waiters.until(attempt, timeout, is_wanted)

    async def update_priorities(self, run_name: str, task_name: str, priorities: Mapping[int, float]) -> list[int]:
        run = await self._store.run(run_name)
        unknown = await self._store.database.write(
            lambda c: update_priorities(c, self._store.backend, run, task_name, priorities)
        )
        self._store.waiters.notify()
        return unknown

    async def settle_tables(
        self, run_name: str, wanted: Mapping[str, TableConfig], capacity: Capacity = NO_LIMIT, seed: int | None = None
    ) -> None:
        """Make tables that are not there yet; those that are must be as wanted."""
        run = await self._store.run(run_name)
        if seed is not None and run.seed != str(seed):
            await self._store.database.write(lambda c: set_seed(c, run, str(seed)))
            run.seed = str(seed)

        async def transaction(connection: AsyncConnection) -> list[int]:
            await self._store.backend.begin_epoch(connection, run.id)
            if await settings_match(connection, run, wanted, capacity):
                return []
            return await make_tables(
                connection, self._store.backend, run, wanted, capacity if capacity.is_limited else None
            )

        if not await self._store.database.read(lambda c: settings_match(c, run, wanted, capacity)):
            self._store.freeing.free_later(await self._store.database.write(transaction))

    async def set_tables(
        self, run_name: str, wanted: Mapping[str, TableConfig], capacity: Capacity | None = None
    ) -> None:
        """Give tables, or the run, other settings."""
        run = await self._store.run(run_name)
        unused = await self._store.database.write(lambda c: make_tables(c, self._store.backend, run, wanted, capacity))
        self._store.freeing.free_later(unused)
        self._store.waiters.notify()

    async def standing(self, run_name: str, task_name: str) -> Standing | None:
        run = await self._store.run(run_name)
        return await self._store.database.read(lambda c: read_standing(c, run, task_name))

    async def shut_down(self, run_name: str, task_name: str) -> None:
        run = await self._store.run(run_name)
        await self._store.database.write(lambda c: shut_down(c, run, task_name))
        self._store.waiters.notify()
