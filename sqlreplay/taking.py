"""From a request to groups in hand: which rows to claim, and what becomes of their bytes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sqlalchemy import and_

from sqlreplay import checks
from sqlreplay.errors import BadArgument, PayloadError
from sqlreplay.groups import GroupForm
from sqlreplay.policy import Policy
from sqlreplay.query import compile_query, parse_query
from sqlreplay.records import status_value
from sqlreplay.store import FIELDS, Batch, Claim, GroupColumns, OverBudget, StoreThread

__all__ = ["Taking", "shortage"]

T = TypeVar("T")
DECODE_ASIDE_BYTES = 4 * 2**20


class Taking(Generic[T]):
    """How one buffer takes: its policy, its form of groups and its run."""

    def __init__(self, form: GroupForm[T], policy: Policy, run: str, done: Counter[str]) -> None:
        self._form = form
        self._policy = policy
        self._run = run
        self._done = done

    def claims(self, thread: StoreThread, sizes: Mapping[str, int], group_status: Any, where: Any) -> list[Claim]:
        """Turn batch sizes into claims: the policy's order, and its condition and the caller's together."""
        checks.batch_sizes(sizes)
        columns = GroupColumns(thread.store.backend)
        plan = self._policy.plan(columns)
        conditions = [] if plan.where is None else [plan.where]
        if where is not None:
            conditions.append(compile_query(parse_query(where, FIELDS), columns))
        condition = and_(*conditions) if conditions else None
        status = checks.status(group_status, self._form.status_type)
        return [Claim(name, size, status, tuple(plan.order_by), condition) for name, size in sizes.items()]

    async def take(
        self,
        thread: StoreThread,
        claims: Sequence[Claim],
        *,
        max_tokens: int | None,
        train_step: int | None,
        timeout: float | None,
        require_full: bool,
        is_open: Callable[[], bool],
    ) -> dict[str, list[list[T]]] | None:
        """Claim and decode; None where all was required and not all was there."""
        wanted = True
        try:
            batch = await thread.call(
                lambda: thread.store.claim(
                    self._run,
                    claims,
                    max_tokens=max_tokens,
                    train_step=train_step,
                    timeout=timeout,
                    require_full=require_full,
                    is_wanted=lambda: wanted and is_open(),
                ),
                undo=lambda batch: self._release(thread, batch),
            )
        except OverBudget as error:
            raise BadArgument(
                f"Group {error.uid} is next in order and alone has {error.num_tokens} tokens, more than "
                f"max_tokens={max_tokens}. Raise max_tokens, or leave such groups where they are with "
                f"where={{'num_tokens': {{'$lte': {max_tokens}}}}}."
            ) from error
        finally:
            wanted = False
        return await self.unpack(thread, batch, claims) if batch.full else None

    async def _release(self, thread: StoreThread, batch: Batch) -> None:
        await thread.store.put_back(self._run, batch.all_rows())

    async def unpack(self, thread: StoreThread, batch: Batch, claims: Sequence[Claim]) -> dict[str, list[list[T]]]:
        """Decode what was claimed. A group whose bytes do not read is set aside as failed and the next one in order
        takes its place; if anything else goes wrong, all rows go back where they were."""
        good: dict[str, list[list[T]]] = {claim.task_name: [] for claim in claims}
        held = batch
        try:
            while damaged := await self._decode(batch, good):
                for name, row, error in damaged:
                    held.rows[name].remove(row)
                    await self._set_aside(thread, row, error)
                missing = Counter(name for name, _, _ in damaged)
                refill = [
                    replace(claim, count=missing[claim.task_name]) for claim in claims if missing[claim.task_name]
                ]
                batch = await self._claim_more(thread, refill)
                held = held.joined(batch)
        except BaseException:
            thread.spawn(lambda: self._release(thread, held))
            raise
        thread.free([row.payload_id for row in held.all_rows()])
        return good

    async def _decode(self, batch: Batch, good: dict[str, list[list[T]]]) -> list[tuple[str, Any, PayloadError]]:
        """Append what reads to `good`, and return what does not. Large batches are read beside the caller's loop."""

        def decode() -> list[tuple[str, Any, PayloadError]]:
            damaged = []
            for name, rows in batch.rows.items():
                for row in rows:
                    try:
                        good[name].append(self._form.read(row, batch.parts[row.payload_id]))
                    except PayloadError as error:
                        damaged.append((name, row, error))
            return damaged

        if sum(row.size_bytes for row in batch.all_rows()) > DECODE_ASIDE_BYTES:
            return await asyncio.to_thread(decode)
        return decode()

    async def _set_aside(self, thread: StoreThread, row: Any, error: PayloadError) -> None:
        changes = {"status": "failed", "error": str(error)[:1000]}
        await thread.call(lambda: thread.store.put_back(self._run, [row], **changes))
        self._done["set_aside"] += 1

    async def _claim_more(self, thread: StoreThread, claims: Sequence[Claim]) -> Batch:
        return await thread.call(
            lambda: thread.store.claim(self._run, claims), undo=lambda batch: self._release(thread, batch)
        )


def shortage(
    sizes: Mapping[str, int],
    waiting: Mapping[str, Mapping[Any, int]],
    group_status: Any,
    timeout: float | None,
    *,
    filtered: bool,
) -> str:
    """Say what was asked and what was there instead."""
    asked = status_value(group_status)
    lines = []
    for name, size in sizes.items():
        by_status = {status_value(status): count for status, count in waiting[name].items()}
        held = {status: count for status, count in by_status.items() if count} or "none"
        lines.append(f"{name}: asked {size} {asked}, found {by_status[asked]}, waiting by status {held}")
    hint = " Of these, only what the filter matches counts." if filtered else ""
    return f"Not all was there after {timeout or 0:g} s, and nothing was taken. {'; '.join(lines)}.{hint}"
