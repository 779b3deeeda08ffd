"""What several runs say together, read from their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmend.evaluation.summary import Summary, summarise
from fedmend.runs.record import Figures


@dataclass(frozen=True)
class MethodSummary:
    """One method's figures over all seeds; scores are None where there were no test nodes."""

    method: str
    accuracy: Summary | None
    macro_f1: Summary | None
    seconds: Summary
    bytes_up: float
    bytes_down: float
    pooled: bool
    evaluation: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "evaluation": self.evaluation,
            "accuracy": self.accuracy.as_dict() if self.accuracy else None,
            "macro_f1": self.macro_f1.as_dict() if self.macro_f1 else None,
            "seconds": self.seconds.as_dict(),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "pooled": self.pooled,
        }


def summarise_runs(runs: Sequence[Figures]) -> MethodSummary:
    """What the records of one method's runs say together."""
    tested = [run.result for run in runs if run.result is not None]
    return MethodSummary(
        method=runs[0].method,
        accuracy=summarise([each.accuracy for each in tested]) if tested else None,
        macro_f1=summarise([each.macro_f1 for each in tested]) if tested else None,
        seconds=summarise([run.measured.seconds for run in runs]),
        bytes_up=sum(run.bytes.up for run in runs) / len(runs),
        bytes_down=sum(run.bytes.down for run in runs) / len(runs),
        pooled=runs[0].pooled,
        evaluation=runs[0].evaluation,
    )


def same_test(*runs: Figures) -> bool:
    """Whether runs were tested in one way on one split; of deployed silos nobody can tell."""
    return len({(run.split.hash, run.evaluation) for run in runs}) == 1 and bool(runs[0].split.hash)


def paired_difference(runs: Sequence[Figures], base: Sequence[Figures]) -> Summary | None:
    """Accuracy minus the base's, seed by seed on shared splits; None unless all pairs match."""
    by_seed = {run.seed: run for run in base}
    differences = []
    for run in runs:
        other = by_seed.get(run.seed)
        if other is None or run.result is None or other.result is None:
            return None
        if not same_test(run, other):
            return None
        differences.append(run.result.accuracy - other.result.accuracy)
    return summarise(differences)
