"""How fast does a signed decoder generate, compared with its stock model? Tokens per second of `generate`, cached.

A random Llama of about 100 million parameters, greedy, stock softmax and TanhMax interleaved; also converted at λ = 0,
where the tokens must be equal.

    python benchmarks/generation.py
    python benchmarks/generation.py --batch 4 --prompt 512 --new 32
"""

import argparse
import copy
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.measure import interleaved_medians, options_of, write_table
from hf_bidir import signed

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}


def main() -> None:
    batch = {"type": int, "nargs": "+", "default": [1, 8]}
    options = options_of(__doc__, "generation", on_device=True, batch=batch, prompt=128, new=64, layers=12, repeats=5)
    dtype = getattr(torch, options.dtype)
    models = {name: model.to(options.device, dtype).eval() for name, model in pair(options.layers).items()}
    rows = [row for batch in options.batch for row in measured(models, batch, options)]
    parameters = models["stock softmax"].num_parameters() / 1e6
    notes = (
        f"A random Llama of {parameters:.0f} million parameters (width 768, 12 heads, 4 key heads), "
        f"{PRECISIONS[options.dtype]}, prompts of {options.prompt} tokens, {options.new} generated tokens, greedy, "
        f"medians of {options.repeats} interleaved runs. The ratio of tokens per second is to the stock model on sdpa "
        "(higher is better)."
    )
    header = ["model", "batch", "tokens per second", "ratio", "same tokens as stock"]
    write_table(options.output, "Generation", notes, header, rows, options.device)


def pair(layers: int, width: int = 768) -> dict[str, PreTrainedModel]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16384, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers,
        num_attention_heads=12, num_key_value_heads=4, initializer_range=0.05,
    )  # fmt: skip
    stock = LlamaForCausalLM(config)
    masses = {"λ = 0": 0.0, "TanhMax": 1.0}
    return {"stock softmax": stock} | {
        name: signed(copy.deepcopy(stock), negative_mass=mass) for name, mass in masses.items()
    }


def measured(models: dict[str, PreTrainedModel], batch: int, options: argparse.Namespace) -> list[list[str]]:
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, 16384, (batch, options.prompt), generator=generator).to(options.device)
    tasks = {name: partial(generate, model, prompt, options.new) for name, model in models.items()}
    generated = {name: task() for name, task in tasks.items()}
    medians = interleaved_medians(tasks, options.repeats, warm_up=1)
    rows = []
    for name, seconds in medians.items():
        same = torch.equal(generated[name], generated["stock softmax"])
        rate, ratio = batch * options.new / seconds, medians["stock softmax"] / seconds
        rows.append([name, str(batch), f"{rate:.1f}", f"{ratio:.2f}", "yes" if same else "no"])
        print(rows[-1], flush=True)
    return rows


def generate(model: PreTrainedModel, prompt: torch.Tensor, new: int, **cache) -> torch.Tensor:
    lengths = {"max_new_tokens": new, "min_new_tokens": new}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **lengths, **cache)


if __name__ == "__main__":
    main()
