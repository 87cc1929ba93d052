"""Spoiling stored bytes behind the store's back."""

import sqlite3
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy.engine import make_url

SPOIL = """
UPDATE sqlreplay_payloads SET body = {body}
WHERE payload_id = (SELECT payload_id FROM sqlreplay_groups WHERE uid = {uid})
"""


@pytest.fixture
def damage(url: str) -> Callable[[int], Awaitable[None]]:
    """An async function that overwrites the bytes of a group, by its uid."""

    async def spoil_sqlite(uid: int) -> None:
        connection = sqlite3.connect(str(make_url(url).database), timeout=30)
        try:
            assert connection.execute(SPOIL.format(body="x'00ff00ff'", uid=uid)).rowcount > 0
            connection.commit()
        finally:
            connection.close()

    async def spoil_postgres(uid: int) -> None:
        connection = await asyncpg.connect(url)
        try:
            assert await connection.execute(SPOIL.format(body=r"'\x00ff00ff'", uid=uid)) != "UPDATE 0"
        finally:
            await connection.close()

    return spoil_sqlite if url.startswith("sqlite") else spoil_postgres
