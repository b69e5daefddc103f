"""The table of healed students."""

import pandas as pd


def test_a_healing_table_has_the_students_of_one_model_and_no_empty_columns(benchmark):
    healed = {"student": "centred, healed", "steps": 30, "relative_error": 0.038, "perplexity": None}
    rows = [
        healed
        | {"model": "minilm", "seed": 0, "worst_layer": 0.06, "negative_share": 0.3, "minutes": 2.8, "threads": 1},
        {"model": "decoder", "student": "stock softmax", "steps": 0, "seed": 0, "perplexity": 66.3},
    ]
    runs = pd.DataFrame([row | {"accuracy": None, "versions": "torch 2.14"} for row in rows])
    text = benchmark("healing").table(runs, "minilm")
    header, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    assert "perplexity" not in header
    assert lines == [["centred, healed", "30", "3.80%", "6.00%", "30%", "2.8", "1"]]
