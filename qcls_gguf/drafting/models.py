"""Which model a new configuration names: the given one, or of a family the largest that the machine has memory for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..config.resources import EMBEDDED, OLLAMA, PACKAGE
from ..config.words import shown
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.words import JsonObject

_LARGEST_ON_CPU = 2_000_000_000
"""a larger file makes a CPU of few cores take seconds for a text"""


class Choice(NamedTuple):
    """A model of the hub."""

    repo: str
    quantization: str | None
    """None: what the repository has"""
    size_bytes: int
    """about; what is fetched tells"""
    state_bytes: int = 0
    """of a sequence, where recurrent layers keep a state; about"""


class Family(StrEnum):
    """Families of models that a configuration may be begun with; their chat templates let them answer at once."""

    QWEN3 = "qwen3"
    QWEN35 = "qwen3.5"
    GEMMA4 = "gemma-4"
    GRANITE4 = "granite-4"
    LFM2 = "lfm2"


_QWEN3_8B, _QWEN35_9B, _GEMMA4_E4B = "Qwen/Qwen3-8B-GGUF", "unsloth/Qwen3.5-9B-GGUF", "unsloth/gemma-4-E4B-it-GGUF"
LARGEST_FIRST: dict[Family, tuple[Choice, ...]] = {
    Family.QWEN3: (
        Choice(_QWEN3_8B, "Q8_0", 8_709_518_112),
        Choice(_QWEN3_8B, "Q4_K_M", 5_027_783_488),
        Choice("Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2_500_000_000),
        Choice("Qwen/Qwen3-1.7B-GGUF", None, 1_830_000_000),
        Choice("Qwen/Qwen3-0.6B-GGUF", None, 640_000_000),
    ),
    Family.QWEN35: (
        Choice(_QWEN35_9B, "Q8_0", 9_527_502_048, 52_700_000),
        Choice(_QWEN35_9B, "Q4_K_M", 5_680_522_464, 52_700_000),
        Choice("unsloth/Qwen3.5-4B-GGUF", "Q4_K_M", 2_740_937_888, 52_700_000),
        Choice("unsloth/Qwen3.5-2B-GGUF", "Q4_K_M", 1_280_835_840, 20_200_000),
        Choice("unsloth/Qwen3.5-0.8B-GGUF", "Q8_0", 811_843_840, 20_200_000),
    ),
    Family.GEMMA4: (
        Choice(_GEMMA4_E4B, "Q8_0", 8_200_000_000),
        Choice(_GEMMA4_E4B, "Q4_K_M", 4_977_171_584),
        Choice("unsloth/gemma-4-E2B-it-GGUF", "Q4_K_M", 3_107_000_000),
    ),
    Family.GRANITE4: (
        Choice("ibm-granite/granite-4.0-h-tiny-GGUF", "Q4_K_M", 4_230_976_352, 58_100_000),
        Choice("ibm-granite/granite-4.0-h-1b-GGUF", "Q4_K_M", 901_162_208, 58_100_000),
        Choice("ibm-granite/granite-4.0-h-350m-GGUF", "Q8_0", 366_195_616, 22_600_000),
    ),
    Family.LFM2: (
        Choice("LiquidAI/LFM2-8B-A1B-GGUF", "Q4_K_M", 5_044_779_712),
        Choice("LiquidAI/LFM2-2.6B-GGUF", "Q4_K_M", 1_563_668_704),
        Choice("LiquidAI/LFM2-1.2B-GGUF", "Q4_K_M", 730_893_248),
        Choice("LiquidAI/LFM2-350M-GGUF", "Q8_0", 379_000_000),
    ),
}
"""the models that are chosen from"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A model as a configuration names it."""

    settings: JsonObject
    """the keys of its section"""
    why: str
    """for the reader"""
    has_chat_template: bool = True


def given_model(path: str | None, repo: str | None, folder: Path | None = None) -> DraftModel | None:
    """The model that was named; None where none was. A file in the configuration's folder, or below it, is named from
    there, so that both can be moved together; any other by its whole path.

    Raises ModelError for a file that is no model, and ConfigError for a path that no configuration can hold.
    """
    from ..config.schema import ModelConfig
    from ..model.find import find_model
    from ..model.header import read_header  # here, so that a command's help, which lists families, starts quickly

    if path is not None:
        is_name = path.startswith((OLLAMA, PACKAGE)) or path == EMBEDDED
        file = Path(path).expanduser().absolute()
        if is_name:
            file = find_model(ModelConfig(path=Path(path)), offline=True)
        if any("\ud800" <= character <= "\udfff" for character in str(file)):
            raise ConfigError(
                f"{shown(str(file))}: has bytes that are no UTF-8, which YAML cannot hold: rename it or give a link"
            )
        has_template = read_header(file).chat_template is not None
        why = "as given" if has_template else "as given; the file has no chat template, so the text below has no turns"
        name = path if is_name else _name_from(folder, file)
        return DraftModel(settings={"path": name}, why=why, has_chat_template=has_template)
    return None if repo is None else DraftModel(settings={"hf_repo": repo}, why="as given")


def _name_from(folder: Path | None, file: Path) -> str:
    if folder is None or not file.is_relative_to(folder):
        return str(file)
    name = str(file.relative_to(folder))
    if name.startswith("~"):  # a home folder, also with ./ before it
        return str(file)
    is_taken = name.startswith((OLLAMA, PACKAGE)) or name == EMBEDDED  # for something else
    return f"./{name}" if is_taken else name


def fitting_model(family: Family) -> DraftModel:
    """The largest model of a family that fits the free memory of the GPUs; without a GPU a small one."""
    from ..report.environment import free_memory  # as above

    room = free_memory()
    chosen = choose(room.weights_bytes, on_gpu=room.on_gpu, family=family)
    where = "of GPU memory" if room.on_gpu else "of main memory, and no GPU"
    larger = "" if room.on_gpu else "; a larger one labels better and takes longer"
    states = f", {chosen.state_bytes >> 20} MiB of states a sequence" if chosen.state_bytes else ""
    settings: JsonObject = {"hf_repo": chosen.repo}
    if chosen.quantization is not None:
        settings["quantization"] = chosen.quantization
    return DraftModel(
        settings=settings,
        why=f"about {chosen.size_bytes / 1e9:.1f} GB, fetched once{states}; chosen for {room.free_bytes / 1e9:.1f} GB "
        f"{where}{larger}. `qcls-gguf models` lists those that are here",
    )


def choose(room_bytes: int, *, on_gpu: bool, family: Family) -> Choice:
    """The largest model of a family that fits, with its states; the smallest where none does."""
    from ..engine.capacity import question_prefixes  # as above

    choices = LARGEST_FIRST[family]
    for choice in choices:
        n_states = 1 + question_prefixes(choice.state_bytes)  # all prompts of a draft have one prefix
        needed = choice.size_bytes + n_states * choice.state_bytes
        if needed <= room_bytes and (on_gpu or choice.size_bytes <= _LARGEST_ON_CPU):
            return choice
    return choices[-1]
