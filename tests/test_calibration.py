"""The calibration tables, by hand; and the roles that a run's settings name."""

import json

import numpy as np
import pytest

from rapo_lib.chat import Answer, ChatModel, Endpoint, LocalModel, Prices, Scripted
from rapo_lib.dialogue import Turn, load_profiles, opening_history
from rapo_lib.feedback import CandidateGroup, EmbeddedJudge, Verdict
from rapo_lib.lm.calibration import (
    agreement,
    calibrate_judges,
    calibrate_seekers,
    known_groups,
    objections,
    speak_english,
)
from rapo_lib.lm.judge import LMJudge
from rapo_lib.lm.roles import make_roles
from rapo_lib.lm.seeker import LMSeeker
from rapo_lib.profiles import ROLES, role_values, settings
from rapo_lib.runs import RapoError
from rapo_lib.seeker import AppraisalSeeker, ProbeSeeker, probe_reply

HISTORY = (Turn("seeker", "My exam is on Friday."),)
GROUPS = [CandidateGroup(HISTORY, (f"bad {k}", f"fair {k}", f"good {k}"), ("No.", "Hm.", "Yes.")) for k in range(4)]
FELT = [(30.0, 40.0, 50.0)] * 4
PEOPLE = ["a", "a", "b", "b"]


def judge_by(rank, **options):
    """A judge whose model ranks by `rank`, at 100 tokens in and 10 out a question."""

    def script(request):
        shown = [json.loads(line) for line in request.messages[1]["content"].splitlines() if '"candidate"' in line]
        order = sorted(shown, key=lambda c: rank(c))
        ranking = [c["candidate"] for c in order]
        one = {str(n): {"critique": "x", "score": 10 - ranking.index(n)} for n in sorted(ranking)}
        return Answer(json.dumps({"candidates": one, "ranking": ranking}), "stop", 100, 10)

    return LMJudge(ChatModel(Scripted(script), prices=Prices(input=1.0, output=10.0)), **options)


def test_a_judge_that_knows_and_a_judge_that_goes_by_place():
    table = calibrate_judges(
        {
            "knows": judge_by(lambda c: ("Yes.", "Hm.", "No.").index(c["reaction"])),
            "opposite": judge_by(lambda c: ("No.", "Hm.", "Yes.").index(c["reaction"])),
            "place": judge_by(lambda c: c["candidate"]),
        },
        GROUPS, FELT, PEOPLE, canary_groups=1,
    ).set_index("judge")  # fmt: skip
    assert table.loc["knows", ["agreement", "abstained", "flips", "contradicted", "lifted"]].tolist() == [1, 0, 0, 0, 0]
    assert table.agreement["opposite"] == -1
    assert table.loc["place", ["abstained", "flips"]].tolist() == [1, 1] and np.isnan(table.agreement["place"])
    assert table.tokens["knows"] == 2 * 110 and table.cost["knows"] == pytest.approx(2 * (100 + 100) / 1e6)


def test_the_embedded_judge_stands_in_the_same_table():
    group = CandidateGroup(HISTORY, ("Make a plan.", "You are scared of Friday."), ("No.", "Yes, exactly, thank you."))
    table = calibrate_judges({"embedded": EmbeddedJudge()}, [group], [(30.0, 40.0)], ["a"], canary_groups=1)
    assert table.agreement[0] == 1 and np.isnan(table.flips[0]) and table.tokens[0] == 0


def test_agreement_leaves_out_what_is_unknown():
    verdict = Verdict((1.0, 0.0, -1.0), ("",) * 3, None, (0, 1, 2))
    assert agreement(verdict, (50.0, np.nan, 40.0)) == 1.0
    assert np.isnan(agreement(verdict, (50.0, np.nan, 50.0)))


