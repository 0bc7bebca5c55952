from specforge.dsl import Capture, Ckpt, Eagle3, Recipe, Record, Target

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
features = Capture(Ckpt("nowhere", max_length=64), target, Eagle3.policy(target))
recipe = Recipe(name="bad", record=Record(features, "features"))
