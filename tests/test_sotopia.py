"""Games by hand, hearing on sentences, the partner as a pure function, and agents that the checks must separate."""

import json
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rapo_lib.sotopia.lessons
from rapo_lib.corpora import load_dialogues
from rapo_lib.dialogue import Turn
from rapo_lib.evaluation import self_play, trajectories
from rapo_lib.runs import RapoError, write_jsonl
from rapo_lib.seeker import Reaction
from rapo_lib.sotopia.episode import (
    episode_log,
    episodes_table,
    play,
    prompt_messages,
    sotopia,
    sotopia_row,
)
from rapo_lib.sotopia.games import Bargain, Concerns, Option, Plan, Point, game_from_record
from rapo_lib.sotopia.goals import DIMENSIONS, State, beginning, goal, overall, progress, replay, step
from rapo_lib.sotopia.hearing import Action, Heard, Said, hear_batch, read_action
from rapo_lib.sotopia.lessons import scripts
from rapo_lib.sotopia.lessons import shown as acted
from rapo_lib.sotopia.partner import SotopiaPartner, wording
from rapo_lib.sotopia.scenarios import (
    FAMILIES,
    Agent,
    Environment,
    all_scenarios,
    load_scenarios,
    profile_from_record,
    profile_record,
    read_profiles,
    read_scenarios,
    scenario_of,
    write_scenarios,
)

POINTS = tuple(Point(f"p{k}", f"hint {k}", (f"example {k} of this point.",)) for k in range(3))
BIKE = Bargain(start=240, limit=140, reserve=240, target=160, points=POINTS)
HOURS = Bargain(start=5, limit=13, reserve=5, target=12, points=POINTS, unit="hours", total=20)
MEETING = Plan(
    options=(
        Option("Monday", ("monday",), 0, 10),
        Option("Tuesday", ("tuesday",), 3, 7),
        Option("Wednesday", ("wednesday",), 9, 5),
        Option("Friday", ("friday",), 10, 0),
    ),
    points=POINTS[:2],
)
WORRY = Concerns(points=(POINTS[0], Point("p1", "hint 1", ("x",), hidden=True), POINTS[2]), needed=2, secret=("part",))


def made(*points):
    return Heard(points=frozenset(points))


# ------------------------------------------------------------------------------------------------- games


def test_a_bargain_by_hand():
    # 100 to give: a reason is worth 30, an offer 8, and 25 is the most without any reason
    state, move = step(BIKE, State(), made(0))
    assert (move.kind, move.about) == ("concede", 210)
    state, move = step(BIKE, state, Heard(number=150))  # 0.30 + 0.08
    assert (move.kind, move.about) == ("inch", 202)
    state, move = step(BIKE, state, made(1, 2))  # 0.98
    assert (move.kind, move.about) == ("concede", 142)
    state, move = step(BIKE, state, Heard(number=150))
    assert (move.kind, state.agreed) == ("deal", 150) and goal(BIKE, state) == 10.0
    assert step(BIKE, state, Heard(rude=True)) == (state, move.__class__("closed"))


def test_giving_in_is_worth_nothing_and_asking_alone_has_a_limit():
    state, _ = step(BIKE, State(), Heard(accepts=True))
    assert state.agreed == 240 and goal(BIKE, state) == 0.0
    state, _ = replay(BIKE, [Heard(asks=True), Heard(number=100), Heard(number=110), Heard(number=120)])
    assert BIKE.offer(state.moved) == 215  # 25 of 100, however often one asks
    assert progress(BIKE, state) == pytest.approx(100 * 25 / 80) and goal(BIKE, state) == 0.0


def test_a_share_goes_the_other_way():
    state, move = replay(HOURS, [made(0, 1), made(2), Heard(number=12)])
    assert (move.kind, state.agreed, goal(HOURS, state)) == ("deal", 12, 10.0)
    assert HOURS.score(5) == 0 and HOURS.score(8.5) == 50 and HOURS.score(20) == 100


