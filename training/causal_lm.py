"""Train a causal language model with signed attention, from scratch or from any checkpoint of a decoder.

examples:
  # from scratch: a byte-level BPE of the training split, and a model with the architecture of Llama
  python training/causal_lm.py training/recipes/imdb-lm-tanhmax.yaml

  # your own text, a document per line (or --sample_by paragraph, document), and another one to evaluate on
  python training/causal_lm.py --train_file mine.txt --validation_file held-out.txt --output_dir runs/mine

  # continue training a softmax checkpoint of the Hub while its negative mass rises
  python training/causal_lm.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --train_file mine.txt \\
      --negative_mass_until 0.5 --learning_rate 5e-5 --output_dir runs/smol-mine

Texts are joined, each followed by the token that ends a text, and cut into blocks: there is no padding, and a block may
span several texts, as in GPT-2. The perplexity is per token, on at most --max_eval_samples blocks of the
validation split; it is not comparable across tokenizers.

A recipe is a YAML file of the options below; options on the command line override it. A run that was interrupted
continues when the same command is given again; torchrun --nproc_per_node 2 training/causal_lm.py … distributes it over
processes. The output folder loads with AutoModelForCausalLM and AutoTokenizer, with trust_remote_code=True in both;
hf-bidir explain FOLDER "The film was" shows what supports and opposes the next token.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, default_data_collator, set_seed

from hf_bidir import BidirLlamaConfig
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import BlockArguments, ModelArguments, ScheduleArguments, StepArguments, option
from hf_bidir.finetune.data.splits import sampled
from hf_bidir.finetune.data.text_data import cut_into_blocks, fit_max_length, read_documents
from hf_bidir.finetune.data.tokenizer import train_byte_level
from hf_bidir.finetune.models import (
    build_model,
    check_options,
    checkpoint_config,
    saved_tokenizer,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import CausalTrainer
from hf_bidir.hub.card import write_card

HEAD = "AutoModelForCausalLM"


@dataclass
class CausalModelArguments(ModelArguments):
    """Model options of causal language modelling; a new model has the shape of Llama (Touvron et al. 2023)."""

    hidden_size: int = option(192, "From scratch: the width of the model.")
    num_hidden_layers: int = option(6, "From scratch: the number of layers.")
    num_attention_heads: int = option(6, "From scratch: the number of heads; must divide hidden_size.")
    dropout: float = option(0.0, "From scratch: dropout of attention coefficients.")
    vocab_size: int = option(4096, "From scratch: the size of the byte-level vocabulary.")

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise InputError(
                f"expected heads of an even width, for rotary positions; got hidden_size {self.hidden_size} and "
                f"num_attention_heads {self.num_attention_heads}"
            )


@dataclass
class CausalRunArguments(StepArguments):
    """Run options of causal language modelling: epochs, and a learning rate that decays to 0."""

    max_steps: int = option(-1, "The number of optimizer steps; -1 counts epochs instead.")
    num_train_epochs: float = option(1.0, "Number of passes over the text.")
    learning_rate: float = option(1e-3, "The peak learning rate, for new weights; 5e-5 suits a checkpoint.")
    lr_scheduler_type: str = option("cosine", "Learning rate schedule after warm-up.")
    weight_decay: float = option(0.1, "Weight decay, except of biases and norms.")
    per_device_train_batch_size: int = option(12, "Blocks per process and step.")
    per_device_eval_batch_size: int = option(12, "Evaluation blocks per process and step.")


OPTIONS = (BlockArguments, CausalModelArguments, ScheduleArguments, CausalRunArguments)


def main(options: Options = None) -> dict[str, Any]:
    """Train as the options say, by default those of the command line; return the numbers of all_results.json."""
    data, shape, schedule, args = parse(OPTIONS, options, __doc__)
    check_options(shape, args.typed)
    source = shape.model_name_or_path

    splits = read_documents(data)
    if source:
        config = checkpoint_config(HEAD, shape, names=[])
        tokenizer = saved_tokenizer(source, config)
    else:
        tokenizer = train_byte_level(splits.train["text"][:], vocab_size=shape.vocab_size, max_length=data.block_size)
        sizes = {"max_position_embeddings": data.block_size, "vocab_size": len(tokenizer)}
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        config = scratch_config(BidirLlamaConfig, shape, names=[], **sizes, **ends)
    set_seed(args.seed)
    model = build_model(HEAD, shape, config)
    # not in the config, where the model would keep the embedding of this token, which ends a text, at 0
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    check_reads_no_future(model, source)
    fit_max_length(data, model, option="block_size")

    splits = sampled(cut_into_blocks(splits, tokenizer, data.block_size), data)
    trainer = CausalTrainer(
        model=model,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    run = Run(trainer, "text-generation", data, splits, schedule)
    results = run.train_and_save(centre=starts_as_softmax(source))
    if args.should_save:
        print(f"Model card: {write_card(args.output_dir)}")
    return results


@torch.no_grad()
def check_reads_no_future(model: PreTrainedModel, source: str | None) -> None:
    """Raise InputError where a token changes what the model, read from `source`, predicts before it: an encoder."""
    ids = torch.tensor([[0, 0], [0, 1]], device=model.device)
    with in_evaluation(model):
        first, second = model(input_ids=ids, use_cache=False).logits[:, 0]
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
        raise InputError(
            f"{source or 'the model'} is an encoder, whose tokens attend to later tokens, so it would learn to copy "
            "the next token; choose a decoder, or train it by training/masked_lm.py"
        )


if __name__ == "__main__":
    run_script(main)
