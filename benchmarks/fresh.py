"""Running a function in a process of its own, so that its peak memory is its own.

`python -m benchmarks.fresh MODULE:FUNCTION JSON` calls the function with the JSON value and prints
what it gives as one line of JSON; progress goes to stderr, which is the caller's.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.common import REPOSITORY


def in_fresh_process(function: Callable[[dict[str, Any]], dict[str, Any]], given: Any) -> Any:
    """What `function(given)` gives in a new Python."""
    name = f"{function.__module__}:{function.__qualname__}"
    asked = [sys.executable, "-m", "benchmarks.fresh", name, json.dumps(given)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    answer = subprocess.run(
        asked, cwd=REPOSITORY, stdout=subprocess.PIPE, env=environment, text=True, check=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> None:
    """Call what the command line names."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    print(json.dumps(function(json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
