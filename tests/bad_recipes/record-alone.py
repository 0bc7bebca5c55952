from specforge.dsl import Capture, Eagle3, Export, Prompts, Recipe, Record, Target

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
features = Capture(prompts, target, Eagle3.policy(target))
recipe = Recipe(name="bad", record=Record(features, "features"), outputs=[Export("hf")])
