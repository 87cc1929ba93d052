"""`sqlreplay demo`: producers and a trainer on one database, a SIGKILL half way, and an account of every group."""

import asyncio
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlreplay.cli.options import Json, PostgresSchema, config_of
from sqlreplay.cli.output import note, print_json
from sqlreplay.errors import SchemaMissing

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from sqlreplay.blocking import BlockingReplayBuffer
    from sqlreplay.cli.demo_account import Account, LogReader
    from sqlreplay.cli.demo_view import View
    from sqlreplay.cli.demo_workers import Workplace
    from sqlreplay.config import StoreConfig
    from sqlreplay.records import RolloutState

__all__ = ["demo"]

PRODUCERS = 4
LOOK_EVERY_S = 0.2
PATIENCE_S = 60.0


FIRST_TRAINER, SECOND_TRAINER = "trainer-1", "trainer-2"


@dataclass(frozen=True)
class Outcome:
    """What happened, beside the counts. `kept` is the command that shows what was left in the user's database."""

    producers: int
    seconds: float
    killed_at_s: float
    kept: str | None = None


class DemoFailed(Exception):
    """A worker ended by itself, or one never got going."""


def demo(
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="SQLREPLAY_URL", help="The database; a temporary SQLite file if left out."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=2, max=3600, help="How long the workers run.")] = 10.0,
    postgres_schema: PostgresSchema = None,
    as_json: Json = False,
) -> None:
    """Watch four producers and a trainer share a database, the trainer being killed half way.

    At the end every group is accounted for, or the exit code is 1. A database of your own gets a run of its own.
    """
    from sqlreplay.cli.demo_view import print_outcome
    from sqlreplay.cli.demo_workers import BATCH_SIZES, Workplace

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what follows cleans up
    with tempfile.TemporaryDirectory(prefix="sqlreplay-demo-") as folder:
        config = config_of(url or f"sqlite:///{Path(folder, 'replay.db')}", postgres_schema)
        prepare(config)
        full_url = config.url.render_as_string(hide_password=False)
        workplace = Workplace(full_url, f"demo-{secrets.token_hex(4)}", postgres_schema, folder)
        note(f"{PRODUCERS} producers and a trainer start on {config}, run {workplace.run}.")
        try:
            outcome, account = play(workplace, seconds)
        except DemoFailed as error:
            note(f"sqlreplay: {error}")
            raise typer.Exit(1) from error
    if as_json:
        data = {**asdict(outcome), **account.counts(), "tasks": account.counts_by_task()}
        data |= {"batch": sum(BATCH_SIZES.values()), "problems": account.problems}
        print_json({"url": str(config), "run": workplace.run, **data})
    else:
        print_outcome(account, outcome if url is None else replace(outcome, kept=look_command(config, workplace)))
    if account.problems:
        raise typer.Exit(1)


def look_command(config: "StoreConfig", workplace: "Workplace") -> str:
    command = f"sqlreplay stats --run {workplace.run} --url {shlex.quote(str(config))}"
    if config.postgres_schema is not None:
        command += f" --postgres-schema {shlex.quote(config.postgres_schema)}"
    return command


def prepare(config: "StoreConfig") -> None:
    """Create the tables where there are none. Tables of another revision are their owner's to upgrade."""
    from sqlreplay.store.inspection import inspect, migrate

    found = asyncio.run(inspect(config))
    if isinstance(found.problem, SchemaMissing):
        asyncio.run(migrate(config))
    elif found.problem is not None:
        raise found.problem


