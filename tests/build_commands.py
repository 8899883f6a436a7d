"""How the build compiles a file of llama.cpp, for tests that look at what comes out."""

import json
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]


def compile_command(source: str) -> list[str] | None:
    """The command of the newest build in build/ for a file whose path ends so, without its output; None without one."""
    builds = sorted(ROOT.glob("build/*/compile_commands.json"), key=lambda path: path.stat().st_mtime)
    for entry in json.loads(builds[-1].read_text()) if builds else []:
        if entry["file"].endswith(source) and Path(entry["file"]).is_file():
            command = shlex.split(entry["command"])
            at = command.index("-o")
            return command[:at] + command[at + 2 :]
    return None
