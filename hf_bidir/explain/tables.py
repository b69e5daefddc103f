"""The words that matter most over a data set."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hf_bidir.common.extras import extra
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Explanation

if TYPE_CHECKING:
    from pandas import DataFrame


def word_table(explanations: Iterable[Explanation], min_count: int = 1) -> "DataFrame":
    """The words that matter most over a data set: a row each, in lower case, from the highest mean score to the lowest.

        word_table(explain_each(model, tokenizer, dataset["text"], target="positive"), min_count=5)

    Choose one `target` for all texts: means over different classes would mix support for one with support for another.

    Args:
        explanations: of texts, by one method and for one target; a stream is read once and not kept.
        min_count: rarer words are left out.

    Returns:
        A table with the index `word` and the columns `count` of occurrences, `mean` and `sum` of scores, and
        `positive`, the share of occurrences with a score above 0.

    Raises:
        ValueError: no explanation, images, or more than one method or target.
    """
    with extra("explain"):
        import pandas as pd

    scores, explained = [], set()
    for explanation in explanations:
        if explanation.example.grid is not None:
            raise ValueError("expected explanations of texts; images have no words.")
        signed = METHODS[explanation.method].explains_output
        explained.add((explanation.method, *((explanation.target, explanation.instead_of) if signed else ())))
        if len(explained) > 1:
            raise ValueError(
                "expected explanations by one method, of one target and contrast, got "
                f"{' and '.join(map(str, explained))}; choose them for all texts."
            )
        words = zip(explanation.tokens, explanation.example.special, explanation.scores.tolist(), strict=True)
        for word, special, score in words:
            if not special and any(map(str.isalnum, word)):
                scores.append((word.lower(), score))
    if not explained:
        raise ValueError("expected at least one explanation, got none.")
    words = pd.DataFrame(scores, columns=["word", "score"]).groupby("word")["score"]
    table = words.agg(["count", "mean", "sum"])
    table["positive"] = words.agg(lambda values: (values > 0).mean())
    return table[table["count"] >= min_count].sort_values("mean", ascending=False)
