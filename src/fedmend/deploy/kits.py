"""Start-up kits: who takes part in a federation, and the certificates that prove it.

`provision` makes a folder per party, to be handed to that party alone:

    OUT/authority/     the signing key: stays with whoever founds the federation, owner-only;
                       `made.txt` in it names the kits that were made
    OUT/server/        for `fedmend server`
    OUT/NAME/          one per silo, for `fedmend silo`
    OUT/submitter/     for `fedmend submit`: may start runs
    OUT/observer/      for `fedmend status`: may look, may not start anything

A kit holds `kit.json` (who this is, where the server is), `party.crt` and `party.key` (owner-only),
`root.crt`, and for silos `policy.toml`, which is the silo's to edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedmend.errors import FileFormatError, SettingsError
from fedmend.files import make_folder, read_json, write_bytes, write_json, write_secret
from fedmend.privacy.policy import POLICY_FILE, POLICY_TEMPLATE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.x509 import Certificate

FORMAT = "fedmend kit 1"
KIT, CERTIFICATE, KEY, ROOT = "kit.json", "party.crt", "party.key", "root.crt"
AUTHORITY, SERVER, SUBMITTER, OBSERVER = "authority", "server", "submitter", "observer"
REMOVED, MADE = "removed.txt", "made.txt"
RESERVED = (AUTHORITY, SERVER, SUBMITTER, OBSERVER)
PORT = 8702
ORGANISATION = "fedmend"
VALID_DAYS = 365

Role = Literal["server", "silo", "submitter", "observer"]

_SILO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


@dataclass(frozen=True)
class Kit:
    """One party's kit."""

    folder: Path
    role: Role
    name: str
    host: str
    port: int
    expires: datetime

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def file(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True)
class Provisioned:
    """What `provision` did.

    handed_out: kits that were made before and are not here any more; nobody named them now.
    """

    folder: Path
    address: str
    made: tuple[str, ...]
    kept: tuple[str, ...]
    handed_out: tuple[str, ...]
    expires: datetime

    @property
    def remark(self) -> str | None:
        """What was not made again, and how to get it all the same."""
        if not self.handed_out:
            return None
        return (
            f"Not made again, since handed out: {', '.join(self.handed_out)}; for a new one remove "
            f"its name from {self.folder / AUTHORITY / MADE} and provision again."
        )


def parse_address(text: str) -> tuple[str, int]:
    """`host` or `host:port` as host and port; FLARE knows no IPv6 addresses."""
    host, colon, port = text.partition(":")
    if not _HOST.fullmatch(host):
        raise SettingsError(
            f"--server {text!r} is not allowed: give a host name or an IPv4 address, and a port "
            f"if it is not {PORT} (server.example.org:{PORT})"
        )
    number = PORT if not colon else int(port) if port.isdecimal() and len(port) < 6 else 0
    if not 1 <= number < 2**16:
        raise SettingsError(f"--server {text!r} is not allowed: a port is a number from 1 to 65535")
    return host, number


def check_silo_names(silos: Iterable[str]) -> list[str]:
    """The names of silos, if they can be certificates' names and folders'."""
    names = [name.strip() for name in silos]
    if not names:
        raise SettingsError("a federation needs at least one silo: --silos north,south")
    for name in names:
        if not _SILO.fullmatch(name):
            raise SettingsError(
                f"a silo cannot be called {name!r}: letters, digits, - and _ only, at most 63"
            )
        if name.lower() in RESERVED:
            raise SettingsError(f"a silo cannot be called {name!r}: that is another kit's name")
    if len({name.lower() for name in names}) != len(names):
        raise SettingsError(f"a silo is named twice in {', '.join(names)}")
    return names


