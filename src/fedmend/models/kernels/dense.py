"""Products of dense matrices, by whichever of torch's two libraries is the quicker here.

torch multiplies by MKL, which leaves half of the vector units of other makers' processors idle
(measured on one core of an AMD EPYC with AVX-512: 115 GFLOPS where 250 are to be had). oneDNN,
which comes with torch as well, does not. It is used for what is large enough to gain by it; the
choice depends on the processor and the shapes alone, so that runs can be repeated to the bit.

oneDNN prepares code for every shape and keeps it; batches of drawn neighbours have a new shape
every time. Below `LARGE` that costs what the product gains, and memory besides (FedAvg on PubMed,
whole runs in turns: no time gained, 576 MB in place of 425).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmend.models.kernels import fast

LARGE = 2**26
"""From so many multiplications on oneDNN gains more than preparing code for it costs (measured)."""


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left @ right + bias, differentiable in all three."""
    if not gains(left, right):  # nor will its backward pass, which multiplies as often
        return left @ right if bias is None else torch.addmm(bias, left, right)
    found: Tensor = _Product.apply(left, right, bias)  # type: ignore[no-untyped-call]  # torch's
    return found


def gains(left: Tensor, right: Tensor) -> bool:
    """Whether left @ right is quicker by oneDNN."""
    large = left.shape[0] * left.shape[1] * right.shape[1] >= LARGE
    plain = left.dtype == right.dtype == torch.float32 and left.device.type == "cpu"
    return large and plain and fast("onednn") and mkl_holds_back()


def has_onednn() -> bool:
    """Whether this build of torch has the operation that is used here."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def mkl_holds_back() -> bool:
    """Whether this processor has wide vector units that MKL does not use.

    What cannot be found out is answered with no: then torch multiplies as it always does.
    """
    if not has_onednn() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        makers = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in makers


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left @ right + bias, of constants."""
    if not gains(left, right):
        return left @ right if bias is None else torch.addmm(bias, left, right)
    linear = torch.ops.mkldnn._linear_pointwise.default
    # It takes the right factor as a linear layer has it, with a row per output. What is tall and
    # summed up over rows, as gradients of weights are, it makes quicker lying on its side.
    if bias is None and left.stride(0) == 1 and 2 * right.shape[1] <= left.shape[0]:
        lying: Tensor = linear(right.t(), left, None, "none", [], "")
        return lying.t().contiguous()
    found: Tensor = linear(left, right.t(), bias, "none", [], "")
    return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(left, right)
        return multiply(left, right, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        for_left, for_right, for_bias = ctx.needs_input_grad
        return (
            multiply(grads[0], right.t()) if for_left else None,
            multiply(left.t(), grads[0]) if for_right else None,
            grads[0].sum(0) if for_bias else None,
        )
