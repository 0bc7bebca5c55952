from specforge.dsl import Capture, Eagle3, Prompts, Recipe, Record, Target, Train

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
features = Capture(prompts, target, Eagle3.policy(target))
recipe = Recipe(name="bad", train=Train(features, Eagle3(ttt_length=4)), record=Record(features, "features"))
