"""The I/O thread: one for each process and database, with its own event loop.

It owns the engine, so that any number of event loops and threads may use one store, a caller that blocks its own loop
stops nobody, and cancelling a caller never cancels a commit. It is a daemon: it keeps no process alive.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from sqlreplay.config import StoreConfig
from sqlreplay.errors import StoreClosed
from sqlreplay.store.store import Store

__all__ = ["StoreThread"]

T = TypeVar("T")

_threads: dict[object, "StoreThread"] = {}
_registry = threading.Lock()
_ending: set["StoreThread"] = set()
_inherited: list["StoreThread"] = []
FORK_TIMEOUT_S = 120


class StoreThread:
    """A running event loop and the store that lives in it."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.handles = 0
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = threading.Lock()
        self._stopped = False
        self._refusing = False
        self._thread = threading.Thread(target=self._serve, name=f"sqlreplay {config}", daemon=True)
        self._ready: Future[Store] = Future()
        self._ended: Future[None] = Future()
        self._thread.start()
        self.store = self._ready.result()

    @classmethod
    def join(cls, config: StoreConfig) -> "StoreThread":
        """Return the thread of this database, started if need be; `leave` gives it back."""
        with _registry:
            key = object() if config.is_memory else config
            thread = _threads.get(key)
            if thread is None:
                thread = _threads[key] = cls(config)
            thread.handles += 1
            return thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._ready.set_result(Store(self.config, self.soon))
        except BaseException as error:
            self.loop.close()
            self._ready.set_exception(error)
            return
        self.loop.run_forever()
        with self._stopping:
            self._stopped = True
        self.loop.run_until_complete(self._turn_away())
        self.loop.close()
        _ending.discard(self)
        self._ended.set_result(None)

    @staticmethod
    async def _turn_away() -> None:
        """Tell those who came while the loop was stopping; whatever still waits is cancelled."""
        await asyncio.sleep(0)
        late = asyncio.all_tasks() - {asyncio.current_task()}
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call on the I/O thread, from any thread; `StoreClosed` where that has ended."""
        with self._stopping:
            if self._stopped:
                raise StoreClosed(f"The store at {self.config} was closed. Open a new buffer.")
            self.loop.call_soon_threadsafe(callback, *arguments)

    async def call(
        self,
        work: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Run `work` on the I/O thread and wait for it on the caller's own loop.

        A caller that is cancelled stops waiting; the work goes on. Where its result would then belong to nobody,
        `undo` gets it.
        """
        future: Future[T] = Future()
        self.soon(self._create_task, lambda: self._deliver(future, work, undo), future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None and not future.cancel():
                future.add_done_callback(lambda done: self._start_undo(done, undo))
            raise

    def _start_undo(self, done: "Future[T]", undo: Callable[[T], Awaitable[None]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.spawn(lambda: undo(done.result()))

    async def _deliver(
        self,
        future: "Future[T]",
        work: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[None]] | None,
    ) -> None:
        try:
            result = await work()
        except BaseException as error:  # it belongs to the caller, whatever it is
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if future.set_running_or_notify_cancel():
            future.set_result(result)
        elif undo is not None:
            await undo(result)

    def spawn(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Start something on the I/O thread that nobody waits for; closing the store does."""
        self.soon(self._create_task, work, Future())

    def free(self, payload_ids: list[int]) -> None:
        """Let the store give these bytes back when it suits."""
        if payload_ids:
            with suppress(StoreClosed):  # a later process sweeps them up
                self.soon(self.store.freeing.free, payload_ids)

    def free_later(self, payload_ids: list[int]) -> None:
        """Let the store give these bytes back once no other reader can be at them."""
        if payload_ids:
            with suppress(StoreClosed):  # a later process sweeps them up
                self.soon(self.store.freeing.free_later, payload_ids)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the I/O thread and block until it is done."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise StoreClosed("A blocking call was made on sqlreplay's own thread, where it would wait for itself.")
        with self._stopping:
            if self._stopped:
                coroutine.close()
                raise StoreClosed(f"The store at {self.config} was closed. Open a new buffer.")
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except CancelledError as error:
            raise StoreClosed(f"The store at {self.config} was closed while a call waited.") from error
        except BaseException:
            future.cancel()
            raise

    def _create_task(self, work: Callable[[], Any], future: "Future[Any]") -> None:
        if self._refusing:
            if future.set_running_or_notify_cancel():
                future.set_exception(StoreClosed(f"The store at {self.config} was closed. Open a new buffer."))
            return
        task = self.loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self) -> Future[None] | None:
        """Give up one handle; the last one closes the store and ends the thread. Returns what to wait for, if any."""
        with _registry:
            self.handles -= 1
            if self.handles > 0:
                return None
            _ending.add(self)
            asyncio.run_coroutine_threadsafe(self._shut_down(), self.loop)
            for key in [key for key, thread in _threads.items() if thread is self]:
                del _threads[key]
        return self._ended

    async def _shut_down(self) -> None:
        self.store.begin_close()
        current = asyncio.current_task()
        while pending := [task for task in self._tasks if task is not current]:
            await asyncio.wait(pending)
        self._refusing = True
        try:
            await self.store.close()
        finally:
            self.loop.call_soon(self.loop.stop)


def _before_fork() -> None:
    """A child must not inherit an open SQLite file: its locks are the process's, and closing it drops the parent's."""
    _registry.acquire()
    pausing = [
        asyncio.run_coroutine_threadsafe(thread.store.database.pause(), thread.loop)
        for thread in _threads.values()
        if threading.current_thread() is not thread._thread
    ]
    for future in pausing:
        future.result(timeout=FORK_TIMEOUT_S)
    for thread in list(_ending):
        if threading.current_thread() is not thread._thread:
            thread._ended.result(timeout=FORK_TIMEOUT_S)


def _after_fork_in_parent() -> None:
    for thread in _threads.values():
        thread.loop.call_soon_threadsafe(thread.store.database.resume)
    _registry.release()


def _after_fork_in_child() -> None:
    """The thread is not here: forget it without touching it, and let the next verb start another."""
    _inherited.extend(_threads.values())
    _threads.clear()
    _registry.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
