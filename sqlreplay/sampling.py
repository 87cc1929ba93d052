"""From a request to samples in hand: groups that stay in the table, with what is known of each draw."""

import time
from collections.abc import Callable
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

T = TypeVar("T", default=RolloutState)


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


class Sample(NamedTuple, Generic[T]):
    """A group and how it was drawn: `for group, info in await buffer.sample(64, "math")`."""

    group: list[T]
    info: SampleInfo


class Sampling(Generic[T]):
    """How one buffer samples: its form of groups and its run."""

    def __init__(self, form: GroupForm[T], run: str) -> None:
        self._form = form
        self._run = run
        self.set_aside = 0

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
        fresh = round(number * checks.share("fresh_ratio", fresh_ratio))
        status = checks.status(group_status, self._form.status_type)
        return Draw(task_name, number, status, condition, fresh, shutdowns)

    async def sample(
        self, thread: StoreThread, asked: Draw, timeout: float | None, is_open: Callable[[], bool]
    ) -> list[Sample[T]]:
        """Draw and read. A group whose bytes do not read is set aside as failed, and another is drawn for it."""
        deadline = None if timeout is None else time.monotonic() + timeout
        samples: list[Sample[T]] = []
        uids: list[int] = []
        while len(samples) < asked.count:
            draw = asked
            if uids:
                others = thread.store.backend.none_of(GroupColumns(thread.store.backend).uid, uids)
                condition = others if asked.where is None else and_(asked.where, others)
                draw = replace(asked, count=asked.count - len(samples), fresh=0, where=condition)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            drawn, parts = await self._draw(thread, draw, left, timeout, is_open)
            samples += await self._read(thread, drawn, parts)
            uids += [row.uid for row in drawn.rows]
        return samples

    async def _draw(
        self,
        thread: StoreThread,
        draw: Draw,
        left: float | None,
        timeout: float | None,
        is_open: Callable[[], bool],
    ) -> tuple[Drawn, dict[int, list[Any]]]:
        wanted = True
        try:
            found = await thread.call(
                lambda: thread.store.tables.draw(self._run, draw, timeout=left, is_wanted=lambda: wanted and is_open()),
                undo=lambda found: thread.store.tables.undo_draw(self._run, found),
            )
        finally:
            wanted = False
        if isinstance(found, MustWait):
            raise SampleTimeout(f"No sample after {timeout:g} s. {found.reason}.")
        return found

    async def _read(self, thread: StoreThread, drawn: Drawn, parts: dict[int, list[Any]]) -> list[Sample[T]]:
        samples, damaged = [], []
        for row, probability, weight in zip(drawn.rows, drawn.probabilities, drawn.weights, strict=True):
            info = SampleInfo(row.uid, probability, drawn.table_size, row.priority, row.times_sampled + 1, weight)
            try:
                samples.append(Sample(self._form.read(row, parts[row.payload_id]), info))
            except PayloadError as error:
                damaged.append((row.uid, row.payload_id, str(error)[:1000]))
        if damaged:
            await thread.call(lambda: thread.store.set_aside(self._run, damaged))
            self.set_aside += len(damaged)
        thread.free_later(drawn.unused_payloads)
        return samples