def provision(
    out: Path, server: str, silos: Iterable[str], *, valid_days: int = VALID_DAYS
) -> Provisioned:
    """Make the kits that are not there yet; kits that are there keep their keys.

    Of silos, those that are named. The others' kits are made once: a folder that was handed out and
    deleted must not leave a second valid key of a submitter behind whenever a silo is added.

    Args:
        out: the founder's folder.
        server: where silos reach the server, `host[:port]`.
        silos: names of the silos to make kits for.
        valid_days: how long new certificates are valid.
    """
    names = check_silo_names(silos)
    host, port = parse_address(server)
    if host.lower() in {name.lower() for name in names}:
        # Certificates say names: that silo's would pass for the server's.
        raise SettingsError(f"a silo cannot be called {host!r}: that is the server's host")
    if not 1 <= valid_days <= 3650:
        raise SettingsError(f"--days {valid_days} is not allowed: from 1 to 3650")
    make_folder(out)
    authority = _authority(out, host, port, valid_days)
    wanted: list[tuple[str, Role]] = [
        (SERVER, "server"),
        *((name, "silo") for name in names),
        (SUBMITTER, "submitter"),
        (OBSERVER, "observer"),
    ]
    before = _made_before(out)
    made, kept, handed_out = [], [], []
    for name, role in wanted:
        if (out / name / KIT).exists():
            kept.append(name)
        elif name in before and role != "silo":
            handed_out.append(name)
        else:
            _make_kit(out / name, name, role, host, port, authority, valid_days)
            made.append(name)
    _write_made(out, {*before, *made, *kept})
    expires = min(read_kit(out / name).expires for name in (*made, *kept))
    address = f"{host}:{port}"
    return Provisioned(out, address, tuple(made), tuple(kept), tuple(handed_out), expires)


def _made_before(out: Path) -> set[str]:
    """The kits that were ever made here: names in `made.txt` of the authority, one per line."""
    path = out / AUTHORITY / MADE
    if not path.exists():  # founded before there was one: these three were made at once
        return {SERVER, SUBMITTER, OBSERVER}
    return set(_names_in(path))


def _write_made(out: Path, names: Iterable[str]) -> None:
    write_bytes(out / AUTHORITY / MADE, "".join(f"{name}\n" for name in sorted(names)).encode())


@dataclass(frozen=True)
class _Authority:
    key: RSAPrivateKey
    certificate: Certificate


