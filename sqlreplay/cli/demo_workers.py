"""The demo's processes: producers that put groups, and a trainer that takes batches.

Each keeps a log of its own, appended to after the database has answered, so that the end can be counted from sources
that know nothing of each other. SIGTERM lets a worker finish what it is at; SIGKILL does not.
"""

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlreplay.blocking import BlockingReplayBuffer
from sqlreplay.records import RolloutState, Status

__all__ = ["BATCH_SIZES", "TASK_WEIGHTS", "Workplace", "produce", "train"]

TASK_WEIGHTS = {"math": 9, "code": 7, "chat": 4}
BATCH_SIZES = TASK_WEIGHTS
STALE_THRESHOLD = 4
PUT_EVERY_S = 0.035
TRAIN_S = 0.2
LONG_TAIL = 0.1
GROUP_NUMBERS = 1_000_000


@dataclass(frozen=True)
class Workplace:
    """Where the processes of one demo meet: a run of a database, and a folder for logs and the current step."""

    url: str
    run: str
    postgres_schema: str | None
    folder: str

    def buffer(self, **options: Any) -> BlockingReplayBuffer[RolloutState]:
        return BlockingReplayBuffer(
            self.url, run=self.run, schema="check", postgres_schema=self.postgres_schema, **options
        )

    def log_path(self, worker: str) -> Path:
        return Path(self.folder, f"{worker}.log")

    def read_step(self) -> int:
        """Return the step of the newest weights, as a real run would find them on a shared disk."""
        try:
            return int(Path(self.folder, "step").read_text())
        except FileNotFoundError:
            return 1

    def publish_step(self, step: int) -> None:
        unfinished = Path(self.folder, "step.new")
        unfinished.write_text(str(step))
        unfinished.replace(Path(self.folder, "step"))


class Log:
    """An append-only file of lines; each call is one write, so a kill leaves all of it or none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def add(self, *lines: str) -> None:
        if lines:
            os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


class Shift:
    """True until the worker is told to stop, or the demo that started it is gone."""

    def __init__(self) -> None:
        self._told_to_stop = False
        self._parent = os.getppid()
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the demo tells its workers

    def _stop(self, *_: object) -> None:
        self._told_to_stop = True

    def __bool__(self) -> bool:
        return not self._told_to_stop and os.getppid() == self._parent


def produce(workplace: Workplace, number: int) -> None:
    """Put groups until told to stop. Now and then a rollout took long, and comes from weights of some steps ago."""
    shift = Shift()
    choose = random.Random(number)  # noqa: S311 - a demo, not a secret
    tasks, weights = list(TASK_WEIGHTS), list(TASK_WEIGHTS.values())
    with workplace.buffer() as buffer, Log(workplace.log_path(f"producer-{number}")) as log:
        count = 0
        while shift:
            count += 1
            group_id = number * GROUP_NUMBERS + count
            task = choose.choices(tasks, weights)[0]
            step = workplace.read_step()
            behind = choose.randint(2, 6) if choose.random() < LONG_TAIL else 0
            buffer.put(
                rollout_group(group_id, task, choose),
                task,
                model_step=max(0, step - 1 - behind),
                current_train_step=step,
                stale_threshold=STALE_THRESHOLD,
                meta={"producer": number, "count": count},
            )
            log.add(f"put {task} {group_id}")
            time.sleep(PUT_EVERY_S)


def rollout_group(group_id: int, task: str, choose: random.Random) -> list[RolloutState]:
    """Make up one prompt with four sampled responses."""
    length = choose.randint(32, 256)
    return [
        RolloutState(
            group_id=group_id,
            task_name=task,
            message=[{"role": "user", "content": f"a question about {task}"}],
            prompt_ids=[1, 2, 3],
            response=f"answer {sample}",
            response_ids=[choose.randrange(150_000) for _ in range(length)],
            logprobs=[-choose.random() for _ in range(length)],
            response_mask=[1] * length,
            reward={"score": float(choose.random() < 0.5)},
            status=Status.COMPLETED,
        )
        for sample in range(4)
    ]


def train(workplace: Workplace, number: int) -> None:
    """Take a batch, train on it, publish the next step and expire what has become too old; until told to stop."""
    shift = Shift()
    thresholds = dict.fromkeys(TASK_WEIGHTS, STALE_THRESHOLD)
    with (
        workplace.buffer(policy="staleness") as buffer,
        Log(workplace.log_path(f"trainer-{number}")) as log,
    ):
        step = workplace.read_step()
        while shift:
            batches, _ = buffer.take_batch(BATCH_SIZES, timeout=0.5, train_step=step)
            names = identities(batches)
            log.add(*(f"taken {name}" for name in names))
            time.sleep(TRAIN_S)
            log.add(*(f"trained {name}" for name in names))
            step += 1
            workplace.publish_step(step)
            buffer.refresh_staleness(task_stale_thresholds=thresholds, current_train_step=step)


def identities(batches: Mapping[str, list[list[RolloutState]]]) -> list[str]:
    """Name groups as the producers' logs do: a take does not tell uids."""
    return [f"{task} {group[0].group_id}" for task, groups in batches.items() for group in groups]
