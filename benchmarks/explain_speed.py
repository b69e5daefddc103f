"""How fast are rollout, flow and leave-one-out compared with straightforward implementations?

    python benchmarks/explain_speed.py

Rollout: 32 sentences of 128 tokens, 12 layers of 12 heads, against a loop over sentences as in the code of
Abnar & Zuidema 2020. Flow: all 128 flows of one sentence through 12 layers on one core, signed and unsigned; and one
flow through --networkx-layers layers against networkx's Edmonds-Karp, which that code uses. Leave-one-out: a sentence
of 64 tokens in a BERT-base, deletions in batches against one call per token. Random coefficients and weights.
The table goes to benchmarks/results/explain_speed.md.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import networkx
import torch
from measure import RESULTS, interleaved_medians, write_table

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, tanhmax
from hf_bidir.explain import attention_flow, attention_rollout, erasure

LENGTH, LAYERS, HEADS = 128, 12, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--networkx-layers", type=int, default=6, help="0 skips networkx; 6 takes minutes")
    parser.add_argument("--output", type=Path, default=RESULTS / "explain_speed.md")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [*rollout_rows(options.repeats), *flow_rows(options), *erasure_rows(options.repeats)]
    notes = (
        f"Medians of {options.repeats} interleaved repeats (networkx: one). Ratio: seconds of the baseline over ours."
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
    flow = partial(attention_flow, workers=1, progress=False)
    tasks = {
        "softmax": partial(flow, softmax),
        "TanhMax, unsigned": partial(flow, signed),
        "TanhMax, signed": partial(flow, signed, signed=True),
    }
    rows = [
        [f"flow, 128 tokens, 12 layers, one core: {name}", f"{seconds:.2f}", "", ""]
        for name, seconds in interleaved_medians(tasks, max(3, options.repeats // 2), warm_up=1).items()
    ]
    layers = options.networkx_layers
    if layers:
        graph = networkx_graph(softmax[:layers])
        before, plain, after = (
            timed(partial(flow, softmax[:layers])) / LENGTH,
            timed(partial(networkx_flow, graph, layers)),
            timed(partial(flow, softmax[:layers])) / LENGTH,
        )
        seconds = {"ours": (before + after) / 2, "plain": plain}
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


def networkx_flow(graph: networkx.DiGraph, layers: int) -> None:
    networkx.maximum_flow_value(graph, (layers, 0), (0, 1), flow_func=networkx.algorithms.flow.edmonds_karp)


def erasure_rows(repeats: int) -> list[list[str]]:
    model = BidirBertForSequenceClassification(BidirBertConfig()).eval()
    inputs = {"input_ids": torch.randint(30000, (1, 64)), "attention_mask": torch.ones(1, 64, dtype=torch.long)}
    rows = []
    for how in ("renormalise", "mask", "token"):
        call = partial(erasure, model, inputs, 0, how, progress=False)
        tasks = {"ours": call, "plain": partial(call, chunk_size=1)}
        rows.append(row(f"leave-one-out, BERT-base, 64 tokens: {how}", interleaved_medians(tasks, repeats, warm_up=1)))
    return rows


def timed(task) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def row(name: str, seconds: dict[str, float]) -> list[str]:
    ours, plain = seconds["ours"], seconds["plain"]
    return [name, f"{ours:.3g}", f"{plain:.3g}", f"{plain / ours:.2g}"]


if __name__ == "__main__":
    main()
