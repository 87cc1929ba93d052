"""The store's verbs: rows in, rows out. Everything here runs on the I/O thread's event loop."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.config import StoreConfig
from sqlreplay.store import reading, rows, transfer
from sqlreplay.store.admission import MustWait
from sqlreplay.store.claim import Claim, Claimed, OverBudget, claim_groups, has_enough
from sqlreplay.store.commit import GroupCommit, Soon
from sqlreplay.store.database import Database
from sqlreplay.store.freeing import Freeing
from sqlreplay.store.refresh import Refresh, Refreshed, expired_now, partial_queries, refresh_task
from sqlreplay.store.runs import Run, find_tasks, holds_groups, open_run, raise_train_steps, read_tasks
from sqlreplay.store.standing import Standing, lock_tables
from sqlreplay.store.table_verbs import TableVerbs
from sqlreplay.store.waiting import Waiters

__all__ = ["Batch", "Store"]

READ_BYTES = 64 * 2**20
NOT_FULL = MustWait("not all that was asked is there")


@dataclass
class Batch:
    """Claimed rows with their bytes, by task."""

    rows: dict[str, list[Any]]
    parts: dict[int, list[Any]]
    full: bool

    def all_rows(self) -> list[Any]:
        return [row for rows in self.rows.values() for row in rows]

    def joined(self, other: "Batch") -> "Batch":
        names = dict.fromkeys((*self.rows, *other.rows))
        rows = {name: self.rows.get(name, []) + other.rows.get(name, []) for name in names}
        return Batch(rows, self.parts | other.parts, self.full)


class Store:
    """One database, seen from one process."""

    def __init__(self, config: StoreConfig, soon: Soon) -> None:
        self.config = config
        self.database = Database(config)
        self.backend = self.database.backend
        self.commit = GroupCommit(soon, self._insert)
        self._runs: dict[str, Run] = {}
        self._opening_run = asyncio.Lock()
        self.waiters = Waiters(config)
        self.freeing = Freeing(self.database)
        self.tables = TableVerbs(self)

    async def run(self, name: str) -> Run:
        async with self._opening_run:
            if name not in self._runs:
                self._runs[name] = await self.database.write(lambda c: open_run(c, self.backend, name))
                self.freeing.start_sweeping()
            return self._runs[name]

    async def holds_groups(self, run_name: str) -> bool:
        run = await self.run(run_name)
        return await self.database.read(lambda c: holds_groups(c, run))

    async def _insert(self, run_name: str, new: list[rows.NewGroup]) -> list[rows.Outcome]:
        run = await self.run(run_name)
        done = await self.database.write(lambda c: rows.insert_groups(c, self.backend, run, new))
        self.freeing.free_later(done.unused_payloads)
        self.waiters.notify()
        return done.outcomes

    async def claim(
        self,
        run_name: str,
        claims: Sequence[Claim],
        *,
        max_tokens: int | None = None,
        train_step: int | None = None,
        timeout: float | None = None,
        require_full: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Batch:
        """Take groups of several tasks in one transaction and read their bytes after it.

        Without a timeout this takes what is there. With one it waits until all is there, and at the deadline takes
        what is there, or nothing if all is required (`full` tells which). A wait that is no longer wanted takes
        nothing.
        """

        async def attempt(left: float) -> dict[str, list[Any]] | MustWait:
            must_be_full = left > 0 or require_full
            claimed = await self._try_claim(run_name, claims, max_tokens, train_step, must_be_full, is_wanted)
            return NOT_FULL if claimed is None else claimed

        claimed = await self.waiters.until(attempt, timeout or 0, is_wanted)
        if isinstance(claimed, MustWait):
            return Batch({asked.task_name: [] for asked in claims}, {}, full=False)
        self.waiters.notify()
        try:
            return Batch(claimed, await self.read_parts(claimed_rows(claimed)), full=True)
        except BaseException:
            await self.put_back(run_name, claimed_rows(claimed))
            raise

    async def _try_claim(
        self,
        run_name: str,
        claims: Sequence[Claim],
        max_tokens: int | None,
        train_step: int | None,
        must_be_full: bool,
        is_wanted: Callable[[], bool],
    ) -> dict[str, list[Any]] | None:
        run = await self.run(run_name)
        if must_be_full and max_tokens is None and not await self.is_ready(run_name, claims):
            return None
        if must_be_full and not is_wanted():  # even a pick that is rolled back hides its rows from others meanwhile
            return None

        async def transaction(connection: AsyncConnection) -> dict[str, list[Any]]:
            await self.backend.join_epoch(connection, run.id)
            names = [asked.task_name for asked in claims]
            task_ids = await find_tasks(connection, run, names)
            tables = await lock_tables(connection, run, names)
            taken: dict[str, list[Any]] = {asked.task_name: [] for asked in claims}
            tokens = max_tokens
            for asked in claims:
                if tokens == 0 or asked.count == 0:
                    continue
                if asked.task_name not in task_ids:
                    raise_if(must_be_full)
                    continue
                found = await self._claim_task(connection, task_ids[asked.task_name], asked, tokens, taken)
                taken[asked.task_name] = found.rows
                raise_if(must_be_full and len(found.rows) < asked.count and not found.tokens_full)
                if tokens is not None:
                    tokens = 0 if found.tokens_full else tokens - found.tokens
            await count_taken(connection, tables, claimed_rows(taken))
            if train_step is not None:
                await raise_train_steps(connection, dict.fromkeys(task_ids.values(), train_step))
            raise_if(must_be_full and not is_wanted())
            return taken

        try:
            return await self.database.write(transaction)
        except NotFull:
            return None

    async def _claim_task(
        self,
        connection: AsyncConnection,
        task_id: int,
        asked: Claim,
        tokens: int | None,
        taken: dict[str, list[Any]],
    ) -> Claimed:
        try:
            return await claim_groups(connection, self.backend, task_id, asked, tokens)
        except OverBudget:
            if any(taken.values()):
                return Claimed([], 0, tokens_full=True)
            raise

    async def read_parts(self, claimed: Sequence[Any]) -> dict[int, list[Any]]:
        """Read the bytes of rows, some megabytes at a time; of those that expired whole only what survives a reset."""
        found: dict[int, list[Any]] = {}
        for kept_only in (False, True):
            wanted = [row for row in claimed if (row.expired_at_step is not None) == kept_only]
            for slice_of_rows in by_bytes(wanted):
                ids = [row.payload_id for row in slice_of_rows]
                found |= await self.database.read(
                    lambda c, ids=ids, kept=kept_only: rows.read_parts(c, self.backend, ids, kept_only=kept)  # type: ignore[misc]
                )
        return found

    async def put_back(self, run_name: str, claimed: Sequence[Any], **changes: Any) -> None:
        """Undo a claim: the same rows at the same place, but for `changes`."""
        if claimed:
            run = await self.run(run_name)
            await self.database.write(lambda c: rows.put_back(c, self.backend, run, claimed, **changes))
            self.waiters.notify()

    async def set_aside(self, run_name: str, errors: Sequence[tuple[int, int, str]]) -> None:
        """Mark groups (uid, payload id, error) whose bytes do not read as failed."""
        run = await self.run(run_name)
        await self.database.write(lambda c: rows.set_aside(c, self.backend, run, errors))

    async def is_ready(self, run_name: str, claims: Sequence[Claim]) -> bool:
        run = await self.run(run_name)
        wanted = [asked for asked in claims if asked.count > 0]

        async def look(connection: AsyncConnection) -> bool:
            task_ids = await find_tasks(connection, run, [asked.task_name for asked in wanted])
            if len(task_ids) < len({asked.task_name for asked in wanted}):
                return False
            return await has_enough(connection, [(task_ids[asked.task_name], asked) for asked in wanted])

        return not wanted or await self.database.read(look)

    async def counts(
        self, run_name: str, task_names: Sequence[str], statuses: Sequence[str]
    ) -> dict[tuple[str, str], int]:
        run = await self.run(run_name)

        async def look(connection: AsyncConnection) -> dict[tuple[str, str], int]:
            task_ids = await find_tasks(connection, run, task_names)
            found = await reading.count_groups(connection, task_ids.values(), statuses)
            return {
                (name, status): found.get((task_ids.get(name, -1), status), 0)
                for name in task_names
                for status in statuses
            }

        return await self.database.read(look)

    async def size(self, run_name: str) -> int:
        run = await self.run(run_name)
        return await self.database.read(lambda c: reading.size_of(c, run))

    async def page(self, run_name: str, where: ColumnElement[bool], **options: Any) -> Sequence[Any]:
        run = await self.run(run_name)
        return await self.database.read(lambda c: reading.page(c, run, where, **options))

    async def count_where(self, run_name: str, where: ColumnElement[bool]) -> int:
        run = await self.run(run_name)
        return await self.database.read(lambda c: reading.count_where(c, run, where))

    async def summary(self, run_name: str) -> Sequence[Any]:
        run = await self.run(run_name)
        return await self.database.read(lambda c: reading.summarise(c, run))

    async def refresh(
        self, run_name: str, make: Callable[[int, str], Refresh], task_names: Iterable[str]
    ) -> dict[str, tuple[Refresh, Refreshed]]:
        """Refresh tasks in one transaction; `make` gets a task's id and name."""
        run = await self.run(run_name)
        names = sorted(task_names)

        async def transaction(
            connection: AsyncConnection,
        ) -> dict[str, tuple[Refresh, Refreshed]]:
            await self.backend.begin_epoch(connection, run.id)
            states = await read_tasks(connection, self.backend, run, names)
            plans = {name: make(states[name].id, name) for name in names}
            tables = await lock_tables(connection, run, names)
            return {
                name: (plan, await refresh_task(connection, self.backend, plan, tables.get(plan.task_id)))
                for name, plan in plans.items()
            }

        done = await self.database.write(transaction)
        self.freeing.free_later([payload_id for _, result in done.values() for payload_id in result.payload_ids])
        self.waiters.notify()
        return done

    async def find_partial(self, plan: Refresh, after: int, limit: int) -> list[Any]:
        """Return the next groups that must be reset in part, by uid."""

        async def look(connection: AsyncConnection) -> list[Any]:
            found: dict[int, Any] = {}
            for query in partial_queries(plan, after, limit):
                found |= {row.uid: row for row in await connection.execute(query)}
            return [found[uid] for uid in sorted(found)][:limit]

        return await self.database.read(look)

    async def expired_now(self, task_id: int) -> int:
        return await self.database.read(lambda c: expired_now(c, task_id))

    async def rewrite(self, run_name: str, rewrites: Sequence[rows.Rewrite]) -> list[int]:
        """Change groups in place and return the uids of those that were still there."""
        run = await self.run(run_name)
        done = await self.database.write(lambda c: rows.rewrite_groups(c, self.backend, run, rewrites))
        self.freeing.free_later(done.unused_payloads)
        self.waiters.notify()
        return done.uids

    async def export_run(self, run_name: str) -> transfer.StoredRun:
        run = await self.run(run_name)
        return await self.database.read(lambda c: transfer.export_run(c, run))

    async def import_run(self, run_name: str, stored: transfer.StoredRun) -> None:
        """Write all groups with the uids they have into a run that holds none, or nothing at all."""
        run = await self.run(run_name)
        await self.database.write(lambda c: transfer.import_run(c, self.backend, run, stored))
        self.waiters.notify()

    async def delete(self, run_name: str, uids: Sequence[int]) -> int:
        run = await self.run(run_name)
        payload_ids = await self.database.write(lambda c: rows.delete_groups(c, self.backend, run, uids))
        self.freeing.free_later(payload_ids)
        self.waiters.notify()
        return len(payload_ids)

    def begin_close(self) -> None:
        """End every wait."""
        self.waiters.close()

    async def close(self) -> None:
        self.begin_close()
        await self.commit.close()
        await self.freeing.close()
        await self.database.close()


class NotFull(Exception):
    """Not all that must be there is: the transaction is rolled back."""


def raise_if(not_full: bool) -> None:
    if not_full:
        raise NotFull


def claimed_rows(claimed: dict[str, list[Any]]) -> list[Any]:
    return [row for rows_of_task in claimed.values() for row in rows_of_task]


def by_bytes(wanted: Sequence[Any]) -> Iterable[list[Any]]:
    """Split rows so that the bytes of each slice stay near the limit."""
    current: list[Any] = []
    size = 0
    for row in wanted:
        if current and size + row.size_bytes > READ_BYTES:
            yield current
            current, size = [], 0
        current.append(row)
        size += row.size_bytes
    if current:
        yield current


async def count_taken(connection: AsyncConnection, tables: dict[int, Standing], taken: Sequence[Any]) -> None:
    for table in tables.values():
        own = [row for row in taken if row.task_id == table.id]
        table.taken(own)
        for row in own:
            table.leave(row)
        if own:
            await table.save(connection)
