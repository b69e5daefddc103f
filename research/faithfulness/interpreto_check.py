"""Do the areas under deletion and insertion curves equal those of the library interpreto?

    python3 -m venv check && check/bin/pip install interpreto==0.5.2 -e ".[all]"
    check/bin/python -m research.faithfulness.interpreto_check

On one committed model, with word pieces replaced by [MASK] one at a time, as interpreto does, and scores of the default
method. In an environment of its own, because interpreto needs packages that nothing else here does. The table goes to
runs/interpreto_check.md.
"""

import torch
from interpreto.attributions.base import AttributionOutput, ModelTask
from interpreto.attributions.metrics import Deletion, Insertion
from interpreto.commons.granularity import Granularity, GranularityAggregationStrategy

from benchmarks.measure import ROOT, write_table
from hf_bidir.explain import load_checkpoint, token_scores
from research.faithfulness import area, prediction_curve

TEXTS = (
    "a charming film with a weak ending",
    "the plot is dull , but the actors are wonderful",
    "not a bad film at all",
)


def main() -> None:
    model, tokenizer = load_checkpoint(ROOT / "model_cards/sst2-minilm-tanhmax")
    rows = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        special = torch.tensor(
            tokenizer.get_special_tokens_mask(inputs["input_ids"][0], already_has_special_tokens=True)
        )
        scores = token_scores(model, inputs)[0]
        target = model(**inputs).logits.argmax(-1)
        for how, metric in (("deletion", Deletion), ("insertion", Insertion)):
            steps = [index / int((special == 0).sum()) for index in range(int((special == 0).sum()) + 1)]
            options = {"target": target, "special": special.bool()[None], "replacement": tokenizer.mask_token_id}
            ours = area(prediction_curve(model, inputs, scores[None], steps, how, **options, progress=False)).item()
            given = AttributionOutput(
                attributions=scores[special == 0][None],
                elements=[str(index) for index in range(int((special == 0).sum()))],
                model_inputs_to_explain=inputs,
                targets=target,
                model_task=ModelTask.CLASSIFICATION,
                granularity=Granularity.TOKEN,
                granularity_aggregation_strategy=GranularityAggregationStrategy.MEAN,
            )
            theirs, _ = metric(model, tokenizer, n_perturbations=1000).evaluate([given])
            rows.append([text, how, f"{ours:.7f}", f"{theirs:.7f}", f"{abs(ours - theirs):.1e}"])
    notes = "Area under the curve of the predicted class's probability."
    header = ["text", "curve", "hf_bidir", "interpreto", "difference"]
    output = ROOT / "runs/interpreto_check.md"
    write_table(output, "Deletion and insertion against interpreto", notes, header, rows, "cpu")


if __name__ == "__main__":
    main()
