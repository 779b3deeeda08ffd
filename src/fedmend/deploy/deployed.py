"""A deployed run, at the server: the counterpart of `run.train` where nobody sees all graphs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fedmend.engines.base import Watch
from fedmend.engines.computing import computing_with
from fedmend.engines.endpoint import Plan
from fedmend.engines.flare import ANSWER_WITHIN, Flare, Line
from fedmend.engines.wire import MESSAGE_LIMIT
from fedmend.errors import SettingsError
from fedmend.files import write_json
from fedmend.runs import record as records
from fedmend.runs.record import Data, Engine
from fedmend.runs.train import carry_out, choose, fingerprint, identity

PLAN = "plan.json"
"""In a run's folder at the server: what was asked for."""


def make_plan(
    method: str,
    settings: Mapping[str, Any],
    silos: list[str],
    *,
    run: str,
    seed: int = 0,
    threads: int = 1,
    checkpoint_every: int = 10,
    timeout: float | None = None,
    answer_within: float = ANSWER_WITHIN,
    largest_message: int = MESSAGE_LIMIT,
    resume: bool = False,
) -> dict[str, Any]:
    """All a server needs to know of a run, as plain values; refused where it could not work."""
    chosen, config = choose(method, settings)
    if chosen.not_deployable is not None:
        raise SettingsError(
            f"{chosen.name} cannot be deployed: {chosen.not_deployable}; use "
            f"`fedmend run {chosen.name}` where the whole graph is"
        )
    if config.min_silos > len(silos):
        raise SettingsError(f"min_silos={config.min_silos}, but there are {len(silos)} silos")
    if threads < 1 or checkpoint_every < 1:
        raise SettingsError(
            f"threads={threads}, checkpoint_every={checkpoint_every} is not allowed: from 1"
        )
    return {
        "run": run,
        "method": chosen.name,
        "settings": asdict(config),
        "silos": sorted(silos),
        "seed": seed,
        "threads": threads,
        "checkpoint_every": checkpoint_every,
        "timeout": timeout,
        "answer_within": answer_within,
        "largest_message": largest_message,
        "resume": resume,
    }


def check_same_run(earlier: Mapping[str, Any], plan: Mapping[str, Any], *allowed: str) -> None:
    """Refuse to go on with a run of another method, seed, silos or settings than it was begun with.

    allowed: settings that may differ.
    """
    then, now = _named(earlier), _named(plan)
    if then["method"] != now["method"]:  # whose settings have other names
        then, now = {"method": then["method"]}, {"method": now["method"]}
    differ = [
        f"{key} was {then.get(key)}, now it is {now.get(key)}"
        for key in {**then, **now}
        if key not in allowed and then.get(key) != now.get(key)
    ]
    if differ:
        raise SettingsError(
            f"this is another run than the one to go on with: {'; '.join(differ)}; ask for the "
            "same (of a finished run, also for more rounds), or choose another --out to start anew"
        )


def _named(run: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run the one it is, by name."""
    return {**{key: run[key] for key in ("method", "seed", "silos")}, **run["settings"]}


def is_finished(plan: Mapping[str, Any], folder: Path) -> bool:
    """Whether the folder holds this very run, finished; an error if it holds another one."""
    if not (folder / records.RECORD).exists():
        return False
    record = records.read_record(folder / records.RECORD)
    more = plan["settings"]["rounds"] > record.settings["rounds"]
    earlier = {**vars(record), "silos": list(record.silos)}
    check_same_run(earlier, plan, *(["rounds"] if more else []))
    return not more


def train_deployed(
    plan: Mapping[str, Any], lines: Mapping[str, Line], folder: Path, watch: Watch
) -> None:
    """Run a plan over these lines and write the run's folder."""
    started = time.perf_counter()
    chosen, config = choose(plan["method"], plan["settings"])
    seed, threads, resume = plan["seed"], plan["threads"], plan["resume"]
    if resume and is_finished({**plan, "settings": asdict(config)}, folder):
        return  # the submitter just has not got it
    mode = chosen.deployed_evaluation
    what = identity(chosen, config, None, seed, mode)
    mark = fingerprint({**what, "threads": threads, "silos": plan["silos"]}, {})
    engine: Flare[Any] = Flare(
        lines,
        plan["silos"],
        seed,
        timeout=plan["timeout"],
        answer_within=plan["answer_within"],
        largest_message=plan["largest_message"],
        watch=watch,
        checkpoint_file=folder / records.CHECKPOINT,
        checkpoint_every=plan["checkpoint_every"],
        fingerprint=mark,
        resume=resume,
    )
    with engine, computing_with(threads):
        write_json(folder / PLAN, plan)  # not before it is known to be this run's
        engine.introduce(
            Plan(
                run=plan["run"],
                method=chosen.name,
                settings=json.dumps(asdict(config)),
                seed=seed,
                threads=threads,
                resumed=resume,
                silos=json.dumps(plan["silos"]),
            )
        )
        names = tuple(plan["silos"])
        weights, ledger, record = carry_out(
            engine,
            chosen,
            config,
            partial(engine.evaluate, mode=mode),
            started,
            what,
            dataset=None,
            # Of the silos' data the server knows nothing but what the method's messages said.
            data=Data(silos=len(names), missing_share=None),
            engine=Engine(name="flare", threads=threads, run=plan["run"], silos=names),
            pooled=False,
        )
    records.write_run(folder, record, weights, {}, None, ledger)