class Crew:
    """The demo's processes, by name."""

    def __init__(self, workplace: "Workplace") -> None:
        import multiprocessing

        self.workplace = workplace
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[str, BaseProcess] = {}
        self._may_be_dead: set[str] = set()

    def start(self, kind: str, number: int) -> str:
        from sqlreplay.cli import demo_workers

        name = f"{kind}-{number}"
        work: Any = {"producer": demo_workers.produce, "trainer": demo_workers.train}[kind]
        process = self._context.Process(target=work, args=(self.workplace, number), name=name, daemon=True)
        process.start()
        self._processes[name] = process
        return name

    def check(self) -> None:
        """Raise if a worker has ended that nobody ended."""
        for name, process in self._processes.items():
            if process.exitcode is not None and name not in self._may_be_dead:
                raise DemoFailed(f"{name} ended by itself with exit code {process.exitcode}; see its message above.")

    def is_ready(self) -> bool:
        return all(self.workplace.log_path(name).exists() for name in self._processes)

    def kill(self, name: str) -> None:
        """End a worker with SIGKILL, whatever it is at."""
        self._may_be_dead.add(name)
        self._processes[name].kill()
        self._processes[name].join()

    def stop(self) -> None:
        """Let every worker finish what it is at. One that does not is killed, and that is a failure."""
        running = {name: process for name, process in self._processes.items() if process.exitcode is None}
        self._may_be_dead |= set(running)
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE_S
        for process in running.values():
            process.join(max(0, deadline - time.monotonic()))
        failed = [name for name, process in running.items() if process.exitcode != 0]
        if failed:
            raise DemoFailed(f"{', '.join(failed)} did not end cleanly when told to stop.")

    def end(self) -> None:
        """Leave no process behind."""
        for process in self._processes.values():
            process.kill()
            process.join()


@contextmanager
def workers_ended(crew: Crew) -> Iterator[Crew]:
    """Leave no process behind, whatever happens."""
    try:
        yield crew
    finally:
        crew.end()


def play(workplace: "Workplace", seconds: float) -> tuple[Outcome, "Account"]:
    """Run the demo and count where every group is."""
    from sqlreplay.cli.demo_account import LogReader, take_stock
    from sqlreplay.cli.demo_view import View

    logs = LogReader(workplace)
    with workplace.buffer() as buffer:
        with View() as view, workers_ended(Crew(workplace)) as crew:
            outcome = perform(crew, Watch(crew, logs, view, buffer), logs, seconds)
        return outcome, take_stock(logs, buffer, killed=FIRST_TRAINER, went_on=SECOND_TRAINER)


def perform(crew: Crew, watch: "Watch", logs: "LogReader", seconds: float) -> Outcome:
    """All start, the trainer is killed half way, a new one goes on, all stop."""
    for number in range(1, PRODUCERS + 1):
        crew.start("producer", number)
    crew.start("trainer", 1)
    watch.until(crew.is_ready)
    watch.begin()
    watch.until(lambda: watch.seconds >= seconds / 2 and bool(logs.of("taken", FIRST_TRAINER)), seconds)
    crew.kill(FIRST_TRAINER)
    killed_at = watch.seconds
    watch.tell("the trainer was killed with SIGKILL")
    crew.start("trainer", 2)
    watch.until(lambda: bool(logs.of("taken", SECOND_TRAINER)))
    watch.tell(f"a new trainer went on from step {crew.workplace.read_step()}")
    watch.until(lambda: watch.seconds >= seconds, seconds)
    crew.stop()
    watch.look()
    return Outcome(PRODUCERS, round(watch.seconds, 3), round(killed_at, 3))


class Watch:
    """Looks at logs and database again and again, and shows what it sees. Its clock starts when all are at work."""

    def __init__(
        self, crew: Crew, logs: "LogReader", view: "View", buffer: "BlockingReplayBuffer[RolloutState]"
    ) -> None:
        self._crew, self._logs, self._view, self._buffer = crew, logs, view, buffer
        self._began: float | None = None

    def begin(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def tell(self, event: str) -> None:
        self._view.tell(f"{self.seconds:.1f} s: {event}")

    def until(self, reached: Callable[[], bool], expected_s: float = 0.0) -> None:
        """Watch until something is so. Workers that do not get there in good time end the demo."""
        deadline = time.monotonic() + expected_s + PATIENCE_S
        while not reached():
            self._crew.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"The workers hang: nobody got further in {expected_s + PATIENCE_S:g} s.")
            self.look()
            time.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        from sqlreplay.cli.demo_workers import TASK_WEIGHTS

        self._logs.read()
        stored = self._buffer.count_statuses(list(TASK_WEIGHTS), ["completed", "expired"])
        produced, consumed = self._logs.by_task("put"), self._logs.by_task("trained")
        counts = {
            task: {
                "produced": produced[task],
                "consumed": consumed[task],
                "waiting": stored[task]["completed"],
                "expired": stored[task]["expired"],
            }
            for task in TASK_WEIGHTS
        }
        self._view.show(counts, self._crew.workplace.read_step(), self.seconds)
