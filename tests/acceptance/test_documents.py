"""The README's blocks and the examples run, and print what they say."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_python_block_of_the_readme_shows_its_output() -> None:
    assert len(BLOCKS) == (ROOT / "README.md").read_text().count("```python") > 0


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_block(number: int, tmp_path: Path) -> None:
    code, output = BLOCKS[number]
    (tmp_path / "block.py").write_text(code)
    assert run(["block.py"], tmp_path) == output


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    promised = re.search(r"^Prints:\n(.*?)^\"\"\"", path.read_text(), re.DOTALL | re.MULTILINE)
    assert promised, f"{path.name}: its docstring should end with what it prints, under 'Prints:'"
    assert run([str(path)], tmp_path).strip() == textwrap.dedent(promised[1]).strip()


def test_the_project_names_no_machine() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [ROOT / name for name in files if not name.endswith(".db")]
    assert not [path.name for path in texts if path.exists() and re.search(r"/(root|work)/", path.read_text())]
