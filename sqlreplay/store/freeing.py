"""Giving bytes back: soon where this process read them last, later where another may still be reading."""

import asyncio
import logging
from collections.abc import Sequence

from sqlreplay.errors import StoreError
from sqlreplay.store import reading, rows
from sqlreplay.store.database import Database

__all__ = ["Freeing"]

logger = logging.getLogger("sqlreplay")

FREE_AFTER_S = 0.05
MAY_BE_READ_S = 5.0
ORPHAN_GRACE_S = 600
SLICE = 256


class Freeing:
    """The payloads of one store that nobody points to. A process that dies first leaves orphans, which a later one
    sweeps up."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._unused: list[int] = []
        self._later: dict[object, Sequence[int]] = {}
        self._freeing: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._closing = False

    def free(self, payload_ids: Sequence[int]) -> None:
        """Give bytes back soon, many at a time; must be called on the store's loop."""
        self._unused.extend(payload_ids)
        if self._unused and (self._freeing is None or self._freeing.done()):
            self._freeing = asyncio.create_task(self._free_unused())

    def free_later(self, payload_ids: Sequence[int]) -> None:
        """Give bytes back when a sampler that drew the group before it went has surely read them."""
        if payload_ids:
            token = object()
            self._later[token] = payload_ids
            asyncio.get_running_loop().call_later(MAY_BE_READ_S, self._free_now, token)

    def _free_now(self, token: object) -> None:
        self.free(self._later.pop(token, ()))

    async def _free_unused(self) -> None:
        await asyncio.sleep(0 if self._closing else FREE_AFTER_S)
        while self._unused:
            ids, self._unused = self._unused[:SLICE], self._unused[SLICE:]
            try:
                await self._database.write(
                    lambda c, ids=ids: rows.free_payloads(c, self._database.backend, ids)  # type: ignore[misc]
                )
            except StoreError:
                logger.warning("%d payloads were not freed; a later sweep will", len(ids), exc_info=True)

    def start_sweeping(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_orphans())

    async def _sweep_orphans(self) -> None:
        """Free payloads that belonged to no group at two looks a grace period apart: by then no taker reads them."""
        seen: set[int] = set()
        while True:
            await asyncio.sleep(ORPHAN_GRACE_S)
            try:
                found = set(await self._database.read(reading.find_orphans))
            except Exception:
                logger.warning("looking for orphaned payloads in %s failed", self._database.config, exc_info=True)
                continue
            self.free(sorted(seen & found))
            seen = found - seen

    async def close(self) -> None:
        """Free all that is due or will be."""
        self._closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for token in list(self._later):
            self._free_now(token)
        if self._freeing is not None:
            await asyncio.gather(self._freeing, return_exceptions=True)
