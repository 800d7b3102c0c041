"""Sheets: blind, balanced, escaped and closed to the network; answers: every problem named, numbers worked by hand."""

import csv
import io
import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_lib.cli import main
from rapo_lib.dialogue import Turn
from rapo_lib.measures.sheets import (
    BETTER,
    Pair,
    all_pairs,
    inert,
    make_key,
    make_sheets,
    obvious_pairs,
    pairs_of,
    read_pairs,
    sheet_csv,
    sheet_html,
    write_sheets,
)
from rapo_lib.measures.votes import (
    agreement,
    annotators,
    attentive,
    bradley_terry,
    rates,
    read_key,
    read_votes,
    strengths,
    summary,
    wins_matrix,
)
from rapo_lib.runs import RapoError

ARMS = ("full", "plain")


def some_pairs(n, arms=ARMS):
    history = (Turn("seeker", "My sister is not speaking to me."),)
    return [Pair(id=f"p{k}", history=history, replies=((arms[0], f"a{k}"), (arms[1], f"b{k}"))) for k in range(n)]


# ------------------------------------------------------------------------------------------------ sheets


@given(st.integers(1, 25), st.integers(0, 2**20), st.integers(0, 3))
def test_sides_are_balanced_and_nothing_is_lost(n, seed, obvious):
    [sheet] = make_sheets(some_pairs(n), seed=seed, obvious=obvious, repeats=min(2, n))
    shown = [item for item in sheet.items if item.kind == "pair"]
    first = Counter(item.pair.replies[0][0] for item in shown)
    assert abs(first["full"] - first["plain"]) <= 1
    assert sorted(item.pair.id for item in shown) == sorted(p.id for p in some_pairs(n))
    assert Counter(item.kind for item in sheet.items)["obvious"] == obvious
    for item in shown:
        assert dict(item.pair.replies) == dict(some_pairs(n)[int(item.pair.id[1:])].replies)


def test_balance_holds_within_every_two_arms():
    history = {f"h{k}": [Turn("seeker", "x")] for k in range(6)}
    pairs = all_pairs(history, {arm: [f"{arm}{k}" for k in range(6)] for arm in ("a", "b", "c")})
    assert len(pairs) == 18
    [sheet] = make_sheets(pairs, obvious=0, repeats=0, seed=4)
    first = Counter((item.pair.arms, item.pair.replies[0][0]) for item in sheet.items)
    assert set(first.values()) == {3} and len(first) == 6


def test_sheets_swap_sides_and_keep_orders_of_their_own():
    one, two = make_sheets(some_pairs(12), sheets=2, seed=1)
    sides = [{i.pair.id: i.pair.replies for i in s.items if i.kind == "pair"} for s in (one, two)]
    assert all(sides[0][name] == sides[1][name][::-1] for name in sides[0])
    assert [i.pair.id for i in one.items] != [i.pair.id for i in two.items]
    assert not {i.id for i in one.items} & {i.id for i in two.items}
    assert make_sheets(some_pairs(12), sheets=2, seed=1) == [one, two] != make_sheets(some_pairs(12), sheets=2, seed=2)


def test_a_repeat_comes_late_with_its_sides_swapped():
    for seed in range(20):
        [sheet] = make_sheets(some_pairs(12), repeats=3, seed=seed)
        place = {item.pair.id: k for k, item in enumerate(sheet.items) if item.kind == "pair"}
        pairs = {item.pair.id: item.pair for item in sheet.items if item.kind == "pair"}
        repeats = [(k, item) for k, item in enumerate(sheet.items) if item.kind == "repeat"]
        assert len(repeats) == 3
        for k, item in repeats:
            assert k - place[item.pair.id] >= 4 and item.pair == pairs[item.pair.id].swapped()


def test_what_the_annotator_sees_names_no_arm_and_no_check():
    arms = ("secret-arm-one", "secret-arm-two")
    sheets = make_sheets(some_pairs(8, arms), sheets=2)
    for sheet in sheets:
        for text in (sheet_html(sheet), sheet_csv(sheet)):
            assert not re.search(r"secret-arm|obviously (better|worse)|repeat|\bp\d\b", text)
    key = make_key(sheets)
    assert {entry["A"] for entry in key["items"].values()} >= set(arms)


HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<!--", "&lt;b&gt;", "]]>\u2028", ""]


def test_model_text_is_escaped_and_the_page_asks_for_nothing():
    history = (Turn("seeker", HOSTILE[0]),)
    pairs = [Pair(id=f"x{k}", history=history, replies=(("a", text), ("b", "ok"))) for k, text in enumerate(HOSTILE)]
    [sheet] = make_sheets(pairs, question="Which <b>one</b>?")
    page = sheet_html(sheet)
    assert "<img" not in page and "<b>one" not in page and page.count("<script>") == 1 == page.count("</script>")
    assert "(no reply)" in page
    assert not re.search(r"https?://|@import|url\(|\bsrc=|<link|fetch|XMLHttp|sendBeacon|WebSocket", page.replace(
        "&lt;img src=x", ""))  # fmt: skip
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src &#x27;none&#x27;") and "unsafe" not in policy and "connect-src" not in policy


def test_csv_cannot_carry_a_formula():
    pair = Pair(
        id="p", history=(Turn("seeker", "-1 for me"),), replies=(("a", '=HYPERLINK("x")'), ("b", 'a "b", c\nd'))
    )
    [sheet] = make_sheets([pair], obvious=0, repeats=0)
    [row] = csv.DictReader(io.StringIO(sheet_csv(sheet)))
    assert {row["reply A"], row["reply B"]} == {'\'=HYPERLINK("x")', 'a "b", c\nd'}
    assert (
        row["history"] == "seeker: -1 for me" and inert("+1") == "'+1" and inert("well") == "well" and inert("") == ""
    )


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({}, "expected"),
        ({"id": "x", "history": [], "replies": {"a": "1", "b": "2"}}, "must end with a seeker turn"),
        ({"id": "x", "history": [{"speaker": "seeker", "text": "hi"}], "replies": {"a": "1"}}, "two arms or more"),
        ({"id": "x", "history": [{"speaker": "bot", "text": "hi"}], "replies": {"a": "1", "b": "2"}}, "'bot'"),
        ({"id": "x", "history": ["hi"], "replies": {"a": "1", "b": "2"}}, "a turn is"),
        ({"id": "x", "history": [{"speaker": "seeker", "text": "hi"}], "replies": {"tie": "1", "b": "2"}}, "'tie'"),
    ],
)
def test_a_record_that_is_no_pair_says_why(record, why, tmp_path):
    with pytest.raises(ValueError, match=re.escape(why)):
        pairs_of(record)
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(RapoError, match="record 1"):
        read_pairs(path)


def test_impossible_wishes_are_refused():
    for wish in ({"sheets": 0}, {"repeats": 4}, {"obvious": 99}):
        with pytest.raises(RapoError):
            make_sheets(some_pairs(3), **wish)
    with pytest.raises(RapoError, match="twice"):
        make_sheets([*some_pairs(2), *some_pairs(1)])
    with pytest.raises(RapoError, match="no pair"):
        make_sheets([])


def test_obvious_items_are_well_formed():
    assert len({p.id for p in obvious_pairs()}) == len(obvious_pairs()) >= 4


def test_a_key_is_never_overwritten(tmp_path):
    sheets = make_sheets(some_pairs(3))
    folder = write_sheets(sheets, tmp_path / "out")
    assert sorted(p.name for p in (folder / "sheets").iterdir()) == ["sheet_1.csv", "sheet_1.html"]
    with pytest.raises(RapoError, match="exists"):
        write_sheets(sheets, folder)
    assert read_key(folder / "key.json")["items"].keys() == {i.id for i in sheets[0].items}


# ----------------------------------------------------------------------------------------------- answers


