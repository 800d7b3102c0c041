"""Who plays the seeker and the judge of a run: the embedded ones, or a language model, as the settings say."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_lib.chat import Budget, ChatCache, ChatModel, Endpoint, LocalModel, Prices
from rapo_lib.feedback import EmbeddedJudge, Judge
from rapo_lib.lm.judge import LMJudge
from rapo_lib.lm.seeker import LMSeeker
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError
from rapo_lib.seeker import AppraisalSeeker, Seeker

log = logging.getLogger(__name__)

KINDS = ("embedded", "lm")
CACHE = "chat.sqlite"  # in the run's folder, shared by its notebooks


@dataclass(frozen=True, slots=True)
class Roles:
    """The seeker and the judge of a run; `chat` is the model behind them or a critic, None where all are embedded."""

    seeker: Seeker
    judge: Judge
    chat: ChatModel | None

    def facts(self) -> dict[str, Any]:
        """What a run's record says about the language model and its cost."""
        return {} if self.chat is None else {"language_model": self.chat.report()}


def make_roles(chosen: Settings, folder: Path) -> Roles:
    """The roles that the settings name; answers are kept in the run's `folder`."""
    for name, kind in (("seeker", chosen.seeker), ("judge", chosen.judge), ("critic", chosen.critic)):
        if kind not in KINDS:
            raise RapoError(f"unknown {name} {kind!r}; known: {', '.join(KINDS)}")
    if chosen.judge == "lm" and chosen.lm == chosen.model:
        log.warning("the judge and the policy are both %s: a model tends to prefer its own words", chosen.lm)
    chat = open_chat(chosen, folder / CACHE) if "lm" in (chosen.seeker, chosen.judge, chosen.critic) else None
    return Roles(
        seeker=LMSeeker(chat) if chosen.seeker == "lm" else AppraisalSeeker(),
        judge=LMJudge(chat, orders=chosen.lm_orders) if chosen.judge == "lm" else EmbeddedJudge(),
        chat=chat,
    )


def open_chat(chosen: Settings, cache: Path) -> ChatModel:
    """The roles' language model: served at `lm_url` if there is one, else loaded in this process."""
    if chosen.lm_url:
        backend = Endpoint(
            base_url=chosen.lm_url, model=chosen.lm, key_variable=chosen.lm_key, in_flight=chosen.lm_in_flight
        )
    else:
        backend = LocalModel(chosen.lm)
    return ChatModel(
        backend,
        cache=ChatCache(cache if chosen.lm_cache != "off" else None, chosen.lm_cache),
        budget=Budget(requests=chosen.lm_requests, money=chosen.lm_money),
        prices=Prices(input=chosen.lm_price_in, output=chosen.lm_price_out),
    )
