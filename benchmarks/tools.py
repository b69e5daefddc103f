"""How fast are tools of explanation? Each by its default method, on one core.

A model of the shape of BERT-base with random weights reads a sentence of 20 words. The time is saved in multiples of
a forward pass of the same run, so that a tool which needs an older transformers can run in an environment of its own;
what is not installed is left out. The other cells of results/tools.csv are written by hand: each was tried, with the
versions in the table, which `make tables` writes into docs/libraries.md.

    pip install autolrp captum shap transformers-interpret
    python -m benchmarks.tools
    python -m benchmarks.tools --only LXT       # with "lxt==2.1" "transformers==4.52.4" pandas filelock
    python -m benchmarks.tools --only ferret    # with ferret-xai "pyarrow<20" filelock
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, PreTrainedModel, pipeline

from benchmarks.measure import RESULTS, ROOT, command_line, interleaved_medians
from benchmarks.runs import markdown, read_runs
from hf_bidir.common.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame

SENTENCE = "this is not a bad film at all and I did not want it to end soon after the start"
FORWARD, OWN = "forward", "hf_bidir"
SPEED, UNKNOWN = "forward passes", "not measured"  # the column of times, and a tool without one
Model = tuple[PreTrainedModel, Any]
Task = Callable[[], object]


def bert(layers: int = 12) -> Model:
    """A classifier of the shape of BERT-base with random weights, and its tokenizer."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=layers)).eval()
    return model, BertTokenizerFast.from_pretrained(ROOT / "model_cards/sst2-minilm-softmax")


def forward(model: PreTrainedModel, tokenizer: Any) -> Task:
    return torch.no_grad()(partial(model, **tokenizer(SENTENCE, return_tensors="pt")))


def hf_bidir(model: PreTrainedModel, tokenizer: Any) -> Task:
    from hf_bidir.explain import explain

    return partial(explain, model, tokenizer, SENTENCE)


def captum(model: PreTrainedModel, tokenizer: Any) -> Task:
    from captum.attr import LayerIntegratedGradients

    ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    method = LayerIntegratedGradients(lambda ids: model(ids).logits, model.get_input_embeddings())
    return partial(method.attribute, ids, torch.zeros_like(ids), target=1)


def transformers_interpret(model: PreTrainedModel, tokenizer: Any) -> Task:
    from transformers_interpret import SequenceClassificationExplainer

    return partial(SequenceClassificationExplainer(model, tokenizer), SENTENCE)


def shap(model: PreTrainedModel, tokenizer: Any) -> Task:
    from shap import Explainer

    classifier = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    return partial(Explainer(classifier), [SENTENCE], silent=True)


def ferret(model: PreTrainedModel, tokenizer: Any) -> Task:
    from ferret import Benchmark

    return partial(Benchmark(model, tokenizer).explain, SENTENCE, target=1, show_progress=False)


def autolrp(model: PreTrainedModel, tokenizer: Any) -> Task:
    from autolrp import tensor

    def task() -> None:
        embeddings = tensor(model.get_input_embeddings()(ids).detach())
        model(inputs_embeds=embeddings).logits[0, 1].lrp()

    ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    return task


def lxt(model: PreTrainedModel, tokenizer: Any) -> Task:
    from lxt.efficient import monkey_patch
    from transformers.models.bert import modeling_bert

    def task() -> None:
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        model(inputs_embeds=embeddings).logits[0, 1].backward()

    monkey_patch(modeling_bert)  # replaces the classes of BERT, so that the model is built again
    model = modeling_bert.BertForSequenceClassification(model.config).eval()
    ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    return task


TOOLS = {
    OWN: hf_bidir, "captum": captum, "LXT": lxt, "transformers-interpret": transformers_interpret,
    "ferret": ferret, "SHAP": shap, "autoLRP": autolrp,
}  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=TOOLS, default=[*TOOLS], metavar="TOOL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--file", type=Path, default=RESULTS / "tools.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = {FORWARD: forward(*bert(options.layers))}
    for name in options.only:
        try:
            tasks[name] = TOOLS[name](*bert(options.layers))
        except ImportError as error:
            print(f"{name} is left out: {error}")
    medians = interleaved_medians(tasks, options.repeats, warm_up=1)
    runs = read_runs(options.file).set_index("tool").astype({SPEED: object})
    unit = medians.pop(FORWARD)
    for name, seconds in medians.items():
        runs.loc[name, SPEED] = f"{seconds / unit:.3g}"
        print(f"{name}: {seconds:.3f} s, {runs.loc[name, SPEED]} forward passes")
    with replacing(options.file) as temporary:
        runs.to_csv(temporary)


def table(runs: "DataFrame") -> str:
    """A column for each tool; once hf_bidir is timed, the last row is the time beside its own, or why there is none."""
    times = dict(zip(runs.tool, runs.pop(SPEED), strict=True))
    if times[OWN] != UNKNOWN:
        runs["time"] = [relative(passes, times[OWN]) for passes in times.values()]
    return markdown(["", *times], [[name, *runs[name].fillna("")] for name in runs.columns.drop("tool")])


def relative(passes: str, own: str) -> str:
    """A time as a multiple of another one, where both are numbers."""
    try:
        return f"{float(passes) / float(own):.2g}"
    except ValueError:
        return passes


if __name__ == "__main__":
    main()
