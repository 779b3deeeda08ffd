"""A job is accepted only as it would have been written here."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedmend.deploy.deployed import make_plan
from fedmend.deploy.job_files import (
    META,
    SERVER_CONFIG,
    SILO_CONFIG,
    check_deployment,
    check_submission,
    job_files,
    write_job,
)
from fedmend.errors import RefusedError

RUN = "0123456789abcdef"
SILOS = ["north", "south"]
PLAN = make_plan("fedavg", {"rounds": 3}, SILOS, run=RUN, timeout=2.5)
TOP = f"fedmend-{RUN}"
SERVER, SILO = f"{TOP}/server/{SERVER_CONFIG}", f"{TOP}/silo/{SILO_CONFIG}"


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return buffer.getvalue()


def submission_files(plan: dict[str, Any] = PLAN, silos: list[str] = SILOS) -> dict[str, bytes]:
    files = {f"{TOP}/{p}": json.dumps(c).encode() for p, c in job_files(plan, silos).items()}
    signed = [f"{TOP}/.__nvfl_sig.json", f"{TOP}/server/config/.__nvfl_submitter.crt"]
    return {f"{TOP}/server/": b"", **files, **dict.fromkeys(signed, b"{}")}


def check(tmp_path: Path, files: dict[str, bytes]) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(packed(files))
    check_submission(path)


def changed(path: str, change: Callable[[Any], None]) -> dict[str, bytes]:
    files = submission_files()
    content = json.loads(files[path])
    change(content)
    return {**files, path: json.dumps(content).encode()}


def test_our_own_jobs(tmp_path: Path) -> None:
    check(tmp_path, submission_files())
    resumed = make_plan("hifgl", {}, SILOS, run=RUN, resume=True)
    check(tmp_path, submission_files(resumed, ["south"]))  # one of them is away
    folder = write_job(tmp_path, PLAN, SILOS)
    written = {str(p.relative_to(tmp_path)): p.read_bytes() for p in folder.rglob("*.json")}
    check(tmp_path, written)
    check_deployment(packed({SILO_CONFIG: written[SILO], ".__nvfl_sig.json": b"{}"}))


def component(path: str, **args: Any) -> Callable[[Any], None]:
    return lambda config: config["components"].append({"id": "x", "path": path, "args": args})


STORAGE = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"


@pytest.mark.parametrize(
    "files",
    [
        changed(SERVER, component(STORAGE, root_dir="/tmp/out", uri_root="/")),
        changed(SILO, component("subprocess.Popen", args="true")),
        changed(SERVER, component("fedmend.deploy.job.ServerJob", plan="{}")),
        changed(SERVER, lambda config: config.update(format_version=2.0)),
        changed(SERVER, lambda config: config["components"][0].update(name="x")),
        changed(SERVER, lambda config: config["workflows"][0]["args"].update(x="${HOME}")),
        changed(SILO, lambda config: config["executors"][0].update(tasks=["a"])),
        changed(f"{TOP}/{META}", lambda meta: meta.update(launcher_spec={"docker": {}})),
        changed(f"{TOP}/{META}", lambda meta: meta.update(min_clients=1)),
        changed(f"{TOP}/{META}", lambda meta: meta["deploy_map"].update(silo=["@ALL"])),
        changed(f"{TOP}/{META}", lambda meta: meta.update(mandatory_clients=["west"])),
        changed(f"{TOP}/{META}", lambda meta: meta.update(mandatory_clients="north")),
        {**submission_files(), f"{TOP}/server/custom/evil.py": b"print()"},
        {**submission_files(), f"{TOP}/server/config/config_fed_server.conf": b"a = ${HOME}"},
        {**submission_files(), f"{TOP}/meta.conf": b'include file("/etc/passwd")'},
        {**submission_files(), "../../elsewhere.json": b"{}"},
        {**submission_files(), f"{TOP}/silo/config/comm_config.json": b"{}"},
        {p: d for p, d in submission_files().items() if p != SILO},
        {**submission_files(), SERVER: b'{include "x"}'},
        {**submission_files(), SERVER: b"[" * 100_000},
        {**submission_files(), SERVER: b" " * 2**21 + submission_files()[SERVER]},
        submission_files({**PLAN, "run": "../../x"}),
        submission_files({**PLAN, "method": "a b"}),
        submission_files({**PLAN, "threads": True}),
        submission_files({**PLAN, "more": 1}),
        submission_files({**PLAN, "settings": {"a": {"path": "x"}}}),
        {},
    ],
)
def test_what_is_no_job_of_ours(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(RefusedError, match=r"no job of fedmend's: ") as caught:
        check(tmp_path, files)
    assert "\n" not in str(caught.value)


def test_what_is_no_archive(tmp_path: Path) -> None:
    for data in (b"", b"PK", b"x" * 2**21):
        (tmp_path / "job.zip").write_bytes(data)
        with pytest.raises(RefusedError):
            check_submission(tmp_path / "job.zip")
    with pytest.raises(RefusedError):
        check_submission(tmp_path / "none.zip")


SILO_FILES = {SILO_CONFIG: submission_files()[SILO]}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        packed({}),
        packed({**SILO_FILES, "custom/fedmend.py": b"print()"}),
        packed({**SILO_FILES, "config/config_fed_client.conf": b"a = ${HOME}"}),
        packed({**SILO_FILES, "config/comm_config.json": b"{}"}),
        packed({**SILO_FILES, "../local/resources.json": b"{}"}),
        packed({SILO_CONFIG: changed(SILO, component(STORAGE, root_dir="/"))[SILO]}),
        packed({SILO_CONFIG: submission_files()[SERVER]}),
        packed({SILO_CONFIG: b"0" * 2**22}),
    ],
)
def test_what_a_silo_does_not_deploy(data: object) -> None:
    with pytest.raises(RefusedError):
        check_deployment(data)
