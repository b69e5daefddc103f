"""The paper's own protocol: what its faults are, in tests."""

import torch

from hf_bidir.paper.published import (
    LENGTH,
    answers,
    encode,
    evaluate_as_published,
    label_in_scores,
    published_vocabulary,
    train_as_published,
)

TEXTS = [f"the the {'good' if row % 2 else 'bad'} film {row}" for row in range(60)]
LABELS = torch.arange(60) % 2


def trained(activation):
    vocabulary = published_vocabulary(TEXTS)
    ids = encode(TEXTS, vocabulary)
    return train_as_published(ids, LABELS, activation, sizes=(8, 4), seed=1, epochs=30, progress=False), ids


def test_padding_unknown_words_and_the_most_frequent_word_are_one():
    vocabulary = published_vocabulary(TEXTS)
    ids = encode(["the unseen"], vocabulary)
    assert vocabulary["the"] == 0
    assert ids.shape == (1, LENGTH)
    assert (ids == 0).all()


def test_with_the_label_in_the_scores_all_negative_texts_of_tanhmax_get_the_bias():
    model, ids = trained("tanhmax")
    with label_in_scores(model, LABELS):
        leaked = answers(model, ids)[LABELS == 0]
    torch.testing.assert_close(leaked, model.classifier.bias.expand(30))
    assert answers(model, ids)[LABELS == 0].std() > 0  # without, they do not


def test_the_sign_of_the_bias_decides_about_every_negative_text():
    model, ids = trained("tanhmax")
    for bias, right in ((-5.0, 30), (5.0, 0)):
        torch.nn.init.constant_(model.classifier.bias, bias)
        with label_in_scores(model, LABELS):
            assert int((answers(model, ids)[LABELS == 0] < 0).sum()) == right


def test_the_evaluation_reports_both_accuracies_of_the_same_weights():
    model, ids = trained("softmax")
    found = evaluate_as_published(model, ids, LABELS)
    fair = 100 * ((answers(model, ids) > 0) == LABELS.bool()).float().mean().item()
    assert abs(found.fair - fair) < 1e-4
    assert 0 <= found.leaked <= 100
