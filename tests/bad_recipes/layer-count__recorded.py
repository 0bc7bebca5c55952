from specforge.dsl import Capture, Eagle3, Prompts, Recipe, Record, Target

target = Target("shallow", config="configs/shallow.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
recipe = Recipe(name="bad", record=Record(Capture(prompts, target, Eagle3.policy(target)), "features"))
