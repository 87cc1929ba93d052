"""The wheel on a machine that has nothing else: it installs, makes its tables, and stores and gives back a group."""

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
MISSING = ("torch", "ray", "numpy", "pyarrow")
USE = f"""
import asyncio, importlib.util, sys
from pathlib import Path
import sqlreplay
from sqlreplay import ReplayBuffer
from sqlreplay.store.schema import migrations_folder

package = Path(sqlreplay.__file__).parent
assert "site-packages" in package.parts, package
assert migrations_folder() == package / "migrations", migrations_folder()
assert [name for name in {MISSING!r} if importlib.util.find_spec(name)] == []

async def main(mode):
    async with ReplayBuffer("replay.db", item_type=dict, schema=mode) as buffer:
        await buffer.put([{{"answer": 42, "text": "\\u4e16"}}], "math", model_step=1)
        assert await buffer.get(1, "math", "completed") == [[{{"answer": 42, "text": "\\u4e16"}}]]
        assert await buffer.size() == 0

asyncio.run(main(sys.argv[1]))
print("works")
"""


def run(*command: str | Path, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=None if environment is None else dict(environment),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as a release does. pip fetches the build backend itself, so it need not be installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, CHECKOUT, folder=folder)
    (found,) = folder.glob("sqlreplay-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, folder=folder)
    return folder


def outside() -> dict[str, str]:
    """An environment in which no variable leads back to the checkout."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def test_wheel_holds_what_a_store_needs(wheel: Path) -> None:
    """Without its revisions a store cannot be created; without the marker its types are not seen."""
    names = zipfile.ZipFile(wheel).namelist()
    revisions = {path.name for path in (CHECKOUT / "migrations" / "versions").glob("*.py")}
    assert revisions
    assert {f"sqlreplay/migrations/versions/{name}" for name in revisions} <= set(names)
    assert {"sqlreplay/migrations/env.py", "sqlreplay/migrations/script.py.mako", "sqlreplay/py.typed"} <= set(names)
    modules = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "sqlreplay").rglob("*.py")}
    assert modules <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"sqlreplay", next(top for top in tops if top.endswith(".dist-info"))}


@pytest.mark.timeout(300)
def test_wheel_works_where_nothing_else_is(environment: Path, tmp_path: Path) -> None:
    """Outside the checkout and without numpy, torch or Ray, opening makes the tables and a group goes in and out."""
    assert (
        run(environment / "bin" / "python", "-c", USE, "upgrade", folder=tmp_path, environment=outside()) == "works\n"
    )
    assert (tmp_path / "replay.db").exists()


@pytest.mark.timeout(300)
def test_wheel_brings_its_command(environment: Path, tmp_path: Path) -> None:
    """The command makes the tables from the revisions in the wheel; a store that may not make any then finds them."""
    run(
        environment / "bin" / "sqlreplay",
        "db",
        "create",
        "--url",
        "sqlite:///replay.db",
        folder=tmp_path,
        environment=outside(),
    )
    run(
        environment / "bin" / "sqlreplay",
        "db",
        "upgrade",
        "--url",
        "sqlite:///replay.db",
        folder=tmp_path,
        environment=outside(),
    )
    assert run(environment / "bin" / "python", "-c", USE, "check", folder=tmp_path, environment=outside()) == "works\n"
