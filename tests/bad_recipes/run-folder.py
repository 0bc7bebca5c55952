from specforge.dsl import Capture, Eagle3, Prompts, Recipe, Target, Train

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
recipe = Recipe(name="bad", train=Train(Capture(prompts, target), Eagle3(ttt_length=4)), output_dir="runs/{nam}")
