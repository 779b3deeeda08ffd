"""Global: the whole graph in one place, trained centrally. The mark to reach, not a federation.

It is FedAvg with a single silo that holds everything, which is centralised training to the bit:
the same model, batches, optimiser and selection as the federated methods it is compared with.
The engine runs it on one silo made of the whole graph (`pooled` in the registry), and the record
says that all raw data was pooled.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmend.methods import fedavg


@dataclass(frozen=True, kw_only=True)
class GlobalSettings(fedavg.FedAvgSettings):
    """Centralised training has no settings of its own."""


Silo = fedavg.Silo
server = fedavg.server
