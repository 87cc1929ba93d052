"""A task that is a table: its rules and its running state, locked until the transaction ends.

Samplers, writers and removers of one table go one after the other. With rows locked alone, four samplers on Postgres
each skip what the others hold, and heavy groups are drawn no more often than light ones.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import BadArgument
from sqlreplay.limiters import Counters
from sqlreplay.policy import Prioritized, Selector, Uniform
from sqlreplay.rules import Capacity, TableConfig
from sqlreplay.store.race import Clock, Lot, exact
from sqlreplay.store.runs import Run
from sqlreplay.store.tables import groups, runs, tasks

__all__ = [
    "NO_KEYS",
    "TABLE_COLUMNS",
    "Standing",
    "lock_for_growth",
    "lock_tables",
    "lock_tables_of",
    "lock_tasks",
    "read_standing",
    "read_tables",
]

UNLIMITED = TableConfig()
NO_KEYS: dict[str, Any] = {"race_weight": None, "race_key": None, "evict_key": None}
TABLE_COLUMNS = [
    groups.c[name]
    for name in (
        "uid",
        "task_id",
        "status",
        "priority",
        "stale_from_step",
        "size_bytes",
        "lease_id",
        "payload_id",
        "race_weight",
        "evict_key",
    )
]
"""What a table must know of a row to count it in or out."""

SUMS = ("size", "size_bytes", "stream_size", "inserts", "deletes", "samples", "evictions", "draw_number")


@dataclass
class Standing:
    """What a table holds and has seen. `enter` and `leave` keep it true; `save` writes it."""

    id: int
    name: str
    rules: TableConfig
    is_table: bool
    run_capacity: Capacity
    lot: Lot
    race: Clock
    eviction: Clock
    weight_sum: int
    shutdowns: int
    size: int
    size_bytes: int
    stream_size: int
    inserts: int
    deletes: int
    samples: int
    evictions: int
    draw_number: int

    @property
    def counters(self) -> Counters:
        return Counters(self.inserts, self.deletes, self.samples)

    @property
    def evicts(self) -> bool:
        return self.rules.capacity.is_limited or self.run_capacity.is_limited

    @property
    def by_lot(self) -> bool:
        return isinstance(self.rules.sampler, (Prioritized, Uniform))

    def check_fits(self, size_bytes: int) -> None:
        """Refuse a group that is larger than all that may be held."""
        for capacity in (self.rules.capacity, self.run_capacity):
            if capacity.max_bytes is not None and size_bytes > capacity.max_bytes:
                raise BadArgument(
                    f"This group has {size_bytes} bytes, and {self.name!r} holds at most "
                    f"max_bytes={capacity.max_bytes}: it can never fit. Raise max_bytes or put smaller groups."
                )

    def draw(self) -> float:
        self.draw_number += 1
        return self.lot.draw(self.draw_number)

    def enter(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Count a row in, and return the keys it has from now on."""
        if row["status"] != "archived":
            self.size += 1
            self.size_bytes += row["size_bytes"]
        return self.keys(row)

    def keys(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a row that is counted already; if it may be sampled, it joins the stream."""
        keys = dict(NO_KEYS)
        if row["lease_id"] is not None or row["status"] == "archived":
            return keys
        if self.evicts:
            keys["evict_key"] = self._key(self.rules.remover, self.eviction, row)
        if row["status"] == "completed":
            sampler = self.rules.sampler
            weight = sampler.weight(row["priority"]) if isinstance(sampler, (Prioritized, Uniform)) else 1.0
            keys |= {"race_weight": weight, "race_key": self._key(sampler, self.race, row)}
            self.stream_size += 1
            self.weight_sum += exact(weight)
        return keys

    def _key(self, selector: Selector, clock: Clock, row: Mapping[str, Any]) -> bytes:
        if isinstance(selector, (Prioritized, Uniform)):
            return clock.key(self.draw(), selector.weight(row["priority"]))
        return selector.key(row["uid"], row["priority"], row["stale_from_step"])

    def leave(self, row: Any) -> None:
        """Count a row out."""
        if row.status != "archived":
            self.size -= 1
            self.size_bytes -= row.size_bytes
        self.leave_stream(row.race_weight)

    def leave_stream(self, race_weight: float | None) -> None:
        """A row that had this weight can no longer be sampled, wherever it went."""
        if race_weight is not None:
            self.stream_size -= 1
            self.weight_sum -= exact(race_weight)

    def taken(self, rows: Sequence[Any], *, sign: int = 1) -> None:
        """A take is a draw that removes; `sign=-1` is for one that is undone."""
        self.samples += sign * len(rows)
        self.deletes += sign * len(rows)

    async def save(self, connection: AsyncConnection) -> None:
        (race_time, race_behind), (evict_time, evict_behind) = self.race.write(), self.eviction.write()
        values = {name: getattr(self, name) for name in SUMS}
        await connection.execute(
            SAVE,
            {
                "task_id": self.id,
                "weight_sum": f"{self.weight_sum:x}",
                "race_time": race_time,
                "race_time_behind": race_behind,
                "evict_time": evict_time,
                "evict_time_behind": evict_behind,
                **values,
            },
        )


CLOCKS = ("race_time", "race_time_behind", "evict_time", "evict_time_behind", "weight_sum")
SAVE = (
    update(tasks)
    .where(tasks.c.id == bindparam("task_id"))
    .values({name: bindparam(name) for name in (*SUMS, *CLOCKS)})
    .prefix_with("/* save_standing */")
)


def standing_query() -> Select[Any]:
    return (
        select(tasks, runs.c.capacity)
        .select_from(tasks.join(runs))
        .where(tasks.c.run_id == bindparam("run_id"))
        .order_by(tasks.c.id)
    )


IS_TABLE = or_(tasks.c.settings.is_not(None), runs.c.capacity.is_not(None))
NAMED = tasks.c.name.in_(bindparam("names", expanding=True))
IDENTIFIED = tasks.c.id.in_(bindparam("task_ids", expanding=True))
LOCK_TABLES = standing_query().where(NAMED, IS_TABLE).with_for_update(of=tasks).prefix_with("/* lock_tables */")
LOCK_TASK = standing_query().where(NAMED).with_for_update(of=tasks).prefix_with("/* lock_task */")
LOCK_TASKS = standing_query().where(IDENTIFIED).with_for_update(of=tasks).prefix_with("/* lock_tasks */")
LOCK_BY_ID = standing_query().where(IDENTIFIED, IS_TABLE).with_for_update(of=tasks).prefix_with("/* lock_tables */")
LOCK_ALL = standing_query().where(IS_TABLE).with_for_update(of=tasks).prefix_with("/* lock_all_tables */")
READ_ALL = standing_query().where(IS_TABLE).prefix_with("/* read_tables */")
READ_TASK = standing_query().where(NAMED).prefix_with("/* read_standing */")
LOCK_RUN = (
    select(runs.c.id)
    .where(runs.c.id == bindparam("run_id"))
    .with_for_update(key_share=True)
    .prefix_with("/* lock_run */")
)


@lru_cache
def config_of(settings: str) -> TableConfig:
    return TableConfig.from_json(json.loads(settings))


def standing_of(run: Run, row: Any) -> Standing:
    return Standing(
        row.id,
        row.name,
        UNLIMITED if row.settings is None else config_of(json.dumps(row.settings)),
        row.settings is not None or row.capacity is not None,
        Capacity() if row.capacity is None else Capacity.from_json(row.capacity),
        Lot(run.seed, row.name),
        Clock.read(row.race_time, row.race_time_behind),
        Clock.read(row.evict_time, row.evict_time_behind),
        int(row.weight_sum, 16),
        row.shutdowns,
        *(getattr(row, name) for name in SUMS),
    )


async def lock_tables(
    connection: AsyncConnection, run: Run, names: Iterable[str], *, all_of_run: bool = False
) -> dict[int, Standing]:
    """Lock those of the tasks that are tables, in the order of their ids, and return them by id.

    Where the run as a whole has a capacity, a writer locks the run and all its tables: any of them may have to give
    way. The epoch lock must be held, so that no task becomes a table meanwhile.
    """
    if all_of_run:
        await connection.execute(LOCK_RUN, {"run_id": run.id})
        rows = await connection.execute(LOCK_ALL, {"run_id": run.id})
    else:
        rows = await connection.execute(LOCK_TABLES, {"run_id": run.id, "names": sorted(set(names))})
    return {row.id: standing_of(run, row) for row in rows}


async def lock_tables_of(connection: AsyncConnection, run: Run, task_ids: Iterable[int]) -> dict[int, Standing]:
    rows = await connection.execute(LOCK_BY_ID, {"run_id": run.id, "task_ids": sorted(set(task_ids))})
    return {row.id: standing_of(run, row) for row in rows}


async def lock_for_growth(connection: AsyncConnection, run: Run, task_ids: Iterable[int]) -> dict[int, Standing]:
    """Lock tables by id, or all of a run that has a capacity: there any of them may have to give way."""
    capacity = select(runs.c.capacity).where(runs.c.id == run.id).prefix_with("/* read_capacity */")
    if (await connection.execute(capacity)).scalar() is None:
        return await lock_tables_of(connection, run, task_ids)
    return await lock_tables(connection, run, (), all_of_run=True)


async def lock_tasks(connection: AsyncConnection, run: Run, task_ids: Iterable[int]) -> dict[int, Standing]:
    """Lock tasks by id, tables or not."""
    rows = await connection.execute(LOCK_TASKS, {"run_id": run.id, "task_ids": sorted(task_ids)})
    return {row.id: standing_of(run, row) for row in rows}


async def read_tables(connection: AsyncConnection, run: Run) -> dict[int, Standing]:
    """Return all tables of the run as they are, without a lock."""
    return {row.id: standing_of(run, row) for row in await connection.execute(READ_ALL, {"run_id": run.id})}


async def read_standing(connection: AsyncConnection, run: Run, name: str, *, lock: bool = False) -> Standing | None:
    """Return a task's standing, table or not; None where the task does not exist."""
    query = LOCK_TASK if lock else READ_TASK
    row = (await connection.execute(query, {"run_id": run.id, "names": [name]})).first()
    return None if row is None else standing_of(run, row)