def answered(sheet, annotator, prefer, **changes):
    """Answers that always prefer one arm (or better over worse); `changes` overrides choices by place."""
    rows = []
    for k, item in enumerate(sheet.items):
        arms = [arm for arm, _ in item.pair.replies]
        wanted = BETTER if item.kind == "obvious" else prefer
        choice = "AB"[arms.index(wanted)] if wanted in arms else "tie"
        rows.append({"item": item.id, "annotator": annotator, "choice": changes.get(f"at{k}", choice), "seconds": 5})
    return rows


def saved(path, rows):
    path.write_text(json.dumps({"sheet": "s", "answers": rows}))
    return path


def test_answers_come_back_as_arms(tmp_path):
    sheets = make_sheets(some_pairs(6), sheets=2, seed=3)
    files = [saved(tmp_path / f"{k}.json", answered(s, f"ann{k}", "full")) for k, s in enumerate(sheets)]
    votes = read_votes(files, make_key(sheets))
    assert not votes.problems and len(votes.table) == 20
    assert set(votes.table[votes.table.kind != "obvious"].preferred) == {"full"}
    assert set(votes.table[votes.table.kind == "obvious"].preferred) == {BETTER}


def test_every_problem_is_named(tmp_path):
    [sheet] = make_sheets(some_pairs(6), obvious=0, repeats=0)
    rows = answered(sheet, "ann", "full", at0="", at1="C", at2="b ")
    rows += [{**rows[3]}, {**rows[4], "choice": "tie"}, {**rows[5], "item": "zzz-001"}, {**rows[5], "annotator": " "}]
    (tmp_path / "broken.json").write_text("[1, 2")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "short.csv").write_text("item,choice\nx,A\n")
    files = [saved(tmp_path / "a.json", rows), *(tmp_path / n for n in ("broken.json", "list.json", "short.csv", "no"))]
    votes = read_votes(files, make_key([sheet]))
    said = [str(p) for p in votes.problems]
    ids = [i.id for i in sheet.items]
    for part in (
        f"ann, item {ids[0]}: not answered",
        f"a.json, item {ids[1]}: choice 'C' is not one of A, B, tie",
        f"ann, item {ids[1]}: not answered",
        f"a.json, item {ids[3]}: ann gave the same answer twice, counted once",
        f"a.json, item {ids[4]}: ann gave two different answers, both left out",
        "a.json, item zzz-001: no such item",
        f"a.json, item {ids[5]}: no annotator",
        "broken.json: is no answer file",
        "list.json: is no answer file",
        "short.csv: is no answer file: the column 'annotator' is missing",
        "no: cannot be read",
    ):
        assert any(part in line for line in said), part
    assert len(said) == 11
    assert votes.table.item.tolist() == [ids[2], ids[3], ids[5]] and votes.table.choice[0] == "B"


def test_nothing_usable_is_an_error_that_says_why(tmp_path):
    [sheet] = make_sheets(some_pairs(2), obvious=0, repeats=0)
    other = make_sheets(some_pairs(2), obvious=0, repeats=0, seed=9)
    with pytest.raises(RapoError, match="no such item"):
        read_votes([saved(tmp_path / "a.json", answered(other[0], "ann", "full"))], make_key([sheet]))
    with pytest.raises(RapoError, match="not a key"):
        read_key(saved(tmp_path / "k.json", []))


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_filled_in_csv_sheet_is_read(tmp_path, delimiter):
    [sheet] = make_sheets(some_pairs(4), obvious=0, repeats=0)
    rows = list(csv.DictReader(io.StringIO(sheet_csv(sheet))))
    path = tmp_path / "filled.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        out = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        out.writeheader()
        out.writerows({**row, "annotator": "ann", "choice": "a"} for row in rows)
    votes = read_votes([path], make_key([sheet]))
    assert not votes.problems and votes.table.choice.tolist() == ["A"] * 4 and votes.table.seconds.isna().all()


def test_one_person_on_two_sheets_counts_once(tmp_path):
    sheets = make_sheets(some_pairs(3), sheets=2, obvious=0, repeats=0)
    files = [saved(tmp_path / f"{k}.json", answered(s, "ann", "full")) for k, s in enumerate(sheets)]
    votes = read_votes(files, make_key(sheets))
    assert len(votes.table) == 3 and sum("another sheet" in p.what for p in votes.problems) == 3


