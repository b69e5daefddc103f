"""What an encoder-decoder looked at while it wrote: one row of signed coefficients per word."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain.checkpoint import read_text
from hf_bidir.explain.colors import shortened, signed
from hf_bidir.explain.running import record_coefficients

NAMED_SHARE = 0.01  # a source word below this share of its row's largest contribution is not named


@dataclass(frozen=True)
class Alignment:
    """A source, what a model wrote, and what each word of it took from the source."""

    source: list[str]
    written: list[str]
    text: str  # what was written, as text
    truncated: int  # how many tokens of the source did not fit
    coefficients: Tensor  # [written, source]
    contributions: Tensor  # [written, source]: a · ∂y/∂a, y being the word's logit above the mean

    @property
    def explained(self) -> str:
        """What was written, in words."""
        cut = f" (without the last {self.truncated} tokens of the source, which did not fit)" if self.truncated else ""
        return f"Written: {self.text}{cut}"

    def summary(self, top: int = 10) -> str:
        """A line per written word, with the source words that added most to its logit, or took most from it."""
        lines = ["Contributions a · ∂y/∂a of source words to y, the word's logit above the mean. Largest first:"]
        for word, row in zip(self.written, self.contributions, strict=True):
            order = row.abs().argsort(descending=True)[:top].tolist()
            order = [index for index in order if row[index].abs() > NAMED_SHARE * row.abs().max()]
            named = "  ".join(f"{signed(row[index].item())} {shortened(self.source[index])}" for index in order)
            lines.append(f"{shortened(word):>12}  {named}")
        return "\n".join([self.explained, *lines])


def align(model: PreTrainedModel, tokenizer, text: str, *, num_beams: int = 1) -> Alignment:
    """Let the model write, and show for every word where it looked, and what for.

    Raw signs are free: all coefficients may change theirs together with the weights that read the context, and nothing
    else changes. The contribution `a · ∂y/∂a`, where `y` is the logit of the word that was
    written above the mean of all words' (all may shift together, which changes no answer), has no such freedom. It is
    of this step alone, not of what later steps make of it. Hard selection has no derivative, so
    its contributions are 0.

    Args:
        model: a `BidirRnnForSeq2SeqLM`.
        tokenizer: a fast one.
        text: the source, cut where the model's positions end.
        num_beams: of the search; 1 is greedy.

    Raises:
        ValueError: a model that does not write, or no word in the text.
    """
    if not model.config.is_encoder_decoder:
        raise ValueError(f"expected an encoder-decoder, such as BidirRnnForSeq2SeqLM; got {type(model).__name__}.")
    example = read_text(tokenizer, text, model.config.max_position_embeddings)
    inputs = {name: value.to(model.device) for name, value in example.inputs.items()}
    ids = model.generate(**inputs, num_beams=num_beams)
    with torch.inference_mode(False), torch.enable_grad():
        outputs, coefficients = record_coefficients(model, inputs | {"decoder_input_ids": ids[:, :-1].clone()})
        logits = outputs.logits[0].gather(-1, ids[0, 1:, None]).squeeze(-1) - outputs.logits[0].mean(-1)
        gradients = [
            torch.autograd.grad(y, a, retain_graph=True, materialize_grads=True)[0]
            for y, a in zip(logits, coefficients, strict=True)
        ]
    rows = [
        torch.stack([row.detach()[0, 0, 0] for row in each]).float().cpu()
        for each in (coefficients, [a * gradient for a, gradient in zip(coefficients, gradients, strict=True)])
    ]
    return Alignment(
        source=[_visible(token) for token in example.tokens],
        written=[_visible(token) for token in tokenizer.convert_ids_to_tokens(ids[0, 1:])],
        text=tokenizer.decode(ids[0], skip_special_tokens=True),
        truncated=example.truncated,
        coefficients=rows[0],
        contributions=rows[1],
    )


def _visible(token: str) -> str:
    return token if token.strip() else "␣" * len(token)
