"""The table of SST-2 from scratch."""

import pandas as pd

from research.paper import sst2_from_scratch


def test_p_values_of_several_metrics_are_corrected_for_their_number():
    metrics = ("accuracy", "macro_f1", "recall_negative", "recall_positive")
    rows = [
        {"activation": activation, "seed": seed}
        | {metric: 0.7 + 0.01 * place + bonus * (1 + 0.1 * seed) for place, metric in enumerate(metrics)}
        | {"versions": "torch 2.14"}
        for activation, bonus in (("tanhmax", 0.02), ("softmax", 0.0))
        for seed in range(3)
    ]
    text = sst2_from_scratch.table(pd.DataFrame(rows), 3)
    header, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    assert {line[header.index("p")] for line in lines} == {"0.011"}  # 4 * 0.0027
