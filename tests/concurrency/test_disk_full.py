"""SQLite on a disk that fills up. Only SQLite: a Postgres server's disk is not the client's to fill."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workers import make_group, stored

from sqlreplay import BlockingReplayBuffer, RolloutState, StoreUnavailable

LIMIT_BYTES = 3 * 2**20
PADDING = "x" * 20_000


@pytest.fixture
def small_disk() -> Iterator[Path | None]:
    """A filesystem of three megabytes, or None where this user may not mount one."""
    with tempfile.TemporaryDirectory(prefix="sqlreplay-small-disk-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={LIMIT_BYTES}", "tmpfs", folder]
        try:
            mounted = subprocess.run(mount, capture_output=True).returncode == 0
        except FileNotFoundError:
            mounted = False
        yield Path(folder) if mounted else None
        if mounted:
            subprocess.run(["umount", folder], check=True)


def fill(buffer: BlockingReplayBuffer) -> list[int]:
    """Put until the store refuses, and return what it acknowledged."""
    acknowledged = []
    with pytest.raises(StoreUnavailable):
        for number in range(10**4):
            buffer.put(padded_group(number), "math")
            acknowledged.append(number)
    return acknowledged


def padded_group(number: int) -> list[RolloutState]:
    group = make_group(number)
    group[0].extra_fields = {"padding": os.urandom(10_000).hex() + PADDING}
    return group


def check_full_and_freed(path: Path, free: Callable[[], None], folder: Path) -> None:
    url = f"sqlite:///{path}"
    with BlockingReplayBuffer(url) as buffer:
        acknowledged = fill(buffer)
        assert len(acknowledged) > 5
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                while True:
                    number = len(acknowledged)
                    buffer.put(padded_group(number), "math")
                    acknowledged.append(number)
        assert buffer.count("math", "completed") == len(acknowledged)
        assert len(buffer.find({})) == len(acknowledged)
        free()
        for _ in range(5):
            number = len(acknowledged)
            buffer.put(padded_group(number), "math")
            acknowledged.append(number)
    for written in path.parent.glob("replay.db*"):  # read where there is room: opening writes, too
        shutil.copy(written, folder)
    assert sorted(stored(f"sqlite:///{folder / 'replay.db'}")) == acknowledged


def test_a_full_disk(small_disk: Path | None, tmp_path: Path) -> None:
    """Where nothing can be mounted, a limit on file sizes in a process of its own stands in for the disk."""
    if small_disk is None:
        run_with_limited_files(tmp_path)
        return
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(LIMIT_BYTES // 3))
    check_full_and_freed(small_disk / "replay.db", ballast.unlink, tmp_path)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    run_with_limited_files(tmp_path)


def run_with_limited_files(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    script = f"import test_disk_full; test_disk_full.fill_limited({str(folder / 'replay.db')!r}, {str(elsewhere)!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def fill_limited(path: str, elsewhere: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    check_full_and_freed(Path(path), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)), Path(elsewhere))
