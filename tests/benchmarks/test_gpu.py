"""benchmarks/gpu.py at tiny sizes on a CPU: what it measures, saves and skips."""

import csv
import sys

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tiny sizes are for a CPU")


@pytest.fixture(scope="module")
def run():
    """Runs gpu.py --smoke with a folder and options, and returns its exit status.

    The tests of the kernels do not run, no model is compiled, and the first step is one of this process.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
            patch.setenv(name, value)  # restored afterwards; gpu.py sets them when it is imported
        from benchmarks import gpu, gpu_sections

        def first_step(sizes, name, cache):
            gpu_sections.print_first_step(vars(sizes), name)
            return 2.0

        patch.setattr(gpu_sections, "_first_step", first_step)
        patch.setattr(gpu_sections, "_test_file", lambda file: "3 passed, 1 skipped, 2 deselected in 0.1s")
        patch.setitem(gpu_sections.SECTIONS, "training", lambda sizes: [*gpu_sections.training(sizes)][:3])

        def run(*options: object) -> int:
            patch.setattr(sys, "argv", ["gpu.py", "--smoke", *map(str, options)])
            with pytest.raises(SystemExit) as end:
                gpu.main()
            return int(end.value.code)

        yield run


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    """The folder with everything that a CPU can measure."""
    folder = tmp_path_factory.mktemp("gpu")
    assert run("--output", folder) == 0
    return folder


def rows_of(folder):
    with (folder / "gpu.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_section_has_rows_with_ratios_and_the_machine_in_the_csv_file(measured):
    rows = rows_of(measured)
    sections = ["tests", "call", "first", "training", "generation", "attention", "memory"]
    assert list(dict.fromkeys(row["section"] for row in rows)) == sections
    assert [row["own"] for row in rows if row["section"] == "tests"][:4] == ["3", "0", "0", "1"]
    for row in rows:
        if float(row["baseline"] or 0) > 0:
            ratio = float(row["own"]) / float(row["baseline"])
            assert float(row["ratio"]) == pytest.approx(ratio, rel=2e-3, abs=1e-3)
        assert row["card"].startswith("CPU")
        assert all(name in row["versions"] for name in ("torch ", "triton ", "transformers "))


def test_rows_of_this_machine_are_measured_again_on_request_alone_and_rows_of_another_one_stay(
    measured, run, tmp_path, capsys
):
    before = (measured / "gpu.csv").read_bytes()
    run("--output", measured)
    assert "training: " not in capsys.readouterr().out
    assert (measured / "gpu.csv").read_bytes() == before
    (tmp_path / "gpu.csv").write_bytes(before.replace(b"CPU, ", b"Another GPU, "))
    others = rows_of(tmp_path)
    for again in ([], ["--again"]):
        run("--output", tmp_path, "--only", "tests", *again)
        new = [row for row in rows_of(tmp_path) if row not in others]
        assert len(new) + len(others) == len(rows_of(tmp_path))
        assert [row["case"] for row in new] == [row["case"] for row in others if row["section"] == "tests"]


def test_rows_that_do_not_begin_in_time_or_fail_are_named_and_the_others_are_measured(
    run, monkeypatch, tmp_path, capsys
):
    from benchmarks import gpu_sections

    run("--output", tmp_path, "--minutes", "0", "--only", "call")
    assert "not measured in time: 2\n    call: forward," in capsys.readouterr().out
    broken = [gpu_sections.Job("broken", lambda: 1 / 0)]
    monkeypatch.setitem(gpu_sections.SECTIONS, "training", lambda sizes: broken)
    assert run("--output", tmp_path, "--only", "training", "tests") == 1
    assert "failed: 1\n    training: broken: ZeroDivisionError" in capsys.readouterr().out
    assert {row["section"] for row in rows_of(tmp_path)} == {"tests"}
