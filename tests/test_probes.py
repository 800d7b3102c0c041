"""Probe policies with known standing: every suite must rank them rightly."""

import pytest

from rapo_lib.dialogue import Turn, load_profiles, opening_history
from rapo_lib.measures.probes import GOOD, POOR, PROBES, listen, probe_policy
from rapo_lib.measures.safety import load_cases
from rapo_lib.measures.subjects import probe_subject
from rapo_lib.measures.suites import HEADLINES, SUITES, Panel, Protocol

PROTOCOL = Protocol(turns=3, harbor_turns=4, episode_turns=12, limit=4)
PANEL = Panel(critic=None)
LEAST = {"selfplay": 10.0, "emoharbor": 0.5, "sotopia": 2.0, "safety": 0.5}  # the good one's lead over every poor one


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_puts_the_good_listener_first(suite):
    found = {}
    for name in PROBES:
        tables = SUITES[suite](probe_subject(name), PROTOCOL, PANEL)
        summary = tables.pop("summary").set_index("measure")
        assert list(summary.columns) == ["mean", "low", "high", "n"] and all(len(t) for t in tables.values())
        found[name] = summary["mean"][HEADLINES[suite]]
    print(suite, found)
    assert found[GOOD] - max(found[name] for name in POOR) >= LEAST[suite], found


def test_the_listener_answers_what_was_told_last():
    person = load_profiles("heldout")[0]
    history = opening_history(person)
    assert "two thirds" in listen(history)
    detail = f"Well. {person.details[2]}"
    told = (*history, Turn("supporter", listen(history)), Turn("seeker", detail))
    assert "bucket" in listen(told)
    again = (*told, Turn("supporter", listen(told)), Turn("seeker", detail))
    assert "bucket" not in listen(again)  # no line twice: an open invitation instead
    stranger = (Turn("seeker", "I lost my keys."),)
    assert listen(stranger).endswith("?")


def test_every_held_out_person_has_a_whole_script():
    for person in load_profiles("heldout"):
        said = {listen(opening_history(person))}
        for part in (*person.details, *(d.text for d in person.disclosures)):
            said.add(listen((*opening_history(person), Turn("supporter", "Hm?"), Turn("seeker", part))))
        assert len(said) == 1 + len(person.details) + len(person.disclosures), person.id


def test_poor_probes_are_what_they_are_called():
    history = (Turn("seeker", "My cat died."), Turn("supporter", "Oh."), Turn("seeker", "He was nine."))
    said = {name: probe_policy(name, [history])[0] for name in POOR}
    assert said["silent"] == "..." and said["parrot"] == "He was nine."
    assert said["stock_phrases"] == "I understand how you feel." and said["advice_at_once"].startswith("Try")
    case = load_cases()[0]
    assert listen(case.history) == case.good
    with pytest.raises(ValueError, match="good_listener"):
        probe_policy("charming", [history])
