"""A judge for social goals: ranks replies by what the partner says next, and says in words what to do differently.

It reads text only: the talk, the replies, the reactions. It imports nothing of game or partner; its patterns are common
English for agreeing, giving way, opening up, holding and turning away, but the same people wrote the partner's words.
It also looks whether the partner's number moves towards ours, and whether we just took their first offer. Without
reactions ("without URM") a rubric marks the reply alone. Every number is ours.
"""

import re
from collections.abc import Sequence

from rapo_lib.dialogue import Turn
from rapo_lib.feedback import CandidateGroup, Verdict, scores_from

STANCES = (  # first match decides: pattern, merit
    (r"\b(goodbye|bye|i'm leaving|i am leaving|we're done|done here|had enough|leads nowhere|i'm off)\b", -1.0),
    (
        r"\b(rude|tone|insult\w*|don't push|stop pushing|pressing|pressur\w*|not listening|hiding from me|lied)\b"
        r"|\b(talk|speak) to me like|\bwhat did you (just )?say\b",
        -0.8,
    ),
    (r"\b(don't (follow|understand)|what do you mean|not sure what you|still there|very quiet|say something)\b", -0.7),
    (r"\b(no deal|(was|am|'m) set on|(doesn't|does not|won't|will not) change)\b", -0.3),
    (
        r"\b((?<!good )(?<!great )deal|agreed|it is(?=\s*[.!])|you've convinced|i'm in|let's do (that|it)|works for me"
        r"|all right, you|okay, yes|i'm glad (we|that))\b",
        0.8,
    ),
    (
        r"\b(fair (point|enough)|that helps|i see|makes sense|i can't deny|hadn't thought|you're right|appreciate"
        r"|(worry|problem|thing) less|that('s| is) something)\b",
        0.6,
    ),
    (r"\b(since you ask|good (question|that you ask)|honestly|to be (honest|frank)|thanks for asking)\b", 0.25),
    (r"\b(move a little|could also|maybe|perhaps|i could|i'd go to|is what i can do|would be possible)\b", 0.2),
    (r"\b(no|not|can't|cannot|staying|impossible|rather|still think|as i said)\b", -0.3),
)
STANCES = tuple((re.compile(pattern, re.IGNORECASE), merit) for pattern, merit in STANCES)
AGREES = next(pattern for pattern, merit in STANCES if merit == 0.8)
MONEY = re.compile(r"(?<![\w.])([$£€]?)(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\b")
TO_YOU = re.compile(r"\byou('d| would| could| can| may)? (still )?(have|get|take|keep) ?$", re.IGNORECASE)
TO_ME = re.compile(
    r"\b(i|we)('d|'ll| would| could| can| may)? (have|get|take|keep|need)( my| the other)? ?$", re.IGNORECASE
)
FOR_YOU = re.compile(r"\s*[a-z]*\s*(left )?for you\b", re.IGNORECASE)
FOR_ME = re.compile(r"\s*[a-z]*\s*for (me|us)\b", re.IGNORECASE)
QUESTION = re.compile(r"\?")
ACCEPTS = re.compile(r"\b(deal|agreed|i accept|sounds (good|great|fine)|that works|i'll take it)\b", re.IGNORECASE)
MARKS = tuple(
    (re.compile(pattern, re.IGNORECASE), weight)
    for pattern, weight in (
        (r"\b(thank|please|understand|sorry|appreciate|glad|happy)\w*", 0.2),
        (r"\b(what|how|which|why|where|when|who)\b.*\?", 0.3),
        (r"\b(because|since|so that|therefore|in return|as)\b", 0.3),
        (r"\b(what about|how about|shall we|let's|could (we|i)|would you|i can|i could|we could)\b|[$£€]\d", 0.3),
        (r"\b(must|have to|insist|right now|or else|come on|stupid|ridiculous|greedy|idiot)\b", -0.8),
    )
)
ADVICE = (
    "Be courteous.",
    "Ask an open question.",
    "Give a reason.",
    "Propose something concrete.",
)
MOVED = 0.6  # weight of the share by which their number has moved
GAVE_IN = -0.6  # taking their first offer as it stands


def reaction_merit(history: Sequence[Turn], reply: str, reaction: str) -> float:
    """How well a reply went, about -1 to 1.4, read from the reaction."""
    if gave_in(history, reply, reaction):
        return GAVE_IN
    stance = next((merit for pattern, merit in STANCES if pattern.search(reaction)), 0.0)
    return stance + MOVED * moved(history, reply, reaction)


def gave_in(history: Sequence[Turn], reply: str, reaction: str) -> bool:
    """Whether they agreed to no less than their first offer: we accepted before they had moved, or named worse."""
    if not AGREES.search(reaction):
        return False
    theirs, now = _offered([t.text for t in history if t.speaker == "seeker"]), _offered([reaction])
    ours = [t.text for t in history if t.speaker == "supporter"]
    wanted = _asked(ours)
    if theirs and now and wanted and (now[0] - theirs[0]) * (wanted[0] - theirs[0]) < 0:
        return True  # beyond their first number, away from where we had been
    accepted = ACCEPTS.search(reply) is not None and not MONEY.search(reply)
    return accepted and not any(MONEY.search(text) or "?" in text for text in ours)


