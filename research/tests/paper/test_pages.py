"""The README's first picture, and tables of findings."""

import pytest
from scipy.stats import ttest_rel

from benchmarks.seeds import compare, holm
from research.paper import findings
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


SOFTMAX, BETTER, WORSE = [80.0, 81.0, 82.0], [84.0, 85.1, 86.2], [75.0, 75.9, 76.8]


def test_the_margin_is_the_smallest_that_both_one_sided_tests_confirm():
    first, second = [80.3, 80.9, 82.6], SOFTMAX
    margin = float(findings.margin(compare(first, second, paired=True)))
    assert compare(first, second, paired=True).within(margin)
    shifted = [[value + side * (margin - 0.1) for value in second] for side in (1, -1)]
    p_values = [
        ttest_rel(first, shifted[0], alternative="less").pvalue,
        ttest_rel(first, shifted[1], alternative="greater").pvalue,
    ]
    assert max(p_values) > 0.05  # a tenth less is not confirmed


def test_only_differences_that_survive_the_correction_are_listed():
    tests = {
        "better": compare(BETTER, SOFTMAX, paired=True),
        "worse": compare(WORSE, SOFTMAX, paired=True),
        "unclear": compare([80.5, 81.1, 81.9], SOFTMAX, paired=True),
    }
    assert findings.listed(holm(tests), 1) == "better"
    assert findings.listed(holm(tests), -1) == "worse"
    assert findings.listed({"unclear": tests["unclear"]}, 1) == "none"
    assert findings.listed(dict.fromkeys(("SST", "IMDB", "20News"), tests["better"]), 1) == "SST, IMDB and 20News"
