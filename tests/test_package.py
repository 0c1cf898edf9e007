"""The house rules: which way imports point, how light an import is, and that the README tells the truth."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchcaps

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "torchcaps"

# A room may import from rooms of a lower floor, and from its own.
FLOORS = {
    "precision": -1,
    "versions": -1,
    "checks": 0,
    "trust": 0,
    "storage": 0,
    "pretrained": 1,
    "schedules": 1,
    "windows": 1,
    "capsules": 1,
    "clustering": 2,
    "losses": 2,
    "votes": 2,
    "inputs": 1,
    "tasks": 3,
    "native": 4.3,
    "gpu": 4.3,
    "environment": 4.5,
    "doctor": 7,
    "routing": 4,
    "nn": 5,
    "encoders": 5.5,
    "models": 6,
    "data": 6,
    "predictor": 7,
    "training": 7,
    "inspection": 6.5,
    "viz": 7,
    "attacks": 7,
    "estimators": 8,
    "retrieval": 7.5,
    "text": 7.5,
    "export": 7,
    "runs": 8,
    "benchmark": 8,
    "experiments": 9,
    "service": 9,
    "explorer": 9.5,
    "cli": 10,
}


def imported_rooms(path: Path) -> set[str]:
    """The rooms of torchcaps that a file imports from."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "torchcaps" else [f"torchcaps.{a.name}" for a in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("torchcaps.") and "__" not in name}
    return rooms


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for imported in imported_rooms(path) - {room}:
            assert FLOORS[imported] < FLOORS[room], f"{path.relative_to(ROOT)} imports torchcaps.{imported}"


def test_pictures_only_draw():
    """What is drawn is computed elsewhere: neither tensors nor models come into a picture's file."""
    for path in (SOURCE / "viz").glob("*.py"):
        assert imported_rooms(path) <= {"viz", "inspection", "data"}, path
        assert not re.search(r"^\s*(import|from) torch\b", path.read_text(), re.MULTILINE), path


def test_kernels_never_import_the_specification():
    kernels = [*SOURCE.glob("native/*.py"), *SOURCE.glob("routing/ops/*.py"), *SOURCE.glob("routing/*/lowering.py")]
    assert len(kernels) > 10
    for path in kernels:
        imports = [line for line in path.read_text().splitlines() if re.match(r"\s*(from|import) ", line)]
        assert not any("reference import" in line for line in imports), path


def test_every_public_name_resolves():
    for name in torchcaps.__all__:
        assert getattr(torchcaps, name) is not None
    assert set(torchcaps.__all__) <= set(dir(torchcaps))
    with pytest.raises(AttributeError, match="no attribute 'capsule'"):
        _ = torchcaps.capsule


def test_import_is_light():
    code = "import sys, torchcaps; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
