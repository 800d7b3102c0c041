"""Dialogues with one planted pivotal turn each, put together from parts we wrote."""

import random

from rapo_lib.dialogue import Dialogue, Turn

FLAT = (  # a reply and an answer after which nothing has changed
    ("I see. And how long has it been this way?", "A few months. It started in the spring."),
    ("What did you do then?", "I went home and sat in the kitchen."),
    ("Who else knows about it?", "Only my cousin. She lives far away."),
    ("How are the weekends?", "The same as the other days, more or less."),
    ("Do you still go to work?", "Yes, I go in at eight and come back at six."),
    ("What do the others in the house say?", "Not much. They have their own days."),
)
SMALL = (
    ("Hello, how are you today?", "Hi. It's been raining here all day."),
    ("Nice weather we are having.", "I had pasta for dinner."),
)
STORIES = (
    (
        "exam",
        "My exam is on Friday and I can't sleep. Everyone in my class manages except me.",
        "You're afraid that on Friday everyone will see you don't belong in that class.",
        "Yes, that's exactly it. I feel like you really understand what this is like for me.",
        "It is a relief to say it out loud. I feel a bit lighter now.",
        "What would your father say if you failed the exam?",
        "What you asked earlier about my father stayed with me. I feel calmer, it's a relief to see that.",
    ),
    (
        "mother",
        "My mother died in June and everyone acts as if it were over.",
        "You miss her every day, and around you the world has moved on without her.",
        "Exactly. You're the first person who understood that. Thank you.",
        "I feel less alone with it, and calmer.",
        "What was the morning tea with your mother like?",
        "What you asked before about the morning tea stayed with me. Thank you, it feels good to remember her.",
    ),
    (
        "job",
        "They let me go after ten years, with an email. I don't know what to tell my kids.",
        "Ten years of loyalty, and they did not even look you in the face.",
        "Yes. That's the thing I couldn't put a name to. You understood it.",
        "Thank you, I really feel better now. There's some hope.",
        "What are you proud of from those ten years at the job?",
        "I keep thinking about your question, what I was proud of in the job. It gives me hope, I feel better.",
    ),
    (
        "brother",
        "My brother drinks and I am the only one who drives him home.",
        "You're carrying your brother and nobody is carrying you.",
        "That's it. Nobody has ever seen that. You really get it.",
        "I can breathe again. It's good to talk to someone about it.",
        "What would you do with an evening without driving your brother?",
        "You asked me something earlier, about an evening without driving. I feel lighter, it makes me smile.",
    ),
    (
        "rent",
        "The rent went up again and I lie awake counting.",
        "It's the fear of losing your home that keeps you awake, more than the numbers.",
        "Yes, you are right. I feel understood, thank you.",
        "I feel calmer than when we started. I think I might sleep tonight.",
        "Where did you learn to carry money worries alone?",
        "What you said before about carrying money worries alone stayed with me. It's true, and I feel relieved.",
    ),
    (
        "friend",
        "My best friend stopped answering me two weeks ago.",
        "The silence hurts most because she was the one you told everything.",
        "Exactly, that's how it feels. It means a lot that you understand.",
        "Somewhat better, thank you. It helps that you listen.",
        "What did your friend give you that nobody else does?",
        "What you asked earlier about my friend stayed with me. That was a good question, thank you, I feel better.",
    ),
    (
        "move",
        "I moved here for university and sit in my room every evening.",
        "You came for a new life and the evenings are empty.",
        "Yes. You put it better than I could. I feel heard.",
        "It's a relief to get it out. I feel less alone.",
        "What were your evenings like before you moved?",
        "Earlier you asked about my evenings before I moved. I'm glad you asked, it gives me hope.",
    ),
)
WORSE = (
    "You're overreacting, other people have it much worse.",
    "You're judging me. I feel worse now, you don't listen.",
    "I shouldn't have said anything. This isn't helping.",
)
SPIKE = ("How was your day otherwise?", "Thank you so much, you are very kind, I feel great!")
NEWS = "Hang on, my phone. They just called, I got good news, they approved it!"
AFTER_NEWS = "I'm still happy about the call, it was wonderful news."


def dialogue(name: str, parts: list[tuple[str, str]], opening: str, pivot: str) -> tuple[Dialogue, int]:
    """The dialogue and the index of the turn whose text is `pivot`."""
    turns = [Turn("seeker", opening, emotion=35.0)]
    for reply, answer in parts:
        turns += [Turn("supporter", reply), Turn("seeker", answer, emotion=35.0)]
    return Dialogue(name, tuple(turns)), next(i for i, turn in enumerate(turns) if turn.text == pivot)


def planted(seed: int = 0) -> list[tuple[Dialogue, int]]:
    """21 dialogues: at once, delayed, for the worse; each with small talk and a spike or the seeker's own news."""
    rng, found = random.Random(seed), []
    for topic, opening, reflection, answer, later, question, return_ in STORIES:
        flat = rng.sample(FLAT, 5)
        decoy = [SPIKE, flat[4]] if rng.random() < 0.5 else []
        news = [(flat[3][0], NEWS), ("I'm listening.", AFTER_NEWS)] if not decoy else []
        small = [rng.choice(SMALL)]
        at_once = [*small, flat[0], *decoy, (reflection, answer), (flat[1][0], later), *news]
        found.append(dialogue(f"{topic}-at-once", at_once, opening, reflection))
        late = [*small, flat[0], *decoy, (question, "I don't know. Hard to say."), flat[1], (flat[2][0], return_)]
        late += [("I'm glad you came back to that.", later), *news]
        found.append(dialogue(f"{topic}-delayed", late, opening, question))
        bad = [*small, flat[0], flat[1], (WORSE[0], WORSE[1]), (flat[2][0], WORSE[2])]
        found.append(dialogue(f"{topic}-worse", bad, opening, WORSE[0]))
    return found
