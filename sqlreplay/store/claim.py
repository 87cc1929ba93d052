"""Taking groups: an ordered, limited, locked pick of narrow rows, deleted in the same short transaction.

The pick and the delete are two statements. The pick's own order is then the answer's order on both databases, where
RETURNING has none, and no plan can delete more than was picked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.store.backend import Backend
from sqlreplay.store.columns import as_of_step, staleness
from sqlreplay.store.tables import groups

__all__ = ["Claim", "Claimed", "OverBudget", "claim_groups", "has_enough", "matching"]


@dataclass(frozen=True)
class Claim:
    """So many groups of a task and status, in this order, of those that fit."""

    task_name: str
    count: int
    status: str
    order_by: tuple[ColumnElement[Any], ...]
    where: ColumnElement[bool] | None = None


@dataclass(frozen=True)
class Claimed:
    """Rows in order. `tokens_full` says that the budget, not the number, was what ended the pick."""

    rows: list[Any]
    tokens: int
    tokens_full: bool


class OverBudget(Exception):
    """The first group of a batch is larger than the whole budget of tokens: no later pick could get past it."""

    def __init__(self, uid: int, num_tokens: int) -> None:
        super().__init__(uid, num_tokens)
        self.uid = uid
        self.num_tokens = num_tokens


def matching(claim: Claim) -> ColumnElement[bool]:
    """Return the condition a row must meet to be claimed. What was set aside with an error is not handed out again."""
    conditions = [
        groups.c.status == claim.status,
        groups.c.lease_id.is_(None),
    ]
    if claim.status == "failed":
        conditions.append(groups.c.error.is_(None))
    if claim.where is not None:
        conditions.append(claim.where)
    return and_(*conditions)


def pick(backend: Backend, task_id: int, claim: Claim) -> Select[Any]:
    of_task, order_by = backend.walk_task(groups.c.task_id, task_id, claim.order_by)
    return (
        select(groups, staleness.label("staleness_now"), as_of_step.label("as_of_step"))
        .where(of_task, matching(claim))
        .order_by(*order_by)
        .limit(claim.count)
        .with_for_update(of=groups, skip_locked=True)
        .prefix_with("/* claim */")
    )


def measure(task_id: int, claim: Claim) -> Select[Any]:
    """Return the first groups in order with the tokens up to and including each."""
    running = func.sum(groups.c.num_tokens).over(order_by=claim.order_by, rows=(None, 0))
    return (
        select(groups.c.uid, groups.c.num_tokens, running.label("running_tokens"))
        .where(groups.c.task_id == task_id, matching(claim))
        .order_by(*claim.order_by)
        .limit(claim.count)
        .prefix_with("/* measure */")
    )


async def claim_groups(
    connection: AsyncConnection, backend: Backend, task_id: int, claim: Claim, tokens: int | None = None
) -> Claimed:
    """Remove up to `count` groups whose tokens stay within the budget, and return their rows in order."""
    query, parameters, tokens_full = pick(backend, task_id, claim), {}, False
    if tokens is not None:
        measured = (await connection.execute(measure(task_id, claim))).all()
        fitting = [row.uid for row in measured if row.running_tokens <= tokens]
        tokens_full = len(fitting) < len(measured)
        if tokens_full and not fitting:
            raise OverBudget(measured[0].uid, measured[0].num_tokens)
        query = query.where(backend.one_of(groups.c.uid, "fitting"))
        parameters = {"fitting": backend.id_list(fitting)}
    rows = list((await connection.execute(query, parameters)).all())
    if rows:
        remove = delete(groups).where(backend.one_of(groups.c.uid, "uids")).prefix_with("/* claim_remove */")
        await connection.execute(remove, {"uids": backend.id_list([row.uid for row in rows])})
    return Claimed(rows, sum(row.num_tokens for row in rows), tokens_full)


async def has_enough(connection: AsyncConnection, wanted: Sequence[tuple[int, Claim]]) -> bool:
    """Tell whether each task holds as many as asked, reading no further than that many index entries."""
    if all(claim.where is None and claim.status != "failed" for _, claim in wanted):
        parameters: dict[str, Any] = {}
        for number, (task_id, claim) in enumerate(wanted):
            parameters |= {
                f"task_{number}": task_id,
                f"status_{number}": claim.status,
                f"skip_{number}": claim.count - 1,
            }
        return bool((await connection.execute(plain_ready(len(wanted)), parameters)).scalar())
    checks = [
        exists(select(literal(1)).where(groups.c.task_id == task_id, matching(claim)).offset(claim.count - 1).limit(1))
        for task_id, claim in wanted
    ]
    return bool((await connection.execute(select(and_(*checks)).prefix_with("/* is_ready */"))).scalar())


@lru_cache(maxsize=64)
def plain_ready(count: int) -> Select[Any]:
    """Return the question for so many tasks without a filter. It is asked in every polling loop, and building it
    costs more than asking it."""
    checks = [
        exists(
            select(literal(1))
            .where(
                groups.c.task_id == bindparam(f"task_{number}"),
                groups.c.status == bindparam(f"status_{number}"),
                groups.c.lease_id.is_(None),
            )
            .offset(bindparam(f"skip_{number}", type_=Integer))
            .limit(literal_column("1"))
        )
        for number in range(count)
    ]
    return select(and_(*checks)).prefix_with("/* is_ready */")