# ----------------------------------------------------------------------------------------------- results


def table_of(rows):
    """(annotator, pair, A, B, choice[, kind]) rows as a table of votes."""
    full = [(*row, "pair")[:6] for row in rows]
    named = pd.DataFrame(full, columns=["annotator", "pair", "A", "B", "choice", "kind"])
    preferred = [r.A if r.choice == "A" else r.B if r.choice == "B" else "tie" for r in named.itertuples()]
    return named.assign(preferred=preferred, item=[f"s-{k:03d}" for k in range(len(named))], seconds=4.0, comment="")


def test_rates_by_hand():
    # arm x against y; pair 1: x, x; pair 2: y, tie; pair 3: x, x. Per pair: win 1, 0, 1; loss 0, .5, 0; net 1, -.5, 1
    table = table_of([("m", "1", "x", "y", "A"), ("n", "1", "y", "x", "B"), ("m", "2", "x", "y", "B"),
                      ("n", "2", "x", "y", "tie"), ("m", "3", "y", "x", "B"), ("n", "3", "x", "y", "A")])  # fmt: skip
    found = rates(table).set_index("measure")
    assert (found.arm == "x").all() and (found.n == 3).all() and (found.judgements == 6).all()
    assert found["mean"].to_dict() == pytest.approx({"win": 2 / 3, "tie": 1 / 6, "loss": 1 / 6, "net": 0.5})
    # net: sd of (1, -.5, 1) is sqrt(.75) = .8660; half width 4.3027 * .8660 / sqrt(3) = 2.1513
    assert found.high["net"] - 0.5 == pytest.approx(2.1513, abs=1e-3) and found.claim["net"] == "inconclusive"
    assert rates(table, by="annotator").n.eq(2).all()


def test_repeats_and_obvious_items_are_no_votes():
    table = table_of(
        [("m", "1", "x", "y", "A"), ("m", "1", "x", "y", "B", "repeat"), ("m", "o", BETTER, "w", "A", "obvious")]
    )
    assert rates(table).judgements.eq(1).all() and strengths(table).arm.tolist() == ["x", "y"]


def test_two_arms_have_the_log_odds_of_their_wins():
    # 7 against 3 and half a win to either side: log(7.5 / 3.5) apart
    s = bradley_terry(np.array([[0, 7.0], [3, 0]]))
    assert s[0] - s[1] == pytest.approx(np.log(7.5 / 3.5)) and s.sum() == pytest.approx(0)
    sweep = bradley_terry(np.array([[0, 10.0], [0, 0]]))
    assert sweep[0] - sweep[1] == pytest.approx(np.log(21))


def test_strengths_recover_a_planted_order():
    rng = np.random.default_rng(0)
    true = {"a": 1.0, "b": 0.0, "c": -1.0}
    rows = []
    for k in range(400):
        a, b = rng.permutation(list(true))[:2]
        wins = rng.random() < 1 / (1 + np.exp(true[b] - true[a]))
        rows.append(("m", str(k), a, b, "A" if wins else "B"))
    found = strengths(table_of(rows)).set_index("arm")
    assert found.index.tolist() == ["a", "b", "c"]
    for arm, value in true.items():
        assert found.low[arm] < value < found.high[arm] and found.high[arm] - found.low[arm] < 0.8


def test_arms_never_compared_have_no_common_scale():
    table = table_of([("m", "1", "a", "b", "A"), ("m", "2", "c", "d", "A")])
    with pytest.raises(RapoError, match="never compared"):
        strengths(table)
    bridge = table_of([("m", "1", "a", "b", "A"), ("m", "2", "b", "c", "A")])
    assert strengths(bridge).low.isna().all()  # without either pair the arms fall apart


def test_ties_are_half_a_win():
    table = table_of([("m", "1", "a", "b", "tie"), ("m", "2", "b", "a", "A")])
    assert wins_matrix(table, ["a", "b"]).tolist() == [[0, 0.5], [1.5, 0]]


