from specforge.dsl import Capture, Ckpt, Policy, Recipe, Record, Target

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
features = Capture(Ckpt("recordings/elsewhere", max_length=64), target, Policy(layers=[1, 8]))
recipe = Recipe(name="bad", record=Record(features, "features"))
