"""Which words count as positive and negative."""

from datasets import Dataset

from research.paper.experiments import Experiment, read_experiments
from research.paper.polarity import polarity_of_words
from research.paper.settings import Settings


def test_words_have_the_polarity_that_people_gave_them(tmp_path):
    (tmp_path / "sst_trees").mkdir()
    rows = {"tokens": [["Good", "the", "bad", "odd"], ["good", "odd"]], "token_labels": [[4, 2, 0, 1], [3, 3]]}
    Dataset.from_dict(rows).to_parquet(str(tmp_path / "sst_trees/test.parquet"))
    (sst,) = read_experiments(["sst"])
    assert polarity_of_words(sst, Settings(tmp_path, tmp_path).graded(sst)) == {"good": 1, "bad": -1}
    assert polarity_of_words(sst, Settings(tmp_path).graded(sst)) == {}


def test_synthetic_words_have_the_polarity_of_their_names():
    polarity = polarity_of_words(Experiment("s", "S", {}, [1.0], synthetic="small"), None)
    assert (polarity["pos0"], polarity["neg0"]) == (1, -1)
    assert "word0" not in polarity
