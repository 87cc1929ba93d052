"""Moving a task's train step on and expiring what is past a threshold.

Whole groups flip by an index range and no byte is read; `partial` finds the few that keep fresh members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.records import Expiry
from sqlreplay.store.backend import Backend
from sqlreplay.store.columns import as_of_step
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


async def refresh_task(connection: AsyncConnection, backend: Backend, refresh: Refresh) -> Refreshed:
    """Set the train step and flip or drop what is past a threshold as a whole. The epoch lock must be held."""
    await connection.execute(
        update(tasks)
        .where(tasks.c.id == refresh.task_id)
        .values(train_step=refresh.step)
        .prefix_with("/* refresh_step */")
    )
    await note_refresh(connection, backend, refresh)
    await settle_ageless(connection, refresh)
    if not refresh.retryable:
        return await drop_past(connection, refresh)
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
    result = await connection.execute(flip.prefix_with("/* refresh_expire */"))
    return Refreshed(expired=result.rowcount)


async def note_refresh(connection: AsyncConnection, backend: Backend, refresh: Refresh) -> None:
    """Remember the step, so that rows of these statuses read as of now without being touched."""
    insert = backend.insert(refreshes).values(task_id=refresh.task_id, number=1, step=refresh.step)
    upsert = insert.on_conflict_do_update(
        index_elements=["task_id", "status"], set_={"number": refreshes.c.number + 1, "step": refresh.step}
    )
    looked_at = [{"status": status} for status in refresh.statuses if status != "expired"]
    if looked_at:
        await connection.execute(upsert.prefix_with("/* note_refresh */"), looked_at)


async def settle_ageless(connection: AsyncConnection, refresh: Refresh) -> None:
    """Send groups without steps to the end of the order, once each, the first time a refresh looks at them."""
    statuses = [status for status in refresh.statuses if status != "expired"]
    await connection.execute(
        update(groups)
        .where(
            groups.c.task_id == refresh.task_id,
            groups.c.status.in_(statuses),
            groups.c.oldest_step.is_(None),
            groups.c.stale_from_step < AGELESS,
            groups.c.lease_id.is_(None),
        )
        .values(stale_from_step=AGELESS, staleness=0)
        .prefix_with("/* settle_ageless */")
    )


async def drop_past(connection: AsyncConnection, refresh: Refresh) -> Refreshed:
    """Delete what would have expired; by the sample rule that includes what waits as expired and was looked at."""
    payload_ids: list[int] = []
    conditions = [and_(refresh.waiting(refresh.expiring), past) for past in refresh.past()]
    if refresh.expiry == "sample" and "expired" in refresh.statuses:
        conditions.append(refresh.waiting(["expired"]))
    for condition in conditions:
        statement = delete(groups).where(condition).returning(groups.c.payload_id)
        payload_ids += (await connection.execute(statement.prefix_with("/* refresh_drop */"))).scalars()
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
