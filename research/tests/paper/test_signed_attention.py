"""research/paper/signed_attention.py: the README's first picture can be drawn from committed weights."""

import pytest

from research.paper import signed_attention as module


def test_softmax_only_adds_words_and_tanhmax_subtracts_those_of_the_readme():
    cards = module.ROOT / "model_cards"
    rows = {name: module.explain(cards / f"sst2-rnn-{name}", module.SENTENCE, None) for name in module.HEADINGS}
    softmax, tanhmax = rows["softmax"], rows["tanhmax"]
    assert softmax.coefficients.min() > 0
    assert (tanhmax.coefficients < 0).sum() == 4
    assert (tanhmax.prediction, tanhmax.probability) == ("negative", pytest.approx(0.65, abs=0.005))
    shown = dict(zip(tanhmax.words, tanhmax.contributions, strict=True))
    assert (shown["charming"], shown["weak"]) == (pytest.approx(2.5, abs=0.05), pytest.approx(-3.5, abs=0.05))
    drawn = [text.get_text() for axes in module.draw(rows).axes for text in axes.texts]
    assert all(drawn.count(word) == 2 * list(tanhmax.words).count(word) for word in tanhmax.words)
