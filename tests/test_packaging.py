"""What is installed: everything it needs, nothing undeclared, and it works where there is no compiler."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def package_name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]


def table(heading: str) -> dict[str, list[str]]:
    """The rows of one table of THIRD_PARTY.md."""
    section = (ROOT / "THIRD_PARTY.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows[2:]}


def test_third_party_lists_what_is_required():
    assert set(table("Needed")) == {package_name(requirement) for requirement in PROJECT["dependencies"]}
    optional = {
        package_name(requirement): extra
        for extra, requirements in EXTRAS.items()
        for requirement in requirements
        if package_name(requirement) != PROJECT["name"]
    }
    assert {package: row[1] for package, row in table("Optional").items()} == optional


@pytest.mark.parametrize("package", [*table("Needed"), *table("Optional")])
def test_licences_are_those_that_packages_state(package):
    licence = (table("Needed") | table("Optional"))[package][0]
    try:
        stated = metadata(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    words = [stated.get("License-Expression"), stated.get("License"), *(stated.get_all("Classifier") or [])]
    family = licence if " " in licence else licence.split("-")[0]
    assert family in " ".join(word for word in words if word)


def test_every_embedded_file_has_a_licence():
    folder = ROOT / "src" / "torchcaps" / "data" / "embedded"
    listed = table("Embedded data")
    files = {path.name for path in folder.iterdir() if not path.name.startswith("LICENSE")} - {"ORIGIN.md"}
    assert set(listed) == files
    for name, (licence, text) in listed.items():
        assert {"MIT": "MIT License", "CC-BY-SA-3.0": "ShareAlike 3.0"}[licence] in (folder / text).read_text()
        assert name in (folder / "ORIGIN.md").read_text()


def installed(package: str, extras: frozenset[str] = frozenset(), found: dict | None = None) -> dict[str, str]:
    """Versions of a package, of what it requires and of what that requires, by normalised name."""
    found = {} if found is None else found
    if (package, extras) in found:
        return found
    found[package, extras] = version(package).split("+")[0]
    for requirement in map(Requirement, requires(package) or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            installed(canonicalize_name(requirement.name), frozenset(requirement.extras), found)
    return found


def test_everything_installed_is_pinned():
    pins = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pinned = {canonicalize_name(name): number for name, number in pins}
    assert len(pinned) == len(pins)
    try:
        tested = {name: number for (name, _), number in installed(PROJECT["name"], frozenset({"dev"})).items()}
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    assert pinned == {name: number for name, number in tested.items() if name != PROJECT["name"]}


def test_all_has_every_extra_for_users():
    (everything,) = EXTRAS["all"]
    assert set(re.search(r"\[(.*)\]", everything)[1].split(",")) == set(EXTRAS) - {"dev", "docs", "all"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.mark.slow
def test_what_is_inside(built):
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"csrc/abi.h", "csrc/em_forward.cpp", "setup.py", "THIRD_PARTY.md", "tests/test_packaging.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "torchcaps/native/libtorchcaps_portable.so" in names
    assert "torchcaps/data/embedded/digits.npz" in names
    assert "torchcaps/models/shipped/capsule-a-movie-snippets/model.safetensors" in names
    assert "torchcaps/routing/em/README.md" in names
    assert [name for name in names if name.endswith("licenses/THIRD_PARTY.md")]
    assert not [name for name in names if name.startswith(("tests/", "csrc/"))]


@pytest.mark.slow
def test_it_installs_and_trains_without_a_compiler(built, tmp_path):
    sdist, wheel = built
    home = tmp_path / "empty"
    venv.create(home, with_pip=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PATH", "CC", "CXX", "PYTHONPATH")}
    environment = kept | {"PATH": str(home / "bin")}
    assert shutil.which("c++", path=environment["PATH"]) is None

    def run(*command: str) -> str:
        program = str(home / "bin" / command[0])
        process = subprocess.run([program, *command[1:]], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    install = ("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"))
    train = ("torchcaps", "train", "--epochs", "1", "--batch-size", "250")
    try:
        run(*install, "torch==2.13.0")
        run(*install, str(wheel))
        assert "libtorchcaps" in run("torchcaps", "doctor")
        assert "test accuracy: " in run(*train)
        run(*install, "setuptools")
        run(*install, "--force-reinstall", "--no-deps", "--no-build-isolation", str(sdist))
        assert "missing" in run("torchcaps", "doctor")
        assert "test accuracy: " in run(*train)
    finally:
        shutil.rmtree(home)