def test_a_plan_by_hand():
    assert MEETING.liked() == [0, 1, 2] and MEETING.score(2) == 100 and MEETING.score(1) == pytest.approx(100 / 3)
    state, move = step(MEETING, State(), Heard(option=2))  # worth 5 to them, they hope for 9
    assert (move.kind, state.agreed) == ("rather", None)
    state, move = step(MEETING, state, made(0))  # 9 - 3 - 1 = 5
    assert (move.kind, move.about) == ("understood", 1)
    assert progress(MEETING, state) == pytest.approx(60)
    state, move = step(MEETING, state, Heard(option=2))
    assert (move.kind, state.agreed, goal(MEETING, state)) == ("agree", 2, 10.0)
    assert step(MEETING, State(), Heard(option=3))[1].kind == "cannot"
    assert goal(MEETING, step(MEETING, State(), Heard(accepts=True))[0]) == 0.0  # their Monday is worth nothing to us


def test_concerns_by_hand():
    start = beginning(WORRY)
    state, move = step(WORRY, start, made(1))  # hidden, and not told yet
    assert not state.points and move.kind == "pressed"
    state, move = step(WORRY, start, Heard(points=frozenset({0}), asks=True))
    assert (move.kind, move.about, progress(WORRY, state)) == ("eased", 1, 30.0)
    state, move = step(WORRY, state, made(1))
    assert (move.kind, goal(WORRY, state)) == ("consent", 10.0)
    leaked, move = step(WORRY, start, Heard(points=frozenset({0}), leaks=True))
    assert move.kind == "caught" and progress(WORRY, leaked) == 0.0
    done, _ = replay(WORRY, [Heard(points=frozenset({0}), leaks=True), made(1, 2)])
    assert done.agreed == 1.0 and goal(WORRY, done) == 0.0  # they agree, but the secret is out


@pytest.mark.parametrize("game", [BIKE, HOURS, MEETING, WORRY])
@pytest.mark.parametrize("heard", [Heard(rude=True), Heard(fault="garbled"), Heard(silent=True), Heard(pushes=True)])
def test_bad_manners_run_out_of_patience(game, heard):
    state, moves = beginning(game), []
    for _ in range(3):
        state, move = step(game, state, heard)
        moves.append(move.kind)
    gone = state.left and moves[-1] == "walked"
    assert gone or (heard.pushes and moves[0] in ("hold", "insist")) or moves == ["hold", "hold", "hold"]
    assert goal(game, state) == 0.0


HEARD = st.builds(
    Heard,
    points=st.frozensets(st.integers(0, 1)),
    number=st.none() | st.floats(0, 400, allow_nan=False),
    option=st.none() | st.integers(0, 3),
    accepts=st.booleans(),
    asks=st.booleans(),
    rude=st.booleans(),
    pushes=st.booleans(),
    leaks=st.booleans(),
    silent=st.booleans(),
    leaves=st.booleans(),
    fault=st.sampled_from(["", "garbled"]),
)


@given(st.sampled_from([BIKE, HOURS, MEETING, WORRY]), st.lists(HEARD, max_size=12))
def test_any_talk_is_a_game(game, heard):
    state, move = replay(game, heard)
    assert 0 <= progress(game, state) <= 100 and 0 <= goal(game, state) <= 10
    assert (move is None) == (not heard) and state.patience >= 0
    assert goal(game, state) == 0 or state.agreed is not None
    for k in range(len(heard)):  # once decided, nothing changes
        early, _ = replay(game, heard[:k])
        assert not early.decided or early == state


def test_the_seven_dimensions():
    best = {name: high for name, (_, high) in DIMENSIONS.items()}
    assert len(DIMENSIONS) == 7 and overall(best) == pytest.approx(40 / 7)
    for wrong in ({**best, "goal": 11}, {**best, "charm": 1}, {k: v for k, v in best.items() if k != "secret"}):
        with pytest.raises(ValueError):
            overall(wrong)


