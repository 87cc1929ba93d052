"""Rate limiters: Reverb's two inequalities, written out again here and compared on every small case."""

import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from sqlreplay import BadArgument, MinSize, Queue, SampleToInsertRatio, Stack
from sqlreplay.limiters import Counters, RateLimiter


class Four(NamedTuple):
    """Reverb's four numbers, as its documentation has them for each limiter."""

    samples_per_insert: float
    min_size: int
    min_diff: float
    max_diff: float

    def lets_sample(self, so_far: Counters, count: int) -> bool:
        inserts, deletes, samples = so_far
        if inserts - deletes < self.min_size:
            return False
        return inserts * self.samples_per_insert - samples - count >= self.min_diff

    def lets_insert(self, so_far: Counters, count: int) -> bool:
        inserts, deletes, samples = so_far
        if inserts + count - deletes <= self.min_size:
            return True
        return (inserts + count) * self.samples_per_insert - samples <= self.max_diff


TABLE: list[tuple[RateLimiter, Four]] = [
    (MinSize(1), Four(1, 1, -math.inf, math.inf)),
    (MinSize(4), Four(1, 4, -math.inf, math.inf)),
    (SampleToInsertRatio(1, 1, 1), Four(1, 1, 0, 2)),
    (SampleToInsertRatio(2.0, 3, 4.0), Four(2.0, 3, 2.0, 10.0)),
    (SampleToInsertRatio(0.5, 2, 1.5), Four(0.5, 2, -0.5, 2.5)),
    (SampleToInsertRatio(1.5, 2, (-2, 4)), Four(1.5, 2, -2, 4)),
    (SampleToInsertRatio(3, 1, (3.0, 9.5)), Four(3, 1, 3.0, 9.5)),
    (Queue(1), Four(1, 1, 0, 1)),
    (Queue(3), Four(1, 1, 0, 3)),
    (Stack(1), Four(1, 1, 0, 1)),
    (Stack(4), Four(1, 1, 0, 4)),
]
each_limiter = pytest.mark.parametrize(("limiter", "four"), TABLE, ids=[repr(limiter) for limiter, _ in TABLE])


def small_cases() -> Iterator[tuple[Counters, int]]:
    for inserts in range(8):
        for deletes in range(inserts + 1):
            for samples in range(14):
                for count in range(1, 5):
                    yield Counters(inserts, deletes, samples), count


@each_limiter
def test_a_limiter_has_the_four_numbers_of_reverb(limiter: RateLimiter, four: Four) -> None:
    assert (limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff) == four
    assert limiter.largest_batch == four.max_diff - four.min_diff


@each_limiter
def test_sampling_waits_exactly_where_the_inequality_says(limiter: RateLimiter, four: Four) -> None:
    answers = set()
    for so_far, count in small_cases():
        allowed = limiter.sampling_must_wait(so_far, count) is None
        assert allowed == four.lets_sample(so_far, count), (so_far, count)
        answers.add(allowed)
    assert answers == {True, False}


@each_limiter
def test_inserting_waits_exactly_where_the_inequality_says(limiter: RateLimiter, four: Four) -> None:
    for so_far, count in small_cases():
        allowed = limiter.inserting_must_wait(so_far, count) is None
        assert allowed == four.lets_insert(so_far, count), (so_far, count)


def test_inserting_asks_for_one_unless_told() -> None:
    queue = Queue(2)
    assert queue.inserting_must_wait(Counters(1, 0, 0)) is None
    assert queue.inserting_must_wait(Counters(2, 0, 0)) is not None


def test_a_number_around_the_offset_is_the_pair_it_stands_for() -> None:
    number, pair = SampleToInsertRatio(2.0, 5, 3.0), SampleToInsertRatio(2.0, 5, (7.0, 13.0))
    for so_far, count in small_cases():
        assert (number.sampling_must_wait(so_far, count) is None) == (pair.sampling_must_wait(so_far, count) is None)
        assert (number.inserting_must_wait(so_far, count) is None) == (pair.inserting_must_wait(so_far, count) is None)


@pytest.mark.parametrize("limiter", [limiter for limiter, _ in TABLE if limiter.largest_batch >= 2], ids=repr)
def test_a_limiter_that_was_accepted_never_holds_up_both_sides(limiter: RateLimiter) -> None:
    """Every state that single inserts, samples and deletes can reach, up to a few inserts."""
    seen, todo = set(), [Counters(0, 0, 0)]
    while todo:
        state = todo.pop()
        if state in seen or state.inserts > 9 or state.samples > 20:
            continue
        seen.add(state)
        inserts, deletes, samples = state
        may_insert = limiter.inserting_must_wait(state, 1) is None
        may_sample = limiter.sampling_must_wait(state, 1) is None
        assert may_insert or may_sample, state
        if may_insert:
            todo.append(Counters(inserts + 1, deletes, samples))
        if may_sample:
            todo.append(Counters(inserts, deletes, samples + 1))
        if deletes < inserts:
            todo.append(Counters(inserts, deletes + 1, samples))
    assert len(seen) > 50