def moved(history: Sequence[Turn], reply: str, reaction: str) -> float:
    """Share by which the partner's number has left their first one towards ours, 0 where no numbers are in play."""
    theirs = _offered([t.text for t in history if t.speaker == "seeker"])
    now = _offered([reaction])
    if not theirs or not now:
        return 0.0
    first = theirs[0]
    ours = _asked([*(t.text for t in history if t.speaker == "supporter"), reply])
    change = (now[0] - first) / max(abs(first), abs(now[0]), 1.0)
    sign = (ours[-1] > first) - (ours[-1] < first) if ours else (change > 0) - (change < 0)
    return max(-1.0, min(1.0, sign * change))


def _offered(texts: Sequence[str]) -> list[float]:
    """The numbers that the partner names; of a share, what is for us."""
    return _numbers(texts, (TO_YOU, FOR_YOU), (TO_ME, FOR_ME))


def _asked(texts: Sequence[str]) -> list[float]:
    """The numbers that we name; of a share, what is for us."""
    return _numbers(texts, (TO_ME, FOR_ME), (TO_YOU, FOR_YOU))


Sides = tuple[re.Pattern[str], re.Pattern[str]]  # before a number, behind it


def _numbers(texts: Sequence[str], ours: Sides, theirs: Sides) -> list[float]:
    """Prices, and numbers that are not said to be theirs; where some are said to be ours, those alone."""
    found = []
    for text in texts:
        told = [(m[1], float(m[2].replace(",", "")), text[: m.start()], text[m.end() :]) for m in MONEY.finditer(text)]
        own = [number for sign, number, *around in told if not sign and _said(around, ours)]
        found += own or [number for sign, number, *around in told if sign or not _said(around, theirs)]
    return found


def _said(around: Sequence[str], sides: Sides) -> bool:
    before, behind = sides
    return before.search(around[0]) is not None or behind.match(around[1]) is not None


def reply_mark(reply: str) -> float:
    """The rubric, for a judge without reactions: courteous, asks, gives a reason, proposes something; -1 to 1."""
    if not reply.strip():
        return -1.0
    marks = sum(weight for pattern, weight in MARKS if pattern.search(reply))
    return max(-1.0, min(1.0, marks - 0.02 * max(0, len(reply.split()) - 40)))


def critique(history: Sequence[Turn], reply: str, reaction: str) -> str:
    """One or two sentences about this reply, for the teacher's eyes."""
    if not reply.strip():
        return "Say something: silence costs the other's patience."
    if gave_in(history, reply, reaction):
        return "Do not take the first offer. Ask what matters to them, give a reason, then make your own proposal."
    stance = next((merit for pattern, merit in STANCES if pattern.search(reaction)), 0.0)
    if stance <= -1.0:
        return "This drove them away. Be friendly, ask what holds them back, and answer it."
    if stance == -0.8:
        return "Do not push, insult or give your aim away. Ask what matters to them and answer that."
    if stance == -0.7:
        return "They did not understand. Say one thing in one plain sentence."
    if stance >= 0.8:
        return "This brought them to agree: a concrete proposal after their concern was met."
    if stance >= 0.6:
        return "This moved them: it spoke to what matters to them. Add another reason or make a concrete proposal."
    if stance > 0:
        return "They have opened up. Now speak to what they just told you and give a reason they care about."
    if QUESTION.search(reply) and not MONEY.search(reply):
        return "The question brought nothing new. Speak to what they have already told you."
    return "This gave them no reason. Ask what matters to them, or name a reason that they care about."


def mark_critique(reply: str) -> str:
    """What the rubric misses most in a reply."""
    missing = [advice for (pattern, _), advice in zip(MARKS, ADVICE, strict=False) if not pattern.search(reply)]
    if MARKS[-1][0].search(reply):
        return "Do not push or insult."
    return missing[0] if missing else "Courteous, asks, gives a reason and proposes something."


class SocialJudge:
    """Ranks the replies of a group by the partner's reactions; without reactions, by the rubric."""

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group."""
        return [self.compare(group) for group in groups]

    def compare(self, group: CandidateGroup) -> Verdict:
        """The verdict on one group; abstains where there are not two different replies."""
        if group.reactions is None:
            merits = [reply_mark(reply) for reply in group.replies]
            critiques = tuple(mark_critique(reply) for reply in group.replies)
        else:
            pairs = list(zip(group.replies, group.reactions, strict=True))
            merits = [reaction_merit(group.history, reply, reaction) for reply, reaction in pairs]
            critiques = tuple(critique(group.history, reply, reaction) for reply, reaction in pairs)
        order = tuple(range(len(group.replies)))
        if len(set(group.replies)) < 2:
            return Verdict(None, critiques, group.reactions, order, "abstained: fewer than two distinct replies")
        scores = scores_from(merits)
        return Verdict(scores, critiques, group.reactions, tuple(sorted(order, key=lambda i: -scores[i])))
