"""`sqlreplay demo`: it ends well, its numbers add up, it leaves nothing behind, and it notices what does not add up."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sqlreplay import BlockingReplayBuffer
from sqlreplay.cli.demo_account import LogReader, take_stock
from sqlreplay.cli.demo_workers import BATCH_SIZES, Log, Workplace, rollout_group

PLACES = ("produced", "consumed", "waiting", "expired", "in_hands")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sqlreplay", "demo", *arguments]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "SQLREPLAY_URL"}
    return {**kept, "TMPDIR": str(folder)}


def test_the_demo_adds_up(url: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        command("--url", url, "--seconds", "4", "--json"),
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(scratch),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["version"] == 1
    assert data["problems"] == []
    assert data["produced"] == sum(data[place] for place in PLACES[1:])
    assert all(data[place] == sum(task[place] for task in data["tasks"].values()) for place in PLACES)
    assert all(data[place] > 0 for place in ("produced", "consumed", "expired"))
    assert data["in_hands"] <= data["batch"]
    assert 2 <= data["killed_at_s"] < data["seconds"]
    assert "killed with SIGKILL" in done.stderr
    assert "a new trainer went on" in done.stderr
    assert list(scratch.iterdir()) == []

    with BlockingReplayBuffer(url, run=data["run"]) as buffer:
        assert buffer.size() == data["waiting"] + data["expired"]
    with BlockingReplayBuffer(url) as buffer:
        assert buffer.size() == 0


def test_the_temporary_database_is_removed(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--seconds", "2"),
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Every group that was put is in exactly one of these places" in done.stdout
    assert "The trainer was killed with SIGKILL at" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_demo(tmp_path: Path, sent: signal.Signals) -> None:
    demo = subprocess.Popen(command("--seconds", "60"), stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    assert demo.stderr is not None
    with demo.stderr:
        for line in demo.stderr:
            if "produced" in line:
                break
        workers = children_of(demo.pid)
        assert len(workers) >= 5
        demo.send_signal(sent)
        demo.wait(30)
    deadline = time.monotonic() + 30
    while left := [pid for pid in workers if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)
    if sent == signal.SIGTERM:
        assert demo.returncode == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in listed.stdout.split()]


def is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


class Stage:
    """A finished demo made by hand, of which a test can get one thing wrong."""

    def __init__(self, url: str, folder: Path) -> None:
        self.workplace = Workplace(url, "demo", None, str(folder))
        self.random = random.Random(1)
        with BlockingReplayBuffer(url):
            pass

    def log(self, worker: str, *lines: str) -> None:
        with Log(self.workplace.log_path(worker)) as log:
            log.add(*lines)

    def problems(self, stored: list[int]) -> list[str]:
        with self.workplace.buffer() as buffer:
            for number in stored:
                buffer.put(rollout_group(number, "math", self.random), "math")
            account = take_stock(LogReader(self.workplace), buffer, killed="trainer-1", went_on="trainer-2")
        return account.problems


@pytest.fixture
def stage(url: str, tmp_path: Path) -> Stage:
    folder = tmp_path / "logs"
    folder.mkdir()
    made = Stage(url, folder)
    made.log("producer-1", *(f"put math {number}" for number in range(1, 7)))
    made.log("trainer-1", "taken math 1", "trained math 1", "taken math 2")
    made.log("trainer-2", "taken math 3", "trained math 3")
    return made


def test_what_adds_up_has_no_problems(stage: Stage) -> None:
    assert stage.problems([4, 5, 6]) == []


def test_a_group_consumed_twice_is_noticed(stage: Stage) -> None:
    stage.log("trainer-2", "taken math 1", "trained math 1")
    assert stage.problems([4, 5, 6]) == ["taken 2 times: math 1"]


def test_a_group_that_was_taken_and_is_still_there_is_noticed(stage: Stage) -> None:
    assert stage.problems([3, 4, 5, 6]) == ["taken and still stored: math 3"]


def test_a_group_stored_twice_is_noticed(stage: Stage) -> None:
    assert stage.problems([4, 4, 5, 6]) == ["stored 2 times: math 4"]


def test_a_group_that_nobody_put_is_noticed(stage: Stage) -> None:
    assert stage.problems([4, 5, 6, 7]) == ["taken or stored, but never put: math 7"]


def test_a_batch_lost_by_the_trainer_that_was_not_killed_is_noticed(stage: Stage) -> None:
    stage.log("trainer-2", "taken math 4")
    assert stage.problems([5, 6]) == ["taken by trainer-2 and never trained on: math 4"]


def test_more_than_a_batch_that_is_nowhere_is_noticed(stage: Stage) -> None:
    batch = sum(BATCH_SIZES.values())
    lost = range(100, 100 + batch)
    stage.log("producer-2", *(f"put math {number}" for number in lost))
    found = stage.problems([4, 5, 6])
    assert found[0].startswith(f"{batch + 1} groups are nowhere")
    assert found[1:] == [f"put and then nowhere: math {number}" for number in lost]
