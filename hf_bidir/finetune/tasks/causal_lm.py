"""Causal language modelling with any decoder, or a new model with the architecture of Llama."""

import logging
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
from hf_bidir.checkpoints.kinds import longest_text
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import CausalModelArguments, CausalRunArguments, ScheduleArguments
from hf_bidir.finetune.data.arguments import BlockArguments
from hf_bidir.finetune.data.blocks import cut_into_blocks, read_documents
from hf_bidir.finetune.data.text_data import fit_max_length
from hf_bidir.finetune.data.tokenizer import train_byte_level
from hf_bidir.finetune.models import (
    build_model,
    check_given,
    check_reads_no_future,
    checkpoint_config,
    saved_tokenizer,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.task import Task
from hf_bidir.finetune.trainer import CausalTrainer

logger = logging.getLogger(__name__)

HEAD = "AutoModelForCausalLM"
PROMPT, GENERATED = 12, 60  # tokens of the model card's sample, limited by the model's positions


def _train(
    data: BlockArguments,
    arguments: CausalModelArguments,
    schedule: ScheduleArguments,
    args: CausalRunArguments,
    given: dict[str, Any],
) -> dict[str, Any]:
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_documents(data)
    if source := arguments.model_name_or_path:
        config = checkpoint_config(HEAD, arguments, names=[])
        tokenizer = saved_tokenizer(source, config)
    else:
        new_config(arguments, None, data.block_size)  # refuses bad options before the vocabulary is trained
        tokenizer = train_byte_level(
            splits.train["text"][:], vocab_size=arguments.vocab_size, max_length=data.block_size
        )
        config = new_config(arguments, tokenizer, data.block_size)
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    # not in the config, where the model would keep the embedding of this token, which ends a text, at 0
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    check_reads_no_future(model, source)
    fit_max_length(data, given, model, source, option="block_size")
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
        extra_record=lambda trained: _sample(
            trained, tokenizer, splits.validation, sharded=args.fsdp or args.deepspeed
        ),
    )


def new_config(
    arguments: CausalModelArguments, tokenizer: PreTrainedTokenizerBase | None, positions: int
) -> PretrainedConfig:
    """The config of a new model of the shape of Llama (Touvron et al. 2023), for a tokenizer if there is one yet.

    Raises:
        InputError: the config refuses a value.
    """
    heads, key_heads = arguments.num_attention_heads, arguments.num_key_value_heads
    if key_heads is not None and (key_heads < 1 or heads % key_heads):
        raise InputError(f"expected num_key_value_heads to divide num_attention_heads {heads}; got {key_heads}")
    if (arguments.hidden_size // heads) % 2:
        raise InputError(
            f"expected heads of an even width, for rotary positions; hidden_size {arguments.hidden_size} and "
            f"num_attention_heads {heads} give {arguments.hidden_size // heads}"
        )
    tokens = {} if tokenizer is None else {
        "vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id
    }  # fmt: skip
    return scratch_config(
        BidirLlamaConfig,
        arguments,
        names=[],
        num_key_value_heads=key_heads,
        max_position_embeddings=positions,
        **tokens,
    )


def _sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, split: Dataset, sharded: bool
) -> dict[str, dict[str, str]]:
    """The model card's sample; empty if the model is sharded over processes, or if generation fails."""
    if sharded:
        return {}
    try:
        return {"sample": written_sample(model, tokenizer, split)}
    except (RuntimeError, ValueError) as error:  # a failed sample must not lose the finished run
        logger.warning("The card has no sample, because generating one failed: %s", error)
        return {}


def written_sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, split: Dataset) -> dict[str, str]:
    """A continuation of the beginning of a split's first block, and how it was drawn, for the model card."""
    positions = longest_text(model) or PROMPT + GENERATED
    ids = split[0]["input_ids"][: min(PROMPT, positions // 2)]
    given, generated = len(ids), min(GENERATED, positions - len(ids))
    prompt = torch.tensor([ids], device=model.device)
    torch.manual_seed(0)
    with in_evaluation(model):
        how = {"do_sample": True, "top_p": 0.9, "top_k": 0, "temperature": 1.0, "repetition_penalty": 1.0}
        how |= {"max_new_tokens": generated}
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)[0]
    return {
        "how": f"The first {given} tokens are from the validation split; the model generated at most "
        f"{generated} more, drawn with top-p 0.9 and seed 0.",
        "prompt": tokenizer.decode(ids[:given]),
        "text": tokenizer.decode(ids[given:]),
    }


causal_lm = Task((BlockArguments, CausalModelArguments, ScheduleArguments, CausalRunArguments), _train)
