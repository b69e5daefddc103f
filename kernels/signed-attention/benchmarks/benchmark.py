"""Run by `kernels benchmark OWNER/signed-attention --version 1`."""

import torch
from torch.nn import functional as F

from kernels import Benchmark


class SignedAttention(Benchmark):
    """TanhMax attention over 2,048 tokens, 12 heads of 64, bf16 on a GPU; checked against the formula."""

    seed = 0

    def setup(self) -> None:
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        length = 256 if self.device == "cpu" else 2048
        self.query, self.key, self.value = torch.randn(3, 4, 12, length, 64, device=self.device, dtype=dtype)

    def benchmark_tanhmax(self) -> None:
        self.out = self.kernel.bidir_attention(self.query, self.key, self.value)[0]

    def verify_tanhmax(self) -> torch.Tensor:
        query, key, value = (x.double() for x in (self.query, self.key, self.value))
        scores = query @ key.mT * 64**-0.5
        return (scores.sinh() @ value / scores.cosh().sum(-1, keepdim=True)).to(self.out.dtype)

    def benchmark_softmax(self) -> None:
        self.out = self.kernel.bidir_attention(self.query, self.key, self.value, activation="softmax")[0]

    def verify_softmax(self) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.query, self.key, self.value)
