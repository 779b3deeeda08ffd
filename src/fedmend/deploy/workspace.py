"""FLARE's own folders, written anew from a kit at every start.

FLARE reads certificates, addresses and policies from a folder of its own. It is made here, inside
the party's state folder, so that a kit stays small, and so that the rules in it are always those of
the installed version: no code in jobs, no class but a handful, no shell, no logs sent anywhere.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedmend.deploy.kits import CERTIFICATE, KEY, ORGANISATION, ROOT, Kit
from fedmend.deploy.sockets import comm_config
from fedmend.files import make_folder, storage_errors, write_bytes, write_json, write_secret

FEDERATION = "fedmend"
SITE_FILE = "fedmend.json"
"""In the local folder of a silo's or server's workspace: what our own classes need there."""

ALLOWED_CLASSES = (
    "fedmend.deploy.job.ServerJob",
    "fedmend.deploy.job.SiloJob",
    "fedmend.deploy.job.Reporter",
    "fedmend.deploy.job.Launcher",
    "fedmend.deploy.job.ServerLauncher",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
    "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
    "nvflare.app_common.storages.filesystem_storage.FilesystemStorage",
    "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
    "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
    "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
)
"""All that a job or a site may be made of."""

HEARTBEAT = 5.0
"""Seconds between a silo's signs of life to FLARE's server; six missed ones, and it is gone."""

_RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "app_command",
    "shell_commands",
    "byoc",
    "server-predeployed-flwr",
)
"""All that FLARE asks permission for; `byoc` is code in jobs."""


def _authorization(**lead: str) -> dict[str, Any]:
    """Who may do what: a submitter (lead) the given things, an observer only look, both no more."""
    never = dict.fromkeys(_RIGHTS, "none")
    observer = {"view": "any"} if lead.get("view") else {}
    return {
        "format_version": "1.0",
        "permissions": {
            "project_admin": never,
            "org_admin": never,
            "lead": {**never, **lead},
            "member": {**never, **observer},
        },
    }


def _logging() -> dict[str, Any]:
    """Everything into a file in the state folder, nothing to the terminal."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {
                "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
                "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
            }
        },
        "handlers": {
            name: {
                "class": "logging.handlers.RotatingFileHandler",
                "level": level,
                "formatter": "plain",
                "filename": filename,
                "mode": "a",
                "maxBytes": 20 * 2**20,
                "backupCount": 3,
            }
            for name, level, filename in (
                ("logFileHandler", "INFO", "log.txt"),
                ("errorFileHandler", "ERROR", "error_log.txt"),
            )
        },
        "loggers": {
            "root": {"level": "INFO", "handlers": ["logFileHandler", "errorFileHandler"]},
        },
    }


def _copy_credentials(kit: Kit, startup: Path, base: str) -> None:
    write_secret(startup / f"{base}.key", kit.file(KEY).read_bytes())
    write_bytes(startup / f"{base}.crt", kit.file(CERTIFICATE).read_bytes())
    write_bytes(startup / "rootCA.pem", kit.file(ROOT).read_bytes())


def _fresh(state: Path) -> Path:
    """The party's workspace inside its state folder; configuration of earlier starts is gone."""
    make_folder(state)
    with storage_errors(state):
        state.chmod(0o700)
        root = state / "flare"
        for part in ("startup", "local"):
            shutil.rmtree(root / part, ignore_errors=True)
            make_folder(root / part)
        make_folder(root / "transfer")
    return root


def _write_local(
    root: Path, *, resources: dict[str, Any], rights: dict[str, Any], site: dict[str, str]
) -> None:
    """What a long-running party decides by itself: what it is made of, who may do what here."""
    rules = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": list(ALLOWED_CLASSES),
    }
    write_json(root / "local" / "resources.json", {**rules, **resources})
    write_json(root / "local" / "authorization.json", rights)
    write_json(root / "local" / "log_config.json", _logging())
    write_json(root / "local" / "comm_config.json", comm_config(root))
    write_json(root / "local" / SITE_FILE, site)