# ----------------------------------------------------------------------------------------------- hearing


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Hello.", Action("speak", "Hello.")),
        ("", Action("none")),
        ("did nothing", Action("none")),
        ("left the conversation", Action("leave")),
        ('said: "Hi "there""', Action("speak", 'Hi "there"')),
        ("[action] shows a photo", Action("action", "shows a photo")),
        ("[non-verbal communication] nods", Action("non-verbal communication", "nods")),
        ('{"action_type": "speak", "argument": "Hi"}', Action("speak", "Hi")),
        ('```json\n{"action_type": "leave", "argument": ""}\n```', Action("leave", "")),
        ('{"action_type": "fly", "argument": "up"}', Action("speak", '{"action_type": "fly", "argument": "up"}')),
        ('{"action_type": "speak", "argument": 3}', Action("speak", '{"action_type": "speak", "argument": 3}')),
        ("{not json}", Action("speak", "{not json}")),
    ],
)
def test_actions(text, action):
    assert read_action(text) == action
    if action.kind != "speak" or not action.argument.startswith("{"):
        assert read_action(action.written()) == action or action.kind == "leave"


def hear(game, *replies):
    return hear_batch([Said(game, reply) for reply in replies])


SCENES = {s.id.removeprefix("rapo-"): s for s in all_scenarios()}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Would you take $160?", 160),
        ("I could pay 1,50 or so, say 165.", 165),
        ("It is 20 years old.", None),
        ("I can come at 5 pm.", None),
        ("I'd knock off 10%, honestly.", None),
        ("I'll give you 3 for it.", None),  # not a price for a bicycle
        ("Let's say £180 and we both sleep well.", 180),
    ],
)
def test_prices(text, number):
    assert hear(SCENES["used-bicycle"].game, text)[0].number == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Could I have 12 hours?", 12),
        ("You can have 9 hours.", 11),
        ("I need eleven hours, so you keep nine.", 11),
        ("Give me one more chance.", None),
        ("The two of us should split a 20-hour week into two 30-minute halves.", None),
    ],
)
def test_shares_are_ours(text, number):
    assert hear(SCENES["telescope-time"].game, text)[0].number == number


@pytest.mark.parametrize(
    ("text", "option", "accepts"),
    [
        ("Monday doesn't work for me.", None, False),
        ("Monday is impossible, but Wednesday would be great.", 2, False),
        ("What about Tuesday?", 1, False),
        ("That works for me.", None, True),
        ("That sounds good, but I teach then.", None, False),
        ("No deal.", None, False),
    ],
)
def test_options_and_acceptance(text, option, accepts):
    heard = hear(SCENES["weekly-meeting"].game, text)[0]
    assert (heard.option, heard.accepts) == (option, accepts)


@pytest.mark.parametrize(
    ("scene", "text", "points"),
    [  # not the examples' own words
        ("used-bicycle", "The paint on this frame has come off in a few places.", {0}),
        ("used-bicycle", "I have the cash with me and could ride it home today.", {1}),
        ("team-sponsor", "You would receive a photo of the whole team.", {1}),
        ("weekly-meeting", "On Monday mornings I have to teach.", {0}),
        ("used-bicycle", "What a beautiful morning it is today.", set()),
        ("used-bicycle", "I understand how you feel about that.", set()),
        ("used-bicycle", "Is there a scratch on the frame?", set()),  # a question makes no point
    ],
)
def test_points_are_heard_by_meaning(scene, text, points):
    assert hear(SCENES[scene].game, text)[0].points == points


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        ("market-stall", "It is the corner stall, under Miss."),
        ("surprise-party", "Your birthday is on Saturday."),
        ("shift-swap", "Saturday is a day of the weekend."),
        ("used-bicycle", "The bicycle is for sale, I see."),
    ],
)
def test_saying_the_scene_again_makes_no_point(scene, text):
    s = SCENES[scene]
    assert not hear_batch([Said(s.game, text, (s.situation, s.opening))])[0].points


def test_manners_secrets_and_faults():
    game = SCENES["surprise-party"].game
    party, silent, leave, soup, rude = hear(
        game,
        "Everyone is coming to the party!",
        "",
        "left the conversation",
        "birthday forgotten lonely saturday company walk birthday lonely",
        "Don't be so stupid.",
    )
    assert party.leaks and silent.silent and leave.leaves and rude.rude
    assert soup.fault and not soup.points
    assert not hear(game, "I could come by on Saturday, we'd have a quiet evening.")[0].leaks
    assert hear(game, '{"action_type": "action", "argument": "hides the cake"}')[0].leaks  # done, not said: still out


