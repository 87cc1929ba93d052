"""Group rows and payload parts going in and out, one transaction's worth at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Select, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.store.backend import Backend
from sqlreplay.store.runs import Run, TaskState, raise_train_steps, read_tasks
from sqlreplay.store.tables import groups, payloads, refreshes, tasks

__all__ = [
    "KEPT_PARTS",
    "NewGroup",
    "PayloadPart",
    "Rewrite",
    "delete_groups",
    "free_payloads",
    "insert_groups",
    "put_back",
    "read_parts",
    "rewrite_groups",
]

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


def stale_from(columns: dict[str, Any], train_step: int | None) -> int:
    """Return the step from which a group counts as stale. One without steps takes the place its staleness gives it."""
    oldest: int | None = columns["oldest_step"]
    return oldest + 1 if oldest is not None else (train_step or 0) - int(columns["staleness"])


async def insert_groups(connection: AsyncConnection, backend: Backend, run: Run, new: Sequence[NewGroup]) -> list[int]:
    """Store groups and return their uids. Bytes go first: they are the slow part, and need no lock."""
    uids = list(await backend.draw_ids(connection, len(new)))
    await insert_parts(connection, zip(uids, (group.parts for group in new), strict=True))
    await backend.join_epoch(connection, run.id)
    states = await read_tasks(connection, backend, run, (group.task_name for group in new))
    await raise_train_steps(connection, later_steps(new, states))
    rows = []
    for uid, group in zip(uids, new, strict=True):
        state = states[group.task_name]
        rows.append(
            {
                "uid": uid,
                "task_id": state.id,
                "status": group.status,
                "stale_from_step": stale_from(
                    group.columns, state.train_step if group.train_step is None else group.train_step
                ),
                "refresh_number": state.refresh_numbers.get(group.status, 0),
                "size_bytes": group.size_bytes,
                "payload_id": uid,
                "born_epoch": state.epoch,
                "written_epoch": state.epoch,
                **group.columns,
            }
        )
    await connection.execute(insert(groups).values(created_at=backend.clock()).prefix_with("/* put */"), rows)
    return uids


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
    query = select(payloads).where(backend.one_of(payloads.c.payload_id, "ids"))
    if kept_only:
        query = query.where(payloads.c.part < KEPT_PARTS)
    found: dict[int, list[Any]] = {payload_id: [] for payload_id in payload_ids}
    for row in await connection.execute(query.prefix_with("/* read_parts */"), {"ids": backend.id_list(payload_ids)}):
        found[row.payload_id].append(row)
    return found


async def free_payloads(connection: AsyncConnection, backend: Backend, payload_ids: Sequence[int]) -> None:
    await connection.execute(
        delete(payloads).where(backend.one_of(payloads.c.payload_id, "ids")).prefix_with("/* free_payloads */"),
        {"ids": backend.id_list(payload_ids)},
    )


async def put_back(connection: AsyncConnection, rows: Sequence[Any], **changes: Any) -> None:
    """Insert claimed rows again as they were, with the same uid and so the same place, but for `changes`."""
    values = [{**{column.name: getattr(row, column.name) for column in groups.c}, **changes} for row in rows]
    await connection.execute(insert(groups).prefix_with("/* put_back */"), values)


async def delete_groups(connection: AsyncConnection, backend: Backend, run: Run, uids: Sequence[int]) -> list[int]:
    """Delete groups of the run that are not leased and return their payload ids."""
    statement = (
        delete(groups)
        .where(
            backend.one_of(groups.c.uid, "uids"),
            groups.c.task_id.in_(tasks_of(run)),
            groups.c.lease_id.is_(None),
        )
        .returning(groups.c.payload_id)
        .prefix_with("/* delete */")
    )
    return list((await connection.execute(statement, {"uids": backend.id_list(uids)})).scalars())


async def rewrite_groups(
    connection: AsyncConnection, backend: Backend, run: Run, rewrites: Sequence[Rewrite]
) -> list[tuple[int, int]]:
    """Give groups new bytes and columns in place. Returns (uid, payload id no longer used) for those changed."""
    payload_ids = list(await backend.draw_ids(connection, len(rewrites)))
    await backend.join_epoch(connection, run.id)
    changed: list[tuple[int, int]] = []
    for payload_id, rewrite in zip(payload_ids, rewrites, strict=True):
        row = (await connection.execute(look_before_rewrite(run, rewrite))).first()
        if row is None:
            continue
        await insert_parts(connection, [(payload_id, rewrite.parts)])
        columns = {"stale_from_step": stale_from(rewrite.columns, row.train_step), **rewrite.columns}
        await connection.execute(
            update(groups)
            .where(groups.c.uid == rewrite.uid)
            .values(
                status=rewrite.status,
                payload_id=payload_id,
                size_bytes=sum(len(part.body) for part in rewrite.parts),
                refresh_number=row.number or 0,
                expired_at_step=None,
                **columns,
            )
            .prefix_with("/* rewrite */")
        )
        changed.append((row.uid, row.payload_id))
    return changed


def look_before_rewrite(run: Run, rewrite: Rewrite) -> Select[Any]:
    """Lock the row if it is still what the caller saw, and read what the new columns depend on."""
    same_status = (refreshes.c.task_id == groups.c.task_id) & (refreshes.c.status == rewrite.status)
    return (
        select(groups.c.uid, groups.c.payload_id, tasks.c.train_step, refreshes.c.number)
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
