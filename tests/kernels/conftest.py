"""Makes Triton's interpreter quicker, which runs the kernels where there is no GPU."""

import pytest
import torch

from hf_bidir.kernels.fused_path import HAS_TRITON

if HAS_TRITON and not torch.cuda.is_available():  # before tests import it: a second part then begins after few keys
    from hf_bidir.kernels import fused_attention

    fused_attention.PART = 32


@pytest.fixture(autouse=True, scope="session")
def patched_once_per_launch():
    """The interpreter patches `triton.language` in every call of a helper; once for each launch is enough."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        interpreter = None
    if torch.cuda.is_available() or not hasattr(interpreter, "_patch_lang"):
        yield
        return
    patch = interpreter._patch_lang
    launch = interpreter.GridExecutor.__call__
    patched = set()

    def patch_once(function):
        known = function.__module__ in patched
        patched.add(function.__module__)
        return None if known else patch(function)

    def launch_anew(self, *args, **options):
        patched.clear()
        try:
            return launch(self, *args, **options)
        finally:
            patched.clear()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
        monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_anew)
        yield
