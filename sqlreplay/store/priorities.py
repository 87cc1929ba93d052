"""New priorities for groups that are there, many in one transaction."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.store.backend import Backend
from sqlreplay.store.runs import Run
from sqlreplay.store.standing import NO_KEYS, TABLE_COLUMNS, read_standing
from sqlreplay.store.tables import groups

__all__ = ["update_priorities"]

NEW_PRIORITY = (
    update(groups)
    .where(groups.c.uid == bindparam("row"))
    .values(priority=bindparam("new_priority"))
    .prefix_with("/* update_priorities */")
)
NEW_KEYS = NEW_PRIORITY.values({name: bindparam(f"new_{name}") for name in NO_KEYS})


async def update_priorities(
    connection: AsyncConnection, backend: Backend, run: Run, task_name: str, priorities: Mapping[int, float]
) -> list[int]:
    """Set priorities by uid, each with a new key, and return the uids that are not in the task."""
    await backend.join_epoch(connection, run.id)
    table = await read_standing(connection, run, task_name, lock=True)
    if table is None:
        return sorted(priorities)
    query = select(*TABLE_COLUMNS).where(backend.one_of(groups.c.uid, "uids"), groups.c.task_id == table.id)
    query = query.order_by(groups.c.uid).with_for_update().prefix_with("/* priorities_of */")
    rows = (await connection.execute(query, {"uids": backend.id_list(list(priorities))})).all()
    changes: list[dict[str, Any]] = []
    for row in rows:
        change = {"row": row.uid, "new_priority": priorities[row.uid]}
        if table.is_table:
            table.leave_stream(row.race_weight)
            keys = table.keys({**row._mapping, "priority": priorities[row.uid]})
            change |= {f"new_{name}": value for name, value in keys.items()}
        changes.append(change)
    if changes:
        await connection.execute(NEW_KEYS if table.is_table else NEW_PRIORITY, changes)
    if table.is_table:
        await table.save(connection)
    return sorted(set(priorities) - {row.uid for row in rows})
