"""Type stub for editors and type checkers, because the package imports its names on first access."""

from hf_bidir.explain.api import explain as explain
from hf_bidir.explain.api import explain_each as explain_each
from hf_bidir.explain.draw.figures import image_heatmap as image_heatmap
from hf_bidir.explain.draw.figures import score_grid as score_grid
from hf_bidir.explain.draw.page import text_heatmap as text_heatmap
from hf_bidir.explain.generation import align as align
from hf_bidir.explain.generation import explain_continuation as explain_continuation
from hf_bidir.explain.generation import prediction_scores as prediction_scores
from hf_bidir.explain.head_score import explain_head as explain_head
from hf_bidir.explain.inputs.checkpoint import load_checkpoint as load_checkpoint
from hf_bidir.explain.inputs.image import read_image as read_image
from hf_bidir.explain.inputs.text import read_text as read_text
from hf_bidir.explain.methods import default_method as default_method
from hf_bidir.explain.methods import token_scores as token_scores
from hf_bidir.explain.methods.alti import alti as alti
from hf_bidir.explain.methods.attention import attention_rollout as attention_rollout
from hf_bidir.explain.methods.attnlrp import integrated_relevance as integrated_relevance
from hf_bidir.explain.methods.attnlrp import relevance as relevance
from hf_bidir.explain.methods.chefer import cross_rollout as cross_rollout
from hf_bidir.explain.methods.chefer import gradient_rollout as gradient_rollout
from hf_bidir.explain.methods.contributions import contributions as contributions
from hf_bidir.explain.methods.contributions import edge_contributions as edge_contributions
from hf_bidir.explain.methods.contributions import pooled_contributions as pooled_contributions
from hf_bidir.explain.methods.contributions import value_weighted as value_weighted
from hf_bidir.explain.methods.erasure import erasure as erasure
from hf_bidir.explain.methods.flow import attention_flow as attention_flow
from hf_bidir.explain.methods.gradients import integrated_gradients as integrated_gradients
from hf_bidir.explain.registry import METHODS as METHODS
from hf_bidir.explain.result import Alignment as Alignment
from hf_bidir.explain.result import Explanation as Explanation
from hf_bidir.explain.result import Explanations as Explanations
from hf_bidir.explain.tables import WordTable as WordTable
from hf_bidir.explain.tables import word_table as word_table

__all__: list[str]
