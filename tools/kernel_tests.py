"""The tests of the native kernels where they are hard to run: under sanitizers, and on an emulated 64-bit ARM.

    python tools/kernel_tests.py sanitized --out results/reliability/sanitizers.json
    python tools/kernel_tests.py aarch64 --root ROOT [--site SITE] --out results/reliability/aarch64.json

`sanitized` builds the library for every instruction set with AddressSanitizer and UndefinedBehaviorSanitizer, and runs
every test of kernels and routings with what the processor takes, scratch memory poisoned. `aarch64` cross-compiles the
library and compares what every entry point finds in qemu with what it finds here (tests/native/threads.cpp): ROOT is a
folder with the files of Debian's arm64 packages libstdc++6 and libgomp1. With python3.11 in ROOT and a SITE with wheels
for that platform (torch, numpy, pytest, hypothesis) it then runs the tests that hold kernels against the reference. The
record is written anew after every file of tests, and with --folder the library is kept and used again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy

from torchcaps.environment import environment
from torchcaps.native import library

PROJECT = Path(__file__).parents[1]
COMMON = "-std=c++17 -fopenmp -fPIC -fvisibility=hidden -Wno-psabi"
SANITIZERS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
INSTRUCTION_SETS = {
    "avx512": "-mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma",
    "avx2": "-mavx2 -mfma",
    "portable": "",
}
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
LIBRARIES = "/lib/aarch64-linux-gnu:/usr/lib/aarch64-linux-gnu"
TOLERANCES = {"f32": 1e-4, "f64": 1e-9}  # shares of the largest entry, as against the reference
SANITIZED_TESTS = ["tests/routing/*/test_fused.py", "tests/native", "tests/routing", "tests/nn/test_routing.py"]
EMULATED_TESTS = ["tests/routing/*/test_fused.py", "tests/native/test_softmax_shared.py", "tests/native/test_em.py"]
EMULATED_TESTS += ["tests/native/test_softmax.py", "tests/native/test_sizes.py"]
# The first would run the other files again; the second measures memory, and a sanitizer keeps what is freed.
NOT_SANITIZED = "not other_builds and not test_chunked_memory"
# Compilers, and processes of their own, are not what an emulated processor is asked about.
NOT_EMULATED = "not opcheck and not compiles and not other_builds and not operator_is_sound and not gradcheck"
NOTHING_CHOSEN = 5  # what pytest ends with


@dataclass(frozen=True)
class Setting:
    """How the tests run, and what is to be known about it."""

    python: list[str]
    variables: dict[str, str]
    tests: list[str]
    chosen: str
    facts: dict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["sanitized", "aarch64"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="of the emulated system")
    parser.add_argument("--site", type=Path, help="the packages of the emulated Python")
    parser.add_argument("--tests", nargs="+", help="other files or folders of tests")
    parser.add_argument("--jobs", type=int, default=1, help="files at the same time")
    parser.add_argument("--folder", type=Path, help="where the library is built and kept")
    arguments = parser.parse_args()
    if arguments.where == "aarch64" and not arguments.root:
        parser.error("aarch64 needs --root")
    with tempfile.TemporaryDirectory() as name:
        folder = (arguments.folder or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for report in folder.glob("report.*"):  # of another time
            report.unlink()
        setting = sanitized(folder, arguments) if arguments.where == "sanitized" else emulated(folder, arguments)
        about = {"environment": environment(), "chosen": setting.chosen} | setting.facts
        paths = files_of(arguments.tests or setting.tests)

        def record(rows: list[dict]) -> dict:
            reports = [report.read_text(errors="replace")[:4000] for report in sorted(folder.glob("report.*"))]
            progress = {"files_left": len(paths) - len(rows), "reports": reports, "files": rows}
            result = about | summary(rows) | progress
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(result, indent=2) + "\n")
            return result

        result = record([])
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = [pool.submit(run_file, setting, path) for path in paths]
            for _ in as_completed(runs):
                result = record([run.result() for run in runs if run.done()])
    print({key: result[key] for key in summary([])}, f"{len(result['reports'])} reports of sanitizers")
    sys.exit(bool(result["ended_badly"] or result["reports"]))


def sanitized(folder: Path, arguments: argparse.Namespace) -> Setting:
    """Builds that check themselves, of which the processor decides; a finding ends the process and is written down."""
    compiler = os.environ.get("CXX", "c++")
    for name, flags in INSTRUCTION_SETS.items():
        build(compiler, f"{SANITIZERS} {flags}", folder / f"libtorchcaps_{name}.so")
    found = (output_of(compiler, f"-print-file-name={name}") for name in ("libasan.so", "libstdc++.so"))
    options = "detect_leaks=0:halt_on_error=1:print_stacktrace=1"
    variables = {
        "TORCHCAPS_NATIVE": str(folder),
        "TORCHCAPS_POISON": "1",
        "LD_PRELOAD": " ".join(str(Path(name).resolve()) for name in found),
        "ASAN_OPTIONS": f"{options}:log_path={folder / 'report'}",
        "UBSAN_OPTIONS": f"{options}:log_path={folder / 'report'}",
    }
    facts = {"compiler": output_of(compiler, "--version").splitlines()[0], "flags": SANITIZERS, "options": options}
    return Setting([sys.executable], variables, SANITIZED_TESTS, NOT_SANITIZED, facts)


def emulated(folder: Path, arguments: argparse.Namespace) -> Setting:
    """The portable build for 64-bit ARM."""
    build(CROSS_COMPILER, "-O3", folder / "libtorchcaps_portable.so")
    root = arguments.root.resolve()
    emulator = [EMULATOR, "-L", str(root), "-E", f"LD_LIBRARY_PATH={LIBRARIES}"]
    facts = {
        "emulator": output_of(EMULATOR, "--version").splitlines()[0],
        "compiler": output_of(CROSS_COMPILER, "--version").splitlines()[0],
        "flags": "-O3",
        "beside_this_processor": compare_with_here(folder, emulator),
    }
    if not arguments.site:
        return Setting([], {}, [], "", facts)
    python = [*emulator, str(root / "usr/bin/python3.11")]
    variables = {
        "PYTHONPATH": f"{PROJECT / 'src'}:{arguments.site.resolve()}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHCAPS_NATIVE": str(folder),
    }
    question = "import json, platform, numpy, torch; from torchcaps.native import library; print(json.dumps(dict("
    question += "machine=platform.machine(), python=platform.python_version(), numpy=numpy.__version__, "
    question += "torch=torch.__version__, why_no_kernels=library.why_not())))"
    facts["emulated"] = json.loads(output_of(*python, "-c", question, **variables).splitlines()[-1])
    return Setting(python, variables, EMULATED_TESTS, NOT_EMULATED, facts)


def compare_with_here(folder: Path, emulator: list[str]) -> dict:
    """What every entry point finds there and here, as shares of the largest entry of each result."""
    here = Path(library.load()._name).resolve()
    programs = {
        "here": (["c++"], here, []),
        "there": ([CROSS_COMPILER], folder / "libtorchcaps_portable.so", emulator),
    }
    running = []
    for name, (compiler, kernels, prefix) in programs.items():
        program, source = folder / f"results_{name}", PROJECT / "tests" / "native" / "threads.cpp"
        flags = ["-std=c++17", "-O1", "-fopenmp", "-Wno-psabi"]
        subprocess.run([*compiler, *flags, str(source), str(kernels), "-o", str(program)], check=True)
        running.append(subprocess.Popen([*prefix, str(program), "write", str(folder / f"{name}.bin")]))
    exit_codes = [process.wait() for process in running]
    if any(exit_codes):
        raise SystemExit(f"the programs ended with {exit_codes}")
    jobs, largest, num_results = set(), {"f32": 0.0, "f64": 0.0}, 0
    pairs = zip(results_in(folder / "there.bin"), results_in(folder / "here.bin"), strict=True)
    for (job, found), (_, expected) in pairs:
        share = float(abs(found - expected).max() / max(abs(expected).max(), 1e-30))
        if not share <= TOLERANCES[job[:3]]:
            raise SystemExit(f"{job}: off by {share:.1e} of the largest entry")
        largest[job[:3]] = max(largest[job[:3]], share)
        jobs.add(job)
        num_results += 1
    return {"here": here.name, "calls": len(jobs), "results": num_results, "largest_difference": largest}


def results_in(path: Path) -> Iterator[tuple[str, numpy.ndarray]]:
    """(type and job, entries) for every result that tests/native/threads.cpp wrote."""
    with path.open("rb") as file:
        while line := file.readline().decode():
            job, count = line.rsplit("|", 1)
            yield job, numpy.frombuffer(file.read(8 * int(count)))


def build(compiler: str, flags: str, target: Path) -> None:
    """Compiles the library, unless it is newer than its sources."""
    sources = sorted((PROJECT / "csrc").glob("*.cpp"))
    newest = max(path.stat().st_mtime for path in (PROJECT / "csrc").iterdir())
    if target.exists() and target.stat().st_mtime > newest:
        return
    command = [compiler, *COMMON.split(), *flags.split()]
    objects = [str(target.with_name(f"{source.stem}.o")) for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        steps = ([*command, "-c", str(source), "-o", name] for source, name in zip(sources, objects, strict=True))
        list(pool.map(lambda step: subprocess.run(step, check=True), steps))
    subprocess.run([*command, "-shared", *objects, "-o", str(target)], check=True)


def output_of(*command: str, **variables: str) -> str:
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
    return finished.stdout.strip()


def files_of(tests: list[str]) -> list[Path]:
    found = [path for pattern in tests for path in sorted(PROJECT.glob(pattern))]
    files = [file for path in found for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    return [file.relative_to(PROJECT) for file in dict.fromkeys(files)]


def run_file(setting: Setting, path: Path) -> dict:
    """One file in a process of its own, so that one that dies takes no other with it."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        options = "-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"--basetemp={folder}/files"
        finished = subprocess.run(
            [*setting.python, "-m", "pytest", *options, "-k", setting.chosen, str(path)],
            cwd=PROJECT,
            env=os.environ | setting.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        counts = counts_of(report)
    print(f"{path}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", flush=True)
    if finished.returncode not in (0, NOTHING_CHOSEN):
        print(finished.stdout[-4000:], flush=True)
    seconds = round(time.monotonic() - start, 1)
    return {"file": str(path), "exit_code": finished.returncode} | counts | {"seconds": seconds}


def counts_of(report: Path) -> dict:
    """What pytest wrote down: nothing where its process died."""
    cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
    passed, failed, reasons = 0, [], []
    for case in cases:
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name"))
        elif skipped is not None:
            reasons.append(skipped.get("message"))
        else:
            passed += 1
    counts = {"passed": passed, "failed": len(failed), "skipped": len(reasons)}
    return counts | {"failures": failed, "reasons_to_skip": sorted(set(reasons))}


def summary(rows: list[dict]) -> dict:
    counts = {key: sum(row[key] for row in rows) for key in ("passed", "failed", "skipped")}
    return counts | {"ended_badly": [row["file"] for row in rows if row["exit_code"] not in (0, NOTHING_CHOSEN)]}


if __name__ == "__main__":
    main()
