"""A deployed run, at the server: the counterpart of `run.train` where nobody sees all graphs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedmend.engines.base import Watch
from fedmend.engines.computing import computing_with
from fedmend.engines.endpoint import Plan
from fedmend.engines.flare import ANSWER_WITHIN, Flare, Line
from fedmend.engines.wire import MESSAGE_LIMIT
from fedmend.errors import SettingsError
from fedmend.files import write_json
from fedmend.methods import Method
from fedmend.privacy.account import Account, no_account
from fedmend.runs import record as records
from fedmend.runs.record import Data, Engine
from fedmend.runs.train import choose, fingerprint, identity, make_record

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
        set_up = time.perf_counter() - started
        weights = chosen.server(engine, config)
        testing = time.perf_counter()
        final = engine.evaluate(weights, mode)
        now = time.perf_counter()
    record = make_record(
        what,
        engine,
        engine.ledger,
        dataset=None,
        # Of the silos' data the server knows nothing but what the method's messages said.
        data=Data(silos=len(plan["silos"]), missing_share=None),
        about=Engine(name="flare", threads=threads, run=plan["run"], silos=tuple(plan["silos"])),
        shape=config.shape(engine.schema),
        shared=weights is not None,
        own=final.own,
        pooled=False,
        scores=final.scores,
        privacy=privacy_accounts(chosen, config, final.privacy_facts, plan["silos"]),
        seconds=now - started,
        phases={"set-up": set_up, **engine.timings.phases, "evaluation": now - testing},
    )
    records.write_run(folder, record, weights, {}, engine.ledger)


def privacy_accounts(
    method: Method, config: Any, facts: Mapping[str, Mapping[str, float]], silos: list[str]
) -> list[Account]:
    """The method's privacy accounts, from what silos told of themselves at the end of the run."""
    if not facts:
        return []  # nobody is left to ask
    try:
        found = method.privacy(config, facts)
    except (LookupError, ValueError, ArithmeticError, SettingsError) as error:
        # Counts that cannot be, or a package that is not there: the run itself is finished.
        why = str(error) if isinstance(error, SettingsError) else "some silo's counts cannot be"
        return [no_account(why)]
    missing = sorted(set(silos) - set(facts))
    if not missing:
        return found
    said = f"Not counted, since lost by then: {', '.join(missing)}."
    return [
        replace(
            each, sentence=f"{each.sentence} {said}", details={**each.details, "without": missing}
        )
        for each in found
    ]