# --------------------------------------------------------------------------------------------- scenarios


def test_the_scenarios_that_we_wrote():
    scenes = all_scenarios()
    assert (len(scenes), len(load_scenarios("train")), len(load_scenarios("heldout"))) == (24, 16, 8)
    assert {s.family for s in load_scenarios("heldout")} == {s.family for s in load_scenarios("train")} == set(FAMILIES)
    assert len({s.id for s in scenes}) == 24 and len({a.pk for s in scenes for a in s.agents}) == 48
    for s in scenes:
        assert s.start == 0.0 and s.opening and s.agents[1].name in s.prompt
        assert s.environment.agent_goals[0] not in s.prompt and s.environment.agent_goals[1] in s.prompt
        if isinstance(s.game, Concerns) and s.game.secret:
            assert not any(hear(s.game, text)[0].leaks for text in (s.opening, *(p.hint for p in s.game.points)))
    with pytest.raises(RapoError, match="unknown split"):
        load_scenarios("test")


def test_unknown_games_and_keys_are_named():
    for record, why in (({"kind": "chess"}, "chess"), ({"kind": "plan", "options": [], "pints": []}, "pints")):
        with pytest.raises(ValueError, match=why):
            game_from_record(record)


def test_users_files_load_and_come_back_unchanged(tmp_path):
    agents = [
        {"pk": "a", "first_name": "Ines", "last_name": "Vale", "age": 40, "moral_values": ["care"], "hobby": "chess"},
        {"pk": "b", "first_name": "Bo", "last_name": "Lund", "mbti": "INTJ"},
    ]
    environment = {
        "pk": "e",
        "codename": "cat",
        "scenario": "Two neighbours talk about a lost cat.",
        "agent_goals": ["Find the cat.", "Hide that you fed it. <extra_info>It is asleep.</extra_info>"],
        "relationship": 2,
        "age_constraint": "[(18, 70), (18, 70)]",
        "agent_constraint": [["x"]],
        "unknown_field": {"kept": True},
    }
    (tmp_path / "agents.json").write_text(json.dumps(agents))
    write_jsonl(tmp_path / "environments.jsonl", [environment])
    [scene] = read_scenarios(
        tmp_path / "environments.jsonl", tmp_path / "agents.json", [{"env_id": "e", "agent_ids": ["a", "b"]}]
    )
    assert scene.agents[0].extra == {"hobby": "chess"} and scene.game is None and "Bo Lund" in scene.prompt
    write_scenarios([scene], tmp_path / "out")
    assert read_profiles(Agent, tmp_path / "out" / "agents.jsonl") == list(scene.agents)
    [back] = read_profiles(Environment, tmp_path / "out" / "environments.jsonl")
    assert back == scene.environment and {**environment}.items() <= json.loads(json.dumps(profile_record(back))).items()
    with pytest.raises(RapoError, match="language model"):
        scene.start  # noqa: B018
    with pytest.raises(RapoError, match="language model"):
        SotopiaPartner().react_batch([(scene, (Turn("seeker", "Hi"),), "Hello.", 0)])


