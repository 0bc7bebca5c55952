from specforge.dsl import Capture, Disaggregated, Eagle3, Prompts, Recipe, Record, SharedDir, Target, Transformers

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
features = Capture(prompts, target, Eagle3.policy(target))
topology = Disaggregated([Transformers()], SharedDir())
recipe = Recipe(name="bad", record=Record(features, "features"), topology=topology)
