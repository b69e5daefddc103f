"""How fast are explanations compared with straightforward implementations, with captum, and with a backward pass?

    python benchmarks/explain_speed.py

Rollout: 32 sentences of 128 tokens, 12 layers of 12 heads, against a loop over sentences as in the code of
Abnar & Zuidema 2020. Flow: all 128 flows of one sentence through 12 layers on one core, signed and unsigned; and one
flow through --networkx-layers layers against networkx's Edmonds-Karp, which that code uses. Leave-one-out: a sentence
of 64 tokens in a BERT-base, deletions in batches against one call per token. AttnLRP: the same sentence, against a
forward and backward pass for the gradient of the word embeddings. The default method: --sentences sentences of 8 to 40
tokens in a BERT-base, in batches of 16, against captum's integrated gradients with 50 steps, one sentence at a time.
Random coefficients and weights.
The table goes to benchmarks/results/explain_speed.md.
"""

import argparse
from functools import partial

import networkx
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from benchmarks.measure import elapsed, interleaved_medians, options_of, write_table
from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, tanhmax
from hf_bidir.explain import (
    ForwardCache,
    Request,
    attention_flow,
    attention_rollout,
    default_method,
    erasure,
    erasure_by_token,
    token_scores,
)
from hf_bidir.explain.readout import InputFunction

LENGTH, LAYERS, HEADS = 128, 12, 12
BATCH = 16  # sentences


def main() -> None:
    layers = {"type": int, "default": 6, "help": "0 skips networkx; 6 takes minutes"}
    sentences = {"type": int, "default": 100, "help": "0 skips captum; 100 take minutes"}
    options = options_of(__doc__, "explain_speed", repeats=7, networkx_layers=layers, sentences=sentences)
    torch.manual_seed(0)
    rows = [*rollout_rows(options.repeats), *flow_rows(options), *erasure_rows(options.repeats)]
    rows += [*relevance_rows(options.repeats), *default_rows(options.sentences)]
    notes = (
        f"Medians of {options.repeats} interleaved repeats (networkx and captum: one). Ratio: seconds of the baseline "
        "over ours."
    )
    header = ["computation", "seconds", "baseline, seconds", "ratio"]
    write_table(options.output, "Speed of explanations", notes, header, rows, "cpu")


def rollout_rows(repeats: int) -> list[list[str]]:
    attentions = [torch.randn(32, HEADS, LENGTH, LENGTH).softmax(-1) for _ in range(LAYERS)]
    tasks = {"ours": partial(attention_rollout, attentions), "plain": partial(rollout_by_sentence, attentions)}
    return [row("rollout, 32 sentences, 12 layers, 128 tokens", interleaved_medians(tasks, repeats))]


def rollout_by_sentence(attentions: list[torch.Tensor]) -> None:
    for example in range(len(attentions[0])):
        rollout = torch.eye(LENGTH)
        for layer in attentions:
            mixed = layer[example].mean(0) + torch.eye(LENGTH)
            rollout = mixed / mixed.sum(-1, keepdim=True) @ rollout


