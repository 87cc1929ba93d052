"""A handle on a store: the I/O thread that serves it in this process, joined with the first verb."""

import asyncio
import os
from concurrent.futures import Future

from sqlreplay.config import StoreConfig
from sqlreplay.errors import StoreClosed
from sqlreplay.store import StoreThread

__all__ = ["StoreHandle"]


class StoreHandle:
    """Opens lazily, in every process it finds itself in."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._handles: dict[int, tuple[StoreThread]] = {}
        self._closed = False

    def is_open(self) -> bool:
        """Tell whether verbs may still be called."""
        return not self._closed

    async def close(self) -> None:
        """Store what was put, give back the connections. Further verbs raise `StoreClosed`."""
        closing = self._leave()
        if closing is not None:
            await asyncio.wrap_future(closing)

    def close_and_wait(self) -> None:
        """Close from code that has no event loop."""
        closing = self._leave()
        if closing is not None:
            closing.result()

    def _leave(self) -> "Future[None] | None":
        self._closed = True
        handle = self._handles.pop(os.getpid(), None)
        return handle[0].leave() if handle is not None else None

    def joined_thread(self) -> StoreThread:
        """Return the thread that serves this buffer in this process, started if need be.

        Callers that come first at the same time agree through one dict, with no lock that a fork could leave held.
        """
        if self._closed:
            raise StoreClosed(f"{self!r} was closed. Open a new one.")
        held = self._handles.get(os.getpid())
        if held is None:
            mine = (StoreThread.join(self._config),)
            held = self._handles.setdefault(os.getpid(), mine)
            if held is not mine:
                mine[0].leave()
        return held[0]
