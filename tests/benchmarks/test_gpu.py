"""benchmarks/gpu.py at tiny sizes on a CPU: what it measures, saves and skips, and what it needs installed."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SECTIONS = ["tests", "call", "first", "training", "generation", "attention", "memory"]
NOT_NEEDED = ["accelerate", "datasets", "evaluate", "matplotlib", "pandas", "scipy", "timm"]
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tiny sizes are for a CPU")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder with everything that a CPU can measure, without the packages that are not needed."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("gpu")
    program = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({NOT_NEEDED})); sys.path.insert(0, 'benchmarks'); "
        f"sys.argv = ['gpu.py', '--smoke', '--output', {str(folder)!r}]; "
        "runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def run(benchmark, monkeypatch, capsys):
    """Runs gpu.py --smoke in this process, with a folder and options; returns its exit status and what it prints."""
    for name, value in {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)  # restored afterwards; gpu.py sets them when it is imported

    def run(*options: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke", *options])
        with pytest.raises(SystemExit) as end:
            benchmark("gpu").main()
        printed = capsys.readouterr()
        return int(end.value.code), printed.out + printed.err

    pytest.importorskip("triton")
    return run


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "gpu.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_section_has_rows_with_ratios_and_the_machine_in_the_csv_file_and_in_the_table(measured):
    rows, table = rows_of(measured), (measured / "gpu.md").read_text(encoding="utf-8")
    assert list(dict.fromkeys(row["section"] for row in rows)) == SECTIONS
    for row in rows:
        if float(row["baseline"] or 0) > 0:
            ratio = float(row["own"]) / float(row["baseline"])
            assert float(row["ratio"]) == pytest.approx(ratio, rel=2e-3, abs=1e-3)
        assert row["card"].startswith("CPU")
        assert all(name in row["versions"] for name in ("torch ", "triton ", "transformers "))
        assert any(row["case"] in line and row["measured"] in line and row["own"] in line for line in table.split("\n"))


def test_rows_of_this_machine_are_not_measured_again_and_rows_of_another_one_stay(measured, run, tmp_path):
    before = (measured / "gpu.csv").read_bytes()
    assert "training: " not in run("--output", str(measured))[1]
    assert (measured / "gpu.csv").read_bytes() == before
    (tmp_path / "gpu.csv").write_bytes(before.replace(b"CPU, ", b"Another GPU, "))
    run("--output", str(tmp_path), "--only", "memory")
    assert {row["section"] for row in rows_of(tmp_path)[len(rows_of(measured)) :]} == {"memory"}


def test_again_replaces_the_rows_of_a_section(measured, run, tmp_path):
    shutil.copy(measured / "gpu.csv", tmp_path)
    before = rows_of(tmp_path)
    run("--output", str(tmp_path), "--only", "call", "--again")
    assert [row["case"] for row in rows_of(tmp_path)] == [row["case"] for row in before]
    assert {row["section"] for row in rows_of(tmp_path) if row not in before} == {"call"}


def test_rows_that_do_not_begin_in_time_or_fail_are_named_and_the_others_are_measured(
    run, benchmark, monkeypatch, tmp_path
):
    late = run("--output", str(tmp_path), "--minutes", "0", "--only", "call", "memory")[1]
    assert "not measured in time: 4\n    call: forward," in late
    sections = benchmark("gpu_sections")
    monkeypatch.setitem(sections.SECTIONS, "training", lambda sizes: [sections.Job("broken", lambda: 1 / 0)])
    status, printed = run("--output", str(tmp_path), "--only", "training", "memory")
    assert status == 1
    assert "failed: 1\n    training: broken: ZeroDivisionError" in printed
    assert {row["section"] for row in rows_of(tmp_path)} == {"memory"}


def test_numbers_of_a_cpu_do_not_go_into_the_results(run):
    status, printed = run()
    assert status == 2
    assert "expected a folder in --output" in printed
