"""Where files are kept between runs: one rule for all of them."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path

_NAME = "qcls-gguf"


def cache_folder() -> Path | None:
    """The user's folder for what can be computed again; None for a user without a home.

    On Linux `$XDG_CACHE_HOME/qcls-gguf`, or `~/.cache/qcls-gguf` where that variable is unset, empty or, as its
    convention asks, a relative path.
    """
    try:
        folder = user_cache_path(_NAME, appauthor=False)
        # older versions of platformdirs take a relative XDG_CACHE_HOME
        folder = folder if folder.is_absolute() else Path.home() / ".cache" / _NAME
    except RuntimeError:  # no home
        return None
    return folder if folder.is_absolute() else None
