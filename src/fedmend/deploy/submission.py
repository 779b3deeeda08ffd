"""`fedmend submit`: have a deployed federation run a method, follow it, and fetch the result."""

from __future__ import annotations

import base64
import contextlib
import io
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmend.deploy.deployed import check_same_run, make_plan
from fedmend.deploy.job import CHUNK, TOPIC
from fedmend.deploy.job_files import write_job
from fedmend.deploy.kits import Kit
from fedmend.deploy.session import CONNECT_WITHIN, explained, session
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.engines.printable import printable
from fedmend.errors import FederationError, RefusedError, SettingsError, UnknownNameError
from fedmend.files import read_json, replacing, storage_errors, write_json
from fedmend.runs import record as records
from fedmend.runs.record import Record

DEPLOYMENT = "deployment.json"
"""In a run's folder at the submitter: how to find the run again at the server."""

POLL_EVERY = 0.3
START_WITHIN = 330.0
_LONGEST_LINE = 1000
_LARGEST_FILE = 16 * 2**30


def submit(
    kit: Kit,
    method: str,
    settings: Mapping[str, Any],
    out: Path,
    watch: Watch,
    *,
    silos: list[str] | None = None,
    resume: bool = False,
    **options: Any,
) -> Record:
    """Have a run done by a deployed federation; its record, when its folder is written.

    Args:
        kit: a submitter's.
        method, settings: as for `run.train`.
        out: the run's folder here.
        watch: progress; `stop_requested` ends the run after its round, saved at the parties.
        silos: who must take part; all that are connected if left out, or those of the run that
            goes on.
        resume: go on with the run that `out` belongs to.
        options: see `deployed.make_plan`.
    """
    if not resume and ((out / records.RECORD).exists() or (out / DEPLOYMENT).exists()):
        raise SettingsError(
            f"{out} already holds a run: --resume {out} goes on with it, or choose another --out"
        )
    earlier = _earlier(out) if resume else None
    run = secrets.token_hex(8) if earlier is None else str(earlier["run"])
    wanted = silos if earlier is None or silos is not None else list(earlier["silos"])
    # Refused before anybody is bothered: a plan that could not work, or is another run's.
    plan = make_plan(method, settings, wanted or ["any"], run=run, resume=resume, **options)
    if earlier is not None:
        check_same_run({**plan, **earlier}, plan, "rounds")
    with session(kit) as opened:
        with explained("look at the federation"):
            connected = sorted(each.name for each in opened.get_system_info().client_info)
        taking_part = _taking_part(wanted, connected, resume=resume)
        plan = make_plan(method, settings, wanted or connected, run=run, resume=resume, **options)
        job = _running_job(opened, earlier)
        if job is None:
            job = _submit_job(opened, out, plan, taking_part)
        elif earlier is not None:
            check_same_run({**plan, **earlier}, plan)  # nor is it given more rounds while it runs
        if watch.on_sentence:
            watch.on_sentence(f"submitted; {len(taking_part)} silos are starting ...")
        try:
            return _follow(opened, job, out, watch)
        except BaseException:
            if watch.stop_requested:  # asked twice: what was saved at the parties is kept
                with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                    opened.abort_job(job)
            raise


def _submit_job(opened: Any, out: Path, plan: Mapping[str, Any], silos: list[str]) -> str:
    """Submit a plan; the job's name. How to find the run again is written down before."""
    note = {key: plan[key] for key in ("run", "method", "settings", "seed", "silos")}
    write_json(out / DEPLOYMENT, {**note, "job": None})
    try:
        with tempfile.TemporaryDirectory(prefix="fedmend-") as folder:
            path = write_job(Path(folder), plan, silos)
            with explained("start runs"):
                job = str(opened.submit_job(str(path)))
    except RefusedError:
        if not plan["resume"]:  # there is no such run: the folder is free for another
            (out / DEPLOYMENT).unlink()
        raise
    write_json(out / DEPLOYMENT, {**note, "job": job})
    return job


