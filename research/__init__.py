"""The laboratory: experiments with signed attention that use hf_bidir and are not part of it."""
