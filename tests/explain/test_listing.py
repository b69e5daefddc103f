"""What a list of scores leaves out, as a sentence."""

import pytest
import torch

from hf_bidir.explain.listing import Listing

OUTWEIGHS = " [SEP] outweighs every listed token; its part of y is attributed to none of them."


@pytest.mark.parametrize(
    ("first", "last", "has_signs", "sentence"),
    [
        (0.09, -0.09, True, ""),
        (0.9, -0.09, True, "Not listed: [CLS] (+0.9)."),
        (0.2, -1.1, True, f"Not listed: [SEP] (−1.1), [CLS] (+0.2).{OUTWEIGHS}"),
        (2.0, 0.2, False, "Not listed: [CLS] (2), [SEP] (0.2)."),  # such scores are no part of y
    ],
)
def test_special_tokens_are_named_unless_they_are_small_beside_the_words(first, last, has_signs, sentence):
    scores = torch.tensor([first, 1.0, 0.4, last])
    listing = Listing(["[CLS]", "good", "film", "[SEP]"], scores, [True, False, False, True], has_signs=has_signs)
    assert listing.left_out() == sentence
