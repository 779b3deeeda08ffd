"""Global: the whole graph in one place, trained centrally. The mark to reach, not a federation.

It is FedAvg with a single silo that holds everything, which is centralised training to the bit:
the same model, batches, optimiser and selection as the federated methods it is compared with.
The engine runs it on one silo made of the whole graph (`pooled` in the registry), and the record
says that all raw data was pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmend.methods import fedavg
from fedmend.training.settings import PatienceSettings, TrainingSettings


@dataclass(frozen=True, kw_only=True)
class GlobalSettings(TrainingSettings, PatienceSettings):
    """The settings of all training; with one silo there is nothing to weigh and nobody to lose."""

    weighting: ClassVar[str] = "nodes"
    min_silos: ClassVar[int] = 1


Silo = fedavg.Silo
server = fedavg.server
