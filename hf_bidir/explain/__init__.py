"""Pictures and numbers that say what a model attended to, sign included."""

from hf_bidir.explain.figures import image_heatmap

__all__ = ["image_heatmap"]
