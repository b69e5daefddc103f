"""Three texts for small models of the tests of explanations."""

import torch


def texts():
    """Three texts of 7, 4 and 2 of 20 words."""
    keep = (torch.arange(7) < torch.tensor([[7], [4], [2]])).long()
    ids = torch.randint(1, 20, (3, 7), generator=torch.Generator().manual_seed(1)) * keep
    return {"input_ids": ids, "attention_mask": keep}
