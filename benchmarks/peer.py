"""Do signed classes pass the tests of transformers' own classes? Both run side by side.

make peer

The tests come from the source distribution of the installed transformers, which pip fetches once into .peer/.
Exits with 1 if a test fails or is skipped on a signed class and passes on the stock class.
"""

import os
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import transformers

from benchmarks.measure import command_line, write_table

CLASS = r"<class '.*[.](?=\w+'>)|'>"
HERE = Path(__file__).parent
CACHE = HERE.parent / ".peer"  # of the downloaded tests
MODULE = "test_modeling_common"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "peer.md")
    parser.add_argument("--tests", default="", help="only tests that match (as pytest -k); saves no table")
    options = parser.parse_args()
    os.environ |= {"PEER_TESTS": str(fetched(CACHE)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    outcomes = Outcomes()
    ours = ["-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider"]  # without the configuration of tests/
    shown = ["-q", "--tb=short", "--disable-warnings", "-o", "verbosity_subtests=0"]
    chosen = ["-n", "auto", "-k", options.tests, str(HERE / "peer_tests.py")]
    code = pytest.main([*ours, *shown, *chosen], plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(
            f"expected pytest to run the tests; it ended with {code!r}. Run pytest {HERE / 'peer_tests.py'} to see why"
        )
    worse = outcomes.worse()
    if not options.tests:
        write(options.output, outcomes, worse)
    for name, how in worse:
        print(f"{how} on the signed class alone: {name}")
    sys.exit(1 if worse else 0)


def fetched(cache: Path) -> Path:
    """The folder with the tests of the installed transformers, as an importable package."""
    version = transformers.__version__
    folder = cache / f"transformers_tests_{version.replace('.', '_')}"
    if not folder.exists():
        source = ["--no-deps", "--no-binary", ":all:", "--dest", str(cache), f"transformers=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *source], check=True)
        unpacked(cache / f"transformers-{version}.tar.gz", folder)
    return folder


def unpacked(archive: Path, folder: Path) -> None:
    """Extract the tests of models from a source distribution, with empty mixins in place of missing ones."""
    with tarfile.open(archive) as tar:
        tests = tar.extractfile(f"{archive.name.removesuffix('.tar.gz')}/tests/{MODULE}.py").read().decode()
    for package, module, mixin in re.findall(r"^from \.(\w+)\.(\w+) import (\w+)", tests, re.MULTILINE):
        (folder / package).mkdir(parents=True)
        (folder / package / f"{module}.py").write_text(f"class {mixin}:\n    pass\n")
    (folder / f"{MODULE}.py").write_text(tests)


class Outcomes:
    """A pytest plugin that collects the outcome of every test and subtest."""

    def __init__(self) -> None:
        # family: {"Stock" or "Signed": {test: outcome}}
        self.by_family: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: {"Stock": {}, "Signed": {}})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        place = re.search(r"::(Stock|Signed)(\w+)::", report.nodeid)
        if not place or (report.when != "call" and report.passed):
            return
        kind, family = place.groups()
        test = report.nodeid.rpartition("::")[2]
        if part := getattr(report, "context", None):  # `subTest`, often named by the repr of a class
            test += f"[{re.sub(CLASS, '', part.msg or str(part.kwargs)).replace('Bidir', '')}]"
        self.by_family[family][kind].setdefault(test, report.outcome)
        if report.failed:
            self.by_family[family][kind][test] = "failed"

    def worse(self) -> list[tuple[str, str]]:
        """`(family and test, outcome)` of every test that passes on the stock class but not on the signed one."""
        return [
            (f"{family} {test}", kinds["Signed"].get(test, "missing"))
            for family, kinds in self.by_family.items()
            for test, outcome in kinds["Stock"].items()
            if outcome == "passed" and kinds["Signed"].get(test) != "passed"
        ]


def write(output: Path, outcomes: Outcomes, worse: list[tuple[str, str]]) -> None:
    kinds = {family: outcomes.by_family[family] for family in sorted(outcomes.by_family)}
    numbers = {family: counts(kind["Stock"]) + counts(kind["Signed"]) for family, kind in kinds.items()}
    numbers["all"] = [sum(column) for column in zip(*numbers.values(), strict=True)]
    rows = [[family, *map(str, row)] for family, row in numbers.items()]
    listed = "".join(f"\n- {name}: {how} on the signed class alone" for name, how in worse)
    notes = (
        f"Transformers' `ModelTesterMixin` (`{MODULE}.py` of its source distribution) on small random models, each "
        "with its heads (`peer_tests.py`), signed ones with λ = 1. The mixins for generation and export are not in the "
        "distribution; most skipped tests need a GPU or are about other kinds of models. Tests, and parts of tests, "
        f"that pass on the stock class and not on the signed class: {len(worse) or 'none'}.{listed}"
    )
    header = ["family", *(f"{kind} {how}" for kind in ("stock", "signed") for how in ("passed", "failed", "skipped"))]
    write_table(output, "Tests of transformers on stock and signed classes", notes, header, rows, "cpu")


def counts(outcomes: dict[str, str]) -> list[int]:
    """The numbers of passed, failed and skipped tests, without subtests."""
    count = Counter(outcome for test, outcome in outcomes.items() if "[" not in test)
    return [count["passed"], count["failed"], count["skipped"]]


if __name__ == "__main__":
    main()
