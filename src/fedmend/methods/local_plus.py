"""LocSage+: every silo trains alone, on its own graph mended by its own generator.

One silo's half of FedSage+ (section 4.2): the generator learns from the silo's own hidden nodes
only, nothing is exchanged, and the classifier on the mended graph stays with the silo. Nothing but
progress figures leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from fedmend.federation import Federation, Handed
from fedmend.graph import Graph
from fedmend.methods import local
from fedmend.methods.fedsage_plus import Mending, NeighGenSettings, learn_alone, mend_all


@dataclass(frozen=True, kw_only=True)
class LocalPlusSettings(NeighGenSettings, local.LocalSettings):
    """NeighGen's settings; there is no exchange."""


class Silo(Mending, local.Silo):
    """One silo on its own, with a generator."""

    settings: LocalPlusSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: LocalPlusSettings,
        seed: int,
        **handed: Unpack[Handed],
    ) -> None:
        local.Silo.__init__(self, name, graph, settings, seed, **handed)
        self.start_generator()


def server(silos: Federation[Silo], settings: LocalPlusSettings) -> None:
    """Only keeps time: generators, mending, training."""
    if settings.neighbours:
        if settings.generator == "learned":
            learn_alone(silos, settings, local.Nowhere())
        mend_all(silos, settings, local.Nowhere())
    local.train_rounds(silos, settings)
