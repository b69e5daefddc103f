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


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """gpu.py sets these when it is imported."""
    for name, value in {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder with everything that a CPU can measure."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, "benchmarks/gpu.py", "--smoke", "--output", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def run(benchmark, monkeypatch, capsys):
    """Runs gpu.py --smoke in this process, with a folder and options; returns what it prints."""

    def run(folder: Path, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke", "--output", str(folder), *options])
        with pytest.raises(SystemExit) as end:
            benchmark("gpu").main()
        assert not end.value.code
        return capsys.readouterr().out

    pytest.importorskip("triton")
    return run


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "gpu.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_section_has_rows_in_its_order(measured):
    assert list(dict.fromkeys(row["section"] for row in rows_of(measured))) == SECTIONS


def test_a_row_has_the_ratio_of_its_numbers_and_names_the_machine(measured):
    for row in rows_of(measured):
        if float(row["baseline"] or 0) > 0:
            ratio = float(row["own"]) / float(row["baseline"])
            assert float(row["ratio"]) == pytest.approx(ratio, rel=2e-3, abs=1e-3)
        assert row["card"].startswith("CPU")
        assert all(name in row["versions"] for name in ("torch ", "triton ", "transformers "))


def test_the_table_has_every_row_of_the_csv_file(measured):
    lines = (measured / "gpu.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    for row in rows_of(measured):
        assert any(row["case"] in line and row["measured"] in line and row["own"] in line for line in cells)


def test_a_second_run_measures_nothing_again(measured, run):
    before = (measured / "gpu.csv").read_bytes()
    assert "training: " not in run(measured)
    assert (measured / "gpu.csv").read_bytes() == before


def test_again_replaces_the_rows_of_a_section(measured, run, tmp_path):
    shutil.copy(measured / "gpu.csv", tmp_path)
    before = rows_of(tmp_path)
    run(tmp_path, "--only", "call", "--again")
    after = rows_of(tmp_path)
    assert [(row["case"], row["measured"]) for row in after] == [(row["case"], row["measured"]) for row in before]
    assert [row for row in after if row["section"] == "call"] != [row for row in before if row["section"] == "call"]


def test_rows_of_another_gpu_stay_and_do_not_count_as_measured(measured, run, tmp_path):
    text = (measured / "gpu.csv").read_text(encoding="utf-8")
    (tmp_path / "gpu.csv").write_text(text.replace("CPU, ", "Another GPU, "), encoding="utf-8")
    before = rows_of(tmp_path)
    run(tmp_path, "--only", "memory")
    added = [row for row in rows_of(tmp_path) if row not in before]
    assert len(rows_of(tmp_path)) == len(before) + len(added)
    assert {row["section"] for row in added} == {"memory"}


def test_rows_that_do_not_begin_in_time_are_named(run, tmp_path):
    printed = run(tmp_path, "--minutes", "0", "--only", "call", "memory")
    assert "not measured in time: 4\n    call: forward," in printed
    assert "memory: forward + backward" in printed
    assert not (tmp_path / "gpu.csv").exists()


def test_a_row_that_fails_is_named_and_the_others_are_measured(run, benchmark, monkeypatch, tmp_path, capsys):
    sections = benchmark("gpu_sections")
    broken = sections.Job("broken", lambda: 1 / 0)
    monkeypatch.setitem(sections.SECTIONS, "training", lambda sizes: [broken])
    with pytest.raises(AssertionError):  # the exit status is 1
        run(tmp_path, "--only", "training", "memory")
    assert "failed: 1\n    training: broken: ZeroDivisionError" in capsys.readouterr().out
    assert {row["section"] for row in rows_of(tmp_path)} == {"memory"}


def test_numbers_of_a_cpu_do_not_go_into_the_results(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke"])
    with pytest.raises(SystemExit, match="2"):
        benchmark("gpu").main()
    assert "expected a folder in --output" in capsys.readouterr().err


def test_it_needs_no_package_beyond_torch_triton_and_transformers():
    program = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({NOT_NEEDED})); sys.argv = ['gpu.py', '--help']; "
        "sys.path.insert(0, 'benchmarks'); runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "python benchmarks/gpu.py --smoke" in done.stdout
