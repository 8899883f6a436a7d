"""The command line: parsing and printing only."""

import os  # which the interpreter has imported already, as the next one
import sys


def main() -> None:
    """The entry point of the `qcls-gguf` command."""
    try:
        from .signals import end_at_once  # nothing comes before this: Ctrl-C may come while modules are imported

        end_at_once()
        _begin_again()
    except KeyboardInterrupt:
        os.write(2, b"qcls-gguf: interrupted\n")
        os._exit(130)
    from .app import app
    from .terminal import flushed

    with flushed():
        app()


def _begin_again() -> None:
    """Begin again in Python's UTF-8 mode where the locale has another encoding, and with the GIL where it is off.

    In a locale of ISO-8859-1, say, texts and paths among the arguments would be read as that, while files and standard
    input are read as UTF-8.
    """
    from ..system.threads import has_gil

    options = []
    if not sys.flags.utf8_mode and sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # for processes that this one starts
        options += ["-X", "utf8"]
    if not has_gil():
        os.environ["PYTHON_GIL"] = "1"
        options += ["-X", "gil=1"]
    if options and sys.executable:
        os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])
