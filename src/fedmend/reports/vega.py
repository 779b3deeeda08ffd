"""The plotting library: its code for pages that open offline, and charts as SVG and PNG files.

Vega-Lite comes in the package vl-convert-python (the extra `report`), which also draws without a
browser. Putting its code together for a page takes seconds, so that is done once and kept.
"""

from __future__ import annotations

import copy
import hashlib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmend.errors import SettingsError, StorageError
from fedmend.files import write_bytes

_WIDTH = 640
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"


def _library() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise _missing() from None
    return vl_convert


def _missing() -> SettingsError:
    return SettingsError("reports need the plotting library Vega: pip install 'fedmend[report]'")


def code() -> str:
    """JavaScript that defines `vegaEmbed`; made once per version and then kept."""
    try:
        kept = _cache() / f"vega-{version('vl-convert-python')}.js"
    except PackageNotFoundError:
        raise _missing() from None
    check = kept.with_suffix(".sha256")
    try:
        text = kept.read_text(encoding="utf-8")
        if check.read_text() == hashlib.sha256(text.encode()).hexdigest():
            return text
    except (OSError, ValueError):
        text = ""  # not there yet, or damaged
    made: str = _library().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    text = f"(()=>{{{made}}})();"
    if "</script" in text.lower():
        raise SettingsError("this version of vl-convert-python cannot be put into a page")
    with suppress(StorageError):  # a cache that cannot be written is no reason to fail
        write_bytes(kept, text.encode())
        write_bytes(check, hashlib.sha256(text.encode()).hexdigest().encode())
    return text


def _cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("fedmend") / "vega"


def _still(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart for a file: of a fixed width, on white."""
    fixed = copy.deepcopy(spec)
    fixed["width"] = _WIDTH
    fixed["background"] = "white"
    fixed["config"] = {"font": _FONT, "legend": {"columns": 3}}
    return fixed


def svg(spec: dict[str, Any]) -> str:
    """A chart as SVG."""
    drawn: str = _library().vegalite_to_svg(_still(spec))
    return drawn


def png(spec: dict[str, Any]) -> bytes:
    """A chart as PNG, at twice the size."""
    drawn: bytes = _library().vegalite_to_png(_still(spec), scale=2)
    return drawn
