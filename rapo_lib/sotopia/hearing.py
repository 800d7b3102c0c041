"""What one action says, as far as a game needs to know: numbers, options, points made, manners.

Points are matched by meaning (sentence embeddings against examples), everything else by stated patterns. What is no
sentence counts as nothing: `perception`'s surface rules and the untouched model's fluency decide.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rapo_lib.encoder import embed
from rapo_lib.person.perception import FLUENT, FLUENT_SHORT, fluency_batch, split_sentences, surface_fault
from rapo_lib.sotopia.games import Bargain, Concerns, Game, Plan

ActionType = Literal["none", "speak", "non-verbal communication", "action", "leave"]
ACTION_TYPES: tuple[ActionType, ...] = ("none", "speak", "non-verbal communication", "action", "leave")
# cosine from which a sentence speaks to a point (ours): 0.8 % of the sentences written for other scenarios pass, and
# 36 % of a point's examples are reached by its other examples, which were chosen to differ
NEAR = 0.5
NEWS = 0.1  # ... and by how much nearer to it than to what the scene says anyway (ours)
TELLS = 4  # words: shorter sentences make no point

ACCEPT = re.compile(
    r"\b((?<!good )(?<!great )(?<!big )deal(?! (of|with|more|less))|agreed|i accept|i agree|i('ll| will) take (it|that)"
    r"|(that|it) works( for me)?|works for me|let's do (it|that|this)|sounds (good|fair|great|perfect|fine|lovely)"
    r"|fine by me|i can do that|count me in|you've got (yourself )?a deal|perfect|okay then|ok then)\b"
)
DOUBT = re.compile(r"\b(no|not|n't|can't|cannot|won't|never|but|if|unless|however|before|only)\b|n't\b")
TURNED_DOWN = re.compile(
    r"\b(no|not|can't|cannot|won't|never|instead of|rather than|except|busy|impossible|difficult|bad for|booked"
    r"|too (early|late|soon|big|small|far|heavy|short|long|expensive|much|little))\b|n't\b"
)
RUDE = re.compile(
    r"\b(stupid|idiot\w*|ridiculous|greedy|selfish|liar|lying|shut up|insane|pathetic|cheapskate|rip.?off|you people"
    r"|waste of (my )?time|nonsense|lazy|useless|moron|joke of|don't care what you|hate you|get lost)\b"
)
PUSH = re.compile(
    r"\b(you (must|have to|need to)|just (do|say|give|take|sign|come|agree|accept)|come on|hurry|last chance|or else"
    r"|final offer|take it or leave it|right now|i insist|no excuses|stop arguing|do it"
    r"|don't be (so |such )?(difficult|silly))\b"
)
NUMBER = re.compile(r"(?<![\w.])[$£€]?\s?(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?![\d-])\s*(%|[a-z']*)")
NO_COUNT = re.compile(  # what a number may belong to instead
    r"%|per|years?|months?|weeks?|days?|hours?|minutes?|mins?|pm|am|km|miles?|o'clock|th|st|nd|rd|people|times|points?"
)
WORD_NUMBERS = {
    word: number
    for number, word in enumerate(
        "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split(), start=2
    )
}
SPELLED = r"\b({words})\b(?=\s*({unit}\b|for\b|[.,!?;]|$))"  # "nine hours", "nine for me", "you keep nine."
THEIRS = re.compile(  # before a number
    r"\byou( can| could| would|'d| should)?( still)? (take|get|have|keep|use)\D{0,20}$|\bfor you\D{0,12}$"
)
FOR_WHOM = re.compile(r"\s*[a-z]*\s*for (you|me|us)\b")  # behind a number
PROPOSES = re.compile(
    r"\?|\b((what|how) about|let's|let us|(shall|could|can) we|would (you|be)|i('d| would)? (prefer|like)"
    r"|i (suggest|propose)|works|suits|is (fine|good|great|best|possible)|instead)\b"
)


@dataclass(frozen=True, slots=True)
class Action:
    """SOTOPIA's action: a type and what is said or done."""

    kind: ActionType
    argument: str = ""

    def written(self) -> str:
        """As SOTOPIA writes it in episode logs."""
        match self.kind:
            case "none":
                return "did nothing"
            case "leave":
                return "left the conversation"
            case "speak":
                return f'said: "{self.argument}"'
        return f"[{self.kind}] {self.argument}"


