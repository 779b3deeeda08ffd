"""Training under either protection: sampled neighbours (NFDP), or DP-SGD on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from fedmend.config import setting
from fedmend.data.sampling import ALL_NEIGHBOURS
from fedmend.graph import Graph, is_sparse, select_rows
from fedmend.models.backbones import ModelShape
from fedmend.models.features import Features
from fedmend.privacy.account import Account, finite
from fedmend.privacy.accountants.gaussian import (
    DELTA,
    GaussianAccountant,
    gaussian_account,
    gaussian_epsilon,
)
from fedmend.privacy.mechanism import GaussianSum
from fedmend.privacy.noise import NO_NOISE, NoiseSource
from fedmend.training.dp_sgd import InputProducts, forest, private_gradients
from fedmend.training.local import AdjustGradients, LocalTraining
from fedmend.training.settings import TrainingSettings
from fedmend.training.state import Part


@dataclass(frozen=True, kw_only=True)
class ProtectionSettings(TrainingSettings):
    """How training hides single neighbours, or single nodes."""

    protection: str = setting(
        "sampling",
        "sampling: NFDP; dp-sgd: all neighbours, per-node gradients clipped and noised",
        choices=("sampling", "dp-sgd"),
    )
    clip: float = setting(1.0, "norm a node's gradient is clipped to (dp-sgd)", low=1e-6)
    noise: float = setting(2.0, "noise over the clipping norm (dp-sgd, sigma)", low=0.0)


class ProtectedTraining(LocalTraining):
    """A silo's training with either protection: sampled neighbours, or DP-SGD on all of them."""

    settings: ProtectionSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        shape: ModelShape,
        settings: ProtectionSettings,
        seed: int,
        purpose: str = "",
        *,
        noise: NoiseSource = NO_NOISE,
        accountant: GaussianAccountant | None = None,
    ) -> None:
        if settings.protection == "dp-sgd":
            settings = replace(settings, fan_out=ALL_NEIGHBOURS)
        super().__init__(name, graph, shape, settings, seed, purpose)
        self.mechanism = GaussianSum(
            settings.clip,
            settings.noise,
            accountant or GaussianAccountant(graph.num_nodes),
            noise.under(purpose + "privacy noise"),
        )
        self._input_products = InputProducts(graph.num_nodes)

    def _step(self, batch: Tensor, adjust: AdjustGradients | None) -> Tensor:
        if self.settings.protection != "dp-sgd":
            return super()._step(batch, adjust)
        apart = self.model.input is not None
        around = forest(self.heard, batch, self.settings.layers, own_inputs=apart)
        if around.nodes is not None:
            features = Features(select_rows(self.graph.x, around.nodes))
        else:
            features = self._features if is_sparse(self._pickable) else Features(self._pickable)
        self._optimizer.clear()
        loss = private_gradients(
            self.model,
            features,
            around,
            self.graph.y[batch],
            mechanism=self.mechanism,
            dropout=self._dropout,
            mended=self._mended_of(around.nodes),
            products=self._input_products,
        )
        self._optimizer.step()
        return loss

    def _mended_of(self, nodes: Tensor | None) -> Tensor | None:  # noqa: ARG002  # nobody is
        """What these nodes bring along; None = nothing is mended."""
        return None

    def parts(self) -> Mapping[str, Part]:
        return {**super().parts(), "protection": self.mechanism}


def dp_sgd_account(
    settings: ProtectionSettings, facts: Mapping[str, Mapping[str, float]]
) -> Account:
    """What DP-SGD's noise is worth: for batches as they are, and as such figures usually are given.

    Batches are the parts of a shuffled epoch, so a loss term is in one noised gradient per epoch:
    that many releases, whatever the size of a silo. Poisson sampling, which is assumed almost
    everywhere and done nowhere, would give the smaller figure, in the silo where it is largest.
    """
    epochs = max(int(each["uses"]) for each in facts.values())
    sampled = max(
        _if_sampled(settings, int(each["training_nodes"]), int(each["uses"]))
        for each in facts.values()
    )
    found = gaussian_account(
        "gradients",
        "a loss term of local GNN and classifier",
        {settings.noise: epochs},
        details={"epsilon_if_sampled": finite(sampled), "clip": settings.clip},
    )
    return replace(
        found,
        sentence=f"DP-SGD. {found.sentence} It would be epsilon {sampled:.3g} if batches were "
        "drawn by Poisson sampling, which they are not. It is no guarantee per edge or node, which "
        "enter many loss terms, and the generator is trained without noise.",
    )


def _if_sampled(settings: ProtectionSettings, nodes: int, epochs: int) -> float:
    batch = min(settings.batch_size or nodes, nodes)
    steps = epochs * -(-nodes // batch)
    return gaussian_epsilon(settings.noise, steps, DELTA, batch / nodes)
