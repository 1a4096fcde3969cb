"""Makes docs/quickstart.svg from a real run on a pseudo-terminal:  python docs/picture.py"""

import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 76


def on_terminal(command: list[str], cwd: str) -> str:
    """What a terminal of this width shows when the command has ended."""
    shown = bytearray()

    def read(descriptor: int) -> bytes:
        some = os.read(descriptor, 65536)
        shown.extend(some)
        return some

    os.environ.update(COLUMNS=str(WIDTH), LINES="40", TERM="xterm-256color")
    os.chdir(cwd)
    pty.spawn(command, read)
    return shown.decode()


with tempfile.TemporaryDirectory() as folder:
    home = Path(__file__).resolve().parent
    text = on_terminal([str(Path(sys.executable).with_name("codecl")), "run"], folder)
# the progress line is erased when its run ends
lines = [re.split(r"\x1b\[2K", line)[-1] for line in text.replace("\r\n", "\n").split("\n")]
kept = [line for line in lines if "━━" not in line and "recorded in" not in line]
console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
console.print("[bold green]$[/] make demo")
console.print(Text.from_ansi("\n".join(kept).strip("\n")))
svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="codecl"), flags=re.S)
(home / "quickstart.svg").write_text(svg)