def test_broken_profiles_are_named(tmp_path):
    (tmp_path / "a.json").write_text('[{"first_name": "Ines"}]')
    with pytest.raises(RapoError, match="record 1.*last_name"):
        read_profiles(Agent, tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(RapoError, match="b.json"):
        read_profiles(Agent, tmp_path / "b.json")
    for change in ({"agent_goals": ["one"]}, {"relationship": 9}):
        with pytest.raises(ValueError):
            profile_from_record(Environment, {"scenario": "x", "agent_goals": ["a", "b"]} | change)
    with pytest.raises(ValueError, match="expected two"):
        scenario_of(all_scenarios()[0].environment, all_scenarios()[0].agents[:1])
    with pytest.raises(RapoError, match="neither file"):
        write_scenarios(all_scenarios()[:1], tmp_path)
        read_scenarios(tmp_path / "environments.jsonl", tmp_path / "agents.jsonl", [{"env_id": "x", "agent_ids": []}])


# --------------------------------------------------------------------------------------------- the partner


def test_the_partner_is_a_function_of_what_was_said():
    scene, partner = SCENES["market-stall"], SotopiaPartner()
    history = (Turn("seeker", scene.opening),)
    once = partner.react_batch([(scene, history, line, 3) for line in scene.demonstration])
    again = [SotopiaPartner().react_batch([(scene, history, line, 3)])[0] for line in reversed(scene.demonstration)]
    assert once == again[::-1] and all(isinstance(r, Reaction) for r in once)
    other = partner.react_batch([(scene, history, scene.demonstration[0], 4)])[0]
    assert other.emotion == once[0].emotion  # the seed chooses words only
    marked = tuple(Turn(t.speaker, t.text, emotion=99.0) for t in history)
    assert partner.react_batch([(scene, marked, scene.demonstration[0], 3)])[0] == once[0]


def test_every_move_has_words():
    kinds = {
        "bargain": {"concede", "inch", "hold", "hint", "deal"},
        "plan": {"agree", "cannot", "rather", "reveal", "understood", "insist"},
        "concerns": {"voice", "eased", "warmer", "again", "consent", "caught"},
        "any": {"confused", "hurt", "waiting", "pressed", "walked", "goodbye", "closed"},
    }
    for name, moves in kinds.items():
        assert set(wording()[name]) == moves and all(len(texts) >= 2 for texts in wording()[name].values())


# ------------------------------------------------------------------------------------------------ agents


def shown(items, seed):
    """The demonstrations, one line after the other; then agreement."""
    done = [sum(t.speaker == "supporter" for t in history) for _, history in items]
    return [
        (*s.demonstration, "Deal, let's do that.")[min(k, len(s.demonstration))]
        for (s, _), k in zip(items, done, strict=True)
    ]


def saying(*lines):
    return lambda items, seed: [lines[sum(t.speaker == "supporter" for t in h) % len(lines)] for _, h in items]


def parrot(items, seed):
    return [history[-1].text for _, history in items]


def noise(items, seed):
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(8)) for _ in items]


PUSHOVER = saying("That sounds good. Deal.")
PUSHY = saying("You have to agree, come on.", "I insist, just do it right now.")
STOCK = saying("I understand how you feel.", "That must be hard for you. I'm here for you.")
BAD = {"pushover": PUSHOVER, "pushy": PUSHY, "stock": STOCK, "silent": saying(""), "parrot": parrot, "noise": noise}


def test_the_goal_check_separates_good_from_bad_agents():
    good = episodes_table(play(shown, all_scenarios()))
    assert good.goal.min() >= 9 and set(good.ended) == {"agreed"} and set(good.secret.dropna()) == {0.0}
    for name, agent in BAD.items():
        table = episodes_table(play(agent, load_scenarios("heldout")))
        assert table.goal.mean() < 1, name
        assert table.turns.le(10).all()


def test_the_words_of_the_points_without_sentences_gain_nothing():
    """Keyword soup, the way a policy would cheat."""

    def soup(items, seed):
        return [" ".join(p.label for p in s.game.points) + " please deal" for s, _ in items]

    assert episodes_table(play(soup, all_scenarios())).goal.mean() < 1


def test_a_blabber_loses_the_secret():
    scenes = [s for s in all_scenarios() if s.family == "accommodation"]
    words = {
        "surprise-party": "party",
        "nervous-guest": "your brother",
        "first-day": "reorganise",
        "ring-hunt": "propose",
    }

    def blabber(items, seed):
        return [
            f"{text} It is about {words[s.id[5:]]}." for (s, _), text in zip(items, shown(items, seed), strict=True)
        ]

    table = episodes_table(play(blabber, scenes))
    assert table.secret.eq(-10).all() and table.goal.eq(0).all() and table.progress.eq(0).all()


