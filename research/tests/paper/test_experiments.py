"""The experiments of the repository, and the variants that all compare."""

import pytest
import torch

from hf_bidir.common.errors import InputError
from research.paper.experiments import GROUPS, TEXTS, VARIANTS, mean_pooling, read_experiments


def test_every_experiment_of_the_repository_can_be_read():
    for experiment in read_experiments(list(GROUPS["all"])):
        assert experiment.learning_rates
        assert experiment.synthetic or experiment.files
        assert set(experiment.variants) <= set(VARIANTS)
        if experiment.name in set(TEXTS) - {"20news-bydate"}:  # not in the paper
            assert experiment.published["tanhmax"]["accuracy"] > 80


def test_the_two_splits_of_20_newsgroups_differ_in_their_files_alone():
    random, by_date = map(vars, read_experiments(["20news", "20news-bydate"]))
    differing = {name for name in random if random[name] != by_date[name]}
    assert differing == {"name", "title", "files", "as_published", "published"}


def test_an_unknown_experiment_is_one_error():
    with pytest.raises(InputError, match=r"unknown experiment 'sts'; choose one of: .*Did you mean"):
        read_experiments(["sts"])


def test_the_mean_variant_is_the_mean_over_words():
    scores, keep = torch.randn(2, 1, 1, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()[:, None, None]
    assert mean_pooling(scores, keep)[:, 0, 0].tolist() == [[0.25] * 4, [0.5, 0.5, 0, 0]]
