"""Group rows and payload parts going in and out, one transaction's worth at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from sqlalchemy import Select, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import TableFull
from sqlreplay.store.admission import Admission, MustWait, Stored
from sqlreplay.store.backend import Backend
from sqlreplay.store.runs import Run, TaskState, raise_train_steps, read_tasks
from sqlreplay.store.standing import NO_KEYS, TABLE_COLUMNS, Standing, lock_for_growth, lock_tables, lock_tables_of
from sqlreplay.store.tables import groups, payloads, refreshes, tasks

__all__ = [
    "KEPT_PARTS",
    "Inserted",
    "NewGroup",
    "Outcome",
    "PayloadPart",
    "Rewrite",
    "Rewritten",
    "delete_groups",
    "free_payloads",
    "insert_groups",
    "put_back",
    "read_parts",
    "rewrite_groups",
    "rows_of",
    "save_all",
    "set_aside",
    "with_free_keys",
]

Outcome = Stored | MustWait | Exception
KEPT_PARTS = 65536
"""Parts below this number are what survives a reset; the response starts here."""


class PayloadPart(Protocol):
    """A piece of a group's bytes, small enough for a value in either database."""

    @property
    def part(self) -> int: ...
    @property
    def body(self) -> Any: ...
    @property
    def raw_size(self) -> int: ...
    @property
    def checksum(self) -> int: ...


@dataclass
class NewGroup:
    """A group on its way in: its bytes, and the columns that its samples decide."""

    task_name: str
    status: str
    parts: Sequence[PayloadPart]
    columns: dict[str, Any]
    train_step: int | None = None
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = sum(len(part.body) for part in self.parts)


@dataclass
class Rewrite:
    """New bytes and columns for a group that is there; nothing happens unless it still has `expected`."""

    uid: int
    status: str
    parts: Sequence[PayloadPart]
    columns: dict[str, Any]
    expected: dict[str, Any] = field(default_factory=dict)


@dataclass
class Rewritten:
    """The groups that were still there, and the payloads that nobody needs any more."""

    uids: list[int]
    unused_payloads: list[int]


def stale_from(columns: dict[str, Any], train_step: int | None) -> int:
    """Return the step from which a group counts as stale. One without steps takes the place its staleness gives it."""
    oldest: int | None = columns["oldest_step"]
    return oldest + 1 if oldest is not None else (train_step or 0) - int(columns["staleness"])


@dataclass
class Inserted:
    """What became of each group, in order, and the payloads of those that gave way."""

    outcomes: list[Outcome]
    unused_payloads: list[int]


async def insert_groups(connection: AsyncConnection, backend: Backend, run: Run, new: Sequence[NewGroup]) -> Inserted:
    """Store groups. Bytes go first: they are the slow part, and need no lock."""
    uids = list(await backend.draw_ids(connection, len(new)))
    await insert_parts(connection, zip(uids, (group.parts for group in new), strict=True))
    await backend.join_epoch(connection, run.id)
    states = await read_tasks(connection, backend, run, (group.task_name for group in new))
    tables: dict[int, Standing] = {}
    if any(state.is_table for state in states.values()):
        all_of_run = any(state.has_run_capacity for state in states.values())
        tables = await lock_tables(connection, run, states, all_of_run=all_of_run)
    admission = Admission(connection, backend, tables)
    outcomes: list[Outcome] = []
    for uid, group in zip(uids, new, strict=True):
        row = new_row(uid, group, states[group.task_name])
        if row["task_id"] in tables:
            outcomes.append(await admission.admit(row))
        else:
            admission.pending[uid] = row
            outcomes.append(Stored(uid))
    await admission.finish()
    await admission.save()
    if admission.unseen_payloads:
        await free_payloads(connection, backend, admission.unseen_payloads)
    stored = [group for group, outcome in zip(new, outcomes, strict=True) if isinstance(outcome, Stored)]
    await raise_train_steps(connection, later_steps(stored, states))
    return Inserted(outcomes, admission.unused_payloads)


def new_row(uid: int, group: NewGroup, state: TaskState) -> dict[str, Any]:
    train_step = state.train_step if group.train_step is None else group.train_step
    return {
        "uid": uid,
        "task_id": state.id,
        "status": group.status,
        "stale_from_step": stale_from(group.columns, train_step),
        "refresh_number": state.refresh_numbers.get(group.status, 0),
        "size_bytes": group.size_bytes,
        "payload_id": uid,
        "lease_id": None,
        "client_key": None,
        "born_epoch": state.epoch,
        "written_epoch": state.epoch,
        **NO_KEYS,
        **group.columns,
    }