def _authority(out: Path, host: str, port: int, valid_days: int) -> _Authority:
    """The federation's own certificate authority: read again, or made."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.lighter import utils as flare

    folder = out / AUTHORITY
    if (folder / KIT).exists():
        about = read_json(folder / KIT, limit=2**20)
        if about.get("format") != FORMAT:
            raise FileFormatError(f"{folder / KIT} was written by another version of fedmend")
        _check_private(folder, "700")
        _check_private(folder / KEY, "600")
        if (about.get("host"), about.get("port")) != (host, port):
            raise SettingsError(
                f"{out} belongs to a federation whose server is {about.get('host')}:"
                f"{about.get('port')}, not {host}:{port}; give that address to add silos, or "
                "another folder for a new federation"
            )
        try:
            key = serialization.load_pem_private_key((folder / KEY).read_bytes(), password=None)
            certificate = load_pem_x509_certificate((folder / ROOT).read_bytes())
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{folder} holds no usable signing key: {error}") from error
        _check_expiry(certificate.not_valid_after_utc, folder)
        return _Authority(key, certificate)  # type: ignore[arg-type]  # we only write RSA keys
    make_folder(folder)
    folder.chmod(0o700)
    key, public = flare.generate_keys()
    # The root outlives the parties' certificates, so that a silo can still be added near their end.
    certificate = flare.generate_cert(
        subject=flare.Identity(f"fedmend {host}:{port}"[:64]),
        issuer=flare.Identity(f"fedmend {host}:{port}"[:64]),
        signing_pri_key=key,
        subject_pub_key=public,
        not_valid_before=datetime.now(UTC) - _CLOCKS,
        not_valid_after=datetime.now(UTC) + timedelta(days=max(3650, valid_days + 1)),
        ca=True,
    )
    write_secret(folder / KEY, flare.serialize_pri_key(key))
    write_bytes(folder / ROOT, flare.serialize_cert(certificate))
    _write_made(out, [])
    write_json(folder / KIT, {"format": FORMAT, "role": AUTHORITY, "host": host, "port": port})
    return _Authority(key, certificate)


_CLOCKS = timedelta(minutes=5)
"""Two machines' clocks may differ by this much and still believe each other's certificates."""


def _make_kit(
    folder: Path,
    name: str,
    role: Role,
    host: str,
    port: int,
    authority: _Authority,
    valid_days: int,
) -> None:
    from cryptography.x509.oid import NameOID
    from nvflare.lighter import utils as flare

    make_folder(folder)
    folder.chmod(0o700)
    key, public = flare.generate_keys()
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    expires = datetime.now(UTC) + timedelta(days=valid_days)
    certificate = flare.generate_cert(
        # A server is known by its host's name; people by a role, which the server's policy reads.
        subject=flare.Identity(
            host if role == "server" else name,
            ORGANISATION,
            {"submitter": "lead", "observer": "member"}.get(role),
        ),
        issuer=flare.Identity(str(issuer)),
        signing_pri_key=authority.key,
        subject_pub_key=public,
        not_valid_before=datetime.now(UTC) - _CLOCKS,
        not_valid_after=min(expires, authority.certificate.not_valid_after_utc),
        server_default_host=host if role == "server" else None,
    )
    write_secret(folder / KEY, flare.serialize_pri_key(key))
    write_bytes(folder / CERTIFICATE, flare.serialize_cert(certificate))
    write_bytes(folder / ROOT, flare.serialize_cert(authority.certificate))
    if role == "silo":
        write_bytes(folder / POLICY_FILE, POLICY_TEMPLATE.encode())
    about = {"format": FORMAT, "role": role, "name": name, "host": host, "port": port}
    write_json(folder / KIT, about)  # last: a folder with one is a whole kit


def read_kit(folder: Path, *roles: Role) -> Kit:
    """A party's kit, checked: complete, for one of these roles, not expired, its key private."""
    from cryptography.x509 import load_pem_x509_certificate

    path = folder / KIT
    if not path.is_file():
        raise FileFormatError(f"{folder} is not a start-up kit: there is no {KIT} in it")
    about: Any = read_json(path, limit=2**20)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a kit of this version of fedmend")
    role, name, host, port = (about.get(key) for key in ("role", "name", "host", "port"))
    if role not in ("server", "silo", "submitter", "observer") or not isinstance(port, int):
        raise FileFormatError(f"{path} is damaged; have the kit made again")
    if roles and role not in roles:
        raise SettingsError(
            f"{folder} is the kit of {_ARTICLES[role]}; this command takes that of "
            f"{' or '.join(_ARTICLES[each] for each in roles)}"
        )
    for needed in (CERTIFICATE, KEY, ROOT):
        if not (folder / needed).is_file():
            raise FileFormatError(f"{folder} is not a whole kit: {needed} is missing")
    _check_private(folder / KEY, "600")
    try:
        certificate = load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{folder / CERTIFICATE} is not a certificate: {error}") from error
    _check_expiry(certificate.not_valid_after_utc, folder)
    return Kit(folder, role, str(name), str(host), port, certificate.not_valid_after_utc)


def _check_private(path: Path, rights: str) -> None:
    """Refuse a key, or the folder of one, that others may use; `rights` are what it should have."""
    if path.exists() and path.stat().st_mode & 0o077:
        raise SettingsError(
            f"{path} can be read by others than its owner; chmod {rights} it (and think about who "
            "may have copied it)"
        )


def read_removed(kit: Kit) -> list[str]:
    """Silos that a server no longer lets in: names in `removed.txt` of its kit, one per line."""
    path = kit.file(REMOVED)
    return _names_in(path) if path.exists() else []


def _names_in(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    for name in names:
        if not _SILO.fullmatch(name):  # a name that is misspelt would let its silo in
            raise FileFormatError(f"{path}: {name[:80]!r} is not the name of a silo or kit")
    return sorted(set(names))


_ARTICLES = {
    "server": "the server",
    "silo": "a silo",
    "submitter": "a submitter",
    "observer": "an observer",
}


def _check_expiry(expires: datetime, folder: Path) -> None:
    if expires <= datetime.now(UTC):
        raise SettingsError(
            f"the certificate in {folder} expired on {expires:%Y-%m-%d}; to get a new one, delete "
            f"that folder at the founder's, and its name in {AUTHORITY}/{MADE}, and provision again"
        )


def described(done: Provisioned) -> dict[str, Any]:
    """What was provisioned, for JSON."""
    return {**asdict(done), "folder": str(done.folder), "expires": done.expires.isoformat()}
