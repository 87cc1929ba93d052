"""From a request to samples in hand: groups that stay in the table, with what is known of each draw."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from sqlalchemy import and_
from typing_extensions import TypeVar

from sqlreplay import checks
from sqlreplay.errors import BadArgument, PayloadError, SampleTimeout
from sqlreplay.groups import GroupForm
from sqlreplay.query import compile_query, parse_query
from sqlreplay.records import RolloutState
from sqlreplay.store import FIELDS, Draw, Drawn, GroupColumns, MustWait, StoreThread

__all__ = ["Sample", "SampleInfo", "Sampling"]

T = TypeVar("T")
Group = TypeVar("Group", default=list[RolloutState])


class SampleInfo(NamedTuple):
    """What is known of a draw.

    `probability` is that of being drawn first, from all that could have been. `times_sampled` counts this draw.
    `weight` is the importance weight for the sampler's `beta`, 1.0 for the least likely of the batch.
    """

    uid: int
    probability: float
    table_size: int
    priority: float
    times_sampled: int
    weight: float


class Sample(NamedTuple, Generic[Group]):
    """A group and how it was drawn: `for group, info in await buffer.sample(64, "math")`."""

    group: Group
    info: SampleInfo


class Sampling(Generic[T]):
    """How one buffer samples: its form of groups and its run."""

    def __init__(self, form: GroupForm[T], run: str, done: Counter[str]) -> None:
        self._form = form
        self._run = run
        self._done = done

    def asked(
        self,
        thread: StoreThread,
        count: int,
        task_name: str,
        group_status: Any,
        where: Any,
        *,
        fresh_ratio: float = 0.0,
        shutdowns: int | None = None,
    ) -> Draw:
        """Check what was asked and turn it into a draw."""
        checks.text("task_name", task_name)
        number = checks.whole_number("the number of groups", count)
        if number < 1:
            raise BadArgument(f"{number} groups were asked, expected 1 or more.")
        condition = None
        if where is not None:
            condition = compile_query(parse_query(where, FIELDS), GroupColumns(thread.store.backend))
        fresh = math.floor(number * checks.share("fresh_ratio", fresh_ratio) + 0.5)
        status = checks.status(group_status, self._form.status_type)
        return Draw(task_name, number, status, condition, fresh, shutdowns)

    async def sample(
        self, thread: StoreThread, asked: Draw, timeout: float | None, is_open: Callable[[], bool]
    ) -> list[Sample[Any]]:
        """Draw and read. A group whose bytes do not read is set aside as failed, and another is drawn for it; if none
        comes in time, nothing was drawn."""
        deadline = None if timeout is None else time.monotonic() + timeout
        samples: list[Sample[Any]] = []
        held: list[Drawn] = []
        try:
            while len(samples) < asked.count:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                drawn, parts = await self._draw(thread, self._missing(thread, asked, held), left, timeout, is_open)
                held.append(drawn)
                samples += await self._read(thread, drawn, parts)
        except BaseException:
            for drawn in held:
                thread.spawn(lambda drawn=drawn: thread.store.tables.undo_draw(self._run, drawn))  # type: ignore[misc]
            raise
        for drawn in held:
            thread.free_later(drawn.unused_payloads)
        self._done["sampled"] += len(samples)
        return samples

    @staticmethod
    def _missing(thread: StoreThread, asked: Draw, held: Sequence[Drawn]) -> Draw:
        """Return the draw for what is not there yet, of groups that are not there yet."""
        if not held:
            return asked
        uids = [row.uid for drawn in held for row in drawn.rows]
        others = thread.store.backend.none_of(GroupColumns(thread.store.backend).uid, uids)
        condition = others if asked.where is None else and_(asked.where, others)
        return replace(asked, count=asked.count - len(uids), fresh=0, where=condition)

    async def _draw(
        self,
        thread: StoreThread,
        draw: Draw,
        left: float | None,
        timeout: float | None,
        is_open: Callable[[], bool],
    ) -> tuple[Drawn, dict[int, list[Any]]]:
        wanted = True

        async def undo(found: tuple[Drawn, Any] | MustWait) -> None:
            if not isinstance(found, MustWait):
                await thread.store.tables.undo_draw(self._run, found[0])

        try:
            found = await thread.call(
                lambda: thread.store.tables.draw(self._run, draw, timeout=left, is_wanted=lambda: wanted and is_open()),
                undo=undo,
            )
        finally:
            wanted = False
        if isinstance(found, MustWait):
            raise SampleTimeout(f"No sample after {timeout:g} s. {found.reason}.")
        return found

    async def _read(self, thread: StoreThread, drawn: Drawn, parts: dict[int, list[Any]]) -> list[Sample[Any]]:
        """Decode what was drawn. What does not read is set aside, and no longer part of the draw."""
        samples: list[Sample[Any]] = []
        damaged: dict[int, tuple[int, str]] = {}
        for row, probability, weight in zip(drawn.rows, drawn.probabilities, drawn.weights, strict=True):
            info = SampleInfo(row.uid, probability, drawn.table_size, row.priority, row.times_sampled + 1, weight)
            try:
                samples.append(Sample(self._form.read(row, parts[row.payload_id]), info))
            except PayloadError as error:
                damaged[row.uid] = (row.payload_id, str(error)[:1000])
        if damaged:
            await self._set_aside(thread, drawn, damaged)
        return samples

    async def _set_aside(self, thread: StoreThread, drawn: Drawn, damaged: dict[int, tuple[int, str]]) -> None:
        gone = [row for row in drawn.removed if row.uid in damaged]
        drawn.rows = [row for row in drawn.rows if row.uid not in damaged]
        drawn.removed = [row for row in drawn.removed if row.uid not in damaged]
        for row in gone:
            changes = {"status": "failed", "error": damaged.pop(row.uid)[1]}
            await thread.call(lambda row=row, changes=changes: thread.store.put_back(self._run, [row], **changes))  # type: ignore[misc]
        there = [(uid, payload_id, error) for uid, (payload_id, error) in damaged.items()]
        if there:
            await thread.call(lambda: thread.store.set_aside(self._run, there))
        self._done["set_aside"] += len(there) + len(gone)
