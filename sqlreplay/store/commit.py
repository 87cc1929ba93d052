"""Group commit: puts that wait together ride in one transaction, and each returns only after its own commit."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sqlreplay.errors import OutcomeUnknown, SchemaError, StoreBusy, StoreClosed, StoreUnavailable
from sqlreplay.store.admission import MustWait, Stored
from sqlreplay.store.rows import NewGroup, Outcome

__all__ = ["GroupCommit", "Soon"]

CLOSED = "The buffer was closed while a put was on its way; it was not stored."
MAX_GROUPS = 512
MAX_BYTES = 32 * 2**20

Soon = Callable[[Callable[[], None]], None]
Insert = Callable[[str, list[NewGroup]], Awaitable[list[Outcome]]]


@dataclass
class Waiting:
    """A put and the caller that waits for it, on the caller's own loop."""

    run_name: str
    group: NewGroup
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Stored | MustWait]"


class GroupCommit:
    """A queue that any thread may join and the I/O thread empties.

    Joining wakes the I/O thread only where it is not already on its way, and outcomes go back in one call to each
    loop: with many puts at once the cost of crossing threads is shared.
    """

    def __init__(self, soon: Soon, insert: Insert) -> None:
        self._soon = soon
        self._insert = insert
        self._queue: deque[Waiting] = deque()
        self._joining: set[asyncio.AbstractEventLoop] = set()
        self._woken = False
        self._emptying: asyncio.Task[None] | None = None
        self._finished = False

    def join(self, run_name: str, group: NewGroup) -> "asyncio.Future[Stored | MustWait]":
        """Queue a put from any thread; the future belongs to the running loop."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(run_name, group, loop, loop.create_future())
        self._queue.append(waiting)
        if loop not in self._joining:
            self._joining.add(loop)
            loop.call_soon(self._joined, loop)
        return waiting.future

    def _joined(self, loop: asyncio.AbstractEventLoop) -> None:
        """All puts that the caller's loop had ready have joined: one wake-up serves them, and the I/O thread does not
        compete for the interpreter with a caller that is still encoding."""
        self._joining.discard(loop)
        if not self._woken:
            self._woken = True
            try:
                self._soon(self._wake)
            except StoreClosed:
                self._refuse_all()

    def _wake(self) -> None:
        self._woken = False
        if self._finished:
            self._refuse_all()
        elif self._queue and (self._emptying is None or self._emptying.done()):
            self._emptying = asyncio.create_task(self._empty())

    def _refuse_all(self) -> None:
        late, self._queue = list(self._queue), deque()
        deliver(late, [StoreClosed(CLOSED)] * len(late))

    async def _empty(self) -> None:
        while batch := self._next_batch():
            await self._commit(batch)

    def _next_batch(self) -> list[Waiting]:
        """Pick what fits into one transaction. A put whose caller gave up before this moment is not stored."""
        batch: list[Waiting] = []
        size = 0
        while self._queue and len(batch) < MAX_GROUPS and size < MAX_BYTES:
            if batch and self._queue[0].run_name != batch[0].run_name:
                break
            waiting = self._queue.popleft()
            if not waiting.future.cancelled():
                batch.append(waiting)
                size += waiting.group.size_bytes
        return batch

    async def _commit(self, batch: list[Waiting]) -> None:
        """Store a batch. If the database refuses it, each put is tried alone, so that only the bad one fails."""
        try:
            outcomes = await self._insert(batch[0].run_name, [waiting.group for waiting in batch])
        except (OutcomeUnknown, SchemaError, StoreBusy, StoreUnavailable) as error:
            deliver(batch, [error] * len(batch))
        except Exception as error:
            if len(batch) == 1:
                deliver(batch, [error])
            else:
                for waiting in batch:
                    await self._commit([waiting])
        else:
            deliver(batch, outcomes)

    async def close(self) -> None:
        """Store what is queued; what comes later is refused."""
        self._wake()
        if self._emptying is not None:
            await self._emptying
        self._finished = True
        self._wake()


def deliver(batch: list[Waiting], outcomes: list[Any]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Stored | MustWait], Any]]] = {}
    for waiting, outcome in zip(batch, outcomes, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(settle, settled)
        except RuntimeError:  # the caller's loop was closed: nobody waits for the answer any more
            continue


def settle(settled: list[tuple["asyncio.Future[Stored | MustWait]", Any]]) -> None:
    for future, outcome in settled:
        if future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
