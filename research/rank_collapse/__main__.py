"""Measure how similar a model's tokens become with depth.

    python -m research.rank_collapse google-bert/bert-base-uncased
    python -m research.rank_collapse model_cards/sst2-minilm-tanhmax --texts reviews.txt --output tanhmax.png

Prints and draws the relative residual after each layer, for the whole model and with parts of its layers removed; it is
0 where all tokens are equal. Softmax attention alone drives it to 0 with depth, skip connections prevent that (Dong et
al. 2021). README.md of this folder has the results for TanhMax.
"""

from collections.abc import Sequence
from pathlib import Path

from pandas import DataFrame
from transformers.utils import logging

from hf_bidir.cli.script import run_script
from hf_bidir.common.errors import InputError
from research.rank_collapse.report import draw, measure_checkpoint, text_table
from research.runs import command_line


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.prog = "python -m research.rank_collapse"
    parser.add_argument("checkpoint", help="folder, Hub name or timm:NAME of a signed or softmax model")
    parser.add_argument("--texts", type=Path, help="one text per line to measure on; by default random input")
    parser.add_argument("--paths", type=int, default=100, help="number of random paths of each length; default: 100")
    output = Path("rank-collapse.png")
    parser.add_argument("--output", type=Path, default=output, help="figure; the suffix sets the format")
    options = parser.parse_args(argv)
    if options.paths < 1:
        parser.error(f"expected --paths of at least 1; got {options.paths}")
    logging.disable_progress_bar()  # for loading the weights
    try:
        lines = options.texts and [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line]
        if options.texts and not lines:
            raise ValueError(f"expected one text per line in {options.texts}; the file is empty.")
        measured = measure_checkpoint(options.checkpoint, lines, options.paths)
    except (ValueError, OSError) as error:
        raise InputError(str(error)) from error
    model = {"input": "random input" if lines is None else options.texts.name, "model": Path(options.checkpoint).name}
    draw(DataFrame(measured).assign(**model), options.output)
    print(text_table(measured))
    print(f"Saved: {options.output}")


if __name__ == "__main__":
    run_script(main)
