"""Counting and listing: statements that change nothing and read no payload page."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import BadArgument
from sqlreplay.store.columns import as_of_step, staleness
from sqlreplay.store.runs import Run
from sqlreplay.store.tables import groups, payloads, runs, tasks

__all__ = ["count_groups", "count_where", "find_orphans", "page", "size_of", "summarise"]


COUNT_ONE = (
    select(func.count())
    .where(
        groups.c.task_id == bindparam("task_id"), groups.c.status == bindparam("status"), groups.c.lease_id.is_(None)
    )
    .select_from(groups)
    .prefix_with("/* count */")
)


async def count_groups(
    connection: AsyncConnection, task_ids: Iterable[int], statuses: Iterable[str]
) -> dict[tuple[int, str], int]:
    """Return how many unleased groups each task has in each status; what has none is left out."""
    task_ids, statuses = list(task_ids), list(statuses)
    if len(task_ids) == len(statuses) == 1:
        found = await connection.execute(COUNT_ONE, {"task_id": task_ids[0], "status": statuses[0]})
        return {(task_ids[0], statuses[0]): found.scalar_one()}
    query = (
        select(groups.c.task_id, groups.c.status, func.count())
        .where(groups.c.task_id.in_(task_ids), groups.c.status.in_(statuses), groups.c.lease_id.is_(None))
        .group_by(groups.c.task_id, groups.c.status)
        .prefix_with("/* count */")
    )
    return {(task_id, status): count for task_id, status, count in await connection.execute(query)}


async def size_of(connection: AsyncConnection, run: Run) -> int:
    """Return how many groups the run holds: waiting and leased ones, each from its own index."""
    of_run = groups.c.task_id.in_(select(tasks.c.id).where(tasks.c.run_id == run.id))
    waiting, leased = (
        select(func.count()).select_from(groups).where(of_run, condition).scalar_subquery()
        for condition in (groups.c.lease_id.is_(None), groups.c.lease_id.is_not(None))
    )
    return int((await connection.execute(select(waiting + leased).prefix_with("/* size */"))).scalar_one())


async def page(
    connection: AsyncConnection,
    run: Run,
    where: ColumnElement[bool],
    *,
    order_by: ColumnElement[Any],
    descending: bool,
    limit: int | None,
    after: int | None,
) -> Sequence[Any]:
    """Return rows of the run in order, after the group `after`; ties go by uid, and missing values come last."""
    query = (
        select(
            groups,
            staleness.label("staleness_now"),
            as_of_step.label("as_of_step"),
            tasks.c.name.label("task_name"),
        )
        .select_from(groups.join(tasks))
        .where(tasks.c.run_id == run.id, where)
        .limit(limit)
        .prefix_with("/* page */")
    )
    if order_by is groups.c.uid:
        query = query.order_by(groups.c.uid.desc() if descending else groups.c.uid)
        if after is not None:
            query = query.where(groups.c.uid < after if descending else groups.c.uid > after)
    else:
        query = query.order_by((order_by.desc() if descending else order_by.asc()).nulls_last(), groups.c.uid)
        if after is not None:
            query = query.where(await beyond(connection, order_by, descending, after))
    return (await connection.execute(query)).all()


async def beyond(
    connection: AsyncConnection, order_by: ColumnElement[Any], descending: bool, after: int
) -> ColumnElement[bool]:
    """Return the condition for rows that come later in this order than the row `after`."""
    place = select(order_by).select_from(groups.join(tasks)).where(groups.c.uid == after)
    at = (await connection.execute(place)).first()
    if at is None:
        raise BadArgument(
            f"after={after}: that group is gone, so its place in this order is unknown. Leave order_by out to page by "
            "uid, which works from any number."
        )
    value, later = at[0], groups.c.uid > after
    if value is None:
        return and_(order_by.is_(None), later)
    further = order_by < value if descending else order_by > value
    return or_(further, and_(order_by == value, later), order_by.is_(None))


async def count_where(connection: AsyncConnection, run: Run, where: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(groups.join(tasks)).where(tasks.c.run_id == run.id, where)
    return int((await connection.execute(query.prefix_with("/* count_where */"))).scalar_one())


async def summarise(connection: AsyncConnection, run: Run) -> Sequence[Any]:
    """Return one row for each task, status and whether leased, with its numbers and those of the task's own row."""
    query = (
        select(
            tasks.c.name,
            tasks.c.train_step,
            tasks.c.settings,
            tasks.c.size,
            tasks.c.size_bytes,
            tasks.c.inserts,
            tasks.c.samples.label("times_drawn"),
            tasks.c.deletes,
            tasks.c.evictions,
            runs.c.capacity,
            groups.c.status,
            groups.c.lease_id.is_not(None).label("leased"),
            func.count(groups.c.uid).label("groups"),
            func.coalesce(func.sum(groups.c.num_samples), 0).label("samples"),
            func.coalesce(func.sum(groups.c.num_tokens), 0).label("tokens"),
            func.coalesce(func.sum(groups.c.size_bytes), 0).label("bytes"),
            func.avg(staleness).label("staleness_mean"),
            func.max(staleness).label("staleness_max"),
            func.min(groups.c.created_at).label("oldest_at"),
            func.count(groups.c.error).label("errors"),
        )
        .select_from(tasks.join(runs).outerjoin(groups))
        .where(tasks.c.run_id == run.id)
        .group_by(tasks.c.id, runs.c.id, groups.c.status, groups.c.lease_id.is_not(None))
        .order_by(tasks.c.name, groups.c.status)
        .prefix_with("/* stats */")
    )
    return (await connection.execute(query)).all()


async def find_orphans(connection: AsyncConnection) -> Sequence[int]:
    """Payloads that no group points to: a taker that died between reading and freeing leaves these."""
    query = select(payloads.c.payload_id).except_(select(groups.c.payload_id))
    return (await connection.execute(query)).scalars().all()
