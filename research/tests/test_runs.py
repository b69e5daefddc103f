"""A grid of runs resumes after an interruption."""

import pytest

from benchmarks.runs import read_runs
from research.runs import grid, run_grid


def test_an_interrupted_grid_keeps_its_rows_and_repeats_no_run(tmp_path):
    file, ran = tmp_path / "runs.csv", []

    def run(model, seed):
        if (model, seed) == ("b", 1) and len(ran) == 3:
            raise KeyboardInterrupt
        ran.append((model, seed))
        return {"accuracy": 0.5 + seed}, ()

    trials = grid(seed=range(2), model="ab")
    with pytest.raises(KeyboardInterrupt):
        run_grid(file, trials, run, ("model", "seed"))
    assert len(read_runs(file)) == 3
    ran.append("interrupted")
    run_grid(file, trials, run, ("model", "seed"))
    assert ran == [("a", 0), ("b", 0), ("a", 1), "interrupted", ("b", 1)]
    assert list(read_runs(file)["accuracy"]) == [0.5, 1.5, 0.5, 1.5]


def test_a_run_may_have_several_rows_and_trials_may_depend_on_earlier_ones(tmp_path):
    file = tmp_path / "runs.csv"

    def trials():
        yield {"seed": 0}
        yield {"seed": len(read_runs(file))}

    run_grid(
        file, trials(), lambda seed: ([{"layer": 0, "rho": seed}, {"layer": 1, "rho": seed}], ()), ("seed", "layer")
    )
    assert list(read_runs(file)["seed"]) == [0, 0, 2, 2]
