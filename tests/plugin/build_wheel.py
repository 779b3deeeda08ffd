"""A build backend of one file, so that installing this package in a test needs no other package.

A wheel is a ZIP file of the package beside three lists; `pip` calls `build_wheel` by PEP 517.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Write the wheel; gives its name."""
    about = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    stem = f"{about['name'].replace('-', '_')}-{about['version']}"
    needs = "".join(f"Requires-Dist: {each}\n" for each in about["dependencies"])
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in about["entry-points"].items()
    ]
    files = {
        str(path.relative_to(HERE)): path.read_text()
        for path in sorted(HERE.glob("fedmend_example/*.py"))
    } | {
        f"{stem}.dist-info/METADATA": "Metadata-Version: 2.1\n"
        f"Name: {about['name']}\nVersion: {about['version']}\n{needs}",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: build_wheel\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/entry_points.txt": "\n".join(groups),
    }
    listed = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    record = f"{stem}.dist-info/RECORD"
    wheel = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
        for name, text in {**files, record: f"{listed}{record},,\n"}.items():
            archive.writestr(name, text)
    return wheel


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
