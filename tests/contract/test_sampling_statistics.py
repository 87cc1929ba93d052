"""Samples have the probabilities they should have, whatever happens to a table between them.

Each comparison is a chi-square test that a right sampler fails with one seed in a million (`ERROR_RATE`). The seeds
are fixed, so the draws are the same in every run.
"""

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from sqlreplay import Fifo, Prioritized, ReplayBuffer, Sample, TableConfig, Uniform

ERROR_RATE = 1e-6
BINS, COARSE_BINS = 10, 4
FEWEST_EXPECTED = 8.0
Buffer = ReplayBuffer[dict[str, Any]]
Cell = TypeVar("Cell", int, tuple[int, ...])


def survival(statistic: float, degrees: int) -> float:
    """Return how likely a chi-square variable is to be larger than this."""
    half = statistic / 2
    tail = math.erfc(math.sqrt(half)) if degrees % 2 else 0.0
    for index in range(degrees // 2):
        power = index + degrees % 2 / 2
        tail += math.exp(-half) * math.pow(half, power) / math.gamma(power + 1)
    return tail


def assert_probable(found: Mapping[Cell, int], probabilities: Mapping[Cell, float]) -> None:
    """Compare counts with exact probabilities. What is rare goes into one cell; what has no chance must not be."""
    number = sum(found.values())
    expected = {cell: number * probability for cell, probability in probabilities.items()}
    assert math.isclose(sum(expected.values()), number, rel_tol=1e-9)
    likely = sorted((count, cell) for cell, count in expected.items() if count > ERROR_RATE / len(expected))
    impossible = set(found) - {cell for _, cell in likely}
    assert not impossible, f"drawn, with next to no chance: {impossible}"
    counts: list[tuple[float, int]] = [(0.0, 0)]
    for count, cell in likely:
        if counts[-1][0] < FEWEST_EXPECTED:
            count, had = count + counts[-1][0], counts.pop()[1]
            counts.append((count, had + found.get(cell, 0)))
        else:
            counts.append((count, found.get(cell, 0)))
    statistic = sum((had - count) ** 2 / count for count, had in counts)
    assert survival(statistic, len(counts) - 1) > ERROR_RATE, f"chi-square {statistic:.1f}, (expected, found): {counts}"


def shares(weights: Mapping[int, float], uids: Iterable[int]) -> dict[int, float]:
    """Return the probability of each of these to be drawn first; they are even if all weights are 0."""
    among = {uid: weights[uid] for uid in uids}
    total = math.fsum(among.values())
    return {uid: weight / total if total else 1.0 / len(among) for uid, weight in among.items()}


def batches_of(weights: Mapping[int, float], number: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every batch, in order: drawn one after the other without replacement."""
    if number == 0:
        return {(): 1.0}
    found = {}
    for batch, probability in batches_of(weights, number - 1).items():
        for uid, share in shares(weights, weights.keys() - set(batch)).items():
            found[*batch, uid] = probability * share
    return found


def pairs_of(values: Iterable[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(values, repeat=2))


def followed(values: Iterable[int]) -> Counter[tuple[int, ...]]:
    """Count each value with the one after it."""
    return Counter(itertools.pairwise(values))


class Tally:
    """Draws from a table that changes, as numbers that are even between 0 and 1 if each had its probability.

    All that could be drawn is laid side by side, each as wide as it is likely: a draw falls somewhere into the width of
    the group that it gave. Laid out by age, a bias for newcomers shows; by weight, one for the heavy; by how long ago
    each was drawn, one for or against what was drawn last.
    """

    def __init__(self) -> None:
        self._chance = random.Random(0)
        self.number = 0
        self._drawn_at: defaultdict[int, int] = defaultdict(int)
        self._places: defaultdict[tuple[str, int], list[float]] = defaultdict(list)

    def add(self, weights: Mapping[int, float], samples: Sequence[Sample[Any]]) -> None:
        """Count a batch, whose probabilities must be those that its samples say."""
        first = shares(weights, weights)
        for _, info in samples:
            assert info.probability == pytest.approx(first[info.uid], rel=1e-12, abs=0)
        self.add_uids(weights, [info.uid for _, info in samples])

    def add_uids(self, weights: Mapping[int, float], uids: Sequence[int]) -> None:
        self.number += 1
        left = set(weights)
        for place, uid in enumerate(uids):
            likely = shares(weights, left)
            assert likely[uid] > 0, f"group {uid} was drawn before others that have a priority"
            for name, order in (
                ("age", lambda each: each),
                ("weight", lambda each: (weights[each], each)),
                ("last drawn", lambda each: (self._drawn_at[each], each)),
            ):
                before = math.fsum(likely[each] for each in left if order(each) < order(uid))
                self._places[name, place].append(before + self._chance.random() * likely[uid])
            left.remove(uid)
        self._drawn_at |= dict.fromkeys(uids, self.number)

    def assert_even(self) -> None:
        bins = dict.fromkeys(range(BINS), 1.0 / BINS)
        squares = dict.fromkeys(pairs_of(range(COARSE_BINS)), 1.0 / COARSE_BINS**2)
        for (_, place), numbers in self._places.items():
            assert_probable(Counter(min(int(number * BINS), BINS - 1) for number in numbers), bins)
            if place == 0:
                coarse = [min(int(number * COARSE_BINS), COARSE_BINS - 1) for number in numbers]
                assert_probable(followed(coarse), squares)


def open_buffer(url: str, config: TableConfig, *, seed: int | None = 1) -> Buffer:
    return ReplayBuffer(url, item_type=dict, tables={"math": config}, seed=seed)


async def fill(buffer: Buffer, priorities: Iterable[float], task_name: str = "math", **item: Any) -> dict[int, float]:
    """Put one group for each priority, and return them by uid."""
    return {await put(buffer, priority, task_name, **item): priority for priority in priorities}


async def put(buffer: Buffer, priority: float, task_name: str = "math", **item: Any) -> int:
    uid = await buffer.put([{"priority": priority, **item}], task_name, priority=priority)
    assert uid is not None
    return uid


def uids_of(samples: Iterable[Sample[Any]]) -> tuple[int, ...]:
    return tuple(info.uid for _, info in samples)


@pytest.mark.parametrize(
    ("statistic", "degrees", "expected"),
    [(3.8415, 1, 0.05), (5.9915, 2, 0.05), (16.919, 9, 0.05), (43.820, 19, 0.001), (51.179, 24, 0.001)],
)
def test_the_survival_function_agrees_with_tables(statistic: float, degrees: int, expected: float) -> None:
    assert survival(statistic, degrees) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("sampler", "exponent", "beta"),
    [(Uniform(), 0.0, 0.0), (Prioritized(1.0, beta=0.4), 1.0, 0.4), (Prioritized(0.5, beta=1.0), 0.5, 1.0)],
    ids=["uniform", "prioritized", "prioritized by the root"],
)
async def test_batches_are_drawn_without_replacement(
    url: str, sampler: Uniform | Prioritized, exponent: float, beta: float
) -> None:
    """First and second place, both together, and the first places of batches that follow each other."""
    async with open_buffer(url, TableConfig(sampler=sampler)) as buffer:
        priorities = await fill(buffer, [1.0, 2.0, 3.0, 4.0, 10.0])
        weights = {uid: priority**exponent for uid, priority in priorities.items()}
        tally, batches, times = Tally(), [], Counter[int]()
        for _ in range(1200):
            samples = await buffer.sample(2, "math")
            tally.add(weights, samples)
            batches.append(uids_of(samples))
            times.update(batches[-1])
            raw = [(len(weights) * info.probability) ** -beta for _, info in samples]
            for (group, info), importance in zip(samples, raw, strict=True):
                assert info.weight == pytest.approx(importance / max(raw), rel=1e-12)
                assert group == [{"priority": info.priority}]
                assert (info.priority, info.table_size) == (priorities[info.uid], 5)
                assert info.times_sampled == times[info.uid]
    first, pairs = shares(weights, weights), batches_of(weights, 2)
    second: defaultdict[int, float] = defaultdict(float)
    for (_, uid), probability in pairs.items():
        second[uid] += probability
    following = {pair: first[pair[0]] * first[pair[1]] for pair in pairs_of(weights)}
    assert_probable(Counter(batches), pairs)
    assert_probable(Counter(batch[0] for batch in batches), first)
    assert_probable(Counter(batch[1] for batch in batches), second)
    assert_probable(followed([batch[0] for batch in batches]), following)
    tally.assert_even()


async def test_samples_are_exact_between_inserts_takes_and_deletes(url: str) -> None:
    chance, tally = random.Random(1), Tally()
    async with open_buffer(url, TableConfig(sampler=Prioritized(1.0))) as buffer:
        weights = await fill(buffer, [1.0, 2.0, 4.0, 8.0])
        for _ in range(1000):
            verb = chance.choice(["put", "put", "take", "delete"])
            if (verb == "put" and len(weights) < 8) or len(weights) < 4:
                weights |= await fill(buffer, [chance.choice([0.5, 1.0, 2.0, 8.0])])
            elif verb == "take":
                oldest = min(weights)
                batches, _ = await buffer.take_batch({"math": 1})
                assert batches == {"math": [[{"priority": weights.pop(oldest)}]]}
            elif verb == "delete":
                gone = chance.choice(list(weights))
                assert await buffer.delete([gone]) == 1
                del weights[gone]
            tally.add(weights, await buffer.sample(2, "math"))
    tally.assert_even()


@pytest.mark.parametrize("remover", [Fifo(), Uniform(), Prioritized(1.0)], ids=["fifo", "uniform", "prioritized"])
async def test_samples_and_evictions_are_exact_beside_each_other(
    url: str, remover: Fifo | Uniform | Prioritized
) -> None:
    """A newcomer may itself be the one that gives way. Priorities change in between."""
    chance, sampled, evicted = random.Random(1), Tally(), Tally()
    config = TableConfig(sampler=Prioritized(1.0), remover=remover, max_size=4)
    async with open_buffer(url, config) as buffer:
        weights = await fill(buffer, [1.0, 2.0, 4.0, 8.0])
        for number in range(600):
            priority = chance.choice([1.0, 2.0, 4.0, 8.0])
            stored = await buffer.put([{}], "math", priority=priority)
            assert stored is not None
            weights[stored] = priority
            [gone] = stored.evicted
            if isinstance(remover, Fifo):
                assert gone == min(weights)
            else:
                evicted.add_uids(weights if remover == Prioritized(1.0) else dict.fromkeys(weights, 1.0), [gone])
            del weights[gone]
            sampled.add(weights, await buffer.sample(2, "math"))
            if number % 3 == 0:
                changed = {chance.choice(list(weights)): chance.choice([1.0, 8.0])}
                assert await buffer.update_priorities("math", changed) == []
                weights |= changed
    sampled.assert_even()
    evicted.assert_even()


async def test_samples_are_exact_between_changes_of_priority_and_status(url: str) -> None:
    """Groups come in aborted and are mended, are spoiled again, expire with the train step, and change priority."""
    chance, tally, step, verbs = random.Random(1), Tally(), 1, Counter[str]()
    async with open_buffer(url, TableConfig(sampler=Prioritized(1.0))) as buffer:
        priorities: dict[int, float] = {}
        steps: dict[int, int] = {}
        statuses: dict[int, str] = {}

        async def set_status(where: dict[str, Any], status: str) -> None:
            found = await buffer.find(where)
            for each in found:
                each.item[0]["status"] = each.status = statuses[each.uid] = status
            assert await buffer.update(found) == len(found) > 0

        while tally.number < 800:
            completed = [uid for uid, status in statuses.items() if status == "completed"]
            aborted = [uid for uid, status in statuses.items() if status == "aborted"]
            verb = chance.choice(["put", "put aborted", "mend", "spoil", "refresh", "priority", "priority"])
            verb = "put" if len(completed) < 4 else verb
            if verb.startswith("put"):
                status, priority = (
                    ("aborted" if "aborted" in verb else "completed"),
                    chance.choice([0.0, 1.0, 2.0, 8.0]),
                )
                item = {"status": status, "response_ids": [1]}
                uid = await buffer.put([item], "math", priority=priority, model_step=step)
                assert uid is not None
                priorities[uid], steps[uid], statuses[uid] = priority, step, status
            elif verb == "mend" and aborted:
                await set_status({"status": "aborted"}, "completed")
            elif verb == "spoil" and len(completed) > 4:
                await set_status({"uid": chance.choice(completed)}, "aborted")
            elif verb == "refresh":
                step += 1
                old = {uid for uid in (*completed, *aborted) if step - steps[uid] - 1 >= 4}
                expired = await buffer.refresh_staleness(task_stale_thresholds={"math": 4}, current_train_step=step)
                assert expired == {"math": len(old)}
                verbs["expired"] += len(old)
                statuses |= dict.fromkeys(old, "expired")
            elif verb == "priority":
                changed = {chance.choice(list(statuses)): chance.choice([0.0, 0.5, 4.0])}
                assert await buffer.update_priorities("math", changed) == []
                priorities |= changed
            verbs[verb] += 1
            weights = {uid: priorities[uid] for uid, status in statuses.items() if status == "completed"}
            if len(weights) >= 2:
                tally.add(weights, await buffer.sample(2, "math"))
    assert verbs["expired"] > 50
    tally.assert_even()


async def test_samples_are_exact_across_restarts_and_draws_of_another_kind(url: str) -> None:
    """Plain draws, draws by a filter and of another status, each between the others. A later process may leave out
    the table's settings and the seed; both are stored."""
    plain, filtered, of_aborted = Tally(), Tally(), Tally()
    plain_batches: list[tuple[int, ...]] = []
    weights: dict[int, float] = {}
    aborted: dict[int, float] = {}
    config = TableConfig(sampler=Prioritized(1.0))
    for life in range(8):
        buffer = open_buffer(url, config) if life % 2 == 0 else ReplayBuffer(url, item_type=dict)
        async with buffer:
            if life == 0:
                weights = await fill(buffer, [0.5, 1.0, 2.0, 3.0, 6.0])
                aborted = await fill(buffer, [1.0, 2.0, 5.0], status="aborted")
            large = {uid: weight for uid, weight in weights.items() if weight >= 1.0}
            for _ in range(90):
                samples = await buffer.sample(2, "math")
                plain.add(weights, samples)
                plain_batches.append(uids_of(samples))
                filtered.add(large, await buffer.sample(2, "math", where={"priority": {"$gte": 1.0}}))
                of_aborted.add(aborted, await buffer.sample(2, "math", group_status="aborted"))
    assert_probable(Counter(plain_batches), batches_of(weights, 2))
    assert len({tuple(plain_batches[i : i + 30]) for i in range(0, len(plain_batches), 90)}) == 8
    for tally in (plain, filtered, of_aborted):
        tally.assert_even()


async def test_priorities_may_lie_sixteen_orders_apart(url: str) -> None:
    """Two heavy groups come first, by their share; a light one is third, by its own. Then all change places."""
    values = [1e9, 5e8, 4e-7, 3e-7, 2e-7, 1e-7]
    found: Counter[tuple[int, ...]] = Counter()
    tally = Tally()
    async with open_buffer(url, TableConfig(sampler=Prioritized(1.0))) as buffer:
        weights = await fill(buffer, values)
        for number in range(900):
            if number % 30 == 0:
                weights = dict(zip(weights, [*weights.values()][1:] + [*weights.values()][:1], strict=True))
                assert await buffer.update_priorities("math", weights) == []
            samples = await buffer.sample(3, "math")
            tally.add(weights, samples)
            found[tuple(values.index(info.priority) for _, info in samples)] += 1
    assert_probable(found, batches_of(dict(enumerate(values)), 3))
    tally.assert_even()


async def test_groups_of_priority_0_come_evenly_when_no_others_are_left(url: str) -> None:
    config = TableConfig(sampler=Prioritized(0.7, beta=0.5))
    found: Counter[tuple[int, ...]] = Counter()
    evenly: Counter[tuple[int, ...]] = Counter()
    async with ReplayBuffer(url, item_type=dict, tables={"zeros": config, "mixed": config}, seed=1) as buffer:
        zeros = await fill(buffer, [0.0] * 5, "zeros")
        mixed = await fill(buffer, [0.0, 2.0, 0.0, 1.0, 0.0], "mixed")
        weights = {uid: priority**0.7 for uid, priority in mixed.items()}
        positive = {uid for uid, weight in weights.items() if weight > 0}
        first = shares(weights, weights)
        for _ in range(800):
            samples = await buffer.sample(2, "zeros")
            assert [info.probability for _, info in samples] == [0.2, 0.2]
            assert [info.weight for _, info in samples] == [1.0, 1.0]
            evenly[uids_of(samples)] += 1
            samples = await buffer.sample(4, "mixed")
            assert set(uids_of(samples[:2])) == positive
            assert [info.probability for _, info in samples] == pytest.approx(
                [first[uid] for uid in uids_of(samples)], rel=1e-12
            )
            assert [info.weight for _, info in samples[2:]] == [1.0, 1.0]
            found[uids_of(samples)] += 1
    assert_probable(evenly, batches_of(zeros, 2))
    assert_probable(found, batches_of(weights, 4))


async def test_the_share_of_replay_in_a_mixed_sample_is_exact(url: str) -> None:
    """The oldest that was never drawn comes first, the rest by the sampler from all others; plain draws in between."""
    chance, mixed, plain = random.Random(1), Tally(), Tally()
    async with open_buffer(url, TableConfig(sampler=Prioritized(1.0, beta=1.0), max_size=8)) as buffer:
        weights: dict[int, float] = {}
        unseen: set[int] = set()
        number = 0
        while number < 500:
            for priority in chance.choices([1.0, 2.0, 4.0, 8.0], k=chance.randint(1, 2)):
                uid = await put(buffer, priority)
                weights[uid] = priority
                unseen.add(uid)
            weights = dict(sorted(weights.items())[-8:])
            unseen &= set(weights)
            if len(weights) < 5 or not unseen:
                continue
            number += 1
            (_, fresh), *replay = await buffer.sample_mixed(3, "math", fresh_ratio=0.34)
            assert (fresh.uid, fresh.probability, fresh.weight) == (min(unseen), 1.0, 1.0)
            mixed.add({uid: weight for uid, weight in weights.items() if uid != fresh.uid}, replay)
            least = min(info.probability for _, info in replay)
            assert [info.weight for _, info in replay] == pytest.approx(
                [least / info.probability for _, info in replay], rel=1e-12
            )
            samples = await buffer.sample(2, "math")
            plain.add(weights, samples)
            unseen -= {fresh.uid, *uids_of(replay), *uids_of(samples)}
    mixed.assert_even()
    plain.assert_even()


async def history(url: str, seed: int | None) -> list[tuple[int, ...]]:
    """Do all that is left to chance, and return who was drawn and who gave way, by the order of their puts."""
    found: list[tuple[int, ...]] = []
    config = TableConfig(sampler=Prioritized(1.0), remover=Uniform(), max_size=6)
    numbers: dict[int, int] = {}
    async with open_buffer(url, config, seed=seed) as buffer:
        for number in range(40):
            stored = await buffer.put([{"number": number}], "math", priority=1.0 + number % 4)
            assert stored is not None
            numbers[stored] = number
            found.append(tuple(numbers[uid] for uid in stored.evicted))
            if number > 6:
                for samples in (
                    await buffer.sample(2, "math"),
                    await buffer.sample(1, "math", where={"times_sampled": {"$gte": 0}}),
                ):
                    found.append(tuple(numbers[uid] for uid in uids_of(samples)))
                await buffer.update_priorities("math", {max(numbers): 5.0})
    return found


async def test_a_seed_gives_the_same_draws_on_any_database(sqlite_url: str, postgres_url: str) -> None:
    """Two files and a server, all fresh; another seed, or none, gives others."""
    expected = await history(sqlite_url, 7)
    assert await history(f"{sqlite_url}.same", 7) == expected
    assert await history(postgres_url, 7) == expected
    others = [await history(f"{sqlite_url}.{index}", seed) for index, seed in enumerate([8, None, None])]
    assert all(one != other for one, other in itertools.combinations([expected, *others], 2))
