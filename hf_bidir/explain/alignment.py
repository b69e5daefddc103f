"""What an encoder-decoder looked at while it wrote: one row of signed coefficients per word."""

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.example_inputs import longest_text
from hf_bidir.explain.checkpoint import read_text
from hf_bidir.explain.colors import shortened, signed
from hf_bidir.explain.figures import alignment_grid
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.page import html_page
from hf_bidir.explain.running import attends_between_tokens, record_coefficients
from hf_bidir.layer_hooks import in_evaluation

ANSWER = "y, the written word's logit above the mean of all words"
NAMED_SHARE = 0.01  # a source word below this share of its row's largest contribution is not named


@dataclass(frozen=True)
class Alignment:
    """A source, what a model wrote, and what each word of it took from the source."""

    source: list[str]
    written: list[str]
    text: str  # what was written, as text
    truncated: int  # how many tokens of the source did not fit
    signs_are_free: bool  # those of coefficients, all at once
    hard: bool  # one word at a time, which has no derivative
    coefficients: Tensor  # [written, source]
    contributions: Tensor  # [written, source]: a · ∂y/∂a, y being the word's logit above the mean

    @property
    def explained(self) -> str:
        """What was written, in words."""
        cut = f" (without the last {self.truncated} tokens of the source, which did not fit)" if self.truncated else ""
        return f"Written: {self.text}{cut}"

    def summary(self, top: int = 10) -> str:
        """A line per written word, with the source words that added most to its logit, or took most from it."""
        table, heading = self.contributions, f"Contributions a · ∂y/∂a of source words to {ANSWER}"
        if self.hard:
            table, heading = self.coefficients, "Coefficients a of source words (hard selection has no contributions)"
        lines = [f"{heading}. Largest first:"]
        for word, row in zip(self.written, table, strict=True):
            order = row.abs().argsort(descending=True)[:top].tolist()
            order = [index for index in order if row[index].abs() > NAMED_SHARE * row.abs().max()]
            named = "  ".join(f"{signed(row[index].item())} {shortened(self.source[index])}" for index in order)
            lines.append(f"{shortened(word):>12}  {named}")
        return "\n".join([self.explained, *lines])

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """The grid of coefficients and, unless selection is hard, contributions, with its caption."""
        panels = {"coefficient a": self.coefficients} | ({} if self.hard else {"a · ∂y/∂a": self.contributions})
        free = " The signs of all a may be swapped at once." if self.signs_are_free else ""
        grid = alignment_grid(self.written, self.source, panels, caption=f"Explained: {ANSWER}.{free}")
        return {"alignment": ("What every written word took from the source", grid)}

    def page(self) -> str:
        """The figure as a web page."""
        return html_page(self.explained, figures=dict(self.figures().values()))


def align(model: PreTrainedModel, tokenizer, text: str, *, num_beams: int = 1) -> Alignment:
    """Let the model write, and show for every word where it looked, and what for.

    The contribution is `a · ∂y/∂a`, where `y` is the written word's logit above the mean of all words' (logits that
    all rise together change no answer). It is of this step alone, not of what later steps make of it, and 0 for hard
    selection, which has no derivative. At `λ = 1` the signs of all coefficients may be swapped together with those of
    the weights that read the context, and no output changes; contributions do not change either.

    Args:
        model: a `BidirRnnForSeq2SeqLM`; dropout is off while it writes.
        tokenizer: a fast one; pieces of a word are taken together in the source.
        text: the source, cut where the model's positions end.
        num_beams: of the search; 1 is greedy.

    Raises:
        ValueError: a model that does not write, or no word in the text.
    """
    if not model.config.is_encoder_decoder or attends_between_tokens(model):
        raise ValueError(f"expected a recurrent encoder-decoder (BidirRnnForSeq2SeqLM); got {type(model).__name__}.")
    example = read_text(tokenizer, text, longest_text(model))
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        inputs = {name: example.inputs[name].clone().to(model.device) for name in ("input_ids", "attention_mask")}
        ids = model.generate(**inputs, num_beams=num_beams)
        outputs, coefficients = record_coefficients(model, inputs | {"decoder_input_ids": ids[:, :-1]})
        logits = outputs.logits[0]
        answers = logits.gather(-1, ids[0, 1:, None]).squeeze(-1) - logits.mean(-1)
        gradients = [
            torch.autograd.grad(y, a, retain_graph=True, materialize_grads=True)[0]
            for y, a in zip(answers, coefficients, strict=True)
        ]
    rows = torch.stack([a.detach()[0, 0, 0] for a in coefficients])
    slopes = torch.stack([gradient[0, 0, 0] for gradient in gradients])
    return Alignment(
        source=[_visible(token) for token in example.tokens],
        written=[_visible(token) for token in tokenizer.convert_ids_to_tokens(ids[0, 1:])],
        text=tokenizer.decode(ids[0], skip_special_tokens=True),
        truncated=example.truncated,
        signs_are_free=signs_are_free(model),
        hard=model.config.attn_selection == "hard",
        coefficients=example.by_token(rows.float().cpu()),
        contributions=example.by_token((rows * slopes).float().cpu()),
    )


def _visible(token: str) -> str:
    return token if token.strip() else "␣" * len(token)
