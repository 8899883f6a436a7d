"""How the service listens, whom it answers, and what it refuses."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..config.yaml_values import read_text
from ..errors import ConfigError
from ..questions.forms import FormSettings

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]*[^/\s?#:]")
LogFormat = Literal["text", "json", "none"]


@dataclass(frozen=True, slots=True)
class LongestWait:
    """A time, or a multiple of the time that a request took lately."""

    amount: float
    is_multiple: bool = False

    def ms(self, request_ms: float) -> float:
        """In milliseconds. request_ms: what a request took lately."""
        return self.amount * request_ms if self.is_multiple else self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one request may hold, and how long it may take."""

    body_bytes: int = 4 << 20
    """of a body, or of one line of a stream of lines"""
    queries: int = 256
    """queries of one request; a stream of lines has any number"""
    questions: int = 400
    """questions of one request"""
    options: int = 255
    """options, or levels, of a question"""
    question_bytes: int = 32_768
    """of a question's texts, without what it is asked about"""
    timeout_ms: int = 10_000
    """after which a request that has not begun is not computed, where it does not say itself"""
    longest_timeout_ms: int = 600_000
    """the most that a request may ask for"""
    body_timeout_s: float = 30.0
    """for a whole body to arrive, or for a line of a stream"""
    longest_wait: LongestWait | None = None
    """what a request may have to wait, by what those before it will take; more get 503; none: any"""
    waiting_requests: int = 64
    """requests that may be in the service at once; more get 503"""
    waiting_tokens: int = 16_384
    """tokens that all of them together would feed, estimated at four bytes a token; more get 503"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Everything about the service that is not about the classifier."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free one"""
    uds: Path | None = None
    """a Unix domain socket to listen on instead of host and port"""
    api_keys: tuple[str, ...] = ()
    """who sends none of them is refused; empty: everybody is answered"""
    cors_origins: tuple[str, ...] = ()
    """web pages of these origins may ask; empty: none"""
    grace_s: float = 30.0
    """how long requests that have come may take after a request to stop"""
    log_format: LogFormat = "text"
    forms: FormSettings = field(default_factory=FormSettings)
    """how questions become prompts"""
    n_results: int = 0
    """answers to keep for queries that come again; 0: none"""
    limits: RequestLimits = field(default_factory=RequestLimits)

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        if self.uds is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_origins(origins: list[str]) -> tuple[str, ...]:
    """The origins of web pages, in lower case as browsers send them. Raises ConfigError for what is no origin."""
    origins = [origin.lower() for origin in origins]
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):  # `null` is none: frames of any page send it
            what = "is no origin: write scheme, host and port without a path, such as http://localhost:3000"
            raise ConfigError(f"`cors_origin` {origin[:100]!r}: {what}")
    return tuple(origins)


def read_wait(text: str) -> LongestWait:
    """Milliseconds, such as `50`, or a multiple, such as `1.5x`. Raises ConfigError."""
    if not re.fullmatch(r"\d{1,9}(\.\d+)?x?", text, re.ASCII):
        what = "is not a number of milliseconds, such as 50, nor of requests' times, such as 1.5x"
        raise ConfigError(f"`max_wait` {text[:40]!r}: {what}")
    return LongestWait(float(text.removesuffix("x")), is_multiple=text.endswith("x"))


def read_keys(path: Path) -> list[str]:
    """API keys from a file: one a line; blank lines and lines that begin with # do not count.

    Raises ConfigError for a file that cannot be read or has no key.
    """
    lines = [line.strip() for line in read_text(path, f"`api_keys` {path}:").splitlines()]
    if keys := [line for line in lines if line and not line.startswith("#")]:
        return keys
    raise ConfigError(f"`api_keys` {path}: has no key: write one a line")


def check_keys(keys: list[str]) -> tuple[str, ...]:
    """The keys, each once. Raises ConfigError for one that no header can carry."""
    if not all(key and key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ConfigError("an API key is empty or has a character that no header carries: use printable ASCII")
    return tuple(dict.fromkeys(keys))
