"""In: nothing. Out: the nodes a recipe is written with."""

from specforge.dsl.capture import Capture, Policy
from specforge.dsl.draft import Draft
from specforge.dsl.engine import SGLang, Transformers
from specforge.dsl.output import Checkpoint, Evaluate, Export
from specforge.dsl.problem import RecipeError
from specforge.dsl.recipe import Recipe
from specforge.dsl.record import Record
from specforge.dsl.source import Ckpt, Conversations, Mix, Prompts, Recorded
from specforge.dsl.store import Mooncake, SharedDir
from specforge.dsl.strategy import Eagle3
from specforge.dsl.target import Target
from specforge.dsl.topology import Colocated, Disaggregated, Trainers
from specforge.dsl.train import Train

__all__ = [
    "Capture",
    "Checkpoint",
    "Ckpt",
    "Colocated",
    "Conversations",
    "Disaggregated",
    "Draft",
    "Eagle3",
    "Evaluate",
    "Export",
    "Mix",
    "Mooncake",
    "Policy",
    "Prompts",
    "Recipe",
    "RecipeError",
    "Record",
    "Recorded",
    "SGLang",
    "SharedDir",
    "Target",
    "Train",
    "Trainers",
    "Transformers",
]
