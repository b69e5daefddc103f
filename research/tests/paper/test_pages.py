"""The picture of docs/index.md, and the full report."""

import pytest

from benchmarks.runs import read_runs
from research.paper import report, run
from research.paper import signed_attention as module


def test_softmax_only_adds_words_and_tanhmax_subtracts_four():
    rows = {name: module.explain(module.ROOT / f"model_cards/sst2-rnn-{name}") for name in module.HEADINGS}
    softmax, tanhmax = rows["softmax"], rows["tanhmax"]
    assert softmax.coefficients.min() > 0
    assert (tanhmax.coefficients < 0).sum() == 4
    assert (tanhmax.prediction, tanhmax.probability) == ("negative", pytest.approx(0.65, abs=0.005))
    drawn = [text.get_text() for axes in module.draw(rows).axes for text in axes.texts]
    assert all(drawn.count(word) == 2 * list(tanhmax.words).count(word) for word in tanhmax.words)


def test_a_report_has_the_papers_numbers_every_variant_and_the_difference():
    text = report.report(read_runs(run.FILE), "texts")
    for name in ("softmax, paper", "λ=0.5", "mean", "TanhMax − softmax"):
        assert f"| SST-2 | {name} |" in text
    assert "Kendall's tau with erasure in every layer" not in text  # of deep models
    assert "## Signs and people" in text
