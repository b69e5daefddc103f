"""Relevance of tiny softmax models by the library LXT, for tests/explain/test_relevance.py.

    python3 -m venv lxt && lxt/bin/pip install "lxt==2.1" "transformers==4.52.4" torchvision
    lxt/bin/python benchmarks/lxt_reference.py

LXT 2.1 (the library of Achtibat et al. 2024) cannot be imported beside transformers 5: its copy of BERT imports a
module that was removed. So it runs in an environment of its own, and tests/fixtures/lxt_NAME.safetensors holds weights,
inputs and relevance, with the config as metadata. `python -m pip install` is all that needs a network.
"""

import json
from pathlib import Path

import torch
from lxt.efficient import monkey_patch
from safetensors.torch import save_file
from transformers.models.bert import modeling_bert
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama

FIXTURES = Path(__file__).resolve().parent.parent / "tests/fixtures"
WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TEXTS = {"vocab_size": 30, "max_position_embeddings": 12, "pad_token_id": 1, "initializer_range": 0.4}
MODELS = {
    "BertForSequenceClassification": (modeling_bert, WIDTHS),
    "LlamaForSequenceClassification": (modeling_llama, WIDTHS | {"num_key_value_heads": 2, "attention_bias": True}),
    "GPT2ForSequenceClassification": (modeling_gpt2, {"n_embd": 16, "n_layer": 2, "n_head": 4}),
}


def main() -> None:
    for name, (module, options) in MODELS.items():
        torch.manual_seed(0)
        monkey_patch(module)  # first, because it replaces the classes of BERT
        head = getattr(module, name)
        ends = {"bos_token_id": 2, "eos_token_id": 2}
        config = head.config_class(**TEXTS, **options, **ends, attn_implementation="eager")
        model = head(config).double().eval()
        for key, weight in model.named_parameters():
            if key.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.2)
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        ids = torch.randint(3, 30, (2, 8))
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        y = model(inputs_embeds=embeddings, attention_mask=torch.ones_like(ids)).logits[:, 1]
        (gradient,) = torch.autograd.grad(y.sum(), embeddings)
        results = {"input_ids": ids, "logit": y.detach(), "relevance": (embeddings * gradient).sum(-1).detach()}
        fields = {key: value for key, value in model.config.to_diff_dict().items() if key != "transformers_version"}
        FIXTURES.mkdir(exist_ok=True)
        file = FIXTURES / f"lxt_{name}.safetensors"
        tensors = weights | {f"found.{key}": value.contiguous() for key, value in results.items()}
        save_file(tensors, file, {"config": json.dumps(fields)})
        print(file, results["relevance"][0])


if __name__ == "__main__":
    main()
