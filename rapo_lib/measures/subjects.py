"""Who is evaluated (a model, an adapter, a served model, a probe) and who judges (embedded or a language model)."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.chat import ChatCache, ChatModel, Endpoint, Prices
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.foresight.critic import make_critic
from rapo_lib.lm.prompts import load_prompt
from rapo_lib.lm.roles import open_chat
from rapo_lib.lm.supporter import Served
from rapo_lib.lm.user import ROLES, LMUser
from rapo_lib.measures.emoharbor import EmbeddedUser
from rapo_lib.measures.probes import PROBES, probe_agent, probe_policy
from rapo_lib.measures.suites import Panel, Protocol, Subject
from rapo_lib.models import load_adapter, load_model
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError
from rapo_lib.sotopia.episode import ModelAgent

PROBE = "probe:"  # before the name of a probe policy, where a model is asked for
SERVED_CACHE, PANEL_CACHE = "supporter.sqlite", "panel.sqlite"
LANGUAGE = "en"  # of our people and scenarios


def load_subject(model: str, adapter: Path | None, protocol: Protocol) -> Subject:
    """A model (embedded, a folder or a hub name), with a trained adapter folder if given; or `probe:NAME`."""
    if model.startswith(PROBE):
        return probe_subject(model.removeprefix(PROBE))
    if adapter is not None and protocol.people == "all":
        raise RapoError("an adapter was trained on some of the 100 people; evaluate it on the held-out ones")
    loaded, tokenizer = load_model(model)
    if adapter is not None:
        loaded = load_adapter(loaded, adapter).eval()
    return model_subject(loaded, tokenizer, protocol)


def model_subject(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, protocol: Protocol) -> Subject:
    """A causal language model with the protocol's limits."""
    common = {
        "model": model,
        "tokenizer": tokenizer,
        "reply_tokens": protocol.reply_tokens,
        "temperature": protocol.temperature,
    }
    return Subject(policy=ModelPolicy(**common, prompt_tokens=protocol.prompt_tokens), agent=ModelAgent(**common))


def probe_subject(name: str) -> Subject:
    """A policy with known standing."""
    if name not in PROBES:
        raise RapoError(f"unknown probe {name!r}; probes: {', '.join(PROBES)}")
    return Subject(policy=partial(probe_policy, name), agent=partial(probe_agent, name))


def served_subject(
    endpoint: Endpoint, protocol: Protocol, cache: Path | None = None, prices: Prices | None = None
) -> Subject:
    """The model behind an OpenAI-compatible endpoint; answers are kept in `cache`."""
    kept = ChatCache(cache) if cache else None
    chat = ChatModel(endpoint, cache=kept, prices=prices, retries=0)
    served = Served(chat=chat, reply_tokens=protocol.reply_tokens, temperature=protocol.temperature)
    return Subject(policy=served.policy, agent=served.agent, spent=partial(counters, chat))


def make_panel(user: str, critic: str, chosen: Settings, cache: Path) -> Panel:
    """The panel: `user` "embedded" or "lm", `critic` "embedded", "lm" or "none"; the language model as in `chosen`."""
    for role, kind, known in (("user", user, ("embedded", "lm")), ("critic", critic, ("embedded", "lm", "none"))):
        if kind not in known:
            raise RapoError(f"unknown {role} {kind!r}; known: {', '.join(known)}")
    chat = open_chat(chosen, cache) if "lm" in (user, critic) else None
    return Panel(
        user=LMUser(chat) if user == "lm" else EmbeddedUser(),
        critic=None if critic == "none" else make_critic(critic, chat),
        card={
            "user": described(chat, ROLES) if user == "lm" else user,
            "critic": described(chat, ("critic",)) if critic == "lm" else critic,
        },
        spent=partial(counters, chat) if chat else dict,
    )


def described(chat: ChatModel, prompts: tuple[str, ...]) -> dict[str, Any]:
    """A language model in a role, as a card names it: what decides its answers, and the prompts with their hashes."""
    tags = [load_prompt(name, LANGUAGE).tag for name in prompts]
    return {"model": dict(chat.backend.identity), "prompts": tags}


def counters(chat: ChatModel) -> Mapping[str, float]:
    """What a language model has been asked and has cost so far."""
    use = chat.usage
    return {
        "questions": use.sent,
        "from cache": use.cached,
        "input tokens": use.input_tokens,
        "output tokens": use.output_tokens,
        "unmetered answers": use.unmetered,
        "money": use.cost,
    }