def later_steps(new: Iterable[NewGroup], states: dict[str, TaskState]) -> dict[int, int]:
    steps: dict[int, int] = {}
    for group in new:
        state = states[group.task_name]
        if group.train_step is not None and (state.train_step is None or state.train_step < group.train_step):
            steps[state.id] = max(group.train_step, steps.get(state.id, group.train_step))
    return steps


async def insert_parts(connection: AsyncConnection, payload: Iterable[tuple[int, Sequence[PayloadPart]]]) -> None:
    rows = [
        {
            "payload_id": payload_id,
            "part": part.part,
            "raw_size": part.raw_size,
            "checksum": part.checksum,
            "body": part.body,
        }
        for payload_id, parts in payload
        for part in parts
    ]
    await connection.execute(insert(payloads).prefix_with("/* put_parts */"), rows)


async def read_parts(
    connection: AsyncConnection, backend: Backend, payload_ids: Sequence[int], *, kept_only: bool
) -> dict[int, list[Any]]:
    """Return the parts of each payload; one that is gone has none."""
    found: dict[int, list[Any]] = {payload_id: [] for payload_id in payload_ids}
    query = parts_query(backend, kept_only)
    for row in (await connection.execute(query, {"ids": backend.id_list(payload_ids)})).all():
        found[row.payload_id].append(row)
    return found


@lru_cache
def parts_query(backend: Backend, kept_only: bool) -> Select[Any]:
    query = select(payloads).where(backend.one_of(payloads.c.payload_id, "ids")).prefix_with("/* read_parts */")
    return query.where(payloads.c.part < KEPT_PARTS) if kept_only else query


async def free_payloads(connection: AsyncConnection, backend: Backend, payload_ids: Sequence[int]) -> None:
    await connection.execute(
        delete(payloads).where(backend.one_of(payloads.c.payload_id, "ids")).prefix_with("/* free_payloads */"),
        {"ids": backend.id_list(payload_ids)},
    )


async def put_back(
    connection: AsyncConnection, backend: Backend, run: Run, rows: Sequence[Any], **changes: Any
) -> None:
    """Insert claimed rows again as they were, with the same uid and so the same place, but for `changes`.

    They were counted before and come back uncalled, so no limiter holds them up; what is over a capacity by then
    gives way at the next put.
    """
    await backend.join_epoch(connection, run.id)
    tables = await lock_tables_of(connection, run, (row.task_id for row in rows))
    values = []
    for row in rows:
        value = {**{column.name: getattr(row, column.name) for column in groups.c}, **changes}
        if row.task_id in tables:
            tables[row.task_id].taken([row], sign=-1)
            value |= tables[row.task_id].enter(value)
        values.append(value)
    await connection.execute(insert(groups).prefix_with("/* put_back */"), await with_free_keys(connection, values))
    await save_all(connection, tables)


