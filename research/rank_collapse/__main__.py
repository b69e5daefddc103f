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

from hf_bidir.checkpoints.examples import example_inputs
from hf_bidir.checkpoints.kinds import longest_text
from hf_bidir.cli.script import run_script
from hf_bidir.common.errors import InputError
from hf_bidir.explain import load_checkpoint
from research.rank_collapse.report import draw, measured
from research.runs import command_line


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.prog = "python -m research.rank_collapse"
    parser.add_argument("checkpoint", help="folder, Hub name or timm:NAME of a signed or softmax model")
    parser.add_argument("--texts", type=Path, help="one text per line to measure on; by default random input")
    parser.add_argument("--output", type=Path, default=Path("rank-collapse.png"), help="figure")
    options = parser.parse_args(argv)
    model, processor = load_checkpoint(options.checkpoint)
    model = getattr(model, "transformer", model)  # without the pooling of a sentence encoder
    if options.texts:
        lines = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line]
        if not lines:
            raise InputError(f"expected one text per line in {options.texts}; the file is empty")
        limit = min(longest_text(model) or 512, 512)
        inputs = dict(processor(lines, padding=True, truncation=True, max_length=limit, return_tensors="pt"))
    else:
        inputs = example_inputs(model)
    rows = DataFrame(measured(model, inputs))
    name = {"input": options.texts.name if options.texts else "random input", "model": Path(options.checkpoint).name}
    draw(rows.assign(**name), options.output)
    residuals = rows.set_index("stack").filter(like="residual_")
    print(residuals.T.to_string(float_format="{:.1e}".format))
    print(f"Saved: {options.output}")


if __name__ == "__main__":
    run_script(main)
