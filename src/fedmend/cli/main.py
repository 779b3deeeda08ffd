"""The `fedmend` command. Each subcommand has a file of its own and no logic.

Heavy imports happen inside the commands, so that `fedmend --help` answers at once.
"""

from __future__ import annotations

import errno
import sys

import typer

from fedmend.cli import (
    bench,
    check,
    common,
    compare,
    demo,
    listing,
    partition,
    predict,
    privacy,
    provision,
    rehearse,
    report,
    run,
    server,
    silo,
    status,
    study,
    submit,
)
from fedmend.cli.plugins import with_plugins
from fedmend.data.lean_igraph import process_is_ours
from fedmend.errors import FedmendError

app = typer.Typer(
    name="fedmend",
    help="Train one graph neural network over graphs that several silos keep private.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("run")(with_plugins(run.run))
app.command("compare")(with_plugins(compare.compare))
app.command("study")(with_plugins(study.study))
app.command("bench")(with_plugins(bench.bench))
app.command("report")(with_plugins(report.report))
app.command("predict")(with_plugins(predict.predict))
app.command("partition")(with_plugins(partition.partition))
app.command("check")(check.check)
app.command("methods")(with_plugins(listing.methods))
app.command("datasets")(with_plugins(listing.datasets))
app.command("backbones")(with_plugins(listing.backbones))
app.command("metrics")(with_plugins(listing.metrics))
app.command("splits")(with_plugins(listing.splits))
app.command("provision")(provision.provision)
app.command("server")(with_plugins(server.server))
app.command("silo")(with_plugins(silo.silo))
app.command("submit")(with_plugins(submit.submit))
app.command("status")(status.status)
app.command("rehearse")(with_plugins(rehearse.rehearse))
app.add_typer(privacy.app, name="privacy")


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from fedmend import __version__

        typer.echo(f"fedmend {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command; what the user can mend is one line and exit code 2, never a traceback."""
    process_is_ours()
    try:
        app()
    except FedmendError as error:
        _fail(" ".join(str(error).split()))
    except common.Stopped as stop:
        typer.echo(f"fedmend: {stop}", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _fail(f"{error.filename} is longer than a file's name may be: choose a shorter one")
    except MemoryError:
        _fail("not enough memory; use fewer silos at once (--workers 1) or a smaller graph")
    except Exception as error:
        from fedmend.plugins.registry import blame

        sentence = blame(error)
        if sentence is None:
            raise  # a bug of ours, which we want to see
        _fail(" ".join(sentence.split()))


def _fail(sentence: str) -> None:
    typer.echo(f"fedmend: {sentence}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
