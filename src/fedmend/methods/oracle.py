"""Oracle: FedAvg on the silos' graphs with the *true* neighbours of other silos. Not a federation.

What a perfect generator of missing neighbours could give, and so the ceiling that FedSage+ and
FedDEP are measured against: the share of the lost accuracy that a method recovers is
(method - FedAvg) / (oracle - FedAvg). Every silo is shown the raw features and edges of all nodes
within `hops` of its own, which no silo can see; the ledger counts them as raw data. Training,
batches, selection and starting weights are FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedmend.config import setting
from fedmend.federation import message
from fedmend.methods import fedavg
from fedmend.privacy.ledger import Kind


@dataclass(frozen=True, kw_only=True)
class OracleSettings(fedavg.FedAvgSettings):
    """FedAvg's settings and how far the silos see."""

    hops: int = setting(1, "hops around its own nodes that a silo is shown", low=0, high=10)


@message("oracle.Surroundings")
class Surroundings:
    """What a silo is shown of the others: counted in the ledger, never sent by any method."""

    features: Annotated[Tensor, Kind.RAW]


Silo = fedavg.Silo
server = fedavg.server
