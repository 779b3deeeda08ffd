"""The methods. Adding one: a file here, and one entry in `METHODS`; from outside: docs/extend.md.

This module imports none of them (and no torch), so that listing them is instant.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fedmend.errors import SettingsError
from fedmend.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fedmend.federation import SiloBase
    from fedmend.models.predictor import Insert
    from fedmend.privacy.account import Account


@dataclass(frozen=True)
class Method:
    """One method: where its code is and what kind of model it ends with.

    module: the import path of what holds `server` and `Silo`, or an object that does.
    settings: the settings class, or its name in the module.
    model: "shared", one for all silos, or "own", one per silo.
    pooled: runs on the whole graph in one place; needs it.
    sees_beyond: silos are shown true nodes of other silos; needs the whole graph.
    needs_border: silos know their edges to other silos, and get them as `border`.
    fixed: settings that the name implies.
    evaluation: the mode it is evaluated in unless told otherwise; None: the first that can be.
    paper: what its paper has for settings, as values or in words, for `fedmend methods NAME`; a
        setting of the method's own may say it itself.
    """

    name: str
    summary: str
    module: str | object
    settings: str | type[Any]
    model: Literal["shared", "own"] = "shared"
    pooled: bool = False
    sees_beyond: bool = False
    needs_border: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    evaluation: str | None = None
    paper: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _holder(self) -> Any:
        if not isinstance(self.module, str):
            return self.module
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.module}.".startswith(f"{error.name}."):
                raise  # it is there, and needs another one
            raise SettingsError(f"method {self.name!r}: there is no module {error.name}") from error

    def _load(self, attribute: str) -> Any:
        found = getattr(self._holder, attribute, None)
        if found is None:
            raise SettingsError(f"method {self.name!r} has no {attribute} in {self.module}")
        return found

    def _has(self, attribute: str) -> bool:
        return hasattr(self._holder, attribute)

    @property
    def settings_type(self) -> type[Any]:
        from fedmend.training.settings import RoundSettings  # and torch

        found = self.settings
        if isinstance(found, str):
            found = self._load(found)
        if not (isinstance(found, type) and issubclass(found, RoundSettings)):
            raise SettingsError(
                f"method {self.name!r}: its settings must be a dataclass made from "
                f"fedmend.training.settings.RoundSettings, got {found!r:.80}"
            )
        return found

    @property
    def silo_type(self) -> type[SiloBase]:
        found: type[SiloBase] = self._load("Silo")
        return found

    @property
    def not_deployable(self) -> str | None:
        """Why the method cannot run between real organisations; None if it can."""
        if self.pooled or self.sees_beyond:
            return "it needs raw data of all silos in one place"
        return None

    @property
    def deployed_evaluation(self) -> str:
        """The mode in which deployed silos can be tested: nobody has the whole graph."""
        return "cross-edges" if self.needs_border else "own-subgraph"

    def privacy(self, settings: Any, facts: Mapping[str, Mapping[str, float]]) -> list[Account]:
        """An account of every mechanism by which the method hides something; [] if there is none.

        facts: `SiloBase.privacy_facts` of every silo at the end of the run.
        """
        return self._load("privacy")(settings, facts) if self._has("privacy") else []

    def newcomers(self, settings: Any, seed: int, silo: str) -> Insert | None:
        """What gives nodes of this silo that came after training the rows they bring along."""
        if not self._has("newcomers"):
            return None
        found: Insert = self._load("newcomers")(settings, seed, silo)
        return found

    @property
    def server(self) -> Callable[[Any, Any], dict[str, Tensor] | None]:
        found: Callable[[Any, Any], dict[str, Tensor] | None] = self._load("server")
        return found


# What the papers say of settings, for all methods that they have (docs/methods has the reasons
# for what is different here). FedSage's section 5.1:
_FEDSAGE = {
    **{"rounds": 50, "batch_size": 64, "fan_out": 5, "layers": 2, "backbone": "sage"},
    **{"optimizer": "adam", "lr": 1e-3},
}
_FEDERATED = {**_FEDSAGE, "weighting": "equal"}
_NEIGHGEN = {
    **{"least_degree": 0, "least_neighbours": 0, "self_weight": 0.0, "rate": 1.0, "noise": 1.0},
    **{"generator": "learned", "hide": "0.034 to 0.278", "noise_in_mending": True},
    **{"number_weight": 1.0, "feature_weight": 1.0, "class_weight": 1.0},
}
# FedDEP's sections 4.1 and 3.1.
_FEDDEP = {
    **{"rounds": 50, "batch_size": 32, "fan_out": 5, "layers": 2, "optimizer": "sgd", "lr": 0.1},
    **{"encoder_epochs": 50, "hide": 0.5, "embedding": "64, 128 or 256", "fused": "paper"},
    **{"clusters": "3, 5, 10, 15 or 20", "self_loops": "none", "generate_at_inference": False},
    **{"number_weight": 1.0, "own_weight": 1.0, "others_weight": 1.0, "noise": 2.0},
}
# FedGGR's section 5.1 and algorithm 1.
_WIDTHS = "64, 128 or 256"
_FEDGGR = {
    **{"hidden": _WIDTHS, "local_width": _WIDTHS, "global_width": _WIDTHS, "optimizer": "adam"},
    **{"neighbours": "5, 10, ... 40", "lr": "0.001 or 0.01", "local_epochs": "1, 2 or 3"},
    **{"weighting": "all", "autoencoder_layers": 2, "autoencoder_rounds": 0},
}
# HiFGL's sections 5.1 and 4.2.
_HIFGL = {
    **{"rounds": 50, "hidden": 64, "layers": 2, "lr": "0.01, x 0.9 every 4 epochs"},
    **{"optimizer": "adam", "training": "fedavg", "setting": "devices", "routing": "paper"},
    **{"privacy_threshold": 1, "min_neighbours": 1, "input_min_neighbours": 1},
    **{"below_minimum": "noise"},
}

_OURS = {
    method.name: method
    for method in (
        Method(
            "global",
            "the whole graph in one place, trained centrally: the mark to reach",
            "fedmend.methods.centralised",
            "GlobalSettings",
            pooled=True,
            paper=_FEDSAGE,
        ),
        Method(
            "local",
            "every silo trains alone on its own graph: what federation is measured against",
            "fedmend.methods.local",
            "LocalSettings",
            model="own",
            paper=_FEDSAGE,
        ),
        Method(
            "oracle",
            "FedAvg on graphs with the true neighbours of other silos: the most mending can give",
            "fedmend.methods.oracle",
            "OracleSettings",
            sees_beyond=True,
        ),
        Method(
            "local+",
            "every silo trains alone on its own graph, mended by its own generator (LocSage+)",
            "fedmend.methods.local_plus",
            "LocalPlusSettings",
            model="own",
            paper={**_FEDSAGE, **_NEIGHGEN},
        ),
        Method(
            "fedavg",
            "silos train the shared model on their graphs, the server averages the weights",
            "fedmend.methods.fedavg",
            "FedAvgSettings",
            paper=_FEDERATED,
        ),
        Method(
            "fedsage",
            "FedAvg with GraphSAGE",
            "fedmend.methods.fedavg",
            "FedAvgSettings",
            fixed={"backbone": "sage"},
            paper=_FEDERATED,
        ),
        Method(
            "fedsage+",
            "silos generate the neighbours they miss, learning from each other's nodes (FedSage+)",
            "fedmend.methods.fedsage_plus",
            "FedSagePlusSettings",
            paper={**_FEDERATED, **_NEIGHGEN, "alpha": 1.0},
        ),
        Method(
            "feddep",
            "silos generate deep neighbour embeddings, learning from prototypes shared once",
            "fedmend.methods.feddep",
            "FedDEPSettings",
            fixed={"backbone": "sage"},
            paper=_FEDDEP,
        ),
        Method(
            "feddep-no-dgen",
            "FedDEP without its generator: other silos' nearest prototypes stand in as they are",
            "fedmend.methods.feddep",
            "FedDEPSettings",
            fixed={"backbone": "sage", "generator": "nearest"},
            paper=_FEDDEP,
        ),
        Method(
            "feddep-no-proto",
            "FedDEP without prototypes: generators learn by exchanging gradients, as in FedSage+",
            "fedmend.methods.feddep",
            "FedDEPSettings",
            fixed={"backbone": "sage", "exchange": "gradients"},
            paper=_FEDDEP,
        ),
        Method(
            "feddep-no-nfdp",
            "FedDEP with DP-SGD (clipped and noised gradients) in place of sampled neighbours",
            "fedmend.methods.feddep",
            "FedDEPSettings",
            # What is heard is not drawn here, and hearing oneself always is another thing.
            fixed={"backbone": "sage", "protection": "dp-sgd", "self_loops": "none"},
            paper=_FEDDEP,
        ),
        Method(
            "fedggr",
            "the server learns the missing graph from an embedding of every node (FedGGR)",
            "fedmend.methods.fedggr",
            "FedGGRSettings",
            evaluation="own-subgraph",
            paper=_FEDGGR,
        ),
        Method(
            "fedprox",
            "FedAvg whose silos are pulled towards the shared weights (mu)",
            "fedmend.methods.fedprox",
            "FedProxSettings",
            paper={"mu": "0.001, 0.01, 0.1 or 1"},
        ),
        Method(
            "fedper",
            "FedAvg of the first layers; the last ones stay personal to each silo",
            "fedmend.methods.fedper",
            "FedPerSettings",
            model="own",
        ),
        Method(
            "hifgl",
            "HiFGL: messages cross between silos as secret shares, so that no edge is lost",
            "fedmend.methods.hifgl",
            "HiFGLSettings",
            needs_border=True,
            paper=_HIFGL,
        ),
    )
}


def _accepted(name: str, given: Any) -> Method:
    """A method from outside, as far as it can be checked without loading its code."""
    if not isinstance(given, Method) or given.name != name:
        raise SettingsError(
            f"method {name!r} must be a fedmend.methods.Method of that name, got {given!r:.80}"
        )
    return given


METHODS: Registry[Method] = Registry("method", _OURS, _accepted)


def find(name: str) -> Method:
    """The method of this name; an error with the nearest one if there is none."""
    return METHODS.find(name)
