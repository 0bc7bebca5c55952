"""In: nothing. Out: the nodes a recipe is written with."""

from specforge.dsl.capture import Capture, Policy
from specforge.dsl.draft import Draft
from specforge.dsl.engine import Transformers
from specforge.dsl.output import Checkpoint, Evaluate, Export
from specforge.dsl.problem import RecipeError
from specforge.dsl.recipe import Recipe
from specforge.dsl.source import Conversations, Prompts
from specforge.dsl.strategy import Eagle3
from specforge.dsl.target import Target
from specforge.dsl.topology import Colocated
from specforge.dsl.train import Train

__all__ = [
    "Capture",
    "Checkpoint",
    "Colocated",
    "Conversations",
    "Draft",
    "Eagle3",
    "Evaluate",
    "Export",
    "Policy",
    "Prompts",
    "Recipe",
    "RecipeError",
    "Target",
    "Train",
    "Transformers",
]
