"""A process that forgets to close must still end, and soon."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENDS_WITHIN_S = 5

PREAMBLE = """
import asyncio, sys, time
from sqlreplay import BlockingReplayBuffer, ReplayBuffer, RolloutState, Status
from workers import make_group
url = sys.argv[1]
"""
ENDINGS = {
    "normal end": """
buffer = BlockingReplayBuffer(url)
buffer.put(make_group(1), "math")
print("last line", flush=True)
""",
    "normal end of a loop": """
async def main():
    global buffer
    buffer = ReplayBuffer(url)
    await buffer.put(make_group(1), "math")
    print("last line", flush=True)
asyncio.run(main())
""",
    "exception": """
buffer = BlockingReplayBuffer(url)
buffer.put(make_group(1), "math")
print("last line", flush=True)
raise ZeroDivisionError
""",
    "sys.exit in a coroutine": """
async def main():
    buffer = ReplayBuffer(url)
    await buffer.put(make_group(1), "math")
    print("last line", flush=True)
    sys.exit(3)
asyncio.run(main())
""",
    "pending waits": """
async def main():
    buffer = ReplayBuffer(url)
    await buffer.put(make_group(1), "math")
    tasks = [asyncio.create_task(buffer.take_batch({"math": 5}, timeout=60)) for _ in range(3)]
    await asyncio.sleep(0.2)
    print("last line", flush=True)
asyncio.run(main())
""",
    "a thread that waits": """
import threading
buffer = BlockingReplayBuffer(url)
buffer.put(make_group(1), "math")
threading.Thread(target=lambda: buffer.take_batch({"math": 5}, timeout=60), daemon=True).start()
time.sleep(0.2)
print("last line", flush=True)
""",
}
CODES = {"exception": 1, "sys.exit in a coroutine": 3}


def start_script(script: str, url: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, url],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process: "subprocess.Popen[str]", since: float) -> tuple[int, str, float]:
    try:
        _, errors = process.communicate(timeout=ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        pytest.fail(f"still running {ENDS_WITHIN_S} s after its last line: {errors}")
    return process.returncode, errors, time.monotonic() - since


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_forgets_to_close_ends(url: str, ending: str) -> None:
    process = start_script(ENDINGS[ending], url)
    assert process.stdout is not None
    assert process.stdout.readline() == "last line\n", process.communicate()[1]
    code, errors, took_s = end_of(process, time.monotonic())
    print(f"ended after {took_s:.2f} s")
    assert code == CODES.get(ending, 0), errors
    if ending == "exception":
        assert errors.strip().endswith("ZeroDivisionError")
    else:
        assert errors == ""


@pytest.mark.parametrize(
    "opening",
    [
        "with BlockingReplayBuffer(url): pass",
        "async def main():\n    async with ReplayBuffer(url): pass\nasyncio.run(main())",
    ],
    ids=["blocking", "async"],
)
@pytest.mark.parametrize("bad_url", ["sqlite:////dev/null/replay.db", "postgresql:///replay?host=/nowhere"])
def test_a_store_that_cannot_be_opened_is_an_error_and_no_wait(bad_url: str, opening: str) -> None:
    process = start_script(f'print("opens", flush=True)\n{opening}', bad_url)
    assert process.stdout is not None
    assert process.stdout.readline() == "opens\n"
    code, errors, _ = end_of(process, time.monotonic())
    assert code == 1
    assert errors.strip().splitlines()[-1].startswith("sqlreplay.errors.StoreUnavailable")


@pytest.mark.parametrize(
    "wait",
    [
        'BlockingReplayBuffer(url).take_batch({"math": 1}, timeout=60)',
        'asyncio.run(ReplayBuffer(url).take_batch({"math": 1}, timeout=60))',
    ],
    ids=["blocking", "async"],
)
def test_control_c_ends_a_wait(url: str, wait: str) -> None:
    process = start_script(f'print("waits", flush=True)\n{wait}', url)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    time.sleep(1.0)
    assert process.poll() is None, process.communicate()[1]
    process.send_signal(signal.SIGINT)
    code, errors, took_s = end_of(process, time.monotonic())
    print(f"ended after {took_s:.2f} s")
    assert code in (130, -signal.SIGINT), errors
    assert errors.strip().endswith("KeyboardInterrupt")
