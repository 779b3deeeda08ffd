"""A job's files: what a submitter writes, and all that a server and a silo accept.

A job is three files: FLARE's description of where it goes, and for the server and the silos a
configuration each that names classes of the installed package. Only the plan in the server's is
different from job to job. FLARE would read far more: configurations that include files of the
machine, its environment and URLs, code, any component with any arguments. So a server takes a
submission, and a silo a deployment, only if every file is to the last value what would have been
written here.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmend.deploy.kits import check_silo_names
from fedmend.engines.printable import printable
from fedmend.errors import FedmendError, RefusedError
from fedmend.files import make_folder, write_json

META = "meta.json"
SERVER_CONFIG = "config/config_fed_server.json"
SILO_CONFIG = "config/config_fed_client.json"
_SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""FLARE puts them into every folder of a job, and checks them."""

_LARGEST = 2**20
"""Bytes of a job's files together."""

_PLAN: Mapping[str, type | tuple[type, ...]] = {
    "run": str,
    "method": str,
    "settings": dict,
    "silos": list,
    "seed": int,
    "threads": int,
    "checkpoint_every": int,
    "timeout": (int, float, type(None)),
    "answer_within": (int, float),
    "largest_message": int,
    "resume": bool,
}

_RUN = re.compile(r"[0-9a-f]{16}")
_METHOD = re.compile(r"[a-z][a-z0-9_+-]{0,62}")


def job_files(plan: Mapping[str, Any], silos: list[str]) -> dict[str, Any]:
    """All files of a job but FLARE's signatures, as JSON, by path."""
    threads = {"max_call_threads": max(16, 2 * len(silos))}
    return {
        META: {
            "name": f"{plan['method']}-{plan['run']}",
            "resource_spec": {},
            "min_clients": len(silos),
            "mandatory_clients": silos,
            "deploy_map": {"server": ["server"], "silo": silos},
        },
        f"server/{SERVER_CONFIG}": {
            "format_version": 2,
            "task_data_filters": [],
            "task_result_filters": [],
            "components": [
                {
                    "id": "server",
                    "path": "fedmend.deploy.job.ServerJob",
                    "args": {"plan": json.dumps(plan)},
                }
            ],
            "workflows": [
                {
                    "id": "controller",
                    "path": "nvflare.collab.runtime.controller.CollabController",
                    "args": {"server_obj_id": "server", "sync_task_timeout": 300, **threads},
                }
            ],
        },
        f"silo/{SILO_CONFIG}": {
            "format_version": 2,
            "task_data_filters": [],
            "task_result_filters": [],
            "components": [{"id": "silo", "path": "fedmend.deploy.job.SiloJob", "args": {}}],
            "executors": [
                {
                    "tasks": ["*"],
                    "executor": {
                        "path": "nvflare.collab.runtime.executor.CollabExecutor",
                        "args": {"client_obj_id": "silo", "max_call_threads": 16},
                    },
                }
            ],
        },
    }


def write_job(folder: Path, plan: Mapping[str, Any], silos: list[str]) -> Path:
    """A job's folder: what FLARE needs to run `ServerJob` and `SiloJob` with this plan."""
    root = make_folder(folder / f"fedmend-{plan['run']}")
    for path, content in job_files(plan, silos).items():
        write_json(root / path, content)
    return root


def check_submission(archive: Path) -> None:
    """At a server: refuse what a submitter has sent unless it is a job as it is written here."""
    try:
        if archive.stat().st_size > _LARGEST:
            raise RefusedError("it is larger than a job can be")
        found = _unpacked(archive.read_bytes())
        tops = {path.partition("/")[0] for path in found}
        files = {path.partition("/")[2]: data for path, data in found.items()}
        read = {path: _json(data) for path, data in files.items() if path in job_files(_ANY, [])}
        plan, silos = _plan_of(read)
        expected = job_files(plan, silos)
        if tops != {f"fedmend-{plan['run']}"} or files.keys() != expected.keys():
            raise RefusedError("it has other files than a job of ours")
        for path, content in expected.items():
            if not _same(read[path], content):
                raise RefusedError(f"{path} is not as fedmend writes it")
    except (OSError, FedmendError) as error:
        raise RefusedError(f"this is no job of fedmend's: {printable(error, 200)}") from error


def check_deployment(data: object) -> None:
    """At a silo: refuse what a server deploys unless it is the one configuration there is."""
    if not isinstance(data, bytes) or len(data) > _LARGEST:
        raise RefusedError("a deployment that cannot be ours")
    files = _unpacked(data)
    expected = job_files(_ANY, [])[f"silo/{SILO_CONFIG}"]
    if set(files) != {SILO_CONFIG} or not _same(_json(files[SILO_CONFIG]), expected):
        raise RefusedError("a deployment of something else than a silo's side of a run")


_ANY: Mapping[str, Any] = {"run": "", "method": ""}


def _plan_of(read: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The plan in a job's configuration and the silos it goes to, if they can be such."""
    try:
        plan = json.loads(read[f"server/{SERVER_CONFIG}"]["components"][0]["args"]["plan"])
        silos = read[META]["mandatory_clients"]
        fits = plan.keys() == _PLAN.keys() and all(
            isinstance(plan[key], kind) and (kind is bool or not isinstance(plan[key], bool))
            for key, kind in _PLAN.items()
        )
        fits = fits and _RUN.fullmatch(plan["run"]) and _METHOD.fullmatch(plan["method"])
        fits = fits and set(check_silo_names(silos)) <= set(check_silo_names(plan["silos"]))
        plain = (str, int, float, bool, type(None))
        fits = fits and all(isinstance(value, plain) for value in plan["settings"].values())
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        fits = False
    if not fits:
        raise RefusedError("there is no plan in it")
    return plan, silos


def _unpacked(data: bytes) -> dict[str, bytes]:
    """An archive's files but signatures, by path; refused before it is unpacked if too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [each for each in archive.infolist() if not each.is_dir()]
            if sum(each.file_size for each in entries) > _LARGEST:
                raise RefusedError("it unpacks to more than a job can be")
            names = [each.filename for each in entries]
            if len(set(names)) != len(names):
                raise RefusedError("it has two files of one name")
            return {
                name: archive.read(name)
                for name in names
                if name.rpartition("/")[2] not in _SIGNATURES
            }
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise RefusedError("it is no archive that can be read") from error


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError("a file in it is no JSON") from error


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON text: 1 is neither True nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
