from specforge.dsl import Capture, Eagle3, Evaluate, Prompts, Recipe, Recorded, Target, Train

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
heldout = Prompts("../../recipes/data/tiny_heldout.jsonl", max_length=64)
features = Capture(Recorded("recordings/tiny"), target)
recipe = Recipe(name="bad", train=Train(features, Eagle3(ttt_length=4)), evaluate=[Evaluate(heldout)])
