"""Setup that must run before the first import of Triton."""

import os

import torch

if not torch.cuda.is_available():  # then Triton's interpreter runs the kernels, in this process and in those it starts
    os.environ.setdefault("TRITON_INTERPRET", "1")