def _earlier(out: Path) -> dict[str, Any]:
    path = out / DEPLOYMENT
    if not path.exists():
        raise SettingsError(f"there is no deployed run in {out} to go on with")
    found = read_json(path, limit=2**20)
    if not isinstance(found, dict) or not {"run", "silos", "job"} <= found.keys():
        raise SettingsError(f"{path} is damaged")
    if not isinstance(found["silos"], list) or not isinstance(found.get("settings", {}), dict):
        raise SettingsError(f"{path} is damaged")
    return found


def _taking_part(wanted: list[str] | None, connected: list[str], *, resume: bool) -> list[str]:
    if not connected:
        raise FederationError("no silo is connected to the server: start one with `fedmend silo`")
    if wanted is None:
        return connected
    missing = sorted(set(wanted) - set(connected))
    if missing and not resume:
        names = ", ".join(missing)
        raise FederationError(
            f"not connected: {names} (connected: {', '.join(connected)}); start what is missing, "
            "or leave it out of --silos"
        )
    present = sorted(set(wanted) & set(connected))
    if not present:
        raise FederationError(
            f"none of the run's silos is connected: {', '.join(wanted) or 'it names none'} "
            f"(connected: {', '.join(connected)}); start at least one with `fedmend silo`"
        )
    return present


def _running_job(opened: Any, earlier: Mapping[str, Any] | None) -> str | None:
    """The job of an earlier call that still goes on: a submitter may come back to it."""
    if earlier is None:
        return None
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        job = earlier["job"] or _job_of(opened, earlier["run"])
        if opened.get_job_meta(job).get("status") == "RUNNING":
            opened.do_app_command(job, TOPIC, {"ask": "events", "since": 10**9})
            return str(job)
    return None


def _job_of(opened: Any, run: str) -> str:
    """A run's newest job, of a submitter that was interrupted before it had written it down."""
    jobs = opened.list_jobs(reverse=True)
    return next(str(each["job_id"]) for each in jobs if each["job_name"].endswith(f"-{run}"))


def _follow(opened: Any, job: str, out: Path, watch: Watch) -> Record:
    """Show what a job tells until it ends, and fetch what it leaves."""
    seen, asked_to_stop, last_heard = 0, False, time.monotonic()
    while True:
        if watch.stop_requested and not asked_to_stop and seen:
            asked_to_stop = "ok" in (_ask(opened, job, {"ask": "stop"}) or {})
        found = _ask(opened, job, {"ask": "events", "since": seen})
        if found is None:
            _check_alive(opened, job, time.monotonic() - last_heard, started=bool(seen))
            time.sleep(POLL_EVERY if seen else 1.0)
            continue
        last_heard = time.monotonic()
        events = found.get("events", [])
        seen += len(events)
        for event in events:
            ended = _show(event, watch)
            if ended == "finished":
                _fetch_all(opened, job, event["files"], out)
                _ask(opened, job, {"ask": "bye"})
                return records.read_record(out / records.RECORD)
            if ended is not None:
                _ask(opened, job, {"ask": "bye"})
                _raise(ended, event)
        if not events:
            time.sleep(POLL_EVERY)


