"""Exported graphs compute what the model computes, and run without hf_bidir."""

import json

import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoTokenizer
from transformers.exporters.base import ExportedModel

from hf_bidir import signed
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.deploy import graph as graph_module
from hf_bidir.deploy.graph import export_checkpoint
from tests.tiny_models import inputs_of, stock_model, word_tokenizer


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folders of a tiny signed model and of its ONNX graph, by family."""
    made = {}

    def folders(family):
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            signed(stock_model(family, num_hidden_layers=1), negative_mass=0.7).save_pretrained(folder / "model")
            if family == "bert":
                word_tokenizer().save_pretrained(folder / "model")
            export_checkpoint(folder / "model", folder / "graph", format="pt2" if family == "vit" else "onnx")
            made[family] = folder / "model", folder / "graph"
        return made[family]

    return folders


def run(graph, inputs):
    """The logits that onnxruntime computes; token types are 0 if there are none."""
    session = onnxruntime.InferenceSession(graph / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = {"token_type_ids": torch.zeros_like(inputs["input_ids"])} | inputs
    arrays = {one.name: inputs[one.name].numpy() for one in session.get_inputs()}
    return torch.from_numpy(session.run(["logits"], arrays)[0])


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_onnxruntime_computes_the_logits_of_the_model_by_the_softmax_operator_of_onnx(family, exported):
    model, graph = exported(family)
    inputs = inputs_of(family)  # of other sizes than the traced ones
    keep = inputs["attention_mask"].bool() if family == "gpt2" else ...
    expected = open_checkpoint(model).model()(**inputs).logits
    torch.testing.assert_close(run(graph, inputs)[keep], expected[keep], atol=1e-4, rtol=1e-4)
    nodes = onnx.load(graph / "model.onnx", load_external_data=False).graph.node
    operators = [node.op_type for node in nodes]
    assert (operators.count("Softmax"), operators.count("Exp")) == (1, 0)  # of one layer
    assert {node.domain for node in nodes} == {""}  # ONNX's own


def test_a_program_of_torch_computes_the_logits_of_the_model(exported):
    folder, graph = exported("vit")
    program, inputs = torch.export.load(graph / "model.pt2"), inputs_of("vit")
    expected = open_checkpoint(folder).model()(**inputs).logits
    torch.testing.assert_close(program.module()(**inputs).logits, expected, atol=1e-4, rtol=0)


def test_the_folder_needs_no_code_of_the_package_and_says_what_attention_the_graph_has(exported):
    graph = ExportedModel.from_pretrained(exported("bert")[1])
    assert type(graph.config).__name__ == "BertConfig"
    assert graph.config.attn_negative_mass == 0.7
    assert not hasattr(graph.config, "auto_map")
    assert not list(exported("bert")[1].glob("*.py"))
    ones = torch.ones(1, 4).long()
    assert graph(input_ids=ones, attention_mask=ones, token_type_ids=0 * ones).logits.shape == (1, 2)


def test_a_graph_that_differs_from_the_model_is_written_only_if_that_is_asked_for(exported, tmp_path, monkeypatch):
    trace = graph_module._exported
    other = signed(stock_model("vit", num_hidden_layers=1), negative_mass=0.1)
    monkeypatch.setattr(graph_module, "_exported", lambda model, *rest: trace(other, *rest))
    with pytest.raises(ValueError, match=r"differ .* more than 1.0e-04; .*--tolerance"):
        export_checkpoint(exported("vit")[0], tmp_path / "graph", format="pt2")
    assert not list(tmp_path.iterdir())
    assert export_checkpoint(exported("vit")[0], tmp_path / "graph", format="pt2", tolerance=1.0) > 1e-3


def test_the_tokenizer_and_the_token_types_come_along(exported):
    model, graph = exported("bert")
    inputs = AutoTokenizer.from_pretrained(graph)(
        ["a good", "film"], ["bad", "this example is"], padding=True, return_tensors="pt"
    )
    assert inputs["token_type_ids"].any()
    expected = open_checkpoint(model).model()(**inputs).logits.detach()
    torch.testing.assert_close(run(graph, inputs), expected, atol=1e-4, rtol=1e-4)


def test_an_unknown_format_is_one_clear_error_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="onnx or pt2, got 'tflite'"):
        export_checkpoint("any/checkpoint", tmp_path / "graph", format="tflite")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_model_in_full_precision_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json"):
        export_checkpoint(tmp_path, tmp_path / "graph")
    signed(stock_model("bert")).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["quantization_config"] = {"quant_method": "torchao", "quant_type": {"default": "int8_weight_only"}}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has quantised weights, which cannot be exported"):
        export_checkpoint(tmp_path / "model", tmp_path / "graph")
