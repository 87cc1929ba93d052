"""Moving a task's train step on and expiring what is past a threshold.

Whole groups flip by an index range and no byte is read; `partial` finds the few that keep fresh members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, Select, Update, and_, case, delete, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.policy import Staleness, whole_key
from sqlreplay.records import Expiry
from sqlreplay.store.backend import Backend
from sqlreplay.store.columns import as_of_step
from sqlreplay.store.standing import TABLE_COLUMNS, Standing
from sqlreplay.store.tables import AGELESS, groups, refreshes, tasks

__all__ = ["Refresh", "Refreshed", "expired_now", "partial_queries", "refresh_task"]


@dataclass(frozen=True)
class Refresh:
    """What to refresh of one task. `statuses` are those looked at; thresholds are None where they do not apply."""

    task_id: int
    step: int
    threshold: int | None
    token_threshold: int | None
    retryable: bool
    statuses: tuple[str, ...]
    expiry: Expiry

    @property
    def expiring(self) -> list[str]:
        """Statuses that can newly expire."""
        return [status for status in self.statuses if status in ("completed", "aborted")]

    def waiting(self, statuses: Sequence[str]) -> ColumnElement[bool]:
        return and_(groups.c.task_id == self.task_id, groups.c.status.in_(statuses), groups.c.lease_id.is_(None))

    def past_sequence(self) -> ColumnElement[bool]:
        """At least one sample is past the sequence threshold."""
        assert self.threshold is not None  # noqa: S101 - asked only where there is one
        return and_(groups.c.stale_from_step <= self.step - self.threshold, groups.c.oldest_step.is_not(None))

    def past_token(self) -> ColumnElement[bool]:
        """At least one sample has no token left that is fresh enough to train on."""
        assert self.token_threshold is not None  # noqa: S101 - asked only where there is one
        return and_(
            groups.c.token_fresh_step.is_not(None),
            groups.c.token_fresh_step <= self.step - 1 - self.token_threshold,
        )

    def past(self) -> list[ColumnElement[bool]]:
        conditions = []
        if self.threshold is not None:
            conditions.append(self.past_sequence())
        if self.token_threshold is not None:
            conditions.append(self.past_token())
        return conditions


@dataclass
class Refreshed:
    """How many groups newly expired or were dropped, and the payloads that nobody needs any more."""

    expired: int = 0
    dropped: int = 0
    payload_ids: tuple[int, ...] = ()


async def refresh_task(
    connection: AsyncConnection, backend: Backend, refresh: Refresh, table: Standing | None
) -> Refreshed:
    """Set the train step and flip or drop what is past a threshold as a whole. The epoch lock must be held."""
    await connection.execute(
        update(tasks)
        .where(tasks.c.id == refresh.task_id)
        .values(train_step=refresh.step)
        .prefix_with("/* refresh_step */")
    )
    await note_refresh(connection, backend, refresh)
    await settle_ageless(connection, refresh, table)
    if not refresh.retryable:
        return await drop_past(connection, refresh, table)
    if refresh.threshold is None or not refresh.expiring:
        return Refreshed()
    flip = update(groups).where(refresh.waiting(refresh.expiring), refresh.past_sequence())
    flip = flip.values(
        status="expired", expired_at_step=refresh.step, staleness=refresh.step - groups.c.stale_from_step
    )
    if refresh.expiry == "sample":
        flip = flip.where(groups.c.latest_step <= refresh.step - 1 - refresh.threshold).values(
            stale_from_step=AGELESS, oldest_step=None, latest_step=None, token_fresh_step=None
        )
        if table is not None and table.evicts and isinstance(table.rules.remover, Staleness):
            flip = flip.values(evict_key=whole_key(AGELESS))
    flip = flip.prefix_with("/* refresh_expire */")
    if table is None:
        return Refreshed(expired=(await connection.execute(flip)).rowcount)
    return Refreshed(expired=await flip_in_table(connection, flip, table))


async def flip_in_table(connection: AsyncConnection, flip: Update, table: Standing) -> int:
    """What expires can no longer be sampled. RETURNING gives new values, so the weights are read before."""
    assert flip.whereclause is not None  # noqa: S101 - a refresh names its rows
    weights = select(groups.c.race_weight).where(flip.whereclause).prefix_with("/* expiring_weights */")
    for weight in (await connection.execute(weights)).scalars():
        table.leave_stream(weight)
    expired = (await connection.execute(flip.values(race_weight=None, race_key=None))).rowcount
    await table.save(connection)
    return expired


async def note_refresh(connection: AsyncConnection, backend: Backend, refresh: Refresh) -> None:
    """Remember the step, so that rows of these statuses read as of now without being touched."""
    insert = backend.insert(refreshes).values(task_id=refresh.task_id, number=1, step=refresh.step)
    upsert = insert.on_conflict_do_update(
        index_elements=["task_id", "status"], set_={"number": refreshes.c.number + 1, "step": refresh.step}
    )
    looked_at = [{"status": status} for status in refresh.statuses if status != "expired"]
    if looked_at:
        await connection.execute(upsert.prefix_with("/* note_refresh */"), looked_at)


async def settle_ageless(connection: AsyncConnection, refresh: Refresh, table: Standing | None) -> None:
    """Send groups without steps to the end of the order, once each, the first time a refresh looks at them."""
    statuses = [status for status in refresh.statuses if status != "expired"]
    keys: dict[str, Any] = {}
    if table is not None:
        last = whole_key(AGELESS)
        for column, selector in ((groups.c.race_key, table.rules.sampler), (groups.c.evict_key, table.rules.remover)):
            if isinstance(selector, Staleness):
                keys[column.name] = case((column.is_not(None), literal(last, LargeBinary)))
    await connection.execute(
        update(groups)
        .where(
            groups.c.task_id == refresh.task_id,
            groups.c.status.in_(statuses),
            groups.c.oldest_step.is_(None),
            groups.c.stale_from_step < AGELESS,
            groups.c.lease_id.is_(None),
        )
        .values(stale_from_step=AGELESS, staleness=0, **keys)
        .prefix_with("/* settle_ageless */")
    )


async def drop_past(connection: AsyncConnection, refresh: Refresh, table: Standing | None) -> Refreshed:
    """Delete what would have expired; by the sample rule that includes what waits as expired and was looked at."""
    payload_ids: list[int] = []
    conditions = [and_(refresh.waiting(refresh.expiring), past) for past in refresh.past()]
    if refresh.expiry == "sample" and "expired" in refresh.statuses:
        conditions.append(refresh.waiting(["expired"]))
    for condition in conditions:
        statement = delete(groups).where(condition).returning(*TABLE_COLUMNS)
        gone = (await connection.execute(statement.prefix_with("/* refresh_drop */"))).all()
        payload_ids += [row.payload_id for row in gone]
        if table is not None:
            for row in gone:
                table.leave(row)
            table.deletes += len(gone)
            await table.save(connection)
    return Refreshed(dropped=len(payload_ids), payload_ids=tuple(payload_ids))


def partial_queries(refresh: Refresh, after: int, limit: int) -> list[Select[Any]]:
    """Return queries for groups in which some samples, but not the group as a whole, are past a threshold."""
    if not refresh.retryable:
        return []
    if refresh.expiry == "group":
        searches = [] if refresh.token_threshold is None else [(refresh.expiring, refresh.past_token())]
    else:
        searches = [
            (refresh.expiring + [status for status in refresh.statuses if status == "expired"], past)
            for past in refresh.past()
        ]
    return [
        select(groups, as_of_step.label("as_of_step"))
        .where(refresh.waiting(statuses), past, groups.c.uid > after)
        .order_by(groups.c.uid)
        .limit(limit)
        .prefix_with("/* find_partial */")
        for statuses, past in searches
        if statuses
    ]


async def expired_now(connection: AsyncConnection, task_id: int) -> int:
    query = select(func.count()).where(
        groups.c.task_id == task_id, groups.c.status == "expired", groups.c.lease_id.is_(None)
    )
    return int((await connection.execute(query.prefix_with("/* expired_now */"))).scalar_one())