def _ask(opened: Any, job: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """One question to a running job; None if it does not answer (yet, or any more)."""
    from nvflare.fuel.flare_api import api_spec

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            answer = opened.do_app_command(job, TOPIC, question)
    except api_spec.AuthorizationError as error:
        raise RefusedError("this kit's role may not follow runs") from error
    except Exception:  # noqa: BLE001  # FLARE raises many kinds while a job starts and ends
        return None
    return answer if isinstance(answer, dict) else None


def _check_alive(opened: Any, job: str, silent: float, *, started: bool) -> None:
    """Raise if a job that does not answer will never do so."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            meta = opened.get_job_meta(job)
    except Exception as error:
        if silent > CONNECT_WITHIN:
            raise FederationError(
                "the server does not answer any more (its own terminal may say why: a full disk, "
                "say); when it is back, go on with --resume"
            ) from error
        return
    state = printable(meta.get("status"), 80)
    if state.startswith("FINISHED") or state in ("ABANDONED", "REJECTED"):
        raise FederationError(_why_it_ended(opened, job, meta, state))
    if silent > (CONNECT_WITHIN if started else START_WITHIN):
        raise FederationError(
            f"the job does not answer (FLARE says {state}); `fedmend status` shows who is "
            "connected, --resume goes on"
        )


def _why_it_ended(opened: Any, job: str, meta: Mapping[str, Any], state: str) -> str:
    """Why a job ended without its run's last word to us, and what to do."""
    from fedmend.deploy import standing

    outcomes: dict[str, str] = {}
    with contextlib.suppress(Exception):  # the server may be going down as well
        outcomes, _ = standing.ask(opened)
    became = outcomes.get(job)
    if became == "finished":
        return "the run is finished, but its result was not fetched in time: --resume fetches it"
    if became:
        return f"the run {became}"
    detail = meta.get("job_deploy_detail") or meta.get("schedule_history") or []
    details = detail if isinstance(detail, list) else [detail]
    bad = "; ".join(str(each) for each in details if not str(each).endswith(": OK"))
    words = printable(f": {bad}" if bad else "", 300)
    return (
        f"the run's process at the server ended before the run did ({state}{words}): it was "
        "stopped, or killed (by lack of memory, say); the log at the server says more, and "
        "--resume goes on from the last checkpoint"
    )


def _show(event: Mapping[str, Any], watch: Watch) -> str | None:
    """Pass an event on to the display; its kind if the run has ended with it."""
    match event.get("event"):
        case "round" if watch.on_round:
            phase = printable(event["phase"], 80)
            told = {key: value for key, value in event.items() if key != "event"}
            watch.on_round(Moment(**{**told, "phase": phase}))
        case "sentence" if watch.on_sentence:
            watch.on_sentence(printable(event["text"], _LONGEST_LINE))
        case "finished" | "failed" | "stopped" as ended:
            return str(ended)
    return None


def _raise(ended: str, event: Mapping[str, Any]) -> None:
    if ended == "stopped":
        raise Interrupted
    from fedmend import errors

    kind = getattr(errors, str(event.get("error")), FederationError)
    if kind is UnknownNameError or not issubclass(kind, errors.FedmendError):
        kind = FederationError
    raise kind(printable(event.get("text"), _LONGEST_LINE))


def _fetch_all(opened: Any, job: str, names: list[str], out: Path) -> None:
    """Bring a run's files here, the record last: a folder that has one is complete."""
    with storage_errors(out / records.RECORD):
        # That of fewer rounds must not stand beside the new weights if this is interrupted.
        (out / records.RECORD).unlink(missing_ok=True)
    for name in sorted(names, key=lambda each: each == records.RECORD):
        _fetch(opened, job, name, out)


def _fetch(opened: Any, job: str, name: str, out: Path) -> None:
    """Bring one file of the run's folder here, in pieces."""
    if name not in (records.RECORD, records.WEIGHTS, records.LEDGER):
        raise FederationError(
            f"the server offers a file that is none of a run's: {printable(name, 50)}"
        )
    with replacing(out / name) as temporary, temporary.open("wb") as file:
        offset, size = 0, 1
        while offset < size:
            piece = None
            for _ in range(5):
                piece = _ask(opened, job, {"ask": "file", "name": name, "offset": offset})
                if piece is not None:
                    break
                time.sleep(POLL_EVERY)
            if piece is None or "data" not in piece:
                raise FederationError(f"the server does not hand over {name}; try --resume")
            data = base64.b64decode(piece["data"])
            size = int(piece["size"])
            offset += len(data)
            if size > _LARGEST_FILE or len(data) > CHUNK or (not data and offset < size):
                raise FederationError(f"the server does not hand over {name} as it should")
            file.write(data)
