"""The truth of an episode: where a game stands after what was said, by stated rules and no model's opinion.

A game is folded over what was heard (`hearing.Heard`), so its state is a pure function of what our agent said. All
rules and numbers are ours. SOTOPIA's seven dimensions are at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rapo_lib.sotopia.games import IMPOSSIBLE, Bargain, Concerns, Game, Plan
from rapo_lib.sotopia.hearing import Heard

REASON = 0.3  # share of the way that a new good reason moves a bargainer
INCH = 0.08  # ... and a new offer, or being asked what matters
FREE = 0.25  # how far a bargainer goes without any reason
PATIENCE = 3  # what is no answer, rude or pushing costs one; at none they leave
EAGER, EASED = 9, 3  # a planner agrees to what is worth EAGER to them; EASED less for each reason told
OPEN = 0.6  # share of a plan's worth that counts while it is only within reach
AT_ONCE = 2  # most points that one reply can make


# ------------------------------------------------------------------------------------------------- state


@dataclass(frozen=True, slots=True)
class State:
    """Where a game stands."""

    points: frozenset[int] = frozenset()  # made so far
    told: int = 0  # points or options that the other has given away, in order
    moved: float = 0.0  # a bargainer's way, 0-1
    named: float | None = None  # our last number
    proposal: int = 0  # a planner's last proposal: place in `Plan.liked`
    patience: int = PATIENCE
    agreed: float | None = None  # the number, the option, or 1
    leaked: bool = False
    left: bool = False

    @property
    def decided(self) -> bool:
        """Nothing can change any more."""
        return self.left or self.agreed is not None


@dataclass(frozen=True, slots=True)
class Move:
    """What the other does next: a kind of sentence (see data/sotopia/wording.json) and what it speaks of."""

    kind: str
    about: float | None = None  # the number, or the place of the point or option


def beginning(game: Game) -> State:
    """The state at the opening: the first concern is plain in it."""
    return State(told=1) if isinstance(game, Concerns) else State()


def step(game: Game, state: State, heard: Heard) -> tuple[State, Move]:
    """What one reply of ours changes, and the other's answer."""
    if state.decided:
        return state, Move("closed")
    if heard.leaks:
        state = replace(state, leaked=True)
    if heard.leaves:
        return replace(state, left=True), Move("goodbye")
    if heard.rude or heard.fault or (heard.silent and state.patience == 1):
        state = replace(state, patience=state.patience - 1, moved=max(0.0, state.moved - INCH * heard.rude))
        kind = "hurt" if heard.rude else "confused"
        return (state, Move(kind)) if state.patience > 0 else (replace(state, left=True), Move("walked"))
    if heard.silent:
        return replace(state, patience=state.patience - 1), Move("waiting")
    if isinstance(game, Bargain):
        return _bargain(game, state, heard)
    return _plan(game, state, heard) if isinstance(game, Plan) else _concerns(game, state, heard)


def _new_points(game: Game, state: State, heard: Heard) -> frozenset[int]:
    """Points this reply makes for the first time; hidden ones only if the other has told them."""
    known = (k for k in sorted(heard.points - state.points) if not game.points[k].hidden or k < state.told)
    return frozenset(list(known)[:AT_ONCE])


def _next_hint(game: Game, state: State) -> int | None:
    """The next point that the other has not told and we have not made."""
    return next((k for k in range(state.told, len(game.points)) if k not in state.points), None)


def _pressed(state: State) -> tuple[State, Move]:
    state = replace(state, patience=state.patience - 1)
    return (state, Move("pressed")) if state.patience > 0 else (replace(state, left=True), Move("walked"))


def _bargain(game: Bargain, state: State, heard: Heard) -> tuple[State, Move]:
    new = _new_points(game, state, heard)
    number, before = heard.number, game.offer(state.moved)
    if heard.accepts and number in (None, before):
        return replace(state, agreed=before), Move("deal", before)
    if number is not None and number == state.named and not new and not game.takes(number, before):
        return _pressed(state)
    hint = _next_hint(game, state) if heard.asks and number is None else None
    way = state.moved + REASON * len(new) + INCH * (number is not None) + INCH * (hint is not None)
    points = state.points | new
    state = replace(
        state,
        points=points,
        moved=min(1.0, FREE + REASON * len(points), way),
        named=state.named if number is None else number,
        told=state.told if hint is None else hint + 1,
    )
    standing = game.offer(state.moved)
    if number is not None and game.takes(number, standing):
        return replace(state, agreed=number), Move("deal", number)
    if hint is not None and not new:
        return state, Move("hint", hint)
    if new:
        return state, Move("concede", standing)
    return (state, Move("inch", standing)) if standing != before else _holds(state, heard, standing)


