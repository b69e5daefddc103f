"""Sets up Triton before anything imports it, says which tests are slow, and makes garbage collection cheap."""

import gc
import os
from pathlib import Path

import pytest
import torch

from tests.processes import SUBPROCESS

if not torch.cuda.is_available():  # then Triton's interpreter runs the kernels, in this process and in those it starts
    os.environ.setdefault("TRITON_INTERPRET", "1")

TESTS = Path(__file__).parent
os.environ.setdefault("NNSIGHT_CONFIG", str(TESTS / "fixtures/nnsight.yaml"))  # it adds no `.save` to every object
# Folders and files that train, compile, or start processes or a browser, the slowest first. Workers begin with them,
# so that no long file is left for the end; `make check` leaves them out.
SLOW = (
    "hub/test_push.py",
    "benchmarks/test_gpu.py",
    "kernels/test_fused_attention.py",
    "modeling/test_models.py",
    "training",
    "checkpoints/test_sentence_folder.py",
    "space",
    "deploy",
    "test_documentation.py",
    "explain/test_notebook.py",
    "kernels/test_backends.py",
    "benchmarks/test_tables.py",
    "test_package.py",
    "modeling/test_saved_models.py",
    "recurrent/test_saved_recurrent.py",
    "kernels/test_fused_models.py",
    "explain/test_wrapped_models.py",
    "modeling/test_compat.py",
    "checkpoints/test_convert.py",
    "modeling/test_made_classes.py",
    "test_imports.py",
    "hub",
    "kernels/test_fused_operator.py",
    "kernels/test_fused_compiled.py",
    "explain/test_sentence_encoder.py",
    "explain/test_rows.py",
    "test_libraries.py",
)

# Files with tests of the kernels, to be repeated on every GPU. Each compiles some ten kernels or more, in under two
# minutes with several processes: `pytest -m gpu --numprocesses 8`.
GPU = (
    "kernels/test_fused_attention.py",
    "kernels/test_fused_check.py",
    "kernels/test_fused_models.py",
    "kernels/test_fused_operator.py",
    "kernels/test_fused_options.py",
    "kernels/test_backends.py",
)


@pytest.fixture(scope="session", autouse=True)
def _isolated_processes_are_forks():
    """Processes of isolated_forward start where transformers is; tests/hub/test_isolated.py has a fresh one."""
    from hf_bidir.hub import isolated

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolated, "subprocess", SUBPROCESS)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of GPU and of SLOW, and put the slow ones first in its order."""
    order = {item: _place(item.path) for item in items}
    for item, place in order.items():
        if place < len(SLOW):
            item.add_marker("slow")
        if any(item.path == TESTS / file for file in GPU):
            item.add_marker("gpu")
    items.sort(key=order.get)


def pytest_collection_finish() -> None:
    """Leave what is imported out of garbage collections: every Trainer asks for one, of millions of lasting objects."""
    gc.collect()
    gc.freeze()


def _place(path: Path) -> int:
    """The position in SLOW of a test file or of a folder it is in; the length of SLOW for other files."""
    return next((place for place, slow in enumerate(SLOW) if path.is_relative_to(TESTS / slow)), len(SLOW))
