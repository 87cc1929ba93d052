"""Calls that cannot mean anything: each is a typed error that says what to type, and writes nothing."""

from typing import Any

import pytest

from sqlreplay import BadArgument, BadUrl, InvalidGroup, ReplayBuffer, SqlReplayError, Status
from sqlreplay.testing.factories import make_group, make_state

__all__ = ["BadInputContract"]


class BadInputContract:
    """Refused alike on every database, before anything is written."""

    @pytest.mark.parametrize(
        ("items", "error"),
        [
            (make_state(1), InvalidGroup),
            ("text", InvalidGroup),
            (None, InvalidGroup),
            ({1: make_state(1)}, InvalidGroup),
            ((state for state in make_group(1)), InvalidGroup),
            ([make_state(1), {"message": []}], InvalidGroup),
            ([make_state(1), None], InvalidGroup),
            ([[make_state(1)]], InvalidGroup),
        ],
        ids=["one item", "text", "None", "dict", "generator", "mixed", "with None", "nested"],
    )
    async def test_groups(self, url: str, items: Any, error: type[Exception]) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(error, match="RolloutState"):
                await buffer.put(items, "math")
            assert await buffer.size() == 0
            assert (await buffer.stats()).tasks == {}

    @pytest.mark.parametrize(
        "arguments",
        [
            {"task_name": ""},
            {"task_name": None},
            {"task_name": 5},
            {"task_name": "a\x00b"},
            {"task_name": "\ud800"},
            {"stale_threshold": 0},
            {"stale_threshold": -1},
            {"stale_threshold": 1.5},
            {"token_stale_threshold": 0},
            {"model_step": "3"},
            {"model_step": 2**63},
            {"current_train_step": True},
            {"current_train_step": -(2**63)},
            {"priority": -1},
            {"priority": float("nan")},
            {"priority": float("inf")},
            {"priority": "high"},
            {"meta": [1]},
            {"meta": {"a": float("nan")}},
            {"meta": {"a": float("-inf")}},
            {"meta": {"a": 2**63}},
            {"meta": {"a": -(2**63) - 1}},
            {"meta": {"a": "b\x00"}},
            {"meta": {"a": "\udfff"}},
            {"meta": {"a\x00": 1}},
            {"meta": {"\ud800": 1}},
            {"meta": {1: 2}},
            {"meta": {"a": [{"b": float("nan")}]}},
            {"meta": {"a": object()}},
        ],
        ids=lambda arguments: ascii(arguments).partition(" at 0x")[0],
    )
    async def test_arguments_of_put(self, url: str, arguments: dict[str, Any]) -> None:
        group = make_group(1)
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(BadArgument):
                await buffer.put(group, **{"task_name": "math", **arguments})
            assert await buffer.size() == 0
            assert (await buffer.stats()).tasks == {}
        assert group == make_group(1)

    async def test_the_largest_numbers_that_fit(self, url: str) -> None:
        meta = {"top": 2**63 - 1, "bottom": -(2**63), "large": 1e308, "text": "\U0001f600", "none": None}
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math", meta=meta)
            for name in ("top", "bottom", "large", "text"):
                assert await buffer.count_where({f"meta.{name}": meta[name]}) == 1
            assert await buffer.count_where({"meta.top": 2**63 - 2}) == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            {"task_batch_sizes": {"math": -1}},
            {"task_batch_sizes": {"math": 1.5}},
            {"task_batch_sizes": {"math": True}},
            {"task_batch_sizes": {"math": None}},
            {"task_batch_sizes": {"": 1}},
            {"task_batch_sizes": {"a\x00": 1}},
            {"task_batch_sizes": ["math"]},
            {"task_batch_sizes": 5},
            {"group_status": "unheard of"},
            {"group_status": None},
            {"timeout": -1},
            {"timeout": "soon"},
            {"timeout": float("nan")},
            {"max_tokens": 0},
            {"max_tokens": -5},
            {"train_step": 1.5},
        ],
        ids=ascii,
    )
    async def test_arguments_of_take_batch(self, url: str, arguments: dict[str, Any]) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            with pytest.raises(BadArgument):
                await buffer.take_batch(**{"task_batch_sizes": {"math": 1}, **arguments})
            assert await buffer.size() == 1

    async def test_arguments_of_other_verbs(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math")
            refused: list[Any] = [
                lambda: buffer.get(-1, "math", Status.COMPLETED),
                lambda: buffer.get(1, "math", "unheard of"),
                lambda: buffer.count("math", "unheard of"),
                lambda: buffer.count("", Status.COMPLETED),
                lambda: buffer.count_statuses(["math"], ["completed", "unheard of"]),
                lambda: buffer.is_ready({"math": -1}),
                lambda: buffer.find(limit=-1),
                lambda: buffer.find(limit="all"),  # type: ignore[arg-type]
                lambda: buffer.delete(["first"]),  # type: ignore[list-item]
                lambda: buffer.refresh_staleness(task_stale_thresholds={"math": 0}, current_train_step=9),
                lambda: buffer.refresh_staleness(
                    task_stale_thresholds={"math": 1},
                    task_token_stale_thresholds={"math": -1},
                    current_train_step=9,
                ),
                lambda: buffer.refresh_staleness(
                    task_stale_thresholds={"math": 1},
                    current_train_step=None,  # type: ignore[arg-type]
                ),
                lambda: buffer.refresh_staleness(
                    task_stale_thresholds={"math": 1}, current_train_step=9, statuses=["unheard of"]
                ),
            ]
            for call in refused:
                with pytest.raises(BadArgument):
                    await call()
            [found] = await buffer.find()
            assert (found.status, found.staleness) == (Status.COMPLETED, 0)
            assert (await buffer.stats()).tasks["math"].train_step is None

    @pytest.mark.parametrize(
        "arguments",
        [
            {"policy": "fastest"},
            {"policy": object()},
            {"expiry": "never"},
            {"run": ""},
            {"run": "a\x00b"},
            {"schema": "drop"},
            {"synchronous": "off"},
            {"busy_timeout_s": 0},
            {"pool_size": 0},
            {"item_type": 5},
        ],
        ids=lambda arguments: ascii(arguments).partition(" at 0x")[0],
    )
    def test_arguments_of_the_buffer(self, url: str, arguments: dict[str, Any]) -> None:
        with pytest.raises(BadArgument):
            ReplayBuffer(url, **arguments)

    @pytest.mark.parametrize(
        "wrong", ["replay", "mysql://host/database", "http://host", "sqlite://replay.db", "://", "redis://x"]
    )
    def test_urls(self, wrong: str) -> None:
        with pytest.raises(BadUrl, match="Type") as caught:
            ReplayBuffer(wrong)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, SqlReplayError)
