"""How runs and kits stand at a server, in fedmend's own words, for `fedmend status` and `submit`.

FLARE's word for a run that could not start is COMPLETED: its job did. So every job writes down what
became of its run, and a command beside FLARE's own tells it, with kits that are used twice.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

from fedmend.deploy import alone
from fedmend.engines.printable import printable

COMMAND = "fedmend_standing"
OUTCOMES = "outcomes.jsonl"
"""In a server's state folder: what became of every job's run, a line each."""

_NEWEST = 1000


def write_outcome(state: Path, job: str, outcome: str) -> None:
    """Write down what became of a job's run; a full disk has been told of already."""
    line = json.dumps({"job": job, "outcome": printable(outcome, 400)})
    with suppress(OSError), (state / OUTCOMES).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read_outcomes(state: Path) -> dict[str, str]:
    """What became of the newest jobs' runs."""
    try:
        lines = (state / OUTCOMES).read_text(encoding="utf-8").splitlines()[-_NEWEST:]
    except OSError:
        return {}
    found = {}
    for line in lines:
        with suppress(ValueError, LookupError, TypeError):  # half a line, of a full disk
            one = json.loads(line)
            found[str(one["job"])] = str(one["outcome"])
    return found


class Standing(CommandModule):  # type: ignore[misc]  # FLARE has no types
    """The command; whoever may log in may look."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self._state = state

    def get_spec(self) -> Any:
        command = CommandSpec(
            name=COMMAND,
            description="how runs and kits stand",
            usage=COMMAND,
            handler_func=self.answer,
            visible=False,
        )
        return CommandModuleSpec(name="fedmend", cmd_specs=[command])

    def answer(self, conn: Any, args: list[str]) -> None:
        """Everything there is to say, as one text of JSON."""
        del args
        told = {"outcomes": read_outcomes(self._state), "twice": alone.twice}
        conn.append_string(json.dumps(told))


def install(state: Path) -> None:
    """Put the command into this process, if it will be a server."""
    ServerCommandModules.register_cmd_module(Standing(state))


def ask(opened: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Outcomes by job, and kits that are used twice, as a server tells them over a session."""
    answer = opened.api.server_execute(COMMAND)
    try:
        texts = [each["data"] for each in answer["data"] if each["type"] == "string"]
        told = json.loads(texts[0])
        return tuple(  # type: ignore[return-value]  # two, by the line below
            {printable(key, 80): printable(value, 400) for key, value in told[part].items()}
            for part in ("outcomes", "twice")
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return {}, {}  # another version's server; FLARE's words are all there is
