"""Signed token scores of a model's predictions, and figures of them.

`token_scores` computes one number per token by any method; each method is also a function of its own. A signed method
either does not depend on the arbitrary signs of TanhMax heads, or its documentation says that it needs oriented heads.
"""

from hf_bidir.common.extras import extra

with extra("explain"):
    from hf_bidir.explain.alti import alti
    from hf_bidir.explain.checkpoint import load_checkpoint, read_text
    from hf_bidir.explain.continuation import explain_continuation, prediction_scores
    from hf_bidir.explain.contributions import contributions, edge_contributions, pooled_contributions, value_weighted
    from hf_bidir.explain.encoder_decoder import align
    from hf_bidir.explain.erasure import erasure
    from hf_bidir.explain.explain import explain, explain_each
    from hf_bidir.explain.explanation import Explanation
    from hf_bidir.explain.figures import alignment_grid, image_heatmap, layer_head_grid, word_scatter
    from hf_bidir.explain.flow import attention_flow
    from hf_bidir.explain.gradients import grad_cam, gradient_times_input, integrated_gradients
    from hf_bidir.explain.image_inputs import read_image
    from hf_bidir.explain.methods import METHODS, default_method, token_scores
    from hf_bidir.explain.orient import flip_heads, orient_heads
    from hf_bidir.explain.orientation import oriented_towards
    from hf_bidir.explain.photo import photo_heatmap
    from hf_bidir.explain.relevance import integrated_relevance, relevance
    from hf_bidir.explain.rollout import attention_rollout
    from hf_bidir.explain.smooth_grad import smooth_grad
    from hf_bidir.explain.text_heatmap import text_heatmap
    from hf_bidir.explain.value_zeroing import value_zeroing
    from hf_bidir.explain.vision import head_maps, vision_maps
    from hf_bidir.explain.words import Explanations, WordTable, word_table

__all__ = [
    "METHODS",
    "Explanation",
    "Explanations",
    "WordTable",
    "align",
    "alignment_grid",
    "alti",
    "attention_flow",
    "attention_rollout",
    "contributions",
    "default_method",
    "edge_contributions",
    "erasure",
    "explain",
    "explain_continuation",
    "explain_each",
    "flip_heads",
    "grad_cam",
    "gradient_times_input",
    "head_maps",
    "image_heatmap",
    "integrated_gradients",
    "integrated_relevance",
    "layer_head_grid",
    "load_checkpoint",
    "orient_heads",
    "oriented_towards",
    "photo_heatmap",
    "pooled_contributions",
    "prediction_scores",
    "read_image",
    "read_text",
    "relevance",
    "smooth_grad",
    "text_heatmap",
    "token_scores",
    "value_weighted",
    "value_zeroing",
    "vision_maps",
    "word_scatter",
    "word_table",
]
