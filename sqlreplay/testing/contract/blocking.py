"""The same verbs without await."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sqlreplay import BadArgument, BlockingReplayBuffer, Status, StoreClosed, TakeTimeout
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["BlockingContract"]


class BlockingContract:
    """`BlockingReplayBuffer`, from one thread and from many."""

    def test_every_verb(self, url: str) -> None:
        with BlockingReplayBuffer(url) as buffer:
            uid = buffer.put(make_group(1, steps=[1, 1]), "math")
            assert uid is not None
            assert buffer.put([], "math") is None
            assert len(buffer) == buffer.size() == 1
            assert buffer.count("math", "completed") == 1
            assert buffer.count_statuses(["math"], [Status.FAILED]) == {"math": {Status.FAILED: 0}}
            assert buffer.count_where({"uid": uid}) == 1
            assert buffer.is_ready({"math": 1})
            [found] = buffer.find()
            assert buffer.update([found]) == 1
            assert buffer.stats().groups == 1
            assert buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10) == {"math": 1}
            assert numbers_of(buffer.get(1, "math", Status.EXPIRED)) == [1]
            assert buffer.delete([uid]) == 0
            assert buffer.take_batch({"math": 1}) == ({"math": []}, {"math": 0})

    def test_errors_are_the_same(self, url: str) -> None:
        with BlockingReplayBuffer(url) as buffer:
            with pytest.raises(BadArgument):
                buffer.get(-1, "math", Status.COMPLETED)
            with pytest.raises(TakeTimeout):
                buffer.take_batch({"math": 1}, timeout=0.01, require_full=True)
        with pytest.raises(StoreClosed):
            buffer.size()

    def test_eight_threads(self, url: str) -> None:
        with BlockingReplayBuffer(url) as buffer:

            def work(first: int) -> list[int | None]:
                for number in range(25):
                    buffer.put(make_group(first + number), "math")
                return numbers_of(buffer.get(25, "math", Status.COMPLETED))

            with ThreadPoolExecutor(8) as pool:
                taken = [number for numbers in pool.map(work, range(0, 800, 100)) for number in numbers]
            assert len(buffer) == 0
        assert sorted(map(str, taken)) == sorted(
            str(first + number) for first in range(0, 800, 100) for number in range(25)
        )

    def test_a_put_from_one_thread_wakes_another(self, url: str) -> None:
        with BlockingReplayBuffer(url) as buffer:
            taken: list[int | None] = []

            def take() -> None:
                taken.extend(numbers_of(buffer.take_batch({"math": 1}, timeout=30)[0]["math"]))

            thread = threading.Thread(target=take)
            thread.start()
            buffer.put(make_group(1), "math")
            thread.join(20)
            assert taken == [1]

    async def test_inside_a_running_event_loop(self, url: str) -> None:
        with BlockingReplayBuffer(url) as buffer:
            buffer.put(make_group(1), "math")
            assert numbers_of(buffer.get(1, "math", Status.COMPLETED)) == [1]
