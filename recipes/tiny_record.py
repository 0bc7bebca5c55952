"""An offline capture: the rows of tiny_eagle3, to be trained on as Capture(Recorded("features"), target)."""

from specforge.dsl import Capture, Eagle3, Prompts, Recipe, Record, Target

target = Target("tiny-llama", config="targets/tiny-llama.json", random_weights=True)
prompts = Prompts("data/tiny_prompts.jsonl", max_length=64)

recipe = Recipe(name="tiny-record", record=Record(Capture(prompts, target, Eagle3.policy(target)), "features"))
