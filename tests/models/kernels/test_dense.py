"""Dense products: the same whichever library multiplies, and only where it is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmend.models.kernels import dense, plain
from fedmend.models.kernels.dense import product

sizes = st.integers(1, 70)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products by oneDNN, whatever the processor and however small."""
    if not dense.has_onednn():
        pytest.skip("this build of torch comes without oneDNN")
    monkeypatch.setattr(dense, "LARGE", 0)
    monkeypatch.setattr(dense, "mkl_holds_back", lambda: True)


def _drawn(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.requires_grad_()


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_exact_arithmetic(turned: bool, with_bias: bool) -> None:
    @settings(deadline=None)
    @given(sizes, sizes, sizes, st.integers(0, 99))
    def check(rows: int, inner: int, columns: int, seed: int) -> None:
        left = _drawn(inner, rows, seed=seed).t() if turned else _drawn(rows, inner, seed=seed)
        right = _drawn(inner, columns, seed=seed + 1)
        bias = _drawn(columns, seed=seed + 2) if with_bias else None
        told = _drawn(rows, columns, seed=seed + 3).detach()
        given_ = [each for each in (left, right, bias) if each is not None]
        found = product(left, right, bias)
        gradients = torch.autograd.grad(found, given_, told)
        exact = [each.detach().double().requires_grad_() for each in given_]
        wanted = exact[0] @ exact[1] + (exact[2] if with_bias else 0.0)
        wanted_gradients = torch.autograd.grad(wanted, exact, told.double())
        for one, other in zip([found, *gradients], [wanted, *wanted_gradients], strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-4)

    check()


@pytest.mark.usefixtures("onednn")
def test_a_second_backward_pass_gives_the_same() -> None:
    """DP-SGD goes back twice through one pass."""
    left, right = _drawn(9, 5, seed=0), _drawn(5, 3, seed=1)
    found = product(left, right).square().sum()
    first = torch.autograd.grad(found, [left, right], retain_graph=True)
    second = torch.autograd.grad(found, [left, right])
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_small_products_and_others_than_float32_are_torchs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, ...]] = []

    def told(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        assert bias is None
        asked.append((*left.shape, right.shape[1]))
        return left @ right

    monkeypatch.setattr(dense, "mkl_holds_back", lambda: True)
    monkeypatch.setattr(dense, "LARGE", 2**21)
    monkeypatch.setattr(dense, "multiply", told)
    for dtype, width in ((torch.float32, 8), (torch.float64, 2000), (torch.float32, 2000)):
        left, right = torch.ones(64, width, dtype=dtype), torch.ones(width, 64, dtype=dtype)
        assert torch.equal(product(left, right), left @ right)
    assert asked == [(64, 2000, 64)]
    with plain("onednn"):
        product(left, right)
    assert len(asked) == 1
    monkeypatch.setattr(dense, "mkl_holds_back", lambda: False)
    product(left, right)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("capability", "cpuinfo", "expected"),
    [
        ("AVX512", "vendor_id : AuthenticAMD\n", True),
        ("AVX512", "vendor_id : GenuineIntel\n", False),
        ("AVX2", "vendor_id : AuthenticAMD\n", False),
        ("AVX512", None, False),
    ],
)
def test_only_on_processors_that_mkl_holds_back(
    capability: str, cpuinfo: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **_: str) -> str:
        assert str(path) == "/proc/cpuinfo"
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    monkeypatch.setattr(dense, "has_onednn", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(Path, "read_text", read)
    assert dense.mkl_holds_back.__wrapped__() is expected
    monkeypatch.setattr(dense, "has_onednn", lambda: False)
    assert dense.mkl_holds_back.__wrapped__() is False
