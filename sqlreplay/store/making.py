"""Making a task a table, with the groups it already holds; and giving a run a capacity."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import TableConflict, TableFull
from sqlreplay.rules import Capacity, TableConfig
from sqlreplay.store.admission import Admission
from sqlreplay.store.backend import Backend
from sqlreplay.store.runs import Run, read_tasks
from sqlreplay.store.standing import NO_KEYS, TABLE_COLUMNS, Standing, lock_tables, read_tables
from sqlreplay.store.tables import groups, runs, tasks

__all__ = ["make_tables", "rekey", "settings_match", "shut_down"]

SLICE = 10_000
SET_KEYS = (
    update(groups)
    .where(groups.c.uid == bindparam("row"))
    .values({name: bindparam(f"new_{name}") for name in NO_KEYS})
    .prefix_with("/* rekey */")
)


async def settings_match(
    connection: AsyncConnection, run: Run, wanted: Mapping[str, TableConfig], capacity: Capacity
) -> bool:
    """Tell whether all is stored as asked already; raise `TableConflict` where something else is."""
    query = select(tasks.c.name, tasks.c.settings).where(
        tasks.c.run_id == run.id, tasks.c.name.in_(list(wanted)), tasks.c.settings.is_not(None)
    )
    stored = {row.name: TableConfig.from_json(row.settings) for row in await connection.execute(query)}
    for name, config in wanted.items():
        if name in stored and stored[name] != config:
            raise conflict(f"Table {name!r} of run {run.name!r}", stored[name], config, f"set_table({name!r}, ...)")
    found = (await connection.execute(select(runs.c.capacity).where(runs.c.id == run.id))).scalar()
    has = Capacity() if found is None else Capacity.from_json(found)
    if capacity.is_limited and has.is_limited and has != capacity:
        raise conflict(f"Run {run.name!r}", has, capacity, "set_capacity(...)")
    return len(stored) == len(wanted) and (has == capacity or not capacity.is_limited)


def conflict(what: str, stored: object, given: object, verb: str) -> TableConflict:
    return TableConflict(
        f"{what} was made with other settings. Stored: {stored!r}. Given: {given!r}. Open it with the stored ones, or "
        f"leave them out to take what is stored; await buffer.{verb} changes them for every process."
    )


async def make_tables(
    connection: AsyncConnection,
    backend: Backend,
    run: Run,
    wanted: Mapping[str, TableConfig],
    capacity: Capacity | None = None,
) -> list[int]:
    """Store settings, and give every group its keys: linear in what is there, once. Returns payloads of those that
    gave way to a capacity."""
    await backend.begin_epoch(connection, run.id)
    before = set(await read_tables(connection, run))
    states = await read_tasks(connection, backend, run, wanted) if wanted else {}
    for name, config in wanted.items():
        statement = update(tasks).where(tasks.c.id == states[name].id).values(settings=config.to_json())
        await connection.execute(statement.prefix_with("/* make_table */"))
    if capacity is not None:
        stored = capacity.to_json() if capacity.is_limited else None
        statement = update(runs).where(runs.c.id == run.id).values(capacity=stored)
        await connection.execute(statement.prefix_with("/* set_capacity */"))
    tables = await lock_tables(connection, run, wanted, all_of_run=capacity is not None)
    if capacity is not None and not capacity.is_limited:
        await forget_keys(connection, run)
    for task_id, table in tables.items():
        if task_id not in before:
            table.inserts = table.deletes = table.samples = table.evictions = 0
    return await rekey(connection, backend, tables)


async def rekey(connection: AsyncConnection, backend: Backend, tables: Mapping[int, Standing]) -> list[int]:
    """Count what tables hold anew and give every row new keys; what is more than a capacity gives way or is refused."""
    for table in tables.values():
        table.size = table.size_bytes = table.stream_size = table.weight_sum = 0
        after = 0
        while rows := await next_rows(connection, table, after):
            after = rows[-1].uid
            keys = []
            for row in rows:
                new = table.enter(row._mapping)
                keys.append({"row": row.uid, **{f"new_{name}": value for name, value in new.items()}})
            await connection.execute(SET_KEYS, keys)
        table.inserts += max(0, table.size - (table.inserts - table.deletes))
        table.deletes = table.inserts - table.size
    admission = Admission(connection, backend, dict(tables))
    for table in tables.values():
        for capacity, size, held_bytes in admission.capacities(table):
            over = capacity.overflow(size, held_bytes)
            if over is not None and capacity.on_full != "evict":
                raise TableFull(
                    f"{table.name!r} already holds more than {over} allows ({size} groups, {held_bytes} bytes). Take "
                    "groups out first, choose a larger capacity, or on_full='evict'."
                )
        await admission.make_room(table)
    await admission.finish()
    await admission.save()
    return admission.unused_payloads


async def next_rows(connection: AsyncConnection, table: Standing, after: int) -> list[Any]:
    query = (
        select(*TABLE_COLUMNS)
        .where(groups.c.task_id == table.id, groups.c.uid > after)
        .order_by(groups.c.uid)
        .limit(SLICE)
        .prefix_with("/* rekey_rows */")
    )
    return list((await connection.execute(query)).all())


async def forget_keys(connection: AsyncConnection, run: Run) -> None:
    """Tasks that were tables only because of the run's capacity are none any more."""
    plain = select(tasks.c.id).where(tasks.c.run_id == run.id, tasks.c.settings.is_(None))
    statement = update(groups).where(groups.c.task_id.in_(plain)).values(NO_KEYS)
    await connection.execute(statement.prefix_with("/* forget_keys */"))


async def shut_down(connection: AsyncConnection, run: Run, name: str) -> None:
    """Tell every process that holds this table open; one that opens it later is not concerned."""
    statement = update(tasks).where(tasks.c.run_id == run.id, tasks.c.name == name)
    await connection.execute(statement.values(shutdowns=tasks.c.shutdowns + 1).prefix_with("/* shut_down */"))
