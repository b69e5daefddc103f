"""benchmarks/signed_attention.py: the README's first picture can be drawn from committed weights."""

import importlib
from pathlib import Path

import pytest
from matplotlib.image import imread


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("signed_attention")


def test_softmax_only_adds_words_and_tanhmax_subtracts_some(benchmark, tmp_path):
    cards = benchmark.ROOT / "model_cards"
    rows = {
        name: benchmark.explain(cards / f"sst2-rnn-{name}", benchmark.SENTENCE, None) for name in benchmark.HEADINGS
    }
    assert rows["softmax"].coefficients.min() > 0
    by_word = dict(zip(rows["tanhmax"].words, rows["tanhmax"].coefficients, strict=True))
    assert by_word["charming"] > 0 > by_word["weak"]
    benchmark.draw(rows).savefig(tmp_path / "picture.png")
    assert imread(tmp_path / "picture.png").std() > 0
