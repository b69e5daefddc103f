"""What signed attention does inside a model, in numbers."""

from hf_bidir.analysis.signs import negative_share, without_negatives

__all__ = ["negative_share", "without_negatives"]
