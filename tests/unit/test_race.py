"""The exponential race by itself: keys, clocks, sums, draws and batches, without a database."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqlreplay.store.race import BEHIND, Clock, Lot, decode, encode, exact, shares

whole_numbers = st.integers(0, 2**2400) | st.builds(
    lambda bits, low: (1 << bits) + low, st.integers(0, 2400), st.integers(0, 3)
)
weights = st.floats(5e-324, 1.7976931348623157e308)
draws = st.floats(2.0**-53, 37.0)


@given(whole_numbers, whole_numbers)
@example(0, 1)
@example(255, 256)
@example(2**1152, 2**1152 + 1)
def test_keys_sort_as_their_numbers_do(one: int, other: int) -> None:
    assert (encode(one) < encode(other)) == (one < other)
    assert (encode(one, BEHIND) < encode(other, BEHIND)) == (one < other)
    assert encode(one) < encode(other, BEHIND)


@given(whole_numbers)
@example(0)
def test_a_key_gives_its_number_back(number: int) -> None:
    assert decode(encode(number)) == (number, False)
    assert decode(encode(number, BEHIND)) == (number, True)


@given(whole_numbers, whole_numbers)
@example(0, 0)
def test_a_clock_comes_back_as_it_was_written(time: int, behind: int) -> None:
    assert Clock.read(*Clock(time, behind).write()) == Clock(time, behind)


def test_a_clock_that_was_never_written_starts_at_zero() -> None:
    assert Clock.read(None, None) == Clock(0, 0)


@given(st.lists(st.tuples(draws, weights | st.just(0.0)), min_size=1, max_size=20))
@example([(2.0**-53, 1.7976931348623157e308), (37.0, 5e-324), (2.0**-53, 1.7976931348623157e308)])
def test_a_clock_never_goes_back(entries: list[tuple[float, float]]) -> None:
    """Whoever enters is later than the clock, however far it has gone, and by their own draw to 52 bits."""
    clock = Clock()
    for draw, weight in entries:
        before = Clock(clock.time, clock.behind)
        clock.move_to(clock.key(draw, weight))
        if weight == 0:
            assert clock.behind > before.behind
            assert clock.time == before.time
        else:
            passed = clock.time - before.time
            assert clock.behind == before.behind
            assert abs(exact(weight) * passed - (exact(draw) << 1152)) * 2**52 <= exact(draw) << 1152


def test_exact_sums_do_not_drift() -> None:
    total = exact(1e16) + exact(1.0)
    assert total - exact(1e16) == exact(1.0)
    assert 1e16 + 1.0 - 1e16 != 1.0, "a float would have done"


@given(st.lists(weights, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_a_sum_is_zero_when_all_are_gone(values: list[float], chance: random.Random) -> None:
    total = sum(map(exact, values))
    chance.shuffle(values)
    for value in values:
        total -= exact(value)
    assert total == 0


@given(st.lists(weights, min_size=1, max_size=10))
@example([5e-324, 5e-324])
@example([1.7976931348623157e308, 1.7976931348623157e308])
def test_shares_are_those_of_the_exact_sum(values: list[float]) -> None:
    total = sum(map(exact, values))
    expected = [float(Fraction(exact(value), total)) for value in values]
    assert shares(values, total) == pytest.approx(expected, rel=1e-15, abs=5e-324)


def test_a_lot_gives_the_same_draws_again() -> None:
    forwards = [Lot("7", "math").draw(number) for number in range(100)]
    lot = Lot("7", "math")
    assert [lot.draw(number) for number in reversed(range(100))] == forwards[::-1]


def test_lots_differ_by_seed_task_and_number() -> None:
    lots = [Lot(seed, task) for seed in ("7", "8", "") for task in ("math", "code", "")]
    found = {lot.draw(number) for lot in lots for number in range(1000)}
    assert len(found) == len(lots) * 1000


@pytest.mark.parametrize(("seed", "task"), [("7", "math"), ("8", "math"), ("7", "code")])
def test_draws_are_exponential(seed: str, task: str) -> None:
    """Kolmogorov and Smirnov: the largest gap to the distribution function, by the root of the number, is above 2.69
    once in a million lots."""
    lot, number = Lot(seed, task), 20_000
    found = sorted(lot.draw(index) for index in range(number))
    expected = [-math.expm1(-value) for value in found]
    gap = max(max((i + 1) / number - share, share - i / number) for i, share in enumerate(expected))
    assert gap * math.sqrt(number) < 2.69


def test_draws_that_follow_each_other_are_independent() -> None:
    """Chi-square over 5 by 5 equal cells: above 72.2 (df = 24) once in a million lots."""
    lot, number = Lot("7", "math"), 20_000
    places = [int(-math.expm1(-lot.draw(index)) * 5) for index in range(number + 1)]
    found = Counter(itertools.pairwise(places))
    expected = number / 25
    cells = itertools.product(range(5), range(5))
    assert sum((found[cell] - expected) ** 2 / expected for cell in cells) < 72.2


@pytest.mark.parametrize("race", [(1.0, 2.0, 3.0, 4.0, 10.0), (1e9, 4e-7, 3e-7, 2e-7, 1e-7)], ids=["near", "far apart"])
@pytest.mark.parametrize("seed", ["1", "2"])
def test_batches_of_a_race_have_the_probabilities_of_ordered_pairs(race: tuple[float, ...], seed: str) -> None:
    """Chi-square over the ordered pairs of five: above 63.7 (df = 19) or 30.7 (df = 3) once in a million.

    Where weights lie far apart, the heaviest comes first in all but 1e-15 of the batches. Each of its draws is of
    1e-9, and the clock goes on by millions with each batch.
    """
    lot, clock, number, batches = Lot(seed, "math"), Clock(), itertools.count(), 20_000
    keys = {row: clock.key(lot.draw(next(number)), weight) for row, weight in enumerate(race)}
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(batches):
        drawn = sorted(keys, key=keys.__getitem__)[:2]
        found[tuple(drawn)] += 1
        clock.move_to(keys[drawn[-1]])
        keys |= {row: clock.key(lot.draw(next(number)), race[row]) for row in drawn}
    expected = {
        (i, j): batches * race[i] / sum(race) * race[j] / sum(race[:i] + race[i + 1 :])
        for i, j in itertools.permutations(range(len(race)), 2)
    }
    likely = {pair: count for pair, count in expected.items() if count > 1e-6}
    assert set(found) <= set(likely)
    statistic = sum((found[pair] - count) ** 2 / count for pair, count in likely.items())
    assert statistic < {20: 63.7, 4: 30.7}[len(likely)]
