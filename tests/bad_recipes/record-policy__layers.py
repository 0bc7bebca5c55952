from specforge.dsl import Capture, Policy, Prompts, Recipe, Record, Target

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
recipe = Recipe(name="bad", record=Record(Capture(prompts, target, Policy()), "features"))