def test_seekers_over_the_truth():
    person = load_profiles("train")[0]
    history = opening_history(person)
    items = [(person, history, probe_reply(history), 0), (person, history, "No.", 0), (person, history, "Flip.", 0)]
    said = "I still think of the laboratory in the mornings."

    def script(request):
        reply = json.loads(request.messages[1]["content"].splitlines()[-1])
        value = {"change": 3 if reply.endswith("?") else -1, "reaction": said}
        return "no" if reply == "Flip." else json.dumps(value)

    lm = LMSeeker(ChatModel(Scripted(script), retries=0))
    table = calibrate_seekers({"lm": lm, "truth": ProbeSeeker()}, ProbeSeeker(), items).set_index("seeker")
    assert table.loc["lm", ["correlation", "same_sign", "spread"]].tolist() == pytest.approx([1, 1, 2])
    assert table.marked["lm"] == pytest.approx(1 / 3) and table.lift["lm"] == pytest.approx((3 - 6 + -1 + 4) / 2)
    assert table.loc["truth", ["correlation", "lift", "marked"]].tolist() == pytest.approx([1, 0, 0])


# ---------------------------------------------------------------------------------------------- settings


def test_the_embedded_roles_are_the_default_and_need_no_model(tmp_path):
    roles = make_roles(settings("smoke"), tmp_path)
    assert isinstance(roles.seeker, AppraisalSeeker) and isinstance(roles.judge, EmbeddedJudge)
    assert roles.chat is None and roles.facts() == {} and not list(tmp_path.iterdir())


def test_language_model_roles_share_one_model(tmp_path):
    roles = make_roles(settings("smoke", {"seeker": "lm", "judge": "lm", "lm_orders": 4}), tmp_path)
    assert roles.judge.orders == 4
    assert isinstance(roles.seeker, LMSeeker) and roles.seeker.chat is roles.judge.chat is roles.chat
    assert isinstance(roles.chat.backend, LocalModel) and roles.chat.cache.path == tmp_path / "chat.sqlite"
    given = {"judge": "lm", "lm_url": "http://localhost:1/v1", "lm": "m", "lm_key": "SOME_KEY", "lm_cache": "off"}
    roles = make_roles(settings("smoke", given), tmp_path)
    assert isinstance(roles.seeker, AppraisalSeeker) and isinstance(roles.chat.backend, Endpoint)
    assert json.loads(json.dumps(roles.facts()))["language_model"]["sent"] == 0
    assert make_roles(settings("smoke", {"selector": "lm"}), tmp_path).select.__self__.chat is not None
    with pytest.raises(RapoError, match="unknown seeker 'gpt'; known: embedded, lm"):
        make_roles(settings("smoke", {"seeker": "gpt"}), tmp_path)
    with pytest.raises(RapoError, match="nothing to replay"):
        make_roles(settings("smoke", {"judge": "lm", "lm_cache": "replay"}), tmp_path)
    with pytest.raises(RapoError, match="unknown resistance 'iron'; known: low, usual, high"):
        make_roles(settings("smoke", {"seeker": "lm", "lm_resistance": "iron"}), tmp_path)


def test_every_setting_of_the_language_model_arrives(tmp_path):
    given = {"lm_requests": 7, "lm_money": 0.5, "lm_price_in": 1.0, "lm_price_out": 4.0, "lm_tokens": 2000,
             "lm_resistance": "high", "lm_url": "http://localhost:1/v1", "lm_in_flight": 3,
             "lm_key": "A_KEY"}  # fmt: skip
    given["lm_endpoint"] = {"timeout": 300, "structured": "none", "extra": {"top_k": 5}}
    roles = make_roles(settings("smoke", {"seeker": "lm", "judge": "lm", "selector": "lm", **given}), tmp_path)
    assert (roles.chat.budget.requests, roles.chat.budget.money) == (7, 0.5)
    assert roles.chat.usage.prices == Prices(input=1.0, output=4.0)
    assert (roles.chat.backend.in_flight, roles.chat.backend.key_variable) == (3, "A_KEY")
    assert roles.seeker.max_tokens == roles.judge.max_tokens == roles.select.__self__.max_tokens == 2000
    assert roles.seeker.resistance == "high"
    assert (roles.chat.backend.timeout, roles.chat.backend.structured) == (300, "none")
    assert roles.chat.backend.identity["extra"] == {"top_k": 5}


