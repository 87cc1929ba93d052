"""Runs and their tasks: one database serves many training runs, and every verb sees one."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.store.backend import Backend
from sqlreplay.store.tables import groups, refreshes, runs, tasks

__all__ = ["Run", "TaskState", "find_tasks", "holds_groups", "open_run", "raise_train_steps", "read_tasks", "set_seed"]


@dataclass
class Run:
    """A run as this process knows it. Tasks are never deleted, so their ids may be remembered."""

    id: int
    name: str
    uuid: str
    seed: str
    task_ids: dict[str, int] = field(default_factory=dict)


@dataclass
class TaskState:
    """What a writer must know of a task, read inside its transaction."""

    id: int
    train_step: int | None
    epoch: int
    is_table: bool
    has_run_capacity: bool
    refresh_numbers: dict[str, int]


async def open_run(connection: AsyncConnection, backend: Backend, name: str) -> Run:
    """Return the run of this name, created if need be; processes that ask at the same time get the same one."""
    query = select(runs.c.id, runs.c.uuid, runs.c.seed).where(runs.c.name == name).prefix_with("/* open_run */")
    row = (await connection.execute(query)).first()
    if row is None:
        create = backend.insert(runs).values(name=name, uuid=uuid.uuid4().hex, created_at=backend.clock())
        await connection.execute(create.on_conflict_do_nothing())
        row = (await connection.execute(query)).one()
    return Run(row.id, name, row.uuid, row.seed or row.uuid)


async def set_seed(connection: AsyncConnection, run: Run, seed: str) -> None:
    """Draw by this seed from now on."""
    await connection.execute(update(runs).where(runs.c.id == run.id).values(seed=seed).prefix_with("/* set_seed */"))


async def holds_groups(connection: AsyncConnection, run: Run) -> bool:
    query = select(exists().where(groups.c.task_id == tasks.c.id, tasks.c.run_id == run.id))
    return bool((await connection.execute(query)).scalar())


async def find_tasks(connection: AsyncConnection, run: Run, names: Iterable[str]) -> dict[str, int]:
    """Return the ids of those tasks that exist."""
    unknown = [name for name in names if name not in run.task_ids]
    if unknown:
        query = select(tasks.c.name, tasks.c.id).where(tasks.c.run_id == run.id, tasks.c.name.in_(unknown))
        for name, task_id in await connection.execute(query.prefix_with("/* find_tasks */")):
            run.task_ids[name] = task_id
    return {name: run.task_ids[name] for name in names if name in run.task_ids}


async def read_tasks(
    connection: AsyncConnection, backend: Backend, run: Run, names: Iterable[str]
) -> dict[str, TaskState]:
    """Return the state of tasks, each created if need be. The epoch lock must be held."""
    wanted = sorted(set(names))
    query = (
        select(
            tasks.c.id,
            tasks.c.name,
            tasks.c.train_step,
            runs.c.epoch,
            tasks.c.settings.is_not(None).label("is_table"),
            runs.c.capacity.is_not(None).label("has_run_capacity"),
            refreshes.c.status,
            refreshes.c.number,
        )
        .select_from(tasks.join(runs).outerjoin(refreshes))
        .where(tasks.c.run_id == run.id, tasks.c.name.in_(bindparam("names", expanding=True)))
        .prefix_with("/* read_tasks */")
    )
    states: dict[str, TaskState] = {}
    for row in await connection.execute(query, {"names": wanted}):
        state = states.setdefault(row.name, task_state(row))
        if row.status is not None:
            state.refresh_numbers[row.status] = row.number
    missing = [name for name in wanted if name not in states]
    if missing:
        create = backend.insert(tasks).values(run_id=run.id).on_conflict_do_nothing()
        await connection.execute(create, [{"name": name} for name in missing])
        states |= await read_tasks(connection, backend, run, missing)
    return states


def task_state(row: Any) -> TaskState:
    is_table = bool(row.is_table or row.has_run_capacity)
    return TaskState(row.id, row.train_step, row.epoch, is_table, bool(row.has_run_capacity), {})


async def raise_train_steps(connection: AsyncConnection, steps: dict[int, int]) -> None:
    """Move tasks (by id) forward to a train step; never back."""
    for task_id, step in sorted(steps.items()):
        await connection.execute(
            update(tasks)
            .where(tasks.c.id == task_id, (tasks.c.train_step < step) | tasks.c.train_step.is_(None))
            .values(train_step=step)
            .prefix_with("/* raise_train_steps */")
        )
