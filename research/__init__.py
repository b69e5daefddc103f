"""The laboratory: experiments with signed attention that use hf_bidir and are not part of it."""

# Before torch, as in the commands of the product: threads spin less, and no deprecations of libraries are printed.
import hf_bidir.cli  # noqa: F401