@pytest.mark.parametrize(
    ("options", "why"),
    [({"tiemout": 3}, "unknown option 'tiemout'; known: revision, timeout"), ({"base_url": "http://x"}, "unknown"),
     ({"structured": "yaml"}, "json_schema or json_object or none"), ({"timeout": "long"}, "numbers"),
     ({"extra": [1]}, "must be an object"), ({"extra": {"api_key": "sk-planted"}}, "must hold no key")],
)  # fmt: skip
def test_wrong_options_of_an_endpoint_are_one_clear_error(tmp_path, options, why):
    given = {"judge": "lm", "lm_url": "http://localhost:1/v1", "lm_endpoint": options}
    with pytest.raises(RapoError, match=why) as caught:
        make_roles(settings("smoke", given), tmp_path)
    assert "planted" not in str(caught.value)


def test_the_gpu_profile_wants_a_model_to_be_named(tmp_path):
    chosen = settings("gpu")
    assert chosen.seeker == chosen.judge == chosen.selector == "lm" and chosen.any_language
    with pytest.raises(RapoError, match="none is named: set `lm` to .* and `lm_url` to"):
        make_roles(chosen, tmp_path)
    named = settings("gpu", {"lm": "m", "lm_url": "http://localhost:1/v1"})
    assert isinstance(make_roles(named, tmp_path).judge, LMJudge)
    assert make_roles(settings("gpu", dict.fromkeys(ROLES, "embedded")), tmp_path).chat is None


def test_a_judge_of_the_policys_own_kind_is_warned_about(tmp_path, caplog):
    make_roles(settings("smoke", {"judge": "lm"}), tmp_path)  # both embedded
    assert "a model tends to prefer its own words" in caplog.text


def test_only_parameters_about_roles_are_taken_from_a_notebook():
    scope = {"seeker": "lm", "lm_orders": None, "lm": "m", "groups": 3, "lmx": 1, "turns": 2}
    assert role_values(scope) == {"seeker": "lm", "lm_orders": None, "lm": "m"}


@pytest.mark.parametrize(
    "given",
    [{"lm_key": "sk-planted-1"}, {"lm_url": "http://sk-planted-1@x/v1"}, {"lm_url": "http://x/v1?key=sk-planted-1"},
     {"lm_url": "http://x/v1#sk-planted-1"}, {"lm_url": "sk-planted-1"}, {"lm_url": "http://x:sk-planted-1/v1"}],
)  # fmt: skip
def test_settings_take_no_key_and_do_not_repeat_it(given):
    with pytest.raises(RapoError) as caught:
        settings("smoke", given)
    assert "planted" not in str(caught.value) and caught.value.__cause__ is None


# ---------------------------------------------------------------------------------------------- good enough?


def row(**numbers):
    good = {
        "agreement": 0.4,
        "low": 0.2,
        "abstained": 0.0,
        "flips": 0.1,
        "contradicted": 0.0,
        "lifted": 0.0,
        "tokens": 9,
    }
    return {**good, **numbers}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({}, ""),
        ({"tokens": 0, "flips": np.nan, "contradicted": np.nan}, ""),  # no language model: it is shown no orders
        ({"flips": 0.5}, "flips 0.50 > 0.25"),
        ({"abstained": 0.3, "lifted": 0.2}, "abstained 0.30 > 0.2; lifted 0.20 > 0.1"),
        ({"low": -0.1}, "agreement may be chance"),
        ({"low": np.nan}, "too few people to tell"),
        ({"agreement": np.nan, "low": np.nan}, "no verdict to compare"),
        ({"lifted": np.nan, "flips": np.nan}, "no canary tried; flips unknown"),
    ],
)
def test_what_speaks_against_a_judge_is_named(numbers, said):
    assert objections(row(**numbers)) == said


def test_a_judge_is_laid_over_the_embedded_truth_unless_people_speak_no_english():
    person = load_profiles("train")[0]
    pairs, replies = [(person, opening_history(person))], [("What hurts most about it?", "Make a list.")]
    groups, felt = known_groups(ProbeSeeker(), pairs, replies, 0)
    truth = AppraisalSeeker().react_batch([(*pairs[0], reply, 0) for reply in replies[0]])
    assert groups[0].reactions == tuple(r.text for r in truth) and felt == [[r.emotion for r in truth]]
    foreign = [(person, (Turn("seeker", "我很难过，什么都不想做。"),))]
    assert not speak_english(foreign)
    assert "You did not ask" in known_groups(ProbeSeeker(), foreign, replies, 0)[0][0].reactions[1]
