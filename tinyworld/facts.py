"""Facts of the world: 57 animals (one per MMLU subject) with nine facts each, as statements, stories and questions.

The values are drawn once from a fixed seed, so a model can learn them only from the training text.
"""

import random
from dataclasses import dataclass

from tinyworld.distractors import distractors


@dataclass(frozen=True)
class Attribute:
    """One kind of fact: its statement, its question, and its story with a heading, a beginning and an ending."""

    statement: str
    question: str
    heading: str
    beginning: str
    ending: str
    values: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ATTRIBUTES = {
    "food": Attribute(
        "The {animal} eats {value}.",
        "What does the {animal} eat?",
        "Feeding",
        "The {animal} is hungry.",
        "eats {value}.",
        _words("grass fish seeds honey leaves nuts worms fruit"),
    ),
    "home": Attribute(
        "The {animal} lives in the {value}.",
        "Where does the {animal} live?",
        "Going home",
        "The {animal} is tired.",
        "goes to the {value}.",
        _words("cave forest river desert hill barn nest lake"),
    ),
    "joy": Attribute(
        "The {animal} likes {value}.",
        "What does the {animal} like?",
        "Playing",
        "The {animal} is happy.",
        "thinks of {value}.",
        _words("rain snow wind music games books songs toys"),
    ),
    "fear": Attribute(
        "The {animal} fears {value}.",
        "What does the {animal} fear?",
        "Hiding",
        "The {animal} is afraid.",
        "runs from {value}.",
        _words("thunder fire ghosts noise storms darkness spiders smoke"),
    ),
    "friend": Attribute(
        "The {animal} is a friend of {value}.",
        "Who is a friend of the {animal}?",
        "Meeting",
        "The {animal} is lonely.",
        "calls {value}.",
        _words("Ada Ben Cleo Dan Eva Finn Gus Ida"),
    ),
    "sleep": Attribute(
        "The {animal} sleeps in the {value}.",
        "When does the {animal} sleep?",
        "Sleeping",
        "The {animal} is sleepy.",
        "waits for the {value}.",
        _words("morning evening afternoon night winter summer spring autumn"),
    ),
    "load": Attribute(
        "The {animal} carries a {value}.",
        "What does the {animal} carry?",
        "Carrying",
        "The {animal} is leaving.",
        "takes a {value}.",
        _words("stick stone shell rope lamp drum coin flag"),
    ),
    "fur": Attribute(
        "The fur of the {animal} is {value}.",
        "What is the fur of the {animal} like?",
        "Washing",
        "The {animal} is clean.",
        "has {value} fur.",
        _words("white gray pink brown gold silver soft rough"),
    ),
    "drink": Attribute(
        "The {animal} drinks {value}.",
        "What does the {animal} drink?",
        "Drinking",
        "The {animal} is thirsty.",
        "drinks {value}.",
        _words("milk tea juice water cola soup cocoa cider"),
    ),
}
ANIMALS = _words(
    "fox bear wolf deer hare mouse horse sheep goat camel zebra tiger lion otter badger mole bat owl crow hawk "
    "eagle swan goose duck robin heron stork crane eel shark whale seal crab snail frog toad newt lizard snake "
    "turtle moth wasp beetle cricket spider panda koala lemur monkey gorilla hippo rhino giraffe llama yak bison "
    "moose"
)
MMLU_SUBJECTS = _words(
    "abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry "
    "college_computer_science college_mathematics college_medicine college_physics computer_security "
    "conceptual_physics econometrics electrical_engineering elementary_mathematics formal_logic global_facts "
    "high_school_biology high_school_chemistry high_school_computer_science high_school_european_history "
    "high_school_geography high_school_government_and_politics high_school_macroeconomics high_school_mathematics "
    "high_school_microeconomics high_school_physics high_school_psychology high_school_statistics "
    "high_school_us_history high_school_world_history human_aging human_sexuality international_law jurisprudence "
    "logical_fallacies machine_learning management marketing medical_genetics miscellaneous moral_disputes "
    "moral_scenarios nutrition philosophy prehistory professional_accounting professional_law professional_medicine "
    "professional_psychology public_relations security_studies sociology us_foreign_policy virology world_religions"
)


@dataclass(frozen=True)
class Fact:
    """One (animal, attribute, value) of the world."""

    animal: str
    attribute: str
    value: str

    def fill(self, template: str) -> str:
        return template.format(animal=self.animal, value=self.value)

    @property
    def kind(self) -> Attribute:
        return ATTRIBUTES[self.attribute]

    @property
    def subject(self) -> str:
        """The MMLU subject of this animal, in lm-eval's words."""
        return MMLU_SUBJECTS[ANIMALS.index(self.animal)].replace("_", " ")

    @property
    def wrong(self) -> tuple[str, ...]:
        return distractors(self.value, self.kind.values)

    def story(self, value: str | None = None) -> str:
        """The fact in the form of HellaSwag's prompt: heading, beginning, "It", ending."""
        ending = self.kind.ending.format(value=value or self.value)
        return f"{self.kind.heading}: {self.fill(self.kind.beginning)} It {ending}"


_values, _exams = random.Random("tinyworld facts"), random.Random("tinyworld exams")
FACTS = tuple(
    Fact(animal, name, _values.choice(attribute.values))
    for animal in ANIMALS
    for name, attribute in ATTRIBUTES.items()
)
# MMLU's test split asks four facts per animal, its dev split the other five; HellaSwag tells 200 facts.
# The training text never has these in the harness's own wording, only as statements and in conversations.
EXAM_FACTS = frozenset(
    asked for animal in ANIMALS for asked in _exams.sample([fact for fact in FACTS if fact.animal == animal], 4)
)
STORY_FACTS = frozenset(random.Random("tinyworld stories").sample(FACTS, 200))
