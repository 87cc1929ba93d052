"""Tables against a plain model of them: any verbs in any order, on both databases, and the database's own books."""

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay import (
    BadArgument,
    BlockingReplayBuffer,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    PutTimeout,
    Queue,
    RolloutState,
    Sample,
    SampleTimeout,
    SampleToInsertRatio,
    Stack,
    Staleness,
    Status,
    Stored,
    Table,
    TableConfig,
    TableFull,
    Uniform,
)
from sqlreplay.policy import Selector
from sqlreplay.store.standing import Standing
from sqlreplay.store.tables import groups, payloads
from sqlreplay.testing import make_group, numbers_of

TASK = "math"
LAST = 2**62
PUT_AS = (Status.COMPLETED, Status.COMPLETED, Status.COMPLETED, Status.ABORTED, Status.FAILED, Status.FILTERED)
HELD_AS = (*dict.fromkeys(PUT_AS), Status.EXPIRED)
FOUR_NUMBERS: dict[Any, tuple[float, int, float, float]] = {
    MinSize(1): (1, 1, -math.inf, math.inf),
    MinSize(3): (1, 3, -math.inf, math.inf),
    Queue(5): (1, 1, 0, 5),
    Stack(8): (1, 1, 0, 8),
    SampleToInsertRatio(2.0, 2, 12.0): (2.0, 2, -8.0, 16.0),
}

selectors = st.sampled_from(
    [Fifo(), Lifo(), MinHeap(), MaxHeap(), Staleness(), Uniform(), Prioritized(1.0), Prioritized(0.5, beta=0.4)]
)
limiters = st.sampled_from([MinSize(1)] * 5 + list(FOUR_NUMBERS))
priorities = st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.0, 2.0, 1e-300, 1e12])
steps = st.sampled_from([0, 1, 3, 6, None])
keys = st.sampled_from(["a", "b", "c", "d"])
counts = st.integers(1, 4)
filters = st.sampled_from([0.0, 0.25, 1.0, 2.0])


