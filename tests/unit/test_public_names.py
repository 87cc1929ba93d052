"""What is public is listed, sorted and documented."""

import importlib
import inspect
import subprocess
import sys

import pytest

import sqlreplay
from sqlreplay import BlockingReplayBuffer, ReplayBuffer

PACKAGES = [
    "sqlreplay",
    "sqlreplay.errors",
    "sqlreplay.payload",
    "sqlreplay.policy",
    "sqlreplay.query",
    "sqlreplay.store",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)


def test_every_public_class_and_function_has_a_docstring() -> None:
    for name in sqlreplay.__all__:
        assert inspect.getdoc(getattr(sqlreplay, name)), name


def test_blocking_has_the_same_verbs_with_the_same_signatures() -> None:
    def verbs(kind: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(member)).replace("ReplayBuffer", "").replace("Blocking", "")
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    plumbing = {"joined", "joined_thread", "is_open", "close_and_wait"}
    assert {k: v for k, v in verbs(ReplayBuffer).items() if k not in plumbing} == verbs(BlockingReplayBuffer)


def test_import_is_light() -> None:
    code = "import sys, sqlreplay; print(sorted({'torch', 'ray', 'numpy', 'alembic'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
