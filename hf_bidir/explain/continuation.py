"""Evidence for and against each token that follows a prompt, in a causal language model."""

from collections.abc import Mapping

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import longest_text, text_limit
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.signing import unwrapped
from hf_bidir.explain.alignment import LOGIT, Alignment
from hf_bidir.explain.checkpoint import Example, read_text, spelled
from hf_bidir.explain.colors import visible
from hf_bidir.explain.methods import (
    METHODS,
    check_method,
    default_method,
    passes_of,
    sink_note,
    token_scores,
    why_fast,
)
from hf_bidir.explain.running import model_within

ROWS = 16  # generated tokens explained in one batch


def explain_continuation(
    model: PreTrainedModel,
    tokenizer,
    prompt: str,
    continuation: str | None = None,
    *,
    new_tokens: int = 20,
    method: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Alignment:
    """Explain each token after a prompt, of a given text or of the generated one, by the tokens before it.

    Args:
        model: a signed causal language model, in any attention backend.
        tokenizer: a fast one; the pieces of a word in the prompt are summed.
        prompt: must not be empty.
        continuation: the text to explain, separated from the prompt by a blank; None generates it greedily.
        new_tokens: the maximum number of generated tokens.
        method, layer, head: as in `token_scores`.

    Returns:
        One row per following token, over the prompt and the tokens generated before it; 0 for later tokens.

    Raises:
        ValueError: an empty prompt or continuation, more tokens than the model has positions, and as in `token_scores`.
    """
    model = model_within(model, tokenizer)
    check_method(method or default_method(model, layer, head), layer, head)
    example, ids = _generated(model, tokenizer, prompt, continuation, new_tokens)
    start = len(example.token_of_piece)
    generated = ids[start:]
    inputs = {"input_ids": ids[None, :-1].to(model.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    positions = torch.arange(start - 1, len(ids) - 1)
    passes = passes_of(model, inputs)
    why = "" if method else why_fast(default_method(model, layer, head, passes), passes)
    method = method or default_method(model, layer, head, passes)
    scores = prediction_scores(model, inputs, generated, positions, method, layer=layer, head=head)
    by_token = _by_token(example, scores, len(generated) - 1, METHODS[method].additive)
    pieces = spelled(tokenizer, generated.tolist())
    source = [*example.tokens, *pieces[:-1]]
    sink = sink_note(method, source, [*example.special, *[False] * len(pieces[:-1])], by_token)
    where = METHODS[method].caption(layer, head) + f"; y is {LOGIT}" * METHODS[method].explains_output
    return Alignment(
        source=source,
        written=pieces,
        explained=f"{visible(prompt.strip())} → {visible(tokenizer.decode(generated).strip())}",
        what=" ".join(filter(None, [why, sink, where])),
        scores={METHODS[method].unit: by_token},
        first_length=len(example.tokens),
        how_to_read=METHODS[method].how_to_read,
        has_signs=METHODS[method].signed,
        probabilities=_probabilities(model, inputs, generated, positions),
    )


def prediction_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    targets: Tensor,
    positions: Tensor,
    method: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    batch_size: int = ROWS,
) -> Tensor:
    """`token_scores` of several output tokens of one text, `[targets, length]`, computed in batches.

    Args:
        inputs: the text, `[1, length]`.
        targets, positions: `[targets]`, the token ids to explain, and the position that predicts each of them.
        method, layer, head: as in `token_scores`.
        batch_size: output tokens in one batch; methods with a forward pass per token compute all outputs at once.

    Raises:
        ValueError: as in `token_scores`.
    """
    model = unwrapped(model)
    method = method or default_method(model, layer, head, passes_of(model, inputs))
    batch_size = len(targets) if METHODS[method].shared else batch_size
    parts = list(zip(targets.split(batch_size), positions.split(batch_size), strict=True))
    rows = []
    for chosen, places in tqdm(parts, desc=method, unit="batch", leave=False, delay=1, disable=len(parts) < 2):
        batch = {name: value.expand(len(chosen), *value.shape[1:]) for name, value in inputs.items()}
        options = {"position": places.to(model.device), "layer": layer, "head": head}
        rows.append(token_scores(model, batch, method, chosen.to(model.device), **options).detach().cpu())
    return torch.cat(rows)


def check_prompt(model: PreTrainedModel, tokenizer, example: Example, more: int = 0) -> None:
    """Raise ValueError if the example was cut, or if it and `more` tokens exceed the model's positions."""
    limit = text_limit(model, tokenizer) if example.truncated else longest_text(model)
    length = len(example.token_of_piece) + example.truncated
    if limit is not None and length + more > limit:
        following = f" and {more} follow" if more else ""
        raise ValueError(
            f"the prompt has {length} tokens{following}, but {type(model).__name__} reads at most {limit}; shorten it."
        )


def _generated(model, tokenizer, prompt: str, continuation: str | None, new_tokens: int) -> tuple[Example, Tensor]:
    """The prompt, and the ids of the prompt and the tokens that follow, `[length]`."""
    example = read_text(tokenizer, prompt, text_limit(model, tokenizer))
    start = example.inputs["input_ids"][0]
    if continuation is None:
        check_prompt(model, tokenizer, example, new_tokens)
        with in_evaluation(model):
            inputs = {name: example.inputs[name].to(model.device) for name in ("input_ids", "attention_mask")}
            options = {"max_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
            return example, model.generate(**inputs, **options)[0].cpu()
    blank = "" if prompt[-1:].isspace() or continuation[:1].isspace() else " "
    whole = tokenizer(f"{prompt}{blank}{continuation}", return_offsets_mapping=True, verbose=False)
    pairs = zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    following = [token for token, (_, end) in pairs if end > len(prompt)]
    if not continuation.strip() or not following:
        raise ValueError(f"expected a continuation with at least one word, got {continuation!r}.")
    check_prompt(model, tokenizer, example, len(following))
    return example, torch.cat([start, torch.tensor(following)])


@torch.no_grad()
def _probabilities(model, inputs: dict[str, Tensor], generated: Tensor, positions: Tensor) -> list[float]:
    with in_evaluation(model):
        rows = model(**inputs).logits[0, positions.to(model.device)].float().softmax(-1).cpu()
    return rows.gather(-1, generated[:, None]).squeeze(-1).tolist()


def _by_token(example: Example, scores: Tensor, more: int, additive: bool) -> Tensor:
    """Combine `[targets, pieces]` to `[targets, tokens of the prompt + more]`."""
    start = len(example.token_of_piece)
    prompt = example.by_token(scores[:, :start], additive)
    return torch.cat([prompt, scores[:, start : start + more]], dim=1)