@pytest.mark.parametrize("size", [0, -1, 1.0, 2.5, True, "3", None, 2**53])
@pytest.mark.parametrize(
    "make",
    [MinSize, Queue, Stack, lambda size: SampleToInsertRatio(1.0, size, 10.0)],
    ids=["MinSize", "Queue", "Stack", "SampleToInsertRatio"],
)
def test_a_size_that_is_no_whole_number_above_0_is_refused_by_its_value(make: Any, size: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        make(size)
    assert repr(size) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("limiter", [MinSize, Queue, Stack])
def test_a_refused_size_is_named_after_its_limiter(limiter: Any) -> None:
    with pytest.raises(ValueError, match=f"{limiter.__name__} is 0, expected a whole number, 1 or more"):
        limiter(0)


@pytest.mark.parametrize("ratio", [0, 0.0, -1, -0.5, math.nan, math.inf, True, "2", None])
def test_a_ratio_that_is_no_number_above_0_is_refused_by_its_value(ratio: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        SampleToInsertRatio(ratio, 1, 10.0)
    assert "samples_per_insert" in str(caught.value)
    assert repr(ratio) in str(caught.value)


@pytest.mark.parametrize("buffer", [0, -1.0, math.nan, math.inf, True, "3", None, (), (1,), (1, 2, 3), (0, math.nan)])
def test_an_error_buffer_that_is_neither_a_number_nor_a_pair_is_refused_by_its_value(buffer: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        SampleToInsertRatio(1.0, 1, buffer)
    assert "error_buffer" in str(caught.value)
    assert repr(buffer) in str(caught.value)


@pytest.mark.parametrize(
    ("ratio", "buffer", "smallest"),
    [(1.0, 0.99, "2"), (1.0, (0.0, 1.99), "2"), (0.25, 0.5, "2"), (3.0, 2.5, "6"), (3.0, (1.0, 6.5), "6")],
)
def test_an_error_buffer_that_could_block_for_ever_is_refused(ratio: float, buffer: Any, smallest: str) -> None:
    with pytest.raises(BadArgument, match="for ever") as caught:
        SampleToInsertRatio(ratio, 2, buffer)
    assert repr(buffer) in str(caught.value)
    assert f"= {smallest}:" in str(caught.value)


@pytest.mark.parametrize(("ratio", "buffer"), [(1.0, 1.0), (1.0, (0.0, 2.0)), (0.25, 1.0), (3.0, 3.0)])
def test_the_smallest_error_buffer_that_cannot_block_is_taken(ratio: float, buffer: Any) -> None:
    assert SampleToInsertRatio(ratio, 2, buffer).largest_batch == 2 * max(1.0, ratio)


def test_a_lowest_value_above_the_first_sample_is_refused() -> None:
    with pytest.raises(BadArgument, match="never") as caught:
        SampleToInsertRatio(2.0, 3, (6.5, 20.0))
    assert "6.5" in str(caught.value)
    assert "= 6:" in str(caught.value)
    assert SampleToInsertRatio(2.0, 3, (6.0, 20.0)).min_diff == 6.0


def test_a_highest_value_below_the_first_sample_warns() -> None:
    with pytest.warns(UserWarning, match=r"5\.5 is below .* = 6: inserts may block"):
        SampleToInsertRatio(2.0, 3, (0.0, 5.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SampleToInsertRatio(2.0, 3, (0.0, 6.0))


def test_the_warning_points_at_the_line_that_made_the_limiter() -> None:
    with pytest.warns(UserWarning, match="highest") as caught:
        SampleToInsertRatio(2.0, 3, (0.0, 5.5))
    assert caught[0].filename == __file__


def test_a_wait_says_its_numbers() -> None:
    assert "waits for 5 groups and the table holds 3" in str(MinSize(5).sampling_must_wait(Counters(4, 1, 0), 1))
    ratio = SampleToInsertRatio(2.0, 1, 3.0)
    reason = str(ratio.sampling_must_wait(Counters(4, 0, 7), 3))
    assert "4 inserts * 2 - 7 samples - 3 asked = -2, below -1" in reason
    reason = str(ratio.inserting_must_wait(Counters(4, 0, 2), 2))
    assert "6 inserts * 2 - 2 samples = 10, above 5" in reason
    assert "Queue(size=2)" in str(Queue(2).inserting_must_wait(Counters(2, 0, 0)))


def test_limiters_are_equal_by_kind_and_numbers() -> None:
    assert MinSize(3) == MinSize(3) != MinSize(4)
    assert SampleToInsertRatio(1.0, 2, (0.0, 4.0)) == SampleToInsertRatio(1.0, 2, [0.0, 4.0])  # type: ignore[arg-type]
    assert Queue(3) != Stack(3)
    assert len({Queue(3), Queue(3), Stack(3), MinSize(3)}) == 3