def read_action(text: str) -> Action:
    """The action in an agent's answer: SOTOPIA's JSON, its written form, or plain words, which are speech.

    JSON that is no action is speech as well: an agent must not gain from breaking the form.
    """
    text = text.strip()
    if not text or text == "did nothing":
        return Action("none")
    if text == "left the conversation":
        return Action("leave")
    if found := re.fullmatch(r"\[(non-verbal communication|action)\]\s*(.*)", text, re.DOTALL):
        return Action(found[1], found[2])
    if found := re.fullmatch(r'said:\s*"(.*)"', text, re.DOTALL):
        return Action("speak", found[1])
    return _json_action(text) or Action("speak", text)


def _json_action(text: str) -> Action | None:
    inner = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        value = json.loads(inner[0]) if inner else None
    except (ValueError, RecursionError):
        return None
    kind = value.get("action_type") if isinstance(value, dict) else None
    argument = value.get("argument", "") if isinstance(value, dict) else None
    return Action(kind, argument.strip()) if kind in ACTION_TYPES and isinstance(argument, str) else None


@dataclass(frozen=True, slots=True)
class Heard:
    """What one action of ours says to the other."""

    points: frozenset[int] = frozenset()  # places of the game's points that it speaks to
    number: float | None = None  # a bargain's number: the price, or our share
    option: int | None = None  # a plan's option that it puts forward
    accepts: bool = False
    asks: bool = False
    rude: bool = False
    pushes: bool = False
    leaks: bool = False  # says a word of the secret
    silent: bool = False
    leaves: bool = False
    fault: str = ""  # why it is no sentence, "" if it is one


@dataclass(frozen=True, slots=True)
class Said:
    """One reply of ours, and what was known before it."""

    game: Game
    reply: str
    scene: tuple[str, ...] = ()  # the situation and the opening, known to both
    partner: tuple[str, ...] = ()  # all that the partner has said


def hear_batch(items: Sequence[Said]) -> list[Heard]:
    """What each reply says; the models are called once for all."""
    actions = [read_action(item.reply) for item in items]
    spoken = [action.argument if action.kind == "speak" else "" for action in actions]
    faults = [_surface(text, item.partner) if text else "" for text, item in zip(spoken, items, strict=True)]
    whole = [text for text, fault in zip(spoken, faults, strict=True) if text and not fault]
    garbled = {text for text, logp in zip(whole, fluency_batch(whole), strict=True) if logp < _fluent_from(text)}
    faults = ["garbled" if text in garbled else fault for text, fault in zip(spoken, faults, strict=True)]
    embed(sorted({s for text in whole for s in _telling(text)}))
    return [
        _heard(item, action, text, fault)
        for item, action, text, fault in zip(items, actions, spoken, faults, strict=True)
    ]


def _surface(text: str, said: Sequence[str]) -> str:
    """Perception's fault that needs no model; "200?" is a sentence here."""
    return "" if re.search(r"\d", text) and _is_short(text) else surface_fault(text, said)


def _fluent_from(text: str) -> float:
    """The mean log-probability from which a text is language."""
    return FLUENT_SHORT if _is_short(text) else FLUENT


def _is_short(text: str) -> bool:
    return len(text.split()) < 6


def _telling(text: str) -> list[str]:
    return [s for s in split_sentences(text) if len(s.split()) >= TELLS]


