"""Drawing from a table: k entries of an index, whatever is stored.

A filter or another status is a race of its own over what matches: the stored keys and the clock do not move, so the
draws after it are as exact as those before.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, bindparam, delete, insert, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.errors import BadArgument
from sqlreplay.policy import Prioritized, Uniform
from sqlreplay.store.admission import MustWait
from sqlreplay.store.backend import Backend
from sqlreplay.store.claim import Claim, matching
from sqlreplay.store.columns import as_of_step
from sqlreplay.store.race import exact, shares
from sqlreplay.store.rows import with_free_keys
from sqlreplay.store.runs import Run
from sqlreplay.store.standing import TABLE_COLUMNS, Standing, lock_tasks, read_standing
from sqlreplay.store.tables import groups

__all__ = ["Draw", "Drawn", "ShutDown", "draw_groups", "look_before_draw", "undo_draw"]

READ = (*TABLE_COLUMNS, groups.c.race_key, groups.c.times_sampled, groups.c.expired_at_step)
ROW = (*READ, as_of_step.label("as_of_step"))
COUNTED = (
    update(groups)
    .where(groups.c.uid == bindparam("drawn"))
    .values(times_sampled=groups.c.times_sampled + 1)
    .prefix_with("/* drawn */")
)


NOT_COUNTED = (
    update(groups)
    .where(groups.c.uid == bindparam("drawn"))
    .values(times_sampled=groups.c.times_sampled - 1)
    .prefix_with("/* undo_drawn */")
)


class ShutDown(Exception):
    """The table was shut down after the caller opened it."""


@dataclass(frozen=True)
class Draw:
    """So many groups of a task. Of these, `fresh` are the oldest that were never drawn; the rest is the sampler's.

    `shutdowns` is how many the caller has seen; one more, and it gets `ShutDown`.
    """

    task_name: str
    count: int
    status: str = "completed"
    where: ColumnElement[bool] | None = None
    fresh: int = 0
    shutdowns: int | None = None

    @property
    def is_plain(self) -> bool:
        return self.where is None and self.status == "completed"

    def as_claim(self) -> Claim:
        return Claim(self.task_name, self.count, self.status, (), self.where)


@dataclass
class Drawn:
    """Rows in the order they were drawn, each with the probability that it had to be drawn first and its importance
    weight. What was drawn for the last time is in `removed`, as whole rows."""

    rows: list[Any]
    probabilities: list[float]
    weights: list[float]
    table_size: int
    removed: list[Any]

    @property
    def unused_payloads(self) -> list[int]:
        return [row.payload_id for row in self.removed]


def must_wait(standing: Standing | None, draw: Draw) -> MustWait | None:
    """Say why a draw cannot be done now, as far as the task's own row tells; refuse one that never can be."""
    if standing is None:
        return MustWait(f"{draw.task_name!r} holds no groups yet")
    if draw.shutdowns is not None and standing.shutdowns > draw.shutdowns:
        raise ShutDown
    if not standing.is_table:
        if draw.fresh:
            raise BadArgument(
                f"{draw.task_name!r} is no table, so it does not know what was never drawn. Type "
                f"tables={{{draw.task_name!r}: TableConfig()}} when you open the buffer."
            )
        return None
    rules = standing.rules
    for most in (rules.max_size, standing.run_capacity.max_size):
        if most is not None and draw.count > most:
            raise BadArgument(
                f"{draw.count} groups were asked of {draw.task_name!r}, which holds at most max_size={most}. "
                "Ask for fewer."
            )
    limiter = rules.rate_limiter
    if draw.count > limiter.largest_batch:
        raise BadArgument(
            f"{draw.count} groups were asked at once, and {limiter!r} lets at most {limiter.largest_batch:g} be drawn "
            "before it waits for inserts. Ask for fewer, or give it a larger error_buffer."
        )
    reason = limiter.sampling_must_wait(standing.counters, draw.count)
    if reason is None and draw.is_plain and standing.stream_size < draw.count:
        reason = f"{draw.count} groups were asked and {standing.stream_size} can be sampled"
    return None if reason is None else MustWait(f"table {draw.task_name!r}: {reason}")


async def look_before_draw(connection: AsyncConnection, run: Run, draw: Draw) -> MustWait | None:
    return must_wait(await read_standing(connection, run, draw.task_name), draw)


