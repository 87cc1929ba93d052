"""The demo's accounting: every group that was put must be in exactly one place."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlreplay.blocking import BlockingReplayBuffer
from sqlreplay.cli.demo_workers import BATCH_SIZES, TASK_WEIGHTS, Workplace
from sqlreplay.records import RolloutState, Status

__all__ = ["PLACES", "Account", "LogReader", "take_stock"]

PAGE = 500
PLACES = ("produced", "consumed", "waiting", "expired", "in_hands")


class LogReader:
    """Reads what was added to the workers' logs since the last look; a line without its end is not there yet."""

    def __init__(self, workplace: Workplace) -> None:
        self._folder = Path(workplace.folder)
        self._offsets: Counter[Path] = Counter()
        self._lines: dict[tuple[str, str], list[str]] = {}

    def read(self) -> None:
        for path in self._folder.glob("*.log"):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._offsets[path] += len(whole) + 1
                for line in whole.decode().splitlines():
                    verb, _, identity = line.partition(" ")
                    self._lines.setdefault((path.stem, verb), []).append(identity)

    def of(self, verb: str, worker: str | None = None) -> list[str]:
        """Return the groups to which a worker, or any of them, did this."""
        return [
            identity
            for (name, done), identities in self._lines.items()
            if done == verb and worker in (None, name)
            for identity in identities
        ]

    def by_task(self, verb: str) -> Counter[str]:
        return Counter(identity.partition(" ")[0] for identity in self.of(verb))


@dataclass(frozen=True)
class Account:
    """Where every group is at the end, each place counted from its own source.

    `produced` and `consumed` are the workers' logs, `waiting` and `expired` the database. What a killed trainer had
    taken and not trained on is in none of these: `in_hands`, at most one batch.
    """

    produced: frozenset[str]
    consumed: frozenset[str]
    waiting: frozenset[str]
    expired: frozenset[str]
    in_hands: frozenset[str]
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {place: len(getattr(self, place)) for place in PLACES}

    def counts_by_task(self) -> dict[str, dict[str, int]]:
        return {
            task: {place: sum(map(of_task(task), getattr(self, place))) for place in PLACES} for task in TASK_WEIGHTS
        }


def of_task(task: str) -> Any:
    return lambda identity: identity.startswith(f"{task} ")


def take_stock(logs: LogReader, buffer: BlockingReplayBuffer[RolloutState], *, killed: str, went_on: str) -> Account:
    """Count everything, once all workers have ended, and list what does not add up."""
    logs.read()
    produced, taken, trained = (logs.of(verb) for verb in ("put", "taken", "trained"))
    stored = list_stored(buffer)
    everywhere = {name for names in stored.values() for name in names}
    waiting, expired = stored.pop("completed", []), stored.pop("expired", [])
    in_hands = set(produced) - set(trained) - everywhere

    problems = [f"waits as {status}: {name}" for status, names in stored.items() for name in names]
    for what, names in (("put", produced), ("taken", taken), ("stored", waiting + expired)):
        problems += [f"{what} {count} times: {name}" for name, count in Counter(names).items() if count > 1]
    problems += named("taken and still stored", set(taken) & everywhere)
    problems += named("taken or stored, but never put", {*taken, *everywhere} - set(produced))
    problems += named(f"taken by {went_on} and never trained on", set(logs.of("taken", went_on)) - set(trained))
    batch = sum(BATCH_SIZES.values())
    if len(in_hands) > batch:
        problems.append(f"{len(in_hands)} groups are nowhere; {killed} can have had {batch} when it was killed")
        problems += named("put and then nowhere", in_hands - set(taken))
    return Account(
        frozenset(produced),
        frozenset(trained),
        frozenset(waiting),
        frozenset(expired),
        frozenset(in_hands),
        problems,
    )


def named(what: str, names: Iterable[str]) -> list[str]:
    return [f"{what}: {name}" for name in sorted(names)]


def list_stored(buffer: BlockingReplayBuffer[RolloutState]) -> dict[str, list[str]]:
    """Return the identities of all groups in the database, by status."""
    found: dict[str, list[str]] = {}
    after = None
    while page := buffer.find(limit=PAGE, after=after):
        for stored in page:
            found.setdefault(Status(stored.status).value, []).append(f"{stored.task_name} {stored.item[0].group_id}")
        after = page[-1].uid
    return found
