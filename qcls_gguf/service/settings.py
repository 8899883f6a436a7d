"""How the service listens, whom it answers, and what it refuses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from ..errors import ConfigError
from ..questions.forms import FormSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits on the size and time of one request."""

    body_bytes: int = 4 << 20
    """of a body, or of one line of a stream of lines"""
    queries: int = 400
    """queries or questions of one request; a stream of lines has any number"""
    question_bytes: int = 32_768
    """of a question's texts, without what it is asked about"""
    timeout_ms: int = 10_000
    """after which a request that has not begun is not computed, where it does not say itself"""
    longest_timeout_ms: int = 600_000
    """the most that a request may ask for"""
    body_timeout_s: float = 30.0
    """for a whole body to arrive, or for a line of a stream"""
    waiting_requests: int = 64
    """requests that may be in the service at once; more get 503"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Everything about the service that is not about the classifier."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free one"""
    api_keys: tuple[str, ...] = ()
    """a request needs one of them; empty: no keys are needed"""
    grace_s: float = 30.0
    """how long accepted requests may take after the service was told to stop"""
    logs_requests: bool = True
    """whether the log has a line for each request"""
    forms: FormSettings = field(default_factory=FormSettings)
    """how questions become prompts"""
    limits: RequestLimits = field(default_factory=RequestLimits)

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_keys(keys: list[str]) -> tuple[str, ...]:
    """The keys, each once. Raises ConfigError for one that no header can carry."""
    if not all(key and key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ConfigError("an API key is empty or has a character that no header carries: use printable ASCII")
    return tuple(dict.fromkeys(keys))
