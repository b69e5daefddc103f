"""Which explanation of a causal language model should one trust? The fall of y without the tokens ranked first.

    python -m research.explanations.causal MODEL  # folder or Hub name, such as HuggingFaceTB/SmolLM2-135M-Instruct
    make tables

For every prompt of prompts.txt, y is the logit of the predicted next token minus the mean over the vocabulary.
Every method scores the tokens of the prompt; the quarter with the highest scores is removed, at least one token, and y
is computed again. The last token, from which y is read, stays. Random scores, drawn with ten seeds, are the baseline.

    deleted     fall of y when these tokens are deleted
    replaced    fall of y when each of them is replaced by a random token of the other prompts, mean over eight draws
    masked      fall of y when no query attends to them
    …_after     the same if the first token is left out of the ranking and stays
    first       the share of the first token in the sum of magnitudes
    total       the sum of the scores as a share of y
    missed      integrated gradients: the error of their sum, as a share of the change of y from the baseline
    seconds     time, one thread; and in units of a forward pass

Prompts alternate: one half chooses the default method ("choice"), the other reports it ("report"). Rows, one for each
model, method, prompt and seed, go to research/explanations/results/causal_explanations.csv.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.runs import markdown, where
from benchmarks.seeds import mean_in_interval
from hf_bidir.explain import METHODS, ForwardCache, Request, load_checkpoint
from hf_bidir.explain.readout import readout_of
from hf_bidir.explain.request import methods_of
from research.faithfulness.deletion import ranks, without_tokens
from research.runs import command_line, run_grid

FILE = Path(__file__).with_name("results") / "causal_explanations.csv"
KEY = ("model", "method", "seed", "prompt")
PROMPTS = Path(__file__).with_name("prompts.txt")
RANDOM, SEEDS = "random", 10  # a method of random scores
SHARE, DRAWS = 0.25, 8  # of tokens removed; of random tokens in their place
FALLS = ("deleted", "replaced", "masked", "deleted_after")  # columns of the table; the first orders it
Row = dict[str, str | int | float]


class Prompt:
    """A prompt with its predicted next token, and y where some of its tokens are removed."""

    def __init__(self, model: PreTrainedModel, ids: Tensor, other_tokens: list[int], seed: int):
        self.model, self.inputs = model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self.length, self.position = ids.shape[1], ids.shape[1] - 1
        draw = random.Random(seed)
        self.replacements = torch.tensor(
            [[draw.choice(other_tokens) for _ in range(self.length)] for _ in range(DRAWS)]
        )
        with torch.no_grad():
            self.target = model(**self.inputs).logits[0, -1].argmax()[None]
        self.y = self.ys(self.inputs)[0].item()

    @torch.no_grad()
    def ys(self, inputs: dict[str, Tensor]) -> Tensor:
        """y at the last token of every row, `[rows]`."""
        mask = inputs["attention_mask"]
        position = (mask * torch.arange(mask.shape[1])).argmax(1)
        outputs = self.model(**inputs, return_dict=True)
        cache, request = ForwardCache(self.model, inputs), Request(target=self.target, position=position)
        return readout_of(cache, request, outputs)(outputs)

    def falls(self, removed: Tensor) -> dict[str, Tensor]:
        """The fall of y without the tokens in `removed`, boolean `[rows, length]`, by the way they are removed."""
        rows = {name: value.expand(len(removed), -1) for name, value in self.inputs.items()}
        keep = torch.ones_like(removed)
        deleted = self.ys(without_tokens(self.model, rows, keep, removed))
        positions = torch.arange(self.length).expand_as(removed)
        masked = self.ys(rows | {"attention_mask": (~removed).long(), "position_ids": positions})
        filled = torch.where(removed[:, None], self.replacements, self.inputs["input_ids"]).flatten(0, 1)
        replaced = self.ys({"input_ids": filled, "attention_mask": torch.ones_like(filled)}).view(-1, DRAWS).mean(1)
        return {"deleted": self.y - deleted, "replaced": self.y - replaced, "masked": self.y - masked}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("model", help="folder or Hub name of a causal language model, signed or softmax")
    parser.add_argument("--name", help="in the table; by default that of the folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network, tokenizer = load_checkpoint(options.model)
    network.requires_grad_(False)
    name = options.name or Path(options.model).name
    texts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROMPTS.read_text("utf-8").splitlines()]

    def run(model: str, prompt: int) -> tuple[list[Row], list[Path]]:
        other_tokens = [token for number, ids in enumerate(texts) if number != prompt for token in ids[0].tolist()]
        measurable = Prompt(network, texts[prompt], other_tokens, seed=prompt)
        shared = {"half": ("choice", "report")[prompt % 2], "tokens": measurable.length, "y": round(measurable.y, 3)}
        return [shared | row for row in measured(measurable)], [PROMPTS]

    run_grid(FILE, [{"model": name, "prompt": number} for number in range(len(texts))], run, KEY)


def measured(prompt: Prompt) -> list[Row]:
    """A row for each method, and for each seed of the random scores."""
    rows, methods = zip(*scored(prompt), strict=True)
    all_scores = torch.stack(methods)
    for suffix, first in (("", 0), ("_after", 1)):
        removable = torch.zeros_like(all_scores, dtype=torch.bool)
        removable[:, first : prompt.position] = True
        rank, count = ranks(all_scores, removable)
        falls = prompt.falls(rank < (SHARE * count.double()).ceil()[:, None])
        for how, values in falls.items():
            for row, value in zip(rows, values.tolist(), strict=True):
                row[how + suffix] = round(value, 3)
    return list(rows)


def scored(prompt: Prompt) -> Iterator[tuple[Row, Tensor]]:
    """Every method with its scores `[length]` and what they cost."""
    model, request = prompt.model, Request(target=prompt.target, position=prompt.position)
    for method in methods_of(model):
        start = time.perf_counter()
        scores = METHODS[method].scores(ForwardCache(model, prompt.inputs), request)[0].detach()
        middle = time.perf_counter()
        prompt.ys(prompt.inputs)
        cost = {"seconds": middle - start, "forward_passes": (middle - start) / (time.perf_counter() - middle)}
        row = {"method": method, "seed": 0} | {name: round(value, 3) for name, value in cost.items()}
        total = scores.sum().item()
        row |= {"first": round((scores[0].abs() / scores.abs().sum()).item(), 4), "total": round(total / prompt.y, 4)}
        if method == "integrated-gradients":
            row["missed"] = round(missed(prompt, total), 4)
        yield row, scores
    for seed in range(SEEDS):
        draw = torch.Generator().manual_seed(1000 * seed + int(prompt.inputs["input_ids"].sum()))
        yield {"method": RANDOM, "seed": seed}, torch.randn(prompt.length, generator=draw)


def missed(prompt: Prompt, total: float) -> float:
    """The error of the sum of integrated gradients, as a share of the change of y from the baseline."""
    text = prompt.model.config.get_text_config()
    padded = torch.full_like(prompt.inputs["input_ids"], text.pad_token_id or 0)
    padded[:, 0] = prompt.inputs["input_ids"][:, 0]
    change = prompt.y - prompt.ys(prompt.inputs | {"input_ids": padded}).item()
    return abs(total - change) / abs(change)


def table(runs: pd.DataFrame) -> str:
    """All methods in the order of the half that chooses; means over prompts with their 95 % t interval."""
    chosen, reported, whole = (  # by method and prompt; of random scores the mean over seeds
        half.groupby(["method", "prompt"]).mean(numeric_only=True)
        for half in (where(runs, half="choice"), where(runs, half="report"), runs)
    )
    rows = []
    for method in chosen[FALLS[0]].groupby("method").mean().sort_values(ascending=False).index:
        means, cost = whole.loc[method], METHODS[method].cost if method in METHODS else ""
        first = f"{100 * means['first'].mean():.0f}" if method != RANDOM else ""
        unsigned = method in METHODS and not METHODS[method].explains_output
        total = f"{100 * means['total'].mean():.0f}" if method != RANDOM and not unsigned else ""
        missed = f"{100 * means['missed'].median():.0f}" if means["missed"].notna().any() else ""
        falls = [mean_in_interval(list(reported.loc[method][fall]), 1) for fall in FALLS]
        passes = f"{means['forward_passes'].median():.1f}" if method != RANDOM else ""
        name = method + " \\*" * (method == "deletion")
        rows.append([name, f"{chosen.loc[method][FALLS[0]].mean():.1f}", *falls, first, total, missed, cost, passes])
    header = [
        *("method", "choice: deleted", "deleted", "replaced", "masked", "deleted, first token stays"),
        *("first token, %", "sum, % of y", "missed, %", "passes through the model", "time, in forward passes"),
    ]
    return markdown(header, rows)


if __name__ == "__main__":
    main()
