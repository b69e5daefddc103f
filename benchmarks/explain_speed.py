"""How fast are explanations compared with networkx, with captum, and with a backward pass?

    python benchmarks/explain_speed.py

Flow: one flow of a sentence of 128 tokens through --networkx-layers layers on one core, against networkx's
Edmonds-Karp, which the code of Abnar & Zuidema 2020 uses. AttnLRP: a sentence of 64 tokens in a BERT-base, against a
forward and backward pass for the gradient of the word embeddings. The default method: --sentences sentences of 8 to 40
tokens in a BERT-base, in batches of 16, against captum's integrated gradients with 50 steps, one sentence at a time.
Random coefficients and weights. The table goes to benchmarks/results/explain_speed.md.
"""

from functools import partial

import networkx
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from benchmarks.measure import elapsed, interleaved_medians, options_of, write_table
from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.explain import ForwardCache, Request, attention_flow, default_method, token_scores
from hf_bidir.explain.readout import InputFunction

LENGTH, HEADS = 128, 12
BATCH = 16  # sentences


def main() -> None:
    layers = {"type": int, "default": 6, "help": "take minutes"}
    sentences = {"type": int, "default": 100, "help": "take minutes"}
    options = options_of(__doc__, "explain_speed", repeats=7, networkx_layers=layers, sentences=sentences)
    torch.manual_seed(0)
    rows = [flow_row(options.networkx_layers), relevance_row(options.repeats), default_row(options.sentences)]
    notes = (
        f"Medians of {options.repeats} interleaved repeats (networkx and captum: one). Ratio: seconds of the baseline "
        "over ours."
    )
    header = ["computation", "seconds", "baseline, seconds", "ratio"]
    write_table(options.output, "Speed of explanations", notes, header, rows, "cpu")


def flow_row(layers: int) -> list[str]:
    """All flows of a sentence, for one token, against networkx; one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    attentions = [torch.randn(1, HEADS, LENGTH, LENGTH).softmax(-1) for _ in range(layers)]
    ours = elapsed(partial(attention_flow, attentions)) / LENGTH
    solver = networkx.algorithms.flow.edmonds_karp
    graph = networkx_graph(attentions)
    plain = elapsed(partial(networkx.maximum_flow_value, graph, (layers, 0), (0, 1), flow_func=solver))
    torch.set_num_threads(threads)
    return row(f"flow to one token, {layers} layers, next to networkx (its graph built before)", ours, plain)


def networkx_graph(attentions: list[torch.Tensor]) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    for level, layer in enumerate(attentions):
        capacities = 0.5 * layer[0].mean(0) + 0.5 * torch.eye(LENGTH)
        for query, key in torch.cartesian_prod(torch.arange(LENGTH), torch.arange(LENGTH)).tolist():
            graph.add_edge((level + 1, query), (level, key), capacity=capacities[query, key].item())
    return graph


def relevance_row(repeats: int) -> list[str]:
    """AttnLRP against a plain pass, forward and backward."""
    model, inputs = bert_base().requires_grad_(False), sentence(64)

    def plain() -> None:
        function = InputFunction(ForwardCache(model, inputs), Request(target=0), one_point=True)
        start = function.start.clone().requires_grad_()
        torch.autograd.grad(function.score(start, function.rows).sum(), start)

    tasks = {"ours": partial(token_scores, model, inputs, "attnlrp", 0), "plain": plain}
    seconds = interleaved_medians(tasks, 3 * repeats)
    return row("AttnLRP, BERT-base, 64 tokens, next to a forward and backward pass", *seconds.values())


def default_row(count: int) -> list[str]:
    """The default method against captum's integrated gradients, over the same sentences, interleaved by batch."""
    model, ours, plain = bert_base(), 0.0, 0.0
    lengths = torch.randint(8, 41, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    for start in tqdm(range(0, count, BATCH), desc="captum", unit="batch"):
        batch = [sentence(length) for length in lengths[start : start + BATCH]]
        padded = {name: pad_sequence([text[name][0] for text in batch], batch_first=True) for name in batch[0]}
        ours += elapsed(partial(token_scores, model, padded, target=0))
        plain += sum(elapsed(partial(token_scores, model, text, "integrated-gradients", 0)) for text in batch)
    name = f"{default_method(model)}, {count} sentences, BERT-base, next to integrated gradients"
    return row(name, ours, plain)


def bert_base() -> BidirBertForSequenceClassification:
    return BidirBertForSequenceClassification(BidirBertConfig()).eval()


def sentence(length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30000, (1, length)), "attention_mask": torch.ones(1, length, dtype=torch.long)}


def row(name: str, ours: float, plain: float) -> list[str]:
    return [name, f"{ours:.3g}", f"{plain:.3g}", f"{plain / ours:.2g}"]


if __name__ == "__main__":
    main()