async def with_free_keys(connection: AsyncConnection, values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that come back, without a key where another group has it by now."""
    checked: list[dict[str, Any]] = []
    for value in values:
        if value["client_key"] is not None:
            same = (groups.c.task_id == value["task_id"]) & (groups.c.client_key == value["client_key"])
            query = select(groups.c.uid).where(same).prefix_with("/* key_is_free */")
            again = (value["task_id"], value["client_key"]) in {
                (each["task_id"], each["client_key"]) for each in checked
            }
            if again or (await connection.execute(query)).first() is not None:
                value = {**value, "client_key": None}
        checked.append(value)
    return checked


async def set_aside(
    connection: AsyncConnection, backend: Backend, run: Run, damaged: Sequence[tuple[int, int, str]]
) -> None:
    """Mark groups (uid, payload id, error) whose bytes do not read as failed; they stay, and are not handed out
    again. One that has other bytes by now is left alone."""
    await backend.join_epoch(connection, run.id)
    errors = {(uid, payload_id): error for uid, payload_id, error in damaged}
    uids = [uid for uid, _, _ in damaged]
    found = await rows_of(connection, backend, run, uids)
    tables = await lock_tables_of(connection, run, (row.task_id for row in found))
    for row in await rows_of(connection, backend, run, uids):
        if (row.uid, row.payload_id) not in errors:
            continue
        keys = dict(NO_KEYS)
        if row.task_id in tables:
            tables[row.task_id].leave_stream(row.race_weight)
            keys["evict_key"] = row.evict_key
        statement = update(groups).where(groups.c.uid == row.uid)
        statement = statement.values(status="failed", error=errors[row.uid, row.payload_id], **keys)
        await connection.execute(statement.prefix_with("/* set_aside */"))
    await save_all(connection, tables)


async def rows_of(connection: AsyncConnection, backend: Backend, run: Run, uids: Sequence[int]) -> Sequence[Any]:
    """Return what tables must know of these groups of the run, but for leased ones."""
    query = select(*TABLE_COLUMNS).where(
        backend.one_of(groups.c.uid, "uids"), groups.c.task_id.in_(tasks_of(run)), groups.c.lease_id.is_(None)
    )
    return (await connection.execute(query.prefix_with("/* rows_of */"), {"uids": backend.id_list(uids)})).all()


async def save_all(connection: AsyncConnection, tables: dict[int, Standing]) -> None:
    for _, table in sorted(tables.items()):
        await table.save(connection)


async def delete_groups(connection: AsyncConnection, backend: Backend, run: Run, uids: Sequence[int]) -> list[int]:
    """Delete groups of the run that are not leased and return their payload ids."""
    await backend.join_epoch(connection, run.id)
    found = await rows_of(connection, backend, run, uids)
    tables = await lock_tables_of(connection, run, (row.task_id for row in found))
    statement = (
        delete(groups)
        .where(
            backend.one_of(groups.c.uid, "uids"),
            groups.c.task_id.in_(tasks_of(run)),
            groups.c.lease_id.is_(None),
        )
        .returning(*TABLE_COLUMNS)
        .prefix_with("/* delete */")
    )
    gone = (await connection.execute(statement, {"uids": backend.id_list(uids)})).all()
    for row in gone:
        if row.task_id in tables:
            tables[row.task_id].leave(row)
            tables[row.task_id].deletes += row.status != "archived"
    await save_all(connection, tables)
    return [row.payload_id for row in gone]


async def rewrite_groups(
    connection: AsyncConnection, backend: Backend, run: Run, rewrites: Sequence[Rewrite]
) -> Rewritten:
    """Give groups new bytes and columns in place."""
    payload_ids = list(await backend.draw_ids(connection, len(rewrites)))
    await backend.join_epoch(connection, run.id)
    found = await rows_of(connection, backend, run, [rewrite.uid for rewrite in rewrites])
    tables = await lock_for_growth(connection, run, (row.task_id for row in found))
    done = Rewritten([], [])
    for payload_id, rewrite in zip(payload_ids, rewrites, strict=True):
        row = (await connection.execute(look_before_rewrite(run, rewrite))).first()
        if row is None:
            continue
        await insert_parts(connection, [(payload_id, rewrite.parts)])
        columns = {
            "status": rewrite.status,
            "stale_from_step": stale_from(rewrite.columns, row.train_step),
            "payload_id": payload_id,
            "size_bytes": sum(len(part.body) for part in rewrite.parts),
            "refresh_number": row.number or 0,
            "expired_at_step": None,
            **rewrite.columns,
        }
        if row.task_id in tables:
            table = tables[row.task_id]
            table.check_fits(columns["size_bytes"])
            size = table.size
            table.leave(row)
            columns |= table.enter({**row._mapping, **columns})
            table.deletes += size - table.size  # what is archived no longer counts
        statement = update(groups).where(groups.c.uid == rewrite.uid).values(columns)
        await connection.execute(statement.prefix_with("/* rewrite */"))
        done.uids.append(row.uid)
        done.unused_payloads.append(row.payload_id)
    await keep_within(connection, backend, tables, done)
    return done


async def keep_within(
    connection: AsyncConnection, backend: Backend, tables: dict[int, Standing], done: Rewritten
) -> None:
    """Groups that grew may be more than a capacity in bytes allows: others give way, or all stays as it was."""
    admission = Admission(connection, backend, tables)
    for table in tables.values():
        for capacity, size, held_bytes in admission.capacities(table):
            over = capacity.overflow(size, held_bytes)
            if over is not None and capacity.on_full != "evict":
                raise TableFull(f"{table.name!r} has no room for the larger groups: {over}. Nothing was changed.")
        await admission.make_room(table)
    await admission.finish()
    await admission.save()
    done.unused_payloads += admission.unused_payloads


def look_before_rewrite(run: Run, rewrite: Rewrite) -> Select[Any]:
    """Lock the row if it is still what the caller saw, and read what the new columns depend on."""
    same_status = (refreshes.c.task_id == groups.c.task_id) & (refreshes.c.status == rewrite.status)
    return (
        select(*TABLE_COLUMNS, tasks.c.train_step, refreshes.c.number)
        .select_from(groups.join(tasks).outerjoin(refreshes, same_status))
        .where(
            groups.c.uid == rewrite.uid,
            tasks.c.run_id == run.id,
            groups.c.lease_id.is_(None),
            *(groups.c[name] == value for name, value in rewrite.expected.items()),
        )
        .with_for_update(of=groups)
        .prefix_with("/* look_before_rewrite */")
    )


def tasks_of(run: Run) -> Select[Any]:
    return select(tasks.c.id).where(tasks.c.run_id == run.id)
