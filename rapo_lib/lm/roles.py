"""Who plays the roles of a run: the embedded seeker, judge and selector, or a language model, as the settings say."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_lib.chat import Budget, ChatCache, ChatModel, Endpoint, LocalModel, Prices
from rapo_lib.feedback import EmbeddedJudge, Judge
from rapo_lib.lm.judge import LMJudge
from rapo_lib.lm.seeker import LMSeeker
from rapo_lib.lm.selection import LMSelector
from rapo_lib.profiles import ROLES, Settings
from rapo_lib.runs import RapoError
from rapo_lib.seeker import AppraisalSeeker, Seeker
from rapo_lib.selection import PivotalTurn, select

log = logging.getLogger(__name__)

KINDS = ("embedded", "lm")
CACHE = "chat.sqlite"  # in the run's folder, shared by its notebooks
OPTIONS = ("revision", "timeout", "retries", "structured", "token_limit", "extra")
UNNAMED = (
    "a language model plays the seeker, the judge or the selector, but none is named: set `lm` to its name at an "
    "OpenAI-compatible endpoint, and `lm_url` to that endpoint; or `lm` alone to a folder or hub name, to load it in "
    "this process; or seeker, judge and selector to 'embedded'"
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Seeker, judge and turn selection of a run; `chat` is the model behind them, None where all are embedded."""

    seeker: Seeker
    judge: Judge
    select: Callable[..., list[PivotalTurn]]  # (dialogues, top, per_dialogue, min_change), as `selection.select`
    chat: ChatModel | None

    @property
    def any_language(self) -> bool:
        """Whether people may speak another language than English: the embedded seeker and judge know no other."""
        return isinstance(self.seeker, LMSeeker) and isinstance(self.judge, LMJudge)

    def facts(self) -> dict[str, Any]:
        """What a run's record says about the language model, its use and cost; leaves the cache as one closed file."""
        if self.chat is None:
            return {}
        self.chat.cache.close()
        return {"language_model": self.chat.report()}


def make_roles(chosen: Settings, folder: Path) -> Roles:
    """The roles that the settings name; answers are kept in the run's `folder`. A RapoError says what is missing."""
    kinds = {role: getattr(chosen, role) for role in ROLES}
    for role, kind in kinds.items():
        if kind not in KINDS:
            raise RapoError(f"unknown {role} {kind!r}; known: {', '.join(KINDS)}")
    if chosen.judge == "lm" and chosen.lm == chosen.model:
        log.warning("the judge and the policy are both %s: a model tends to prefer its own words", chosen.lm)
    chat = open_chat(chosen, folder / CACHE) if "lm" in kinds.values() else None
    room = {} if chosen.lm_tokens is None else {"max_tokens": chosen.lm_tokens}
    return Roles(
        seeker=LMSeeker(chat, resistance=chosen.lm_resistance, **room) if chosen.seeker == "lm" else AppraisalSeeker(),
        judge=LMJudge(chat, orders=chosen.lm_orders, **room) if chosen.judge == "lm" else EmbeddedJudge(),
        select=LMSelector(chat, **room).select if chosen.selector == "lm" else select,
        chat=chat,
    )


def open_chat(chosen: Settings, cache: Path) -> ChatModel:
    """The roles' language model: served at `lm_url` if there is one, else loaded in this process."""
    if not chosen.lm:
        raise RapoError(UNNAMED)
    if chosen.lm_url:
        backend = Endpoint(
            base_url=chosen.lm_url,
            model=chosen.lm,
            key_variable=chosen.lm_key,
            in_flight=chosen.lm_in_flight,
            **endpoint_options(chosen.lm_endpoint or {}),
        )
    else:
        backend = LocalModel(chosen.lm)
    return ChatModel(
        backend,
        cache=ChatCache(cache if chosen.lm_cache != "off" else None, chosen.lm_cache),
        budget=Budget(requests=chosen.lm_requests, money=chosen.lm_money),
        prices=Prices(input=chosen.lm_price_in, output=chosen.lm_price_out),
    )


def endpoint_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an endpoint that have no setting of their own; an unknown one is an error."""
    if unknown := sorted(set(given) - set(OPTIONS)):
        raise RapoError(f"lm_endpoint: unknown option {unknown[0]!r}; known: {', '.join(OPTIONS)}")
    return dict(given)