def test_endings():
    leaves, stale = (play(a, all_scenarios()[:2]) for a in (saying("left the conversation"), saying("did nothing")))
    assert [e.ended for e in leaves] == ["left", "left"] and leaves[0].goal == 0
    assert all(
        e.ended == "left" and len(e.turns) == 7 for e in stale
    )  # the partner loses patience at the third silence
    long = play(saying("What matters to you here?"), [SCENES["used-bicycle"]])[0]
    assert long.ended == "turns" and sum(t.speaker == "supporter" for t in long.turns) == 10


def test_agents_are_asked_in_one_batch_and_only_while_the_talk_goes_on():
    sizes = []

    def counted(items, seed):
        sizes.append(len(items))
        return shown(items, seed)

    play(counted, all_scenarios())
    assert sizes[0] == 24 and sizes == sorted(sizes, reverse=True) and sizes[-1] < 24


def test_the_suite_and_self_play_agree():
    table = sotopia(shown)
    assert len(table) == 8 and table.split.eq("heldout").all()
    scenes = load_scenarios("heldout")
    lines = {s.opening: s for s in scenes}
    policy = lambda histories, seed: shown([(lines[h[0].text], h) for h in histories], seed)  # noqa: E731
    felt = trajectories(self_play(policy, scenes, SotopiaPartner(), turns=5)).groupby("profile").emotion.last()
    assert felt.to_dict() == table.set_index("scenario").progress.to_dict()


def test_the_scripts_are_of_train_scenarios():
    assert {s.id for s, _ in scripts()} == {s.id for s in load_scenarios("train")}
    assert len({lines for _, lines in scripts()}) == len(scripts()) >= 40
    assert all(len(lines) >= 2 and all(0 < len(line.split()) <= 32 for line in lines) for _, lines in scripts())


@pytest.mark.slow
def test_every_script_reaches_its_goal():
    for scene, lines in scripts():
        assert goal(scene.game, SotopiaPartner().state(scene, acted(scene, lines))) >= 5, (scene.id, lines)


def test_lessons_are_whole_talks_with_all_that_our_side_may_see(monkeypatch):
    monkeypatch.setattr(rapo_lib.sotopia.lessons, "scripts", lambda: scripts()[5:7])
    found = rapo_lib.sotopia.lessons.lessons()
    assert len(found) == 2 * rapo_lib.sotopia.lessons.WORDINGS
    for (prompt, reply), (scene, lines) in zip(found, scripts()[5:7] * 2, strict=True):
        assert prompt[0] == {"role": "system", "content": scene.prompt} and prompt[-1]["role"] == "user"
        said = [m["content"] for m in prompt if m["role"] == "assistant"] + [reply]
        assert said == list(lines[: len(said)]) and len(said) >= 2


def test_a_training_row_holds_our_goal_and_not_the_partners():
    scene = SCENES["used-bicycle"]
    row = sotopia_row(scene, (Turn("seeker", scene.opening),))
    assert row["profile"] == scene.id and row["prompt"] == prompt_messages(scene, (Turn("seeker", scene.opening),))
    assert row["prompt"][0]["role"] == "system" and "$170" in row["prompt"][0]["content"]
    assert "$150" not in json.dumps(row["prompt"])  # the partner's limit


# -------------------------------------------------------------------------------------------------- logs


def test_episode_logs_are_read_back_as_dialogues(tmp_path):
    episode = play(shown, [SCENES["weekly-meeting"]])[0]
    log = episode_log(episode)
    assert {
        "pk",
        "environment",
        "agents",
        "tag",
        "models",
        "messages",
        "reasoning",
        "rewards",
        "rewards_prompt",
    } == set(log)
    assert len(log["rewards"]) == len(log["agents"]) == 2 and log["rewards"][1] == 10.0
    assert all(len(message) == 3 for turn in log["messages"] for message in turn)
    ours = log["messages"][0][1][2]
    assert episode.scenario.environment.agent_goals[1] in ours
    assert episode.scenario.environment.agent_goals[0] not in ours
    [dialogue] = load_dialogues(write_jsonl(tmp_path / "log.jsonl", [log])).dialogues
    assert [(t.speaker, t.text) for t in dialogue.turns] == [(t.speaker, t.text) for t in episode.turns]
    assert dialogue.situation == episode.scenario.situation
