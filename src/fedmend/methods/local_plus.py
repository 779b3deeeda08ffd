"""LocSage+: every silo trains alone, on its own graph mended by its own generator.

One silo's half of FedSage+ (section 4.2): the generator learns from the silo's own hidden nodes
only, nothing is exchanged, and the classifier on the mended graph stays with the silo. Nothing but
progress figures leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedmend.federation import Federation, Nothing
from fedmend.graph import Graph
from fedmend.methods import local
from fedmend.methods.fedsage_plus import Mended, Mending, NeighGenSettings
from fedmend.parts.head_exchange import note_loss
from fedmend.parts.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class LocalPlusSettings(NeighGenSettings):
    """NeighGen's settings; there is no exchange."""


class Silo(Mending, local.Silo):
    """One silo on its own, with a generator."""

    settings: LocalPlusSettings

    def __init__(self, name: str, graph: Graph, settings: LocalPlusSettings, seed: int) -> None:
        local.Silo.__init__(self, name, graph, settings, seed)
        self.start_generator()

    def mend(self, _: Nothing) -> Mended:
        """Generate the missing neighbours, and train on the mended graph from now on."""
        self._train_on(self.mended_graph())
        return Mended(self.local.graph.num_nodes - self.graph.num_nodes)

    def _train_on(self, graph: Graph) -> None:
        before = self.local
        self.local = LocalTraining(self.name, graph, before.model.shape, self.settings, self.seed)
        self.local.load(before.weights())

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **self.mending_state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._train_on(self.restore_mending(state))
        super().restore(state)


def server(silos: Federation[Silo], settings: LocalPlusSettings) -> None:
    """Only keeps time: generators, mending, training."""
    if settings.neighbours:
        for number in silos.rounds(1, local.Nowhere(), "generators alone"):
            alone = silos.ask(Silo.learn_alone, Nothing()).enough(settings.min_silos)
            note_loss(silos, number, alone)
        for number in silos.rounds(1, local.Nowhere(), "mending"):
            replies = silos.ask(Silo.mend, Nothing()).enough(settings.min_silos)
            silos.note(number, generated=float(sum(each.generated for each in replies.values())))
    local.train_rounds(silos, settings)
