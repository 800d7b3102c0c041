"""Probe policies whose standing is known beforehand: a suite that ranks them wrongly measures something else.

Four are poor on purpose. The good listener follows a script that we wrote for each held-out person and looks up what
they said last; in safety cases it says the case's good reply, as an agent with a goal the scenario's demonstration.
Probes are anchors of a scale: nothing is ever trained, tuned or selected on them or on their script.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.measures.safety import load_cases
from rapo_lib.sotopia.scenarios import Scenario

GOOD = "good_listener"
POOR = ("silent", "parrot", "stock_phrases", "advice_at_once")
PROBES = (GOOD, *POOR)
STOCK = (
    "I'm so sorry to hear that.",
    "I understand how you feel.",
    "You are not alone.",
    "Stay strong.",
    "Everything will be okay.",
    "I'm here for you.",
    "Your feelings are valid.",
    "Time heals all wounds.",
)
ADVICE = (
    "You should talk to a friend about it.",
    "Try going for a walk every morning.",
    "You could write a list of options.",
    "Maybe see a therapist.",
    "Try to get more sleep.",
    "You should set some boundaries.",
    "Make a plan for the week.",
    "Try meditation for ten minutes.",
)


def probe_policy(name: str, histories: Sequence[Sequence[Turn]], seed: int = 0) -> list[str]:
    """One reply of the probe `name` to each history; the seed changes nothing."""
    match name:
        case "silent":
            return ["..." for _ in histories]
        case "parrot":
            return [last_said(history) for history in histories]
        case "stock_phrases":
            return [STOCK[_turn(history) % len(STOCK)] for history in histories]
        case "advice_at_once":
            return [ADVICE[_turn(history) % len(ADVICE)] for history in histories]
        case "good_listener":
            return [listen(history) for history in histories]
    raise ValueError(f"unknown probe {name!r}; probes: {', '.join(PROBES)}")


def probe_agent(name: str, items: Sequence[tuple[Scenario, Sequence[Turn]]], seed: int = 0) -> list[str]:
    """The same as an agent with a goal: the demonstration of each scenario for the good one."""
    if name != GOOD:
        return probe_policy(name, [history for _, history in items], seed)
    return [(*s.demonstration, "Deal.")[min(_turn(history), len(s.demonstration))] for s, history in items]


def listen(history: Sequence[Turn]) -> str:
    """What the script says to the part of their story that this person told last, else an open invitation."""
    if case := _good_answers().get(tuple((t.speaker, t.text) for t in history)):
        return case
    script, spare = _scripts()
    said, last = [t.text for t in history if t.speaker == "supporter"], last_said(history)
    for part, reply in script.get(history[0].text, {}).items():
        if part in last and reply not in said:
            return reply
    return next((line for line in spare if line not in said), spare[_turn(history) % len(spare)])


def last_said(history: Sequence[Turn]) -> str:
    """The seeker's last words."""
    return next((t.text for t in reversed(history) if t.speaker == "seeker"), "")


def _turn(history: Sequence[Turn]) -> int:
    """Supporter turns so far."""
    return sum(t.speaker == "supporter" for t in history)


@cache
def _scripts() -> tuple[Mapping[str, Mapping[str, str]], tuple[str, ...]]:
    """By opening: part of the story -> reply, what is held back first; and the lines for everybody."""
    text = (resources.files("rapo_lib") / "data" / "listener.jsonl").read_text("utf-8")
    written = {record["id"]: record["replies"] for record in map(json.loads, text.splitlines())}
    spare = tuple(written.pop("spare").values())
    scripts = {}
    for person in (p for p in load_profiles("heldout") if p.id in written):
        parts = {f"d{i}": d.text for i, d in enumerate(person.disclosures)} | {
            str(i): detail for i, detail in enumerate(person.details)
        }
        own = written[person.id]
        scripts[person.opening] = {part: own[key] for key, part in parts.items()} | {person.opening: own["opening"]}
    return scripts, spare


@cache
def _good_answers() -> Mapping[tuple[tuple[str, str], ...], str]:
    return {tuple((t.speaker, t.text) for t in case.history): case.good for case in load_cases()}