async def draw_groups(connection: AsyncConnection, backend: Backend, run: Run, draw: Draw) -> Drawn | MustWait:
    """Draw in one transaction: rows are counted, drawn anew or removed, and the task's row moves on."""
    await backend.join_epoch(connection, run.id)
    table = await read_standing(connection, run, draw.task_name, lock=True)
    wait = must_wait(table, draw)
    if wait is not None or table is None:
        return wait or MustWait("")
    fresh = await pick_fresh(connection, backend, table, draw) if draw.fresh else []
    if len(fresh) < draw.fresh:
        return MustWait(
            f"{draw.fresh} groups of {draw.task_name!r} that were never drawn were asked and {len(fresh)} are there"
        )
    weight_sum, number = table.weight_sum, table.stream_size
    for row in fresh:
        weight_sum -= exact(row.race_weight)
        number -= 1
    uses_keys = table.is_table and draw.status == "completed" and (draw.where is None or not table.by_lot)
    if uses_keys:
        rows = await pick_by_key(connection, backend, table, draw, {row.uid for row in fresh})
        weights = [row.race_weight for row in rows]
    else:
        rows, weights, weight_sum, number = await pick_by_lot(connection, backend, table, draw, fresh)
    if len(rows) < draw.count - len(fresh):
        return MustWait(
            f"{draw.count} groups were asked of {draw.task_name!r} and {len(rows) + len(fresh)} match that can be "
            "sampled"
        )
    probabilities = [1.0] * len(fresh)
    if table.by_lot:
        probabilities += shares(weights, weight_sum) if weight_sum else [1.0 / number for _ in rows]
    else:
        probabilities += [1.0] * len(rows)
    if uses_keys and table.by_lot:
        for row in last_of_each_race(rows):
            table.race.move_to(row.race_key)
    table_size = table.size if table.is_table else number
    removed = await count_draw(connection, backend, table, [*fresh, *rows], anew=uses_keys and table.by_lot)
    beta = getattr(table.rules.sampler, "beta", 0.0)
    importance = [1.0] * len(fresh) + importance_weights(probabilities[len(fresh) :], beta)
    return Drawn([*fresh, *rows], probabilities, importance, table_size, removed)


def last_of_each_race(rows: Sequence[Any]) -> list[Any]:
    """Rows come by key, those of weight 0 behind the others: return the last of either kind."""
    return [
        each[-1]
        for each in ([row for row in rows if row.race_weight], [row for row in rows if not row.race_weight])
        if each
    ]


def importance_weights(probabilities: Sequence[float], beta: float) -> list[float]:
    """Return `(N * p) ** -beta` by the largest of the batch. What could not have been drawn first counts in full."""
    smallest = min((probability for probability in probabilities if probability > 0), default=1.0)
    return [(smallest / probability) ** beta if probability > 0 else 1.0 for probability in probabilities]


async def pick_by_key(
    connection: AsyncConnection, backend: Backend, table: Standing, draw: Draw, fresh: set[int]
) -> list[Any]:
    """Return the first rows by their stored key, leaving out those picked as fresh."""
    query = by_key(backend) if draw.where is None else by_key(backend).where(draw.where)
    found = (await connection.execute(query, {"task": table.id, "count": draw.count})).all()
    rows = [row for row in found if row.uid not in fresh] if fresh else list(found)
    return rows[: draw.count - len(fresh)]


@lru_cache
def by_key(backend: Backend) -> Select[Any]:
    """Return the statement of every plain sample: building it costs as much as running it."""
    of_task, order_by = backend.walk_task(
        groups.c.task_id, bindparam("task"), (groups.c.race_key.asc(), groups.c.uid.asc())
    )
    return (
        select(*ROW)
        .where(of_task, groups.c.race_key.is_not(None))
        .order_by(*order_by)
        .limit(bindparam("count", type_=Integer))
        .prefix_with("/* sample */")
    )


async def pick_fresh(connection: AsyncConnection, backend: Backend, table: Standing, draw: Draw) -> list[Any]:
    """Return the oldest rows that were never drawn."""
    of_task, order_by = backend.walk_task(groups.c.task_id, table.id, (groups.c.uid.asc(),))
    query = (
        select(*ROW)
        .where(of_task, groups.c.race_key.is_not(None), groups.c.times_sampled == literal_column("0"))
        .order_by(*order_by)
        .limit(draw.fresh)
        .prefix_with("/* sample_fresh */")
    )
    if draw.where is not None:
        query = query.where(draw.where)
    return list((await connection.execute(query)).all())


