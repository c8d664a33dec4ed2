"""The world of pictures: Noto's emoji of everyday things, for decoders that know English and what things are."""

from research.pictures import general_knowledge, layouts, questions, scenes
from research.pictures.language import caption, easy_turns, scene_turns, text_turns
from research.pictures.nouns import NOUNS, with_article
from research.pictures.questions import NEW_COMBINATION, NEW_KIND, NEW_KNOWLEDGE
from tinyworld.scenes import Item
from tinyworld.world import NOTHING, OCR_TYPES, SHAPE_NAMES, SIGNS, World, part_name


MMBENCH = {
    "name": ("attribute_recognition", "finegrained_perception (instance-level)"),
    "where": ("object_localization", "finegrained_perception (instance-level)"),
    "kind": ("image_topic", "coarse_perception"),
    "beside": ("spatial_relationship", "finegrained_perception (cross-instance)"),
    "count": ("structuralized_imagetext_understanding", "logic_reasoning"),
    "knowledge": ("function_reasoning", "attribute_reasoning"),
}
MMSTAR = {
    "coarse perception": {
        "image scene and topic": ("kind", "objects"),
        "image style & quality": ("name", "sign"),
        "image emotion": ("count", "objects"),
    },
    "fine-grained perception": {
        "object counting": ("count", "objects"),
        "recognition": ("name", "objects"),
        "localization": ("where", "objects"),
    },
    "instance reasoning": {
        "single-instance reasoning": ("kind", "objects"),
        "cross-instance attribute reasoning": ("knowledge", "objects"),
        "cross-instance relation reasoning": ("beside", "objects"),
    },
    "logical reasoning": {  # what training holds out
        "code & sequence reasoning": (f"knowledge, {NEW_COMBINATION}", "objects"),
        "diagram reasoning": (f"where, {NEW_KIND}", "objects"),
        "common reasoning": (f"beside, {NEW_KIND}", "objects"),
    },
    "science & technology": {  # what training holds out
        "biology & chemistry & physics": (f"knowledge, {NEW_KNOWLEDGE}", "objects"),
        "electronics & energy & mechanical eng.": (f"kind, {NEW_KIND}", "objects"),
        "geography & earth science & agriculture": (f"name, {NEW_KIND}", "objects"),
    },
    "math": {
        "geometry": ("at", "objects"),
        "numeric commonsense and calculation": ("at", "number"),
        "statistical reasoning": ("at", "form"),
    },
}
SEED = {
    "chart": (("at",), "form"),
    "map": (("where", "beside"), "objects"),
    "web": (("name", "where"), "sign"),
}


def _part_name(item: Item | None) -> str:
    return with_article(item.name) if item is not None and item.kind == "picture" else part_name(item)


WORLD = World(
    name="pictures",
    canvas=scenes.CANVAS,
    layouts=layouts.LAYOUTS,
    draw=layouts.draw,
    draw_easy=layouts.thing,
    easy_share=0.5,
    render=scenes.render,
    caption=caption,
    part_names=(NOTHING, *map(with_article, NOUNS), *SHAPE_NAMES, *SIGNS),
    part_name=_part_name,
    ask=questions.ask,
    descriptions=questions.descriptions,
    absent_descriptions=questions.absent_descriptions,
    exists=questions.exists_text,
    scene_turns=scene_turns,
    text_turns=text_turns,
    text_share=0.4,
    easy_turns=easy_turns,
    easy_text_share=0.06,
    mmbench=MMBENCH,
    mmstar=MMSTAR,
    pope_pairs=5,
    seedbench_2_plus=SEED,
    ocrbench=OCR_TYPES,
    scienceqa=("knowledge", "kind", f"knowledge, {NEW_COMBINATION}"),
    ai2d=("name", "where", "beside"),
    text_question=general_knowledge.text_question,
    stories=general_knowledge.stories(),
    training_stories=general_knowledge.training_stories(),
    exams=general_knowledge.exams,
)
