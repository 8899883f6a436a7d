"""The command line: parsing and printing only."""

import os  # which the interpreter has imported already, as the next one
import sys


def main() -> None:
    """The entry point of the `qcls-gguf` command."""
    try:
        from .signals import end_at_once  # nothing comes before this: Ctrl-C may come while modules are imported

        end_at_once()
        _take_arguments_as_utf8()
    except KeyboardInterrupt:
        os.write(2, b"qcls-gguf: interrupted\n")
        os._exit(130)
    from .app import app
    from .terminal import flushed

    with flushed():
        app()


def _take_arguments_as_utf8() -> None:
    """Begin again in Python's UTF-8 mode where the locale has another encoding, such as ISO-8859-1.

    Texts and paths among the arguments would be read in the locale's, and files and standard input are read as UTF-8.
    """
    if not sys.flags.utf8_mode and sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