def server_workspace(kit: Kit, state: Path) -> Path:
    """FLARE's folder for a server."""
    root = _fresh(state)
    _copy_credentials(kit, root / "startup", "server")
    write_json(
        root / "startup" / "fed_server.json",
        {
            "format_version": 2,
            "require_signed_jobs": True,
            "servers": [
                {
                    "name": FEDERATION,
                    "service": {"target": kit.address, "scheme": "grpc"},
                    "admin_server": kit.host,
                    "admin_port": kit.port,
                    "ssl_private_key": "server.key",
                    "ssl_cert": "server.crt",
                    "ssl_root_cert": "rootCA.pem",
                    "connection_security": "mtls",
                }
            ],
        },
    )
    _write_local(
        root,
        resources={
            "servers": [
                {
                    "admin_storage": "transfer",
                    "max_num_clients": 1000,
                    "heart_beat_timeout": int(6 * HEARTBEAT),
                    "download_job_url": "",
                    "admin_timeout": 30.0,
                }
            ],
            "snapshot_persistor": {
                "path": "nvflare.app_common.state_persistors.storage_state_persistor."
                "StorageStatePersistor",
                "args": {
                    "uri_root": "/",
                    "storage": {
                        "path": "nvflare.app_common.storages.filesystem_storage.FilesystemStorage",
                        "args": {"root_dir": str(root / "snapshots"), "uri_root": "/"},
                    },
                },
            },
            "components": [
                {
                    "id": "job_scheduler",
                    "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                    "args": {"max_jobs": 4, "max_schedule_count": 3, "min_schedule_interval": 1.0},
                },
                {
                    "id": "job_manager",
                    "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                    "args": {"uri_root": str(root / "jobs"), "job_store_id": "job_store"},
                },
                {
                    "id": "job_store",
                    "path": "nvflare.app_common.storages.filesystem_storage.FilesystemStorage",
                },
                {"id": "process_launcher", "path": "fedmend.deploy.job.ServerLauncher", "args": {}},
                {"id": "reporter", "path": "fedmend.deploy.job.Reporter", "args": {}},
            ],
        },
        rights=_authorization(
            submit_job="any", manage_job="n:submitter", view="any", app_command="n:submitter"
        ),
        site={"state": str(state)},
    )
    return root


def silo_workspace(kit: Kit, state: Path, graph: Path, policy: Path) -> Path:
    """FLARE's folder for a silo."""
    root = _fresh(state)
    _copy_credentials(kit, root / "startup", "client")
    write_json(
        root / "startup" / "fed_client.json",
        {
            "format_version": 2,
            "require_signed_jobs": True,
            "servers": [
                {
                    "name": FEDERATION,
                    "service": {"target": kit.address, "scheme": "grpc"},
                    "identity": kit.host,
                }
            ],
            "client": {
                "ssl_private_key": "client.key",
                "ssl_cert": "client.crt",
                "ssl_root_cert": "rootCA.pem",
                "fqsn": kit.name,
                "is_leaf": True,
                "connection_security": "mtls",
            },
        },
    )
    _write_local(
        root,
        resources={
            "allow_log_streaming": False,
            "client": {"retry_timeout": 30, "compression": "None"},
            "components": [
                {
                    "id": "resource_manager",
                    "path": "nvflare.app_common.resource_managers.gpu_resource_manager."
                    "GPUResourceManager",
                    "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
                },
                {
                    "id": "resource_consumer",
                    "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer."
                    "GPUResourceConsumer",
                    "args": {},
                },
                {"id": "process_launcher", "path": "fedmend.deploy.job.Launcher", "args": {}},
                {"id": "reporter", "path": "fedmend.deploy.job.Reporter", "args": {}},
            ],
        },
        # At a silo a submitter may have a job run and stopped; nobody looks at anything here.
        rights=_authorization(submit_job="any", manage_job="n:submitter"),
        site={"state": str(state), "graph": str(graph), "policy": str(policy)},
    )
    return root


def person_workspace(kit: Kit, folder: Path) -> Path:
    """FLARE's folder for a submitter or observer; a temporary one will do."""
    _copy_credentials(kit, make_folder(folder / "startup"), "client")
    transfer = make_folder(folder / "transfer")
    make_folder(folder / "local")
    write_json(
        folder / "startup" / "fed_admin.json",
        {
            "format_version": 1,
            "admin": {
                "project_name": FEDERATION,
                "username": kit.name,
                "server_identity": kit.host,
                "scheme": "grpc",
                "host": kit.host,
                "port": kit.port,
                "connection_security": "mtls",
                "uid_source": "cert",
                "with_file_transfer": True,
                "upload_dir": str(transfer),
                "download_dir": str(transfer),
                "client_key": "client.key",
                "client_cert": "client.crt",
                "ca_cert": "rootCA.pem",
            },
        },
    )
    write_json(folder / "local" / "resources.json", {"format_version": 1, "admin": {}})
    return folder


def parent_options(kit: Kit) -> list[str]:
    """What FLARE's own programs are started with."""
    name = [] if kit.role == "server" else [f"uid={kit.name}", f"heart_beat_interval={HEARTBEAT}"]
    return ["secure_train=true", *name, f"org={ORGANISATION}", "config_folder=config"]
