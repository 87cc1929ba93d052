"""`refresh_staleness`: what expires, what is counted, and what is left alone."""

import pytest

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.records import Expiry
from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["RefreshContract"]


def responses(group: list[RolloutState]) -> list[str | None]:
    return [state.response for state in group]


class RefreshContract:
    """The rows of the expiry table, for a refresh."""

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_the_threshold_is_a_cutoff(self, url: str, expiry: Expiry) -> None:
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            for number, step in enumerate([1, 4, 5, 9], start=1):
                await buffer.put(make_group(number, steps=[step, step]), "math")
            expired = await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10)
            assert expired == {"math": 2}
            assert numbers_of(await buffer.get(9, "math", Status.EXPIRED)) == [1, 2]
            assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [3, 4]

    async def test_by_group_one_stale_sample_expires_all(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 9], extra_fields={"keep": 1}), "math")
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10) == {
                "math": 1
            }
            [group] = await buffer.get(1, "math", Status.EXPIRED)
        assert [state.status for state in group] == [Status.EXPIRED] * 2
        assert responses(group) == ["", ""]
        assert [state.tokens for state in group] == [[1, 2], [1, 2]]
        assert [state.extra_fields for state in group] == [{"keep": 1}] * 2
        assert [state.message for state in group] == [state.message for state in make_group(1)]

    async def test_by_sample_only_the_stale_sample_expires(self, url: str) -> None:
        async with ReplayBuffer(url, expiry="sample") as buffer:
            await buffer.put(make_group(1, steps=[1, 9]), "math")
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10) == {
                "math": 1
            }
            assert await buffer.count("math", Status.EXPIRED) == 1
            [group] = await buffer.get(1, "math", Status.EXPIRED)
        assert [state.status for state in group] == [Status.EXPIRED, Status.COMPLETED]
        assert responses(group) == ["", "answer 1001"]
        assert group[1].response_model_steps == [9, 9]

    async def test_by_sample_the_fresh_members_of_expired_groups_expire_later(self, url: str) -> None:
        async with ReplayBuffer(url, expiry="sample") as buffer:
            await buffer.put(make_group(1, steps=[1, 7, 9]), "math")
            for step, expected in (
                (10, ["", "answer 1001", "answer 1002"]),
                (13, ["", "", "answer 1002"]),
                (15, ["", "", ""]),
            ):
                assert await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=step) == {
                    "math": 1
                }
                [found] = await buffer.find()
                assert responses(found.item) == expected

    async def test_by_group_only_what_newly_expires_counts(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math")
            await buffer.put(make_group(2, steps=[5, 5]), "math")
            counts = [
                await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=step)
                for step in (7, 8, 11)
            ]
        assert counts == [{"math": 1}, {"math": 0}, {"math": 1}]

    async def test_by_sample_what_is_expired_afterwards_counts_among_those_looked_at(self, url: str) -> None:
        async with ReplayBuffer(url, expiry="sample") as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math")
            await buffer.put(make_group(2, steps=[5, 5]), "math")
            counts = [
                await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=step)
                for step in (7, 8)
            ]
            assert counts == [{"math": 1}, {"math": 1}]
            only_completed = await buffer.refresh_staleness(
                task_stale_thresholds={"math": 5}, current_train_step=11, statuses=[Status.COMPLETED]
            )
            assert only_completed == {"math": 1}
            assert await buffer.count("math", Status.EXPIRED) == 2

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_default_statuses(self, url: str, expiry: Expiry) -> None:
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            for status in (Status.COMPLETED, Status.ABORTED, Status.FAILED, Status.FILTERED):
                await buffer.put(make_group(1, steps=[1, 1], status=status), "math")
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10) == {
                "math": 2
            }
            counts = await buffer.count_statuses(["math"], ["completed", "aborted", "expired", "failed", "filtered"])
        assert list(counts["math"].values()) == [0, 0, 2, 1, 1]

    async def test_statuses_name_what_is_looked_at(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math")
            await buffer.put(make_group(2, steps=[1, 1], status=Status.ABORTED), "math")
            expired = await buffer.refresh_staleness(
                task_stale_thresholds={"math": 5}, current_train_step=10, statuses=["aborted"]
            )
            assert expired == {"math": 1}
            by_status = {found.status: found.staleness for found in await buffer.find()}
        assert by_status == {Status.COMPLETED: 0, Status.EXPIRED: 8}

    async def test_each_task_has_its_own_threshold(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for task_name in ("math", "code", "left alone"):
                await buffer.put(make_group(1, steps=[4, 4]), task_name)
            expired = await buffer.refresh_staleness(
                task_stale_thresholds={"math": 5, "code": 6, "unknown": 1}, current_train_step=10
            )
            assert expired == {"math": 1, "code": 0, "unknown": 0}
            assert await buffer.count("left alone", Status.COMPLETED) == 1

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_the_token_threshold_goes_by_sample(self, url: str, expiry: Expiry) -> None:
        group = [
            make_state(1, response_model_steps=[1, 4]),
            make_state(2, response_model_steps=[1, 7]),
            make_state(3, response_model_steps=[1, 7], response_mask=[1, 0]),
            make_state(4, response_model_steps=[1, 1], response_mask=[0, 0]),
        ]
        agentic = [
            make_state(5, response_model_steps=[1, 1], input_ids=[1]),
            make_state(6, response_model_steps=[1, 1]),
        ]
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            await buffer.put(group, "math")
            await buffer.put(agentic, "math")
            expired = await buffer.refresh_staleness(
                task_stale_thresholds={"math": 100},
                task_token_stale_thresholds={"math": 5},
                current_train_step=10,
            )
            assert expired == {"math": 1}
            [found] = await buffer.get(9, "math", Status.EXPIRED)
            assert responses(found) == ["", "answer 2", "", "answer 4"]
            assert [state.status.value for state in found] == ["expired", "completed", "expired", "completed"]
            [untouched] = await buffer.get(9, "math", Status.COMPLETED)
            assert responses(untouched) == ["answer 5", "answer 6"]

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_what_is_not_retryable_is_dropped_and_still_counts(self, url: str, expiry: Expiry) -> None:
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            await buffer.put(make_group(1, steps=[1, 9]), "math")
            await buffer.put(make_group(2, steps=[9, 9]), "math")
            await buffer.put(make_group(3, steps=[1, 1]), "code")
            expired = await buffer.refresh_staleness(
                task_stale_thresholds={"math": 5, "code": 5},
                expired_groups_retryable_by_task={"math": False},
                current_train_step=10,
            )
            assert expired == {"math": 1, "code": 1}
            assert numbers_of([found.item for found in await buffer.find()]) == [2, 3]
            assert await buffer.count("code", Status.EXPIRED) == 1

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_groups_without_steps_never_expire(self, url: str, expiry: Expiry) -> None:
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            await buffer.put(make_group(1, seq_staleness=9), "math")
            for step in (5, 1000):
                assert await buffer.refresh_staleness(task_stale_thresholds={"math": 1}, current_train_step=step) == {
                    "math": 0
                }
            assert await buffer.count("math", Status.COMPLETED) == 1

    async def test_a_refresh_sets_the_train_step_back_too(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math", current_train_step=10)
            await buffer.refresh_staleness(task_stale_thresholds={"math": 50}, current_train_step=6)
            assert (await buffer.stats()).tasks["math"].train_step == 6
            [found] = await buffer.find()
            assert found.staleness == 4

    async def test_more_groups_than_one_slice_expire_in_part(self, url: str) -> None:
        async with ReplayBuffer(url, expiry="sample") as buffer:
            for number in range(150):
                await buffer.put(make_group(number, steps=[1, 9]), "math")
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10) == {
                "math": 150
            }
            assert await buffer.count("math", Status.EXPIRED) == 150