def flow_rows(options: argparse.Namespace) -> list[list[str]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    scores = 2 * torch.randn(LAYERS, 1, HEADS, LENGTH, LENGTH)
    softmax, signed = list(scores.softmax(-1)), list(tanhmax(scores))
    tasks = {"softmax": partial(attention_flow, softmax), "TanhMax": partial(attention_flow, signed)}
    rows = [
        [f"flow, 128 tokens, 12 layers, one core: {name}", f"{seconds:.2f}", "", ""]
        for name, seconds in interleaved_medians(tasks, max(3, options.repeats // 2), warm_up=1).items()
    ]
    layers = options.networkx_layers
    if layers:
        graph = networkx_graph(softmax[:layers])
        ours, edmonds_karp = partial(attention_flow, softmax[:layers]), networkx.algorithms.flow.edmonds_karp
        one = partial(networkx.maximum_flow_value, graph, (layers, 0), (0, 1), flow_func=edmonds_karp)
        before, plain, after = (elapsed(task) for task in (ours, one, ours))
        seconds = {"ours": (before + after) / 2 / LENGTH, "plain": plain}
        rows.append(row(f"flow to one token, {layers} layers, next to networkx (its graph built before)", seconds))
    torch.set_num_threads(threads)
    return rows


def networkx_graph(attentions: list[torch.Tensor]) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    for level, layer in enumerate(attentions):
        capacities = 0.5 * layer[0].mean(0) + 0.5 * torch.eye(LENGTH)
        for query, capacities_of_query in enumerate(capacities.tolist()):
            for key, capacity in enumerate(capacities_of_query):
                graph.add_edge((level + 1, query), (level, key), capacity=capacity)
    return graph


def erasure_rows(repeats: int) -> list[list[str]]:
    model, inputs = bert_base(), sentence(64)
    rows = []
    for how, method in {"renormalise": erasure, "token": erasure_by_token}.items():

        def call(chunk_size: int = 64, method=method) -> None:
            method(ForwardCache(model, inputs), Request(target=0), chunk_size=chunk_size)

        tasks = {"ours": call, "plain": partial(call, chunk_size=1)}
        rows.append(row(f"leave-one-out, BERT-base, 64 tokens: {how}", interleaved_medians(tasks, repeats, warm_up=1)))
    return rows


def relevance_rows(repeats: int) -> list[list[str]]:
    """AttnLRP against a plain pass, forward and backward, and against the backward part alone."""
    model, inputs = bert_base(), sentence(64)
    model.requires_grad_(False)

    def plain(backward: bool) -> None:
        function = InputFunction(ForwardCache(model, inputs), Request(target=0), one_point=True)
        start = function.start.clone().requires_grad_()
        y = function.score(start, function.rows).sum()
        if backward:
            torch.autograd.grad(y, start)

    tasks = {
        "ours": partial(token_scores, model, inputs, "attnlrp", 0),
        "plain": partial(plain, backward=True),
        "forward": partial(plain, backward=False),
    }
    seconds = interleaved_medians(tasks, 3 * repeats)
    backward = seconds["plain"] - seconds["forward"]
    return [
        row("AttnLRP, BERT-base, 64 tokens, next to a forward and backward pass", seconds),
        row("AttnLRP, next to the backward pass alone", seconds | {"plain": backward}),
    ]


def default_rows(count: int) -> list[list[str]]:
    """The default method against captum's integrated gradients, over the same sentences, interleaved by batch."""
    if not count:
        return []
    model, lengths = bert_base(), torch.randint(8, 41, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    seconds = {"ours": 0.0, "plain": 0.0}
    for start in tqdm(range(0, count, BATCH), desc="captum", unit="batch"):
        some = [sentence(length) for length in lengths[start : start + BATCH]]
        padded = {name: pad_sequence([one[name][0] for one in some], batch_first=True) for name in some[0]}
        seconds["ours"] += elapsed(partial(token_scores, model, padded, target=0))
        seconds["plain"] += sum(elapsed(partial(token_scores, model, one, "integrated-gradients", 0)) for one in some)
    name = f"{default_method(model)}, {count} sentences, BERT-base, next to integrated gradients"
    return [row(name, seconds)]


def bert_base() -> BidirBertForSequenceClassification:
    return BidirBertForSequenceClassification(BidirBertConfig()).eval()


def sentence(length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30000, (1, length)), "attention_mask": torch.ones(1, length, dtype=torch.long)}


def row(name: str, seconds: dict[str, float]) -> list[str]:
    ours, plain = seconds["ours"], seconds["plain"]
    return [name, f"{ours:.3g}", f"{plain:.3g}", f"{plain / ours:.2g}"]


if __name__ == "__main__":
    main()