def silent_config(**values: Any) -> TableConfig:
    if values["max_size"] is not None:  # less than the limiter waits for is refused
        values["max_size"] = max(values["max_size"], FOUR_NUMBERS[values["rate_limiter"]][1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a Fifo sampler over a Fifo remover is a case like any other here
        return TableConfig(**values)


configs = st.builds(
    silent_config,
    sampler=selectors,
    remover=selectors,
    max_size=st.sampled_from([None, 1, 3, 4, 6]),
    max_times_sampled=st.sampled_from([0, 0, 1, 2]),
    rate_limiter=limiters,
    on_full=st.sampled_from(["evict", "evict", "evict", "block", "reject"]),
)


@dataclass
class Group:
    """A stored group, as the model knows it."""

    uid: int
    number: int
    status: str
    priority: float
    step: int | None
    stale_from: int
    key: str | None = None
    times_sampled: int = 0


@dataclass
class Model:
    """What a table is, in as few words as possible."""

    config: TableConfig
    held: dict[int, Group] = field(default_factory=dict)
    train_step: int | None = None
    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    evictions: int = 0

    def stream(self) -> list[Group]:
        return [group for group in self.held.values() if group.status == "completed"]

    def stale_from(self, step: int | None) -> int:
        return (self.train_step or 0) if step is None else step + 1

    def lets_sample(self, count: int) -> bool:
        ratio, min_size, lowest, _ = FOUR_NUMBERS[self.config.rate_limiter]
        return self.inserts - self.deletes >= min_size and self.inserts * ratio - self.samples - count >= lowest

    def lets_insert(self) -> bool:
        ratio, min_size, _, highest = FOUR_NUMBERS[self.config.rate_limiter]
        return self.inserts + 1 - self.deletes <= min_size or (self.inserts + 1) * ratio - self.samples <= highest

    def is_full(self) -> bool:
        return self.config.max_size is not None and len(self.held) >= self.config.max_size

    def overflows(self) -> int:
        return 0 if self.config.max_size is None else max(0, len(self.held) - self.config.max_size)

    def remove(self, uids: Iterable[int]) -> None:
        for uid in list(uids):
            del self.held[uid]
            self.deletes += 1

    def evict(self, gone: Sequence[int]) -> None:
        """Let these give way, after a look whether the remover could have chosen them, in this order."""
        assert len(gone) == len(set(gone)) == self.overflows()
        in_line = ordered(self.config.remover, self.held.values())
        if in_line is not None:
            assert list(gone) == [group.uid for group in in_line[: len(gone)]]
        else:
            check_lot(self.config.remover, list(self.held.values()), [self.held[uid] for uid in gone])
        self.evictions += len(gone)
        self.remove(gone)


def weight_of(selector: Selector, priority: float) -> float:
    if isinstance(selector, Prioritized):
        return 0.0 if priority == 0 else float(priority**selector.exponent)
    return 1.0


def ordered(selector: Selector, found: Iterable[Group]) -> list[Group] | None:
    """Return groups in the selector's documented order; None where it draws by lot."""
    by_uid = sorted(found, key=lambda group: group.uid)
    match selector:
        case Fifo():
            return by_uid
        case Lifo():
            return by_uid[::-1]
        case MinHeap():
            return sorted(by_uid, key=lambda group: group.priority)
        case MaxHeap():
            return sorted(by_uid, key=lambda group: -group.priority)
        case Staleness():
            return sorted(by_uid, key=lambda group: group.stale_from)
    return None


def check_lot(selector: Selector, candidates: Sequence[Group], drawn: Sequence[Group]) -> None:
    """A lot is right if it is of different candidates, and those of weight 0 come when no others are left."""
    assert len({group.uid for group in drawn}) == len(drawn)
    assert {group.uid for group in drawn} <= {group.uid for group in candidates}
    has_weight = [weight_of(selector, group.priority) > 0 for group in candidates]
    expected = min(sum(has_weight), len(drawn))
    assert [weight_of(selector, group.priority) > 0 for group in drawn] == [
        index < expected for index in range(len(drawn))
    ]


class TableMachine(RuleBasedStateMachine):
    """One table in a run of its own, in a database that all examples share."""

    url: ClassVar[str]
    run_numbers: ClassVar[Any] = itertools.count()

    @initialize(config=configs)
    def open_table(self, config: TableConfig) -> None:
        self.run_name = f"run {next(self.run_numbers)}"
        self.model = Model(config)
        self.numbers = itertools.count(1)
        self.open()

    def open(self) -> None:
        self.buffer: BlockingReplayBuffer[RolloutState] = BlockingReplayBuffer(
            self.url, run=self.run_name, tables={TASK: self.model.config}, pool_size=2
        )
        self.table = self.open_view()

    def open_view(self) -> Table:
        config = self.model.config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above
            return Table(self.buffer, TASK, **{each.name: getattr(config, each.name) for each in fields(config)})

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.close()

    def some(self, data: Any) -> list[int]:
        """Draw uids that are there, that were there, and that never were."""
        known: list[int] = sorted(self.model.held)
        chosen: list[int] = data.draw(st.lists(st.sampled_from([*known, 10**9, 10**9 + 1]), max_size=4, unique=True))
        return chosen

    @rule(status=st.sampled_from((*PUT_AS, Status.EXPIRED)), priority=priorities, step=steps)
    def put(self, status: Status, priority: float, step: int | None) -> None:
        number = next(self.numbers)
        group = make_group(number, steps=(step,), status=status)
        self.goes_in(
            lambda: self.buffer.put(group, TASK, priority=priority, timeout=0),
            Group(0, number, status.value, priority, step, self.model.stale_from(step)),
        )

    @rule(key=st.one_of(keys, keys.map(str.upper)), priority=priorities, step=steps)
    def insert(self, key: str, priority: float, step: int | None) -> None:
        number = next(self.numbers)
        data = make_group(number, steps=(step,))
        new = Group(0, number, "completed", priority, step, self.model.stale_from(step), key)
        there = [group for group in self.model.held.values() if group.key == key]
        if not there:
            self.goes_in(lambda: self.table.insert(key, data, priority, timeout=0), new)
            return
        stored = self.table.insert(key, data, priority, timeout=0)
        assert (stored, stored.evicted) == (there[0].uid, ())
        new.uid = stored
        self.model.held[stored] = new

    def goes_in(self, put: Any, new: Group) -> None:
        model = self.model
        if not model.lets_insert() or (model.is_full() and model.config.on_full == "block"):
            with pytest.raises(PutTimeout, match="was not stored"):
                put()
            return
        if model.is_full() and model.config.on_full == "reject":
            with pytest.raises(TableFull, match=f"max_size={model.config.max_size}"):
                put()
            return
        stored: Stored = put()
        assert stored not in model.held
        new.uid = int(stored)
        model.held[new.uid] = new
        model.inserts += 1
        model.evict(stored.evicted)

    @rule(count=counts)
    def sample(self, count: int) -> None:
        self.draws(count, self.model.stream(), {})

    @rule(count=counts, lowest=filters)
    def sample_filtered(self, count: int, lowest: float) -> None:
        matching = [group for group in self.model.stream() if group.priority >= lowest]
        self.draws(count, matching, {"where": {"priority": {"$gte": lowest}}})

    @rule(count=st.integers(1, 2), status=st.sampled_from(HELD_AS))
    def sample_of_a_status(self, count: int, status: Status) -> None:
        matching = [group for group in self.model.held.values() if group.status == status.value]
        self.draws(count, matching, {"group_status": status})

    def draws(self, count: int, candidates: list[Group], asked: dict[str, Any]) -> None:
        model, config = self.model, self.model.config
        limiter = FOUR_NUMBERS[config.rate_limiter]
        if count > (config.max_size or math.inf) or count > limiter[3] - limiter[2]:
            with pytest.raises(BadArgument, match=f"{count} groups were asked"):
                self.buffer.sample(count, TASK, timeout=0, **asked)
            return
        if not model.lets_sample(count) or len(candidates) < count:
            with pytest.raises(SampleTimeout):
                self.buffer.sample(count, TASK, timeout=0, **asked)
            return
        found: list[Sample[list[RolloutState]]] = self.buffer.sample(count, TASK, timeout=0, **asked)
        drawn = [model.held[sample.info.uid] for sample in found]
        in_line = ordered(config.sampler, candidates)
        if in_line is not None:
            assert [group.uid for group in drawn] == [group.uid for group in in_line[:count]]
        else:
            check_lot(config.sampler, candidates, drawn)
        self.check_samples(found, drawn, candidates)
        model.samples += count
        for group in drawn:
            group.times_sampled += 1
        if config.max_times_sampled:
            model.remove(group.uid for group in drawn if group.times_sampled >= config.max_times_sampled)

    def check_samples(
        self, found: Sequence[Sample[list[RolloutState]]], drawn: Sequence[Group], candidates: Sequence[Group]
    ) -> None:
        sampler = self.model.config.sampler
        total = sum(Fraction(weight_of(sampler, group.priority)) for group in candidates)
        for sample, group in zip(found, drawn, strict=True):
            assert numbers_of([sample.group]) == [group.number]
            info = sample.info
            assert (info.table_size, info.priority) == (len(self.model.held), group.priority)
            assert info.times_sampled == group.times_sampled + 1
            if not isinstance(sampler, (Prioritized, Uniform)):
                assert (info.probability, info.weight) == (1.0, 1.0)
            elif total == 0:
                assert math.isclose(info.probability, 1 / len(candidates))
            else:
                expected = Fraction(weight_of(sampler, group.priority)) / total
                assert math.isclose(info.probability, float(expected), rel_tol=1e-9)
            assert 0 < info.weight <= 1

    @rule(count=st.integers(0, 3), status=st.sampled_from((*HELD_AS, Status.COMPLETED)))
    def take_batch(self, count: int, status: Status) -> None:
        batches, taken = self.buffer.take_batch({TASK: count}, group_status=status)
        in_line = sorted(uid for uid, group in self.model.held.items() if group.status == status.value)[:count]
        assert numbers_of(batches[TASK]) == [self.model.held[uid].number for uid in in_line]
        assert taken == {TASK: len(in_line)}
        self.model.samples += len(in_line)
        self.model.remove(in_line)

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        uids = self.some(data)
        there = [uid for uid in uids if uid in self.model.held]
        assert self.buffer.delete(uids) == len(there)
        self.model.remove(there)

    @rule(data=st.data())
    def update_priorities(self, data: Any) -> None:
        changes = {uid: data.draw(priorities) for uid in self.some(data)}
        view = self.table if data.draw(st.booleans()) else None
        unknown = view.update_priorities(changes) if view else self.buffer.update_priorities(TASK, changes)
        assert unknown == sorted(uid for uid in changes if uid not in self.model.held)
        for uid in set(changes) - set(unknown):
            self.model.held[uid].priority = changes[uid]

    @rule(step=st.sampled_from([5, 3, 9, 0]), threshold=st.sampled_from([2, 1, 5]), keeps=st.booleans())
    def refresh_staleness(self, step: int, threshold: int, keeps: bool) -> None:
        expired = self.buffer.refresh_staleness(
            task_stale_thresholds={TASK: threshold},
            expired_groups_retryable_by_task={TASK: keeps},
            current_train_step=step,
        )
        self.model.train_step = step
        looked_at = [group for group in self.model.held.values() if group.status in ("completed", "aborted")]
        past = [group for group in looked_at if group.step is not None and group.stale_from <= step - threshold]
        assert expired == {TASK: len(past)}
        for group in looked_at:
            if group.step is None:
                group.stale_from = LAST
        for group in past:
            group.status = "expired"
        if not keeps:
            self.model.remove(group.uid for group in past)

    @rule(config=configs)
    def set_table(self, config: TableConfig) -> None:
        if config.max_size is not None and len(self.model.held) > config.max_size and config.on_full != "evict":
            with pytest.raises(TableFull, match="already holds more"):
                self.buffer.set_table(TASK, config)
            return
        self.buffer.set_table(TASK, config)
        self.model.config = config
        left = {found.uid for found in self.buffer.find()}
        gone = [group for group in self.model.held.values() if group.uid not in left]
        in_line = ordered(config.remover, self.model.held.values())
        place = [group.uid for group in in_line or []]
        by_weight = sorted(gone, key=lambda group: weight_of(config.remover, group.priority) == 0)
        self.model.evict([group.uid for group in sorted(by_weight, key=lambda g: place.index(g.uid) if place else 0)])
        self.table = self.open_view()

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), status=st.sampled_from(HELD_AS))
    def update(self, data: Any, status: Status) -> None:
        uid = data.draw(st.sampled_from(sorted(self.model.held)))
        group = self.model.held[uid]
        [found] = self.buffer.find({"uid": uid})
        found.item = make_group(group.number, steps=(group.step,), status=status)
        found.status, found.staleness = status, 0
        assert self.buffer.update([found]) == 1
        group.status, group.stale_from = status.value, self.model.stale_from(group.step)

    @rule()
    def reopen(self) -> None:
        self.buffer.close()
        self.open()

    @invariant()
    def what_users_see_is_the_model(self) -> None:
        model = self.model
        info = self.table.info
        assert info.config == model.config
        assert info.size == len(self.table) == len(model.held) == model.inserts - model.deletes
        assert (info.inserts, info.samples, info.deletes, info.evictions) == (
            model.inserts,
            model.samples,
            model.deletes,
            model.evictions,
        )
        found = {item.uid: (numbers_of([item.item])[0], item.status.value) for item in self.buffer.find()}
        assert found == {uid: (group.number, group.status) for uid, group in model.held.items()}
        by_status = self.buffer.count_statuses([TASK], list(HELD_AS))[TASK]
        assert by_status == {
            status: sum(group.status == status.value for group in model.held.values()) for status in HELD_AS
        }
        assert self.table.can_sample(2) == model.lets_sample(2)
        assert self.table.can_insert() == model.lets_insert()

    @invariant()
    def the_books_in_the_database_balance(self) -> None:
        model, config = self.model, self.model.config
        standing, rows, bytes_of = self.scan()
        assert {row.uid: (row.status, row.priority, row.times_sampled, row.client_key) for row in rows} == {
            uid: (group.status, group.priority, group.times_sampled, group.key) for uid, group in model.held.items()
        }
        assert {row.uid: row.stale_from_step for row in rows} == {
            uid: group.stale_from for uid, group in model.held.items()
        }
        assert standing.size == len(rows)
        assert (
            standing.size_bytes == sum(row.size_bytes for row in rows) == sum(bytes_of[row.payload_id] for row in rows)
        )
        in_stream = [row for row in rows if row.race_key is not None]
        assert {row.uid for row in in_stream} == {group.uid for group in model.stream()}
        assert standing.stream_size == len(in_stream) == sum(row.race_weight is not None for row in rows)
        for row in in_stream:
            assert math.isclose(row.race_weight, weight_of(config.sampler, row.priority), rel_tol=1e-12)
        assert Fraction(standing.weight_sum, 2**1074) == sum(Fraction(row.race_weight) for row in in_stream)
        in_line = ordered(config.sampler, model.stream())
        if in_line is not None:
            by_key = sorted(in_stream, key=lambda row: (row.race_key, row.uid))
            assert [row.uid for row in by_key] == [group.uid for group in in_line]
        evictable = [row for row in rows if row.evict_key is not None]
        assert len(evictable) == (len(rows) if config.max_size is not None else 0)
        leaving = ordered(config.remover, model.held.values())
        if leaving is not None and evictable:
            by_key = sorted(evictable, key=lambda row: (row.evict_key, row.uid))
            assert [row.uid for row in by_key] == [group.uid for group in leaving]

    def scan(self) -> tuple[Standing, list[Any], dict[int, int]]:
        """Read the task's own row, and what it should be the sum of."""
        thread = self.buffer.unblocked.joined_thread()

        async def read() -> tuple[Standing, list[Any], dict[int, int]]:
            standing = await thread.store.tables.standing(self.run_name, TASK)
            assert standing is not None

            async def look(connection: AsyncConnection) -> tuple[list[Any], dict[int, int]]:
                rows = list((await connection.execute(select(groups).where(groups.c.task_id == standing.id))).all())
                sums = (
                    select(payloads.c.payload_id, func.sum(func.length(payloads.c.body)))
                    .where(payloads.c.payload_id.in_([row.payload_id for row in rows]))
                    .group_by(payloads.c.payload_id)
                )
                return rows, {number: int(size) for number, size in (await connection.execute(sums)).all()}

            return standing, *(await thread.store.database.read(look))

        return thread.wait(read())


@pytest.mark.timeout(600)
def test_any_verbs_in_any_order_agree_with_the_model(url: str) -> None:
    machine = type("Machine", (TableMachine,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
