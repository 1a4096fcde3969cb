"""The command line. Heavy imports wait until a command needs them, so that --help is immediate."""

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated

import typer

from codecl.cli.common import INTERRUPTED, app
from codecl.errors import CodeclError, printable

# help shows commands in this order
COMMANDS = "run plan watch extend recorded figures lists data bench peer theory"
for name in COMMANDS.split():
    import_module(f"codecl.cli.{name}")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version, and a digest of the code.")] = False,
) -> None:
    if version:
        from codecl import __version__
        from codecl.files import code_digest

        typer.echo(f"codecl {__version__}, code {code_digest()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The entry point: a user's mistake is one line and an exit code, never a traceback."""
    if "WORLD_SIZE" in os.environ:  # of a broken connection we say what is worth saying
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    if "OMP_WAIT_POLICY" not in os.environ:  # PyTorch's threads spin 200 times longer before they sleep, which gains
        os.environ.setdefault("GOMP_SPINCOUNT", "1500")  # little alone and stops whatever runs beside: docs/runs.md
    warnings.formatwarning = lambda message, *_, **__: f"codecl: {printable(str(message))}\n"
    try:
        code = app(standalone_mode=False)
    except CodeclError as error:
        if not error.said:
            print(f"codecl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("codecl: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        said = getattr(error, "format_message", None)  # a usage error of typer's
        if said is None:
            raise
        print(f"codecl: {said()} (codecl --help shows what there is)", file=sys.stderr)
        sys.exit(2)
    if code == INTERRUPTED:  # typer turns Ctrl-C into an exit code
        print("codecl: interrupted", file=sys.stderr)
    sys.exit(code or 0)
