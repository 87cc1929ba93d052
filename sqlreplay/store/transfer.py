"""Carrying a whole run from one database to another: plain data out, and in again under the same uids."""

from typing import Annotated, Any

import msgspec
from sqlalchemy import and_, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import BadArgument, RunNotEmpty
from sqlreplay.store.backend import Backend
from sqlreplay.store.columns import as_of_step, staleness
from sqlreplay.store.making import rekey
from sqlreplay.store.rows import KEPT_PARTS, insert_parts
from sqlreplay.store.runs import Run, TaskState, holds_groups, read_tasks
from sqlreplay.store.standing import lock_tables
from sqlreplay.store.tables import groups, payloads, refreshes, tasks

__all__ = ["StoredGroup", "StoredPart", "StoredRun", "export_run", "import_run"]

Uid = Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class StoredPart(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a group's bytes."""

    part: int
    raw_size: int
    checksum: int
    body: bytes


class StoredGroup(msgspec.Struct, forbid_unknown_fields=True):
    """A group by itself. `as_of_step` is that of the last refresh which looked at the row, where one has."""

    uid: Uid
    task_name: str
    status: str
    staleness: int
    as_of_step: int | None
    stale_from_step: int
    oldest_step: int | None
    latest_step: int | None
    token_fresh_step: int | None
    expired_at_step: int | None
    priority: float
    times_sampled: int
    num_samples: int
    num_tokens: int
    reward_mean: float | None
    reward_std: float | None
    client_key: str | None
    created_at: float
    meta: dict[str, Any] | None
    error: str | None
    parts: list[StoredPart]
    solve_rate: float | None = None


class StoredRun(msgspec.Struct, forbid_unknown_fields=True):
    """The train step of each task, and all groups by uid."""

    tasks: dict[str, int | None]
    groups: list[StoredGroup]


COLUMNS = [name for name in StoredGroup.__struct_fields__ if name in groups.c and name != "staleness"]


async def export_run(connection: AsyncConnection, run: Run) -> StoredRun:
    """Read a run with all its bytes. It is one statement, so it shows one moment whatever others do."""
    survives = or_(groups.c.expired_at_step.is_(None), payloads.c.part < KEPT_PARTS)
    query = (
        select(
            tasks.c.name.label("task_name"),
            tasks.c.train_step,
            *(groups.c[name] for name in COLUMNS),
            staleness.label("staleness"),
            as_of_step.label("as_of_step"),
            *(payloads.c[name] for name in StoredPart.__struct_fields__),
        )
        .select_from(
            tasks.outerjoin(groups).outerjoin(payloads, and_(payloads.c.payload_id == groups.c.payload_id, survives))
        )
        .where(tasks.c.run_id == run.id)
        .prefix_with("/* export_run */")
    )
    train_steps: dict[str, int | None] = {}
    found: dict[int, StoredGroup] = {}
    for row in await connection.execute(query):
        train_steps[row.task_name] = row.train_step
        if row.uid is None:
            continue
        if row.uid not in found:
            fields = {name: getattr(row, name) for name in StoredGroup.__struct_fields__ if name != "parts"}
            found[row.uid] = StoredGroup(**fields, parts=[])
        if row.part is not None:
            found[row.uid].parts.append(StoredPart(row.part, row.raw_size, row.checksum, row.body))
    for group in found.values():
        group.parts.sort(key=lambda part: part.part)
    return StoredRun(dict(sorted(train_steps.items())), [found[uid] for uid in sorted(found)])


async def import_run(connection: AsyncConnection, backend: Backend, run: Run, stored: StoredRun) -> None:
    """Write a run's groups under the uids they have; what is drawn from now on is larger than all of them.

    Their bytes get new ids: the old ones may belong to another run's bytes here, or to some that are about to be freed.
    """
    await backend.begin_epoch(connection, run.id)
    if await holds_groups(connection, run):
        raise RunNotEmpty(
            f"Run {run.name!r} already holds groups, and a saved state goes into an empty run only. "
            "Open the storage with another run= name, or delete what is there."
        )
    states = await read_tasks(connection, backend, run, stored.tasks)
    for name, train_step in stored.tasks.items():
        statement = update(tasks).where(tasks.c.id == states[name].id).values(train_step=train_step)
        await connection.execute(statement.prefix_with("/* import_train_step */"))
    if not stored.groups:
        return
    uids = [group.uid for group in stored.groups]
    await refuse_taken_uids(connection, backend, uids)
    await backend.advance_ids(connection, max(uids))
    payload_ids = await backend.draw_ids(connection, len(uids))
    await insert_parts(connection, zip(payload_ids, (group.parts for group in stored.groups), strict=True))
    await restore_refreshes(connection, backend, states, stored.groups)
    rows = [
        {
            **{name: getattr(group, name) for name in COLUMNS},
            "staleness": group.staleness,
            "task_id": states[group.task_name].id,
            "refresh_number": refresh_number(states[group.task_name], group),
            "size_bytes": sum(len(part.body) for part in group.parts),
            "payload_id": payload_id,
            "born_epoch": states[group.task_name].epoch,
            "written_epoch": states[group.task_name].epoch,
        }
        for payload_id, group in zip(payload_ids, stored.groups, strict=True)
    ]
    try:
        await connection.execute(insert(groups).prefix_with("/* import_groups */"), rows)
    except IntegrityError as error:
        raise taken_uids([]) from error
    await rekey(connection, backend, await lock_tables(connection, run, stored.tasks))


async def refuse_taken_uids(connection: AsyncConnection, backend: Backend, uids: list[int]) -> None:
    query = (
        select(groups.c.uid)
        .where(backend.one_of(groups.c.uid, "uids"))
        .order_by(groups.c.uid)
        .limit(5)
        .prefix_with("/* find_taken_uids */")
    )
    taken = (await connection.execute(query, {"uids": backend.id_list(uids)})).scalars().all()
    if taken:
        raise taken_uids(list(taken))


def taken_uids(examples: list[int]) -> BadArgument:
    found = f" (such as {', '.join(map(str, examples))})" if examples else ""
    return BadArgument(
        f"Another run of this database has groups with uids of the saved state{found}, and a uid names one group only. "
        "Nothing was loaded. Load it into another database: another SQLite file, or another postgres_schema=."
    )


async def restore_refreshes(
    connection: AsyncConnection, backend: Backend, states: dict[str, TaskState], stored: list[StoredGroup]
) -> None:
    """Let the last refresh of each task and status be the one that these groups were read as of."""
    steps = {(group.task_name, group.status): group.as_of_step for group in stored if group.as_of_step is not None}
    for (name, status), step in sorted(steps.items()):
        state = states[name]
        number = state.refresh_numbers[status] = state.refresh_numbers.get(status, 0) + 1
        statement = backend.insert(refreshes).values(task_id=state.id, status=status, number=number, step=step)
        statement = statement.on_conflict_do_update(
            index_elements=["task_id", "status"], set_={"number": number, "step": step}
        )
        await connection.execute(statement.prefix_with("/* restore_refreshes */"))


def refresh_number(state: TaskState, group: StoredGroup) -> int:
    """A row that a refresh has looked at is older than that refresh; any other is as new."""
    number = state.refresh_numbers.get(group.status, 0)
    return number if group.as_of_step is None else number - 1
