"""SIGKILL at random moments: what was acknowledged is there once and whole, and the others go on."""

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

from workers import finish, logged, start, stored, wait_until

KILLS, PRODUCERS, CONSUMERS = 15, 3, 2
BATCH, AT_ONCE = 5, 4


def test_processes_are_killed_at_random_moments(url: str, tmp_path: Path, random_seed: int) -> None:
    """Odd numbers go to `taken`, which consumers empty; even ones to `kept`, where all must be found."""
    chance = random.Random(random_seed)
    stop = str(tmp_path / "stop")
    started = Counter[str]()

    def begin(role: str) -> tuple[str, Path, "subprocess.Popen[str]"]:
        started[role] += 1
        log = tmp_path / f"{role} {started[role]}"
        if role == "produce_forever":
            first = started[role] * 10**6
            worker = start(role, url=url, log=str(log), first=first, tasks=["kept", "taken"], stop=stop)
        else:
            worker = start(role, url=url, log=str(log), batch=BATCH, tasks=["taken"], stop=stop)
        return role, log, worker

    running = [begin("produce_forever") for _ in range(PRODUCERS)] + [begin("consume") for _ in range(CONSUMERS)]
    killed = Counter[str]()
    try:
        for _ in range(KILLS):
            role, log, worker = running.pop(chance.randrange(len(running)))
            wait_until(lambda log=log: bool(logged(log)))
            time.sleep(chance.uniform(0, 0.2))
            assert worker.poll() is None, worker.communicate()[1]
            worker.kill()
            _, errors = worker.communicate()
            assert not errors
            killed[role] += 1
            running.append(begin(role))
    finally:
        Path(stop).touch()
        finish([worker for _, _, worker in running])

    acknowledged = [number for path in tmp_path.glob("produce_forever *") for number in logged(path)]
    taken = [number for path in tmp_path.glob("consume *") for number in logged(path)]
    kept, left = stored(url, task_name="kept"), stored(url, task_name="taken")
    print(f"{killed=} {len(acknowledged)=} {len(taken)=} {len(kept)=} {len(left)=}")
    assert len(taken) > 50
    assert len(kept) > 50

    twice = [number for number, times in Counter(kept + taken + left).items() if times > 1]
    assert not twice, f"handed out or stored twice: {twice}"
    missing = [number for number in acknowledged if number % 2 == 0 and number not in set(kept)]
    assert not missing, f"acknowledged and not there: {missing}"
    lost = {number for number in acknowledged if number % 2 == 1} - set(taken) - set(left)
    assert len(lost) <= killed["consume"] * BATCH, f"more than a batch for each kill: {sorted(lost)}"
    unasked = set(kept + taken + left) - set(acknowledged)
    assert len(unasked) <= killed["produce_forever"] * AT_ONCE, f"nobody put these: {sorted(unasked)}"
