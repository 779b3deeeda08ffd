"""`--plugin FILE`, for every command that names a method, backbone, split or dataset."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fedmend.cli import common


def with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--plugin`; the files are loaded before it begins."""
    signature = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    ours = inspect.Parameter("plugin", kind, default=None, annotation=common.PluginOption)

    @functools.wraps(command)
    def called(**given: Any) -> None:
        files = given.pop("plugin")
        if files:
            from fedmend.plugins.registry import allow

            allow(files)
        command(**given)

    parameters = [*signature.parameters.values(), ours]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
