"""Train a causal language model with signed attention, from scratch or from any checkpoint of a decoder.

examples:
  # from scratch: a byte-level BPE of the training split, and a model of the shape of Llama
  python training/causal_lm.py training/recipes/imdb-lm-tanhmax.yaml

  # your own text, a document per line (or --sample_by paragraph, document), and another one to evaluate on
  python training/causal_lm.py --train_file mine.txt --validation_file held-out.txt --output_dir runs/mine

  # go on with a softmax checkpoint of the Hub, while its negative mass rises
  python training/causal_lm.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --train_file mine.txt \\
      --negative_mass_until 0.5 --learning_rate 5e-5 --output_dir runs/smol-mine

  # some heads signed, the others softmax
  python training/causal_lm.py training/recipes/imdb-lm-hybrid.yaml

Texts are joined, with the token that ends a text behind each, and cut into blocks: nothing is padding, and a block may
go from one text into the next, as in GPT-2. The perplexity is that of the validation split, per token; models with
different tokenizers cannot be compared by it.

A recipe is a YAML file of the options below; options on the command line win over it. A run that was interrupted
continues when the same command is given again; torchrun --nproc_per_node 2 training/causal_lm.py … shares it among
processes. The output folder loads with AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True), and
hf-bidir explain FOLDER "The film was" shows what speaks for and against the next token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    default_data_collator,
    set_seed,
)

from hf_bidir import BidirLlamaConfig
from hf_bidir.example_inputs import longest_text
from hf_bidir.finetune.arguments import BlockArguments, CausalModelArguments, CausalRunArguments, ScheduleArguments
from hf_bidir.finetune.blocks import cut_into_blocks, read_documents
from hf_bidir.finetune.errors import run_script
from hf_bidir.finetune.models import (
    build_model,
    check_given,
    check_reads_no_future,
    checkpoint_config,
    know_padding,
    saved_tokenizer,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.text_data import check_max_length
from hf_bidir.finetune.tokenizer import train_byte_level
from hf_bidir.finetune.trainer import CausalTrainer
from hf_bidir.layer_hooks import in_evaluation

HEAD = "AutoModelForCausalLM"
OPTIONS = (BlockArguments, CausalModelArguments, ScheduleArguments, CausalRunArguments)
PROMPT, WRITTEN = 12, 60  # tokens of the card's sample, as far as the model has positions


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    data, arguments, schedule, args, given = parse_recipe(OPTIONS, argv, __doc__)
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_documents(data)
    if source := arguments.model_name_or_path:
        config, tokenizer = checkpoint_config(HEAD, arguments, names=[]), saved_tokenizer(source)
        know_padding(config, tokenizer)
    else:
        tokenizer = train_byte_level(
            splits.train["text"][:], vocab_size=arguments.vocab_size, max_length=data.block_size
        )
        config = new_config(arguments, tokenizer, data.block_size)
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    check_reads_no_future(model, source)
    check_max_length(data.block_size, model, source, option="block_size")
    splits = cut_into_blocks(splits, tokenizer, data)
    return finetune(
        model,
        splits,
        task="text-generation",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        collator=default_data_collator,
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(source),
        trainer_class=CausalTrainer,
        compute_metrics=None,
        afterwards=lambda trained: {"sample": written_sample(trained, tokenizer, splits.validation)},
    )


def new_config(arguments: CausalModelArguments, tokenizer: PreTrainedTokenizerBase, positions: int) -> PretrainedConfig:
    """The config of a new model of the shape of Llama (Touvron et al. 2023).

    Raises:
        InputError: the config refuses a value.
    """
    return scratch_config(
        BidirLlamaConfig,
        arguments,
        names=[],
        vocab_size=len(tokenizer),
        num_key_value_heads=arguments.num_key_value_heads,
        max_position_embeddings=positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def written_sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, split: Dataset) -> dict[str, str]:
    """What the model writes behind the beginning of a split's first block, and how, for the card."""
    positions = longest_text(model) or PROMPT + WRITTEN
    given = min(PROMPT, positions // 2)
    written = min(WRITTEN, positions - given)
    prompt = torch.tensor([split[0]["input_ids"][:given]], device=model.device)
    torch.manual_seed(0)
    with in_evaluation(model):
        how = {"do_sample": True, "top_p": 0.9, "top_k": 0, "max_new_tokens": written}
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)[0]
    return {
        "how": f"The first {given} tokens are from the validation split; behind them the model wrote at most "
        f"{written}, drawn with top-p 0.9 and seed 0.",
        "prompt": tokenizer.decode(ids[:given]),
        "text": tokenizer.decode(ids[given:]),
    }


if __name__ == "__main__":
    run_script(main)
