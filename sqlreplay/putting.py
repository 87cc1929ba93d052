"""From items to a stored group: the rules applied, the priority computed, and the wait for room in a table."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from sqlreplay import checks
from sqlreplay.errors import BadArgument, InvalidGroup, PutTimeout
from sqlreplay.groups import Draft, GroupForm, PutRules
from sqlreplay.store import MustWait, NewGroup, Stored, StoreThread

__all__ = ["GroupMeasures", "Priority", "Putting"]

T = TypeVar("T")


@dataclass(frozen=True)
class GroupMeasures:
    """What a priority can be computed from. Rewards are None where no sample has one.

    await buffer.put(group, "math", priority=lambda group: group.reward_std + 0.01)
    """

    num_samples: int
    num_tokens: int
    reward_mean: float | None
    reward_std: float | None
    solve_rate: float | None
    staleness: int


Priority = float | str | Callable[[GroupMeasures], float]
GIVEN = ("num_samples", "num_tokens", "reward_mean", "reward_std", "solve_rate")
COUNTS = ("num_samples", "num_tokens")


class Putting(Generic[T]):
    """How one buffer puts: its form of groups and its run."""

    def __init__(self, form: GroupForm[T], run: str, done: Counter[str]) -> None:
        self._form = form
        self._run = run
        self._done = done

    async def new_group(
        self,
        draft: Draft[T],
        task_name: str,
        rules: PutRules,
        *,
        priority: Priority = 1.0,
        numbers: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        client_key: str | None = None,
    ) -> NewGroup:
        """Turn a draft into what the store takes."""
        columns = draft.columns() | checked_numbers(numbers)
        measures = GroupMeasures(**{name: columns[name] for name in GroupMeasures.__dataclass_fields__})
        columns |= {
            "priority": priority_of(priority, measures),
            "meta": None if meta is None else dict(meta),
            "client_key": client_key,
        }
        parts = await self._form.encode(draft)
        return NewGroup(task_name, draft.status, parts, columns, rules.current_train_step)

    async def store(
        self,
        thread: StoreThread,
        new: NewGroup,
        timeout: float | None,
        is_open: Callable[[], bool],
        shutdowns: int | None = None,
    ) -> Stored:
        """Store a group, once its table has room and its limiter lets it in; till then nothing of it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = True
        try:
            while True:
                outcome = await thread.store.commit.join(self._run, new)
                if isinstance(outcome, Stored):
                    self._done["put"] += 1
                    self._done["evicted"] += len(outcome.evicted)
                    return outcome
                left = None if deadline is None else deadline - time.monotonic()
                waited: MustWait | Exception | None = outcome
                if left is None or left > 0:
                    waited = await thread.call(
                        lambda left=left: thread.store.tables.wait_for_room(  # type: ignore[misc]
                            self._run,
                            new.task_name,
                            new.size_bytes,
                            timeout=left,
                            is_wanted=lambda: wanted and is_open(),
                            shutdowns=shutdowns,
                        )
                    )
                if isinstance(waited, MustWait):
                    raise PutTimeout(
                        f"The group could not go in within {timeout:g} s and was not stored. {waited.reason}."
                    )
                if isinstance(waited, Exception):
                    raise waited
        finally:
            wanted = False


def priority_of(priority: Priority, measures: GroupMeasures) -> float:
    """Return a priority that is given, named after a measure, or computed."""
    if isinstance(priority, str):
        names = asdict(measures)
        if priority not in names:
            raise BadArgument(f"priority={priority!r} is no measure of a group. Type one of {', '.join(names)}.")
        if names[priority] is None:
            raise InvalidGroup(
                f"priority={priority!r}, but no sample has a reward with a score. Give the samples one, type "
                f"numbers={{{priority!r}: ...}}, or give the priority as a number."
            )
        priority = float(names[priority])
    elif callable(priority):
        priority = priority(measures)
    return checks.priority(priority)


def checked_numbers(numbers: Mapping[str, float] | None) -> dict[str, float]:
    """Return measures that the caller gives in place of those taken from the items."""
    if numbers is None:
        return {}
    if not isinstance(numbers, Mapping) or not set(numbers) <= set(GIVEN):
        raise BadArgument(f"numbers is {numbers!r}, expected a dict with some of {', '.join(GIVEN)}.")
    return {
        name: checks.count(name, value) if name in COUNTS else checks.finite(name, value)
        for name, value in numbers.items()
    }
