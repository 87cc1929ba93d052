"""Groups on their way into tables: the limiter, the capacity, and who gives way. Nothing is seen before it fits."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import BadArgument, StoreClosed, TableFull
from sqlreplay.policy import Prioritized, Uniform
from sqlreplay.store.backend import Backend
from sqlreplay.store.runs import Run
from sqlreplay.store.standing import TABLE_COLUMNS, Standing, read_tables
from sqlreplay.store.tables import groups

__all__ = ["Admission", "MustWait", "Stored", "look_for_room"]

CHUNK = 32


class Stored(int):
    """The uid of a group that was stored. `evicted` are the uids of those that gave way to it."""

    evicted: tuple[int, ...] = ()

    def __new__(cls, uid: int, evicted: tuple[int, ...] = ()) -> "Stored":
        stored = super().__new__(cls, uid)
        stored.evicted = evicted
        return stored


@dataclass(frozen=True)
class MustWait:
    """What was asked cannot be done yet, and why."""

    reason: str


@dataclass
class Line:
    """Who gives way next in one table: new rows, and as many of the old ones as were looked at."""

    heap: list[tuple[bytes, int, Any]] = field(default_factory=list)
    old: int = 0
    after: tuple[bytes, int] | None = None
    is_read: bool = False


@dataclass
class Admission:
    """One transaction's way in. `admit` decides row by row; `finish` writes what it came to."""

    connection: AsyncConnection
    backend: Backend
    tables: dict[int, Standing]
    pending: dict[int, dict[str, Any]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    unseen_payloads: list[int] = field(default_factory=list)
    unused_payloads: list[int] = field(default_factory=list)
    lines: dict[int, Line] = field(default_factory=lambda: defaultdict(Line))

    async def admit(self, row: dict[str, Any]) -> Stored | MustWait | Exception:
        """Let a row in, or say why not; nothing is written for one that stays out."""
        table = self.tables[row["task_id"]]
        try:
            table.check_fits(row["size_bytes"])
        except BadArgument as error:
            self.unseen_payloads.append(row["payload_id"])
            return error
        if row.get("client_key") is not None:
            there = await self._find_key(row)
            if there is not None:
                return await self._replace(table, there, row)
        refusal = self.refusal(table, row["size_bytes"])
        if refusal is not None:
            self.unseen_payloads.append(row["payload_id"])
            return refusal
        table.inserts += 1
        row |= table.enter(row)
        self.pending[row["uid"]] = row
        if row["evict_key"] is not None:
            heapq.heappush(self.lines[table.id].heap, (row["evict_key"], row["uid"], None))
        return Stored(row["uid"], tuple(await self.make_room(table)))

    def refusal(self, table: Standing, size_bytes: int) -> MustWait | Exception | None:
        reason = table.rules.rate_limiter.inserting_must_wait(table.counters)
        if reason is not None:
            return MustWait(f"table {table.name!r}: {reason}")
        for capacity, size, held_bytes in self.capacities(table):
            over = capacity.overflow(size + 1, held_bytes + size_bytes)
            if over is not None and capacity.on_full == "block":
                return MustWait(f"{table.name!r} is full: {size} groups, {held_bytes} bytes, {over}")
            if over is not None and capacity.on_full == "reject":
                return TableFull(
                    f"{table.name!r} is full: {size} groups, {held_bytes} bytes, {over}. Take or sample groups out of "
                    "it, raise the capacity, or choose on_full='evict' or 'block'."
                )
        return None

    def capacities(self, table: Standing) -> list[tuple[Any, int, int]]:
        found = []
        if table.rules.capacity.is_limited:
            found.append((table.rules.capacity, table.size, table.size_bytes))
        if table.run_capacity.is_limited:
            standings = self.tables.values()
            found.append(
                (table.run_capacity, sum(each.size for each in standings), sum(each.size_bytes for each in standings))
            )
        return found

    async def make_room(self, table: Standing) -> list[int]:
        """Evict by the remover until all fits; of the run as a whole, the largest table gives way."""
        gone: list[int] = []
        while any(capacity.overflow(size, held) for capacity, size, held in self.capacities(table)):
            giving = table
            if table.rules.capacity.overflow(table.size, table.size_bytes) is None:
                by_bytes = table.run_capacity.max_size is None
                giving = max(
                    (each for each in self.tables.values() if each.size),
                    key=lambda each: (each.size_bytes if by_bytes else each.size, each.id),
                )
            uid = await self._evict_next(giving)
            if uid is None:
                break
            gone.append(uid)
        return gone

    async def _evict_next(self, table: Standing) -> int | None:
        line = self.lines[table.id]
        if line.old == 0 and not line.is_read:
            await self._read_line(table, line)
        if not line.heap:
            return None
        key, uid, row = heapq.heappop(line.heap)
        if isinstance(table.rules.remover, (Prioritized, Uniform)):
            table.eviction.move_to(key)
        if row is None:
            new = self.pending.pop(uid)
            self.unseen_payloads.append(new["payload_id"])
            table.leave(Columns(new))
        else:
            line.old -= 1
            self.evicted.append(uid)
            self.unused_payloads.append(row.payload_id)
            table.leave(row)
        table.deletes += 1
        table.evictions += 1
        return uid

    async def _read_line(self, table: Standing, line: Line) -> None:
        of_task, order_by = self.backend.walk_task(
            groups.c.task_id, table.id, (groups.c.evict_key.asc(), groups.c.uid.asc())
        )
        query = select(*TABLE_COLUMNS).where(of_task, groups.c.evict_key.is_not(None))
        if line.after is not None:
            key, uid = line.after
            query = query.where(
                or_(groups.c.evict_key > key, and_(groups.c.evict_key == key, groups.c.uid > uid)),
                groups.c.evict_key >= key,
            )
        query = query.order_by(*order_by).limit(CHUNK).prefix_with("/* next_to_evict */")
        rows = (await self.connection.execute(query)).all()
        line.is_read = len(rows) < CHUNK
        if rows:
            line.after = (rows[-1].evict_key, rows[-1].uid)
        for row in rows:
            heapq.heappush(line.heap, (row.evict_key, row.uid, row))
        line.old += len(rows)

    async def _find_key(self, row: dict[str, Any]) -> Any:
        for new in self.pending.values():
            if new.get("client_key") == row["client_key"] and new["task_id"] == row["task_id"]:
                await self.finish()
                break
        query = select(*TABLE_COLUMNS).where(
            groups.c.task_id == row["task_id"], groups.c.client_key == row["client_key"]
        )
        found = (await self.connection.execute(query.prefix_with("/* find_key */"))).first()
        return None if found is None or found.uid in self.evicted else found

    async def _replace(self, table: Standing, there: Any, row: dict[str, Any]) -> Stored | Exception:
        """Give the group of this key new bytes, at the same place; it is no insert, and nobody gives way to it unless
        it grew past a limit in bytes."""
        for capacity, _, held_bytes in self.capacities(table):
            grown = held_bytes - there.size_bytes + row["size_bytes"]
            if capacity.max_bytes is not None and grown > capacity.max_bytes and capacity.on_full != "evict":
                self.unseen_payloads.append(row["payload_id"])
                return TableFull(
                    f"{table.name!r} has no room for {row['size_bytes']} bytes in place of {there.size_bytes}: "
                    f"max_bytes={capacity.max_bytes}. The group of key {row['client_key']!r} is as it was."
                )
        await self.finish()
        table.leave(there)
        changed = {name: value for name, value in row.items() if name != "born_epoch"}
        changed |= {"uid": there.uid, "times_sampled": 0, "expired_at_step": None, "error": None}
        changed |= table.enter(changed)
        await self.connection.execute(
            update(groups).where(groups.c.uid == there.uid).values(changed).prefix_with("/* replace */")
        )
        self.unused_payloads.append(there.payload_id)
        return Stored(there.uid, tuple(await self.make_room(table)))

    async def finish(self) -> None:
        """Delete who gave way, and write who came."""
        self.lines.clear()
        if self.evicted:
            statement = delete(groups).where(self.backend.one_of(groups.c.uid, "uids")).prefix_with("/* evict */")
            await self.connection.execute(statement, {"uids": self.backend.id_list(self.evicted)})
            self.evicted = []
        if self.pending:
            rows, self.pending = list(self.pending.values()), {}
            statement_in = insert(groups).values(created_at=self.backend.clock()).prefix_with("/* put */")
            await self.connection.execute(statement_in, rows)

    async def save(self) -> None:
        for _, table in sorted(self.tables.items()):
            await table.save(self.connection)


async def look_for_room(
    connection: AsyncConnection, backend: Backend, run: Run, task_name: str, size_bytes: int, shutdowns: int | None
) -> MustWait | Exception | None:
    """Say why a group of this size may not go into a table now; None if it may. `shutdowns` is how many the caller
    has seen; one more, and it gets `StoreClosed`."""
    tables = await read_tables(connection, run)
    for table in tables.values():
        if table.name == task_name:
            if shutdowns is not None and table.shutdowns > shutdowns:
                return StoreClosed(f"Table {task_name!r} was shut down. Open a new one.")
            return Admission(connection, backend, tables).refusal(table, size_bytes)
    return None


class Columns:
    """A new row's values by attribute, as those of a row that was read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
