"""The command line: parsing and printing only."""

import os  # which the interpreter has imported already
import sys


def main() -> None:
    """The entry point of the `qcls-gguf` command."""
    try:
        from ..system.stops import end_at_once  # nothing comes before this: Ctrl-C may come while modules are imported

        end_at_once()
    except KeyboardInterrupt:
        os.write(2, b"qcls-gguf: interrupted\n")
        os._exit(130)
    if sys.getfilesystemencoding() != "utf-8" and not all(argument.isascii() for argument in sys.argv):
        os.write(2, b"qcls-gguf: arguments are read as UTF-8, and this locale has another encoding: set PYTHONUTF8=1\n")
        sys.exit(2)
    from .app import app
    from .terminal import exit_codes

    with exit_codes():
        app()
