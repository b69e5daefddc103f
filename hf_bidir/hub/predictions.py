"""What a classifier predicts for each example: a table, the confusion matrix, and the worst errors, explained."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset, Image
from markupsafe import Markup
from transformers import PreTrainedModel
from transformers.trainer_utils import PredictionOutput

from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.common.files import replacing
from hf_bidir.explain.inputs.text import shortened, visible

ROW = "row"  # column with the number of a row in the data
WORST = 10  # errors that are explained
MOST = 20  # rows and columns of a matrix
WIDTH = 60  # characters of a text in a terminal


def check_predictions(checkpoint: str | Path, path: Path) -> None:
    """Raise ValueError for a language model, and unless the name of the table ends with .csv."""
    if open_checkpoint(checkpoint).kind.causal:
        raise ValueError(f"expected a classifier for a table of predictions; {checkpoint} is a language model.")
    if path.suffix.lower() != ".csv":
        raise ValueError(f"expected a file name that ends with .csv for the predictions; got {path}.")


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a classifier for the examples of a split.

    Attributes:
        examples: the split, with a column `text` or `image`, and the number of each row in the data as `ROW`.
        output: the indices of the labels, and of the predicted classes with their probabilities, `[examples]` each.
        collator: of the examples, whose tokenizer or image processor explains the errors, with the model.
    """

    examples: Dataset
    output: PredictionOutput
    model: PreTrainedModel
    collator: Any

    @property
    def column(self) -> str:
        return "text" if "text" in self.examples.column_names else "image"

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per example: `index`, its row in the data, from 0; `text`, or `image`, the name of its file if it has
        one; `label` and `prediction`, names of classes; `probability` of the predicted class; and `correct`."""
        shown = self.examples.select_columns(self.column)
        if self.column == "image":
            encoded = shown.cast_column("image", Image(decode=False))
            shown = [row["image"]["path"] or "" for row in encoded]
        else:
            shown = shown["text"][:]
        names = self.model.config.id2label
        labels, (predicted, probabilities) = self.output.label_ids, self.output.predictions
        columns = {
            "index": self.examples[ROW][:],
            self.column: shown,
            "label": [names[index] for index in labels],
            "prediction": [names[index] for index in predicted],
            "probability": probabilities,
            "correct": labels == predicted,
        }
        return pd.DataFrame(columns)

    @property
    def worst(self) -> pd.DataFrame:
        """The rows of the wrong predictions with the largest probabilities."""
        return self.table[~self.table["correct"]].nlargest(WORST, "probability")

    @property
    def confusion(self) -> pd.DataFrame:
        """The number of examples by label (rows) and prediction."""
        counts = pd.crosstab(self.table["label"], self.table["prediction"])
        names = list(dict.fromkeys(self.model.config.id2label.values()))
        return counts.reindex(index=names, columns=names, fill_value=0)

    def summary(self) -> str:
        """The confusion matrix and the worst errors, for a terminal."""
        matrix = self.confusion.to_string(max_rows=MOST, max_cols=MOST)
        if self.worst.empty:
            return f"\n{matrix}\n\nNo errors."
        short = {"text": lambda text: visible(shortened(text, WIDTH))}
        errors = self.worst.drop(columns="correct").round(2).to_string(index=False, formatters=short)
        return f"\n{matrix}\n\nErrors of largest probability:\n{errors}"

    def write(self, path: str | Path) -> Path:
        """Write the table as csv, and beside it a page with the confusion matrix and the worst errors, explained.

        Returns:
            The page, which has the name of the table and ends with .html.
        """
        from hf_bidir.explain.draw.page import rendered, write_page

        page = Path(path).with_suffix(".html")
        with replacing(Path(path)) as temporary:
            self.table.to_csv(temporary, index=False)
        write_page(page, rendered("hub/predictions.html", predictions=self, explanations=self._explanations()))
        return page

    def _explanations(self) -> list[str]:
        """The explanations of the worst errors as HTML, or why one cannot be explained."""
        processor = getattr(self.collator, "tokenizer", None) or self.collator.processor
        pages: list[str] = []
        for row in self.worst.index:  # one by one, with the method and the verdict of a single input
            try:
                from hf_bidir.explain import explain

                explanation = explain(self.model, processor, self.examples[int(row)][self.column])
                pages.append(Markup(explanation._repr_html_()))
            except (ModuleNotFoundError, ValueError) as error:
                pages.append(f"It is not explained: {error}")
        return pages
