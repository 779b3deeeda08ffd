"""igraph, where the process is fedmend's own without what igraph imports for drawing.

If matplotlib is installed, igraph imports all of it, which takes many times as long as igraph
(measured: 1.4 of 1.6 s). In the command line's processes nobody draws with igraph, so matplotlib is
hidden while igraph looks for it. In a process of somebody else's igraph is left as it is.
"""

from __future__ import annotations

import sys
from types import ModuleType

_ours = False


def process_is_ours() -> None:
    """Say that nobody but fedmend will use igraph in this process."""
    global _ours  # one fact about the whole process
    _ours = True


def igraph() -> ModuleType:
    """The module."""
    hide = _ours and "igraph" not in sys.modules and "matplotlib" not in sys.modules
    if hide:
        sys.modules["matplotlib"] = None  # type: ignore[assignment]  # how an import is refused
    try:
        import igraph as found
    finally:
        if hide:
            del sys.modules["matplotlib"]
    module: ModuleType = found
    return module