async def pick_by_lot(
    connection: AsyncConnection, backend: Backend, table: Standing, draw: Draw, fresh: Sequence[Any]
) -> tuple[list[Any], list[float], int, int]:
    """Race what matches, once: linear in that. Returns rows, their weights, the sum of all and their number."""
    left_out = {row.uid for row in fresh}
    sampler = table.rules.sampler
    while True:
        query = candidates(table, draw)
        found = [row for row in (await connection.execute(query)).all() if row.uid not in left_out]
        wanted = draw.count - len(fresh)
        if isinstance(sampler, (Prioritized, Uniform)):
            weights = {row.uid: sampler.weight(row.priority) for row in found}
            first = heapq.nsmallest(wanted, ((place(table.draw(), weights[row.uid]), row.uid) for row in found))
            order = [uid for _, uid in first]
        else:
            weights = dict.fromkeys((row.uid for row in found), 1.0)
            keyed = ((sampler.key(row.uid, row.priority, row.stale_from_step), row.uid) for row in found)
            order = [uid for _, uid in heapq.nsmallest(wanted, keyed)]
        by_uid = {row.uid: row for row in await connection.execute(*fetch(backend, order))}
        if len(by_uid) == len(order) or table.is_table:
            break  # else a taker, who locks only tables, was faster: what is left is raced again
    total = sum(map(exact, weights.values()))
    return [by_uid[uid] for uid in order], [weights[uid] for uid in order], total, len(found)


def place(draw: float, weight: float) -> tuple[bool, float]:
    return (True, draw) if weight == 0 else (False, math.log(draw) - math.log(weight))


def candidates(table: Standing, draw: Draw) -> Select[Any]:
    return (
        select(groups.c.uid, groups.c.priority, groups.c.stale_from_step)
        .where(groups.c.task_id == table.id, matching(draw.as_claim()))
        .order_by(groups.c.uid)
        .prefix_with("/* sample_candidates */")
    )


def fetch(backend: Backend, uids: Sequence[int]) -> tuple[Select[Any], dict[str, Any]]:
    query = select(*ROW).where(backend.one_of(groups.c.uid, "uids")).with_for_update(of=groups)
    return query.prefix_with("/* sample_rows */"), {"uids": backend.id_list(uids)}


async def count_draw(
    connection: AsyncConnection, backend: Backend, table: Standing, rows: Sequence[Any], *, anew: bool
) -> list[Any]:
    """Count a draw in every row, with a new key where the race moved on; remove what was drawn for the last time.
    Returns those, as they were."""
    most = table.rules.max_times_sampled
    last = [row for row in rows if most and row.times_sampled + 1 >= most]
    stay = [row for row in rows if not most or row.times_sampled + 1 < most]
    table.samples += len(rows)
    for row in last:
        table.leave(row)
        table.deletes += 1
    removed: list[Any] = []
    if last:
        statement = delete(groups).where(backend.one_of(groups.c.uid, "uids")).returning(groups)
        uids = {"uids": backend.id_list([row.uid for row in last])}
        removed = list((await connection.execute(statement.prefix_with("/* drawn_out */"), uids)).all())
    if stay and anew:
        order = sorted(stay, key=lambda row: row.uid)
        keys = [table.race.key(table.draw(), row.race_weight) for row in order]
        await backend.count_drawn(connection, [row.uid for row in order], keys)
    elif stay:
        await connection.execute(COUNTED, [{"drawn": row.uid} for row in stay])
    await table.save(connection)
    return removed


async def undo_draw(connection: AsyncConnection, backend: Backend, run: Run, drawn: Drawn) -> None:
    """Put back what the draw removed, and count one draw less in the rest. Keys that moved on stay as they are."""
    await backend.join_epoch(connection, run.id)
    [(_, table)] = (await lock_tasks(connection, run, {row.task_id for row in drawn.rows})).items()
    table.samples -= len(drawn.rows)
    table.deletes -= len(drawn.removed)
    values = await with_free_keys(connection, [dict(row._mapping) for row in drawn.removed])
    if values:
        statement = insert(groups).prefix_with("/* undo_draw */")
        await connection.execute(statement, [{**value, **table.enter(value)} for value in values])
    gone = {row.uid for row in drawn.removed}
    stay = [{"drawn": row.uid} for row in drawn.rows if row.uid not in gone]
    if stay:
        await connection.execute(NOT_COUNTED, stay)
    await table.save(connection)
