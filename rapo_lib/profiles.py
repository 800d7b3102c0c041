"""The settings of a run, and the three profiles that fix them; every value can be overridden by name."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from rapo_lib.parameters import convert
from rapo_lib.runs import RapoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides a run; all values are ours, the papers' are not public."""

    model: str = "embedded"  # "embedded", a folder, or a hub name
    quantization: str = "none"  # "nf4" for QLoRA
    warm_start: bool = True  # fine-tune on our supporter replies first
    warm_pairs: int | None = None  # None: all 280
    warm_epochs: float = 2.0
    prompt_tokens: int = 80  # system message and the latest whole turns
    reply_tokens: int = 28  # at most
    temperature: float = 0.8  # of sampling, in training and evaluation; at 1.0 the 135M model rambles
    turns: int = 8  # supporter turns of a dialogue
    setup_profiles: int = 16  # train people whose dialogues 01 simulates
    histories: int = 32  # pivotal histories that 02 keeps
    group: int = 4  # G, replies a group
    groups: int = 4  # groups a step
    micro_groups: int | None = None  # groups in memory at once; None: all of a step. The update is the same
    gradient_checkpointing: bool = False  # less memory, about a third more time
    steps: int = 16  # updates an arm
    save_steps: int = 4  # updates between checkpoints, 0: none; an interrupted arm goes on from the last
    learning_rate: float = 5e-4
    weight: float = 0.5  # w, share of the distillation
    teacher_note: str = "critique"
    lora_rank: int = 16
    eval_profiles: int = 16  # held-out people in self-play
    eval_histories: int = 60  # held-out histories in the blind comparison
    cell_timeout: float = 3600.0  # seconds


PROFILES: dict[str, dict[str, Any]] = {
    "smoke": {
        "warm_pairs": 16,
        "warm_epochs": 1.0,
        "turns": 2,
        "setup_profiles": 6,
        "histories": 6,
        "group": 4,
        "groups": 1,
        "steps": 2,
        "reply_tokens": 16,
        "eval_profiles": 4,
        "eval_histories": 6,
        "cell_timeout": 900.0,
    },
    "cpu": {},
    "gpu": {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "quantization": "nf4",
        "warm_start": False,
        "prompt_tokens": 1024,
        "reply_tokens": 96,
        "setup_profiles": 48,
        "histories": 96,
        "group": 8,
        "groups": 8,
        "micro_groups": 1,
        "gradient_checkpointing": True,
        "steps": 200,
        "save_steps": 10,
        "learning_rate": 5e-5,
        "eval_profiles": 40,
        "eval_histories": 120,
        "cell_timeout": 86400.0,
    },
}


def settings(profile: str, overrides: dict[str, Any] | None = None) -> Settings:
    """The settings of a profile with overrides; None leaves a value alone, an unknown name is an error."""
    if profile not in PROFILES:
        raise RapoError(f"unknown profile {profile!r}; profiles: {', '.join(PROFILES)}")
    names = {f.name for f in fields(Settings)}
    for name in overrides or {}:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise RapoError(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    chosen = {name: value for name, value in (overrides or {}).items() if value is not None}
    return Settings(**{**PROFILES[profile], **chosen})


def settings_from_text(profile: str, overrides: Mapping[str, str]) -> Settings:
    """`settings`, with values as the command line has them."""
    kinds = {f.name: f.type for f in fields(Settings)}
    values = {}
    for name, text in overrides.items():
        try:
            values[name] = convert(text, getattr(kinds[name], "__name__", str(kinds[name]))) if name in kinds else text
        except ValueError as error:
            raise RapoError(f"setting {name!r}: {error}") from None
    return settings(profile, values)
