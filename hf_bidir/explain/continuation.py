"""What speaks for and against each token that follows a prompt, in a causal language model."""

from collections.abc import Mapping

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.example_inputs import longest_text
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.alignment import ANSWER, Alignment, visible
from hf_bidir.explain.checkpoint import Example, read_text, text_limit
from hf_bidir.explain.methods import METHODS, token_scores

ROWS = 16  # answers that are explained in one batch


def explain_continuation(
    model: PreTrainedModel,
    tokenizer,
    prompt: str,
    continuation: str | None = None,
    *,
    new_tokens: int = 20,
    method: str = "contributions",
    layer: int | None = None,
    head: int | None = None,
) -> Alignment:
    """Explain each token behind a prompt by the tokens before it: of a given text, or of what the model writes.

    Args:
        model: a signed causal language model, in any attention backend.
        tokenizer: a fast one; pieces of a word are taken together in the prompt.
        prompt: cannot be empty.
        continuation: the text to explain, behind a blank where neither it nor the prompt has one; None lets the model
            write, greedily.
        new_tokens: the most that it writes.
        method, layer, head: as in `token_scores`.

    Returns:
        A row per token that follows, over the prompt and what follows; 0 where a token is not read.

    Raises:
        ValueError: an empty prompt or continuation, more tokens than the model has positions, and as in `token_scores`.
    """
    example, ids = _written(model, tokenizer, prompt, continuation, new_tokens)
    start = len(example.token_of_piece)
    written = ids[start:]
    inputs = {"input_ids": ids[None, :-1].to(model.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    positions = torch.arange(start - 1, len(ids) - 1)
    scores = answer_scores(model, inputs, written, positions, method, layer=layer, head=head)
    pieces = [visible(tokenizer.decode([token])) for token in written.tolist()]
    return Alignment(
        source=[*example.tokens, *pieces[:-1]],
        written=pieces,
        explained=f"{visible(prompt.strip())} → {visible(tokenizer.decode(written).strip())}",
        what=f"{METHODS[method].caption(layer, head)}; y is {ANSWER.partition(', ')[2]}",
        scores={METHODS[method].unit: _by_token(example, scores, len(pieces) - 1, METHODS[method].additive)},
        read=len(example.tokens),
        probabilities=_probabilities(model, inputs, written, positions),
    )


def answer_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    answers: Tensor,
    positions: Tensor,
    method: str = "contributions",
    *,
    layer: int | None = None,
    head: int | None = None,
    batch_size: int = ROWS,
) -> Tensor:
    """`token_scores` of several answers about one text, `[answers, length]`, computed in batches.

    Args:
        inputs: the text, `[1, length]`.
        answers, positions: `[answers]`, the tokens of the vocabulary that are explained, and at which position each is
            the answer: the one before its own.
        method, layer, head: as in `token_scores`.
        batch_size: answers in one batch.

    Raises:
        ValueError: as in `token_scores`.
    """
    parts = list(zip(answers.split(batch_size), positions.split(batch_size), strict=True))
    rows = []
    for targets, places in tqdm(parts, desc=method, unit="batch", leave=False, delay=1, disable=len(parts) < 2):
        batch = {name: value.expand(len(targets), *value.shape[1:]) for name, value in inputs.items()}
        options = {"position": places.to(model.device), "layer": layer, "head": head}
        rows.append(token_scores(model, batch, method, targets.to(model.device), **options).detach().cpu())
    return torch.cat(rows)


def check_prompt(model: PreTrainedModel, example: Example, more: int = 0) -> None:
    """Raise ValueError where a text of an example, and so many tokens more, are beyond the model's positions."""
    limit, length = longest_text(model), len(example.token_of_piece) + example.truncated
    if limit is not None and length + more > limit:
        behind = f" and {more} behind it" if more else ""
        raise ValueError(
            f"the prompt has {length} tokens{behind}, and {type(model).__name__} has {limit} positions; shorten it."
        )


def _written(model, tokenizer, prompt: str, continuation: str | None, new_tokens: int) -> tuple[Example, Tensor]:
    """The prompt, and the ids of it and of what follows, `[length]`."""
    example = read_text(tokenizer, prompt, text_limit(model, tokenizer))
    start = example.inputs["input_ids"][0]
    if continuation is None:
        check_prompt(model, example, new_tokens)
        with in_evaluation(model):
            inputs = {name: example.inputs[name].to(model.device) for name in ("input_ids", "attention_mask")}
            options = {"max_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
            return example, model.generate(**inputs, **options)[0].cpu()
    blank = "" if prompt[-1:].isspace() or continuation[:1].isspace() else " "
    whole = tokenizer(f"{prompt}{blank}{continuation}", return_offsets_mapping=True, verbose=False)
    pairs = zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    behind = [token for token, (_, end) in pairs if end > len(prompt)]
    if not continuation.strip() or not behind:
        raise ValueError(f"expected a continuation with at least one word, got {continuation!r}.")
    check_prompt(model, example, len(behind))
    return example, torch.cat([start, torch.tensor(behind)])


@torch.no_grad()
def _probabilities(model, inputs: dict[str, Tensor], written: Tensor, positions: Tensor) -> list[float]:
    with in_evaluation(model):
        rows = model(**inputs).logits[0, positions.to(model.device)].float().softmax(-1).cpu()
    return rows.gather(-1, written[:, None]).squeeze(-1).tolist()


def _by_token(example: Example, scores: Tensor, more: int, additive: bool) -> Tensor:
    """`[answers, pieces]` as `[answers, tokens of the prompt + more]`."""
    start = len(example.token_of_piece)
    prompt = example.by_token(scores[:, :start], additive)
    return torch.cat([prompt, scores[:, start : start + more]], dim=1)
