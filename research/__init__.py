"""The laboratory: experiments with signed attention that use hf_bidir and are not part of it."""

import hf_bidir.cli.start  # noqa: F401  (before torch, as in the commands of the product)
