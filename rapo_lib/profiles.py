"""The settings of a run, and the three profiles that fix them; every value can be overridden by name."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any

from rapo_lib.chat.endpoint import check_address, check_key_name
from rapo_lib.parameters import convert
from rapo_lib.runs import RapoError, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides a run; all values are ours, the papers' are not public."""

    model: str = "embedded"  # "embedded", a folder, or a hub name
    quantization: str = "none"  # "nf4" for QLoRA
    warm_start: bool = True  # fine-tune on our supporter replies first
    warm_pairs: int | None = None  # None: all 540
    warm_epochs: float = 1.0
    prompt_tokens: int = 80  # system message and the latest whole turns
    reply_tokens: int = 28  # at most
    temperature: float = 0.7  # of sampling, in training and evaluation; higher and the 135M model rambles
    turns: int = 8  # supporter turns of a dialogue
    setup_profiles: int = 32  # train people whose dialogues 01 simulates
    histories: int = 96  # pivotal histories that 02 keeps
    group: int = 4  # G, replies a group
    groups: int = 8  # groups a step
    micro_groups: int = 4  # groups in memory at once, at most; the update is the same
    gradient_checkpointing: bool = False  # less memory, about a third more time
    steps: int = 24  # updates an arm
    save_steps: int = 4  # updates between checkpoints, 0: none; an interrupted arm goes on from the last
    learning_rate: float = 5e-4
    weight: float = 0.3  # w, share of the distillation
    policy_scale: float = 1.0  # times the policy term; 1 - w at w = 0 is the full arm without its verbal half
    beta: float = 0.0  # weight of the KL to the start
    teacher_note: str = "critique"  # or critique_and_reaction, critique_and_sibling
    prefetch: bool = False  # ask about an update's replies while the one before trains; for roles behind an endpoint
    lora_rank: int = 16
    eval_profiles: int = 40  # held-out people in self-play
    eval_histories: int = 160  # held-out histories in the blind comparison
    future_histories: int = 48  # train histories whose replies 06 looks beyond; half as many held-out ones measure it
    futures: int = 2  # m, continuations of each reply
    horizon: int = 3  # k, turns of each, the reply being the first
    seeker: str = "embedded"  # or "lm", a language model
    judge: str = "embedded"  # or "lm"
    selector: str = "embedded"  # or "lm": who looks back over dialogues for pivotal turns
    critic: str = "embedded"  # or "lm": who says how far a conversation has come
    lm: str = "embedded"  # the roles' language model: embedded, a folder, a hub name, or its name at lm_url
    lm_url: str = ""  # an OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; "": in this process
    lm_key: str = ""  # NAME of the environment variable with the endpoint's key
    lm_endpoint: dict | None = None  # more of how to ask it, by the names of `chat.Endpoint`: timeout, structured, ...
    lm_in_flight: int = 16  # questions at once
    lm_tokens: int | None = None  # room for an answer (judge: a candidate), thoughts included; None: 320, 160, 600
    lm_resistance: str = "usual"  # low, usual or high: how hard the people it plays are to help
    lm_orders: int = 2  # orders in which the judge sees a group; 1 hides that a model goes by the place
    lm_cache: str = "read_write"  # off, read_write or replay (no model is asked)
    lm_requests: int | None = None  # budget of one notebook: questions
    lm_money: float | None = None  # budget of one notebook: money at the prices below
    lm_price_in: float = 0.0  # per million tokens
    lm_price_out: float = 0.0
    cell_timeout: float = 3600.0  # seconds

    def __post_init__(self) -> None:
        check_key_name(self.lm_key)
        check_address(self.lm_url)
        if self.lm_tokens is not None and self.lm_tokens < 1:
            raise RapoError(f"lm_tokens must be 1 or more, not {self.lm_tokens}")

    @property
    def any_language(self) -> bool:
        """Whether people and dialogues may be in another language than English: the embedded roles know no other."""
        return self.seeker == self.judge == self.selector == "lm"

    @property
    def groups_at_once(self) -> int:
        """The groups of a micro-batch: the largest divisor of `groups` up to `micro_groups`."""
        most = max(1, min(self.micro_groups, self.groups))
        return next(size for size in range(most, 0, -1) if self.groups % size == 0)


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
        "future_histories": 6,
        "horizon": 2,
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
        "future_histories": 96,
        "futures": 4,
        "horizon": 6,
        "seeker": "lm",
        "judge": "lm",
        "selector": "lm",
        "critic": "lm",
        "lm": "",  # which model is for the user to say: the 135M one is no judge
        "cell_timeout": 86400.0,
    },
}

ROLES = ("seeker", "judge", "selector", "critic")


def role_values(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a notebook's parameters that say who plays which role: `role_values(globals())` right after them."""
    return {f.name: scope[f.name] for f in fields(Settings) if is_role_value(f.name) and f.name in scope}


def is_role_value(name: str) -> bool:
    """Whether a setting is about the roles."""
    return name in ROLES or name == "lm" or name.startswith("lm_")


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


def completed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings with those that came later at their defaults: a new setting changes nothing until it is set."""
    return {**plain(asdict(Settings())), **record}


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
