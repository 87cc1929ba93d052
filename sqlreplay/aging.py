"""A staleness refresh. Groups in which only some samples expire are decoded, reset in part and stored again."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlreplay.errors import PayloadError
from sqlreplay.groups import GroupForm, PutRules
from sqlreplay.store import Refresh, Rewrite, StoreThread

__all__ = ["refresh"]

logger = logging.getLogger("sqlreplay")
T = TypeVar("T")
SLICE = 64


async def refresh(
    thread: StoreThread, form: GroupForm[T], run: str, names: Iterable[str], plan_for: Callable[[int, str], Refresh]
) -> dict[str, int]:
    """Refresh tasks and return how many groups expired or were dropped, by task."""
    done = await thread.call(lambda: thread.store.refresh(run, plan_for, names))
    expired = {}
    for name in names:
        plan, result = done[name]
        newly = result.expired + await expire_in_part(thread, form, run, plan)
        if form.expiry == "sample" and "expired" in plan.statuses and plan.retryable:
            newly = await thread.call(lambda plan=plan: thread.store.expired_now(plan.task_id))  # type: ignore[misc]
        expired[name] = newly + result.dropped
    return expired


async def expire_in_part(thread: StoreThread, form: GroupForm[T], run: str, plan: Refresh) -> int:
    """Reset what is past a threshold and return how many groups newly expired.

    Each group is its own change, made only if the row is still what was read: one that was taken meanwhile is left
    alone. Killed half way, the rest waits for the next refresh.
    """
    expired, after = 0, 0
    while rows := await find(thread, plan, after):
        after = rows[-1].uid
        parts = await thread.call(lambda rows=rows: thread.store.read_parts(rows))  # type: ignore[misc]
        rewrites = []
        for row in rows:
            try:
                items = form.read(row, parts[row.payload_id])
            except PayloadError as error:
                logger.warning("a refresh left this group as it is: %s", error)
                continue
            rewrites.append(await rewritten(form, row, items, plan))
        changed = await thread.call(lambda rewrites=rewrites: thread.store.rewrite(run, rewrites))  # type: ignore[misc]
        before = {row.uid: row.status for row in rows}
        expired += sum(before[uid] != "expired" for uid in changed)
    return expired


async def find(thread: StoreThread, plan: Refresh, after: int) -> list[Any]:
    return await thread.call(lambda: thread.store.find_partial(plan, after, SLICE))


async def rewritten(form: GroupForm[T], row: Any, items: list[T], plan: Refresh) -> Rewrite:
    draft = form.draft(items, PutRules(None, plan.step, plan.threshold, plan.token_threshold))
    columns = {**draft.columns(), "stale_from_step": form.stale_from_after_expiry(row, draft)}
    parts = await form.encode(draft)
    return Rewrite(row.uid, draft.status, parts, columns, {"payload_id": row.payload_id, "status": row.status})
