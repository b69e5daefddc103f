"""Exported graphs compute what the model computes, and run without hf_bidir."""

import json
from types import SimpleNamespace

import onnx
import pytest
import torch
from transformers import AutoTokenizer
from transformers.exporters.base import ExportedModel

from hf_bidir import signed
from hf_bidir.deploy import graph as graph_module
from hf_bidir.deploy.graph import export_checkpoint
from tests.tiny_models import inputs_of, logits_of, stock_model, word_tokenizer

FORMATS = {"gpt2": "onnx", "vit": "pt2"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of a graph, and the signed model that it was exported from, by family."""
    graphs = {}
    for family, format in FORMATS.items():
        folder = tmp_path_factory.mktemp(family)
        model = signed(stock_model(family, num_hidden_layers=1), negative_mass=0.7)
        model.save_pretrained(folder / "model")
        if family == "gpt2":
            word_tokenizer().save_pretrained(folder / "model")
        export_checkpoint(folder / "model", folder / "graph", format=format)
        graphs[family] = folder / "graph", model
    return graphs


@pytest.mark.parametrize("family", FORMATS)
def test_a_graph_computes_the_logits_of_the_model_for_inputs_of_other_sizes(family, exported):
    folder, model = exported[family]
    graph = ExportedModel.from_pretrained(folder, device="cpu", trust_remote_code=True)
    inputs = inputs_of(family)
    if family == "gpt2":
        inputs["token_type_ids"] = inputs["attention_mask"]
    torch.testing.assert_close(logits_of(graph, inputs), logits_of(model, inputs), atol=1e-4, rtol=1e-4)


def test_attention_is_the_softmax_operator_of_onnx(exported):
    nodes = onnx.load(exported["gpt2"][0] / "model.onnx", load_external_data=False).graph.node
    operators = [node.op_type for node in nodes]
    assert (operators.count("Softmax"), operators.count("Exp")) == (1, 0)  # of one layer
    assert {node.domain for node in nodes} == {""}  # ONNX's own


def test_the_folder_has_a_tokenizer_no_code_and_says_what_attention_the_graph_has(exported):
    folder, _ = exported["gpt2"]
    assert AutoTokenizer.from_pretrained(folder)("a good film").input_ids == [2, 5, 6, 8, 3]
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["attn_negative_mass"]) == ("gpt2", 0.7)
    assert "auto_map" not in config
    assert not list(folder.glob("*.py"))


def test_a_graph_that_differs_from_the_model_is_written_only_if_that_is_asked_for(exported, tmp_path, monkeypatch):
    graph = ExportedModel.from_pretrained(exported["vit"][0], device="cpu", trust_remote_code=True)
    monkeypatch.setattr(graph_module, "_exported", lambda *_: graph)
    signed(stock_model("vit", num_hidden_layers=1), negative_mass=0.1).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"differ .* more than 1.0e-04; .*--tolerance"):
        export_checkpoint(tmp_path / "model", tmp_path / "graph", format="pt2")
    assert not (tmp_path / "graph").exists()
    assert export_checkpoint(tmp_path / "model", tmp_path / "graph", format="pt2", tolerance=1.0) > 1e-3
    assert (tmp_path / "graph/model.pt2").is_file()


def test_a_graph_with_operators_that_are_not_onnxs_own_is_refused(exported, tmp_path, monkeypatch):
    program = SimpleNamespace(graph=[SimpleNamespace(domain=domain) for domain in ("", "ai.onnx", "com.microsoft")])
    monkeypatch.setattr(graph_module.OnnxExporter, "export", lambda *_: SimpleNamespace(program=program))
    with pytest.raises(ValueError, match=r"not ONNX's own: \{'com.microsoft'\}"):
        export_checkpoint(exported["gpt2"][0].parent / "model", tmp_path / "graph")


def test_an_unknown_format_is_one_clear_error(tmp_path):
    with pytest.raises(ValueError, match="onnx or pt2, got 'tflite'"):
        export_checkpoint("any/checkpoint", tmp_path / "graph", format="tflite")