def test_agreement_by_hand():
    # Two people, four pairs: xx, xx, yy, xy. Values: 5 x, 3 y of n = 8. Do = 2/8; De = 2*5*3/(8*7) = 30/56.
    votes = [("xx"), ("xx"), ("yy"), ("xy")]
    rows = [
        (who, str(k), "x", "y", "A" if v == "x" else "B")
        for k, two in enumerate(votes)
        for who, v in zip("mn", two, strict=True)
    ]
    assert agreement(table_of(rows)) == pytest.approx(1 - 0.25 / (30 / 56))
    alone = table_of([("m", "1", "x", "y", "A"), ("n", "2", "x", "y", "B")])
    assert np.isnan(agreement(alone)) and np.isnan(agreement(table_of(rows[:4])))
    lonely = [*rows, ("m", "9", "x", "y", "A")]  # judged by one person only: no pairable value
    assert agreement(table_of(lonely)) == pytest.approx(agreement(table_of(rows)))


def test_annotators_are_checked(tmp_path):
    sheets = make_sheets(some_pairs(12), sheets=1, obvious=3, repeats=3, seed=5)
    lazy = [{"item": i.id, "annotator": "lazy", "choice": "A", "seconds": 1} for i in sheets[0].items]
    files = [saved(tmp_path / "l.json", lazy), saved(tmp_path / "g.json", answered(sheets[0], "good", "full"))]
    table = read_votes(files, make_key(sheets)).table
    found = annotators(table).set_index("annotator")
    assert found.repeats_same.to_dict() == {"good": 3, "lazy": 0} and found.repeats.eq(3).all()
    assert found.chose_A.to_dict() == {"good": 0.5, "lazy": 1.0}
    assert found.side_p["lazy"] == pytest.approx(2 / 2**12) and found.side_p["good"] == 1.0
    assert not found.failed["good"] and found.obvious_right["good"] == 3
    right = sum(i.pair.replies[0][0] == BETTER for i in sheets[0].items if i.kind == "obvious")
    assert found.obvious_right["lazy"] == right and found.failed["lazy"] == (right < 3)
    if right < 3:
        assert set(attentive(table).annotator) == {"good"}


def test_no_attentive_annotator_is_an_error(tmp_path):
    [sheet] = make_sheets(some_pairs(3), obvious=2, repeats=0)
    wrong = {f"at{k}": "tie" for k, i in enumerate(sheet.items) if i.kind == "obvious"}
    votes = read_votes([saved(tmp_path / "a.json", answered(sheet, "ann", "full", **wrong))], make_key([sheet]))
    with pytest.raises(RapoError, match="missed an obvious item"):
        summary(votes)
    assert summary(votes, keep_failed=True)["rates"].judgements.eq(3).all()


# ------------------------------------------------------------------------------------------- command line


def test_from_pairs_to_results_on_the_command_line(tmp_path, capsys):
    lines = [
        {
            "id": f"h{k}",
            "history": [{"speaker": "seeker", "text": "I can't sleep."}],
            "replies": {"full": "x", "plain": "y"},
        }
        for k in range(4)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "kit"
    assert main(["prefer", "make", str(path), "--out", str(out), "--sheets", "2", "--seed", "3"]) == 0
    assert main(["prefer", "make", str(path), "--out", str(out)]) == 1
    sheets = make_sheets(read_pairs(path), sheets=2, seed=3)
    files = [saved(tmp_path / f"{k}.json", answered(s, f"ann{k}", "full", at0="")) for k, s in enumerate(sheets)]
    code = main(["prefer", "read", str(out / "key.json"), *map(str, files), "--out", str(tmp_path / "results")])
    said = capsys.readouterr()
    assert code == 0 and "krippendorff_alpha" in said.out and "not answered" in said.err
    assert {p.name for p in (tmp_path / "results").iterdir()} == {
        f"{n}.csv" for n in ("answers", "problems", "annotators", "rates", "strengths", "agreement")
    }
    won = pd.read_csv(tmp_path / "results" / "rates.csv").set_index("measure")["mean"]
    assert won["win"] == 1.0
