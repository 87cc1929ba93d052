"""Waiting for the database to change: at once for what this process does, by looking for what others do."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlreplay.errors import StoreClosed
from sqlreplay.store.admission import MustWait

__all__ = ["Waiters"]

T = TypeVar("T")
POLL_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class Waiters:
    """Those who wait on one store's loop."""

    def __init__(self, name: Any) -> None:
        self._name = name
        self._events: set[asyncio.Event] = set()
        self.is_closing = False

    def notify(self) -> None:
        """Something changed: everyone looks again."""
        for event in self._events:
            event.set()

    def close(self) -> None:
        """End every wait."""
        self.is_closing = True
        self.notify()

    async def until(
        self,
        attempt: Callable[[float], Awaitable[T | MustWait]],
        timeout: float | None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> T | MustWait:
        """Try until it need not wait, or the deadline has passed; None is no deadline. `attempt` gets the seconds
        left. The last reason to wait is the answer where time ran out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        event = asyncio.Event()
        self._events.add(event)
        polls = iter(POLL_S)
        try:
            while True:
                event.clear()
                left = float("inf") if deadline is None else deadline - time.monotonic()
                found = await attempt(left)
                if not isinstance(found, MustWait) or left <= 0:
                    return found
                if self.is_closing or not is_wanted():
                    raise StoreClosed(f"The store at {self._name} was closed while a call waited; nothing was done.")
                try:
                    await asyncio.wait_for(event.wait(), min(left, next(polls, POLL_S[-1])))
                except TimeoutError:
                    continue
        finally:
            self._events.discard(event)