def _holds(state: State, heard: Heard, standing: float) -> tuple[State, Move]:
    return _pressed(state) if heard.pushes else (state, Move("hold", standing))


def _plan(game: Plan, state: State, heard: Heard) -> tuple[State, Move]:
    liked, new = game.liked(), _new_points(game, state, heard)
    state = replace(state, points=state.points | new)
    if heard.option is not None:
        if game.options[heard.option].theirs >= _aspiration(state):
            return replace(state, agreed=heard.option), Move("agree", heard.option)
        kind = "cannot" if game.options[heard.option].theirs < IMPOSSIBLE else "rather"
        return state, Move(kind, heard.option)
    if heard.accepts:
        return replace(state, agreed=liked[state.proposal]), Move("agree", liked[state.proposal])
    if (heard.asks or new) and state.proposal + 1 < len(liked):
        state = replace(state, proposal=state.proposal + 1, told=state.told + 1)
        return state, Move("understood" if new else "reveal", liked[state.proposal])
    return _pressed(state) if heard.pushes else (state, Move("insist", liked[state.proposal]))


def _aspiration(state: State) -> float:
    """What an option must be worth to a planner: less with every reason told and every option of theirs set aside."""
    return max(IMPOSSIBLE, EAGER - EASED * len(state.points) - state.told)


def _concerns(game: Concerns, state: State, heard: Heard) -> tuple[State, Move]:
    new = _new_points(game, state, heard)
    state = replace(state, points=state.points | new)
    if state.leaked and heard.leaks:
        return state, Move("caught")
    if len(state.points) >= game.needed:
        return replace(state, agreed=1.0), Move("consent")
    hint = _next_hint(game, state)
    if hint is not None and (new or heard.asks):
        return replace(state, told=hint + 1), Move("eased" if new else "voice", hint)
    if new:
        return state, Move("warmer")
    return _pressed(state) if heard.pushes or not heard.asks else (state, Move("again", _open_point(game, state)))


def _open_point(game: Concerns, state: State) -> int:
    """The first concern told and not answered, which is said again to who asks again."""
    return next(k for k in range(len(game.points)) if k not in state.points)


def replay(game: Game, heard: Sequence[Heard]) -> tuple[State, Move | None]:
    """The state after all replies, and the other's answer to the last one (None without a reply)."""
    state, move = beginning(game), None
    for one in heard:
        state, move = step(game, state, one)
    return state, move


# ------------------------------------------------------------------------------------------------- goals


def progress(game: Game, state: State) -> float:
    """How near our goal is, 0-100: what would be reached if the talk ended well from here."""
    if state.left or state.leaked:
        return 0.0
    if state.agreed is not None:
        return 100.0 if isinstance(game, Concerns) else game.score(_agreed(game, state))
    if isinstance(game, Bargain):
        return game.score(game.offer(state.moved))
    if isinstance(game, Plan):
        reach = [k for k in game.liked() if game.options[k].theirs >= _aspiration(state)]
        return OPEN * max((game.score(k) for k in reach), default=0.0)
    return 100 * OPEN * min(1.0, len(state.points) / game.needed)


def _agreed(game: Game, state: State) -> float | int:
    return int(state.agreed) if isinstance(game, Plan) else state.agreed


def goal(game: Game, state: State) -> float:
    """SOTOPIA's goal dimension (0-10) by the check alone: nothing without an agreement, nothing with the secret out."""
    return progress(game, state) / 10 if state.agreed is not None else 0.0


# ------------------------------------------------------------------------------------------ seven dimensions

DIMENSIONS: Mapping[str, tuple[float, float]] = {  # SOTOPIA-EVAL: lowest and highest
    "believability": (0, 10),
    "relationship": (-5, 5),
    "knowledge": (0, 10),
    "secret": (-10, 0),
    "social_rules": (-10, 0),
    "financial_and_material_benefits": (-5, 5),
    "goal": (0, 10),
}


def overall(scores: Mapping[str, float]) -> float:
    """SOTOPIA's overall score: the plain mean of the seven; a missing, unknown or impossible one is a ValueError."""
    if wrong := set(scores) ^ set(DIMENSIONS):
        raise ValueError(f"the seven dimensions are {', '.join(DIMENSIONS)}; {sorted(wrong)[0]!r} does not fit")
    for name, value in scores.items():
        low, high = DIMENSIONS[name]
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}, outside {low} to {high}")
    return sum(scores.values()) / len(DIMENSIONS)
