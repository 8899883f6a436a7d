"""The command line: parsing and printing only."""

import os  # which the interpreter has imported already


def main() -> None:
    """The entry point of the `qcls-gguf` command."""
    try:
        from .signals import end_at_once  # nothing comes before this: Ctrl-C may come while modules are imported

        end_at_once()
    except KeyboardInterrupt:
        os.write(2, b"qcls-gguf: interrupted\n")
        os._exit(130)
    from .app import app
    from .terminal import flushed

    with flushed():
        app()