def _heard(item: Said, action: Action, text: str, fault: str) -> Heard:
    game = item.game
    secret = game.secret if isinstance(game, Concerns) else ()
    leaks = any(re.search(rf"\b{word}", action.argument.lower()) for word in secret)
    if action.kind == "leave":
        return Heard(leaves=True, leaks=leaks)
    if not text:  # gestures are seen, but decide nothing here
        return Heard(silent=True, leaks=leaks)
    if fault:
        return Heard(fault=fault, leaks=leaks)
    lower = text.lower().replace("’", "'")
    made = points_by_sentence(game, text, item.scene)
    reasons = [sentence.lower().replace("’", "'") for sentence in made]
    number, option = named_number(game, lower), named_option(game, lower, reasons)
    return Heard(
        points=frozenset(made.values()),
        number=number,
        option=option,
        accepts=any(ACCEPT.search(s) and not DOUBT.search(s) and "?" not in s for s in split_sentences(lower)),
        asks="?" in text and number is None and option is None,
        rude=RUDE.search(lower) is not None,
        pushes=PUSH.search(lower) is not None,
        leaks=leaks,
    )


def points_by_sentence(game: Game, text: str, scene: Sequence[str] = ()) -> dict[str, int]:
    """Sentences of this text that are near a point in meaning, each with the place of its nearest point.

    A sentence that is as near to the scene itself says nothing new and makes none.
    """
    sentences = [s for s in _telling(text) if not s.endswith("?")]
    examples = [(k, example) for k, point in enumerate(game.points) for example in point.examples]
    if not sentences or not examples:
        return {}
    own = embed(sentences)
    near = own @ embed([example for _, example in examples]).T  # (sentences, examples)
    known = [part for told in scene for part in split_sentences(told)]
    least = (own @ embed(known).T).max(axis=1) + NEWS if known else [NEAR] * len(sentences)
    return {
        sentence: examples[row.argmax()][0]
        for sentence, row, floor in zip(sentences, near, least, strict=True)
        if row.max() >= max(NEAR, floor)
    }


def named_number(game: Game, text: str) -> float | None:
    """The last plausible number of a bargain; of a share, what "you" get is turned into what we get."""
    if not isinstance(game, Bargain):
        return None
    found = [(m.start(), float(m[1].replace(",", "")), m[2]) for m in NUMBER.finditer(text)]
    if game.total is not None:
        spelled = SPELLED.format(words="|".join(WORD_NUMBERS), unit=re.escape(game.unit))
        found += [(m.start(), float(WORD_NUMBERS[m[1]]), "") for m in re.finditer(spelled, text)]
    low, high = (0.0, game.total) if game.total is not None else (0.2 * min(game.start, game.limit), 3 * game.top)
    plausible = sorted(
        (at, number)
        for at, number, word in found
        if low <= number <= high and (word == game.unit or not NO_COUNT.fullmatch(word))
    )
    if not plausible:
        return None
    ours = [number for at, number in plausible if game.total is None or not _is_theirs(text, at)]
    return ours[-1] if ours else game.total - plausible[-1][1]


def _is_theirs(text: str, at: int) -> bool:
    """Whether the number at this place is the other's share: what stands behind it says so, else what stands before."""
    behind = FOR_WHOM.match(text, re.compile(r"[\s$£€]*[\w.,]+").match(text, at).end())
    return behind[1] == "you" if behind else THEIRS.search(text[:at]) is not None


def named_option(game: Game, text: str, reasons: Sequence[str] = ()) -> int | None:
    """The last option of a plan that is put forward: not turned down, nor named in giving a reason.

    `reasons` are sentences that make a point; of a question, what leads up to it is one as well.
    """
    if not isinstance(game, Plan):
        return None
    found = None
    for sentence in split_sentences(text):
        for clause in re.split(r"(?<=[,;])\s+", sentence):
            explains = sentence in reasons or (sentence.endswith("?") and len(clause.split()) > TELLS)
            if TURNED_DOWN.search(clause) or (explains and not PROPOSES.search(clause)):
                continue
            for k, option in enumerate(game.options):
                if any(re.search(rf"\b{re.escape(word)}\b", clause) for word in option.words):
                    found = k
    return found
