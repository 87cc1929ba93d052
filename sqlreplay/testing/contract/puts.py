"""What `put` stores, returns and does to the caller's objects."""

import pytest

from sqlreplay import PayloadUnsupported, ReplayBuffer, Status
from sqlreplay.testing.factories import make_group, make_state

__all__ = ["PutContract"]


class PutContract:
    """Stamping, staleness, statuses and identity of what is put."""

    async def test_a_group_comes_back_as_it_was_put(self, url: str) -> None:
        group = make_group(extra_fields={"nested": [{"a": 1.5, "b": None}, b"raw"]}, reward={"score": 0.5})
        copies = [state.model_copy(deep=True) for state in group]
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math")
            assert await buffer.get(1, "math", Status.COMPLETED) == [copies]
        assert group == copies

    async def test_uids_grow_and_are_never_given_out_again(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            first = await buffer.put(make_group(1), "math")
            second = await buffer.put(make_group(2), "code")
            assert isinstance(first, int)
            assert isinstance(second, int)
            assert first < second
            await buffer.get(1, "code", Status.COMPLETED)
            third = await buffer.put(make_group(3), "math")
            assert third is not None
            assert third > second

    async def test_an_empty_group_is_not_stored(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            assert await buffer.put([], "math") is None
            assert await buffer.size() == 0

    async def test_missing_model_steps_are_stamped(self, url: str) -> None:
        group = [
            make_state(1, response_ids=[5, 6, 7], response_model_steps=[2]),
            make_state(2, response_ids=[5, 6, 7]),
            make_state(3, response_ids=[5, 6], response_model_steps=[1, 3]),
        ]
        expected = [[2, 4, 4], [4, 4, 4], [1, 3]]
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math", model_step=4)
            [stored] = await buffer.get(1, "math", Status.COMPLETED)
        assert [state.response_model_steps for state in stored] == expected
        assert [state.response_model_steps for state in group] == expected

    async def test_staleness_is_refreshed_by_sample(self, url: str) -> None:
        group = [
            make_state(1, response_model_steps=[3, 5], seq_staleness=9),
            make_state(2, response_model_steps=[6, 6], seq_staleness=9),
            make_state(3, seq_staleness=9),
        ]
        async with ReplayBuffer(url) as buffer:
            uid = await buffer.put(group, "math", current_train_step=7)
            [found] = await buffer.find({"uid": uid})
        assert [state.seq_staleness for state in group] == [3, 0, 0]
        assert [state.seq_staleness for state in found.item] == [3, 0, 0]
        assert found.staleness == 3

    async def test_staleness_stays_as_given_without_a_train_step(self, url: str) -> None:
        group = make_group(steps=[1, 2], seq_staleness=6)
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math", model_step=3)
            [found] = await buffer.find()
        assert found.staleness == 6
        assert [state.seq_staleness for state in found.item] == [6, 6]
        assert [state.seq_staleness for state in group] == [6, 6]

    async def test_a_put_raises_the_train_step_and_never_lowers_it(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for step, expected in ((5, 5), (3, 5), (None, 5), (8, 8)):
                await buffer.put(make_group(), "math", current_train_step=step)
                assert (await buffer.stats()).tasks["math"].train_step == expected

    @pytest.mark.parametrize(
        ("samples", "expected"),
        [
            ("completed completed", "completed"),
            ("completed failed aborted expired filtered", "failed"),
            ("completed aborted expired filtered", "aborted"),
            ("completed expired filtered", "expired"),
            ("completed filtered", "filtered"),
            ("completed init", "completed"),
            ("init archived", "completed"),
        ],
    )
    async def test_a_group_waits_by_the_worst_of_its_samples(self, url: str, samples: str, expected: str) -> None:
        group = [make_state(index, status=Status(name)) for index, name in enumerate(samples.split())]
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math")
            counts = await buffer.count_statuses(["math"], list(Status))
        assert {status.value for status, count in counts["math"].items() if count} == {expected}

    async def test_a_refused_group_leaves_the_callers_objects_alone(self, url: str) -> None:
        group = make_group(extra_fields={"code": print})
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(PayloadUnsupported, match="extra_fields"):
                await buffer.put(group, "math", model_step=3, current_train_step=9, stale_threshold=1)
            assert await buffer.size() == 0
        assert [state.response_model_steps for state in group] == [None, None]
        assert [state.seq_staleness for state in group] == [0, 0]
        assert [state.status for state in group] == [Status.COMPLETED] * 2

    async def test_a_change_after_the_put_does_not_reach_the_store(self, url: str) -> None:
        group = make_group(prompt_ids=[1, 2, 3])
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math")
            assert group[0].prompt_ids is not None
            group[0].prompt_ids.append(4)
            [stored] = await buffer.get(1, "math", Status.COMPLETED)
        assert stored[0].prompt_ids == [1, 2, 3]

    async def test_a_tuple_is_a_group_too(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(tuple(make_group()), "math")
            assert await buffer.get(1, "math", Status.COMPLETED) == [make_group()]

    async def test_a_closed_buffer_keeps_what_was_put(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(4), "math", priority=2.5, meta={"source": "web"})
        async with ReplayBuffer(url) as buffer:
            [found] = await buffer.find({"priority": 2.5, "meta.source": "web"})
        assert found.item == make_group(4)
