"""The calibration tables, by hand; and the roles that a run's settings name."""

import json

import numpy as np
import pytest

from rapo_lib.chat import Answer, ChatModel, Endpoint, LocalModel, Prices, Scripted
from rapo_lib.dialogue import Turn, load_profiles, opening_history
from rapo_lib.feedback import CandidateGroup, EmbeddedJudge, Verdict
from rapo_lib.lm.calibration import agreement, calibrate_judges, calibrate_seekers
from rapo_lib.lm.judge import LMJudge
from rapo_lib.lm.roles import make_roles
from rapo_lib.lm.seeker import LMSeeker
from rapo_lib.profiles import settings
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
    with pytest.raises(RapoError, match="unknown seeker 'gpt'; known: embedded, lm"):
        make_roles(settings("smoke", {"seeker": "gpt"}), tmp_path)
    with pytest.raises(RapoError, match="nothing to replay"):
        make_roles(settings("smoke", {"judge": "lm", "lm_cache": "replay"}), tmp_path)
